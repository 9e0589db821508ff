//! The log of requests: a line for each that is refused.

use hyper::http::request::Parts;
use serde_json::Value;

use crate::auth;
use crate::caller::Caller;
use crate::error::SqsError;
use crate::protocol::Call;

/// The most characters of a name in a line: clients make names up.
const NAME_LIMIT: usize = 200;

/// A request, as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The key that the request names. Whether it has signed the request is another question.
    key: Option<String>,
    role: Option<String>,
    operation: Option<String>,
    queue: Option<String>,
}

impl Record {
    pub(crate) fn new(parts: &Parts) -> Self {
        Self { key: auth::named_key(parts).map(|key| cut(&key)), ..Self::default() }
    }

    pub(crate) fn caller(&mut self, caller: &Caller) {
        self.role.clone_from(&caller.role);
    }

    pub(crate) fn call(&mut self, call: &Call) {
        let text = |name: &str| call.input.get(name).and_then(Value::as_str);
        let queue = text("QueueUrl").or_else(|| text("QueueName")).unwrap_or_default();
        self.queue = queue.rsplit('/').find(|part| !part.is_empty()).map(cut);
        self.operation = Some(cut(&call.operation));
    }

    /// Writes the line of a request that was refused. A missing right, a wrong signature and a
    /// failure need somebody; the answer tells a program of its own mistake.
    pub(crate) fn write(&self, error: &SqsError) {
        macro_rules! write_at {
            ($level:ident) => {
                tracing::$level!(
                    key = self.key,
                    role = self.role,
                    operation = self.operation,
                    queue = self.queue,
                    code = error.code.names().1,
                    detail = error.detail,
                    "a request was refused: {}",
                    error.message.escape_debug(),
                )
            };
        }
        if matches!(error.code.names().2, 403 | 500..) { write_at!(warn) } else { write_at!(info) }
    }
}

/// Returns the beginning of a name, without what breaks a line.
fn cut(name: &str) -> String {
    name.escape_debug().take(NAME_LIMIT).collect()
}
