//! Maintenance: retention, and the sweep for jobs that nothing would wake.

use std::time::Duration;

use sea_query::{
    DeleteStatement, Expr, LockBehavior, LockType, Order, Query, TableRef, UpdateStatement,
};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::job::job::JobStatus;
use crate::store::builder::{PG, cte, limit, render, select, sql, sub, with};
use crate::store::fragments::{CANCELLED, assignments, paused};
use crate::store::index_terms::{in_group, in_order, status_in, unfinished};
use crate::store::names::Names;
use crate::store::session::{BEGIN, PINNED_PLANS};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    TIDY = |names| names.sql("select t.more from {tidy}() t");
    MAINTENANCE_LOCK = |_| "select pg_try_advisory_xact_lock(hashtextextended($1, 0))".to_owned();
    PRUNE_SUCCEEDED = |names| prune(names, JobStatus::Succeeded);
    PRUNE_FAILED = |names| prune(names, JobStatus::Failed);
    PRUNE_CANCELLED = |names| prune(names, JobStatus::Cancelled);
    /// Locks the jobs of requests that came while their rows were locked, and that no handler will
    /// see: they are queued or parked.
    LOCK_REQUESTED = |names| names.sql(
        "select j.id from {cancel_request} r join {job} j on j.id = any (array[r.job_id])
        where j.status in ('queued', 'parked')
        for no key update of j skip locked",
    );
    /// Cancels those of them that no claim names.
    CANCEL_REQUESTED = |names| names.sql_with(
        "update {job} j set {cancelled}, flagged = j.group_id is not null where j.id = any ({unclaimed}($1))
        returning case when j.batch_id is not null
          then {mark_end}(j.batch_id, j.id, j.queue, j.group_id, j.status, null) end",
        &[("cancelled", &assignments(&CANCELLED))],
    );
    FORGET_REQUESTS = forget_requests;
    NEXT_GROUP = groups;
    STRANDED = stranded;
    FLAG = flag;
    WAKE_STRANDED = |names| names.sql("select w.stranded, w.last_key from {wake_stranded}($1, $2) w");
    FORGET_PAUSES = |names| names.sql("select p.queue, p.group_id from {forget_pauses}($1, $2, $3) p");
    EXPIRED_DEDUP = |names| expired(names.dedup());
    EXPIRED_RECEIVE = |names| expired(names.receive_attempt());
}

