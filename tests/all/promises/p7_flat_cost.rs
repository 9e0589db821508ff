//! P7: picking a job costs the same at any backlog, with one group or many, also if most are busy,
//! delayed or halted.
//!
//! Counted, not timed: the rows, index entries and pages that a processor reads while it runs some
//! jobs. `interleavings::plans` counts the same for each statement alone, under every plan that it
//! may get.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::{AssertSqlSafe, Executor, PgConnection, Row};

use super::queue;
use crate::support::{
    Log, PATIENCE, by_hand, database, enqueue, handler_with, processor, size, value,
};

/// How many jobs are run before the counters are read again.
const JOBS: usize = 200;

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
    let running =
        processor.queue(queue("q").concurrency(2), run).build().unwrap().start().await.unwrap();
    log.wait_for(JOBS).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_cannot_run_cost_nothing() {
    for but in [
        "claim = gen_random_uuid(), job_id = head_id, ready_at = now() + interval '1 hour'",
        "ready_at = now() + interval '1 hour'",
        "ready_at = 'infinity', halted_at = now(), halt_reason = 'a test'",
    ] {
        let most = format!(
            "update seriatim.queue_group set {but} where group_id not in ('g1', 'g2', 'g3')"
        );
        costs_the_same(
            "case when n % 2 = 0 then 'g' || n % 3 + 1 else 'of many ' || n / 10 end",
            &most,
        )
        .await;
    }
}

/// Receives of a queue that no processor serves: by many groups that cannot start, an empty one
/// reads as much as by few, and a receive finds what has just come in.
async fn receives_cost_the_same(before: &str, after: &str, locked: bool) {
    const STUCK: usize = 100_000;
    const DUE: &str = "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) \
        select 'q', 's' || n, '1', true, now() - interval '5 s', now() - interval '5 s' from generate_series(1, $) n;";
    let database = database().await;
    let pool = database.pool();
    let fill = format!("begin; {before} {DUE} {after} commit; analyze");
    by_hand(pool, fill.replace('$', &STUCK.to_string())).await;
    let mut other = pool.begin().await.unwrap();
    if locked {
        let lock = "select from seriatim.job for update";
        sqlx::query(lock).execute(&mut *other).await.unwrap();
    }
    let received = async || value::<i64>(pool, "select count(*) from seriatim.receive('q')").await;
    let mut longest = Duration::ZERO;
    for n in 0..20 {
        let begun = Instant::now();
        assert_eq!(received().await, 0);
        longest = longest.max(begun.elapsed());
        if n % 5 == 4 {
            enqueue(pool, "q", &format!("idle {n}"), 1).await;
            assert_eq!(received().await, 1, "by the first receive");
        }
    }
    println!("the longest empty receive took {longest:.1?}");
    // A tenth of this, but for other tests beside it. Before, it was 0.4 to 1.1 s.
    assert!(longest < Duration::from_millis(300), "{longest:?}");

    // Once they have read all, they leave it for a while. Or maintenance has tidied it.
    let mut passes = 0;
    while value::<i64>(pool, "select count(*) from seriatim.flag_scan where unread").await > 0 {
        passes += 1;
        assert!(passes < 2_000, "a pass does not end");
        received().await;
    }
    let left = "select count(*) from seriatim.job where flagged and run_at <= now()";
    let mut more = true;
    while more && !locked {
        more = value(pool, "select more from seriatim.tidy()").await;
    }
    assert_eq!(value::<i64>(pool, left).await > 0, locked);
    if !locked {
        by_hand(pool, "vacuum (index_cleanup on) seriatim.job").await;
    }
    let counted = "select sum(pg_stat_get_xact_tuples_returned(c.oid))::int8 from pg_class c \
        where c.relnamespace = 'seriatim'::regnamespace and c.relkind in ('r', 'i')";
    let mut reads = Vec::new();
    for _ in 0..5 {
        let mut tx = pool.begin().await.unwrap();
        let before: i64 = sqlx::query_scalar(counted).fetch_one(&mut *tx).await.unwrap();
        sqlx::query("select from seriatim.receive('q')").execute(&mut *tx).await.unwrap();
        let after: i64 = sqlx::query_scalar(counted).fetch_one(&mut *tx).await.unwrap();
        reads.push(after - before);
        tx.commit().await.unwrap();
    }
    println!("an empty receive reads {reads:?} rows and entries");
    reads.sort_unstable();
    // One of them may begin a pass.
    assert!(reads[2] < 500, "{reads:?}");
    other.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_by_many_paused_groups_costs_what_one_by_few_does() {
    let pauses = "insert into seriatim.group_setting (queue, group_id, paused_at) \
        select 'q', 's' || n, now() from generate_series(1, $) n;";
    receives_cost_the_same(pauses, "", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_by_many_halted_groups_costs_what_one_by_few_does() {
    let halts = "insert into seriatim.queue_group (queue, group_id, ready_at, head_id, halted_at, halt_reason) \
        select queue, group_id, 'infinity', id, now(), 'a test' from seriatim.job;";
    receives_cost_the_same("", halts, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_by_many_sleeping_groups_costs_what_one_by_few_does() {
    let heads = "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) \
        select 'q', 's' || n, '1', true, now() + interval '1 h', now() + interval '1 h' from generate_series(1, $) n;";
    receives_cost_the_same(heads, "", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_by_many_groups_in_flight_costs_what_one_by_few_does() {
    let claims = "insert into seriatim.queue_group (queue, group_id, ready_at, head_id, claim, job_id) \
        select queue, group_id, now() + interval '1 h', id, gen_random_uuid(), id from seriatim.job;";
    receives_cost_the_same("", claims, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_by_many_locked_heads_costs_what_one_by_few_does() {
    receives_cost_the_same("", "", true).await;
}
