//! Purge: cancels queued jobs of a queue or a group, in batches. Waits for no handler.

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::store::admin::control::Acting;
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    GROUPS = |names| names.sql(
        "select p.cancelled, p.last_group, p.last_id from {purge_groups}($1, $2, $3, $4, $5, $6, $7, $8) p",
    );
    UNGROUPED = |names| names.sql(
        "select p.cancelled, p.last_at, p.last_id from {purge_ungrouped}($1, $2, $3, $4, $5, $6, $7) p",
    );
    IN_FLIGHT = |names| names.sql("select p.cancelled, p.asked from {purge_in_flight}($1, $2, $3, $4, $5) p");
    FORGET_DEDUP_IDS = |names| names.sql("select {forget_dedup_ids}($1, $2, $3)");
    LEFT = |names| left(names, true);
    LEFT_IN_GROUP = |names| left(names, false);
}

/// How many jobs one batch cancels.
const BATCH: i32 = 1000;

/// The result of one batch, and the place behind which the next one begins; `None` after the last
/// batch. A place is a group and an id, or `turn_at` and an id for jobs without a group.
#[derive(Debug, Clone)]
pub(crate) struct Purge<T> {
    pub(crate) cancelled: u64,
    pub(crate) next: Option<(T, i64)>,
}

/// Returns the statement that counts the jobs a purge has left: running jobs, and locked queued
/// ones up to an id (argument 2). They are those of one group (argument 3), or of the whole queue.
fn left(names: &Names, whole: bool) -> String {
    let (of_jobs, of_groups, ungrouped) = if whole {
        let ungrouped = "union all select j.id, j.status = 'started' from {job} j
            where j.queue = $1 and j.group_id is null and j.status = 'queued'
            union all select j.id, true from {job} j
            where j.queue = $1 and j.group_id is null and j.status = 'started'";
        ("$3::text is null", "true", ungrouped)
    } else {
        ("j.group_id = $3", "g.group_id = $3", "")
    };
    let body = "
        with waiting as (
            select j.id, false as runs from {job} j
            where j.queue = $1 and j.group_id is not null and j.status in ('queued', 'started') and {of_jobs}
            {ungrouped}
        ), claimed as materialized (
            select u.id from {queue_group} g cross join lateral {unfinished}(g.job_id, g.batch) u
            where g.queue = $1 and g.job_id is not null and {of_groups}
        )
        select (select count(*) from waiting u where u.runs) + (select count(*) from claimed),
            (select count(*) from waiting u where not u.runs and u.id <= $2)
            - (select count(*) from claimed c where c.id <= $2)";
    let ungrouped = names.sql(ungrouped);
    let pieces = [("of_jobs", of_jobs), ("of_groups", of_groups), ("ungrouped", &*ungrouped)];
    names.sql_with(body, &pieces)
}

impl Store {
    /// Cancels a batch of the queued jobs of one group, or of all groups from `after` on.
    pub(crate) async fn purge_groups(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
        to: i64,
        after: &(String, i64),
        acting: Acting<'_>,
    ) -> Result<Purge<String>, sqlx::Error> {
        let purge = self.query(&GROUPS).bind(queue).bind(group).bind(to);
        let purge = purge.bind(&after.0).bind(after.1).bind(BATCH);
        let purge = purge.bind(acting.reason).bind(acting.actor);
        batch(&purge.fetch_one(conn).await?)
    }

    /// Cancels a batch of the queued jobs without a group, from `after` on.
    pub(crate) async fn purge_ungrouped(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        to: i64,
        after: &(Option<DateTime<Utc>>, i64),
        acting: Acting<'_>,
    ) -> Result<Purge<Option<DateTime<Utc>>>, sqlx::Error> {
        let purge = self.query(&UNGROUPED).bind(queue).bind(to).bind(after.0).bind(after.1);
        let purge = purge.bind(BATCH).bind(acting.reason).bind(acting.actor);
        let row = purge.fetch_one(conn).await?;
        let Purge { cancelled, next } = batch::<DateTime<Utc>>(&row)?;
        Ok(Purge { cancelled, next: next.map(|(turn_at, id)| (Some(turn_at), id)) })
    }

    /// Ends a batch of jobs in flight. Returns how many were cancelled, and how many processors
    /// were asked to cancel.
    pub(crate) async fn purge_in_flight(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        to: i64,
        acting: Acting<'_>,
    ) -> Result<(u64, u64), sqlx::Error> {
        let purge = self.query(&IN_FLIGHT).bind(queue).bind(to).bind(BATCH);
        let row = purge.bind(acting.reason).bind(acting.actor).fetch_one(conn).await?;
        let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
        Ok((count(0)?, count(1)?))
    }

    /// Forgets a batch of deduplication ids, of jobs up to an id that have ended. Returns how many.
    pub(crate) async fn forget_dedup_ids(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        to: i64,
    ) -> Result<u64, sqlx::Error> {
        let forget = self.query(&FORGET_DEDUP_IDS).bind(queue).bind(to).bind(BATCH);
        let row = forget.fetch_one(conn).await?;
        row.try_get::<i64, _>(0).map(i64::unsigned_abs)
    }

    /// Returns how many jobs run, and how many up to an id are still queued.
    pub(crate) async fn left(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
        to: i64,
    ) -> Result<(u64, u64), sqlx::Error> {
        let left = if group.is_some() { &LEFT_IN_GROUP } else { &LEFT };
        let row = self.query(left).bind(queue).bind(to).bind(group).fetch_one(conn).await?;
        let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
        Ok((count(0)?, count(1)?))
    }
}

fn batch<T>(row: &PgRow) -> Result<Purge<T>, sqlx::Error>
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    let cancelled = row.try_get::<i64, _>(0)?.unsigned_abs();
    let last: (Option<T>, Option<i64>) = (row.try_get(1)?, row.try_get(2)?);
    Ok(Purge { cancelled, next: last.0.zip(last.1) })
}
