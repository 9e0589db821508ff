//! Jobs that move to another queue: found there, and nowhere else, whatever had read them before
//! (P2, P3).

use sqlx::PgConnection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{
    begin, commit, enqueue, enqueue_delayed, lock_group, lock_job, number, rollback, run,
};
use crate::interleavings::support::steps::{KEEP, failed, retried, succeeded};

/// Where jobs are moved to.
const DEAD: &str = "dead";
/// The condition by which a statement that locks a job by its id checks its queue again.
const ASKS_AGAIN: &str = " and j.queue = any (array[terms.queue])";

/// Moves what waits in the queue, up to `n` jobs. Returns how many it moved.
async fn move_waiting(conn: &mut PgConnection, n: i64) -> i64 {
    number(conn, &format!("select seriatim.move_waiting('{Q}', '{DEAD}', {n}::integer)")).await
}

/// Whether nothing would wake a job of the target: the sweep of that queue would find it.
async fn is_found_there(scene: &Scene, job: i64) -> bool {
    let received = format!("select coalesce(min(r.id), 0) from seriatim.receive('{DEAD}', 10) r");
    scene.number(&received).await == job
}

#[tokio::test]
async fn a_claim_that_read_a_job_before_its_move_does_not_start_it() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        // A group that is new: nothing of it is locked but by its claim.
        let job = scene.enqueue("g").await;
        scene.close_gate().await;
        let gate = "where turn.lapsed_job is null\n";
        let mut replace = vec![(gate, "where turn.lapsed_job is null and public.pass_gate()\n")];
        if wrong {
            replace.push((ASKS_AGAIN, ""));
        }
        scene.rewrite("read_heads", &replace).await;
        let claiming = scene.claim_at_gate().await;
        let mut mover = scene.session().await;
        assert_eq!(move_waiting(&mut mover, 10).await, 1);
        scene.open_gate().await;
        claiming.await.unwrap();
        // Wrong: a turn of the one queue names a job of the other, which gives it out too.
        assert_eq!(scene.is_claimed(job).await, wrong);
        assert!(is_found_there(&scene, job).await);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_follower_that_was_moved_ends_the_turn_before_it() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let mut producer = scene.session().await;
        let ids = enqueue(&mut producer, &["g", "g"]).await;
        scene.close_gate().await;
        let mut replace = vec![("n on head.is_head", "n on head.is_head and public.pass_gate()")];
        if wrong {
            replace.push((ASKS_AGAIN, ""));
        }
        scene.rewrite("follow", &replace).await;
        let claiming = scene.claim_at_gate().await;
        // The head is locked by the claim.
        let mut mover = scene.session().await;
        assert_eq!(move_waiting(&mut mover, 10).await, 1);
        scene.open_gate().await;
        claiming.await.unwrap();
        assert_eq!(scene.status(ids[0]).await, "started");
        assert_eq!(scene.is_claimed(ids[1]).await, wrong);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_claim_leaves_the_flag_of_a_job_that_was_moved() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        // A new group with two flags: the second goes as soon as the group has its row.
        let first = scene.enqueue("g").await;
        let second = scene.enqueue("g").await;
        // So it is no follower, which the claim would lock.
        scene.run("update seriatim.job set max_attempts = 1").await;
        scene.close_gate().await;
        let reads = "and j.flagged and j.id >= g.from_id";
        let with_gate = format!("{reads} and public.pass_gate()");
        let mut replace = vec![(reads, with_gate.as_str())];
        if wrong {
            replace.push(("limit 10 for no key update skip locked", "limit 10"));
        }
        scene.rewrite("clear_flags_from", &replace).await;
        let claiming = scene.claim_at_gate().await;
        // The head is locked by the claim.
        let mut mover = scene.session().await;
        assert_eq!(move_waiting(&mut mover, 10).await, 1);
        scene.open_gate().await;
        claiming.await.unwrap();
        assert!(scene.flagged(first).await);
        // Wrong: its flag stands for it in the other queue.
        assert_eq!(scene.flagged(second).await, !wrong);
        scene.end().await;
    }
}

