//! What a claim reads where dead rows stay: somebody's old snapshot keeps vacuum from them.

use super::scene::{Q, Scene, TERMS, run};
use crate::NewJob;
use crate::store::ReadFrom;

const GROUPS: i64 = 2000;

/// Index entries read in the transaction that is open.
async fn read(conn: &mut sqlx::PgConnection) -> i64 {
    super::scene::number(
        conn,
        "select sum(pg_stat_get_xact_tuples_returned(c.oid))::int8 from pg_class c \
         where c.relnamespace = 'seriatim'::regnamespace and c.relkind = 'i'",
    )
    .await
}

/// What each of three claims of ten jobs reads, the next from where the one before says; and what the last one says.
async fn three_claims(scene: &Scene, worker: &mut sqlx::PgConnection) -> ([i64; 3], ReadFrom) {
    let mut from = ReadFrom::default();
    let mut reads = [0; 3];
    for reads in &mut reads {
        run(worker, "begin").await;
        let before = read(worker).await;
        let claimed = scene.store.claim_at_once(worker, Q, 10, false, TERMS, from).await.unwrap();
        assert_eq!(claimed.jobs.len(), 10);
        *reads = read(worker).await - before;
        run(worker, "commit").await;
        from = claimed.found_at;
        assert!(from.groups.is_some());
    }
    println!("read: {reads:?}");
    (reads, from)
}

#[tokio::test]
async fn claims_read_past_dead_rows_once_and_begin_behind_them_then() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    scene
        .run(&format!(
            "insert into seriatim.job (queue, group_id, data) select 'q', 'g' || n, '1' from generate_series(1, {GROUPS}) n"
        ))
        .await;
    scene
        .run(
            "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
             select queue, group_id, now(), id from seriatim.job",
        )
        .await;
    let mut old = scene.session().await;
    run(&mut old, "begin isolation level repeatable read").await;
    run(&mut old, "select pg_current_xact_id()").await;
    for n in 0..5 {
        let later =
            format!("update seriatim.queue_group set ready_at = now() - interval '{n} min'");
        scene.run(&later).await;
        // Its flag is adopted, again and again.
        scene
            .run("update seriatim.job set flagged = true, run_at = now() - interval '1 hour'")
            .await;
        scene.run("update seriatim.job set flagged = false").await;
    }
    // The oldest version of each is the last to be due.
    scene.run("update seriatim.queue_group set ready_at = now() - interval '2 s'").await;

    let (reads, from) = three_claims(&scene, &mut worker).await;
    assert!(reads[0] > 5 * GROUPS, "{reads:?}");
    assert!(reads[1] < 2000 && reads[2] < 2000, "{reads:?}");

    // What is put in line before is for a claim that reads from the beginning.
    let soon = NewJob::new(Q, &1).group("soon").priority(9);
    let soon = crate::enqueue(&mut worker, soon).await.unwrap().id();
    for (from, sees) in [(from, false), (ReadFrom::default(), true)] {
        let claimed =
            scene.store.claim_at_once(&mut worker, Q, 1, false, TERMS, from).await.unwrap();
        assert_eq!(claimed.jobs[0].job == soon, sees);
    }
    run(&mut old, "rollback").await;
    scene.end().await;
}

#[tokio::test]
async fn claims_that_find_no_group_in_line_begin_behind_the_dead_ones_too() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let line = format!(
        "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
         select 'q', 'g' || n, now() - interval '2 s', n from generate_series(1, {GROUPS}) n"
    );
    scene.run(&line).await;
    let mut old = scene.session().await;
    run(&mut old, "begin isolation level repeatable read").await;
    run(&mut old, "select pg_current_xact_id()").await;
    scene.run("delete from seriatim.queue_group").await;
    let loose = (0..30).map(|n| NewJob::new(Q, &n));
    crate::enqueue_many(&mut worker, loose).await.unwrap();

    let (reads, _) = three_claims(&scene, &mut worker).await;
    assert!(reads[0] > GROUPS, "{reads:?}");
    assert!(reads[1] < 500 && reads[2] < 500, "{reads:?}");
    run(&mut old, "rollback").await;
    scene.end().await;
}
