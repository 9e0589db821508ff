//! What the scripts share: sessions, the steps of a claim, gates in the middle of a statement, and looking at the rows.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgTransactionManager;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use sqlx_core::transaction::TransactionManager;
use tokio::time::Instant;

use crate::job::group_plan::{self, HeadSnapshot, LockedGroup};
use crate::job::outcome::Outcome;
use crate::store::{
    Claim, ClaimOptions, GroupPlan, HeldJob, HoldAnswer, KeepFinished, Store, begin_hold,
    begin_short,
};
use crate::testing::TestDatabase;
use crate::worker::claim_steps::ClaimCursor;
use crate::{Client, Failure, FailureKind, NewJob, QueueOptions, RetryPolicy};

/// The one queue of every script.
pub(in crate::interleavings) const Q: &str = "q";
/// How long an event may take to come, on a machine under load.
pub(in crate::interleavings) const PATIENCE: Duration = Duration::from_secs(20);
/// The advisory lock that gates wait at.
const GATE: i64 = 4_242;
/// Those of a queue with a limit of three attempts.
pub(in crate::interleavings) const TERMS: ClaimOptions = ClaimOptions {
    max_attempts: 3,
    jobs_per_turn: 1,
    lease: Duration::from_millis(500),
    own_lease: false,
    processor: None,
    ignore_before: None,
};
/// Every outcome stays readable.
pub(in crate::interleavings) const KEEP: KeepFinished =
    KeepFinished { succeeded: true, failed: true, cancelled: true };

/// A database with the script's own session on it.
pub(in crate::interleavings) struct Scene {
    pub(in crate::interleavings) db: TestDatabase,
    pub(in crate::interleavings) store: Arc<Store>,
    pub(in crate::interleavings) options: QueueOptions,
    me: tokio::sync::Mutex<PgConnection>,
}

/// A group's row, as far as scripts ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::interleavings) struct GroupRow {
    pub(in crate::interleavings) job: Option<i64>,
    pub(in crate::interleavings) head: i64,
    pub(in crate::interleavings) suspected: bool,
    pub(in crate::interleavings) due: bool,
}

impl Scene {
    pub(in crate::interleavings) async fn new() -> Self {
        let db = TestDatabase::create().await.unwrap();
        let me = db.connect().await.unwrap();
        let scene = Self {
            store: Store::default_schema(),
            options: QueueOptions::new(Q).retry(RetryPolicy::new(3)),
            me: me.into(),
            db,
        };
        scene.started_at("2000-01-01").await;
        scene
    }

    /// A session of its own. A statement in it that waits for a lock fails.
    pub(in crate::interleavings) async fn session(&self) -> PgConnection {
        let mut conn = self.db.connect().await.unwrap();
        run(&mut conn, "set lock_timeout = '5s'").await;
        conn
    }

    pub(in crate::interleavings) async fn end(self) {
        self.me.into_inner().close().await.unwrap();
        self.db.remove().await.unwrap();
    }

    // What the script does itself.

    pub(in crate::interleavings) async fn run(&self, sql: &str) -> u64 {
        run(&mut *self.me.lock().await, sql).await
    }

    pub(in crate::interleavings) async fn id(&self, sql: &str) -> i64 {
        number(&mut *self.me.lock().await, sql).await
    }

    pub(in crate::interleavings) async fn enqueue(&self, group: &str) -> i64 {
        enqueue(&mut *self.me.lock().await, &[group]).await[0]
    }

    pub(in crate::interleavings) async fn cancel(&self, job: i64) -> bool {
        let mut me = self.me.lock().await;
        self.store.cancel(&mut *me, job).await.unwrap().done
    }

    /// From here on the server was started at that time. By itself a scene's was long ago: the server of a test may be younger
    /// than what a script has written by hand.
    pub(in crate::interleavings) async fn started_at(&self, time: &str) {
        let sql = format!(
            "create or replace function seriatim.server_since() returns timestamptz language sql stable \
             as $$ select timestamptz '{time}' $$"
        );
        self.run(&sql).await;
    }

    /// Takes the group's lease away, or gives it one: `ready_at` in seconds from now.
    pub(in crate::interleavings) async fn lease(&self, group: &str, seconds: i32) {
        let sql = format!(
            "update seriatim.queue_group set ready_at = clock_timestamp() + interval '{seconds} s' \
             where group_id = '{group}'"
        );
        assert_eq!(self.run(&sql).await, 1, "no row of {group}");
    }

