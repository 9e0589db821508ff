//! Rehearsals without a processor.

use std::sync::Arc;

use sqlx::PgPool;

use crate::attempt::handler::{ErasedHandler, JobHandler};
use crate::attempt::rehearse::rehearse;
use crate::attempt::turn::{AttemptHooks, QueueRuntime};
use crate::client::client::Client;
use crate::error::RehearsalError;
use crate::job::queue_options::QueueOptions;
use crate::job::rehearsal::{Rehearsal, RehearsalReport};
use crate::liveness::context::Context;

impl Client {
    /// Runs a group's next jobs in order, **in one transaction that is rolled back**, and returns
    /// what each would have done: succeeded, failed and how, which rows of which tables it has
    /// written, and how many jobs it has enqueued. It stops behind the first that does not succeed,
    /// but passes those that have expired or are cancelled, as their group would.
    /// Nothing of it is recorded: no attempt counts, and workers, pauses and the times of the jobs
    /// do not matter.
    ///
    /// It is for handlers that touch nothing but [`ActiveJob::tx`](crate::ActiveJob::tx). Calls to
    /// other services and writes on other connections **happen, and are not undone**; numbers that
    /// were taken from sequences are gone. A handler leaves those out if
    /// [`ActiveJob::is_rehearsal`](crate::ActiveJob::is_rehearsal). Progress, checkpoints and rests
    /// are not written. The rows that the handlers write stay locked until the end, and workers may
    /// wait for them: see [`Rehearsal::within`].
    ///
    /// The options give the queue's name, its retry policy and its timeout; jobs are held by
    /// transaction, whatever they say. [`Processor::rehearse`](crate::Processor::rehearse) does the
    /// same with the handlers and layers of a processor.
    ///
    /// ```no_run
    /// # use seriatim::{ActiveJob, JobError, JobHandler, async_trait};
    /// # struct Post;
    /// # #[async_trait]
    /// # impl JobHandler for Post {
    /// #     type Data = u32; type Output = u32; type Error = JobError;
    /// #     async fn handle(&self, _: &mut ActiveJob, n: u32) -> Result<u32, JobError> { Ok(n) }
    /// # }
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use seriatim::rehearsal::Rehearsal;
    /// use seriatim::{Client, QueueOptions};
    ///
    /// let next = Rehearsal::of_group("account-42").jobs(5);
    /// let queue = QueueOptions::new("postings");
    /// let report = Client::default().rehearse(&pool, queue, next, Post).await?;
    /// println!("{report}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RehearsalError::Running`]: a worker has a job of the group now.
    /// [`RehearsalError::NotOfGroup`], [`RehearsalError::Database`].
    ///
    /// # Cancel safety
    /// Cancel safe: the transaction is rolled back.
    pub async fn rehearse(
        &self,
        pool: &PgPool,
        queue: QueueOptions,
        what: Rehearsal,
        handler: impl JobHandler,
    ) -> Result<RehearsalReport, RehearsalError> {
        self.rehearse_erased(pool, (queue, Arc::new(handler)), AttemptHooks::default(), what).await
    }

    pub(crate) async fn rehearse_erased(
        &self,
        pool: &PgPool,
        (queue, handler): (QueueOptions, Arc<dyn ErasedHandler>),
        hooks: AttemptHooks,
        what: Rehearsal,
    ) -> Result<RehearsalReport, RehearsalError> {
        let store = Arc::clone(&self.store);
        let context = Arc::new(Context::new(store, (None, pool), self.enqueue.clone(), None));
        let queue = Arc::new(QueueRuntime::in_one_task(queue, handler, hooks));
        let report = rehearse(&context, &queue, pool, &what).await;
        context.side.close().await;
        report
    }
}
