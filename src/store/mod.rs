//! The only SQL. One function per statement; each says what it locks and which promise it serves.
//!
//! A statement is a static of its file, compiled when a store first uses it: SQL if it is fixed,
//! else built by sea-query. Nothing here decides about jobs, spawns or sleeps. The order of locks
//! is in ARCHITECTURE ("Lock order").

mod admin;
mod builder;
mod claim;
mod claim_jobs;
mod enqueue;
#[cfg(test)]
mod every_statement;
mod fragments;
mod functions;
mod hold;
mod index_terms;
mod lease;
mod literal;
mod loaded_job;
mod migrate;
mod names;
mod pooler;
mod presence;
mod progress;
mod query;
mod receive;
mod release;
mod rights;
mod session;
mod sessions;
mod settle;
mod shard;
mod spans;
mod statement;
mod store;
pub(crate) mod transaction;
mod work_connection;

pub(crate) use admin::control::{Acting, ParkReport, RequestReport};
pub(crate) use admin::move_jobs::MoveReport;
pub(crate) use admin::pause::{RestArguments, RestState, is_end_refused};
pub(crate) use admin::prune::QueueRound;
pub(crate) use admin::redrive::RedriveReport;
pub(crate) use admin::schedules::Firing;
pub(crate) use claim::{CLAIM_LEASE, Claim, ClaimOptions};
pub(crate) use claim_jobs::{ClaimAnswer, ClaimBounds, ScanStart, Unread};
pub(crate) use enqueue::{check, check_call, refused};
pub(crate) use fragments::{RESTART_GRACE, TIMELINE};
pub(crate) use hold::{Hold, HoldAnswer, HoldReceipt, ServerId, SessionId};
pub(crate) use lease::LeasedClaim;
pub(crate) use loaded_job::{AttemptNumber, LoadedJob};
pub(crate) use migrate::{LATEST, Release, SchemaState};
pub(crate) use names::Names;
pub(crate) use pooler::{PoolerKind, detect_pooler};
pub(crate) use presence::{HeartbeatQuery, Presence, ProcessorRow, ServedQueue};
pub(crate) use progress::Report;
pub(crate) use query::explain::Subject;
pub(crate) use query::rehearse::{Rehearsed, Writes};
pub(crate) use receive::{ReceiptState, ReceiveArguments, ReceivedRow};
pub(crate) use rights::ServerFacts;
pub(crate) use session::{
    BEGIN, FREE_PLANS, NOTE_SETTINGS, PINNED_PLANS, RESTORE_SETTINGS, SessionLimits,
    begin_of_handlers, begin_short, cannot_check, cannot_read, gave_up_waiting, in_short_tx, in_tx,
    is_read_only, keep_open, note_handlers_session,
};
pub(crate) use sessions::Sessions;
pub(crate) use settle::keep::KeepFinished;
pub(crate) use settle::many::Succeeded;
pub(crate) use settle::quick::AfterSettle;
pub(crate) use settle::turn::UnrecordedSuccess;
pub(crate) use spans::{
    begin_ack, begin_nack, begin_receive, begin_send, count, end_send, record_failure,
};
pub(crate) use store::Store;
pub(crate) use work_connection::WorkConnection;
#[cfg(test)]
pub(crate) use {functions::Function, migrate::Step, session::short};
