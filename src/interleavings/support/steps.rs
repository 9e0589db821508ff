//! The steps of a claim, a hold and a settle, each callable alone, and the outcomes that scripts
//! settle with.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{begin, begin_hold, commit};
use crate::job::disposition::Disposition;
use crate::job::outcome::Outcome;
use crate::job::queue_options::OutOfAttempts;
use crate::store::{
    AfterSettle, Claim, ClaimAnswer, ClaimBounds, ClaimOptions, HoldAnswer, HoldReceipt,
    KeepFinished, ScanStart, Store,
};
use crate::{Failure, FailureKind};

/// Options of a queue with a limit of three attempts.
pub(crate) const OPTIONS: ClaimOptions = ClaimOptions {
    max_attempts: 3,
    jobs_per_turn: 1,
    lease: Duration::from_millis(500),
    own_lease: false,
    processor: None,
    ignore_before: None,
};
/// Keeps every outcome readable.
pub(crate) const KEEP: KeepFinished =
    KeepFinished { succeeded: true, failed: true, cancelled: true };

/// Groups whose rows a session has locked, in the text form of the function's result.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    locked: String,
    pub(crate) groups: Vec<String>,
}

/// The heads of locked groups: `None` if nothing is to be started.
#[derive(Debug, Clone)]
pub(crate) struct Heads {
    read: String,
    pub(crate) jobs: Vec<Option<i64>>,
}

impl Scene {
    /// A whole claim, adoption included. Its leases are made long afterwards, so that a slow script
    /// loses none.
    pub(crate) async fn claim(&self, conn: &mut PgConnection, slots: usize) -> Vec<Claim> {
        let claimed = self.store.claim(conn, Q, bounds(slots), self.claim_options()).await;
        let jobs = claimed.unwrap().jobs;
        for job in &jobs {
            if let Some(group) = &job.group {
                self.lease(group, 3600).await;
            }
        }
        jobs
    }

    /// A claim of exactly one job.
    pub(crate) async fn claim_one(&self, conn: &mut PgConnection) -> Claim {
        let mut jobs = self.claim(conn, 10).await;
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs.remove(0)
    }

    /// A claim, from the beginning of the indexes, with its whole answer.
    pub(crate) async fn claim_all(&self, conn: &mut PgConnection, slots: usize) -> ClaimAnswer {
        self.store.claim(conn, Q, bounds(slots), OPTIONS).await.unwrap()
    }

    /// Adopts in a transaction that stays open, as a worker does that has nothing else to do.
    /// Returns the number of groups that are in line for it, or were.
    pub(crate) async fn adopt(&self, conn: &mut PgConnection) -> usize {
        begin(conn).await;
        adopt(conn, 128).await
    }

    /// Locks groups that are due.
    pub(crate) async fn lock_turns(&self, conn: &mut PgConnection, limit: i64) -> Turns {
        let sql = format!(
            "select coalesce(l.turns::text, '{{}}'), array(select t.name from unnest(l.turns) t) from \
             (select seriatim.lock_turns({TERMS}, 'line', {limit}, '-infinity', clock_timestamp()) as turns) l"
        );
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(conn).await.unwrap();
        Turns { locked: row.get(0), groups: row.get(1) }
    }

    /// Reads the heads of locked groups.
    pub(crate) async fn read_heads(&self, conn: &mut PgConnection, turns: &Turns) -> Heads {
        let sql = format!(
            "select coalesce(h.turns::text, '{{}}'), array(select t.job from unnest(h.turns) t) from \
             (select seriatim.read_heads({TERMS}, $1::seriatim.turn[]) as turns) h"
        );
        let read = sqlx::query(AssertSqlSafe(sql)).bind(&turns.locked).fetch_one(conn);
        let row = read.await.unwrap();
        Heads { read: row.get(0), jobs: row.get(1) }
    }

