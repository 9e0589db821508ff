//! Suspicion, grace and take-over, and the order of turns (P2, P3, P8).

use tokio::time::Instant;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{begin, commit, pid, rollback, run};
use crate::interleavings::support::steps::{failed, succeeded};
use crate::job::disposition::Disposition;
use crate::store::HoldAnswer;

#[tokio::test]
async fn a_turn_passed_on_with_the_time_of_the_begin_jumps_the_queue() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        scene.enqueue("long").await;
        let next_of_long = scene.enqueue("long").await;
        let claim = scene.claim_one(&mut worker).await;
        scene.hold(&mut worker, &claim).await;
        // While the long handler runs, another group becomes ready.
        let waiting = scene.enqueue("waiting").await;
        let mut adopter = scene.session().await;
        scene.adopt(&mut adopter).await;
        commit(&mut adopter).await;
        if wrong {
            run(
                &mut worker,
                "update seriatim.job set status = 'succeeded', finished_at = now() where seriatim.job_state(status, queue, group_id, id) = 'started'",
            )
            .await;
            run(
                &mut worker,
                "update seriatim.queue_group set claim = null, job_id = null, ready_at = now() where group_id = 'long'",
            )
            .await;
        } else {
            scene.settle(&mut worker, &claim, &succeeded()).await;
        }
        commit(&mut worker).await;
        let next = scene.claim(&mut worker, 1).await.remove(0).job;
        assert_eq!(next, if wrong { next_of_long } else { waiting });
        scene.end().await;
    }
}

#[tokio::test]
async fn a_lapsed_claim_is_taken_over_only_after_its_grace() {
    let scene = Scene::new().await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let job = scene.enqueue("g").await;
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    let session = pid(&mut worker).await;
    scene.run(&format!("select pg_terminate_backend({session})")).await;
    scene.until_gone(session).await;
    // The handler does not know yet. Wrong: a claim of all that is due would run its job beside it.
    scene.lease("g", -1).await;
    let due = "select count(*) from seriatim.queue_group where ready_at <= clock_timestamp()";
    assert_eq!(scene.number(due).await, 1);
    assert!(scene.claim(&mut other, 10).await.is_empty());
    let row = scene.row("g").await.unwrap();
    assert!(row.suspected && !row.due, "{row:?}");
    // Suspected, and the grace is not over.
    assert!(scene.claim(&mut other, 10).await.is_empty());
    assert_eq!(scene.number(due).await, 0);
    scene.lease("g", -1).await;
    let over = scene.claim_one(&mut other).await;
    assert_eq!((over.job, over.disposition), (job, Disposition::Run));
    assert_ne!(over.token, claim.token);
    let held = scene.hold(&mut other, &over).await;
    assert_eq!((scene.attempt(job).await, held.suspected), (2, false));
    scene.settle(&mut other, &over, &succeeded()).await;
    commit(&mut other).await;
    scene.end().await;
}

#[tokio::test]
async fn a_late_hold_clears_the_suspicion_and_gets_a_new_grace() {
    let scene = Scene::new().await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    scene.enqueue("g").await;
    let claim = scene.claim_one(&mut worker).await;
    scene.lease("g", -1).await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    assert!(scene.hold(&mut worker, &claim).await.suspected);
    // Wrong: a hold that keeps the suspicion. If it broke now, the next claim would take over at
    // once.
    rollback(&mut worker).await;
    scene.clear_suspicion(&mut worker, &claim).await;
    assert!(!scene.row("g").await.unwrap().suspected);
    assert!(!scene.hold(&mut worker, &claim).await.suspected);
    rollback(&mut worker).await;
    scene.lease("g", -1).await;
    assert!(scene.claim(&mut other, 10).await.is_empty(), "only suspected again");
    assert!(scene.row("g").await.unwrap().suspected);
    scene.lease("g", -1).await;
    let over = scene.claim_one(&mut other).await;
    // Too late now: neither the hold nor a cleared suspicion by the old token has an effect.
    assert!(matches!(scene.try_hold(&mut worker, &claim).await, HoldAnswer::Lost));
    rollback(&mut worker).await;
    scene.run_job(&mut other, &over).await;
    scene.end().await;
}

/// A suspected and due claim, whose worker died in its last attempt.
async fn used_up(scene: &Scene) -> i64 {
    let mut worker = scene.session().await;
    let job = scene.enqueue("g").await;
    scene.claim_one(&mut worker).await;
    scene.run("update seriatim.job set max_attempts = 1").await;
    scene.lease("g", -1).await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    scene.lease("g", -1).await;
    job
}

