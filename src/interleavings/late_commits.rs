//! Ids that commit late: they go next, never beside a running job, and are never skipped (P1, P2,
//! P3).

use sqlx::PgConnection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{begin, commit, enqueue, rollback, run};
use crate::interleavings::support::steps::{retried, succeeded};

/// An open transaction with jobs in it.
async fn producer(scene: &Scene, groups: &[&str]) -> (PgConnection, Vec<i64>) {
    let mut producer = scene.session().await;
    begin(&mut producer).await;
    let ids = enqueue(&mut producer, groups).await;
    (producer, ids)
}

#[tokio::test]
async fn two_open_enqueues_to_one_group_run_one_at_a_time() {
    for first_commits_first in [true, false] {
        let scene = Scene::new().await;
        let (mut one, low) = producer(&scene, &["g", "g"]).await;
        let (mut two, high) = producer(&scene, &["g", "g"]).await;
        let mut worker = scene.session().await;
        let mut other = scene.session().await;
        assert!(scene.claim(&mut other, 10).await.is_empty());
        if first_commits_first {
            commit(&mut one).await;
            let claim = scene.claim_one(&mut worker).await;
            assert_eq!(claim.job, low[0]);
            commit(&mut two).await;
            assert!(scene.claim(&mut other, 10).await.is_empty());
            scene.run_job(&mut worker, &claim).await;
            assert_eq!(scene.drain().await, [low[1], high[0], high[1]]);
        } else {
            commit(&mut two).await;
            let claim = scene.claim_one(&mut worker).await;
            assert_eq!(claim.job, high[0]);
            scene.hold(&mut worker, &claim).await;
            commit(&mut one).await;
            // Never beside the running one, and next behind it.
            assert!(scene.claim(&mut other, 10).await.is_empty());
            scene.settle(&mut worker, &claim, &succeeded()).await;
            commit(&mut worker).await;
            assert_eq!(scene.drain().await, [low[0], low[1], high[1]]);
        }
        assert!(!scene.rescue("g").await);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_late_id_without_its_flag_is_stranded() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (mut late, low) = producer(&scene, &["g"]).await;
        scene.enqueue("g").await;
        let mut worker = scene.session().await;
        let claim = scene.claim_one(&mut worker).await;
        scene.hold(&mut worker, &claim).await;
        commit(&mut late).await;
        let mut adopter = scene.session().await;
        if wrong {
            // Wrong: any flag may be cleared with a claimed row that is shared.
            begin(&mut adopter).await;
            run(
                &mut adopter,
                "select 1 from seriatim.queue_group where claim is not null for key share skip locked",
            )
            .await;
            run(&mut adopter, "update seriatim.job set flagged = false where flagged and id = (select min(id) from seriatim.job)").await;
        } else {
            assert_eq!(scene.adopt(&mut adopter).await, 1);
        }
        commit(&mut adopter).await;
        scene.settle(&mut worker, &claim, &succeeded()).await;
        commit(&mut worker).await;
        if wrong {
            assert!(scene.claim(&mut worker, 10).await.is_empty());
            assert_eq!(scene.status(low[0]).await, "queued");
            assert!(scene.rescue("g").await, "only the sweep finds it");
        } else {
            assert!(!scene.rescue("g").await);
        }
        assert_eq!(scene.drain().await, low);
        scene.end().await;
    }
}

/// A job whose retry is long away, and its group asleep with it.
async fn sleeper(scene: &Scene) -> i64 {
    let mut worker = scene.session().await;
    let id = scene.enqueue("g").await;
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    let later = retried(std::time::Duration::from_hours(1));
    scene.settle(&mut worker, &claim, &later).await;
    commit(&mut worker).await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    let row = scene.row("g").await.unwrap();
    assert_eq!((row.head, row.due), (id, false));
    id
}