    /// Starts the heads that may run, in the open transaction.
    pub(crate) async fn start(
        &self,
        conn: &mut PgConnection,
        heads: &Heads,
        processor: Option<i64>,
    ) -> Vec<Claim> {
        let sql = format!(
            "select j.id, j.group_id, s.token, s.disposition, j.expires_at from seriatim.start_turns( \
             ('{Q}', null, false, $2, 3, 0.5, false, null, 1, true)::seriatim.claim_terms, \
             (10, 0, 1000000, null)::seriatim.claim_limits, $1::seriatim.turn[]) t, \
             unnest(t.jobs) s join seriatim.job j on j.id = s.id"
        );
        let start = sqlx::query(AssertSqlSafe(sql)).bind(&heads.read).bind(processor);
        let claim = |row: PgRow| Claim {
            job: row.get(0),
            followers: Vec::new(),
            group: row.get(1),
            token: row.get(2),
            disposition: Disposition::parse(row.get(3), row.get(4)),
            may_wait: false,
            began: None,
        };
        start.fetch_all(conn).await.unwrap().into_iter().map(claim).collect()
    }

    /// Starts the heads that may run with their followers. Returns all jobs that the turns name.
    pub(crate) async fn start_with_followers(
        &self,
        conn: &mut PgConnection,
        heads: &Heads,
    ) -> Vec<i64> {
        let sql = format!(
            "select s.id from seriatim.start_turns( \
             ('{Q}', null, false, null, 3, 0.5, false, null, 10, true)::seriatim.claim_terms, \
             (10, 10, 1000000, null)::seriatim.claim_limits, $1::seriatim.turn[]) t, unnest(t.jobs) s"
        );
        sqlx::query_scalar(AssertSqlSafe(sql)).bind(&heads.read).fetch_all(conn).await.unwrap()
    }

    /// Defers the groups whose heads are not started, in the open transaction.
    pub(crate) async fn defer(&self, conn: &mut PgConnection, heads: &Heads) {
        let sql = format!(
            "select seriatim.defer_turns({TERMS}, array( \
             select t from unnest($1::seriatim.turn[]) t where t.job is null))"
        );
        let defer = sqlx::query(AssertSqlSafe(sql)).bind(&heads.read);
        defer.execute(conn).await.unwrap();
    }

    /// The last step of a claim: starts the heads that may run, defers the others, and commits.
    pub(crate) async fn write(&self, conn: &mut PgConnection, heads: &Heads) -> Vec<Claim> {
        let started = self.start(conn, heads, None).await;
        self.defer(conn, heads).await;
        commit(conn).await;
        started
    }

    /// Locks turns, reads heads and writes, in the open transaction.
    pub(crate) async fn take_and_write(&self, conn: &mut PgConnection) -> Vec<Claim> {
        let turns = self.lock_turns(conn, 10).await;
        let heads = self.read_heads(conn, &turns).await;
        self.write(conn, &heads).await
    }

    /// Releases claims; returns how many are released or over.
    pub(crate) async fn release(&self, conn: &mut PgConnection, claims: &[Claim]) -> usize {
        begin(conn).await;
        let claims: Vec<_> = claims.iter().collect();
        let released = self.store.release(conn, Q, &claims).await.unwrap();
        commit(conn).await;
        released.len()
    }

    /// Clears the suspicion of a claim, in a transaction of its own.
    pub(crate) async fn clear_suspicion(&self, conn: &mut PgConnection, claim: &Claim) {
        begin(conn).await;
        self.store.clear_suspicion(conn, claim, OPTIONS.lease).await.unwrap();
        commit(conn).await;
    }

    pub(crate) async fn try_hold(&self, conn: &mut PgConnection, claim: &Claim) -> HoldAnswer {
        begin_hold(conn).await;
        self.store.hold(conn, claim).await.unwrap()
    }

