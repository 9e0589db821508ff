//! The settings of a server.

use seriatim::Client;

/// Which requests are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Access {
    /// Those that are signed with a key of the schema: see [`Keys`](crate::Keys). The default.
    #[default]
    Signed,
    /// All, whatever their signature says. Only on a loopback address, and never for a browser.
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

    /// Sets what the addresses of queues begin with, such as `https://sqs.example.com`: SDKs send
    /// their requests there. Default: `http://` and the `Host` of the request.
    pub fn public_url(mut self, url: &str) -> Self {
        self.public_url = Some(url.trim_end_matches('/').to_owned());
        self
    }

    /// Sets the account in the addresses and ARNs of queues. Default `000000000000`. It has no
    /// meaning: there is one for the whole schema.
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
}
