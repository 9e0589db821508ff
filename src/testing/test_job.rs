//! Runs a handler in a unit test, without a database.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use serde_json::Value;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::time::Instant;
use uuid::Uuid;

use crate::attempt::suppressed::Suppressed;
use crate::attempt::turn::{AttemptHooks, ClaimedTurn, QueueRuntime};
use crate::job::bytes::JobData;
use crate::job::disposition::Disposition;
use crate::job::headers;
use crate::job::new_job::CheckedJob;
use crate::job::policy::{AtFailure, FailurePolicy};
use crate::liveness::context::Context;
use crate::observe::EndedAs;
use crate::store::{AttemptNumber, CLAIM_LEASE, Claim, LoadedJob};
use crate::{Client, EnqueueError, Failure, JobHandler, NewJob, QueueOptions};

/// The id of the job, in a schema that no other job is in.
const ID: i64 = 1;

/// Runs a handler in a unit test, without PostgreSQL.
///
/// The handler gets an [`ActiveJob`](crate::ActiveJob) as a processor gives it one, and the same
/// code decides what follows from its result. [`tx`](crate::ActiveJob::tx) and
/// [`enqueue`](crate::ActiveJob::enqueue) return an error, because there is no database. To test a
/// handler that calls them, run it by [`Jobs`](crate::testing::Jobs) on a
/// [`TestDatabase`](crate::testing::TestDatabase). Progress, checkpoints and rests are not written:
/// the [`TestRun`] has them.
///
/// ```
/// use std::time::Duration;
/// use seriatim::observe::EndedAs;
/// use seriatim::testing::TestJob;
/// use seriatim::{ActiveJob, JobError, JobHandler, NewJob, async_trait};
///
/// struct Charge { is_up: bool }
///
/// #[async_trait]
/// impl JobHandler for Charge {
///     type Data = i64;
///     type Output = i64;
///     type Error = JobError;
///
///     async fn handle(&self, _: &mut ActiveJob, cents: i64) -> Result<i64, JobError> {
///         if !self.is_up {
///             return Err(JobError::retry_after("the bank is away", Duration::from_mins(1)));
///         }
///         Ok(cents)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), seriatim::EnqueueError> {
/// let job = TestJob::new(NewJob::new("charges", &500).group("account-42"));
/// let run = job.clone().run(Charge { is_up: true }).await?;
/// assert_eq!(run.ended_as, EndedAs::Succeeded);
/// assert_eq!(run.output, Some(500.into()));
///
/// let run = job.clone().run(Charge { is_up: false }).await?;
/// assert_eq!(run.ended_as, EndedAs::Retried);
/// assert_eq!(run.again_in, Some(Duration::from_mins(1)));
///
/// let run = job.attempt(10).run(Charge { is_up: false }).await?;
/// assert_eq!(run.ended_as, EndedAs::Failed); // the last attempt of the default policy
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it runs nothing until run() is called"]
pub struct TestJob {
    job: NewJob,
    attempt: u32,
    snoozes: u32,
    checkpoint: Option<Value>,
    cancelled: bool,
    options: Option<QueueOptions>,
}

/// How the run of a [`TestJob`] ended, and what its handler reported.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TestRun {
    /// How the attempt ended.
    pub ended_as: EndedAs,
    /// The handler's output, if the attempt succeeded.
    pub output: Option<Value>,
    /// The failure, if the attempt failed.
    pub failure: Option<Failure>,
    /// The time until the job would run again. The waits of a
    /// [`RetryPolicy`](crate::RetryPolicy) have a random part, unless its
    /// [`jitter`](crate::RetryPolicy::jitter) is 0.
    pub again_in: Option<Duration>,
    /// The last [progress](crate::ActiveJob::progress): the percentage, and the message.
    pub progress: Option<(u8, String)>,
    /// The last [checkpoint](crate::ActiveJob::checkpoint) of this run.
    pub checkpoint: Option<Value>,
    /// Other calls that would have written to the database next to the job's transaction: rests.
    pub suppressed: Vec<String>,
}

