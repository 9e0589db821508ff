//! A checkpoint of a worker whose claim is taken over while it is written (P10).

use sqlx::{AssertSqlSafe, PgConnection};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{begin, commit, pid, rollback, run};
use crate::interleavings::support::steps::succeeded;
use crate::store::Claim;

/// Writes a checkpoint by a function that is called as `write_progress` is.
async fn keep(conn: &mut PgConnection, function: &str, claim: &Claim, checkpoint: &str) -> bool {
    let (job, token) = (claim.job, claim.token);
    let call = format!("select {function}({job}, '{token}', null, null, '{checkpoint}')");
    sqlx::query_scalar(AssertSqlSafe(call)).fetch_one(conn).await.unwrap()
}

const RIGHT: &str = "seriatim.write_progress";
const KEPT: &str = "select (checkpoint::text)::bigint from seriatim.job_progress";

/// A worker's write waits for the row, and its claim is taken over meanwhile. Returns its answer,
/// and both claims.
async fn written_late(scene: &Scene, function: &'static str) -> (bool, Claim, Claim) {
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    scene.enqueue("g").await;
    let stale = scene.claim_one(&mut worker).await;
    assert!(keep(&mut worker, RIGHT, &stale, "1").await);
    let mut blocker = scene.session().await;
    begin(&mut blocker).await;
    run(&mut blocker, "select from seriatim.job_progress for update").await;
    run(&mut worker, "set lock_timeout = 0").await;
    let waits = pid(&mut worker).await;
    let late = stale.clone();
    let writing = tokio::spawn(async move { keep(&mut worker, function, &late, "2").await });
    scene.until_waits(waits, "transactionid").await;
    scene.lease("g", -1).await;
    assert!(scene.claim(&mut other, 1).await.is_empty(), "only suspected");
    scene.lease("g", -1).await;
    let taken = scene.claim_one(&mut other).await;
    assert_eq!(taken.job, stale.job);
    rollback(&mut blocker).await;
    (writing.await.unwrap(), stale, taken)
}

#[tokio::test]
async fn a_claim_that_is_read_before_the_write_may_be_lost_by_then() {
    let scene = Scene::new().await;
    // Wrong: look first, then lock.
    scene
        .run(
            "create function public.looks_first(job bigint, token uuid, percent integer, message text,
               checkpoint jsonb) returns boolean language plpgsql as $$
             begin
               if not seriatim.claim_stands(job, token) then
                 return false;
               end if;
               perform seriatim.put_progress(job, percent, message, checkpoint);
               return true;
             end $$",
        )
        .await;
    let (kept, ..) = written_late(&scene, "public.looks_first").await;
    assert!(kept);
    assert_eq!(scene.number(KEPT).await, 2, "a stale worker has written");
    scene.end().await;
}

#[tokio::test]
async fn a_write_reads_the_claim_behind_its_lock() {
    let scene = Scene::new().await;
    let (kept, stale, taken) = written_late(&scene, RIGHT).await;
    assert!(!kept);
    assert_eq!(scene.number(KEPT).await, 1);
    let mut session = scene.session().await;
    assert!(keep(&mut session, RIGHT, &taken, "3").await);
    assert!(!keep(&mut session, RIGHT, &stale, "4").await);
    assert_eq!(scene.number(KEPT).await, 3);
    scene.end().await;
}

#[tokio::test]
async fn a_suspected_claim_writes_nothing_until_it_is_cleared() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    scene.enqueue("g").await;
    let claim = scene.claim_one(&mut worker).await;
    scene.lease("g", -1).await;
    let mut other = scene.session().await;
    assert!(scene.claim(&mut other, 1).await.is_empty(), "only suspected");
    // A first write would make a row.
    assert!(!keep(&mut worker, RIGHT, &claim, "1").await);
    assert_eq!(scene.number("select count(*) from seriatim.job_progress").await, 0);
    scene.clear_suspicion(&mut worker, &claim).await;
    assert!(keep(&mut worker, RIGHT, &claim, "2").await);
    scene.end().await;
}

#[tokio::test]
async fn a_write_neither_waits_for_the_hold_nor_holds_up_its_settle() {
    let scene = Scene::new().await;
    let (mut worker, mut side) = (scene.session().await, scene.session().await);
    scene.enqueue("g").await;
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    begin(&mut side).await;
    assert!(keep(&mut side, RIGHT, &claim, "1").await);
    scene.settle(&mut worker, &claim, &succeeded()).await;
    commit(&mut worker).await;
    // A write that the server goes on with behind the settle leaves a row, which nobody is shown.
    commit(&mut side).await;
    assert_eq!(scene.number(KEPT).await, 1);
    assert!(!keep(&mut side, RIGHT, &claim, "2").await);
    let forget = "select seriatim.forget_left_progress(0, 10)";
    assert_eq!(scene.number(forget).await, claim.job);
    assert_eq!(scene.number("select count(*) from seriatim.job_progress").await, 0);
    scene.end().await;
}
