//! The handler layer: an attempt's span links to the span that enqueued the job.

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use seriatim::layer::{Ended, Layer, Next};
use seriatim::{ActiveJob, async_trait};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::context::extract;

/// How an attempt's span belongs to the span that enqueued the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Propagation {
    /// The attempt begins a trace of its own, with a link to the producer's span.
    ///
    /// A job may run long after its producer, several times, and beside thousands of the same call:
    /// none of them holds the producer's trace open, and each is sampled for itself.
    #[default]
    Link,
    /// The first attempt of a job without a delay is a child of the producer's span, so that one
    /// trace shows both. Retries, and jobs with a delay, link as ever. The sampler follows the
    /// producer's decision.
    ///
    /// For jobs that run soon after their request. A trace is then as long as the queue.
    Parent,
}

/// A [`Layer`] for OpenTelemetry, from [`layer`].
#[derive(Debug, Clone, Copy, Default)]
pub struct OtelLayer {
    propagation: Propagation,
}

/// Returns a layer for
/// [`ProcessorBuilder::layer`](seriatim::ProcessorBuilder::layer). It gives the span `process` of
/// each attempt a link to the span that enqueued the job, and the attributes of OpenTelemetry's
/// conventions for messaging.
///
/// Without `tracing_opentelemetry::layer()` in the subscriber it does nothing.
///
/// ```
/// # fn example(pool: sqlx::PgPool) {
/// let processor = seriatim::Processor::builder(pool).layer(seriatim_otel::layer());
/// # }
/// ```
pub fn layer() -> OtelLayer {
    OtelLayer::default()
}

impl OtelLayer {
    /// Sets how an attempt belongs to its producer. Default [`Propagation::Link`].
    pub fn propagation(mut self, propagation: Propagation) -> Self {
        self.propagation = propagation;
        self
    }

    fn is_child(self, job: &ActiveJob) -> bool {
        self.propagation == Propagation::Parent
            && job.attempt() == 1
            && job.run_at() <= job.created_at()
    }
}

#[async_trait]
impl Layer for OtelLayer {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
        next.run(job).await
    }

    fn begin_span(&self, job: &ActiveJob, span: &Span) {
        set_attributes(job, span);
        let producer = extract(job.headers());
        if self.is_child(job) && producer.is_valid() {
            let parent = Context::new().with_remote_span_context(producer.clone());
            if span.set_parent(parent).is_ok() {
                return;
            }
        }
        span.add_link(producer);
    }
}

/// Sets what the span's own fields do not say. As fields they would be in each of the handler's log
/// lines.
fn set_attributes(job: &ActiveJob, span: &Span) {
    if span.is_disabled() {
        return;
    }
    span.set_attribute("messaging.system", "seriatim");
    span.set_attribute("messaging.operation.name", "process");
    span.set_attribute("messaging.operation.type", "process");
    span.set_attribute("messaging.destination.name", job.queue().to_owned());
    span.set_attribute("messaging.message.id", job.id().to_string());
    span.set_attribute("messaging.client.id", job.processor_id().to_string());
    span.set_attribute("messaging.seriatim.message.attempt", i64::from(job.attempt()));
    span.set_attribute("messaging.seriatim.lane_wait_ms", millis(job.lane_wait()));
    span.set_attribute("messaging.seriatim.slot_wait_ms", millis(job.slot_wait()));
    if let Some(group) = job.group() {
        span.set_attribute("messaging.seriatim.message.group", group.to_owned());
    }
    if let Some(name) = job.name() {
        span.set_attribute("messaging.seriatim.message.name", name.to_owned());
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}