    pub(in crate::interleavings) async fn row(&self, group: &str) -> Option<GroupRow> {
        let sql = format!(
            "select job_id, head_id, suspect is not null, ready_at <= clock_timestamp() \
             from seriatim.queue_group where group_id = '{group}'"
        );
        let mut me = self.me.lock().await;
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_optional(&mut *me);
        let row = row.await.unwrap()?;
        Some(GroupRow { job: row.get(0), head: row.get(1), suspected: row.get(2), due: row.get(3) })
    }

    pub(in crate::interleavings) async fn status(&self, job: i64) -> String {
        let sql = format!("select status::text from seriatim.job where id = {job}");
        let mut me = self.me.lock().await;
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *me).await.unwrap()
    }

    pub(in crate::interleavings) async fn flagged(&self, job: i64) -> bool {
        let sql = format!("select flagged::int::int8 from seriatim.job where id = {job}");
        self.id(&sql).await == 1
    }

    /// Unfinished, and nothing would ever come to it: no flag and no row.
    pub(in crate::interleavings) async fn is_stranded(&self, job: i64) -> bool {
        let sql = format!(
            "select count(*) from seriatim.job j where id = {job} and status in ('queued', 'started') \
             and not exists (select from seriatim.job f where f.group_id = j.group_id and f.flagged) \
             and not exists (select from seriatim.queue_group g where g.group_id = j.group_id)"
        );
        self.id(&sql).await == 1
    }

    /// Whether the sweep finds something to repair, which it then does.
    pub(in crate::interleavings) async fn rescue(&self, group: &str) -> bool {
        let mut me = self.me.lock().await;
        self.store.rescue(&mut me, Q, group).await.unwrap()
    }

    // Claims.

    /// A whole claim, adoption included. Leases are made long afterwards, so that a slow script loses none.
    pub(in crate::interleavings) async fn claim(
        &self,
        conn: &mut PgConnection,
        slots: usize,
    ) -> Vec<Claim> {
        let claimed = crate::worker::claim_steps::claim(
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

    /// The last step of a claim: write what the looks say, and commit.
    pub(in crate::interleavings) async fn write(
        &self,
        conn: &mut PgConnection,
        turns: &[LockedGroup],
        looks: &std::collections::HashMap<String, HeadSnapshot>,
    ) -> Vec<Claim> {
        let plans = plans(turns, looks);
        let started = self.store.start(conn, Q, &plans, TERMS).await.unwrap();
        self.store.defer(conn, Q, &plans).await.unwrap();
        commit(conn).await;
        started
    }

    /// Take, look and write, in the transaction that is open.
    pub(in crate::interleavings) async fn take_and_write(
        &self,
        conn: &mut PgConnection,
    ) -> Vec<Claim> {
        let turns = self.store.take_turns(conn, Q, 10).await.unwrap();
        let looks = self.store.read_heads(conn, Q, &turns, TERMS).await.unwrap();
        self.write(conn, &turns, &looks).await
    }

    /// Becomes the adopter and adopts, in a transaction that stays open.
    pub(in crate::interleavings) async fn adopt(&self, conn: &mut PgConnection) -> usize {
        begin(conn).await;
        assert!(self.store.peek(conn, Q).await.unwrap().adopter);
        self.store.adopt(conn, Q, 128).await.unwrap().groups
    }

    // Holds and settles.

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

    /// Runs everything there is with one worker; the ids in the order of their runs. Fails if something stays.
    pub(in crate::interleavings) async fn drain(&self) -> Vec<i64> {
        let mut conn = self.session().await;
        let mut ran = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        let left = "select (select count(*) from seriatim.job where status in ('queued', 'started') or flagged) \
                    + (select count(*) from seriatim.queue_group)";
        while self.id(left).await > 0 {
            for claim in self.claim(&mut conn, 10).await {
                self.run_job(&mut conn, &claim).await;
                ran.push(claim.job);
            }
            assert!(Instant::now() < deadline, "left over; ran {ran:?}");
        }
        conn.close().await.unwrap();
        ran
    }

    // Gates: a session named in the gate stops inside its statement until the script lets it go on.

    /// From now on, a session of that application name stops in a trigger of `table` at `event`.
    pub(in crate::interleavings) async fn gate(&self, application: &str, event: &str, table: &str) {
        self.run(&format!(
            "create or replace function gate() returns trigger language plpgsql as $$ begin \
               if current_setting('application_name') = '{application}' then perform pass_gate(); end if; \
               return case when tg_op = 'DELETE' then old else new end; end $$"
        ))
        .await;
        self.run(&format!(
            "create trigger gate before {event} on seriatim.{table} for each row execute function gate()"
        ))
        .await;
        self.close_gate().await;
    }

    /// Makes `pass_gate()`, for statements that are written in a test, and closes it.
    pub(in crate::interleavings) async fn close_gate(&self) {
        self.run(&format!(
            "create or replace function pass_gate() returns boolean language plpgsql as $$ begin \
               perform set_config('lock_timeout', '20s', true); perform pg_advisory_lock({GATE}); return pg_advisory_unlock({GATE}); end $$"
        ))
        .await;
        self.run(&format!("select pg_advisory_lock({GATE})")).await;
    }

    pub(in crate::interleavings) async fn open_gate(&self) {
        self.run(&format!("select pg_advisory_unlock({GATE})")).await;
    }

    pub(in crate::interleavings) async fn until_gone(&self, pid: i32) {
        let sql = format!("select count(*) from pg_stat_activity where pid = {pid}");
        let deadline = Instant::now() + PATIENCE;
        while self.id(&sql).await > 0 {
            assert!(Instant::now() < deadline, "{pid} is still there");
            // The database has no event for this.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until `pid` waits for a lock of that type ("advisory" is the gate).
    pub(in crate::interleavings) async fn until_waits(&self, pid: i32, event: &str) {
        let sql = format!(
            "select count(*) from pg_stat_activity where pid = {pid} and wait_event_type = 'Lock' \
             and wait_event = '{event}'"
        );
        let deadline = Instant::now() + PATIENCE;
        while self.id(&sql).await == 0 {
            assert!(Instant::now() < deadline, "{pid} does not wait for {event} lock");
            // The database has no event for this.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

pub(in crate::interleavings) async fn run(conn: &mut PgConnection, sql: &str) -> u64 {
    let done = sqlx::query(AssertSqlSafe(sql.to_owned())).execute(conn).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}")).rows_affected()
}

pub(in crate::interleavings) async fn number(conn: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(conn)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

pub(in crate::interleavings) async fn pid(conn: &mut PgConnection) -> i32 {
    sqlx::query_scalar("select pg_backend_pid()").fetch_one(conn).await.unwrap()
}

/// Enqueues one statement's jobs, a job for each group named.
pub(in crate::interleavings) async fn enqueue(
    conn: &mut PgConnection,
    groups: &[&str],
) -> Vec<i64> {
    let jobs = groups.iter().map(|group| NewJob::new(Q, &1).group(*group));
    let client = Client::default().notify(false);
    let enqueued = client.enqueue_many(conn, jobs).await.unwrap();
    enqueued.iter().map(|job| job.id()).collect()
}

/// As the library begins a short transaction, but it may be slow between its statements: a script is.
pub(in crate::interleavings) async fn begin(conn: &mut PgConnection) {
    begin_short(conn).await.unwrap();
    run(conn, "set local idle_in_transaction_session_timeout = '60s'").await;
    run(conn, "set local statement_timeout = '60s'").await;
    run(conn, "set local lock_timeout = '5s'").await;
}

pub(in crate::interleavings) async fn commit(conn: &mut PgConnection) {
    PgTransactionManager::commit(conn).await.unwrap();
}

pub(in crate::interleavings) async fn rollback(conn: &mut PgConnection) {
    PgTransactionManager::rollback(conn).await.unwrap();
}

pub(in crate::interleavings) fn plans(
    turns: &[LockedGroup],
    looks: &std::collections::HashMap<String, HeadSnapshot>,
) -> Vec<GroupPlan> {
    let plan = |turn: &LockedGroup| GroupPlan {
        behind: Vec::new(),
        group: turn.group.clone(),
        plan: group_plan::plan(turn, &looks[&turn.group]),
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
    Outcome::Failed { failure: failure(), then: crate::job::queue_options::OutOfAttempts::Continue }
}

pub(in crate::interleavings) fn retried(delay: Duration) -> Outcome {
    Outcome::Retried { failure: failure(), delay }
}
