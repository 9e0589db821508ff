//! Layers: code around every handler of a processor.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tracing::Span;

use crate::attempt::active_job::ActiveJob;
use crate::attempt::handler::ErasedHandler;
use crate::job::bytes::JobData;
use crate::job::job::FailureKind;
use crate::job::job_error::JobError;
use crate::job::outcome::RunResult;

/// Code around the handlers of a processor ([`ProcessorBuilder::layer`]): to set a tenant, to
/// measure, to tell an error service.
///
/// A layer runs inside the hold, inside the job's timeout, and where panics are caught: it is a
/// part of the attempt. It may write through [`ActiveJob::tx`], which commits with the job. Its
/// future is dropped when a handler's is. A job that ends without its handler (expired, cancelled,
/// out of attempts because its workers died) meets no layer.
///
/// The outcome of the attempt is decided later, with the commit: [`ProcessorBuilder::on_event`]
/// reports it.
///
/// ```
/// use seriatim::layer::{Ended, Layer, Next};
/// use seriatim::{ActiveJob, async_trait};
///
/// /// Row security: each statement of the job's transaction is of the job's tenant.
/// struct Tenant;
///
/// #[async_trait]
/// impl Layer for Tenant {
///     async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
///         let Some(tenant) = job.headers().get("tenant").cloned() else {
///             return Ended::failed("the job has no header tenant");
///         };
///         let set = async {
///             let set = sqlx::query("select set_config('app.tenant', $1, true)").bind(tenant);
///             set.execute(job.tx().await?).await
///         };
///         match set.await {
///             Ok(_) => next.run(job).await,
///             Err(error) => Ended::retry(error),
///         }
///     }
/// }
/// ```
///
/// [`ProcessorBuilder::layer`]: crate::ProcessorBuilder::layer
/// [`ProcessorBuilder::on_event`]: crate::ProcessorBuilder::on_event
#[async_trait]
pub trait Layer: Send + Sync + 'static {
    /// Runs an attempt: work before it, `next.run(job).await`, work after it. Returns how the
    /// attempt ended: the result of `next`, or another failure.
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended;

    /// Called before the attempt enters its span `process`, with that span: a tracer's parent can
    /// be set only here. Does nothing by default.
    fn begin_span(&self, job: &ActiveJob, span: &Span) {
        let _ = (job, span);
    }
}

/// The rest of an attempt, inside a [`Layer`]: the layers that were added later, and then the
/// handler.
pub struct Next<'a> {
    layers: &'a [Box<dyn Layer>],
    handler: &'a dyn ErasedHandler,
    data: &'a JobData,
}

impl<'a> Next<'a> {
    pub(crate) fn new(
        layers: &'a [Box<dyn Layer>],
        handler: &'a dyn ErasedHandler,
        data: &'a JobData,
    ) -> Self {
        Self { layers, handler, data }
    }

    /// Runs the layers that were added later, and then the handler.
    ///
    /// # Cancel safety
    /// If the future is dropped, the handler is: a layer that gives up on it returns a failure.
    pub async fn run(self, job: &mut ActiveJob) -> Ended {
        match self.layers.split_first() {
            Some((layer, layers)) => layer.run(job, Self { layers, ..self }).await,
            None => Ended(self.handler.run(job, self.data).await),
        }
    }
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

/// How a handler ended. Whether its attempt succeeded is known with the commit only.
///
/// A [`Layer`] gets one from [`Next::run`]. It can make failures, and no success.
pub struct Ended(pub(crate) Result<RunResult, JobError>);

impl Ended {
    /// Returns a failure that means: no further attempt.
    pub fn failed(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::from(JobError::fail(error))
    }

    /// Returns a failure that means: try again, if attempts are left.
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::from(JobError::retry(error))
    }

    /// Returns whether the handler returned `Ok`, and its output could be serialized.
    pub fn is_success(&self) -> bool {
        self.0.as_ref().is_ok_and(RunResult::keeps_writes)
    }

    /// Returns for how long the handler puts the job off: by [`JobError::snooze`], or by
    /// [`again_after`](crate::ActiveJob::again_after) with a success. Behind the layers, one too
    /// many becomes a failure ([`max_snoozes`](crate::QueueOptions::max_snoozes)).
    pub fn snoozed(&self) -> Option<Duration> {
        match &self.0 {
            Ok(RunResult::Again(delay)) => Some(*delay),
            Ok(_) => None,
            Err(error) => error.snoozed(),
        }
    }

    /// Returns how the handler failed; `None` after a success or a snooze. A panic passes the
    /// layers as a panic, and a timeout drops them.
    pub fn failure_kind(&self) -> Option<FailureKind> {
        match &self.0 {
            Err(error) if error.snoozed().is_some() => None,
            Err(error) => Some(error.kind()),
            Ok(RunResult::Broken(kind, _)) => Some(*kind),
            Ok(_) => None,
        }
    }

    /// Returns the error that the handler returned, or that a layer made; `None` after a success or
    /// a snooze, and if the data or the output could not be read or written.
    pub fn error(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        match &self.0 {
            Err(error) if error.is_the_handlers() => Some(error.inner()),
            _ => None,
        }
    }
}

impl From<JobError> for Ended {
    fn from(error: JobError) -> Self {
        Self(Err(error))
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ended")
            .field("success", &self.is_success())
            .field("failure_kind", &self.failure_kind())
            .finish()
    }
}
