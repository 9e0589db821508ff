//! A worker that stalled and lost its claim does no harm when it continues (P10).

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{begin, commit, enqueue, rollback, run};
use crate::interleavings::support::steps::{failed, succeeded};
use crate::job::disposition::Disposition;
use crate::store::{Claim, HoldAnswer};

/// Three ids of one group; the first is of an open transaction. A worker claims the second and
/// stalls, then the first is committed.
async fn stalled(scene: &Scene) -> (Claim, [i64; 3]) {
    let mut producer = scene.session().await;
    begin(&mut producer).await;
    let late = enqueue(&mut producer, &["g"]).await[0];
    let (second, third) = (scene.enqueue("g").await, scene.enqueue("g").await);
    let mut worker = scene.session().await;
    let claim = scene.claim_one(&mut worker).await;
    assert_eq!(claim.job, second);
    commit(&mut producer).await;
    (claim, [late, second, third])
}

#[tokio::test]
async fn a_fence_on_the_jobs_attempts_lets_two_jobs_of_a_group_run() {
    let scene = Scene::new().await;
    let (stale, [late, second, third]) = stalled(&scene).await;
    // Wrong: the lapsed group is given to its lowest id.
    scene.run(&format!("update seriatim.job set flagged = false where id = {late}")).await;
    scene
        .run(&format!(
            "update seriatim.queue_group set claim = gen_random_uuid(), job_id = {late}, \
             started_at = now(), ready_at = now() + interval '1 h'"
        ))
        .await;
    // Wrong: the stalled worker proves its claim by its job's attempt.
    let freed = scene
        .run(&format!(
            "with settled as (update seriatim.job set status = 'succeeded', finished_at = clock_timestamp() \
               where id = {} and finished_at is null and attempts = 0 returning group_id) \
             update seriatim.queue_group g set claim = null, job_id = null, ready_at = clock_timestamp() \
             from settled where g.group_id = settled.group_id",
            stale.job
        ))
        .await;
    assert_eq!(freed, 1);
    assert_eq!(scene.status(second).await, "succeeded");
    let mut other = scene.session().await;
    assert_eq!(scene.claim_one(&mut other).await.job, third);
    assert!(scene.is_claimed(third).await, "two jobs run at once: {late} is another worker's");
    scene.end().await;
}

#[tokio::test]
async fn a_stalled_workers_hold_and_settle_are_refused() {
    let scene = Scene::new().await;
    let (stale, [late, second, third]) = stalled(&scene).await;
    let mut other = scene.session().await;
    // No attempt is left: the take-over ends the job without a new one, so its number of attempts
    // stays the same.
    scene.run("update seriatim.job set max_attempts = 1 where seriatim.job_state(status, queue, group_id, id) = 'started'").await;
    scene.lease("g", -1).await;
    assert!(scene.claim(&mut other, 10).await.is_empty(), "only suspected");
    scene.lease("g", -1).await;
    let over = scene.claim_one(&mut other).await;
    assert_eq!((over.job, over.disposition), (second, Disposition::Exhausted));
    assert_ne!(over.token, stale.token);
    assert_refused(&scene, &stale).await;
    scene.hold(&mut other, &over).await;
    assert_eq!(scene.attempt(over.job).await, 1);
    assert_refused(&scene, &stale).await;
    scene.settle(&mut other, &over, &failed()).await;
    commit(&mut other).await;
    let running = scene.claim_one(&mut other).await;
    assert_eq!(running.job, late);
    // Between its claim and its hold, in its hold, and behind its end.
    assert_refused(&scene, &stale).await;
    scene.hold(&mut other, &running).await;
    assert_refused(&scene, &stale).await;
    scene.settle(&mut other, &running, &succeeded()).await;
    assert_refused(&scene, &stale).await;
    commit(&mut other).await;
    assert_refused(&scene, &stale).await;
    assert_eq!(scene.status(second).await, "failed");
    assert_eq!(scene.drain().await, [third]);
    assert_refused(&scene, &stale).await;
    scene.end().await;
}

/// Asserts that a stale worker can neither hold nor settle by token, which begins with a hold, nor
/// clear a suspicion.
async fn assert_refused(scene: &Scene, stale: &Claim) {
    let mut worker = scene.session().await;
    let before = scene.row("g").await;
    match scene.try_hold(&mut worker, stale).await {
        HoldAnswer::Lost => {}
        other => panic!("a stale worker's hold: {other:?}"),
    }
    rollback(&mut worker).await;
    scene.clear_suspicion(&mut worker, stale).await;
    assert_eq!(scene.row("g").await, before);
    run(&mut worker, "select 1").await;
}
