//! Jobs in PostgreSQL that run one at a time and in order within a group.
//!
//! Jobs carry a group id: a customer, an account, a document. Jobs of one group run one at a time,
//! in the order of their enqueues, on any number of machines. Different groups run side by side. A
//! handler's writes commit together with its job.
//!
//! These pages teach a service from its first job to its tests:
//!
//! 1. [Jobs](#jobs): enqueue in your own transaction.
//! 2. [Handlers](#handlers): run them, exactly once.
//! 3. [Holds](#holds): a transaction or a lease, while a handler runs.
//! 4. [Ends](#ends): success, retry, failure, and what becomes of the group.
//! 5. [Receivers](#receivers): jobs without a handler.
//! 6. [Operating](#operating): why a job waits, and changes by hand.
//! 7. [Testing](#testing): a real database for each test.
//!
//! The README has a program to paste, and the promises; the guide in `docs/` has the limits
//! of each.
//!
//! # Jobs
//!
//! A job has a queue, data and usually a group. The data is any type that serde can serialize. It
//! is stored as JSON of up to 1 MiB ([`Client::data_limit`]); [`NewJob::bytes`] stores raw bytes.
//!
//! An enqueue takes a pool, a connection or a transaction. In a transaction the job exists if and
//! only if that commits. [`migrate()`] makes the tables, in the schema `seriatim`; a [`Client`] of
//! your own has another schema, another limit or layers.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use seriatim::NewJob;
//!
//! #[derive(Serialize, Deserialize)]
//! struct Posting {
//!     account: i32,
//!     cents: i64,
//! }
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! seriatim::migrate(&pool).await?; // at every start
//!
//! let mut tx = pool.begin().await?;
//! sqlx::query("insert into payment (account, cents) values (42, 1500)").execute(&mut *tx).await?;
//! let job = NewJob::new("postings", &Posting { account: 42, cents: 1_500 })
//!     .group("account-42")
//!     .dedup_id("payment-7"); // a second one within 5 minutes is a duplicate
//! let enqueued = seriatim::enqueue(&mut *tx, job).await?;
//! println!("job {}", enqueued.id());
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Any number of jobs go in one statement by [`enqueue_many`]. Delays, expiry, priorities, names
//! and headers are methods of [`NewJob`].
//!
//! # Handlers
//!
//! A [`JobHandler`] runs the jobs of a queue. [`ActiveJob::tx`] is the transaction that the job
//! ends in: what the handler writes there commits together with the job's success, or not at all.
//! Jobs that it enqueues by [`ActiveJob::enqueue`] are part of it.
//!
//! A [`Processor`] claims jobs and runs them in slots; [`QueueOptions::concurrency`] is their
//! number, 10 by default. Any number of processes may run one on the same queue.
//!
//! ```no_run
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct Posting { account: i32, cents: i64 }
//! use std::time::Duration;
//!
//! use seriatim::{ActiveJob, JobError, JobHandler, NewJob, Processor, QueueOptions, async_trait};
//!
//! struct Post;
//!
//! #[async_trait]
//! impl JobHandler for Post {
//!     type Data = Posting;
//!     type Output = i64; // stored as the job's result
//!     type Error = JobError;
//!
//!     async fn handle(&self, job: &mut ActiveJob, posting: Posting) -> Result<i64, JobError> {
//!         let sql = "update account set cents = cents + $2 where id = $1 returning cents";
//!         let balance: i64 = sqlx::query_scalar(sql)
//!             .bind(posting.account)
//!             .bind(posting.cents)
//!             .fetch_one(job.tx().await?)
//!             .await?;
//!         if balance < 0 {
//!             job.enqueue(NewJob::new("reminders", &posting.account)).await?;
//!         }
//!         Ok(balance)
//!     }
//! }
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let running = Processor::builder(pool)
//!     .queue(QueueOptions::new("postings").concurrency(4), Post)
//!     .build()?
//!     .start()
//!     .await?;
//! seriatim::shutdown_signal().await?; // SIGINT or SIGTERM
//! running.shutdown(Duration::from_secs(20)).await;
//! # Ok(())
//! # }
//! ```
//!
//! A [`layer`] is code around all handlers. [`observe`] has events, health, metrics and a watchdog.
//! A [`rehearsal`] runs a group's next jobs, and rolls everything back.
//! Errors that no caller gets go to `tracing`.
//!
//! # Holds
//!
//! A [`Hold`] keeps a job and its group while the handler runs, so that no other job of the group
//! starts anywhere. The default, [`Hold::Transaction`], keeps them by row locks in the transaction
//! of [`ActiveJob::tx`]. Each running job then has a connection of the pool. It suits handlers of
//! seconds or minutes.
//!
//! [`Hold::Lease`] is for handlers that run long, or are many. No transaction is open while they
//! run, and no connection is taken, until a handler calls [`ActiveJob::tx`]: from there on that
//! transaction is the hold. The lease is extended in the background.
//!
//! Under both a worker that was killed loses its jobs within seconds, and another one runs them
//! again. The attempt counts.
//!
//! ```no_run
//! # use seriatim::{ActiveJob, JobError, JobHandler, Processor, QueueOptions, async_trait};
//! # async fn render(_: u32) -> Result<String, std::io::Error> { Ok(String::new()) }
//! use std::time::Duration;
//!
//! use seriatim::Hold;
//!
//! struct Render;
//!
//! #[async_trait]
//! impl JobHandler for Render {
//!     type Data = u32;
//!     type Output = ();
//!     type Error = JobError;
//!
//!     async fn handle(&self, job: &mut ActiveJob, page: u32) -> Result<(), JobError> {
//!         let html = render(page).await?; // minutes, without a connection
//!         sqlx::query("update page set html = $2 where id = $1")
//!             .bind(i64::from(page))
//!             .bind(html)
//!             .execute(job.tx().await?) // commits with the job
//!             .await?;
//!         Ok(())
//!     }
//! }
//!
//! # fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let pages = QueueOptions::new("pages")
//!     .concurrency(200)
//!     .hold(Hold::Lease(Duration::from_secs(30)))
//!     .timeout(Duration::from_secs(600));
//! let processor = Processor::builder(pool).queue(pages, Render).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Ends
//!
//! An `Ok` ends a job as [`JobStatus::Succeeded`]. An error of the handler means another attempt in
//! the job's place, after the delay of the [`RetryPolicy`]: later jobs of its group wait. A panic
//! and a timeout are errors too. [`JobError::retry_after`] names the delay, [`JobError::fail`]
//! means no other attempt. [`OrFail`] has the same for any [`Result`], also of anyhow's errors:
//! `text.parse::<u32>().or_fail()?`.
//!
//! If something that the job needs is not there yet, [`JobError::snooze`] puts it off, and no
//! attempt counts. For a partner that takes no more requests, [`ActiveJob::rest_group`] and
//! [`ActiveJob::rest_queue`] keep the other jobs from it too: until a time of chrono 0.4, read by
//! the database's clock.
//!
//! A job that is out of attempts, or whose data cannot be decoded, ends as [`JobStatus::Failed`]
//! and is kept as a dead letter, or moves to the queue's dead-letter queue. [`OutOfAttempts`]
//! decides about its group: it goes on (the default), halts until an operator decides or a deadline
//! comes, or the jobs behind it step aside.
//!
//! The limit of attempts is that of the job ([`NewJob::max_attempts`]), else that of the queue
//! ([`QueueSettings`](admin::QueueSettings)), else that of the processor ([`QueueOptions::retry`]).
//! The policy is that of the group
//! ([`Operator::set_group_policy`](admin::Operator::set_group_policy)), else that of the queue,
//! else that of the processor.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use seriatim::{ActiveJob, JobHandler, QueueOptions, async_trait};
//! # enum Refusal { Closed, Busy(Duration), Io(std::io::Error) }
//! # async fn transfer(_: i64) -> Result<(), Refusal> { Ok(()) }
//! use seriatim::{JobError, OutOfAttempts, RetryPolicy};
//!
//! struct Transfer;
//!
//! #[async_trait]
//! impl JobHandler for Transfer {
//!     type Data = i64;
//!     type Output = ();
//!     type Error = JobError;
//!
//!     async fn handle(&self, _job: &mut ActiveJob, cents: i64) -> Result<(), JobError> {
//!         match transfer(cents).await {
//!             Ok(()) => Ok(()),
//!             Err(Refusal::Busy(wait)) => Err(JobError::retry_after("the bank is busy", wait)),
//!             Err(Refusal::Closed) => Err(JobError::fail("the account is closed")),
//!             Err(Refusal::Io(error)) => Err(error.into()), // as `?`: after the policy's delay
//!         }
//!     }
//! }
//!
//! # fn example() -> QueueOptions {
//! QueueOptions::new("transfers")
//!     .retry(RetryPolicy::new(5).base(Duration::from_secs(2)))
//!     .out_of_attempts(OutOfAttempts::Halt)
//! # }
//! ```
//!
//! # Receivers
//!
//! A receiver takes jobs without a handler, as a client of SQS does: from Rust here, from any other
//! language by SQL functions of the same names. Each job comes with a receipt, the proof of its
//! claim, which is valid for its visibility (30 s by default). Processors and receivers may share a
//! queue. [`receive`] has the types. A job that is neither acked nor nacked is received again after
//! its visibility; the attempt counts.
//!
//! ```no_run
//! use seriatim::Client;
//! use seriatim::receive::Receive;
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::default();
//! for job in client.receive(&pool, Receive::new("postings")).await? {
//!     let mut tx = pool.begin().await?;
//!     let sql = "update account set cents = cents + 1500 where id = 42";
//!     sqlx::query(sql).execute(&mut *tx).await?;
//!     client.ack(&mut *tx, &job.receipt).await?; // an error drops `tx`, which rolls back
//!     tx.commit().await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! [`QueueOptions::concurrency`] is of one process. [`QueueSettings`](admin::QueueSettings) hold
//! for the whole fleet: jobs at once, starts a second, the time between two jobs of a group, and
//! groups at once for each key of [`NewJob::limit_key`], such as a tenant. Jobs that wait for one
//! key delay no others.
//!
//! ```no_run
//! use seriatim::admin::{QueueSettings, Rate};
//! use seriatim::{Client, NewJob};
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::default();
//! let settings = QueueSettings::new("imports").limit_per_key(4).rate(Rate::per_second(50));
//! client.configure_queue(&pool, settings).await?; // stored: once, or at each start
//!
//! let import = NewJob::new("imports", &4711).group("account-42").limit_key("tenant-7");
//! client.enqueue(&pool, import).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Schedules
//!
//! A [`Schedule`] makes a job at set times, in its queue and group: every night at three, every
//! five minutes, once. The feature `cron` brings cron expressions and time zones. A processor
//! stores its schedules when it starts; from then on any processor fires them, each due time once.
//!
//! ```no_run
//! use std::time::Duration;
//! use seriatim::{NewJob, Schedule};
//!
//! let import = NewJob::new("imports", &"partner-7").group("partner-7");
//! let schedule = Schedule::every("import", Duration::from_mins(5)).job(import);
//! ```
//!
//! With the feature `cron`:
//!
#![cfg_attr(feature = "cron", doc = "```no_run")]
#![cfg_attr(not(feature = "cron"), doc = "```ignore")]
//! use seriatim::{NewJob, Processor, Schedule};
//!
//! # fn example(pool: sqlx::PgPool) {
//! let report = NewJob::new("reports", &"yesterday").group("customer-7");
//! let nightly = Schedule::cron("nightly", "0 3 * * *", "Europe/Berlin").job(report);
//! let builder = Processor::builder(pool).schedule(nightly);
//! # }
//! ```
//!
//! # Batches
//!
//! In one group order is enough: a job that is enqueued last runs last. A [`NewBatch`] joins jobs
//! of several groups or queues: when they have ended, its follow-up is enqueued, exactly once. The
//! follow-up reads their results:
//!
//! ```no_run
//! use seriatim::{ActiveJob, Client, JobError, JobHandler, async_trait};
//!
//! struct Total;
//!
//! #[async_trait]
//! impl JobHandler for Total {
//!     type Data = String;
//!     type Output = i64;
//!     type Error = JobError;
//!
//!     async fn handle(&self, job: &mut ActiveJob, _month: String) -> Result<i64, JobError> {
//!         let batch = job.ended_batch().ok_or_else(|| JobError::fail("it is no follow-up"))?;
//!         // The first 1,000 of them.
//!         let parts = Client::default().batch_jobs(job.tx().await?, batch, None).await?;
//!         let mut sum = 0;
//!         for part in &parts {
//!             sum += part.result::<i64>()?.unwrap_or(0);
//!         }
//!         Ok(sum)
//!     }
//! }
//! ```
//!
//! # Operating
//!
//! [`Client::explain_job`] tells in a few sentences why a job waits, since when, and which session
//! has it ([`explain`]). [`Client::queues`] and [`Client::groups`] list what there is, and
//! the view `seriatim.stopped` all that stands, over all queues.
//!
//! Changes by hand are methods of an [`Operator`](admin::Operator), which records who made each and
//! why ([`admin`]). Most take a transaction, in which they can be looked at and rolled back. Purges
//! take a pool, and a rollback does not undo an abort.
//!
//! ```no_run
//! use seriatim::Client;
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::default();
//! if let Some(why) = client.explain_job(&pool, 4711).await? {
//!     println!("{why}");
//! }
//! let ann = client.operator("ann", "the account is open again");
//! ann.retry(&pool, 4711).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The command line `seriatim` and its page do the same, with a preview; that of an abort or a
//! purge is in words.
//!
//! # Testing
//!
//! The feature `testing` starts a private PostgreSQL, gives each test a migrated database, and runs
//! jobs in the test's own task, by the same claim, hold and settle as a processor. Its `TestJob`
//! calls a handler in a unit test, without a database.
//!
#![cfg_attr(feature = "testing", doc = "```no_run")]
#![cfg_attr(not(feature = "testing"), doc = "```ignore")]
//! # use seriatim::{ActiveJob, JobError, JobHandler, NewJob, QueueOptions, async_trait};
//! # struct Post;
//! # #[async_trait]
//! # impl JobHandler for Post {
//! #     type Data = u32; type Output = u32; type Error = JobError;
//! #     async fn handle(&self, _: &mut ActiveJob, n: u32) -> Result<u32, JobError> { Ok(n) }
//! # }
//! use seriatim::testing::{Jobs, TestDatabase};
//!
//! # async fn test() -> Result<(), Box<dyn std::error::Error>> {
//! let database = TestDatabase::create().await?;
//! seriatim::enqueue(database.pool(), NewJob::new("postings", &7).group("account-42")).await?;
//!
//! let jobs = Jobs::new(database.pool());
//! assert_eq!(jobs.enqueued("postings").await?.len(), 1);
//! assert_eq!(jobs.drain(QueueOptions::new("postings"), Post).await?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! * `testing`: a PostgreSQL for tests, on Unix systems.
//! * `metrics`: metrics of the process, through the facade `metrics`.
//! * `cron`: [`Schedule`]s by cron expressions, in time zones.
//! * `tls-rustls-ring-webpki`, `tls-rustls-ring-native-roots`, `tls-rustls-aws-lc-rs`,
//!   `tls-native-tls`: sqlx's choices of TLS. None is on by default.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod admin;
mod attempt;
mod client;
mod error;
pub mod explain;
#[cfg(all(test, feature = "testing"))]
mod interleavings;
mod job;
pub mod layer;
mod liveness;
mod maintenance;
mod metrics;
pub mod observe;
pub mod primary;
mod processor;
pub mod receive;
pub mod rehearsal;
pub mod shards;
mod slots;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod worker;

