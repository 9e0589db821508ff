//! Events, health, metrics, traces, and errors in the background: what a process shows.
//!
//! * [`Event`]: an ended attempt, for
//!   [`ProcessorBuilder::on_event`](crate::ProcessorBuilder::on_event).
//! * [`BackgroundError`]: an error that no caller gets, for
//!   [`ProcessorBuilder::on_error`](crate::ProcessorBuilder::on_error).
//! * [`Health`]: for a readiness probe, from [`Running::health`](crate::Running::health), and its
//!   handle [`HealthProbe`].
//! * [`Watchdog`]: ends a process that hangs, and names the [`Stall`].
//! * [`Metrics`]: the fleet's queues, from [`Client::metrics`](crate::Client::metrics).
//! * [`LastHour`]: their last minutes, from [`Client::last_hour`](crate::Client::last_hour).
//! * [`TraceParent`]: the context of a trace in a job's headers.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use seriatim::Processor;
//! use seriatim::observe::{EndedAs, Watchdog};
//!
//! # fn example(pool: sqlx::PgPool) {
//! let builder = Processor::builder(pool)
//!     .watchdog(Watchdog::new(Duration::from_secs(60)))
//!     .on_error(|error| eprintln!("{error}"))
//!     .on_event(|event| {
//!         if matches!(event.outcome, EndedAs::Failed | EndedAs::Expired) {
//!             eprintln!("job {} is a dead letter", event.job);
//!         }
//!     });
//! # }
//! ```

pub use crate::attempt::event::Event;
pub use crate::error::BackgroundError;
pub use crate::job::metrics::{FleetMetrics, Metrics, QueueMetrics};
pub use crate::job::minutes::{LastHour, QueueMinute};
pub use crate::job::outcome::EndedAs;
pub use crate::job::stall::{Activity, Stall};
pub use crate::job::trace_parent::{ParseTraceParentError, TraceParent};
pub use crate::liveness::watchdog::Watchdog;
pub use crate::processor::health::{Health, HealthProbe, QueueHealth};
