//! Calls of receivers that share receipts.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{Q, begin, commit, enqueue, pid, rollback, run};

/// Receives a job of each of the groups a and b.
async fn received(scene: &Scene) -> [String; 2] {
    let mut session = scene.session().await;
    enqueue(&mut session, &["a", "b"]).await;
    let receive = format!("select receipt from seriatim.receive('{Q}', 2) order by group_id");
    let receipts: Vec<String> =
        sqlx::query_scalar(AssertSqlSafe(receive)).fetch_all(&mut session).await.unwrap();
    receipts.try_into().unwrap()
}

async fn ack_many(conn: &mut PgConnection, receipts: [String; 2]) -> Vec<String> {
    sqlx::query_scalar("select answer from seriatim.ack_many($1)")
        .bind(receipts)
        .fetch_all(conn)
        .await
        .unwrap()
}

async fn ack(conn: &mut PgConnection, receipt: &str) -> String {
    sqlx::query_scalar("select seriatim.ack($1)").bind(receipt).fetch_one(conn).await.unwrap()
}

/// One transaction has b and wants a, the other wants both.
#[tokio::test]
async fn a_call_that_waits_for_a_row_keeps_no_other() {
    let scene = Scene::new().await;
    let [a, b] = received(&scene).await;
    let (mut first, mut second) = (scene.session().await, scene.session().await);

    // Wrong: wait with the rows that could be locked.
    begin(&mut first).await;
    assert_eq!(ack(&mut first, &b).await, "done");
    begin(&mut second).await;
    run(&mut second, "set local search_path = seriatim").await;
    let hold = format!(
        "select receive_hold(array[job], array[token], false, null) from parse_receipt('{a}')"
    );
    run(&mut second, &hold).await;
    assert_eq!(ack(&mut first, &a).await, "busy");
    rollback(&mut second).await;
    rollback(&mut first).await;

    begin(&mut first).await;
    assert_eq!(ack(&mut first, &b).await, "done");
    let waiting = pid(&mut second).await;
    let receipts = [a.clone(), b];
    let both = tokio::spawn(async move { ack_many(&mut second, receipts).await });
    scene.until_waits(waiting, "PgSleep").await;
    assert_eq!(ack(&mut first, &a).await, "done");
    commit(&mut first).await;
    assert_eq!(both.await.unwrap(), ["stale", "stale"]);
    scene.end().await;
}