pub use async_trait::async_trait;
/// These crates, in the versions whose types are in this API.
#[doc(no_inline)]
pub use {chrono, serde_json, sqlx};

pub use attempt::active_job::ActiveJob;
pub use attempt::handler::JobHandler;
pub use attempt::kinds::Kinds;
pub use client::client::{Client, migrate};
pub use client::enqueue::{enqueue, enqueue_many};
pub use error::{BuildError, ControlError, MigrateError, RestError, StartError};
pub use job::batch::{BatchEnd, NewBatch};
pub use job::bytes::Bytes;
pub use job::error::{
    BatchError, BuildMistake, ConfigureError, EnqueueError, NameError, ProgressError, ScheduleError,
};
pub use job::job::{AttemptRecord, Enqueued, Failure, FailureKind, Job, JobStatus};
pub use job::job_error::JobError;
pub use job::kind::JobKind;
pub use job::new_job::NewJob;
pub use job::or_fail::OrFail;
pub use job::progress::Progress;
pub use job::queue_options::{AfterHalt, Hold, OutOfAttempts, QueueOptions, Retention};
pub use job::retry::RetryPolicy;
pub use job::schedule::{Missed, Overlap, Schedule};
pub use job::unique::Unique;
pub use job::until::Until;
pub use liveness::shutdown::{ShutdownReport, shutdown_signal};
pub use processor::builder::ProcessorBuilder;
pub use processor::processor::Processor;
pub use processor::running::Running;

