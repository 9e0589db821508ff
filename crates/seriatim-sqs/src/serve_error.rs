//! Why a server could not begin.

use std::net::SocketAddr;

use seriatim::MigrateError;
use seriatim::shards::ShardId;

use crate::error::is_passing;

/// Why a server could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// [`Access::Anonymous`](crate::Access::Anonymous) is for a loopback address.
    #[error("requests without signatures are answered on a loopback address only, not on {0}")]
    NotLoopback(SocketAddr),
    /// An account has 12 digits.
    #[error("the account {0:?} must be 12 digits, such as 000000000000")]
    Account(String),
    /// The key of the settings is none.
    #[error(
        "the access key id must be 1 to 128 letters, digits, '-', '_' or '.', and the secret must not be \
         empty"
    )]
    Key,
    /// Clients cannot send requests to such an address.
    #[error(
        "the public URL {0:?} must be http:// or https:// and a host, without a user, a query or a \
         fragment, such as https://sqs.example.com"
    )]
    PublicUrl(String),
    /// The address of the listener cannot be told.
    #[error("the listener has no address: {0}")]
    Listener(#[source] std::io::Error),
    /// The schema cannot be read. It has to be migrated, and the server's role to own it.
    #[error("the secret of the schema cannot be read: {0}")]
    Database(#[from] sqlx::Error),
    /// The number of the schema cannot be read, or is that of another server.
    #[error(transparent)]
    Number(#[from] MigrateError),
    /// The schema has no number among several servers.
    #[error("the schema has no number yet: give it one by `seriatim migrate` with --server")]
    NotNumbered,
    /// One of several servers does not fit, or none of them answers.
    #[error("shard {shard}: {error}")]
    OnShard {
        /// The server.
        shard: ShardId,
        /// Why.
        #[source]
        error: Box<ServeError>,
    },
}

impl ServeError {
    /// Returns whether the server may come later.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Database(error) | Self::Number(MigrateError::Database { source: error, .. }) => {
                is_passing(error)
            }
            Self::OnShard { error, .. } => error.is_passing(),
            _ => false,
        }
    }
}
