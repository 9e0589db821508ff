//! The spans of a producer's and a receiver's calls, with the fields of OpenTelemetry's conventions
//! for messaging.
//!
//! A macro of `tracing` reads its fields only if the span is wanted, so that none costs nothing.

use std::fmt;

use tracing::Span;
use tracing::field::Empty;

use crate::job::error::EnqueueError;
use crate::job::new_job::{EnqueueSettings, NewJob};

/// The name of the system that a span is of.
const SYSTEM: &str = "seriatim";

/// The name of a span: its operation, and the queue if it is known.
struct SpanName<'a>(&'static str, Option<&'a str>);

impl fmt::Display for SpanName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)?;
        self.1.map_or(Ok(()), |queue| write!(f, " {queue}"))
    }
}

/// A span of a call: its name, kind and type, and its own fields.
macro_rules! call_span {
    ($name:literal, $kind:literal, $type:literal, $queue:expr, $($own:tt)*) => {
        tracing::info_span!(
            target: "seriatim::client",
            $name,
            otel.name = %SpanName($name, $queue),
            otel.kind = $kind,
            otel.status_code = Empty,
            error.type = Empty,
            messaging.system = SYSTEM,
            messaging.operation.name = $name,
            messaging.operation.type = $type,
            messaging.destination.name = $queue,
            $($own)*
        )
    };
}

/// Begins the span of an enqueue, and calls the enqueue layers in it.
pub(crate) fn begin_send(jobs: &mut [NewJob], settings: &EnqueueSettings, batch: bool) -> Span {
    let single = || jobs.first().filter(|_| !batch);
    let span = call_span!(
        "send",
        "producer",
        "send",
        only_queue(jobs),
        messaging.batch.message_count = batch.then(|| count(jobs.len())),
        messaging.message.id = Empty,
        messaging.seriatim.message.group = single().and_then(NewJob::group_id),
    );
    if !settings.layers.is_empty() {
        span.in_scope(|| {
            for job in jobs {
                settings.layers.iter().for_each(|layer| layer(job));
            }
        });
    }
    span
}

/// Returns a number as an attribute has it: OpenTelemetry knows no unsigned ones.
pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the queue that all jobs are for.
fn only_queue(jobs: &[NewJob]) -> Option<&str> {
    let first = jobs.first()?.queue();
    jobs.iter().all(|job| job.queue() == first).then_some(first)
}

/// Begins the span of a receive.
pub(crate) fn begin_receive(queue: &str) -> Span {
    call_span!("receive", "client", "receive", Some(queue), messaging.batch.message_count = Empty,)
}

/// Begins the span of an ack.
pub(crate) fn begin_ack(job: i64) -> Span {
    call_span!("ack", "client", "settle", None::<&str>, messaging.message.id = %job,)
}

/// Begins the span of a nack.
pub(crate) fn begin_nack(job: i64) -> Span {
    call_span!("nack", "client", "settle", None::<&str>, messaging.message.id = %job,)
}

/// Notes in the span of a call that it failed, and how.
pub(crate) fn record_failure(span: &Span, kind: &str) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", kind);
}

/// Ends the span of an enqueue with its result.
pub(crate) fn end_send<T>(span: &Span, result: &Result<T, EnqueueError>) {
    if let Err(error) = result {
        record_failure(span, error.kind());
    }
}
