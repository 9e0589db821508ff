//! The only SQL. One function per statement; each says what it locks and which promise it serves.
//!
//! Lock order everywhere: the adopter's advisory lock, then the queue's row, then group rows, then their settings, then
//! job rows. Workers lock with `SKIP LOCKED`
//! and so do not wait for each other, but for the one case that `session.rs` names and limits.

mod admin;
mod claim;
mod enqueue;
mod functions;
mod hold;
mod index_terms;
mod lease;
mod migrate;
mod pooler;
mod presence;
mod query;
mod receive;
mod release;
mod round_trip;
mod session;
mod sessions;
mod settle;
mod statement;
mod work_connection;

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

pub(crate) use admin::control::RequestReport;
pub(crate) use claim::followers::UnrecordedSuccess;
pub(crate) use claim::in_flight::Room;
pub(crate) use claim::start::{CLAIM_LEASE, Claim, ClaimOptions, GroupPlan};
pub(crate) use hold::{HeldJob, HoldAnswer, SessionId};
pub(crate) use lease::LeasedClaim;
pub(crate) use migrate::{LATEST, SchemaState};
pub(crate) use pooler::{PoolerKind, detect_pooler};
pub(crate) use presence::{HeartbeatQuery, Presence, ProcessorRow};
pub(crate) use query::explain::Subject;
pub(crate) use receive::{ReceiptState, ReceivedRow};
pub(crate) use round_trip::{
    AfterSettle, CLAIM_LIMIT, ChainAnswer, ClaimAnswer, HoldReceipt, ScanStart,
};
pub(crate) use session::{
    FREE_PLANS, PINNED_PLANS, SessionLimits, begin_hold, begin_short, cannot_check,
    gave_up_waiting, in_short_tx, in_tx, keep_open, notice_lost_clients,
};
pub(crate) use sessions::Sessions;
pub(crate) use settle::many::Succeeded;
pub(crate) use settle::one::KeepFinished;
use statement::Nameless;
pub(crate) use statement::Names;
pub(crate) use work_connection::WorkConnection;
#[cfg(test)]
pub(crate) use {functions::Function, migrate::Release, migrate::Step};

/// Every statement for one schema, rendered.
#[derive(Debug)]
pub(crate) struct Store {
    names: Names,
    nameless: Nameless,
    adopt: claim::adopt::Statements,
    batch: claim::followers::Statements,
    aging: claim::aging::Statements,
    claim: claim::start::Statements,
    control: admin::control::Statements,
    defer: claim::defer::Statements,
    enqueue: enqueue::Statements,
    explain: query::explain::Statements,
    hold: hold::Statements,
    in_flight: claim::in_flight::Statements,
    inspect: query::inspect::Statements,
    lease: lease::Statements,
    look: claim::heads::Statements,
    ungrouped: claim::ungrouped::Statements,
    monitor: sessions::Statements,
    pause: admin::pause::Statements,
    peek: claim::peek::Statements,
    presence: presence::Statements,
    operate: admin::redrive::Statements,
    purge: admin::purge::Statements,
    park: admin::park::Statements,
    policy: admin::policy::Statements,
    prune: admin::prune::Statements,
    pull: receive::Statements,
    queue_settings: admin::queue_settings::Statements,
    settle: settle::one::Statements,
    settle_many: settle::many::Statements,
    release: release::Statements,
}

/// The schema that is used unless another is named.
pub(crate) const DEFAULT_SCHEMA: &str = "seriatim";

static DEFAULT: LazyLock<Arc<Store>> = LazyLock::new(|| Arc::new(Store::new(DEFAULT_SCHEMA)));

impl Store {
    pub(crate) fn new(schema: &str) -> Self {
        let (names, nameless) = (Names::new(schema), Nameless::default());
        statement::looking_at(&nameless.clone(), || Self {
            adopt: claim::adopt::Statements::new(&names),
            batch: claim::followers::Statements::new(&names),
            aging: claim::aging::Statements::new(&names),
            claim: claim::start::Statements::new(&names),
            control: admin::control::Statements::new(&names),
            defer: claim::defer::Statements::new(&names),
            enqueue: enqueue::Statements::new(&names),
            explain: query::explain::Statements::new(&names),
            hold: hold::Statements::new(&names),
            in_flight: claim::in_flight::Statements::new(&names),
            inspect: query::inspect::Statements::new(&names),
            lease: lease::Statements::new(&names),
            look: claim::heads::Statements::new(&names),
            ungrouped: claim::ungrouped::Statements::new(&names),
            monitor: sessions::Statements::new(&names),
            pause: admin::pause::Statements::new(&names),
            peek: claim::peek::Statements::new(&names),
            presence: presence::Statements::new(&names),
            operate: admin::redrive::Statements::new(&names),
            purge: admin::purge::Statements::new(&names),
            park: admin::park::Statements::new(&names),
            policy: admin::policy::Statements::new(&names),
            prune: admin::prune::Statements::new(&names),
            pull: receive::Statements::new(&names),
            queue_settings: admin::queue_settings::Statements::new(&names),
            settle: settle::one::Statements::new(&names),
            settle_many: settle::many::Statements::new(&names),
            release: release::Statements::new(&names),
            names,
            nameless,
        })
    }

    /// Another one for the same schema: what is known of its connections is not true of others'.
    pub(crate) fn for_another_pool(&self, names: bool) -> Self {
        let apart = Self::new(self.names.schema());
        if !names {
            apart.sends_no_names();
        }
        apart
    }

    /// From here on its statements have no names: for connections through a transaction pooler.
    pub(crate) fn sends_no_names(&self) {
        self.nameless.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_nameless(&self) -> bool {
        self.nameless.load(Ordering::Relaxed)
    }

    pub(crate) fn default_schema() -> Arc<Self> {
        Arc::clone(&DEFAULT)
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_statement_compiles_for_an_odd_schema() {
        let store = super::Store::new("odd \"schema\" $1 ?2");
        assert!(
            format!("{store:?}").contains("odd \\\\\\\"\\\\\\\"schema")
                || !store.names().schema().is_empty()
        );
    }
}
