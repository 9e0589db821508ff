//! Jobs of a group that ended lately, among the last that ended in their queue.

use sea_query::{Order, SelectStatement};
use sqlx::PgExecutor;

use crate::job::job::{Job, JobStatus};
use crate::store::builder::{PG, limit, render, sql};
use crate::store::names::Names;
use crate::store::query::inspect::{bare_jobs, job, jobs};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    RECENT = |names: &Names| recent(names, jobs(names));
    BARE_RECENT = |names: &Names| recent(names, bare_jobs(names));
}

/// No index has the finished jobs of a group. So the queue's last ones are read by the index of
/// finished jobs, and those of other groups left out.
fn recent(names: &Names, mut jobs: SelectStatement) -> String {
    let ends = JobStatus::ALL.into_iter().filter(|status| status.is_final()).map(|status| {
        format!(
            "(select f.id, f.group_id from {{job}} f where f.queue = ?1 and f.status = '{status}'
              order by f.finished_at desc limit ?3)"
        )
    });
    let ended = ends.collect::<Vec<_>>().join(" union all ");
    let of_group = format!("j.id in (select e.id from ({ended}) e where e.group_id = ?2)");
    let query = jobs
        .and_where(sql(names.sql(&of_group)))
        .order_by_expr(sql("j.id"), Order::Desc)
        .limit(limit(4))
        .to_owned();
    render(query.build(PG))
}

impl Store {
    pub(crate) async fn recent_jobs(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        among: i64,
        limit: i64,
        bare: bool,
    ) -> Result<Vec<Job>, sqlx::Error> {
        let statement = if bare { &BARE_RECENT } else { &RECENT };
        let query = self.query(statement).bind(queue).bind(group).bind(among).bind(limit);
        query.fetch_all(executor).await?.iter().map(job).collect()
    }
}
