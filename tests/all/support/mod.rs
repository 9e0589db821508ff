//! Helpers that tests of several folders share: handlers, a log of what ran, waiting for events,
//! probes of the tables.
//! Machines for tests live here too: worker processes, proxies, poolers and network namespaces.
//! A helper that one file alone needs belongs in that file.

mod awake;
pub mod logged;
pub mod namespace;
pub mod network;
pub mod pooler;
pub mod proxy;
mod sample;
mod size;
pub mod standby;
pub mod witness;
pub mod worker_process;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use seriatim::admin::Operator;
use seriatim::testing::{Jobs, TestDatabase};
use seriatim::{
    ActiveJob, Client, Job, JobError, JobHandler, NewJob, Processor, ProcessorBuilder,
    QueueOptions, RetryPolicy, Running, async_trait,
};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgExecutor, PgPool};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

pub use awake::AwakeInstant;
pub(crate) use sample::sample;
pub(crate) use size::{long, size};

/// How long an event may take to come: far more than it should, on a machine under load.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A migrated database of the test's own.
pub async fn database() -> TestDatabase {
    TestDatabase::create().await.unwrap()
}

/// An operator of the default schema, who gives no reason.
pub fn operator() -> Operator {
    Client::default().operator("test", None)
}

type Boxed = dyn for<'a> Fn(&'a mut ActiveJob, Value) -> BoxFuture<'a, Result<Value, JobError>>
    + Send
    + Sync;

/// A handler made of a closure; from [`handler`] or [`handler_with`].
pub struct FnHandler(Box<Boxed>);

/// A closure whose futures are `Send`, which the bound `AsyncFn` cannot say in stable Rust.
pub trait Run<'a, S>: Fn(S, &'a mut ActiveJob, Value) -> Self::Future {
    type Future: Future<Output = Result<Value, JobError>> + Send + 'a;
}

impl<'a, S, F, R> Run<'a, S> for F
where
    F: Fn(S, &'a mut ActiveJob, Value) -> R,
    R: Future<Output = Result<Value, JobError>> + Send + 'a,
{
    type Future = R;
}

/// As [`Run`], of a closure that needs nothing.
pub trait RunAlone<'a>: Fn(&'a mut ActiveJob, Value) -> Self::Future {
    type Future: Future<Output = Result<Value, JobError>> + Send + 'a;
}

impl<'a, F, R> RunAlone<'a> for F
where
    F: Fn(&'a mut ActiveJob, Value) -> R,
    R: Future<Output = Result<Value, JobError>> + Send + 'a,
{
    type Future = R;
}

/// A handler that needs nothing: `handler(async |job, data| …)`.
pub fn handler<F>(run: F) -> FnHandler
where
    F: AsyncFn(&mut ActiveJob, Value) -> Result<Value, JobError>
        + for<'a> RunAlone<'a>
        + Send
        + Sync
        + 'static,
{
    boxed_alone(run)
}

/// A handler that has a clone of `with` in each run: `handler_with(log, async |log, job, data| …)`.
///
/// A closure that captured it would lend it to its futures, and those could not be boxed.
pub fn handler_with<S, F>(with: S, run: F) -> FnHandler
where
    S: Clone + Send + Sync + 'static,
    F: AsyncFn(S, &mut ActiveJob, Value) -> Result<Value, JobError>
        + for<'a> Run<'a, S>
        + Send
        + Sync
        + 'static,
{
    boxed(with, run)
}

// With both bounds in scope a call would be ambiguous: `AsyncFn` tells a closure its types, `Run`
// is what is called.

fn boxed<S, F>(with: S, run: F) -> FnHandler
where
    S: Clone + Send + Sync + 'static,
    F: for<'a> Run<'a, S> + Send + Sync + 'static,
{
    FnHandler(Box::new(move |job, data| Box::pin(run(with.clone(), job, data))))
}

fn boxed_alone<F>(run: F) -> FnHandler
where
    F: for<'a> RunAlone<'a> + Send + Sync + 'static,
{
    FnHandler(Box::new(move |job, data| Box::pin(run(job, data))))
}

#[async_trait]
impl JobHandler for FnHandler {
    type Data = Value;
    type Output = Value;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
        (self.0)(job, data).await
    }
}

