//! The handlers of a queue by the kinds of its jobs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::value::RawValue;

use crate::attempt::active_job::ActiveJob;
use crate::job::error::BuildMistake;
use crate::job::job_error::JobError;
use crate::job::name;
use crate::job::retry::RetryPolicy;

/// Runs the jobs of a queue by their [kinds](crate::JobKind): a
/// [`JobHandler`](crate::JobHandler) for each.
///
/// The name of a job says its kind. A job of a kind that has no handler here is retried in its
/// place, however often, and counts no attempt: during a rolling deployment a newer process has
/// one. The kind of its failure is [`UnknownKind`](crate::FailureKind::UnknownKind), and the
/// message names this process.
///
/// ```no_run
/// use seriatim::{
///     ActiveJob, JobError, JobHandler, JobKind, Kinds, Processor, QueueOptions, async_trait,
/// };
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced { customer: i64 }
/// # impl JobKind for OrderPlaced {
/// #     const NAME: &'static str = "placed"; const QUEUE: &'static str = "orders";
/// # }
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPaid { customer: i64 }
/// # impl JobKind for OrderPaid {
/// #     const NAME: &'static str = "paid"; const QUEUE: &'static str = "orders";
/// # }
///
/// struct Place;
/// struct Pay;
///
/// #[async_trait]
/// impl JobHandler for Place {
///     type Data = OrderPlaced;
///     type Output = ();
///     type Error = JobError;
///
///     async fn handle(&self, job: &mut ActiveJob, placed: OrderPlaced) -> Result<(), JobError> {
///         Ok(())
///     }
/// }
/// # #[async_trait]
/// # impl JobHandler for Pay {
/// #     type Data = OrderPaid; type Output = (); type Error = JobError;
/// #     async fn handle(&self, _: &mut ActiveJob, _: OrderPaid) -> Result<(), JobError> { Ok(()) }
/// # }
///
/// # fn example(pool: sqlx::PgPool) -> Result<(), seriatim::BuildError> {
/// let orders = Kinds::new().on(Place).on(Pay);
/// let processor = Processor::builder(pool).queue(QueueOptions::new("orders"), orders).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use = "it runs nothing until a processor has it"]
pub struct Kinds {
    /// By name; the earlier names of a kind as well.
    pub(super) handlers: BTreeMap<&'static str, Arc<dyn KindHandler>>,
    /// The names that two handlers have.
    pub(super) twice: Vec<&'static str>,
}

impl Kinds {
    /// Adds what is wrong with the kinds, as handlers of this queue.
    pub(crate) fn mistakes(&self, queue: &str, mistakes: &mut Vec<BuildMistake>) {
        if self.handlers.is_empty() {
            mistakes.push(BuildMistake::NoKind { queue: queue.to_owned() });
        }
        for kind in &self.twice {
            mistakes.push(BuildMistake::KindTwice { queue: queue.to_owned(), kind });
        }
        for (kind, handler) in &self.handlers {
            if let Err(error) = name::check("job", kind, name::JOB_NAME_LIMIT) {
                mistakes.push(error.into());
            }
            let policy = handler.retry();
            for (setting, value, range) in policy.iter().flat_map(RetryPolicy::mistakes) {
                let queue = format!("{queue}, kind {kind}");
                mistakes.push(BuildMistake::OutOfRange { queue, setting, value, range });
            }
            let of = handler.queue();
            if of != queue {
                mistakes.push(BuildMistake::KindOfOtherQueue { queue: queue.to_owned(), kind, of });
            }
        }
    }

    /// Returns the policy of a kind; `None` if the queue's policy applies.
    pub(crate) fn retry(&self, kind: Option<&str>) -> Option<RetryPolicy> {
        self.handlers.get(kind?)?.retry()
    }
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.handlers.keys()).finish()
    }
}

/// The handler of a kind, without its types.
#[async_trait]
pub(super) trait KindHandler: Send + Sync {
    async fn run(&self, job: &mut ActiveJob, data: &RawValue) -> Result<Box<RawValue>, JobError>;
    fn queue(&self) -> &'static str;
    fn retry(&self) -> Option<RetryPolicy>;
}