#[tokio::test]
async fn a_late_id_wakes_a_group_that_sleeps_for_a_higher_one() {
    let scene = Scene::new().await;
    let (mut late, low) = producer(&scene, &["g", "g"]).await;
    let asleep = sleeper(&scene).await;
    commit(&mut late).await;
    let mut worker = scene.session().await;
    for id in low {
        let claim = scene.claim_one(&mut worker).await;
        assert_eq!(claim.job, id);
        scene.run_job(&mut worker, &claim).await;
    }
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    assert_eq!(scene.row("g").await.unwrap().head, asleep);
    assert!(!scene.rescue("g").await);
    assert!(scene.cancel(asleep).await);
    assert_eq!(scene.drain().await, [0_i64; 0]);
    scene.end().await;
}

#[tokio::test]
async fn the_job_behind_a_late_cancelled_id_is_not_skipped() {
    // Adopted while the group's row is claimed, while it is free, and asleep.
    for row in ["claimed", "free", "asleep"] {
        let scene = Scene::new().await;
        let (mut late, low) = producer(&scene, &["g", "g"]).await;
        let mut worker = scene.session().await;
        let mut adopter = scene.session().await;
        let mut left = Vec::new();
        let mut running = None;
        if row == "asleep" {
            left.push(sleeper(&scene).await);
        } else {
            scene.enqueue("g").await;
            let claim = scene.claim_one(&mut worker).await;
            scene.hold(&mut worker, &claim).await;
            if row == "free" {
                left.push(scene.enqueue("g").await);
                scene.settle(&mut worker, &claim, &succeeded()).await;
                commit(&mut worker).await;
            } else {
                running = Some(claim);
            }
        }
        commit(&mut late).await;
        assert!(scene.cancel(low[0]).await);
        scene.adopt(&mut adopter).await;
        commit(&mut adopter).await;
        assert!(!scene.rescue("g").await, "{row}");
        if let Some(claim) = running {
            scene.settle(&mut worker, &claim, &succeeded()).await;
            commit(&mut worker).await;
        }
        let claim = scene.claim_one(&mut worker).await;
        assert_eq!(claim.job, low[1], "{row}");
        scene.run_job(&mut worker, &claim).await;
        for id in left {
            scene.cancel(id).await;
        }
        scene.drain().await;
        scene.end().await;
    }
}

/// P1 for the follower: a job enqueued after its commit must not start before it, with or without
/// an adopter between.
#[tokio::test]
async fn the_job_behind_a_late_cancelled_id_goes_before_later_ones() {
    let scene = Scene::new().await;
    let (mut late, low) = producer(&scene, &["g", "g"]).await;
    scene.enqueue("g").await;
    let mut worker = scene.session().await;
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    commit(&mut late).await;
    assert!(scene.cancel(low[0]).await);
    let behind = scene.enqueue("g").await;
    // An adopter runs while the group is claimed: the late flag stays, the other one is cleared.
    let mut adopter = scene.session().await;
    scene.adopt(&mut adopter).await;
    commit(&mut adopter).await;
    assert!(scene.flagged(low[0]).await && !scene.flagged(behind).await);
    scene.settle(&mut worker, &claim, &succeeded()).await;
    commit(&mut worker).await;
    // Another adopter has the group's lock: no claim reads the flag.
    begin(&mut adopter).await;
    let first = scene.claim(&mut worker, 10).await;
    if let Some(first) = first.first() {
        assert_ne!(first.job, behind, "it was enqueued after {low:?} was committed");
        scene.run_job(&mut worker, first).await;
    }
    commit(&mut adopter).await;
    let mut ran: Vec<i64> = first.iter().map(|claim| claim.job).collect();
    ran.extend(scene.drain().await);
    assert_eq!(ran, [low[1], behind]);
    scene.end().await;
}

#[tokio::test]
async fn a_late_enqueue_rolled_back_leaves_the_group_as_it_was() {
    let scene = Scene::new().await;
    let (mut late, _) = producer(&scene, &["g", "g"]).await;
    let id = scene.enqueue("g").await;
    let mut worker = scene.session().await;
    let claim = scene.claim_one(&mut worker).await;
    rollback(&mut late).await;
    scene.run_job(&mut worker, &claim).await;
    assert_eq!(claim.job, id);
    assert_eq!(scene.row("g").await, None);
    scene.end().await;
}
