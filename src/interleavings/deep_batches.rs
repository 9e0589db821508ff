//! Cost of a batch in a deep group: its settle, its take-over and its head snapshot (P7).
//!
//! PostgreSQL reads a range of an index on queue, group and id that ends within a group up to the
//! group's end. 100 k jobs are some 400 pages then.

use sqlx::PgConnection;

use crate::interleavings::support::meter::reads;
use crate::interleavings::support::scene::Scene;

use crate::interleavings::support::session::{Q, begin, commit, number, rollback, run};
use crate::interleavings::support::steps::OPTIONS;
use crate::store::{ClaimBounds, ClaimOptions, ScanStart, Subject};

const BACKLOG: &str = "insert into seriatim.job (queue, group_id, data, flagged) \
    select 'q', 'g', '1', n = 1 from generate_series(1, 100000) n";
/// Counts the lost attempt of the lapsed turn.
const LOSE: &str = "select seriatim.lose_attempts(array[(group_id, ctid, head_id, ready_at, \
    null, job_id, 'worker', true, job_id, 'run', false, 1, null, \
         null, null, null)::seriatim.turn]) from seriatim.queue_group";
/// Limit of pages for a batch of five.
const FEW: i64 = 200;

/// Returns the pages that a statement reads, the least of three times. It is undone and repeated:
/// if the leaf of an index is full, the first write to it reads more, and so does a session that
/// reads the catalog again, as other sessions made or dropped something.
async fn pages(conn: &mut PgConnection, sql: &str) -> i64 {
    let mut pages = i64::MAX;
    for _ in 0..3 {
        run(conn, "savepoint before").await;
        let before = reads(conn).await.pages;
        run(conn, sql).await;
        pages = pages.min(reads(conn).await.pages - before);
        run(conn, "rollback to before").await;
    }
    pages
}

#[tokio::test]
async fn ack_nack_and_a_repeated_receive_read_the_batch_alone() {
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
    let options = ClaimOptions { jobs_per_turn: 5, processor: Some(1), ..OPTIONS };
    let from = ScanStart::default();
    let claimed = scene
        .store
        .claim(&mut conn, Q, ClaimBounds::new(1, 0, false, from), options)
        .await
        .unwrap();
    assert_eq!(claimed.jobs[0].followers.len(), 4);
    let mut read = 0;
    for _ in 0..3 {
        begin(&mut conn).await;
        let before = reads(&mut conn).await.pages;
        run(&mut conn, LOSE).await;
        read = reads(&mut conn).await.pages - before;
        rollback(&mut conn).await;
    }
    assert!(read < FEW, "{read} pages");
    begin(&mut conn).await;
    run(&mut conn, LOSE).await;
    commit(&mut conn).await;
    // Under a lease its followers may have begun, and their successes were not recorded yet.
    let counted = "select count(*) from seriatim.job where attempts = 1 and history <> '[]'";
    assert_eq!(scene.number(counted).await, 5, "no number comes twice");
    let held_against = "select count(*) from seriatim.job where attempts > attempts_forgiven";
    assert_eq!(scene.number(held_against).await, 1, "only the first is known to have been lost");
    scene.end().await;
}

/// Returns the pages that an explain of the group reads. It counts the jobs behind the head up to
/// thousands, in some hundreds of pages.
async fn explained(scene: &Scene, conn: &mut PgConnection, reasons: &[&str]) -> i64 {
    let mut pages = 0;
    for _ in 0..3 {
        let before = reads(conn).await.pages;
        let facts = scene.store.facts(conn, Subject::Group(Q, "g")).await.unwrap();
        pages = reads(conn).await.pages - before;
        assert!(reasons.contains(&&*facts.unwrap().reason));
    }
    pages
}

/// Jobs of a claim may have been deleted by hand.
#[tokio::test]
async fn reading_heads_of_a_deleted_claim_reads_no_further() {
    for jobs_per_turn in [1, 5] {
        let scene = Scene::new().await;
        scene.run(BACKLOG).await;
        let mut conn = scene.session().await;
        let options = ClaimOptions { jobs_per_turn, ..OPTIONS };
        let from = ScanStart::default();
        let claimed = scene
            .store
            .claim(&mut conn, Q, ClaimBounds::new(1, 0, false, from), options)
            .await
            .unwrap();
        assert_eq!(claimed.jobs[0].followers.len() + 1, jobs_per_turn);
        let whole = explained(&scene, &mut conn, &["claimed", "lapsed"]).await;
        let claimed = "delete from seriatim.job where id = any (array( \
                       select unnest(coalesce(g.batch, array[g.job_id])) from seriatim.queue_group g))";
        assert_eq!(scene.run(claimed).await, jobs_per_turn as u64);
        let gone = explained(&scene, &mut conn, &["nothing"]).await;
        assert!(
            gone < whole + FEW / 4,
            "explain, {jobs_per_turn} a turn: {gone} pages, and {whole} before"
        );
        let lapsed =
            "update seriatim.queue_group set suspect = claim, ready_at = now() - interval '1 s'";
        scene.run(lapsed).await;
        begin(&mut conn).await;
        let turns = scene.lock_turns(&mut conn, 1).await;
        assert_eq!(turns.groups.len(), 1);
        let before = reads(&mut conn).await.pages;
        scene.read_heads(&mut conn, &turns).await;
        let read = reads(&mut conn).await.pages - before;
        assert!(read < FEW, "read heads, {jobs_per_turn} a turn: {read} pages");
        rollback(&mut conn).await;
        scene.end().await;
    }
}

/// Flags far behind the head: jobs that were queued again by hand, or are late.
#[tokio::test]
async fn a_sweep_reads_a_groups_first_flag_alone() {
    let scene = Scene::new().await;
    scene.run(&BACKLOG.replace("n = 1", "n > 1")).await;
    scene.run("vacuum analyze seriatim.job").await;
    let mut conn = scene.session().await;
    begin(&mut conn).await;
    let before = reads(&mut conn).await.pages;
    let rescued = number(&mut conn, "select seriatim.rescue('q', 'g')::integer::int8").await;
    assert_eq!(rescued, 1, "nothing would wake the first job");
    let read = reads(&mut conn).await.pages - before;
    assert!(read < FEW, "{read} pages");
    rollback(&mut conn).await;
    scene.end().await;
}
