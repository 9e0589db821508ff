//! Maintenance: retention, and the sweep for jobs that nothing would wake.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::job::maintained::Maintained;
use crate::job::queue_options::QueueOptions;
use crate::store::session::{BEGIN, PINNED_PLANS};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    TIDY = |names| names.sql("select t.more from {tidy}() t");
    MAINTENANCE_LOCK = |_| "select pg_try_advisory_xact_lock(hashtextextended($1, 0))".to_owned();
    SETTLE_REQUESTS = |names| names.sql("select {settle_requests}()");
    MAINTAIN_QUEUES = |names| names.sql(
        "select q.name, m.deleted, m.repaired, m.more, m.failed
        from (select clock_timestamp() + interval '0.25 s' as until_at) e,
          unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) q(name, succeeded, failed, cancelled),
          lateral {maintain_queue}(q.name, array[q.succeeded, q.failed, q.cancelled], e.until_at) m",
    );
    MAINTAIN = |names| names.sql(
        "select m.deleted, m.cancelled, m.moved, m.scheduled, m.halts_ended, m.batches_ended, m.repaired, m.more
        from {maintain}() m",
    );
    FORGET_PAUSES = |names| names.sql("select p.queue, p.group_id from {forget_pauses}($1, $2, $3) p");
    FORGET_EXPIRED = |names| names.sql("select {forget_expired}($1)");
}

/// The result of a round of maintenance for a queue.
#[derive(Debug)]
pub(crate) struct QueueRound {
    pub(crate) queue: String,
    /// The number of finished jobs that retention deleted.
    pub(crate) deleted: u64,
    /// The number of groups and limit keys that nothing would have woken.
    pub(crate) repaired: u64,
    /// Whether there is more to do at once.
    pub(crate) more: bool,
    /// Why it failed: nothing was done for the queue.
    pub(crate) failed: Option<String>,
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

    /// Runs a round of maintenance for each of the queues, for a quarter of a second.
    pub(crate) async fn maintain_queues(
        &self,
        conn: &mut PgConnection,
        queues: &[&QueueOptions],
    ) -> Result<Vec<QueueRound>, sqlx::Error> {
        let names: Vec<&str> = queues.iter().map(|queue| queue.name()).collect();
        let kept = |n: usize| queues.iter().map(|queue| queue.kept_ms()[n]).collect::<Vec<_>>();
        let maintain = self.query(&MAINTAIN_QUEUES).bind(names);
        let maintain = maintain.bind(kept(0)).bind(kept(1)).bind(kept(2));
        let round = |row: PgRow| {
            Ok(QueueRound {
                queue: row.try_get("name")?,
                deleted: row.try_get::<i64, _>("deleted")?.unsigned_abs(),
                repaired: row.try_get::<i64, _>("repaired")?.unsigned_abs(),
                more: row.try_get("more")?,
                failed: row.try_get("failed")?,
            })
        };
        maintain.fetch_all(conn).await?.into_iter().map(round).collect()
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

    /// Deletes up to `batch` deduplication ids whose window is over, as many old receive attempts,
    /// and unique keys of ended jobs. Returns the largest number.
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
}
