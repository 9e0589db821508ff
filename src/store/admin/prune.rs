//! Maintenance: retention, and the sweep for jobs that nothing would wake.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::job::job::JobStatus;
use crate::job::maintained::Maintained;
use crate::job::queue_options::QueueOptions;
use crate::store::builder::{PG, render, select, sql};
use crate::store::index_terms::unfinished;
use crate::store::names::Names;
use crate::store::session::{BEGIN, PINNED_PLANS};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    TIDY = |names| names.sql("select t.more from {tidy}() t");
    MAINTENANCE_LOCK = |_| "select pg_try_advisory_xact_lock(hashtextextended($1, 0))".to_owned();
    PRUNE = |names| names.sql("select {prune_jobs}($1, $2::text::{job_status}, $3, $4)");
    SETTLE_REQUESTS = |names| names.sql("select {settle_requests}()");
    NOTE_RETENTION = |names| names.sql("select {note_retention}($1, $2)");
    MAINTAIN = |names| names.sql(
        "select m.deleted, m.cancelled, m.moved, m.scheduled, m.halts_ended, m.batches_ended, m.repaired, m.more
        from {maintain}() m",
    );
    NEXT_GROUP = groups;
    RESCUE = |names| names.sql("select {rescue}($1, $2)");
    WAKE_STRANDED = |names| names.sql("select w.stranded, w.last_key from {wake_stranded}($1, $2) w");
    FORGET_PAUSES = |names| names.sql("select p.queue, p.group_id from {forget_pauses}($1, $2, $3) p");
    FORGET_EXPIRED = |names| names.sql("select {forget_expired}($1)");
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
        let prune = self.query(&PRUNE).bind(queue).bind(status.as_str());
        let prune = prune.bind(age.as_secs_f64()).bind(batch).fetch_one(conn).await?;
        prune.try_get(0).map(i64::unsigned_abs)
    }

    /// Notes how long the ended jobs of a queue stay, for maintenance by other processes.
    pub(crate) async fn note_retention(
        &self,
        conn: &mut PgConnection,
        queue: &QueueOptions,
    ) -> Result<(), sqlx::Error> {
        let kept = &queue.kept_ms()[..];
        let note = self.query(&NOTE_RETENTION).bind(queue.name()).bind(kept);
        note.execute(conn).await.map(drop)
    }

    /// Runs maintenance for all queues once, and returns what it did.
    pub(crate) async fn maintain(
        &self,
        conn: &mut PgConnection,
    ) -> Result<(Maintained, bool), sqlx::Error> {
        let row = self.query(&MAINTAIN).fetch_one(conn).await?;
        let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
        let maintained = Maintained {
            deleted: count(0)?,
            cancelled: count(1)?,
            moved: count(2)?,
            scheduled: count(3)?,
            halts_ended: count(4)?,
            batches_ended: count(5)?,
            repaired: count(6)?,
        };
        Ok((maintained, row.try_get(7)?))
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
        let settled = self.query(&SETTLE_REQUESTS).fetch_one(conn).await?;
        settled.try_get(0).map(i64::unsigned_abs)
    }

    /// Deletes up to `batch` deduplication ids whose window is over, and as many old receive
    /// attempts. Returns the larger number.
    pub(crate) async fn forget_expired(
        &self,
        conn: &mut PgConnection,
        batch: i64,
    ) -> Result<u64, sqlx::Error> {
        let forgot = self.query(&FORGET_EXPIRED).bind(batch).fetch_one(conn).await?;
        forgot.try_get(0).map(i64::unsigned_abs)
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
        self.query(&RESCUE).bind(queue).bind(group).fetch_one(conn).await?.try_get(0)
    }
}
