//! Park: a failed job and the jobs behind it step aside, so that their group continues. Later they
//! are redriven or discarded.
//!
//! A large group is parked in batches, while it is halted with `park_to`: none of its jobs runs
//! before the last is parked.

use sea_query::{Expr, LockBehavior, LockType, Order, UpdateStatement};
use sqlx::{PgConnection, PgExecutor, Row};

use crate::job::counts::ParkedUnit;
use crate::store::admin::control::Acting;
use crate::store::admin::redrive::RedriveReport;
use crate::store::builder::{PG, limit, render, select, sql};
use crate::store::fragments::{UNHALTED, values};
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    BATCH_JOBS = |names| names.sql("select b.rest, b.moved from {park_batch}($1, $2, $3, $4) b");
    DUE = due;
    /// The failed job becomes the one that others are parked with; and whether it is there. It is
    /// skipped if another transaction has it: a retry or a skip has, and waits for the group's row.
    BEGIN = |names| names.sql(
        "with locked as materialized (
            select j.id from {job} j where j.id = $1 and j.status = 'failed'
            for no key update skip locked),
          begun as (
            update {job} p set parked_with = p.id from locked l where p.id = l.id returning p.id)
        select exists (select from begun),
          exists (select from {job} j where j.id = $1 and j.status = 'failed')",
    );
    UNHALT = |names| set(names, values(&UNHALTED));
    KEEP_PARKING = keep_parking;
    REDRIVE = |names| names.sql(
        "select r.jobs, r.groups, r.overtaken, r.busy from {redrive_parked}($1, $2, $3, $4, $5) r",
    );
    DISCARD = |names| names.sql("select {discard_parked}($1, $2, $3, $4, $5)");
    UNITS = units;
}

/// How many groups one transaction of maintenance treats.
const GROUPS: i64 = 4;

/// The result of one batch.
#[derive(Debug, Clone, Copy, Default)]
struct ParkBatch {
    /// The last id that is left to park.
    rest: Option<i64>,
    /// Any were parked.
    moved: bool,
}

/// A group whose halt is over, or whose jobs are being parked. Its row is locked.
#[derive(Debug)]
struct Due {
    queue: String,
    group: String,
    job: Option<i64>,
    park: bool,
    park_to: Option<i64>,
}

/// Locks the rows of some halted groups whose time is over, or whose jobs are stepping aside. At
/// random, so that a large one does not keep others waiting.
fn due(names: &Names) -> String {
    let query = select()
        .columns(["queue", "group_id", "halt_job_id"])
        .expr(sql("coalesce(g.halt_then = 'park', false)"))
        .column("park_to")
        .from_as(names.queue_group(), "g")
        .and_where(sql("(g.halt_until is not null or g.park_to is not null)"))
        .and_where(sql("(g.halt_until <= clock_timestamp() or g.park_to is not null)"))
        .order_by_expr(sql("random()"), Order::Asc)
        .limit(limit(1))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    render(query.build(PG))
}

fn keep_parking(names: &Names) -> String {
    let values = [("park_to", "?3"), ("halt_until", "null"), ("halt_then", "null")];
    set(names, values.map(|(column, value)| (column, sql(value))).to_vec())
}