/// Deletes a batch of finished jobs that are old enough. Never a flagged one: its group is still to
/// be adopted. Nor the job that halted a group, or that others are parked with: an operator needs
/// it to decide.
fn prune(names: &Names, status: JobStatus) -> String {
    let halting = select()
        .expr(sql("1"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = j.queue and g.group_id = j.group_id and g.halt_job_id = j.id"))
        .to_owned();
    let parked = select()
        .expr(sql("1"))
        .from_as(names.job(), "u")
        .and_where(sql("u.queue = j.queue and u.group_id = j.group_id and u.parked_with = j.id"))
        .and_where(sql("u.status = 'parked'"))
        .to_owned();
    let old = select()
        .column("id")
        .from_as(names.job(), "j")
        .and_where(sql(format!("j.queue = ?1 and j.status = '{status}'")))
        .and_where(sql(
            "j.finished_at < clock_timestamp() - make_interval(secs => ?2) and not j.flagged",
        ))
        .and_where(Expr::not_exists(halting))
        .and_where(Expr::not_exists(parked))
        .order_by("finished_at", Order::Asc)
        .limit(limit(3))
        .lock_with_tables_behavior(LockType::Update, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let delete = DeleteStatement::new()
        .from_table(names.job())
        .and_where(sql("id = any (array(select id from old))"))
        .to_owned();
    with([cte("old", old)], delete)
}

/// Deletes requests whose job has ended or is gone.
fn forget_requests(names: &Names) -> String {
    let open = select()
        .expr(sql("1"))
        .from_as(names.job(), "j")
        .and_where(sql("j.id = r.job_id"))
        .and_where(sql(status_in("j.", "'queued', 'started'")))
        .to_owned();
    let done = select()
        .column("ctid")
        .from_as(names.cancel_request(), "r")
        .and_where(Expr::not_exists(open))
        .lock_with_tables_behavior(LockType::Update, ["r"], LockBehavior::SkipLocked)
        .to_owned();
    let delete = DeleteStatement::new()
        .from_table(names.cancel_request())
        .and_where(sql("ctid in (select ctid from done)"))
        .to_owned();
    with([cte("done", done)], delete)
}

/// The next group with unfinished jobs behind a name: one index probe, whatever the backlog.
fn groups(names: &Names) -> String {
    let query = select()
        .expr(sql("min(j.group_id)"))
        .from_as(names.job(), "j")
        .and_where(sql("j.queue = ?1 and j.group_id > ?2"))
        .and_where(unfinished("j"))
        .to_owned();
    render(query.build(PG))
}

/// The lowest unfinished job of a group, if nothing would wake it: no flag at or below it, no row
/// that would come to it, and no pause, whose end flags it. One snapshot: in each, a flag or a row
/// covers every job that the library wrote. A group that is gated is left to `wake_stranded`.
fn stranded(names: &Names) -> String {
    let mut lowest = select()
        .columns([("j", "id"), ("j", "run_at")])
        .from_as(names.job(), "j")
        .and_where(in_group("j", "?1", "?2", None))
        .and_where(unfinished("j"))
        .limit(1)
        .to_owned();
    in_order(&mut lowest, "j", &Order::Asc);
    let mut flag = select()
        .column(("f", "id"))
        .from_as(names.job(), "f")
        .and_where(in_group("f", "?1", "?2", None))
        // One that comes up later than its job is due is none.
        .and_where(sql("f.flagged and (f.finished_at is not null or f.turn_at <= f.run_at)"))
        .limit(1)
        .to_owned();
    in_order(&mut flag, "f", &Order::Asc);
    // A free row must come up by the time its head may start; a claimed one does by its lease.
    let covered = select()
        .expr(sql("1"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = ?1 and g.group_id = ?2"))
        .and_where(sql(
            "(g.halted_at is not null or g.claim is not null or g.head_id <= lowest.id and (g.gated_by is not null \
             or g.ready_at <= greatest(lowest.run_at, g.spaced_until, clock_timestamp()) + interval '5 s'))",
        ))
        .to_owned();
    let pause = select()
        .expr(sql("1"))
        .from_as(names.group_setting(), "s")
        .and_where(sql(format!("s.queue = ?1 and s.group_id = ?2 and {}", paused("s"))))
        .to_owned();
    let query = select()
        .column(("lowest", "id"))
        .from("lowest")
        .and_where(Expr::cust_with_expr("coalesce($1 > lowest.id, true)", sub(flag)))
        .and_where(Expr::not_exists(covered))
        .and_where(Expr::not_exists(pause))
        .to_owned();
    with([cte("lowest", lowest)], query)
}

/// Flags a stranded job for the next adopter.
fn flag(names: &Names) -> String {
    let query = UpdateStatement::new()
        .table(names.job())
        .values([("flagged", sql("true")), ("turn_at", sql("least(turn_at, run_at)"))])
        .and_where(sql("id = ?1 and group_id is not null and (not flagged or turn_at > run_at)"))
        .and_where(sql(status_in("", "'queued', 'started'")))
        .returning(Query::returning().columns(["id"]))
        .to_owned();
    render(query.build(PG))
}

/// Deletes a batch of rows whose time is over. One that a transaction is renewing stays.
fn expired(table: TableRef) -> String {
    let over = select()
        .column("ctid")
        .from_as(table.clone(), "t")
        .and_where(sql("t.expires_at <= clock_timestamp()"))
        .order_by("expires_at", Order::Asc)
        .limit(limit(1))
        .lock_with_tables_behavior(LockType::Update, ["t"], LockBehavior::SkipLocked)
        .to_owned();
    let delete = DeleteStatement::new()
        .from_table(table)
        .and_where(sql("ctid in (select ctid from over_now)"))
        .to_owned();
    with([cte("over_now", over)], delete)
}

impl Store {
    /// Returns whether this transaction is the one that does maintenance.
    pub(crate) async fn lock_maintenance(
        &self,
        conn: &mut PgConnection,
    ) -> Result<bool, sqlx::Error> {
        let lock = format!("seriatim maintenance {}", self.names.schema());
        self.query(&MAINTENANCE_LOCK).bind(lock).fetch_one(conn).await?.try_get(0)
    }

    /// Deletes up to `batch` finished jobs that are older than `age`; returns how many.
    pub(crate) async fn prune(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        status: JobStatus,
        age: Duration,
        batch: i64,
    ) -> Result<u64, sqlx::Error> {
        let prune = match status {
            JobStatus::Succeeded => &PRUNE_SUCCEEDED,
            JobStatus::Failed => &PRUNE_FAILED,
            JobStatus::Cancelled => &PRUNE_CANCELLED,
            _ => return Ok(0),
        };
        let prune = self.query(prune).bind(queue).bind(age.as_secs_f64()).bind(batch);
        Ok(prune.execute(conn).await?.rows_affected())
    }

    /// Returns whether there are requests, groups to park or whose halt is over, move tasks, or
    /// flags to tidy. One message, a transaction of its own.
    pub(crate) async fn awaits_maintenance(
        &self,
        conn: &mut PgConnection,
    ) -> Result<bool, sqlx::Error> {
        let text = format!(
            "{BEGIN}; {PINNED_PLANS}; select {}(); commit",
            self.names.quoted("awaits_maintenance")
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
    }

    /// Clears flags that call for nothing, of queues in which receives find more than they can
    /// read. Returns whether there is more to do at once.
    pub(crate) async fn tidy(&self, conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
        self.query(&TIDY).fetch_one(conn).await?.try_get(0)
    }

    /// Carries out the requests for queued and parked jobs, and deletes those that are done.
    /// Returns how many jobs it cancelled.
    pub(crate) async fn settle_requests(
        &self,
        conn: &mut PgConnection,
    ) -> Result<u64, sqlx::Error> {
        let locked = self.query(&LOCK_REQUESTED).fetch_all(&mut *conn).await?;
        let jobs: Vec<i64> = locked.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let cancelled = self.query(&CANCEL_REQUESTED).bind(jobs).execute(&mut *conn).await?;
        self.query(&FORGET_REQUESTS).execute(conn).await?;
        Ok(cancelled.rows_affected())
    }

    /// Deletes up to `batch` deduplication ids whose window is over, and as many old receive
    /// attempts. Returns the larger number.
    pub(crate) async fn forget_expired(
        &self,
        conn: &mut PgConnection,
        batch: i64,
    ) -> Result<u64, sqlx::Error> {
        let mut larger = 0;
        for expired in [&EXPIRED_DEDUP, &EXPIRED_RECEIVE] {
            let deleted = self.query(expired).bind(batch).execute(&mut *conn).await?;
            larger = larger.max(deleted.rows_affected());
        }
        Ok(larger)
    }

    /// Deletes settings of groups whose pauses have ended, of `batch` settings behind a queue and a
    /// group. Returns the last that it looked at; `None`: there is no other.
    pub(crate) async fn forget_pauses(
        &self,
        conn: &mut PgConnection,
        (queue, group): (&str, &str),
        batch: i64,
    ) -> Result<Option<(String, String)>, sqlx::Error> {
        let forget = self.query(&FORGET_PAUSES).bind(queue).bind(group).bind(batch);
        let last = forget.fetch_optional(conn).await?;
        last.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    }

    /// Returns the next group with unfinished jobs behind `after`.
    pub(crate) async fn next_group(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        after: &str,
    ) -> Result<Option<String>, sqlx::Error> {
        self.query(&NEXT_GROUP).bind(queue).bind(after).fetch_one(conn).await?.try_get(0)
    }

    /// Wakes gated groups of a queue whose limit keys have slots left that nothing speaks for.
    /// Returns for how many keys nothing would have woken any, and the last key that it looked at;
    /// `None`: it has looked at all keys after `after`.
    pub(crate) async fn wake_stranded(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        after: &str,
    ) -> Result<(u64, Option<String>), sqlx::Error> {
        let wake = self.query(&WAKE_STRANDED).bind(queue).bind(after);
        let row = wake.fetch_one(conn).await?;
        Ok((row.try_get::<i64, _>(0)?.unsigned_abs(), row.try_get(1)?))
    }

    /// Flags the group's next job if nothing would wake it; returns whether it did.
    pub(crate) async fn rescue(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
    ) -> Result<bool, sqlx::Error> {
        let stranded = self.query(&STRANDED).bind(queue).bind(group);
        let Some(row) = stranded.fetch_optional(&mut *conn).await? else {
            return Ok(false);
        };
        let job: i64 = row.try_get(0)?;
        Ok(self.query(&FLAG).bind(job).fetch_optional(conn).await?.is_some())
    }
}
