//! A kind of job: what its producers and its handler agree on.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::new_job::NewJob;
use crate::job::retry::RetryPolicy;

/// A kind of job: the type of its data, its name, its queue and its group.
///
/// Producers enqueue a value of it, and the [`JobHandler`](crate::JobHandler) whose
/// [`Data`](crate::JobHandler::Data) it is runs it. So the compiler checks that both mean the same
/// type. Jobs of several kinds can share a queue, and keep one order in a group that they share:
/// [`Kinds`](crate::Kinds) has a handler for each.
///
/// Wherever a [`NewJob`] is expected, a reference to a value is one; [`NewJob::of`] is the same
/// job, to change it first.
///
/// ```no_run
/// use seriatim::{JobKind, NewJob};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced { customer: i64, order: i64 }
///
/// impl JobKind for OrderPlaced {
///     const NAME: &'static str = "order-placed";
///     const QUEUE: &'static str = "orders";
///
///     fn group(&self) -> Option<String> {
///         Some(format!("customer-{}", self.customer))
///     }
/// }
///
/// # async fn example(mut tx: sqlx::PgTransaction<'_>) -> Result<(), seriatim::EnqueueError> {
/// let placed = OrderPlaced { customer: 7, order: 4711 };
/// seriatim::enqueue(&mut *tx, &placed).await?;
/// let urgent = NewJob::of(&placed).priority(9);
/// seriatim::enqueue(&mut *tx, urgent).await?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kind of job",
    label = "this type does not name a kind of job",
    note = "implement `seriatim::JobKind` for it, or use `NewJob::new(queue, &data)` and a handler without `Kinds`"
)]
pub trait JobKind: Serialize + DeserializeOwned + Send {
    /// The name of the kind, which each of its jobs has as its [name](NewJob::name): 1 to 200
    /// characters. Logs, spans, lists and the page show it.
    const NAME: &'static str;
    /// The queue of its jobs.
    const QUEUE: &'static str;
    /// Earlier names: its handler runs jobs that were enqueued under these too. Default none.
    const ALIASES: &'static [&'static str] = &[];

    /// Returns the group in which the job keeps its order. Default `None`: the job keeps no order,
    /// and runs in parallel with any other job.
    fn group(&self) -> Option<String> {
        None
    }

    /// Returns how long an attempt may take, instead of the queue's
    /// [timeout](crate::QueueOptions::timeout). It is stored with each job
    /// ([`NewJob::timeout`]). Default `None`: the queue's timeout.
    fn timeout() -> Option<Duration> {
        None
    }

    /// Returns how often a job is tried, and how long it waits in between, instead of the queue's
    /// [policy](crate::QueueOptions::retry). The number of attempts is stored with each job
    /// ([`NewJob::max_attempts`]). The process that runs the job computes the waits, unless a
    /// backoff is stored for the queue. Default `None`: the queue's policy.
    fn retry() -> Option<RetryPolicy> {
        None
    }
}

impl NewJob {
    /// Returns a job of a [kind](JobKind): its queue, name, group, timeout and attempts are the
    /// kind's.
    pub fn of<K: JobKind>(data: &K) -> Self {
        let mut job = Self::new(K::QUEUE, data).name(K::NAME);
        if let Some(group) = data.group() {
            job = job.group(group);
        }
        if let Some(timeout) = K::timeout() {
            job = job.timeout(timeout);
        }
        match K::retry() {
            Some(retry) => job.max_attempts(retry.max_attempts),
            None => job,
        }
    }
}

impl<K: JobKind> From<&K> for NewJob {
    fn from(data: &K) -> Self {
        Self::of(data)
    }
}