fn set(names: &Names, values: Vec<(&'static str, Expr)>) -> String {
    let query = UpdateStatement::new()
        .table(names.queue_group())
        .values(values)
        .and_where(sql("queue = ?1 and group_id = ?2 and halted_at is not null"))
        .to_owned();
    render(query.build(PG))
}

fn units(names: &Names) -> String {
    let parked = select()
        .columns(["group_id", "parked_with"])
        .expr_as(sql("count(*)"), "jobs")
        .from_as(names.job(), "j")
        .and_where(sql("j.queue = ?1 and j.parked_with is not null and j.status = 'parked'"))
        .group_by_columns(["group_id", "parked_with"])
        .to_owned();
    let query = select()
        .exprs(
            ["u.group_id", "u.parked_with", "f.finished_at", "f.error->>'message'", "u.jobs"]
                .map(sql),
        )
        .from_subquery(parked, "u")
        .join_as(sea_query::JoinType::LeftJoin, names.job(), "f", sql("f.id = u.parked_with"))
        .order_by(("u", "group_id"), Order::Asc)
        .order_by(("u", "parked_with"), Order::Asc)
        .to_owned();
    render(query.build(PG))
}

impl Store {
    /// Parks up to 1,000 jobs behind a failed one. The transaction must have the group's row.
    async fn park_batch(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
        failed: i64,
        to: Option<i64>,
    ) -> Result<ParkBatch, sqlx::Error> {
        let batch = self.query(&BATCH_JOBS).bind(queue).bind(group).bind(failed).bind(to);
        let row = batch.fetch_one(conn).await?;
        Ok(ParkBatch { rest: row.try_get(0)?, moved: row.try_get(1)? })
    }

    /// Treats some of the groups whose halt is over or whose jobs are being parked; returns whether
    /// any got further.
    pub(crate) async fn end_halts(&self, conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let rows = self.query(&DUE).bind(GROUPS).fetch_all(&mut *conn).await?;
        let mut got_on = false;
        for row in &rows {
            let due = Due {
                queue: row.try_get(0)?,
                group: row.try_get(1)?,
                job: row.try_get(2)?,
                park: row.try_get(3)?,
                park_to: row.try_get(4)?,
            };
            got_on |= self.end_halt(conn, &due).await?;
        }
        Ok(got_on)
    }

    async fn end_halt(&self, conn: &mut PgConnection, due: &Due) -> Result<bool, sqlx::Error> {
        let Due { queue, group, job, park, park_to } = due;
        let failed = match job {
            // If an operator deleted the failed job, there is nothing to park with.
            Some(job) if *park && park_to.is_none() => {
                let row = self.query(&BEGIN).bind(job).fetch_one(&mut *conn).await?;
                let (begun, is_there): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
                if is_there && !begun {
                    // A retry or a skip has it, and waits for the group's row.
                    return Ok(false);
                }
                begun.then_some(*job)
            }
            Some(job) if park_to.is_some() => Some(*job),
            _ => None,
        };
        let batch = match failed {
            Some(failed) => self.park_batch(conn, queue, group, failed, *park_to).await?,
            None => ParkBatch::default(),
        };
        let set = match batch.rest {
            Some(rest) => self.query(&KEEP_PARKING).bind(queue).bind(group).bind(rest),
            None => self.query(&UNHALT).bind(queue).bind(group),
        };
        set.execute(conn).await?;
        // Another transaction may have locked the rest: the next tick is soon enough.
        Ok(batch.moved || batch.rest.is_none())
    }

    pub(crate) async fn redrive_parked(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        job: Option<i64>,
        acting: Acting<'_>,
    ) -> Result<RedriveReport, sqlx::Error> {
        let redrive = self.query(&REDRIVE).bind(queue).bind(group).bind(job);
        let row = redrive.bind(acting.reason).bind(acting.actor).fetch_one(executor).await?;
        let count = |n: usize| row.try_get::<i64, _>(n).map(i64::unsigned_abs);
        Ok(RedriveReport {
            jobs: count(0)?,
            groups: count(1)?,
            overtaken: count(2)?,
            moved_back: 0,
            busy: row.try_get(3)?,
        })
    }

    /// Returns how many jobs were cancelled; `None` if another transaction has one of them.
    pub(crate) async fn discard_parked(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        job: Option<i64>,
        acting: Acting<'_>,
    ) -> Result<Option<u64>, sqlx::Error> {
        let discard = self.query(&DISCARD).bind(queue).bind(group).bind(job);
        let row = discard.bind(acting.reason).bind(acting.actor).fetch_one(executor).await?;
        Ok(row.try_get::<Option<i64>, _>(0)?.map(i64::unsigned_abs))
    }

    pub(crate) async fn parked_units(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<ParkedUnit>, sqlx::Error> {
        let rows = self.query(&UNITS).bind(queue).fetch_all(executor).await?;
        rows.iter()
            .map(|row| {
                Ok(ParkedUnit {
                    queue: queue.to_owned(),
                    group: row.try_get(0)?,
                    job: row.try_get(1)?,
                    since: row.try_get(2)?,
                    reason: row.try_get(3)?,
                    parked: row.try_get::<i64, _>(4)?.unsigned_abs(),
                })
            })
            .collect()
    }
}
