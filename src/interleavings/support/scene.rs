//! A script's database, the session of the script itself, and named probes of the rows.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tokio::time::Instant;

use crate::interleavings::support::session::{Q, enqueue, number, run};
use crate::store::{Acting, ClaimOptions, Store};
use crate::testing::TestDatabase;
use crate::{QueueOptions, RetryPolicy};

/// Limit of the wait for an event, on a machine under load.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The tables that scripts write to.
const TABLES: [&str; 11] = [
    "job",
    "unique_key",
    "queue_group",
    "queue",
    "group_setting",
    "batch",
    "batch_end",
    "batch_due",
    "freed_slot",
    "cancel_request",
    "move_task",
];

/// A database with the script's own session on it.
pub(crate) struct Scene {
    pub(crate) db: TestDatabase,
    pub(crate) store: Arc<Store>,
    pub(crate) options: QueueOptions,
    /// Maximum number of a group's jobs in one turn.
    pub(crate) jobs_per_turn: usize,
    me: tokio::sync::Mutex<PgConnection>,
}

/// Columns of a group's row that scripts read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupRow {
    pub(crate) job: Option<i64>,
    pub(crate) head: i64,
    pub(crate) suspected: bool,
    pub(crate) due: bool,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        let db = TestDatabase::create().await.unwrap();
        let me = db.connect().await.unwrap();
        let scene = Self {
            store: Store::default_schema(),
            options: QueueOptions::new(Q).retry(RetryPolicy::new(3)),
            jobs_per_turn: 1,
            me: me.into(),
            db,
        };
        scene.started_at("2000-01-01").await;
        scene
    }

    /// Opens a session. A statement in it that waits long for a lock fails.
    pub(crate) async fn session(&self) -> PgConnection {
        let mut conn = self.db.connect().await.unwrap();
        run(&mut conn, "set lock_timeout = '5s'").await;
        conn
    }

    /// Deletes what a script has left, for the next one. No session may have rows locked.
    pub(crate) async fn clear(&self) {
        let deletes = TABLES.map(|table| format!("delete from seriatim.{table}; ")).concat();
        let clear = format!("begin; set local lock_timeout = '5s'; {deletes}commit");
        let mut me = self.me.lock().await;
        sqlx::raw_sql(AssertSqlSafe(clear)).execute(&mut *me).await.unwrap();
    }

    /// Ends the sessions and drops the database. A server that finds a session as it drops a
    /// database would look again 100 ms later.
    pub(crate) async fn end(self) {
        let mut me = self.me.into_inner();
        let left = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                    where datname = current_database() and usename = current_user \
                    and pid <> pg_backend_pid() and backend_type = 'client backend'";
        let deadline = Instant::now() + PATIENCE;
        while number(&mut me, left).await > 0 && Instant::now() < deadline {
            // The database has no event for this.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        me.close().await.unwrap();
        self.db.remove().await.unwrap();
    }

    pub(crate) async fn run(&self, sql: &str) -> u64 {
        run(&mut *self.me.lock().await, sql).await
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        number(&mut *self.me.lock().await, sql).await
    }

    pub(crate) async fn text(&self, sql: &str) -> String {
        let mut me = self.me.lock().await;
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut *me).await.unwrap()
    }

    pub(crate) async fn enqueue(&self, group: &str) -> i64 {
        enqueue(&mut *self.me.lock().await, &[group]).await[0]
    }

    pub(crate) async fn cancel(&self, job: i64) -> bool {
        let mut me = self.me.lock().await;
        self.store.cancel(&mut *me, job, Acting::default()).await.unwrap().done
    }

    /// Sets the start time of the server, as the functions see it. A new scene's is long ago: a
    /// test's server may be younger than a time that its script writes.
    pub(crate) async fn started_at(&self, time: &str) {
        let sql = format!(
            "create or replace function seriatim.server_since() returns timestamptz language sql stable \
             as $$ select timestamptz '{time}' $$"
        );
        self.run(&sql).await;
    }

    /// Sets the end of the group's lease, or its next time: `ready_at` in seconds from now.
    pub(crate) async fn lease(&self, group: &str, seconds: i32) {
        let sql = format!(
            "update seriatim.queue_group set ready_at = clock_timestamp() + interval '{seconds} s' \
             where queue = '{Q}' and group_id = '{group}'"
        );
        assert_eq!(self.run(&sql).await, 1, "no row of {group}");
    }

    /// The options of this scene's claims.
    pub(crate) fn claim_options(&self) -> ClaimOptions {
        let jobs_per_turn = self.jobs_per_turn;
        ClaimOptions { jobs_per_turn, ..ClaimOptions::new(&self.options, None) }
    }

    pub(crate) async fn row(&self, group: &str) -> Option<GroupRow> {
        let sql = format!(
            "select job_id, head_id, suspect is not null, ready_at <= clock_timestamp() \
             from seriatim.queue_group where queue = '{Q}' and group_id = '{group}'"
        );
        let mut me = self.me.lock().await;
        let row = sqlx::query(AssertSqlSafe(sql)).fetch_optional(&mut *me);
        let row = row.await.unwrap()?;
        Some(GroupRow { job: row.get(0), head: row.get(1), suspected: row.get(2), due: row.get(3) })
    }

    pub(crate) async fn status(&self, job: i64) -> String {
        let sql = format!(
            "select seriatim.job_state(status, queue, group_id, id)::text from seriatim.job where id = {job}"
        );
        self.text(&sql).await
    }

    /// Returns whether a claim names the job, whatever queue the job is in.
    pub(crate) async fn is_claimed(&self, job: i64) -> bool {
        let sql = format!(
            "select count(*) from seriatim.queue_group g where {job} = any (coalesce(g.batch, array[g.job_id]))"
        );
        self.number(&sql).await == 1
    }

    pub(crate) async fn flagged(&self, job: i64) -> bool {
        let sql = format!("select flagged::int::int8 from seriatim.job where id = {job}");
        self.number(&sql).await == 1
    }

    /// Returns whether the job is unfinished and no flag and no row would ever start it.
    pub(crate) async fn is_stranded(&self, job: i64) -> bool {
        let sql = format!(
            "select count(*) from seriatim.job j where id = {job} and status in ('queued', 'started') \
             and not exists (select from seriatim.job f where f.group_id = j.group_id and f.flagged) \
             and not exists (select from seriatim.queue_group g where g.group_id = j.group_id)"
        );
        self.number(&sql).await == 1
    }

    /// Runs the sweep for gated groups; returns for how many limit keys nothing would have woken
    /// any.
    pub(crate) async fn wake_stranded(&self) -> u64 {
        self.number("select stranded from seriatim.wake_stranded('q')").await.unsigned_abs()
    }

    /// Runs the sweep for the group; returns whether it repaired something.
    pub(crate) async fn rescue(&self, group: &str) -> bool {
        self.number(&format!("select seriatim.rescue('q', '{group}')::integer::int8")).await == 1
    }

    /// Runs all jobs with one worker and returns the ids in the order of their runs. Fails if
    /// something stays.
    pub(crate) async fn drain(&self) -> Vec<i64> {
        let mut conn = self.session().await;
        let mut ran = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        let left = format!(
            "select (select count(*) from seriatim.job where queue = '{Q}' and (status in ('queued', 'started') or flagged)) \
               + (select count(*) from seriatim.queue_group where queue = '{Q}')"
        );
        while self.number(&left).await > 0 {
            for claim in self.claim(&mut conn, 10).await {
                self.run_job(&mut conn, &claim).await;
                ran.push(claim.job);
            }
            assert!(Instant::now() < deadline, "left over; ran {ran:?}");
        }
        conn.close().await.unwrap();
        ran
    }
}
