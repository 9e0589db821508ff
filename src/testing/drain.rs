//! Runs the jobs of queues in the caller's task, by the same claim, hold and settle as a processor.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::time::sleep;

use crate::attempt::connection::SlotConnection;
use crate::attempt::panics::note_places;
use crate::attempt::turn::{ClaimedTurn, QueueRuntime};
use crate::liveness::context::Context;
use crate::store::{Claim, ClaimBounds, ClaimOptions, LoadedJob, ScanStart, gave_up_waiting};
use crate::{Client, ControlError, JobStatus, Processor, QueueOptions};

/// Time between two polls of a queue that is not idle yet.
pub(super) const POLL: Duration = Duration::from_millis(10);

/// Queues whose jobs run in the caller's task.
pub(super) struct Drain {
    pub(super) client: Client,
    /// A queue of several servers is there once for each.
    pub(super) queues: Vec<DrainedQueue>,
}

/// A queue on one server.
pub(super) struct DrainedQueue {
    pub(super) pool: PgPool,
    pub(super) context: Arc<Context>,
    pub(super) queue: Arc<QueueRuntime>,
}

impl Processor {
    /// Runs the due jobs of all queues of this processor in the caller's task, one after the other,
    /// until none is due. Returns the number of attempts. Only with the feature `testing`.
    ///
    /// It is for tests of a processor as the application builds it: with its handlers, options,
    /// layers, hooks, schema and servers. Jobs go through the same claim, hold and settle as after
    /// [`start`](Self::start), but each is held by its transaction, even if its queue has leases.
    /// The queues take turns, so a job that a handler enqueues to another queue runs as well. A
    /// delayed job and a job that waits for a retry are left, and so are the jobs behind it.
    ///
    /// Nothing else of the processor runs: it stores no
    /// [settings](crate::ProcessorBuilder::settings) of queues (see
    /// [`Client::configure_queue`](crate::Client::configure_queue)), stores and fires no schedules
    /// (see [`Jobs::fire_schedules`](crate::testing::Jobs::fire_schedules)), ends no batches (see
    /// [`Client::end_batches`](crate::Client::end_batches)), and needs no shutdown. The processor
    /// can be drained again, or started.
    ///
    /// ```no_run
    /// # use seriatim::{ActiveJob, JobError, JobHandler, NewJob, async_trait};
    /// # struct Post;
    /// # #[async_trait]
    /// # impl JobHandler for Post {
    /// #     type Data = u32; type Output = (); type Error = JobError;
    /// #     async fn handle(&self, _: &mut ActiveJob, _: u32) -> Result<(), JobError> { Ok(()) }
    /// # }
    /// use seriatim::testing::TestDatabase;
    /// use seriatim::{BuildError, Processor, QueueOptions};
    ///
    /// fn processor(pool: &sqlx::PgPool) -> Result<Processor, BuildError> {
    ///     Processor::builder(pool.clone()).queue(QueueOptions::new("postings"), Post).build()
    /// }
    ///
    /// # async fn test() -> Result<(), Box<dyn std::error::Error>> {
    /// let database = TestDatabase::create().await?;
    /// let processor = processor(database.pool())?;
    /// seriatim::enqueue(database.pool(), NewJob::new("postings", &7)).await?;
    /// assert_eq!(processor.drain().await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The database's error. Jobs that have ended before stay as they are.
    ///
    /// # Cancel safety
    /// Not cancel safe: a job that runs then is taken over later, and its attempt counts.
    pub async fn drain(&self) -> Result<usize, sqlx::Error> {
        self.in_one_task().run_all(false).await
    }

    /// Runs jobs as [`drain`](Self::drain) does, and does not wait for delays, retries and snoozes:
    /// when no job is due, all jobs of its queues that wait for their time are made due. Returns
    /// the number of attempts, when none waits for its time. See
    /// [`Jobs::drain_ignoring_delays`](crate::testing::Jobs::drain_ignoring_delays). Only with the
    /// feature `testing`.
    ///
    /// # Errors
    /// As [`drain`](Self::drain).
    ///
    /// # Cancel safety
    /// As [`drain`](Self::drain).
    pub async fn drain_ignoring_delays(&self) -> Result<usize, sqlx::Error> {
        self.in_one_task().run_all(true).await
    }

