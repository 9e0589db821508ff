//! The settings of a server.

use std::fmt;
use std::sync::Arc;

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
    /// All requests, whatever their signature, on any address and by any name; never for a browser.
    /// Anyone who reaches the address may do everything: for tests whose clients are in containers.
    Anyone,
}

/// Returns metrics as Prometheus reads them.
pub(crate) type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// The settings of [`serve`](crate::serve).
#[derive(Clone)]
#[must_use = "settings do nothing until they are given to serve"]
pub struct Config {
    pub(crate) client: Client,
    pub(crate) access: Access,
    /// The id and the secret.
    pub(crate) key: Option<(String, String)>,
    pub(crate) process_metrics: Option<Render>,
    pub(crate) public_url: Option<String>,
    pub(crate) account: String,
    pub(crate) connections: usize,
    pub(crate) body_memory: usize,
    pub(crate) answer_memory: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            client: Client::default(),
            access: Access::default(),
            key: None,
            process_metrics: None,
            public_url: None,
            account: String::from("000000000000"),
            connections: 10_000,
            body_memory: 256 * 1024 * 1024,
            answer_memory: 256 * 1024 * 1024,
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

    /// Takes this key too, beside those of the schema: in the server's role, and stored nowhere.
    /// For tests, and where keys come from the environment. Default none.
    pub fn key(mut self, access_key: &str, secret: &str) -> Self {
        self.key = Some((access_key.to_owned(), secret.to_owned()));
        self
    }

    /// Shows the metrics of this process at `GET /metrics`, to everyone who reaches the address:
    /// `render` returns them as Prometheus reads them. For an application that has an exporter of
    /// the facade `metrics`. They name the queues. Default none: the address does not exist.
    pub fn process_metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.process_metrics = Some(Arc::new(render));
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

    /// Limits how many connections are open at once, at least 1. Default 10,000. For a further one
    /// the slowest one is closed, or the one that is idle longest, unless it has had less than a
    /// second. A connection whose request is carried out keeps its place.
    pub fn connections(mut self, limit: usize) -> Self {
        self.connections = limit.max(1);
        self
    }

    /// Limits the memory of request bodies that are being read, in bytes. Default 256 MiB, at least
    /// 16 MiB. Half of it is for bodies of at most 64 KiB. If it is full, what comes is not read
    /// on, and the connection whose body comes slowest is closed after a second; a body that has
    /// not come within 30 s is refused, with 503 if memory was missing.
    pub fn body_memory(mut self, bytes: usize) -> Self {
        self.body_memory = bytes.max(16 * 1024 * 1024);
        self
    }

    /// Limits the memory of answers that are on their way to clients, in bytes. Default 256 MiB, at
    /// least 16 MiB. If it is full, the connection whose client reads slowest is closed after a
    /// second. Nothing is received for other clients until there is room; after 5 s they are
    /// answered with 503. A claim that has begun is answered: each brings 4 MiB or one message.
    pub fn answer_memory(mut self, bytes: usize) -> Self {
        self.answer_memory = bytes.max(16 * 1024 * 1024);
        self
    }

    /// Refuses settings that [`serve`](crate::serve) cannot serve with. It checks them too.
    ///
    /// # Errors
    /// [`ServeError::Account`], [`ServeError::Key`], [`ServeError::PublicUrl`].
    pub fn check(&self) -> Result<(), ServeError> {
        let account = &self.account;
        if account.len() != ACCOUNT_DIGITS || !account.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(ServeError::Account(account.clone()));
        }
        if self.key.as_ref().is_some_and(|(id, secret)| !is_key_id(id) || secret.is_empty()) {
            return Err(ServeError::Key);
        }
        match self.public_url.as_deref() {
            Some(url) if !is_base(url) => Err(ServeError::PublicUrl(url.to_owned())),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("schema", &self.client.schema())
            .field("access", &self.access)
            .field("key", &self.key.as_ref().map(|(id, _)| id))
            .field("public_url", &self.public_url)
            .field("account", &self.account)
            .field("connections", &self.connections)
            .field("body_memory", &self.body_memory)
            .field("answer_memory", &self.answer_memory)
            .field("process_metrics", &self.process_metrics.is_some())
            .finish()
    }
}

/// Returns whether a signature can name a key of this id.
fn is_key_id(id: &str) -> bool {
    let is_name = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    (1..=128).contains(&id.len()) && id.bytes().all(is_name)
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
