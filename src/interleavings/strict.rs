//! Strict visibility: the end of a claim beside calls of its receiver in open transactions.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::sleep;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{Q, begin, commit, enqueue, number, rollback, run};

/// Long enough for a call before the end, on a busy machine as well.
const VISIBILITY: &str = "3 s";

async fn strict() -> Scene {
    let scene = Scene::new().await;
    scene
        .run(&format!("select seriatim.configure_queue('{Q}', '{{\"strict_visibility\": true}}')"))
        .await;
    scene
}

/// Receives up to two jobs.
async fn receive(conn: &mut PgConnection, visibility: &str) -> Vec<String> {
    let receive = format!("select receipt from seriatim.receive('{Q}', 2, '{visibility}')");
    sqlx::query_scalar(AssertSqlSafe(receive)).fetch_all(conn).await.unwrap()
}

async fn answer(conn: &mut PgConnection, call: &str) -> String {
    sqlx::query_scalar(AssertSqlSafe(format!("select seriatim.{call}")))
        .fetch_one(conn)
        .await
        .unwrap()
}

/// Waits until the visibility that was committed is over.
async fn is_over(scene: &Scene) {
    let over = "select count(*) from seriatim.queue_group where ready_at <= clock_timestamp()";
    while scene.number(over).await == 0 {
        sleep(Duration::from_millis(10)).await;
    }
}

/// An ack that locks the group in time, and whose transaction ends late.
async fn acks_before_the_end(commits: bool) {
    let scene = strict().await;
    let (mut receiver, mut other) = (scene.session().await, scene.session().await);
    enqueue(&mut other, &["g"]).await;
    let receipts = receive(&mut receiver, VISIBILITY).await;
    begin(&mut receiver).await;
    assert_eq!(answer(&mut receiver, &format!("ack('{}')", receipts[0])).await, "done");
    is_over(&scene).await;
    assert!(receive(&mut other, VISIBILITY).await.is_empty(), "the group is locked");
    if commits {
        commit(&mut receiver).await;
        assert!(receive(&mut other, VISIBILITY).await.is_empty());
    } else {
        rollback(&mut receiver).await;
        assert_eq!(receive(&mut other, VISIBILITY).await.len(), 1, "at once");
        let late = answer(&mut receiver, &format!("ack('{}')", receipts[0])).await;
        assert_eq!(late, "stale");
    }
    scene.end().await;
}

#[tokio::test]
async fn an_ack_that_has_locked_the_group_before_the_end_counts() {
    // Both at once, as each waits for its end.
    futures::future::join_all([true, false].map(acks_before_the_end)).await;
}

#[tokio::test]
async fn an_extension_made_before_the_end_counts_however_late_it_is_committed() {
    let scene = strict().await;
    let (mut receiver, mut other) = (scene.session().await, scene.session().await);
    enqueue(&mut other, &["g"]).await;
    let receipts = receive(&mut receiver, VISIBILITY).await;
    begin(&mut receiver).await;
    let extend = format!("extend('{}', '1 h')", receipts[0]);
    assert_eq!(answer(&mut receiver, &extend).await, "done");
    is_over(&scene).await;
    assert!(receive(&mut other, VISIBILITY).await.is_empty(), "the group is locked");
    commit(&mut receiver).await;
    assert!(receive(&mut other, VISIBILITY).await.is_empty());
    assert_eq!(answer(&mut receiver, &format!("ack('{}')", receipts[0])).await, "done");
    scene.end().await;
}

/// By the clock of the transaction's begin it would not be over.
#[tokio::test]
async fn a_call_after_the_end_is_stale_though_its_transaction_began_before() {
    for call in ["extend($, '1 h')", "nack($)", "ack($)"] {
        let scene = strict().await;
        let (mut receiver, mut other) = (scene.session().await, scene.session().await);
        enqueue(&mut other, &["g"]).await;
        let receipts = receive(&mut receiver, "1 h").await;
        let call = call.replace('$', &format!("'{}'", receipts[0]));
        begin(&mut receiver).await;
        run(&mut receiver, "select now()").await;
        scene.lease("g", 0).await;
        let wrong = "select count(*) from seriatim.queue_group where ready_at > now()";
        assert_eq!(number(&mut receiver, wrong).await, 1);
        assert_eq!(answer(&mut receiver, &call).await, "stale", "nobody has received it again");
        // It has locked nothing.
        assert_eq!(receive(&mut other, VISIBILITY).await.len(), 1);
        assert_eq!(answer(&mut receiver, &call).await, "stale");
        commit(&mut receiver).await;
        scene.end().await;
    }
}

#[tokio::test]
async fn one_of_two_receives_gets_the_job_and_the_receipt_before_stays_stale() {
    let scene = strict().await;
    let (mut receiver, mut one, mut two) =
        (scene.session().await, scene.session().await, scene.session().await);
    enqueue(&mut one, &["g"]).await;
    let before = receive(&mut receiver, "0 s").await;
    begin(&mut one).await;
    let again = receive(&mut one, VISIBILITY).await;
    assert_eq!(again.len(), 1);
    assert!(receive(&mut two, VISIBILITY).await.is_empty());
    // The rows are another's, and over all the same.
    assert_eq!(answer(&mut receiver, &format!("ack('{}')", before[0])).await, "stale");
    commit(&mut one).await;
    assert_eq!(answer(&mut receiver, &format!("ack('{}')", before[0])).await, "stale");
    assert_eq!(answer(&mut one, &format!("ack('{}')", again[0])).await, "done");
    scene.end().await;
}

/// It is put off until the job can be read: its end is later then, and it is over all the same.
#[tokio::test]
async fn a_claim_that_is_put_off_stays_over() {
    let scene = strict().await;
    let (mut receiver, mut locker, mut other) =
        (scene.session().await, scene.session().await, scene.session().await);
    enqueue(&mut other, &["g"]).await;
    let receipts = receive(&mut receiver, "0 s").await;
    begin(&mut locker).await;
    run(&mut locker, "select from seriatim.job for update").await;
    // Each time that it is put off doubles the time.
    let off = "select count(*) from seriatim.queue_group where rechecks > 5 and ready_at > clock_timestamp() + interval '1 s'";
    while scene.number(off).await == 0 {
        assert!(receive(&mut other, VISIBILITY).await.is_empty());
        sleep(Duration::from_millis(5)).await;
    }
    rollback(&mut locker).await;
    assert_eq!(answer(&mut receiver, &format!("ack('{}')", receipts[0])).await, "stale");
    receiver.close().await.unwrap();
    scene.end().await;
}
