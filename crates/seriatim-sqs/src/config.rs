//! The settings of a server.

use hyper::Uri;
use seriatim::Client;

use crate::serve_error::ServeError;

/// How many digits an account has.
const ACCOUNT_DIGITS: usize = 12;

/// Which requests are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Access {
    /// Requests that are signed with a key of the schema: see [`Keys`](crate::Keys). The default.
    #[default]
    Signed,
    /// All requests, whatever their signature. Only on a loopback address, and never for a browser.
    Anonymous,
}

/// The settings of [`serve`](crate::serve).
#[derive(Debug, Clone)]
#[must_use = "settings do nothing until they are given to serve"]
pub struct Config {
    pub(crate) client: Client,
    pub(crate) access: Access,
    pub(crate) public_url: Option<String>,
    pub(crate) account: String,
    pub(crate) connections: usize,
    pub(crate) body_memory: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            client: Client::default(),
            access: Access::default(),
            public_url: None,
            account: String::from("000000000000"),
            connections: 10_000,
            body_memory: 256 * 1024 * 1024,
        }
    }
}

impl Config {
    /// Returns the defaults: the schema `seriatim`, and signed requests only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves the schema of this client.
    pub fn client(mut self, client: Client) -> Self {
        self.client = client;
        self
    }

    /// Sets which requests are answered. Default [`Access::Signed`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the base URL of queue addresses, such as `https://sqs.example.com`: SDKs send their
    /// requests there. A path may follow, but no query. Default: `http://` and the `Host` of the
    /// request.
    pub fn public_url(mut self, url: &str) -> Self {
        self.public_url = Some(url.trim_end_matches('/').to_owned());
        self
    }

    /// Sets the account in the addresses and ARNs of queues, of 12 digits. Default `000000000000`.
    /// It is the one of all queues: what is asked of another account does not exist.
    pub fn account(mut self, account: &str) -> Self {
        account.clone_into(&mut self.account);
        self
    }

    /// Limits how many connections are open at once, at least 1. Default 10,000. Others wait to be
    /// accepted.
    pub fn connections(mut self, limit: usize) -> Self {
        self.connections = limit.max(1);
        self
    }

    /// Limits the memory of request bodies that are being read, in bytes. Default 256 MiB, at least
    /// 16 MiB. Half of it is for bodies of at most 64 KiB. If it is full, what comes is not read
    /// on; a body that has not come within 30 s is refused, with 503 if memory was missing.
    pub fn body_memory(mut self, bytes: usize) -> Self {
        self.body_memory = bytes.max(16 * 1024 * 1024);
        self
    }

    /// Refuses settings that [`serve`](crate::serve) cannot serve with. It checks them too.
    ///
    /// # Errors
    /// [`ServeError::Account`], [`ServeError::PublicUrl`].
    pub fn check(&self) -> Result<(), ServeError> {
        let account = &self.account;
        if account.len() != ACCOUNT_DIGITS || !account.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(ServeError::Account(account.clone()));
        }
        match self.public_url.as_deref() {
            Some(url) if !is_base(url) => Err(ServeError::PublicUrl(url.to_owned())),
            _ => Ok(()),
        }
    }
}

/// Returns whether addresses may begin with this one.
fn is_base(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    // A user and its password would be told to every client. A fragment is not part of a `Uri`.
    let Some(authority) = uri.authority().filter(|of| !of.as_str().contains('@')) else {
        return false;
    };
    let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    let has_sound_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    is_http && has_sound_port && !url.contains(['?', '#'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_twelve_digits() {
        for sound in ["000000000000", "123456789012"] {
            assert!(Config::new().account(sound).check().is_ok(), "{sound}");
        }
        for odd in ["", "0", "1234567890123", "12345678901x", "\u{661}23456789012", "1234/5678901"]
        {
            let refused = Config::new().account(odd).check();
            assert!(matches!(&refused, Err(ServeError::Account(of)) if of == odd), "{refused:?}");
        }
    }

    #[test]
    fn a_public_url_is_of_http_and_has_no_query() {
        for sound in [
            "https://sqs.example.com",
            "http://localhost:9324/",
            "https://[::1]:80",
            "https://example.com/some/path/",
        ] {
            assert!(Config::new().public_url(sound).check().is_ok(), "{sound}");
        }
        for odd in [
            "",
            "sqs.example.com",
            "localhost:9324",
            "/path",
            "ftp://example.com",
            "https://",
            "https:///path",
            "https://example.com?a=b",
            "https://example.com/?",
            "https://example.com/#a",
            "https://user:secret@example.com",
            "https://exa mple.com",
            "https://example.com:99999/",
            "https://example.com:",
        ] {
            let refused = Config::new().public_url(odd).check();
            assert!(matches!(refused, Err(ServeError::PublicUrl(_))), "{odd}: {refused:?}");
        }
    }
}