#[tokio::test]
async fn what_a_moved_job_stood_for_is_flagged() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let mut producer = scene.session().await;
        // One statement: its first job alone is flagged.
        let ids = enqueue(&mut producer, &["g", "g"]).await;
        if wrong {
            let flags = "update job j set flagged = true where j.id = next.id;";
            scene.rewrite("leave_group", &[(flags, "")]).await;
        }
        let mut mover = scene.session().await;
        assert_eq!(move_waiting(&mut mover, 1).await, 1);
        let mut worker = scene.session().await;
        if wrong {
            assert!(scene.claim(&mut worker, 10).await.is_empty());
            assert!(scene.rescue("g").await, "only the sweep finds it");
        }
        assert_eq!(scene.drain().await, ids[1..]);
        assert!(is_found_there(&scene, ids[0]).await);
        scene.end().await;
    }
}

/// Moves dead letters back. Returns how many.
async fn redrive(conn: &mut PgConnection, ids: &[i64]) -> i64 {
    let redrive = format!("select moved_back from seriatim.redrive_jobs(array{ids:?}::bigint[])");
    number(conn, &redrive).await
}

#[tokio::test]
async fn what_dead_letters_that_are_redriven_stood_for_is_flagged() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let mut producer = scene.session().await;
        // One statement: its first job alone is flagged.
        let ids = enqueue(&mut producer, &["g", "g", "g", "g"]).await;
        scene.run(&format!("update seriatim.job set moved_from = '{DEAD}'")).await;
        if wrong {
            let flags = "update job j set flagged = true where j.id = next.id;";
            scene.rewrite("leave_group", &[(flags, "")]).await;
        }
        let mut operator = scene.session().await;
        assert_eq!(redrive(&mut operator, &[ids[2], ids[0]]).await, 2);
        let mut worker = scene.session().await;
        if wrong {
            assert!(scene.claim(&mut worker, 10).await.is_empty());
            assert!(scene.rescue("g").await, "only the sweep finds it");
        }
        assert_eq!(scene.drain().await, [ids[1], ids[3]]);
        assert!(is_found_there(&scene, ids[0]).await);
        scene.end().await;
    }
}

#[tokio::test]
async fn dead_letters_of_a_group_that_is_held_are_redriven_later() {
    let scene = Scene::new().await;
    let mut producer = scene.session().await;
    let ids = enqueue(&mut producer, &["g", "g", "h"]).await;
    scene.run(&format!("update seriatim.job set moved_from = '{DEAD}'")).await;
    let mut worker = scene.session().await;
    let claims = scene.claim(&mut worker, 1).await;
    let running = claims[0].job;
    // A handler in its transaction has the group's row, and its job runs.
    scene.hold(&mut worker, &claims[0]).await;
    let mut operator = scene.session().await;
    let free = i64::from(running == ids[0]) + 2 * i64::from(running == ids[2]);
    assert_eq!(redrive(&mut operator, &ids).await, free);
    rollback(&mut worker).await;
    // It is in flight still.
    let left = ids.iter().filter(|id| **id != running).count();
    assert_eq!(redrive(&mut operator, &ids).await, i64::try_from(left).unwrap() - free);
    scene.end().await;
}

#[tokio::test]
async fn a_group_whose_next_job_is_locked_is_moved_later() {
    let scene = Scene::new().await;
    let mut producer = scene.session().await;
    let ids = enqueue(&mut producer, &["g", "g", "g"]).await;
    let mut other = scene.session().await;
    begin(&mut other).await;
    lock_job(&mut other, ids[1], "no key update").await;
    let mut mover = scene.session().await;
    assert_eq!(move_waiting(&mut mover, 10).await, 0);
    rollback(&mut other).await;
    assert_eq!(move_waiting(&mut mover, 10).await, 3);
    assert_eq!(scene.drain().await, [0_i64; 0]);
    assert!(is_found_there(&scene, ids[0]).await);
    scene.end().await;
}