impl TestJob {
    /// Returns a job in its first attempt. Its delay, its expiry and its deduplication do not count
    /// here.
    pub fn new(job: impl Into<NewJob>) -> Self {
        Self {
            job: job.into(),
            attempt: 1,
            snoozes: 0,
            checkpoint: None,
            cancelled: false,
            options: None,
        }
    }

    /// Sets the number of the attempt, from 1. All attempts before count against the limit.
    /// Default: 1.
    pub fn attempt(mut self, number: u32) -> Self {
        self.attempt = number.max(1);
        self
    }

    /// Sets how often the job was [put off](crate::ActiveJob::snoozes) before. Default: 0.
    pub fn snoozes(mut self, times: u32) -> Self {
        self.snoozes = times;
        self
    }

    /// Sets the checkpoint that an earlier attempt has kept, which
    /// [`last_checkpoint`](crate::ActiveJob::last_checkpoint) returns. Default: none.
    pub fn checkpoint(mut self, checkpoint: impl Into<Value>) -> Self {
        self.checkpoint = Some(checkpoint.into());
        self
    }

    /// Lets an operator ask to cancel the job as its handler begins:
    /// [`ActiveJob::cancelled`](crate::ActiveJob::cancelled) resolves at once. An error of the
    /// handler then ends the job as [`Cancelled`](EndedAs::Cancelled), and `Ok` is still a success.
    pub fn cancelled(mut self) -> Self {
        self.cancelled = true;
        self
    }

    /// Sets the options of the queue: its retry policy, its timeout, and how often a job may be put
    /// off. The name in the options does not count. Default: the defaults of [`QueueOptions`].
    pub fn options(mut self, options: QueueOptions) -> Self {
        self.options = Some(options);
        self
    }

    /// Runs one attempt: calls the handler, and decides what a processor would record. A panic of
    /// the handler is a failure of the kind [`Panic`](crate::FailureKind::Panic).
    ///
    /// To look at the handler's own state afterwards, pass a clone of an `Arc` of it.
    ///
    /// # Errors
    /// [`EnqueueError`]: the job is not valid, and could not be enqueued either.
    ///
    /// # Cancel safety
    /// If the future is dropped, the handler's future is dropped with it.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn run(self, handler: impl JobHandler) -> Result<TestRun, EnqueueError> {
        let Client { store, enqueue, .. } = Client::default();
        let job = self.job.check(None, enqueue.data_limit)?;
        let mut options = self.options.unwrap_or_else(|| QueueOptions::new(""));
        options.name.clone_from(&job.queue);
        // The context has a pool, from which nothing takes a connection here.
        let pool = PgPoolOptions::new().connect_lazy_with(PgConnectOptions::new_without_pgpass());
        let context = Arc::new(Context::new(store, (None, &pool), enqueue, None));
        let hooks = AttemptHooks::default();
        let queue = Arc::new(QueueRuntime::in_one_task(options, Arc::new(handler), hooks));
        let claim = Claim {
            job: ID,
            followers: Vec::new(),
            group: job.group.clone(),
            token: Uuid::nil(),
            disposition: Disposition::Run,
            may_wait: false,
            began: None,
        };
        let max_attempts = job.max_attempts.and_then(|most| u32::try_from(most).ok());
        let policy = FailurePolicy { max_attempts, ..FailurePolicy::default() };
        let stored = AtFailure { cancel_requested: self.cancelled, policy };
        let loaded = loaded(job, self.attempt, self.snoozes);
        let turn = ClaimedTurn::new(context, queue, claim);
        // Nothing looks whether this lease has ended.
        let lease = turn.extend_lease(CLAIM_LEASE, Instant::now());
        let signals = lease.signals.clone();
        let mut active = turn.active_job(&loaded, turn.leased_guard(CLAIM_LEASE, lease, None));
        let suppressed = Arc::new(Suppressed::default());
        active.reporter.suppressed = Some(Arc::clone(&suppressed));
        let checkpoint = self.checkpoint.map(|checkpoint| checkpoint.to_string().into());
        active.reports = Some(active.reporter.clone().reports_after(checkpoint));
        if self.cancelled {
            active.cancelled.cancel();
        }
        let (result, _) = turn.handle(&mut active, &loaded, &signals).await;
        let outcome = turn.decide((loaded.number, loaded.name.as_deref()), result, &stored);
        let ended_as = outcome.ended_as();
        let (output, failure, again_in) = outcome.into_parts();
        let noted = suppressed.take();
        let checkpoint = noted.report.checkpoint;
        Ok(TestRun {
            ended_as,
            output,
            failure,
            again_in,
            progress: noted.report.progress,
            checkpoint: checkpoint.and_then(|json| serde_json::from_str(&json).ok()),
            suppressed: noted.calls,
        })
    }
}

