//! Values and decisions: jobs, queues, groups, outcomes, explanations.
//!
//! Everything here is pure: no SQL, no tokio, no clock. It uses nothing of the crate but itself. A
//! rule that needs the database belongs in `store`, a rule that needs time passing in `liveness` or
//! `worker`.

pub(crate) mod advice;
pub(crate) mod attempt;
pub(crate) mod batch;
pub(crate) mod bytes;
pub(crate) mod caught;
pub(crate) mod change;
pub(crate) mod counts;
#[cfg(feature = "cron")]
mod cron;
pub(crate) mod disposition;
pub(crate) mod effect;
pub(crate) mod error;
pub(crate) mod explanation;
pub(crate) mod facts;
pub(crate) mod failed_filter;
pub(crate) mod headers;
mod interval;
pub(crate) mod job;
pub(crate) mod job_error;
mod job_json;
pub(crate) mod json;
pub(crate) mod kind;
pub(crate) mod maintained;
pub(crate) mod metrics;
pub(crate) mod minutes;
pub(crate) mod move_task;
pub(crate) mod name;
pub(crate) mod new_job;
pub(crate) mod operation;
pub(crate) mod or_fail;
pub(crate) mod outcome;
pub(crate) mod overview;
mod place;
pub(crate) mod policy;
pub(crate) mod progress;
pub(crate) mod queue_options;
pub(crate) mod queue_settings;
pub(crate) mod rate;
pub(crate) mod reason;
pub(crate) mod redact;
pub(crate) mod rehearsal;
pub(crate) mod retry;
pub(crate) mod schedule;
pub(crate) mod sentence;
pub(crate) mod shard;
pub(crate) mod stall;
pub(crate) mod trace_parent;
pub(crate) mod unique;
pub(crate) mod until;
pub(crate) mod waits;
pub(crate) mod words;
