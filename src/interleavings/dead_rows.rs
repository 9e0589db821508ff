//! Rows that a claim reads while an old snapshot keeps vacuum from dead ones.

use std::time::Duration;

use crate::NewJob;
use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{begin, commit, lock_group, number, rollback, run};
use crate::interleavings::support::steps;
use crate::store::HoldAnswer;
use crate::store::{
    AfterSettle, Claim, ClaimBounds, ClaimOptions, HeartbeatQuery, LeasedClaim, ScanStart,
    Succeeded,
};

const GROUPS: i64 = 2000;
/// No lease runs out meanwhile.
const OPTIONS: ClaimOptions = ClaimOptions { lease: Duration::from_mins(1), ..steps::OPTIONS };
const BY_KEY: &str = "c.relname = 'queue_group_key'";

/// Returns the index entries read in the open transaction. A scan of a whole table counts as many.
async fn read(conn: &mut sqlx::PgConnection) -> i64 {
    read_of(conn, "true").await
}

async fn read_of(conn: &mut sqlx::PgConnection, relation: &str) -> i64 {
    let reads = format!(
        "select sum(case c.relkind when 'i' then pg_stat_get_xact_tuples_returned(c.oid) \
           else 1000 * pg_stat_get_xact_numscans(c.oid) end)::int8 \
         from pg_class c where c.relnamespace = 'seriatim'::regnamespace and c.relkind in ('i', 'r') and {relation}"
    );
    number(conn, &reads).await
}

/// Returns the pages read in the open transaction, including those read for a write.
async fn pages(conn: &mut sqlx::PgConnection) -> i64 {
    let pages = "select sum(pg_stat_get_xact_blocks_fetched(c.oid))::int8 \
                 from pg_class c where c.relnamespace = 'seriatim'::regnamespace and c.relkind in ('i', 'r')";
    number(conn, pages).await
}

/// A session whose open transaction keeps vacuum from all rows that die from now on.
async fn old_snapshot(scene: &Scene) -> sqlx::PgConnection {
    let mut old = scene.session().await;
    run(&mut old, "begin isolation level repeatable read").await;
    run(&mut old, "select pg_current_xact_id()").await;
    old
}

