//! The only SQL. One function per statement; each says what it locks and which promise it serves.
//!
//! A statement is a static of its file, declared by `statements!` and compiled when a store first
//! uses it: fixed ones are SQL, those with variants are built by sea-query. Nothing here decides
//! about jobs, spawns or sleeps.
//!
//! Lock order: the adopter's advisory lock, the row of a queue with a limit, group rows, job rows,
//! the setting of a paused group. Workers lock with `SKIP LOCKED` and do not wait for each other,
//! but for the case that `session.rs` names. Five places leave the order. None can close a circle,
//! as each tries its later lock or waits for a claim's milliseconds:
//!
//! * An adoption locks flagged jobs before the rows of their groups.
//! * A receive locks the queue's row before it tries the adopter's lock.
//! * Retry, skip and redrive lock a dead job before the row of the group that it halted.
//! * An unpause locks the group's setting before the group's next job.
//! * A claim in several rounds, a receive and a settle of a batch lock rows of one group after
//!   those of another.

mod admin;
mod builder;
mod claim;
mod enqueue;
#[cfg(test)]
mod every_statement;
mod fragments;
mod functions;
mod hold;
mod index_terms;
mod lease;
mod literal;
mod migrate;
mod names;
mod pooler;
mod presence;
mod query;
mod receive;
mod release;
mod session;
mod sessions;
mod settle;
mod statement;
mod store;
mod work_connection;

pub(crate) use admin::control::RequestReport;
pub(crate) use claim::claim::{CLAIM_LEASE, Claim, ClaimOptions, GroupPlan};
pub(crate) use claim::in_flight::Room;
pub(crate) use claim::quick::{CLAIM_LIMIT, ClaimAnswer, ScanStart};
pub(crate) use hold::{HeldJob, HoldAnswer, HoldReceipt, SessionId};
pub(crate) use lease::LeasedClaim;
pub(crate) use migrate::{LATEST, SchemaState};
pub(crate) use names::Names;
pub(crate) use pooler::{PoolerKind, detect_pooler};
pub(crate) use presence::{HeartbeatQuery, Presence, ProcessorRow};
pub(crate) use query::explain::Subject;
pub(crate) use receive::{ReceiptState, ReceivedRow};
pub(crate) use session::{
    FREE_PLANS, PINNED_PLANS, SessionLimits, begin_hold, begin_short, cannot_check,
    gave_up_waiting, in_short_tx, in_tx, keep_open, notice_lost_clients,
};
pub(crate) use sessions::Sessions;
pub(crate) use settle::chain::ChainAnswer;
pub(crate) use settle::keep::KeepFinished;
pub(crate) use settle::many::Succeeded;
pub(crate) use settle::quick::AfterSettle;
pub(crate) use settle::turn::UnrecordedSuccess;
pub(crate) use store::Store;
pub(crate) use work_connection::WorkConnection;
#[cfg(test)]
pub(crate) use {functions::Function, migrate::Release, migrate::Step};
