//! The limit of a queue's jobs in flight holds exactly, and after crashes.

use sqlx::PgConnection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{begin, commit, enqueue_ungrouped, number, run};

/// How many more jobs may begin; -1 if another transaction has the queue's row.
const ROOM: &str = "select case when busy then -1 else room end from seriatim.in_flight_room('q')";

async fn limited(limit: i32) -> Scene {
    let scene = Scene::new().await;
    scene
        .run(&format!("insert into seriatim.queue (name, in_flight_limit) values ('q', {limit})"))
        .await;
    scene
}

async fn in_flight(scene: &Scene) -> i64 {
    scene.number("select count(*) from seriatim.job where seriatim.job_state(status, queue, group_id, id) = 'started'").await
}

/// The rest of a claim: starts a due job.
async fn start_one(scene: &Scene, conn: &mut PgConnection) {
    let turns = scene.lock_turns(conn, 1).await;
    let heads = scene.read_heads(conn, &turns).await;
    assert_eq!(scene.write(conn, &heads).await.len(), 1);
}

#[tokio::test]
async fn claims_that_count_side_by_side_exceed_the_limit() {
    for wrong in [true, false] {
        let scene = limited(1).await;
        let (mut one, mut other) = (scene.session().await, scene.session().await);
        scene.enqueue("a").await;
        scene.enqueue("b").await;
        scene.adopt(&mut one).await;
        commit(&mut one).await;
        begin(&mut one).await;
        begin(&mut other).await;
        let count = "select count(*) from seriatim.queue_group where job_id is not null";
        if wrong {
            for conn in [&mut one, &mut other] {
                assert_eq!(number(conn, count).await, 0);
            }
            start_one(&scene, &mut one).await;
            start_one(&scene, &mut other).await;
            assert_eq!(in_flight(&scene).await, 2);
        } else {
            // A statement of the other transaction came before: its snapshot must not be used
            // again.
            assert_eq!(number(&mut other, count).await, 0);
            assert_eq!(number(&mut one, ROOM).await, 1);
            assert_eq!(number(&mut other, ROOM).await, -1, "busy");
            start_one(&scene, &mut one).await;
            assert_eq!(number(&mut other, ROOM).await, 0);
            commit(&mut other).await;
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_limit_counts_all_claims_and_changes_with_the_next_one() {
    let scene = limited(3).await;
    let mut worker = scene.session().await;
    for group in ["a", "b", "c"] {
        scene.enqueue(group).await;
    }
    for _ in 0..3 {
        enqueue_ungrouped(&mut worker).await;
    }
    assert_eq!(scene.claim(&mut worker, 10).await.len(), 3);
    let claimed = scene.claim_all(&mut worker, 10).await;
    assert!(claimed.jobs.is_empty() && !claimed.more, "it would claim again and again");
    // Several jobs that were received together are so many in flight.
    scene
        .run("update seriatim.queue_group set batch = array[job_id, -1, -2] where group_id = 'a'")
        .await;
    scene.run("update seriatim.queue set in_flight_limit = 6").await;
    assert_eq!(scene.claim(&mut worker, 10).await.len(), 1);
    scene.run("update seriatim.queue set in_flight_limit = 1").await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    scene.run("update seriatim.queue set in_flight_limit = null").await;
    assert_eq!(scene.claim(&mut worker, 10).await.len(), 2);
    assert_eq!(in_flight(&scene).await, 6);
    scene.end().await;
}

#[tokio::test]
async fn a_take_over_passes_a_reached_limit_and_adds_nothing() {
    let scene = limited(2).await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let job = scene.enqueue("g").await;
    let ungrouped = enqueue_ungrouped(&mut worker).await;
    assert_eq!(scene.claim(&mut worker, 10).await.len(), 2);
    // Their worker died. Meanwhile the limit was lowered, and another group has waited for long.
    scene.run("update seriatim.queue set in_flight_limit = 1").await;
    let waiting = scene.enqueue("waiting").await;
    scene.adopt(&mut other).await;
    commit(&mut other).await;
    scene.lease("waiting", -1000).await;
    let mut over = Vec::new();
    for _ in 0..2 {
        scene.lease("g", -1).await;
        scene.run("update seriatim.job set lease_until = now() where claim is not null").await;
        over = scene.claim(&mut other, 10).await;
    }
    let mut jobs: Vec<i64> = over.iter().map(|over| over.job).collect();
    jobs.sort_unstable();
    assert_eq!(jobs, [job, ungrouped]);
    assert_eq!(in_flight(&scene).await, 2);
    for over in &over {
        scene.run_job(&mut worker, over).await;
    }
    assert_eq!(scene.drain().await, [waiting]);
    scene.end().await;
}

#[tokio::test]
async fn a_claim_that_waits_for_the_queues_row_is_none() {
    let scene = limited(2).await;
    let (mut worker, mut operator) = (scene.session().await, scene.session().await);
    let job = scene.enqueue("g").await;
    begin(&mut operator).await;
    run(&mut operator, "update seriatim.queue set in_flight_limit = 1").await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    commit(&mut operator).await;
    assert_eq!(scene.drain().await, [job]);
    scene.end().await;
}