    pub(crate) async fn hold(&self, conn: &mut PgConnection, claim: &Claim) -> HoldReceipt {
        match self.try_hold(conn, claim).await {
            HoldAnswer::Held(held) => held,
            other => panic!("not held: {other:?}"),
        }
    }

    /// Returns the number of the attempt that runs, or of the last one.
    pub(crate) async fn attempt(&self, job: i64) -> i64 {
        let sql = format!(
            "select j.attempts + (select count(g.started_at) from seriatim.queue_group g \
             where g.claim is not null and g.job_id = j.id) from seriatim.job j where j.id = {job}"
        );
        self.number(&sql).await
    }

    /// Settles in the transaction of the hold and leaves that open.
    pub(crate) async fn settle(&self, conn: &mut PgConnection, claim: &Claim, outcome: &Outcome) {
        settle(&self.store, conn, claim, outcome).await.unwrap();
    }

    /// Holds, succeeds and commits.
    pub(crate) async fn run_job(&self, conn: &mut PgConnection, claim: &Claim) {
        self.hold(conn, claim).await;
        self.settle(conn, claim, &succeeded()).await;
        commit(conn).await;
    }
}

/// Settles in the transaction that is open, as a worker does.
pub(crate) async fn settle(
    store: &Store,
    conn: &mut PgConnection,
    claim: &Claim,
    outcome: &Outcome,
) -> Result<(), sqlx::Error> {
    if let Outcome::Succeeded { result } = outcome {
        let then = AfterSettle::Nothing;
        return store.quick_settle(conn, claim, result, true, false, then).await.map(drop);
    }
    store.settle(conn, claim, outcome, KEEP).await
}

/// The bounds of a claim from the beginning of the indexes, groups first.
pub(crate) fn bounds(slots: usize) -> ClaimBounds {
    ClaimBounds::new(slots, 0, false, ScanStart::default())
}

/// Adopts in the open transaction, and puts what it adopted in line, as a claim does that has no
/// slot left for it.
pub(crate) async fn adopt(conn: &mut PgConnection, limit: u32) -> usize {
    let sql = format!(
        "select a.turns::text, seriatim.tidy_flags('{Q}', a.idle, a.resting, 'infinity')::int8 from \
         seriatim.adopt({TERMS}, ('-infinity', 0, clock_timestamp(), false, null)::seriatim.flag_range, \
         {limit}, clock_timestamp(), 'infinity') a"
    );
    let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut *conn).await.unwrap();
    let (turns, tidied): (String, i64) = (row.get(0), row.get(1));
    // A younger snapshot than the locks'.
    let sql = format!(
        "select count(*), seriatim.defer_turns({TERMS}, array_agg( \
         (t.name, t.line, t.head_id, t.ready_at, t.flags, null, null, null, t.head_id, 'run', true, 1, null, \
         null, t.held_key, null)::seriatim.turn)) \
         from unnest($1::seriatim.turn[]) t where t.line is not null or not exists ( \
         select from seriatim.queue_group g where g.queue = '{Q}' and g.group_id = t.name)"
    );
    let row = sqlx::query(AssertSqlSafe(sql)).bind(turns).fetch_one(conn).await.unwrap();
    usize::try_from(row.get::<i64, _>(0) + tidied).unwrap()
}

/// A worker's claim, to a step of its.
const TERMS: &str = "('q', null, false, null, 3, 0.5, false, null, 1, true)::seriatim.claim_terms";

pub(crate) fn succeeded() -> Outcome {
    Outcome::Succeeded { result: "null".into() }
}

fn failure() -> Failure {
    Failure { kind: FailureKind::Error, message: "failed".into(), chain: Vec::new(), attempt: 1 }
}

pub(crate) fn failed() -> Outcome {
    Outcome::Failed { failure: failure(), then: OutOfAttempts::Continue }
}

pub(crate) fn retried(delay: Duration) -> Outcome {
    Outcome::Retried { failure: failure(), delay }
}
