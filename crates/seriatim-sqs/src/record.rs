//! The records of requests: metrics of all, and a line in the log for each that is refused, or that
//! changes a queue.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::http::request::Parts;
use metrics::{counter, histogram};
use serde_json::Value;
use tokio::time::Instant;

use crate::auth;
use crate::caller::Caller;
use crate::error::{Code, SqsError};
use crate::protocol::Call;
use crate::service::source_of_task;

/// The most characters of a name in a line: clients make names up.
const NAME_LIMIT: usize = 200;
/// The most lines a second of requests that nobody has signed: anyone can send them.
const UNSIGNED_LINES: u32 = 10;

/// Operations that change a queue or what happens to its messages as a whole: each that is carried
/// out has a line in the log.
const CHANGES: [&str; 10] = [
    "AddPermission",
    "CancelMessageMoveTask",
    "CreateQueue",
    "DeleteQueue",
    "PurgeQueue",
    "RemovePermission",
    "SetQueueAttributes",
    "StartMessageMoveTask",
    "TagQueue",
    "UntagQueue",
];

/// A request, as far as it was read.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The id that its client is told too.
    request: String,
    /// The key that the request names. Whether it has signed the request is another question.
    key: Option<String>,
    role: Option<String>,
    operation: Option<String>,
    queue: Option<String>,
    /// The queue that a task moves messages to.
    destination: Option<String>,
}

impl Record {
    pub(crate) fn new(id: &str, parts: &Parts) -> Self {
        let key = auth::named_key(parts).map(|key| cut(&key));
        Self { request: id.to_owned(), key, ..Self::default() }
    }

    pub(crate) fn caller(&mut self, caller: &Caller) {
        self.role.clone_from(&caller.role);
    }

    pub(crate) fn call(&mut self, call: &Call) {
        let text = |name: &str| call.input.get(name).and_then(Value::as_str);
        let of_arn = |arn: &str| arn.rsplit(':').next().map(cut);
        let queue = text("QueueUrl").or_else(|| text("QueueName")).unwrap_or_default();
        let of_task = || text("TaskHandle").and_then(source_of_task);
        let source = || text("SourceArn").map(str::to_owned).or_else(of_task);
        self.queue = queue.rsplit('/').find(|part| !part.is_empty()).map(cut);
        self.queue = self.queue.take().or_else(|| of_arn(&source()?));
        self.destination = text("DestinationArn").and_then(of_arn);
        self.operation = Some(cut(&call.operation));
    }

    /// Writes the line of a request that was carried out, if it is one of those that are told.
    pub(crate) fn audit(&self) {
        if !self.operation.as_deref().is_some_and(|operation| CHANGES.contains(&operation)) {
            return;
        }
        tracing::info!(
            target: "seriatim_sqs::audit",
            request = self.request,
            key = self.key,
            role = self.role,
            operation = self.operation,
            queue = self.queue,
            destination = self.destination,
            "a client made a change",
        );
    }

    /// Counts the request, and measures it. A queue or an operation that a client may have made up
    /// is no label.
    pub(crate) fn measure(&self, refusal: Option<&SqsError>, took: Duration) {
        let code = refusal.map_or("ok", |error| error.code.names().1);
        let is_made_up =
            |error: &SqsError| matches!(error.code, Code::InvalidAction | Code::UnknownOperation);
        let operation = self.operation.clone().filter(|_| !refusal.is_some_and(is_made_up));
        let operation = operation.unwrap_or_default();
        let queue = self.queue.clone().filter(|_| refusal.is_none()).unwrap_or_default();
        let labels =
            [("operation", operation.clone()), ("queue", queue), ("code", code.to_owned())];
        counter!("seriatim_sqs_requests_total", &labels).increment(1);
        histogram!("seriatim_sqs_request_seconds", "operation" => operation).record(took);
    }
}

/// The lines of requests that were refused.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    unsigned: Mutex<Unsigned>,
}

/// Requests of one second that nobody has signed.
#[derive(Debug, Default)]
struct Unsigned {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl RefusalLog {
    /// Writes the line of a request that was refused: a warning for a missing right, a wrong
    /// signature and a failure. Any other mistake is the program's own, which has the answer.
    pub(crate) fn write(&self, record: &Record, error: &SqsError) {
        macro_rules! write_at {
            ($level:ident) => {
                tracing::$level!(
                    request = record.request,
                    key = record.key,
                    role = record.role,
                    operation = record.operation,
                    queue = record.queue,
                    code = error.code.names().1,
                    detail = error.detail,
                    "a request was refused: {}",
                    error.message.escape_debug(),
                )
            };
        }
        let is_unsigned = matches!(
            error.code,
            Code::UnknownKey | Code::SignatureDoesNotMatch | Code::MissingAuthentication
        );
        if is_unsigned && !self.has_room() {
            return;
        }
        if matches!(error.code.names().2, 403 | 500..) { write_at!(warn) } else { write_at!(info) }
    }

    /// Returns whether a line of an unsigned request is written. The first of a second tells how
    /// many were left out.
    fn has_room(&self) -> bool {
        let mut unsigned = self.unsigned.lock().unwrap_or_else(PoisonError::into_inner);
        if unsigned.since.is_none_or(|since| since.elapsed() >= Duration::from_secs(1)) {
            if unsigned.left_out > 0 {
                let left_out = unsigned.left_out;
                tracing::warn!(left_out, "more requests without a valid signature were refused");
            }
            *unsigned = Unsigned { since: Some(Instant::now()), ..Unsigned::default() };
        }
        let has_room = unsigned.lines < UNSIGNED_LINES;
        if has_room {
            unsigned.lines += 1;
        } else {
            unsigned.left_out += 1;
        }
        has_room
    }
}

/// Returns the beginning of a name, without what breaks a line.
fn cut(name: &str) -> String {
    name.escape_debug().take(NAME_LIMIT).collect()
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_signature_have_ten_lines_a_second() {
        let log = RefusalLog::default();
        for _ in 0..3 {
            let lines = (0..100).filter(|_| log.has_room()).count();
            assert_eq!(lines, 10);
            assert_eq!(log.unsigned.lock().unwrap().left_out, 90);
            advance(Duration::from_secs(1)).await;
        }
    }
}
