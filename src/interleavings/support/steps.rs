//! The steps of a claim, a hold and a settle, each callable alone, and the outcomes that scripts
//! settle with.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::PgConnection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{begin, commit};
use crate::job::group_plan::{self, HeadSnapshot, LockedGroup};
use crate::job::outcome::Outcome;
use crate::job::queue_options::OutOfAttempts;
use crate::store::{
    Claim, ClaimAnswer, ClaimOptions, GroupPlan, HeldJob, HoldAnswer, KeepFinished, ScanStart,
    begin_hold,
};
use crate::worker::claim_steps::{self, ClaimCursor};
use crate::{Failure, FailureKind};

/// Options of a queue with a limit of three attempts.
pub(in crate::interleavings) const OPTIONS: ClaimOptions = ClaimOptions {
    max_attempts: 3,
    jobs_per_turn: 1,
    lease: Duration::from_millis(500),
    own_lease: false,
    processor: None,
    ignore_before: None,
};
/// Keeps every outcome readable.
pub(in crate::interleavings) const KEEP: KeepFinished =
    KeepFinished { succeeded: true, failed: true, cancelled: true };

/// The head snapshots of locked groups, by group.
pub(in crate::interleavings) type Heads = HashMap<String, HeadSnapshot>;

impl Scene {
    /// A whole claim, adoption included. Its leases are made long afterwards, so that a slow script
    /// loses none.
    pub(in crate::interleavings) async fn claim(
        &self,
        conn: &mut PgConnection,
        slots: usize,
    ) -> Vec<Claim> {
        let claimed = claim_steps::claim(
            &self.store,
            conn,
            &self.options,
            slots,
            None,
            &mut ClaimCursor::default(),
        )
        .await;
        let jobs = claimed.unwrap().jobs;
        for job in &jobs {
            if let Some(group) = &job.group {
                self.lease(group, 3600).await;
            }
        }
        jobs
    }

    /// A claim of exactly one job.
    pub(in crate::interleavings) async fn claim_one(&self, conn: &mut PgConnection) -> Claim {
        let mut jobs = self.claim(conn, 10).await;
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs.remove(0)
    }

    /// A claim in one round trip, from the beginning of the indexes.
    pub(in crate::interleavings) async fn quick_claim(
        &self,
        conn: &mut PgConnection,
        slots: i32,
    ) -> ClaimAnswer {
        let from = ScanStart::default();
        self.store.quick_claim(conn, Q, slots, false, OPTIONS, from).await.unwrap()
    }

    /// Locks groups that are due.
    pub(in crate::interleavings) async fn lock_turns(
        &self,
        conn: &mut PgConnection,
        limit: i64,
    ) -> Vec<LockedGroup> {
        self.store.take_turns(conn, Q, limit).await.unwrap()
    }

    /// Reads the heads of locked groups.
    pub(in crate::interleavings) async fn read_heads(
        &self,
        conn: &mut PgConnection,
        turns: &[LockedGroup],
    ) -> Heads {
        self.store.read_heads(conn, Q, turns, OPTIONS).await.unwrap()
    }

    /// The last step of a claim: writes the plans that follow from the heads, and commits.
    pub(in crate::interleavings) async fn write(
        &self,
        conn: &mut PgConnection,
        turns: &[LockedGroup],
        heads: &Heads,
    ) -> Vec<Claim> {
        let plans = plans(turns, heads);
        let started = self.store.start(conn, Q, &plans, OPTIONS).await.unwrap();
        self.store.defer(conn, Q, &plans).await.unwrap();
        commit(conn).await;
        started
    }

    /// Locks turns, reads heads and writes, in the open transaction.
    pub(in crate::interleavings) async fn take_and_write(
        &self,
        conn: &mut PgConnection,
    ) -> Vec<Claim> {
        let turns = self.lock_turns(conn, 10).await;
        let heads = self.read_heads(conn, &turns).await;
        self.write(conn, &turns, &heads).await
    }

    /// Becomes the adopter and adopts, in a transaction that stays open.
    pub(in crate::interleavings) async fn adopt(&self, conn: &mut PgConnection) -> usize {
        begin(conn).await;
        assert!(self.store.peek(conn, Q).await.unwrap().adopter);
        self.store.adopt(conn, Q, 128).await.unwrap().groups
    }

    /// Releases claims; returns how many are released or over.
    pub(in crate::interleavings) async fn release(
        &self,
        conn: &mut PgConnection,
        claims: &[Claim],
    ) -> usize {
        begin(conn).await;
        let claims: Vec<_> = claims.iter().collect();
        let released = self.store.release(conn, Q, &claims).await.unwrap();
        commit(conn).await;
        released.len()
    }

    /// Clears the suspicion of a claim, in a transaction of its own.
    pub(in crate::interleavings) async fn clear_suspicion(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) {
        begin(conn).await;
        self.store.clear_suspicion(conn, claim, OPTIONS.lease).await.unwrap();
        commit(conn).await;
    }

    pub(in crate::interleavings) async fn try_hold(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> HoldAnswer {
        begin_hold(conn).await.unwrap();
        self.store.hold(conn, Q, claim).await.unwrap()
    }

    pub(in crate::interleavings) async fn hold(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
    ) -> HeldJob {
        match self.try_hold(conn, claim).await {
            HoldAnswer::Held(held) => *held,
            other => panic!("not held: {other:?}"),
        }
    }

    /// Settles in the transaction of the hold and leaves that open.
    pub(in crate::interleavings) async fn settle(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        held: &HeldJob,
        outcome: &Outcome,
    ) {
        self.store.settle(conn, Q, claim, outcome, KEEP, held.followed).await.unwrap();
    }

    /// Holds, succeeds and commits.
    pub(in crate::interleavings) async fn run_job(&self, conn: &mut PgConnection, claim: &Claim) {
        let held = self.hold(conn, claim).await;
        self.settle(conn, claim, &held, &succeeded()).await;
        commit(conn).await;
    }
}

pub(in crate::interleavings) fn plans(turns: &[LockedGroup], heads: &Heads) -> Vec<GroupPlan> {
    let plan = |turn: &LockedGroup| GroupPlan {
        followers: Vec::new(),
        group: turn.group.clone(),
        plan: group_plan::plan(turn, &heads[&turn.group]),
    };
    turns.iter().map(plan).collect()
}

pub(in crate::interleavings) fn succeeded() -> Outcome {
    Outcome::Succeeded { result: "null".into() }
}

fn failure() -> Failure {
    Failure { kind: FailureKind::Error, message: "failed".into(), chain: Vec::new(), attempt: 1 }
}

pub(in crate::interleavings) fn failed() -> Outcome {
    Outcome::Failed { failure: failure(), then: OutOfAttempts::Continue }
}

pub(in crate::interleavings) fn retried(delay: Duration) -> Outcome {
    Outcome::Retried { failure: failure(), delay }
}