/// A log of what happened, in order, and a way to wait for it.
#[derive(Clone, Default)]
pub struct Log {
    entries: Arc<Mutex<Vec<String>>>,
    changed: Arc<Notify>,
}

impl Log {
    pub fn add(&self, entry: impl Into<String>) {
        self.entries.lock().unwrap().push(entry.into());
        self.changed.notify_waiters();
    }

    pub fn entries(&self) -> Vec<String> {
        self.entries.lock().unwrap().clone()
    }

    /// Waits until `done` holds for the entries, and gives them back.
    pub async fn wait(&self, what: &str, done: impl Fn(&[String]) -> bool) -> Vec<String> {
        self.wait_within(PATIENCE, what, done).await
    }

    /// As [`wait`](Self::wait), with another limit.
    pub async fn wait_within(
        &self,
        limit: Duration,
        what: &str,
        done: impl Fn(&[String]) -> bool,
    ) -> Vec<String> {
        let deadline = Instant::now() + limit;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let entries = self.entries();
            if done(&entries) {
                return entries;
            }
            let waited = tokio::time::timeout_at(deadline, changed).await;
            assert!(waited.is_ok(), "waited in vain until {what}; so far: {entries:?}");
        }
    }

    /// Waits until there are so many entries, as long as others come.
    pub async fn wait_for(&self, count: usize) -> Vec<String> {
        let (what, mut entries) = (format!("there are {count} entries"), self.entries());
        while entries.len() < count {
            let so_far = entries.len();
            entries = self.wait(&what, |entries| entries.len() > so_far).await;
        }
        entries
    }
}

/// Pauses between looks at a database that has no event to wait for: short at first, so that most
/// tests wait no longer than they must, then longer, as a look costs the server half of a
/// millisecond.
pub struct Looks {
    pause: Duration,
    deadline: Instant,
}

impl Looks {
    pub fn new(patience: Duration) -> Self {
        Self { pause: Duration::from_millis(3), deadline: Instant::now() + patience }
    }

    pub fn are_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    pub async fn pause(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 3 / 2).min(Duration::from_millis(25));
    }
}

/// Waits until all commits so far are on the standby.
pub async fn until_caught_up(primary: &PgPool) {
    let now: String = value(primary, "select pg_current_wal_lsn()::text").await;
    let on_it =
        format!("select exists (select from pg_stat_replication where replay_lsn >= '{now}')");
    let mut looks = Looks::new(PATIENCE);
    while !value::<bool>(primary, on_it.clone()).await {
        assert!(!looks.are_over(), "the standby has not caught up");
        looks.pause().await;
    }
}

