//! Park: a failed job and the jobs behind it step aside, so that their group continues. Later they
//! are redriven or discarded.
//!
//! A large group is parked in batches, while it is halted with `park_to`: none of its jobs runs
//! before the last is parked.

use sea_query::Order;
use sqlx::{PgConnection, PgExecutor, Row};

use crate::job::counts::ParkedUnit;
use crate::store::admin::control::Acting;
use crate::store::admin::redrive::RedriveReport;
use crate::store::builder::{PG, render, select, sql};
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    END_HALTS = |names| names.sql("select {end_halts}($1)");
    REDRIVE = |names| names.sql(
        "select r.jobs, r.groups, r.overtaken, r.busy from {redrive_parked}($1, $2, $3, $4, $5) r",
    );
    DISCARD = |names| names.sql("select {discard_parked}($1, $2, $3, $4, $5)");
    UNITS = units;
}

/// How many groups one transaction of maintenance treats.
const GROUPS: i32 = 4;

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
    /// Ends halts of some groups whose deadline has passed, or parks jobs of them; returns whether
    /// any got further.
    pub(crate) async fn end_halts(&self, conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let ended = self.query(&END_HALTS).bind(GROUPS).fetch_one(conn).await?;
        Ok(ended.try_get::<i32, _>(0)? > 0)
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
