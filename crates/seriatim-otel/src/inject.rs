//! The enqueue layer: a job gets the context of the span that enqueues it.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, TraceContextExt};
use seriatim::NewJob;
use seriatim::observe::TraceParent;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::context::{TRACE_STATE, trace_parent};

/// Bounds a state that is passed on, as the W3C asks for at least.
const STATE_LIMIT: usize = 512;

/// Returns a layer for [`Client::enqueue_layer`](seriatim::Client::enqueue_layer), which writes the
/// context of the span `send` into the job's headers `traceparent` and `tracestate`. All jobs of
/// one call get the same.
///
/// A job that has a `traceparent` keeps it, and its own `tracestate`. Without a span nothing is
/// written. Baggage is not: it would be stored with the job, for everybody who may read headers. A
/// `tracestate` of more than 512 bytes is left out. The two headers count to the 4 KiB that a job's
/// headers may have.
///
/// ```
/// let client = seriatim::Client::default().enqueue_layer(seriatim_otel::inject());
/// ```
pub fn inject() -> impl Fn(&mut NewJob) + Send + Sync + 'static {
    |job| {
        if job.headers().contains_key(TraceParent::HEADER) {
            return;
        }
        let context = current();
        let Some(parent) = trace_parent(&context) else { return };
        job.header_if_none(TraceParent::HEADER, parent.to_string());
        let state = context.trace_state().header();
        if (1..=STATE_LIMIT).contains(&state.len()) {
            job.header_if_none(TRACE_STATE, state);
        }
    }
}

/// Returns the context of the current span: of `tracing`, or of a program that uses OpenTelemetry
/// alone.
fn current() -> SpanContext {
    let of_tracing = Span::current().context().span().span_context().clone();
    if of_tracing.is_valid() {
        return of_tracing;
    }
    Context::current().span().span_context().clone()
}
