//! P7: picking a job costs the same at any backlog, with one group or many, also if most are busy,
//! delayed or halted.
//!
//! Counted, not timed: the rows, index entries and pages that a processor reads while it runs some
//! jobs. `interleavings::plans` counts the same for each statement alone, under every plan that it
//! may get. `sql::flat_receives` counts the same for receivers.

use std::time::Duration;

use serde_json::json;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::queue;
use crate::support::{Log, PATIENCE, database, handler_with, processor, size, started};

/// Returns how many jobs are run before the counters are read again.
fn jobs_to_run() -> usize {
    size(80, 200)
}

/// The reads for a job: rows and index entries, and pages.
#[derive(Debug, Clone, Copy)]
struct Reads {
    rows: f64,
    pages: f64,
}

/// Returns the reads of all sessions that have ended.
async fn read_so_far(conn: &mut PgConnection) -> (i64, i64) {
    let others = "select count(*) from pg_stat_activity \
        where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'";
    let deadline = tokio::time::Instant::now() + PATIENCE;
    // A session's counts are only sure to be there when it has ended.
    while conn.fetch_one(others).await.unwrap().get::<i64, _>(0) > 0 {
        assert!(tokio::time::Instant::now() < deadline, "there are still sessions");
        // The database has no event to wait for here.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let counted = "select
        (select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_user_tables)::int8
          + (select sum(idx_tup_read) from pg_stat_user_indexes)::int8,
        (select sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))
         from pg_statio_user_tables)::int8";
    let counted = conn.fetch_one(counted).await.unwrap();
    (counted.get(0), counted.get(1))
}

/// Returns a processor's reads for each job that it runs from a backlog of this many. `groups` is
/// SQL that may change the groups' rows.
async fn reads(jobs: &str, groups: &str, backlog: usize) -> Reads {
    let database = database().await;
    let mut filler = database.connect().await.unwrap();
    let backlog = format!(
        "alter table seriatim.job set (autovacuum_enabled = off);
         alter table seriatim.queue_group set (autovacuum_enabled = off);
         insert into seriatim.job (queue, group_id, data) select 'q', {jobs}, '1' from generate_series(1, {backlog}) n;
         insert into seriatim.queue_group (queue, group_id, ready_at, head_id)
           select queue, group_id, now(), min(id) from seriatim.job group by 1, 2;
         {groups}"
    );
    filler.execute(AssertSqlSafe(backlog)).await.unwrap();
    // The set-up's own dead rows are not what is measured.
    filler.execute("vacuum (analyze) seriatim.job, seriatim.queue_group").await.unwrap();
    drop(filler);
    let mut conn = database.connect().await.unwrap();
    let before = read_so_far(&mut conn).await;

    let log = Log::default();
    let run = handler_with(log.clone(), async |log, _, _| {
        log.add("ran");
        Ok(json!(null))
    });
    let processor = processor(&database, 6).await.maintenance_interval(None);
    let running = started(processor.queue(queue("q").concurrency(2), run)).await;
    log.wait_for(jobs_to_run()).await;
    running.shutdown(PATIENCE).await;

    let after = read_so_far(&mut conn).await;
    let ran = u32::try_from(log.entries().len()).unwrap();
    let each = |before, after| f64::from(i32::try_from(after - before).unwrap()) / f64::from(ran);
    Reads { rows: each(before.0, after.0), pages: each(before.1, after.1) }
}

/// A job of a large backlog costs as much as one of a backlog of a thousand.
async fn costs_the_same(jobs: &str, groups: &str) {
    let few = reads(jobs, groups, 1_000).await;
    let many = reads(jobs, groups, size(20_000, 50_000)).await;
    println!("{jobs}: {few:.1?} for a job of a thousand, {many:.1?} for one of many");
    // Dead rows, and polls of a slow machine, cost some tens of reads. A claim that reads the
    // backlog costs thousands.
    assert!(many.rows < few.rows + 300.0, "{few:?} {many:?}");
    assert!(many.pages < few.pages + 300.0, "{few:?} {many:?}");
    assert!(few.rows < 300.0 && few.pages < 300.0, "{few:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_deep_group_costs_what_one_of_a_short_group_does() {
    costs_the_same("'g'", "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_many_groups_costs_what_one_of_few_does() {
    costs_the_same("'g' || n / 10", "").await;
}

/// Groups that are busy, that sleep, and that are halted.
const CANNOT_RUN: [&str; 3] = [
    "claim = gen_random_uuid(), job_id = head_id, ready_at = now() + interval '1 hour'",
    "ready_at = now() + interval '1 hour'",
    "ready_at = 'infinity', halted_at = now(), halt_reason = 'a test'",
];

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_cannot_run_cost_nothing() {
    let most = |but: &str, which: &str| {
        format!(
            "update seriatim.queue_group set {but} \
             where group_id not in ('g1', 'g2', 'g3') and {which}"
        )
    };
    // In a newcomer's run a third of the groups is of each kind; they are five times as many.
    let a_third = |(at, but): (usize, &&str)| most(but, &format!("head_id % 3 = {at}"));
    let thirds: Vec<String> = CANNOT_RUN.iter().enumerate().map(a_third).collect();
    let all = CANNOT_RUN.iter().map(|but| most(but, "true")).collect();
    let each = size(2, 10);
    let jobs =
        format!("case when n % 2 = 0 then 'g' || n % 3 + 1 else 'of many ' || n / {each} end");
    for most in size(vec![thirds.join("; ")], all) {
        costs_the_same(&jobs, &most).await;
    }
}