    fn in_one_task(&self) -> Drain {
        self.unstarted.disarm();
        note_places();
        let runtime = |(options, handler): &(_, _)| {
            QueueRuntime::in_one_task(
                QueueOptions::clone(options),
                Arc::clone(handler),
                self.hooks.clone(),
            )
        };
        let mut queues = Vec::new();
        for server in self.servers() {
            queues.extend(self.config.queues.iter().map(|queue| DrainedQueue {
                pool: server.pool.clone(),
                context: Arc::clone(&server.context),
                queue: Arc::new(runtime(queue)),
            }));
        }
        Drain { client: self.config.client.clone(), queues }
    }
}

impl Drain {
    /// Runs jobs one after the other, until none is due. Returns the number of attempts.
    pub(super) async fn run_all(self, ignoring_delays: bool) -> Result<usize, sqlx::Error> {
        let ran = self.run_rounds(ignoring_delays).await;
        self.close().await;
        ran
    }

    /// Runs the next due job. Returns its id.
    pub(super) async fn run_next(self) -> Result<Option<i64>, sqlx::Error> {
        let ran = self.run_due(1).await;
        self.close().await;
        Ok(ran?.first().copied())
    }

    async fn run_rounds(&self, ignoring_delays: bool) -> Result<usize, sqlx::Error> {
        let mut attempts = 0;
        loop {
            attempts += self.run_due(usize::MAX).await?.len();
            if !ignoring_delays || !self.make_due().await? {
                return Ok(attempts);
            }
        }
    }

    /// Runs at most so many due jobs, of each queue in turn.
    async fn run_due(&self, most: usize) -> Result<Vec<i64>, sqlx::Error> {
        let (mut ran, mut idle) = (Vec::new(), 0);
        for queue in self.queues.iter().cycle() {
            if ran.len() >= most || idle >= self.queues.len() {
                break;
            }
            match queue.claim_one().await? {
                None => idle += 1,
                Some((claim, loaded)) => {
                    idle = 0;
                    ran.push(claim.job);
                    queue.run(claim, loaded).await?;
                }
            }
        }
        Ok(ran)
    }

    /// Makes the queued jobs due that wait for their time. Returns whether there were any.
    async fn make_due(&self) -> Result<bool, sqlx::Error> {
        let operator = self.client.operator("seriatim::testing", None);
        let mut any = false;
        for DrainedQueue { pool, context, queue } in &self.queues {
            let now = context.store.now(pool).await?;
            for job in context.store.all_jobs(pool, &queue.name).await? {
                if job.status == JobStatus::Queued && job.run_at > now {
                    match operator.run_now(pool, job.id).await {
                        Ok(()) => any = true,
                        Err(ControlError::Database(error)) => return Err(error),
                        // Another session has it, or it has ended.
                        Err(_) => {}
                    }
                }
            }
        }
        Ok(any)
    }

    async fn close(&self) {
        for queue in &self.queues {
            queue.context.side.close().await;
        }
    }
}

impl DrainedQueue {
    async fn run(&self, claim: Claim, loaded: VecDeque<LoadedJob>) -> Result<(), sqlx::Error> {
        let run = ClaimedTurn::new(Arc::clone(&self.context), Arc::clone(&self.queue), claim);
        run.into_end(loaded, self.pool.acquire().await?.into()).await;
        Ok(())
    }

    async fn claim_one(&self) -> Result<Option<(Claim, VecDeque<LoadedJob>)>, sqlx::Error> {
        let Self { pool, context, queue } = self;
        let mut conn = SlotConnection::from(pool.acquire().await?);
        loop {
            let bounds = ClaimBounds::new(1, 0, fastrand::bool(), ScanStart::default());
            let options = ClaimOptions::new(&queue.options, None);
            let claim = context.store.claim(&mut conn, &queue.name, bounds, options);
            let mut claimed = match claim.await {
                Err(error) if gave_up_waiting(&error) => continue,
                claimed => claimed?,
            };
            if let Some(claim) = claimed.jobs.pop() {
                return Ok(Some((claim, claimed.loaded)));
            }
            if !claimed.more {
                return Ok(None);
            }
            sleep(POLL).await;
        }
    }
}
