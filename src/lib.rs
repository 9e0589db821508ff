#![doc = include_str!("../README.md")]

mod attempt;
mod client;
mod error;
#[cfg(all(test, feature = "testing"))]
mod interleavings;
mod job;
mod liveness;
mod maintenance;
mod metrics;
mod processor;
mod slots;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod worker;

pub use async_trait::async_trait;

pub use attempt::active_job::ActiveJob;
pub use attempt::event::Event;
pub use attempt::handler::JobHandler;
pub use attempt::layer::{Ended, Layer, Next};
pub use client::cancel::Cancelled;
pub use client::client::{Client, migrate};
pub use client::enqueue::{enqueue, enqueue_many};
pub use client::operator::jobs::Retried;
pub use client::operator::move_jobs::{Moved, MovedJob};
pub use client::operator::node::Released;
pub use client::operator::operator::Operator;
pub use client::operator::purge::Purged;
pub use client::operator::redrive::Redriven;
pub use client::receive::{ParseReceiptError, Receipt, Receive, ReceiveError, Received};
pub use error::{BackgroundError, BuildError, ControlError, MigrateError, StartError};
pub use job::attempt::AttemptInfo;
pub use job::bytes::Bytes;
pub use job::counts::{HaltedGroup, ParkedUnit, PausedGroup, PausedQueue, QueueCounts};
pub use job::error::{BuildMistake, ConfigureError, EnqueueError, NameError};
pub use job::explanation::{
    BoundedCount, GroupExplanation, JobExplanation, ProcessorInfo, Reason, SessionInfo,
};
pub use job::failed_filter::{FailedFilter, FailedJob};
pub use job::job::{AttemptRecord, Enqueued, Failure, FailureKind, Job, JobStatus};
pub use job::job_error::JobError;
pub use job::metrics::{FleetMetrics, Metrics, QueueMetrics};
pub use job::move_task::{MoveTask, MoveTaskStatus};
pub use job::new_job::NewJob;
pub use job::operation::Operation;
pub use job::outcome::EndedAs;
pub use job::overview::{
    GroupCounts, GroupFilter, GroupOverview, GroupPage, GroupSort, GroupState, JobCounts,
    QueueOverview,
};
pub use job::policy::OverriddenOption;
pub use job::queue_options::{AfterHalt, Hold, OutOfAttempts, QueueOptions, Retention};
pub use job::queue_settings::{DedupScope, QueueSettings, StoredQueueSettings};
pub use job::retry::RetryPolicy;
pub use job::stall::{Activity, Stall};
pub use job::trace_parent::{ParseTraceParentError, TraceParent};
pub use liveness::shutdown::{ShutdownReport, shutdown_signal};
pub use liveness::watchdog::Watchdog;
pub use processor::builder::ProcessorBuilder;
pub use processor::health::{Health, QueueHealth};
pub use processor::processor::Processor;
pub use processor::running::Running;

/// The guide's programs are compiled with the doctests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../docs/guide/first-job.md")]
    struct FirstJob;
    #[doc = include_str!("../docs/guide/failing.md")]
    struct Failing;
    #[doc = include_str!("../docs/guide/deploying.md")]
    struct Deploying;
    #[doc = include_str!("../docs/guide/metrics.md")]
    struct Metrics;
    #[doc = include_str!("../docs/guide/poolers.md")]
    struct Poolers;
    #[doc = include_str!("../docs/guide/receiving.md")]
    struct Receiving;
    #[doc = include_str!("../docs/guide/testing.md")]
    struct Testing;
}
