//! Who asks: signatures, and the keys that they are made with.

mod keys;
mod sigv4;

use std::sync::Arc;

use chrono::Utc;
use hyper::http::request::Parts;

pub use keys::{Key, KeyError, Keys, NewKey};

use crate::caller::Caller;
use crate::config::Access;
use crate::database::StoredKey;
use crate::error::{Code, SqsError};
use crate::servers::Servers;

/// The region of queues' names, if the request is not signed.
const REGION: &str = "us-east-1";

/// A request whose head may be of a client that is answered: its body may be read.
pub(crate) enum Head {
    /// It names a key that counts, and a time that does. The signature was not checked.
    Signed(Box<sigv4::Signature>, Arc<StoredKey>),
    /// No signature is asked for.
    Anonymous(Caller),
}

impl Head {
    /// Refuses a request by its head alone: one without a known key, or of another time, or of a
    /// browser where no signature is asked for.
    pub(crate) async fn check(
        access: Access,
        servers: &Servers,
        parts: &Parts,
    ) -> Result<Self, SqsError> {
        match access {
            Access::Signed => {
                let signature = sigv4::Signature::read(parts)?;
                signature.check_time(Utc::now())?;
                let key = servers.key(&signature.access_key).await?.ok_or_else(unknown_key)?;
                Ok(Self::Signed(Box::new(signature), key))
            }
            Access::Anonymous => anonymous(parts, false).map(Self::Anonymous),
            Access::Anyone => anonymous(parts, true).map(Self::Anonymous),
        }
    }

    /// Returns who made the request: the owner of the key that it is signed with.
    pub(crate) fn caller(self, parts: &Parts, body: &[u8]) -> Result<Caller, SqsError> {
        let (signature, key) = match self {
            Self::Signed(signature, key) => (signature, key),
            Self::Anonymous(caller) => return Ok(caller),
        };
        signature.verify(parts, body, &key.secret, Utc::now())?;
        Ok(Caller {
            access_key: Some(signature.access_key),
            role: key.role.clone(),
            queues: key.queues.clone(),
            region: signature.region,
        })
    }
}

/// Returns the key that a request names, which need not have signed it.
pub(crate) fn named_key(parts: &Parts) -> Option<String> {
    sigv4::Signature::read(parts).ok().map(|signature| signature.access_key)
}

/// Refuses a caller whose key was removed or disabled since the request came.
pub(crate) async fn check_key(servers: &Servers, caller: &Caller) -> Result<(), SqsError> {
    let Some(access_key) = &caller.access_key else { return Ok(()) };
    servers.key(access_key).await?.map(drop).ok_or_else(unknown_key)
}

fn unknown_key() -> SqsError {
    let message = "The security token included in the request is invalid.";
    SqsError::new(Code::UnknownKey, message)
}

/// Returns the caller of a server that asks for no signature. Pages in a browser reach the loopback
/// address too; they are refused. So is another name than that of loopback, unless `any_name` may
/// be asked.
fn anonymous(parts: &Parts, any_name: bool) -> Result<Caller, SqsError> {
    let denied = |message| SqsError::new(Code::AccessDenied, message);
    if parts.headers.contains_key("origin") || parts.headers.contains_key("sec-fetch-site") {
        return Err(denied("A server without signatures answers no browser."));
    }
    let host = parts.headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !any_name && !is_loopback(host) {
        return Err(denied("A server without signatures is asked under a name of loopback."));
    }
    let region = sigv4::Signature::read(parts).map(|signature| signature.region);
    Ok(Caller {
        access_key: None,
        role: None,
        queues: None,
        region: region.unwrap_or_else(|_| String::from(REGION)),
    })
}

/// Returns whether a `Host` header names the loopback interface.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_address = address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn loopback_has_several_names() {
        for name in ["localhost", "localhost:9324", "127.0.0.1:80", "[::1]:80", "sqs.localhost:1"] {
            assert!(is_loopback(name), "{name}");
        }
        for name in
            ["", "example.com", "localhost.example.com:80", "10.0.0.1", "notlocalhost", "[::2]"]
        {
            assert!(!is_loopback(name), "{name}");
        }
    }
}