#[tokio::test]
async fn a_take_over_that_retires_loses_a_job_adopted_meanwhile() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let dead = used_up(&scene).await;
        let mut other = scene.session().await;
        begin(&mut other).await;
        let turns = scene.lock_turns(&mut other, 10).await;
        let heads = scene.read_heads(&mut other, &turns).await;
        // A claimed row can be shared while the take-over has it locked, and the flag is cleared.
        let meanwhile = scene.enqueue("g").await;
        let mut adopter = scene.session().await;
        assert_eq!(scene.adopt(&mut adopter).await, 1);
        commit(&mut adopter).await;
        assert!(!scene.flagged(meanwhile).await);
        if wrong {
            run(
                &mut other,
                "update seriatim.job set status = 'failed', finished_at = now(), flagged = false \
                 where seriatim.job_state(status, queue, group_id, id) = 'started'",
            )
            .await;
            run(&mut other, "delete from seriatim.queue_group").await;
            commit(&mut other).await;
            assert!(scene.is_stranded(meanwhile).await);
        } else {
            let over = scene.write(&mut other, &heads).await.remove(0);
            assert_eq!((over.job, over.disposition), (dead, Disposition::Exhausted));
            scene.hold(&mut other, &over).await;
            scene.settle(&mut other, &over, &failed()).await;
            commit(&mut other).await;
            assert!(!scene.rescue("g").await);
            assert_eq!(scene.drain().await, [meanwhile]);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_take_over_without_a_job_frees_the_row_and_keeps_it() {
    let scene = Scene::new().await;
    used_up(&scene).await;
    scene.run("delete from seriatim.job").await;
    let mut other = scene.session().await;
    begin(&mut other).await;
    let turns = scene.lock_turns(&mut other, 10).await;
    let heads = scene.read_heads(&mut other, &turns).await;
    let meanwhile = scene.enqueue("g").await;
    let mut adopter = scene.session().await;
    assert_eq!(scene.adopt(&mut adopter).await, 1);
    commit(&mut adopter).await;
    assert!(scene.write(&mut other, &heads).await.is_empty());
    assert_eq!(scene.row("g").await.unwrap().job, None);
    assert_eq!(scene.drain().await, [meanwhile]);
    scene.end().await;
}

#[tokio::test]
async fn a_take_over_of_an_expired_job_keeps_the_lost_attempt() {
    let scene = Scene::new().await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let job = scene.enqueue("g").await;
    scene.claim_one(&mut worker).await;
    scene.run("update seriatim.job set expires_at = now()").await;
    for _ in 0..2 {
        assert!(scene.claim(&mut other, 10).await.is_empty(), "it is running, or may be");
        scene.lease("g", -1).await;
    }
    let over = scene.claim_one(&mut other).await;
    assert!(matches!(over.disposition, Disposition::Expired(_)), "{over:?}");
    scene.hold(&mut other, &over).await;
    assert_eq!((over.job, scene.attempt(job).await), (job, 1));
    scene.settle(&mut other, &over, &failed()).await;
    commit(&mut other).await;
    let lost = "select count(*) from seriatim.job where history -> 0 ->> 'kind' = 'worker_lost' \
                and jsonb_array_length(history) = 2";
    assert_eq!(scene.number(lost).await, 1);
    scene.end().await;
}

/// A restart ends all presences, and a process that the server told of it keeps its handlers for
/// some seconds. Wrong: a suspicion from before the restart, although its process could not have
/// noticed it.
#[tokio::test]
async fn a_suspicion_from_before_a_restart_gets_a_new_grace() {
    let scene = Scene::new().await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    for (group, receives) in [(true, false), (false, false), (true, true), (false, true)] {
        let job = crate::NewJob::new(Q, &1);
        let job = if group { job.group("g") } else { job };
        crate::enqueue(&mut worker, job).await.unwrap();
        assert_eq!(scene.claim(&mut worker, 1).await.len(), 1);
        let (table, due) = if group { ("queue_group", "ready_at") } else { ("job", "lease_until") };
        let lapse = format!("update seriatim.{table} set {due} = clock_timestamp()");
        // How long the suspicion still has.
        let in_ms = format!(
            "select (extract(epoch from {due} - clock_timestamp()) * 1000)::int8 \
             from seriatim.{table} where suspect = claim"
        );
        let mut claims = async || {
            scene.run(&lapse).await;
            if receives {
                run(&mut other, "select seriatim.receive('q', 1)").await
            } else {
                scene.claim(&mut other, 10).await.len() as u64
            }
        };
        let begun = Instant::now();
        assert_eq!(claims().await, 0);
        let due_in =
            scene.number(&in_ms).await + i64::try_from(begun.elapsed().as_millis()).unwrap() + 1;
        assert!((1_750..10_000).contains(&due_in), "{due_in}");
        scene.started_at("now").await;
        let begun = Instant::now();
        assert_eq!(claims().await, 0);
        let due_in =
            scene.number(&in_ms).await + i64::try_from(begun.elapsed().as_millis()).unwrap() + 1;
        assert!((15_000..30_000).contains(&due_in), "{due_in}");
        scene.started_at("2000-01-01").await;
        assert_eq!(claims().await, 1);
        scene.clear().await;
    }
    scene.end().await;
}
