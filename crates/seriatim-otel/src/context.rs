//! The context of a span as a job's headers carry it.

use std::collections::BTreeMap;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use seriatim::observe::TraceParent;

/// The header with the state that the tracers of a trace share.
pub(crate) const TRACE_STATE: &str = "tracestate";

/// Returns the context of the span that enqueued a job, from the headers `traceparent` and
/// `tracestate`. The context is invalid ([`SpanContext::is_valid`]) if there is none, or it cannot
/// be read; a link to an invalid context is no link.
///
/// [`layer`](crate::layer()) does it for handlers. A receiver links its own span:
///
/// ```
/// use tracing_opentelemetry::OpenTelemetrySpanExt;
///
/// fn work_on(job: &seriatim::receive::Received) {
///     let (kind, id) = ("consumer", job.id);
///     let span = tracing::info_span!(parent: None, "process", otel.kind = kind, job = id);
///     span.add_link(seriatim_otel::extract(&job.headers));
///     span.in_scope(|| { /* … */ });
/// }
/// ```
pub fn extract(headers: &BTreeMap<String, String>) -> SpanContext {
    let Some(parent) = TraceParent::of(headers) else { return SpanContext::NONE };
    // A state that cannot be read costs the state, not the context.
    let state = headers.get(TRACE_STATE).and_then(|state| state.parse::<TraceState>().ok());
    SpanContext::new(
        TraceId::from_bytes(parent.trace_id().to_be_bytes()),
        SpanId::from_bytes(parent.span_id().to_be_bytes()),
        TraceFlags::new(parent.flags()),
        true,
        state.unwrap_or_default(),
    )
}

/// Returns a span's context as the header `traceparent` carries it; `None` if it is invalid.
pub(crate) fn trace_parent(context: &SpanContext) -> Option<TraceParent> {
    TraceParent::new(
        u128::from_be_bytes(context.trace_id().to_bytes()),
        u64::from_be_bytes(context.span_id().to_bytes()),
        context.trace_flags().to_u8(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const PARENT: (&str, &str) =
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");

    #[test]
    fn a_context_is_extracted_as_it_was_written() {
        let context = extract(&headers(&[PARENT, (TRACE_STATE, "a=1,b=2")]));
        assert!(context.is_valid() && context.is_remote() && context.is_sampled());
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id().to_string(), "b7ad6b7169203331");
        assert_eq!(context.trace_state().header(), "a=1,b=2");
        let written = trace_parent(&context).map(|parent| parent.to_string());
        assert_eq!(written.as_deref(), Some(PARENT.1));
    }

    #[test]
    fn what_cannot_be_read_is_no_context() {
        assert!(!extract(&headers(&[])).is_valid());
        assert!(!extract(&headers(&[("traceparent", "00-xyz"), (TRACE_STATE, "a=1")])).is_valid());
        let context = extract(&headers(&[PARENT, (TRACE_STATE, "no state")]));
        assert!(context.is_valid());
        assert_eq!(context.trace_state().header(), "");
    }
}
