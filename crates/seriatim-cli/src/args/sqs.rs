//! The arguments of `seriatim serve sqs` and `sqs`.

use std::net::SocketAddr;

use clap::{Args, Subcommand};
use seriatim_sqs::NewKey;

#[derive(Debug, Clone, Args)]
pub(crate) struct ServeSqs {
    /// The address to listen on. TLS is for a proxy before it.
    #[arg(long, default_value = "127.0.0.1:9324")]
    pub(crate) listen: SocketAddr,
    /// The base URL of queue addresses, such as `https://sqs.example.com`. Default: `http://` and
    /// the host of the request.
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,
    /// The account in the addresses and ARNs of queues, of 12 digits.
    #[arg(long, default_value = "000000000000", value_name = "DIGITS")]
    pub(crate) account: String,
    /// The most connections to the database, for keys without a role; to each of several servers.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub(crate) connections: u32,
    #[command(flatten)]
    pub(crate) unsigned: Unsigned,
    /// Serve a private PostgreSQL, for development and tests. It is removed at the end. Every
    /// request is answered, on a loopback address; with the variable `SERIATIM_SQS_KEY=ID:SECRET`
    /// those that are signed with this key, on any address.
    #[arg(long)]
    pub(crate) embedded: bool,
    /// Show metrics of the requests at /metrics, to all who reach the address.
    #[arg(long)]
    pub(crate) metrics: bool,
}

/// Requests that need no signature.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Unsigned {
    /// Answer every request, whatever its signature. Only on a loopback address.
    #[arg(long)]
    pub(crate) anonymous: bool,
    /// With --embedded, answer every request on any address, as from other containers.
    #[arg(long, requires = "embedded")]
    pub(crate) anyone: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Sqs {
    /// Add, list, disable, enable and remove the keys that clients sign with.
    #[command(subcommand)]
    Key(SqsKey),
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SqsKey {
    /// Make a key, and print it.
    Add {
        /// The role of `PostgreSQL` that requests are carried out in. Default: that of the server.
        #[arg(long)]
        role: Option<String>,
        /// The queues that it is for, as `orders*,mail`: `*` is any text. Default: all.
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        queues: Option<Vec<String>>,
        /// The key: all servers have the same one.
        #[arg(skip = NewKey::random())]
        key: NewKey,
    },
    /// List the keys, without their secrets.
    List,
    /// Disable a key: what is signed with it is refused until it is enabled.
    Disable {
        /// The access key id.
        access_key: String,
    },
    /// Enable a key that is disabled.
    Enable {
        /// The access key id.
        access_key: String,
    },
    /// Remove a key: what is signed with it is refused from now on.
    Remove {
        /// The access key id.
        access_key: String,
    },
}