#[tokio::test]
async fn a_row_that_sleeps_for_a_moved_job_is_woken() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let job = enqueue_delayed(&mut worker, "g").await;
    scene.run("update seriatim.job set turn_at = now()").await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    assert!(!scene.row("g").await.unwrap().due);
    // A claim that has the row may let it sleep on.
    let mut other = scene.session().await;
    begin(&mut other).await;
    lock_group(&mut other, "g", "no key update").await;
    let mut mover = scene.session().await;
    assert_eq!(move_waiting(&mut mover, 10).await, 0);
    rollback(&mut other).await;
    assert_eq!(move_waiting(&mut mover, 10).await, 1);
    assert_eq!(scene.drain().await, [0_i64; 0]);
    assert!(is_found_there(&scene, job).await);
    scene.end().await;
}

#[tokio::test]
async fn a_job_that_runs_while_those_around_it_move_passes_its_turn_on() {
    let scene = Scene::new().await;
    let mut late = scene.session().await;
    begin(&mut late).await;
    let low = enqueue(&mut late, &["g", "g"]).await;
    let running = scene.enqueue("g").await;
    let behind = scene.enqueue("g").await;
    let mut worker = scene.session().await;
    let claim = scene.claim_one(&mut worker).await;
    assert_eq!(claim.job, running);
    commit(&mut late).await;
    let mut mover = scene.session().await;
    assert_eq!(move_waiting(&mut mover, 1).await, 1);
    // A handler in its transaction has the group's row: what is left of it waits.
    scene.hold(&mut worker, &claim).await;
    assert_eq!(move_waiting(&mut mover, 1).await, 0);
    scene.settle(&mut worker, &claim, &succeeded()).await;
    commit(&mut worker).await;
    assert_eq!(scene.drain().await, [low[1], behind]);
    assert!(is_found_there(&scene, low[0]).await);
    scene.end().await;
}

#[tokio::test]
async fn a_dead_letter_is_in_one_queue_whatever_its_settle_comes_to() {
    for committed in [true, false] {
        let scene = Scene::new().await;
        scene
            .run(&format!(
                "select seriatim.configure_queue('{Q}', '{{\"dead_letter_queue\": \"{DEAD}\"}}')"
            ))
            .await;
        let mut producer = scene.session().await;
        let ids = enqueue(&mut producer, &["g", "g"]).await;
        let mut worker = scene.session().await;
        let claim = scene.claim_one(&mut worker).await;
        scene.hold(&mut worker, &claim).await;
        let settled = scene.store.settle(&mut worker, &claim, &failed(), KEEP).await;
        settled.unwrap();
        // Neither queue gives it out before the commit, and nothing waits.
        let mut other = scene.session().await;
        assert!(scene.claim(&mut other, 10).await.is_empty());
        assert!(!is_found_there(&scene, ids[0]).await);
        if committed {
            commit(&mut worker).await;
            assert!(is_found_there(&scene, ids[0]).await);
            assert_eq!(scene.drain().await, ids[1..]);
        } else {
            rollback(&mut worker).await;
            assert_eq!(scene.status(ids[0]).await, "started");
            scene.hold(&mut worker, &claim).await;
            let later = retried(std::time::Duration::ZERO);
            scene.settle(&mut worker, &claim, &later).await;
            commit(&mut worker).await;
            assert!(!is_found_there(&scene, ids[0]).await);
            assert_eq!(scene.drain().await, ids);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_lower_dead_letter_runs_next_in_a_group_that_is_there() {
    let scene = Scene::new().await;
    let mut producer = scene.session().await;
    // The dead-letter queue is the scene's, and has the higher jobs.
    run(&mut producer, "select seriatim.enqueue('source', '1', 'g', max_attempts => 1)").await;
    let low = number(&mut producer, "select id from seriatim.job").await;
    run(
        &mut producer,
        &format!("select seriatim.configure_queue('source', '{{\"dead_letter_queue\": \"{Q}\"}}')"),
    )
    .await;
    let ids = enqueue(&mut producer, &["g", "g"]).await;
    let mut worker = scene.session().await;
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    run(&mut producer, "select seriatim.nack(r.receipt) from seriatim.receive('source') r").await;
    // Never beside the running one, and next behind it.
    let mut other = scene.session().await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    scene.settle(&mut worker, &claim, &succeeded()).await;
    commit(&mut worker).await;
    assert_eq!(scene.drain().await, [low, ids[1]]);
    assert!(!scene.rescue("g").await);
    scene.end().await;
}
