//! What a batch of a deep group costs whoever ends a part of it, or takes it over (P7).
//!
//! A range of an index on queue, group and id that ends within a group is read to the group's end: PostgreSQL stops where the
//! group ends. 100 k jobs are some 400 pages then.

use sqlx::PgConnection;

use super::plans::reads;
use super::scene::{Q, Scene, TERMS, begin, commit, rollback, run};
use crate::store::{ReadFrom, Terms};

const BACKLOG: &str = "insert into seriatim.job (queue, group_id, data, flagged) \
    select 'q', 'g', '1', n = 1 from generate_series(1, 100000) n";
/// For a batch of five.
const FEW: i64 = 250;

/// The pages that a statement reads. It is undone, and done again: where the leaf of an index is full, the first write to it
/// reads more.
async fn pages(conn: &mut PgConnection, sql: &str) -> i64 {
    let mut pages = 0;
    for _ in 0..3 {
        run(conn, "savepoint before").await;
        let before = reads(conn).await.pages;
        run(conn, sql).await;
        pages = reads(conn).await.pages - before;
        run(conn, "rollback to before").await;
    }
    pages
}

#[tokio::test]
async fn an_ack_a_nack_and_a_receive_again_read_the_batch_alone() {
    let scene = Scene::new().await;
    scene.run(BACKLOG).await;
    let mut conn = scene.session().await;
    let receive = "select receipt from seriatim.receive('q', 5) order by id";
    let receipts: Vec<String> = sqlx::query_scalar(receive).fetch_all(&mut conn).await.unwrap();
    assert_eq!(receipts.len(), 5);
    begin(&mut conn).await;
    run(&mut conn, "set local statement_timeout = 0").await;
    for name in ["ack", "nack", "extend"] {
        let more = if name == "extend" { ", '60 s'" } else { "" };
        for receipt in [&receipts[0], &receipts[2], &receipts[4]] {
            let sql = format!("select seriatim.{name}('{receipt}'{more})");
            let pages = pages(&mut conn, &sql).await;
            assert!(pages < FEW, "{name}: {pages} pages");
        }
    }
    let lapsed =
        "update seriatim.queue_group set suspect = claim, ready_at = now() - interval '1 s'";
    run(&mut conn, lapsed).await;
    let pages = pages(&mut conn, "select count(*) from seriatim.receive('q', 5)").await;
    assert!(pages < FEW, "receive: {pages} pages");
    rollback(&mut conn).await;
    scene.end().await;
}

#[tokio::test]
async fn a_worker_that_takes_a_turn_over_reads_the_turn_alone() {
    let scene = Scene::new().await;
    scene.run(BACKLOG).await;
    let mut conn = scene.session().await;
    let terms = Terms { jobs_per_turn: 5, ..TERMS };
    let from = ReadFrom::default();
    let claimed = scene.store.claim_at_once(&mut conn, Q, 1, false, terms, from).await.unwrap();
    assert_eq!(claimed.jobs[0].behind.len(), 4);
    let mut read = 0;
    for _ in 0..3 {
        begin(&mut conn).await;
        let before = reads(&mut conn).await.pages;
        scene.store.return_batches(&mut conn, Q, &["g"]).await.unwrap();
        read = reads(&mut conn).await.pages - before;
        rollback(&mut conn).await;
    }
    assert!(read < FEW, "{read} pages");
    begin(&mut conn).await;
    scene.store.return_batches(&mut conn, Q, &["g"]).await.unwrap();
    commit(&mut conn).await;
    let left =
        "select count(*) from seriatim.job where status = 'started' or attempts_forgiven > 0";
    assert_eq!(scene.id(left).await, 5);
    scene.end().await;
}