/// The programs of the README and of the guide are compiled with the doctests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/guide/batches.md")]
    struct Batches;
    #[doc = include_str!("../docs/guide/changing-a-payload.md")]
    struct ChangingAPayload;
    #[doc = include_str!("../docs/guide/first-job.md")]
    struct FirstJob;
    #[doc = include_str!("../docs/guide/failing.md")]
    struct Failing;
    #[doc = include_str!("../docs/guide/deploying.md")]
    struct Deploying;
    #[doc = include_str!("../docs/guide/high-availability.md")]
    struct HighAvailability;
    #[doc = include_str!("../docs/guide/kinds.md")]
    struct SeveralKinds;
    #[doc = include_str!("../docs/guide/long-imports.md")]
    struct LongImports;
    #[doc = include_str!("../docs/guide/metrics.md")]
    struct Metrics;
    #[doc = include_str!("../docs/guide/operating.md")]
    struct Operating;
    #[doc = include_str!("../docs/guide/poolers.md")]
    struct Poolers;
    #[doc = include_str!("../docs/guide/receiving.md")]
    struct Receiving;
    #[doc = include_str!("../docs/guide/schedules.md")]
    struct Schedules;
    #[doc = include_str!("../docs/guide/servers.md")]
    struct Servers;
    #[doc = include_str!("../docs/guide/testing.md")]
    struct Testing;
    #[doc = include_str!("../docs/guide/too-many-requests.md")]
    struct TooManyRequests;
}