/// Waits until a query's one value is `expected`.
pub async fn eventually<T>(pool: &PgPool, query: &'static str, expected: T)
where
    T: PartialEq
        + std::fmt::Debug
        + Send
        + Unpin
        + for<'r> sqlx::Decode<'r, sqlx::Postgres>
        + sqlx::Type<sqlx::Postgres>,
{
    let mut looks = Looks::new(PATIENCE);
    loop {
        let value: T = sqlx::query_scalar(query).fetch_one(pool).await.unwrap();
        if value == expected {
            return;
        }
        assert!(!looks.are_over(), "waited in vain: {query} gives {value:?}, not {expected:?}");
        looks.pause().await;
    }
}

/// Waits until all transactions have ended that run now, but for the caller's own. A claim that has
/// begun does not see what a later statement writes.
pub async fn present_transactions_end(pool: &PgPool) {
    let now: String = value(pool, "select clock_timestamp()::text").await;
    let mut looks = Looks::new(PATIENCE);
    let earlier = format!(
        "select count(*) from pg_stat_activity where datname = current_database() \
         and pid <> pg_backend_pid() and xact_start < '{now}'"
    );
    while value::<i64>(pool, &earlier).await > 0 {
        assert!(!looks.are_over(), "a transaction from before {now} does not end");
        looks.pause().await;
    }
}

/// Waits until no job of the queue is unfinished.
pub async fn drained(pool: &PgPool, queue: &str) {
    let mut looks = Looks::new(PATIENCE * 4);
    loop {
        let counts = Client::default().counts(pool, queue).await.unwrap();
        if counts.unfinished() == 0 {
            return;
        }
        assert!(!looks.are_over(), "queue {queue} is not drained: {counts:?}");
        looks.pause().await;
    }
}

/// A queue with quick retries.
pub fn queue(name: &str) -> QueueOptions {
    let retry = RetryPolicy::new(10).base(Duration::from_millis(10)).cap(Duration::from_millis(50));
    QueueOptions::new(name).concurrency(4).retry(retry)
}

/// A processor on a pool of its own that polls often. Hold its pool by the builder.
pub async fn processor(database: &TestDatabase, connections: u32) -> ProcessorBuilder {
    let pool = database.pool_with(PgPoolOptions::new().max_connections(connections)).await.unwrap();
    Processor::builder(pool).poll_interval(Duration::from_millis(50))
}

/// Builds a processor and starts it.
pub async fn started(builder: ProcessorBuilder) -> Running {
    builder.build().unwrap().start().await.unwrap()
}

/// Waits until a processor is ready, or is not. A presence that a late machine has not proved is
/// proved again by the next check.
pub async fn until_ready(running: &Running, ready: bool) {
    let begun = std::time::Instant::now();
    while running.is_ready() != ready {
        assert!(begun.elapsed() < PATIENCE, "{:?}", running.health());
        // Health is read, and has no event to wait for.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Starts a processor of one queue, as [`processor`] makes it.
pub async fn serve(
    database: &TestDatabase,
    connections: u32,
    options: QueueOptions,
    handler: impl JobHandler,
) -> Running {
    started(processor(database, connections).await.queue(options, handler)).await
}

pub async fn enqueue(pool: &PgPool, queue: &str, group: &str, data: impl Into<Value>) -> i64 {
    seriatim::enqueue(pool, NewJob::new(queue, &data.into()).group(group)).await.unwrap().id()
}

/// A job of a group that is not enqueued yet.
pub fn job_of(queue: &str, group: &str, data: impl Into<Value>) -> NewJob {
    NewJob::new(queue, &data.into()).group(group)
}

/// A job that is there.
pub async fn job(executor: impl PgExecutor<'_>, id: i64) -> Job {
    let job = Client::default().job(executor, id).await.unwrap();
    job.unwrap_or_else(|| panic!("job {id} is not there"))
}

/// Waits until `done` holds for a job, and returns it.
pub async fn job_when(pool: &PgPool, id: i64, done: impl Fn(&Job) -> bool) -> Job {
    let mut looks = Looks::new(PATIENCE);
    loop {
        let job = job(pool, id).await;
        if done(&job) {
            return job;
        }
        assert!(!looks.are_over(), "waited in vain: {job:?}");
        looks.pause().await;
    }
}

/// Waits until a job has ended, and returns it.
pub async fn ended(pool: &PgPool, id: i64) -> Job {
    job_when(pool, id, |job| job.status.is_final()).await
}

/// Runs SQL of the test's own, such as an operator might write by hand.
pub async fn by_hand(pool: &PgPool, sql: impl Into<String>) {
    let sql = sql.into();
    sqlx::raw_sql(AssertSqlSafe(sql.clone()))
        .execute(pool)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Whether a claim names a job. A job with a group does not say so itself.
pub const STARTED: &str = "seriatim.job_state(status, queue, group_id, id) = 'started'";

/// Whether no worker has seen a job's flag. One that runs may keep its own until its attempt ends.
pub const UNSEEN: &str = "flagged and seriatim.job_state(status, queue, group_id, id) <> 'started'";

/// A query's one value.
pub async fn value<T>(pool: &PgPool, sql: impl Into<String>) -> T
where
    T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    let sql = sql.into();
    sqlx::query_scalar(AssertSqlSafe(sql.clone()))
        .fetch_one(pool)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Returns the number of jobs of which an SQL condition holds.
pub async fn jobs_where(pool: &PgPool, condition: &str) -> i64 {
    value(pool, format!("select count(*) from seriatim.job where {condition}")).await
}

/// Returns the number of groups of whose rows an SQL condition holds.
pub async fn groups_where(pool: &PgPool, condition: &str) -> i64 {
    value(pool, format!("select count(*) from seriatim.queue_group where {condition}")).await
}

/// Waits until an SQL condition holds of `count` jobs.
pub async fn until_jobs(pool: &PgPool, condition: &str, count: i64) {
    until(async || jobs_where(pool, condition).await, count, condition).await;
}

/// Waits until an SQL condition holds of the rows of `count` groups.
pub async fn until_groups(pool: &PgPool, condition: &str, count: i64) {
    until(async || groups_where(pool, condition).await, count, condition).await;
}

async fn until(ask: impl AsyncFn() -> i64, count: i64, condition: &str) {
    let mut looks = Looks::new(PATIENCE);
    loop {
        let found = ask().await;
        if found == count {
            return;
        }
        assert!(!looks.are_over(), "{condition} holds of {found}, not of {count}");
        looks.pause().await;
    }
}

/// Waits until no group has a row and no job is flagged.
pub async fn nothing_remains(pool: &PgPool) {
    let remains = "select (select count(*) from seriatim.queue_group) + \
                   (select count(*) from seriatim.job where flagged)";
    eventually(pool, remains, 0_i64).await;
}

/// Waits until nothing remains of a queue whose processors have ended. A group's row that an
/// adopter shared when its last job was settled is left to the next claim.
pub async fn nothing_remains_for_the_next(pool: &PgPool) {
    let idle = handler(async |_, _| Ok(Value::Null));
    assert_eq!(Jobs::new(pool).drain(queue("q"), idle).await.unwrap(), 0);
    nothing_remains(pool).await;
}

/// An error and its sources, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    std::iter::once(error.to_string())
        .chain(sources.map(ToString::to_string))
        .collect::<Vec<_>>()
        .join(": ")
}

/// The errors that a processor reported to its error hook, each with its sources.
#[derive(Clone, Default)]
pub struct Errors(pub Log);

impl Errors {
    /// Takes down what a processor will report.
    pub fn of(&self, builder: ProcessorBuilder) -> ProcessorBuilder {
        let log = self.0.clone();
        builder.on_error(move |error| {
            let debug = format!("{error:?}");
            let variant = debug.split([' ', '(']).next().unwrap_or_default();
            log.add(format!("{variant}: {}", chain(error)));
        })
    }

    /// All but that a check of the holds or of the presence took long, as they do on a machine with
    /// much else to do, and the holds that were lost by it.
    pub fn but_slow_checks(&self) -> Vec<String> {
        let slow = ["TooSlow: a check of the holds", "TooSlow: a presence check"];
        let mut entries = self.0.entries();
        let all = entries.len();
        entries.retain(|entry| !slow.iter().any(|slow| entry.starts_with(slow)));
        if entries.len() < all {
            entries.retain(|entry| !entry.starts_with("HoldLost:"));
        }
        entries
    }

    /// Returns the errors whose variant has this name.
    pub fn named(&self, variant: &str) -> Vec<String> {
        let mut entries = self.0.entries();
        entries.retain(|entry| entry.split(':').next() == Some(variant));
        entries
    }
}

/// A gate at which handlers wait until the test lets them pass.
#[derive(Clone)]
pub struct Gate(Arc<Semaphore>);

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }
}

impl Gate {
    /// Lets so many pass, those that wait and those that come.
    pub fn pass(&self, handlers: usize) {
        self.0.add_permits(handlers);
    }

    pub async fn passed(&self) {
        self.0.acquire().await.unwrap().forget();
    }
}

/// A handler that logs the data of each job, which then waits at the gate.
pub fn held_up(log: &Log, gate: &Gate) -> FnHandler {
    handler_with((log.clone(), gate.clone()), async |(log, gate), _, data| {
        log.add(data.to_string());
        gate.passed().await;
        Ok(Value::Null)
    })
}
