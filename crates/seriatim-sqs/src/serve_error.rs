//! Why a server could not begin.

use std::net::SocketAddr;

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
}
