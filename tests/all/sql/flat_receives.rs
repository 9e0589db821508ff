//! P7 for receivers: a receive costs the same behind many groups that cannot start as behind few.
//!
//! No processor serves the queue, and no hold matters. `promises::p7_flat_cost` counts the same for
//! processors.

use std::time::Duration;

use crate::support::{AwakeInstant, by_hand, database, enqueue, size, value};

/// Receives of a queue that no processor serves: by many groups that cannot start, an empty one
/// reads as much as by few, and a receive finds what has just come in.
async fn receives_cost_the_same(before: &str, after: &str, locked: bool) {
    const DUE: &str = "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) \
        select 'q', 's' || n, '1', true, now() - interval '5 s', now() - interval '5 s' from generate_series(1, $) n;";
    let database = database().await;
    let pool = database.pool();
    let fill = format!("begin; {before} {DUE} {after} commit; analyze");
    by_hand(pool, fill.replace('$', &size(10_000, 100_000).to_string())).await;
    let mut other = pool.begin().await.unwrap();
    if locked {
        let lock = "select from seriatim.job for update";
        sqlx::query(lock).execute(&mut *other).await.unwrap();
    }
    let received = async || value::<i64>(pool, "select count(*) from seriatim.receive('q')").await;
    let mut empty = Vec::new();
    for n in 0..20 {
        let begun = AwakeInstant::now();
        assert_eq!(received().await, 0);
        empty.push(begun.elapsed());
        if n % 5 == 4 {
            enqueue(pool, "q", &format!("idle {n}"), 1).await;
            assert_eq!(received().await, 1, "by the first receive");
        }
    }
    empty.sort_unstable();
    let (median, longest) = (empty[10], empty[19]);
    println!("an empty receive took {median:.1?}, the longest {longest:.1?}");
    // A tenth of this, but for other tests beside it. Each took 0.4 to 1.1 s behind 100,000 groups
    // when it read them all.
    assert!(median < Duration::from_millis(300), "{empty:?}");

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