/// Returns the job as a claim would read it.
fn loaded(job: CheckedJob, attempt: u32, snoozes: u32) -> LoadedJob {
    let content_type = match &job.content {
        JobData::Bytes { content_type, .. } => content_type.clone(),
        JobData::Json(_) => None,
    };
    let now = Utc::now();
    LoadedJob {
        data: Some(job.content),
        content_type,
        name: job.name,
        reference: job.reference,
        priority: u8::try_from(job.priority).unwrap_or(0),
        // The check has made this JSON.
        headers: headers::parse(job.headers.as_deref()).unwrap_or_default(),
        number: AttemptNumber { of_all: attempt, counted: attempt },
        snoozes,
        max_attempts: job.max_attempts.and_then(|most| u32::try_from(most).ok()),
        timeout: job.timeout_ms.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        lease: None,
        created_at: now,
        run_at: job.run_at.unwrap_or(now),
        cancel_requested: false,
        waits: None,
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use futures::FutureExt;
    use futures::future::{BoxFuture, pending};
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;
    use crate::{ActiveJob, FailureKind, JobError, JobKind, Kinds, RestError, RetryPolicy};

    const MINUTE: Duration = Duration::from_mins(1);

    type Handle = fn(&mut ActiveJob, Value) -> BoxFuture<'_, Result<Value, JobError>>;

    struct Run(Handle);

    #[async_trait]
    impl JobHandler for Run {
        type Data = Value;
        type Output = Value;
        type Error = JobError;

        async fn handle(&self, job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
            (self.0)(job, data).await
        }
    }

    fn job() -> TestJob {
        TestJob::new(NewJob::new("q", &7).group("g"))
    }

    async fn ran(job: TestJob, handle: Handle) -> TestRun {
        job.run(Run(handle)).await.unwrap()
    }

    fn ended(run: &TestRun) -> (EndedAs, Option<FailureKind>, Option<Duration>) {
        (run.ended_as, run.failure.as_ref().map(|failure| failure.kind), run.again_in)
    }

    #[tokio::test]
    async fn a_handler_sees_the_job_as_it_was_made() {
        let new = NewJob::new("q", &json!({"cents": 5}))
            .group("g")
            .name("posting")
            .reference("r-1")
            .header("tenant", "t")
            .priority(3)
            .max_attempts(4);
        let handle: Handle = |job, data| {
            async move {
                let seen = json!([
                    [job.queue(), job.group(), job.name(), job.reference(), job.headers()],
                    [job.attempt(), job.max_attempts(), job.snoozes(), job.priority()],
                    [job.is_cancelled(), job.is_rehearsal(), job.key().starts_with("1-")],
                ]);
                Ok(json!([seen, data]))
            }
            .boxed()
        };
        let run = ran(TestJob::new(new).attempt(2).snoozes(3), handle).await;
        let seen = json!([
            ["q", "g", "posting", "r-1", {"tenant": "t"}],
            [2, 4, 3, 3],
            [false, false, true]
        ]);
        assert_eq!(run.output, Some(json!([seen, {"cents": 5}])), "{run:?}");
        assert_eq!(ended(&run), (EndedAs::Succeeded, None, None));
    }

    #[tokio::test]
    async fn the_end_is_decided_as_a_processor_does() {
        let (failed, retried, put_off) = (EndedAs::Failed, EndedAs::Retried, EndedAs::Snoozed);
        let error = Some(FailureKind::Error);
        let later: Handle = |_, _| async { Err(JobError::retry_after("no", MINUTE)) }.boxed();
        assert_eq!(ended(&ran(job(), later).await), (retried, error, Some(MINUTE)));
        assert_eq!(ended(&ran(job().attempt(10), later).await), (failed, error, None));
        let cancelled = ran(job().cancelled(), later).await;
        assert_eq!(ended(&cancelled), (EndedAs::Cancelled, None, None));

        let policy = RetryPolicy::new(3).base(MINUTE).jitter(0.0);
        let options = QueueOptions::new("any").retry(policy).max_snoozes(1);
        let by_policy: Handle = |_, _| async { Err(JobError::retry("no")) }.boxed();
        let second = ran(job().options(options.clone()).attempt(2), by_policy).await;
        assert_eq!(ended(&second), (retried, error, Some(2 * MINUTE)));
        let third = ran(job().options(options.clone()).attempt(3), by_policy).await;
        assert_eq!(ended(&third), (failed, error, None));

        let fails: Handle = |_, _| async { Err(JobError::fail("never")) }.boxed();
        assert_eq!(ended(&ran(job(), fails).await), (failed, Some(FailureKind::Permanent), None));

        let snoozes: Handle = |_, _| async { Err(JobError::snooze(MINUTE)) }.boxed();
        assert_eq!(ended(&ran(job(), snoozes).await), (put_off, None, Some(MINUTE)));
        let too_often = ran(job().options(options).snoozes(1), snoozes).await;
        assert_eq!(ended(&too_often), (retried, error, Some(MINUTE)));
        let again: Handle = |job, data| {
            async {
                job.again_after(MINUTE);
                Ok(data)
            }
            .boxed()
        };
        assert_eq!(ended(&ran(job(), again).await), (put_off, None, Some(MINUTE)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_a_timeout_and_wrong_data_are_failures() {
        let panics: Handle = |_, _| async { panic!("boom") }.boxed();
        let run = ran(job(), panics).await;
        let failure = run.failure.unwrap();
        assert_eq!((run.ended_as, failure.kind), (EndedAs::Retried, FailureKind::Panic));
        assert_eq!((&*failure.message, failure.attempt), ("boom", 1));

        let slow = TestJob::new(NewJob::new("q", &7).timeout(MINUTE));
        let run = ran(slow, |_, _| pending().boxed()).await;
        assert_eq!(run.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));

        let text = TestJob::new(NewJob::new("q", "no number"));
        let run = text.options(QueueOptions::new("q").retry_undecodable(false));
        let run = run.run(Kinds::new().on(OnPosting)).await.unwrap();
        let failure = run.failure.unwrap();
        assert_eq!((run.ended_as, failure.kind), (EndedAs::Retried, FailureKind::UnknownKind));
        let text = TestJob::new(NewJob::new("q", "no number").name("posting"));
        let run = text.options(QueueOptions::new("q").retry_undecodable(false));
        let run = run.run(Kinds::new().on(OnPosting)).await.unwrap();
        let failure = run.failure.unwrap();
        assert_eq!((run.ended_as, failure.kind), (EndedAs::Failed, FailureKind::Data));
    }

    #[tokio::test]
    async fn a_transaction_is_refused_with_advice() {
        let uses_tx: Handle = |job, data| {
            async move {
                sqlx::query("select 1").execute(job.tx().await?).await?;
                Ok(data)
            }
            .boxed()
        };
        let enqueues: Handle = |job, data| {
            async move {
                job.enqueue(NewJob::new("q", &1)).await?;
                Ok(data)
            }
            .boxed()
        };
        for handle in [uses_tx, enqueues] {
            let run = ran(job(), handle).await;
            let message = run.failure.unwrap().message;
            assert!(message.contains("this job has no database"), "{message}");
            assert!(message.contains("testing::TestDatabase"), "{message}");
        }
    }

    #[tokio::test]
    async fn reports_of_the_handler_are_returned() {
        let handle: Handle = |job, _| {
            async move {
                let (first, second) =
                    (job.last_checkpoint::<u64>().await?, job.last_checkpoint::<u64>().await?);
                assert_eq!(first, second);
                job.progress(10, "begun")?;
                job.progress(40, "page 4")?;
                job.checkpoint(&1).await?;
                job.checkpoint(&json!({"line": 500})).await?;
                job.rest_group(Utc::now() + MINUTE, "429").await?;
                let last: Value = job.last_checkpoint().await?.unwrap();
                Ok(json!([first, last]))
            }
            .boxed()
        };
        let run = ran(job().checkpoint(400), handle).await;
        assert_eq!(run.output, Some(json!([400, {"line": 500}])), "{run:?}");
        assert_eq!(run.progress, Some((40, String::from("page 4"))));
        assert_eq!(run.checkpoint, Some(json!({"line": 500})));
        assert!(run.suppressed[0].starts_with("the group rests until"), "{run:?}");

        let idle = ran(job().checkpoint(400), |_, data| async { Ok(data) }.boxed()).await;
        assert_eq!((idle.progress, idle.checkpoint, idle.suppressed), (None, None, Vec::new()));
        let none: Handle = |job, _| {
            async move {
                let until = Utc::now() + MINUTE;
                assert!(matches!(job.rest_group(until, "").await, Err(RestError::NoGroup { .. })));
                Ok(json!(job.last_checkpoint::<u64>().await?))
            }
            .boxed()
        };
        let alone = ran(TestJob::new(NewJob::new("q", &7)), none).await;
        assert_eq!(alone.output, Some(Value::Null), "{alone:?}");
    }

    #[derive(Serialize, Deserialize)]
    struct Posting {
        cents: i64,
    }

    impl JobKind for Posting {
        const NAME: &'static str = "posting";
        const QUEUE: &'static str = "q";

        fn retry() -> Option<RetryPolicy> {
            Some(RetryPolicy::new(2).base(MINUTE).jitter(0.0))
        }
    }

    struct OnPosting;

    #[async_trait]
    impl JobHandler for OnPosting {
        type Data = Posting;
        type Output = i64;
        type Error = JobError;

        async fn handle(&self, job: &mut ActiveJob, posting: Posting) -> Result<i64, JobError> {
            match posting.cents {
                0 => {
                    job.cancelled().await;
                    Err(JobError::retry("nothing to post"))
                }
                cents if cents < 0 => Err(JobError::retry("no account")),
                cents => Ok(cents),
            }
        }
    }

    #[tokio::test]
    async fn kinds_run_with_their_own_policies() {
        let kinds = Arc::new(Kinds::new().on(OnPosting));
        let run = TestJob::new(&Posting { cents: 5 }).run(Arc::clone(&kinds)).await.unwrap();
        assert_eq!(run.output, Some(json!(5)), "{run:?}");
        let waits = TestJob::new(&Posting { cents: 0 }).cancelled();
        let run = waits.run(Arc::clone(&kinds)).await.unwrap();
        assert_eq!(run.ended_as, EndedAs::Cancelled);

        let fails = TestJob::new(&Posting { cents: -1 });
        let run = fails.clone().run(Arc::clone(&kinds)).await.unwrap();
        assert_eq!((run.ended_as, run.again_in), (EndedAs::Retried, Some(MINUTE)));
        let run = fails.attempt(2).run(kinds).await.unwrap();
        assert_eq!(run.ended_as, EndedAs::Failed);
    }

    #[tokio::test]
    async fn a_job_that_cannot_be_enqueued_does_not_run() {
        let wrong = TestJob::new(NewJob::new("", &7)).run(OnPosting).await;
        assert!(matches!(wrong, Err(EnqueueError::Name { .. })), "{wrong:?}");
    }
}
