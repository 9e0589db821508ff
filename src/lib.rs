#![doc = include_str!("../README.md")]

mod active_job;
mod attempt;
mod builder;
mod bytes;
mod claim;
mod client;
mod connection;
mod error;
mod explain;
mod explanation;
mod facts;
mod fair_share;
mod going_on;
mod handler;
mod hold;
mod inspect;
mod janitor;
mod job;
mod job_error;
mod json;
mod leased;
mod leases;
mod listener;
mod lookout;
mod mishap;
mod monitor;
mod name;
mod new_job;
mod operate;
mod outcome;
mod parking;
mod pause;
mod presence;
mod processor;
mod pull;
mod pulse;
mod queue;
mod queue_settings;
#[cfg(all(test, feature = "testing"))]
mod races;
mod record;
mod retry;
mod route;
mod schema_gate;
mod settler;
mod shared;
mod shutdown;
mod slots;
mod stall;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod turn;
mod unclaim;
mod watchdog;
mod withheld;
mod worker;

pub use async_trait::async_trait;

pub use active_job::ActiveJob;
pub use builder::ProcessorBuilder;
pub use bytes::Bytes;
pub use client::{Cancelled, Client, Retried, enqueue, enqueue_many, migrate};
pub use error::{
    BackgroundError, BuildError, BuildMistake, ConfigureError, ControlError, EnqueueError,
    MigrateError, NameError,
};
pub use explanation::{
    AttemptOf, GroupExplanation, JobExplanation, ProcessorSeen, Reason, SessionSeen, Tally,
};
pub use handler::JobHandler;
pub use inspect::{HaltedGroup, ParkedUnit, PausedGroup, PausedQueue, QueueCounts};
pub use job::{AttemptRecord, Enqueued, Failure, FailureKind, Job, JobStatus};
pub use job_error::JobError;
pub use new_job::NewJob;
pub use operate::{Purged, Redriven, Released};
pub use processor::{Processor, Running};
pub use pull::{ParseReceiptError, PullError, Receipt, Receive, Received};
pub use queue::{AfterHalt, Hold, OutOfAttempts, QueueOptions, Retention};
pub use queue_settings::{DedupScope, QueueSettings, StoredQueueSettings};
pub use retry::RetryPolicy;
pub use shutdown::{ShutdownReport, shutdown_signal};
pub use stall::{Doing, Stall};
pub use watchdog::Watchdog;
