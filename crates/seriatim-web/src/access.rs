//! Who sent a request, and whether it may change anything.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use subtle::ConstantTimeEq;

use crate::config::{Access, Auth, Config, Identity, User};
use crate::error::WebError;

const CLOSED: &str = "This page is closed, as no way to sign in is configured. Give \
     seriatim_web::Config an auth (Auth::Basic, Auth::Bearer, Auth::ProxyHeader or \
     Auth::Loopback), or decide by Config::access.";
const NOT_LOOPBACK: &str = "This page lets in connections from its own machine only. Open it there \
     by the name localhost, or configure another Auth.";
const NO_ACCESS: &str = "You may not see this page. Ask its operators for the role viewer.";

/// Lets requests of viewers pass, with their [`Identity`] as an extension.
pub(crate) async fn require_viewer(
    State(config): State<Arc<Config>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    match identify(&config, &parts) {
        Ok(identity) if identity.access >= Access::Viewer => {
            parts.extensions.insert(identity);
            next.run(Request::from_parts(parts, body)).await
        }
        Ok(_) => WebError::Forbidden(NO_ACCESS.to_owned()).into_response_for(&parts),
        Err(refusal) => refusal.into_response_for(&parts),
    }
}

/// The reason to refuse a request whose sender is not known.
enum Refusal {
    Closed(&'static str),
    SignIn(&'static str),
}

impl Refusal {
    fn into_response_for(self, parts: &Parts) -> Response {
        match self {
            Self::Closed(why) => WebError::Forbidden(why.to_owned()).into_response_for(parts),
            Self::SignIn(scheme) => {
                let challenge = [(header::WWW_AUTHENTICATE, scheme)];
                (challenge, WebError::SignIn.into_response_for(parts)).into_response()
            }
        }
    }
}

fn identify(config: &Config, parts: &Parts) -> Result<Identity, Refusal> {
    if let Some(decide) = &config.access {
        return Ok(decide(parts));
    }
    let headers = &parts.headers;
    match &config.auth {
        Auth::Closed => Err(Refusal::Closed(CLOSED)),
        Auth::Basic(users) => basic(headers)
            .and_then(|(name, secret)| find(users, Some(&name), &secret))
            .ok_or(Refusal::SignIn("Basic realm=\"seriatim\", charset=\"UTF-8\"")),
        Auth::Bearer(users) => credentials(headers, "bearer")
            .and_then(|token| find(users, None, token))
            .ok_or(Refusal::SignIn("Bearer realm=\"seriatim\"")),
        Auth::ProxyHeader { user, role, access } => {
            let name = text(headers, user).ok_or(Refusal::Closed(NO_ACCESS))?;
            let access = match role {
                Some(role) => text(headers, role).map_or(*access, Access::parse),
                None => *access,
            };
            Ok(Identity { name: name.to_owned(), access })
        }
        Auth::Loopback(access) => {
            let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
            if peer.is_some_and(|peer| peer.0.ip().is_loopback()) && names_loopback(headers) {
                return Ok(Identity { name: String::from("local"), access: *access });
            }
            Err(Refusal::Closed(NOT_LOOPBACK))
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().filter(|text| !text.is_empty())
}

fn credentials<'a>(headers: &'a HeaderMap, scheme: &str) -> Option<&'a str> {
    let (given, rest) = text(headers, &header::AUTHORIZATION)?.split_once(' ')?;
    given.eq_ignore_ascii_case(scheme).then(|| rest.trim())
}

fn basic(headers: &HeaderMap) -> Option<(String, String)> {
    let decoded = BASE64_STANDARD.decode(credentials(headers, "basic")?).ok()?;
    let (name, secret) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((name.to_owned(), secret.to_owned()))
}

/// Returns the user with these credentials. All users are compared, each in constant time, so that
/// the time tells nothing but lengths.
fn find(users: &[User], name: Option<&str>, secret: &str) -> Option<Identity> {
    let mut found = None;
    for user in users {
        let same_secret = user.secret.as_bytes().ct_eq(secret.as_bytes());
        let same_name =
            name.map_or(1.into(), |name| user.identity.name.as_bytes().ct_eq(name.as_bytes()));
        if bool::from(same_secret & same_name) && !user.secret.is_empty() {
            found = Some(user.identity.clone());
        }
    }
    found
}

/// Returns whether the request names this machine. A foreign page whose own name was made to lead
/// here names itself.
fn names_loopback(headers: &HeaderMap) -> bool {
    let host = text(headers, &header::HOST).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "localhost" | "127.0.0.1" | "[::1]")
}

/// Fails unless the page itself sent the request, and its user has the role.
///
/// A foreign page can send neither header: browsers write the first, and ask before they send the
/// second.
pub(crate) fn check_change(
    config: &Config,
    identity: &Identity,
    headers: &HeaderMap,
    needed: Access,
) -> Result<(), WebError> {
    let sent = |name: &str, value: &str| headers.get(name).is_some_and(|given| given == value);
    if !sent("sec-fetch-site", "same-origin") || !sent("x-seriatim", "1") {
        return Err(WebError::Forbidden(String::from(
            "A change needs the headers `Sec-Fetch-Site: same-origin` and `X-Seriatim: 1`.",
        )));
    }
    if config.read_only {
        return Err(WebError::Forbidden(String::from("This page is read-only.")));
    }
    if identity.access < needed {
        return Err(WebError::Forbidden(format!(
            "This needs the role {}, and {} has the role {}.",
            needed.as_str(),
            identity.name,
            identity.access.as_str()
        )));
    }
    Ok(())
}