/// Returns the reads of each of three claims of ten jobs, and the last scan start. Each claim
/// starts at the scan start of the one before.
async fn three_claims(scene: &Scene, worker: &mut sqlx::PgConnection) -> ([i64; 3], ScanStart) {
    let mut from = ScanStart::default();
    let mut reads = [0; 3];
    for reads in &mut reads {
        run(worker, "begin").await;
        let before = read(worker).await;
        let claimed = scene
            .store
            .claim(worker, Q, ClaimBounds::new(10, 0, false, from), OPTIONS)
            .await
            .unwrap();
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
async fn claims_read_past_dead_rows_once_then_start_behind_them() {
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
    let mut old = old_snapshot(&scene).await;
    for n in 0..5 {
        let later =
            format!("update seriatim.queue_group set ready_at = now() - interval '{n} min'");
        scene.run(&later).await;
        // Its flag is adopted, again and again.
        scene
            .run("update seriatim.job set flagged = true, turn_at = now() - interval '1 hour'")
            .await;
        scene.run("update seriatim.job set flagged = false").await;
    }
    // The oldest version of each is the last to be due.
    scene.run("update seriatim.queue_group set ready_at = now() - interval '2 s'").await;

    let (reads, from) = three_claims(&scene, &mut worker).await;
    assert!(reads[0] > 5 * GROUPS, "{reads:?}");
    assert!(reads[1] < 2000 && reads[2] < 2000, "{reads:?}");

    // A group that becomes ready before the scan start needs a claim that reads from the beginning.
    // A claim's own adoptions it takes anyway.
    let soon = NewJob::new(Q, &1).group("soon").priority(9);
    let soon = crate::enqueue(&mut worker, soon).await.unwrap().id();
    let mut other = scene.session().await;
    assert_eq!(scene.adopt(&mut other).await, 1);
    commit(&mut other).await;
    for (from, sees) in [(from, false), (ScanStart::default(), true)] {
        let claimed = scene
            .store
            .claim(&mut worker, Q, ClaimBounds::new(1, 0, false, from), OPTIONS)
            .await
            .unwrap();
        assert_eq!(claimed.jobs[0].job == soon, sees);
    }
    run(&mut old, "rollback").await;
    scene.end().await;
}

#[tokio::test]
async fn claims_start_behind_dead_ungrouped_jobs_too() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let line = format!(
        "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
         select 'q', 'g' || n, now() - interval '2 s', n from generate_series(1, {GROUPS}) n"
    );
    scene.run(&line).await;
    let mut old = old_snapshot(&scene).await;
    scene.run("delete from seriatim.queue_group").await;
    let gone = format!(
        "insert into seriatim.job (queue, data, turn_at) select 'q', '1', now() - interval '2 s' \
         from generate_series(1, {GROUPS})"
    );
    scene.run(&gone).await;
    scene.run("delete from seriatim.job").await;
    let ungrouped = (0..30).map(|n| NewJob::new(Q, &n));
    crate::enqueue_many(&mut worker, ungrouped).await.unwrap();

    let (reads, _) = three_claims(&scene, &mut worker).await;
    assert!(reads[0] > 2 * GROUPS, "{reads:?}");
    assert!(reads[1] < 500 && reads[2] < 500, "{reads:?}");
    run(&mut old, "rollback").await;
    scene.end().await;
}

#[tokio::test]
async fn no_statement_reads_past_the_dead_versions_of_a_group_row() {
    const DEAD: i64 = 3000;
    let scene = Scene::new().await;
    let (mut worker, store) = (scene.session().await, &scene.store);
    for _ in 0..4 {
        scene.enqueue("g").await;
    }
    assert_eq!(scene.adopt(&mut worker).await, 1);
    commit(&mut worker).await;
    let mut old = old_snapshot(&scene).await;
    let turns = format!(
        "do $$ begin for n in 1..{DEAD} loop update seriatim.queue_group set ready_at = now(), job_id = head_id, \
         claim = gen_random_uuid(), claimed_by = 7; end loop; \
         update seriatim.queue_group set job_id = null, claim = null, claimed_by = null; end $$"
    );
    scene.run(&turns).await;
    let claim = async |worker: &mut sqlx::PgConnection| -> Claim {
        run(worker, "begin").await;
        let before = read_of(worker, BY_KEY).await;
        let from = ScanStart::default();
        let claimed =
            store.claim(worker, Q, ClaimBounds::new(1, 0, false, from), OPTIONS).await.unwrap();
        assert_eq!(read_of(worker, BY_KEY).await, before);
        run(worker, "commit").await;
        claimed.jobs[0].clone()
    };

    let another_comes = async |worker: &mut sqlx::PgConnection| {
        begin(worker).await;
        let before = read(worker).await;
        crate::enqueue(&mut *worker, NewJob::new(Q, &1).group("g")).await.unwrap();
        let reads = read(worker).await - before;
        assert!(reads < 50, "{reads}");
        commit(worker).await;
        let before = read_of(worker, BY_KEY).await;
        assert_eq!(scene.adopt(worker).await, 1);
        let reads = read_of(worker, BY_KEY).await - before;
        assert!(reads < 10, "{reads}");
        commit(worker).await;
    };
    another_comes(&mut worker).await;

    // Hold by transaction.
    for keep in [true, false] {
        let turn = claim(&mut worker).await;
        let (before, pages_before) = (read(&mut worker).await, pages(&mut worker).await);
        let held = store.begin_and_hold(&mut worker, &turn, None).await.unwrap();
        assert!(matches!(held, HoldAnswer::Held(_)));
        store
            .quick_settle(&mut worker, &turn, "1", keep, false, AfterSettle::Nothing)
            .await
            .unwrap();
        let reads = read(&mut worker).await - before;
        // A unique index would read each of them.
        let pages = pages(&mut worker).await - pages_before;
        assert!(reads < 50 && pages < 300, "{reads}, {pages} pages");
        run(&mut worker, "commit").await;
    }

    // Hold by lease. Meanwhile another job is enqueued and adopted.
    let turn = claim(&mut worker).await;
    another_comes(&mut worker).await;
    begin(&mut worker).await;
    let before = read(&mut worker).await;
    let leased = [LeasedClaim {
        job: turn.job,
        ungrouped: false,
        followers: Vec::new(),
        token: turn.token,
        lease: 60.0,
    }];
    assert_eq!(store.extend_leases(&mut worker, &leased).await.unwrap().len(), 1);
    assert_eq!(store.still_claimed(&mut worker, &leased).await.unwrap().len(), 1);
    store.clear_suspicion(&mut worker, &turn, Duration::from_secs(1)).await.unwrap();
    let asks = HeartbeatQuery::new(7, 7, true, chrono::Utc::now());
    run(&mut worker, &store.heartbeat_sql(asks)).await;
    let reads = read(&mut worker).await - before;
    assert!(reads < 50, "{reads}");
    commit(&mut worker).await;

    begin(&mut worker).await;
    let before = read(&mut worker).await;
    let done = [Succeeded { claim: &turn, earlier: &[], result: "1" }];
    assert_eq!(store.settle_many(&mut worker, &done, true).await.unwrap().len(), 1);
    let reads = read(&mut worker).await - before;
    assert!(reads < 50, "{reads}");
    commit(&mut worker).await;
    run(&mut old, "rollback").await;
    scene.end().await;
}

#[tokio::test]
async fn a_claim_without_a_slot_for_groups_hides_none_of_them() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let group = scene.enqueue("g").await;
    assert_eq!(scene.adopt(&mut worker).await, 1);
    commit(&mut worker).await;
    scene.run("update seriatim.queue_group set ready_at = now() - interval '30 s'").await;
    crate::enqueue_many(&mut worker, (0..3).map(|n| NewJob::new(Q, &n))).await.unwrap();

    // Its slots go to ungrouped jobs.
    let first = ScanStart::default();
    let claimed = scene
        .store
        .claim(&mut worker, Q, ClaimBounds::new(2, 0, true, first), OPTIONS)
        .await
        .unwrap();
    assert!(claimed.jobs.iter().all(|claim| claim.group.is_none()));
    let from = claimed.found_at;
    let claimed = scene
        .store
        .claim(&mut worker, Q, ClaimBounds::new(1, 0, false, from), OPTIONS)
        .await
        .unwrap();
    assert_eq!(claimed.jobs[0].job, group);
    scene.end().await;
}

