//! The reads of a queue for users' tests.

use sea_query::{Expr, Order};
use sqlx::{PgExecutor, Row};

use crate::job::job::Job;
use crate::store::builder::{PG, render, select, sql};
use crate::store::index_terms::unfinished;
use crate::store::names::Names;
use crate::store::query::inspect::{job, jobs};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    ALL_JOBS = all;
    IDLE = idle;
}

fn all(names: &Names) -> String {
    let query =
        jobs(names).and_where(sql("j.queue = ?1")).order_by(("j", "id"), Order::Asc).to_owned();
    render(query.build(PG))
}

fn idle(names: &Names) -> String {
    let any = |which: Expr| {
        let any = select()
            .expr(sql("1"))
            .from_as(names.job(), "j")
            .and_where(sql("j.queue = ?1"))
            .and_where(which)
            .to_owned();
        Expr::exists(any)
    };
    let row = select()
        .expr(sql("1"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = ?1 and g.halted_at is null"))
        .to_owned();
    let query = select()
        .expr(Expr::cust_with_exprs(
            "not ($1 or $2 or $3 or $4)",
            [
                any(unfinished("j")),
                any(sql("j.group_id is null and j.status = 'queued'")),
                any(sql("j.group_id is null and j.status = 'started'")),
                Expr::exists(row),
            ],
        ))
        .to_owned();
    render(query.build(PG))
}

impl Store {
    /// Returns every job of a queue, finished ones included.
    pub(crate) async fn all_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<Job>, sqlx::Error> {
        self.query(&ALL_JOBS).bind(queue).fetch_all(executor).await?.iter().map(job).collect()
    }

    /// Returns whether a queue has no unfinished job and no group that is not halted.
    pub(crate) async fn is_idle(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<bool, sqlx::Error> {
        self.query(&IDLE).bind(queue).fetch_one(executor).await?.try_get(0)
    }
}
