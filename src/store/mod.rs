//! The only SQL. One function per statement; each says what it locks and which promise it serves.
//!
//! Lock order everywhere: the adopter's advisory lock, then the queue's row, then group rows, then their settings, then
//! job rows. Workers lock with `SKIP LOCKED`
//! and so do not wait for each other, but for the one case that `session.rs` names and limits.

mod adopt;
mod batch;
mod boost;
mod claim;
mod control;
mod defer;
mod enqueue;
mod explain;
mod functions;
mod hold;
mod in_flight;
mod inspect;
mod lease;
mod look;
mod lookup;
mod loose;
mod migrate;
mod monitor;
mod operate;
mod park;
mod pause;
mod peek;
mod policy;
mod pooler;
mod presence;
mod prune;
mod pull;
mod purge;
mod queue_settings;
mod round_trip;
mod session;
mod settle;
mod settle_many;
mod template;
mod unclaim;

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

pub(crate) use batch::Done;
pub(crate) use claim::{CLAIM_LEASE, Started, Terms, TurnPlan};
pub(crate) use control::RequestReport;
pub(crate) use explain::Subject;
pub(crate) use hold::{HeldJob, HoldAnswer, SessionId};
pub(crate) use in_flight::Room;
pub(crate) use lease::LeasedClaim;
pub(crate) use migrate::{LATEST, SchemaState};
pub(crate) use monitor::Sessions;
pub(crate) use pooler::{Between, between};
pub(crate) use presence::{Asks, Presence, ProcessorRow};
pub(crate) use pull::{ReceivedRow, Said};
pub(crate) use round_trip::{AT_ONCE, ClaimedAtOnce, GoneOn, HeldAtOnce, ReadFrom, Then};
pub(crate) use session::{
    FREE_PLANS, PINNED_PLANS, SessionLimits, begin_hold, begin_short, cannot_check,
    gave_up_waiting, keep_open, notice_lost_clients, short, together,
};
pub(crate) use settle::Keep;
pub(crate) use settle_many::Succeeded;
use template::Nameless;
pub(crate) use template::Names;
#[cfg(test)]
pub(crate) use {functions::Function, migrate::Release, migrate::Step};

/// Every statement for one schema, rendered.
#[derive(Debug)]
pub(crate) struct Store {
    names: Names,
    nameless: Nameless,
    adopt: adopt::Statements,
    batch: batch::Statements,
    boost: boost::Statements,
    claim: claim::Statements,
    control: control::Statements,
    defer: defer::Statements,
    enqueue: enqueue::Statements,
    explain: explain::Statements,
    hold: hold::Statements,
    in_flight: in_flight::Statements,
    inspect: inspect::Statements,
    lease: lease::Statements,
    look: look::Statements,
    loose: loose::Statements,
    monitor: monitor::Statements,
    pause: pause::Statements,
    peek: peek::Statements,
    presence: presence::Statements,
    operate: operate::Statements,
    purge: purge::Statements,
    park: park::Statements,
    policy: policy::Statements,
    prune: prune::Statements,
    pull: pull::Statements,
    queue_settings: queue_settings::Statements,
    settle: settle::Statements,
    settle_many: settle_many::Statements,
    unclaim: unclaim::Statements,
}

/// The schema that is used unless another is named.
pub(crate) const DEFAULT_SCHEMA: &str = "seriatim";

static DEFAULT: LazyLock<Arc<Store>> = LazyLock::new(|| Arc::new(Store::new(DEFAULT_SCHEMA)));

impl Store {
    pub(crate) fn new(schema: &str) -> Self {
        let (names, nameless) = (Names::new(schema), Nameless::default());
        template::looking_at(&nameless.clone(), || Self {
            adopt: adopt::Statements::new(&names),
            batch: batch::Statements::new(&names),
            boost: boost::Statements::new(&names),
            claim: claim::Statements::new(&names),
            control: control::Statements::new(&names),
            defer: defer::Statements::new(&names),
            enqueue: enqueue::Statements::new(&names),
            explain: explain::Statements::new(&names),
            hold: hold::Statements::new(&names),
            in_flight: in_flight::Statements::new(&names),
            inspect: inspect::Statements::new(&names),
            lease: lease::Statements::new(&names),
            look: look::Statements::new(&names),
            loose: loose::Statements::new(&names),
            monitor: monitor::Statements::new(&names),
            pause: pause::Statements::new(&names),
            peek: peek::Statements::new(&names),
            presence: presence::Statements::new(&names),
            operate: operate::Statements::new(&names),
            purge: purge::Statements::new(&names),
            park: park::Statements::new(&names),
            policy: policy::Statements::new(&names),
            prune: prune::Statements::new(&names),
            pull: pull::Statements::new(&names),
            queue_settings: queue_settings::Statements::new(&names),
            settle: settle::Statements::new(&names),
            settle_many: settle_many::Statements::new(&names),
            unclaim: unclaim::Statements::new(&names),
            names,
            nameless,
        })
    }

    /// Another one for the same schema: what is known of its connections is not true of others'.
    pub(crate) fn apart(&self, names: bool) -> Self {
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
