//! The call of a client, in the form that both protocols are read into.

use serde_json::Value;

/// The call of a client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    /// The operation, if the request names one.
    pub(crate) operation: String,
    /// Its input, by the names of the JSON protocol. Numbers of the Query protocol are text.
    pub(crate) input: Value,
}