#[tokio::test]
async fn a_held_group_does_not_keep_claims_at_its_place() {
    let scene = Scene::new().await;
    let (mut worker, mut holder) = (scene.session().await, scene.session().await);
    for group in ["held", "a", "b", "c"] {
        scene.enqueue(group).await;
    }
    assert_eq!(scene.adopt(&mut worker).await, 4);
    commit(&mut worker).await;
    scene
        .run("update seriatim.queue_group set ready_at = now() - interval '1 h' where group_id = 'held'")
        .await;
    // Like the transaction of a handler whose lease was over long ago. It also keeps vacuum from
    // all rows that die behind it.
    begin(&mut holder).await;
    run(&mut holder, "select pg_current_xact_id()").await;
    lock_group(&mut holder, "held", "no key update").await;
    for n in 1..6 {
        let turns = format!(
            "update seriatim.queue_group set ready_at = now() - interval '{n} min' where group_id <> 'held'"
        );
        for _ in 0..100 {
            scene.run(&turns).await;
        }
    }
    scene
        .run("update seriatim.queue_group set ready_at = now() - interval '2 s' where group_id <> 'held'")
        .await;
    // Each claim finds fewer jobs than it has slots. The last two meet only the held group: from
    // the beginning, then behind it.
    let mut from = ScanStart::default();
    let mut reads = [0; 4];
    for (n, found) in [3, 0, 0, 0].into_iter().enumerate() {
        if n == 2 {
            from = ScanStart::default();
        }
        run(&mut worker, "begin").await;
        let before = read(&mut worker).await;
        let claimed = scene
            .store
            .claim(&mut worker, Q, ClaimBounds::new(9, 0, false, from), OPTIONS)
            .await
            .unwrap();
        assert_eq!(claimed.jobs.len(), found);
        reads[n] = read(&mut worker).await - before;
        run(&mut worker, "commit").await;
        from = claimed.found_at;
    }
    assert!(reads[0] > 1500 && reads[1] < 100 && reads[2] > 1500 && reads[3] < 100, "{reads:?}");
    rollback(&mut holder).await;
    let whole = ScanStart::default();
    let claimed = scene
        .store
        .claim(&mut worker, Q, ClaimBounds::new(9, 0, false, whole), OPTIONS)
        .await
        .unwrap();
    assert_eq!(claimed.jobs.len(), 1);
    scene.end().await;
}

#[tokio::test]
async fn a_group_ready_before_the_window_waits_for_a_whole_claim() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let first = scene.enqueue("g").await;
    let nothing = scene.store.claim(
        &mut worker,
        "other",
        ClaimBounds::new(1, 0, false, ScanStart::default()),
        OPTIONS,
    );
    let from = nothing.await.unwrap().found_at;
    assert_eq!(scene.adopt(&mut worker).await, 1);
    commit(&mut worker).await;
    scene.run("update seriatim.queue_group set ready_at = now() - interval '1 min'").await;
    let claims = async |worker: &mut sqlx::PgConnection| {
        scene
            .store
            .claim(worker, Q, ClaimBounds::new(1, 0, false, from), OPTIONS)
            .await
            .unwrap()
            .jobs
    };
    assert!(claims(&mut worker).await.is_empty(), "it is before");
    scene.enqueue("g").await;
    assert!(claims(&mut worker).await.is_empty(), "its flag changes nothing");
    assert_eq!(scene.claim_one(&mut worker).await.job, first);
    scene.end().await;
}
