//! Requests to cancel, also from transactions that stay open: the group continues, and claims never
//! wait (P3).

use sqlx::PgConnection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{
    begin, commit, enqueue, enqueue_delayed, lock_job, pid, rollback, run,
};
use crate::interleavings::support::steps::KEEP;
use crate::job::outcome::Outcome;
use crate::store::Acting;

/// A head that is due in an hour, its group asleep, and a job behind it.
async fn delayed_head(scene: &Scene, worker: &mut PgConnection) -> (i64, i64) {
    let head = enqueue_delayed(worker, "g").await;
    let behind = scene.enqueue("g").await;
    assert!(scene.claim(worker, 10).await.is_empty());
    assert!(!scene.row("g").await.unwrap().due);
    (head, behind)
}

#[tokio::test]
async fn a_cancel_without_a_flag_lets_the_group_sleep_on() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let (head, behind) = delayed_head(&scene, &mut worker).await;
    scene
        .run(&format!(
            "update seriatim.job set status = 'cancelled', finished_at = now(), flagged = false where id = {head}"
        ))
        .await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    assert!(!scene.row("g").await.unwrap().due);
    assert!(scene.rescue("g").await, "only the sweep finds it");
    assert_eq!(scene.drain().await, [behind]);
    scene.end().await;
}

/// Cancels `head` in an open transaction, lets another worker claim, and ends the transaction.
async fn cancel_open(scene: &Scene, head: i64, committed: bool) -> PgConnection {
    let mut canceller = scene.session().await;
    run(&mut canceller, "begin").await;
    let report = scene.store.cancel(&mut canceller, head, Acting::default()).await.unwrap();
    assert!(report.done);
    // Neither an adoption nor a claim waits for it, and the job behind does not pass it.
    let mut other = scene.session().await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    run(&mut canceller, if committed { "commit" } else { "rollback" }).await;
    canceller
}

#[tokio::test]
async fn a_group_continues_when_its_delayed_head_is_cancelled() {
    for committed in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        let (head, behind) = delayed_head(&scene, &mut worker).await;
        let mut canceller = cancel_open(&scene, head, committed).await;
        if !committed {
            assert!(scene.claim(&mut worker, 10).await.is_empty());
            assert!(!scene.row("g").await.unwrap().due);
            assert!(!scene.rescue("g").await);
            scene.store.cancel(&mut canceller, head, Acting::default()).await.unwrap();
        }
        assert_eq!(scene.drain().await, [behind]);
        assert_eq!(scene.status(head).await, "cancelled");
        scene.end().await;
    }
}

#[tokio::test]
async fn a_group_continues_when_its_unadopted_head_is_cancelled() {
    for committed in [true, false] {
        let scene = Scene::new().await;
        let mut producer = scene.session().await;
        let ids = enqueue(&mut producer, &["g", "g"]).await;
        cancel_open(&scene, ids[0], committed).await;
        assert!(scene.flagged(ids[0]).await);
        let expected = if committed { &ids[1..] } else { &ids[..] };
        assert_eq!(scene.drain().await, expected);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_group_continues_when_its_due_head_is_cancelled() {
    for committed in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        let ids = enqueue(&mut worker, &["g", "g", "g"]).await;
        // Ready, free and due, with the second job at its head.
        let claim = scene.claim_one(&mut worker).await;
        scene.run_job(&mut worker, &claim).await;
        cancel_open(&scene, ids[1], committed).await;
        let expected = if committed { &ids[2..] } else { &ids[1..] };
        assert_eq!(scene.drain().await, expected);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_cancel_that_writes_a_running_job_waits_for_its_handler() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let ids = enqueue(&mut worker, &["g", "g"]).await;
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    let mut wrong = scene.session().await;
    let wrong_pid = pid(&mut wrong).await;
    let sql = format!(
        "update seriatim.job set status = 'cancelled', finished_at = now() where id = {} and status <> 'succeeded'",
        ids[0]
    );
    let wrong = tokio::spawn(async move { run(&mut wrong, &sql).await });
    scene.until_waits(wrong_pid, "transactionid").await;
    // The crate's cancel leaves a request, in a transaction that stays open for a while.
    let mut canceller = scene.session().await;
    run(&mut canceller, "begin").await;
    let report = scene.store.cancel(&mut canceller, ids[0], Acting::default()).await.unwrap();
    assert!(!report.done);
    let store = &scene.store;
    assert!(!store.at_failure(&mut worker, ids[0]).await.unwrap().cancel_requested);
    run(&mut canceller, "commit").await;
    assert!(store.at_failure(&mut worker, ids[0]).await.unwrap().cancel_requested);
    let settled = store.settle(&mut worker, &claim, &Outcome::Cancelled, KEEP);
    settled.await.unwrap();
    commit(&mut worker).await;
    wrong.await.unwrap();
    assert_eq!(scene.status(ids[0]).await, "cancelled");
    assert_eq!(scene.number("select count(*) from seriatim.cancel_request").await, 0);
    assert_eq!(scene.drain().await, ids[1..]);
    scene.end().await;
}

#[tokio::test]
async fn a_cancel_of_a_job_locked_by_an_adopter_is_carried_out() {
    let scene = Scene::new().await;
    let mut producer = scene.session().await;
    let ids = enqueue(&mut producer, &["g", "g"]).await;
    let mut adopter = scene.session().await;
    begin(&mut adopter).await;
    lock_job(&mut adopter, ids[0], "no key update").await;
    assert!(!scene.cancel(ids[0]).await, "only a request");
    commit(&mut adopter).await;
    let mut worker = scene.session().await;
    let claim = scene.claim_one(&mut worker).await;
    let held = scene.hold(&mut worker, &claim).await;
    assert_eq!((claim.job, held.cancel_requested), (ids[0], true));
    rollback(&mut worker).await;
    scene.end().await;
}

#[tokio::test]
async fn maintenance_cancels_a_queued_job_that_a_request_missed() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let (head, behind) = delayed_head(&scene, &mut worker).await;
    // Another session has the row locked for a moment.
    begin(&mut worker).await;
    lock_job(&mut worker, head, "no key update").await;
    assert!(!scene.cancel(head).await);
    rollback(&mut worker).await;
    begin(&mut worker).await;
    assert_eq!(scene.store.settle_requests(&mut worker).await.unwrap(), 1);
    commit(&mut worker).await;
    assert_eq!(scene.status(head).await, "cancelled");
    assert_eq!(scene.drain().await, [behind]);
    scene.end().await;
}
