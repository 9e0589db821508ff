//! `SKIP LOCKED`: sessions do not wait for each other, and skipped is not lost (P2, P3).

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{
    begin, commit, enqueue, lock_group, lock_job, number, pid, rollback, run,
};
use crate::interleavings::support::steps::{KEEP, succeeded};
use crate::store::{HoldAnswer, gave_up_waiting};

/// A claim whose snapshot is older than a row it locks rejects the row's new version, and keeps its
/// lock.
#[tokio::test]
async fn hold_retries_a_row_locked_by_a_stale_claim() {
    let scene = Scene::new().await;
    let job = scene.enqueue("g").await;
    let (mut worker, mut older) = (scene.session().await, scene.session().await);
    scene.adopt(&mut worker).await;
    commit(&mut worker).await;
    // Two claims at once. The older one waits between the snapshot and the lock of its statement.
    scene.close_gate().await;
    let older_pid = pid(&mut older).await;
    let locking = tokio::spawn(async move {
        begin(&mut older).await;
        let sql = "with moment as materialized (select pass_gate() as passed) \
                   select count(*) from (select 1 from seriatim.queue_group g, moment \
                   where passed and g.ready_at <= now() for no key update of g skip locked) taken";
        let taken = number(&mut older, sql).await;
        (older, taken)
    });
    scene.until_waits(older_pid, "advisory").await;
    let claim = scene.claim_one(&mut worker).await;
    assert_eq!(claim.job, job);
    scene.open_gate().await;
    let (mut older, taken) = locking.await.unwrap();
    assert_eq!(taken, 0, "its condition was checked again");
    // Wrong: no row, so it is lost. A plain read shows that the token is unchanged.
    let answer = scene.try_hold(&mut worker, &claim).await;
    assert!(matches!(answer, HoldAnswer::Skipped), "{answer:?}");
    rollback(&mut older).await;
    let answer = scene.store.hold(&mut worker, &claim).await.unwrap();
    assert!(matches!(answer, HoldAnswer::Held(_)), "{answer:?}");
    rollback(&mut worker).await;
    scene.end().await;
}

#[tokio::test]
async fn hold_skipped_at_its_jobs_row_keeps_the_group_locked() {
    let scene = Scene::new().await;
    scene.enqueue("g").await;
    let (mut worker, mut adopter) = (scene.session().await, scene.session().await);
    let claim = scene.claim_one(&mut worker).await;
    // Like an adopter that saw the job flagged.
    begin(&mut adopter).await;
    lock_job(&mut adopter, claim.job, "no key update").await;
    let answer = scene.try_hold(&mut worker, &claim).await;
    assert!(matches!(answer, HoldAnswer::Skipped), "{answer:?}");
    // The group stays locked between the tries: no other session can even suspect the claim.
    scene.enqueue("g").await;
    let mut other = scene.session().await;
    let free = "select count(*) from (select 1 from seriatim.queue_group for no key update skip locked) free";
    assert_eq!(number(&mut other, free).await, 0);
    rollback(&mut adopter).await;
    let answer = scene.store.hold(&mut worker, &claim).await.unwrap();
    assert!(matches!(answer, HoldAnswer::Held(_)), "{answer:?}");
    rollback(&mut worker).await;
    // Only another token, or no row, is a loss.
    scene.run("update seriatim.queue_group set claim = gen_random_uuid()").await;
    let answer = scene.try_hold(&mut worker, &claim).await;
    assert!(matches!(answer, HoldAnswer::Lost), "{answer:?}");
    rollback(&mut worker).await;
    scene.run("delete from seriatim.queue_group").await;
    let answer = scene.try_hold(&mut worker, &claim).await;
    assert!(matches!(answer, HoldAnswer::Lost), "{answer:?}");
    scene.end().await;
}

#[tokio::test]
async fn a_skipped_clear_suspicion_can_be_tried_again() {
    let scene = Scene::new().await;
    scene.enqueue("g").await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let claim = scene.claim_one(&mut worker).await;
    scene.lease("g", -1).await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    begin(&mut other).await;
    lock_group(&mut other, "g", "no key update").await;
    for still_suspected in [true, false] {
        scene.clear_suspicion(&mut worker, &claim).await;
        assert_eq!(scene.row("g").await.unwrap().suspected, still_suspected);
        if still_suspected {
            rollback(&mut other).await;
        }
    }
    scene.end().await;
}

/// `SKIP LOCKED` skips locked rows; it waits for a lock on the newer version of a row that its
/// locker has written.
#[tokio::test]
async fn an_adopter_leaves_a_row_whose_new_version_is_locked() {
    let scene = Scene::new().await;
    scene.enqueue("g").await;
    let (mut worker, mut adopter) = (scene.session().await, scene.session().await);
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    run(&mut worker, "update seriatim.queue_group set suspect = null").await;
    lock_group(&mut worker, "g", "update").await;
    let flagged = scene.enqueue("g").await;
    let share =
        "set lock_timeout = '20ms'; select 1 from seriatim.queue_group for key share skip locked";
    let error = sqlx::raw_sql(share).execute(&mut adopter).await.unwrap_err();
    assert!(gave_up_waiting(&error), "{error}");
    // An adopter gives that up at once, and adopts what else is there.
    scene.enqueue("h").await;
    assert_eq!(scene.adopt(&mut adopter).await, 1);
    commit(&mut adopter).await;
    assert!(scene.row("h").await.is_some() && scene.flagged(flagged).await);
    rollback(&mut worker).await;
    scene.end().await;
}

/// The same lock: whatever makes a claim wait, it must not wait for as long as a handler runs, nor
/// fail.
#[tokio::test]
async fn a_claim_that_would_wait_gives_up_and_claims_again() {
    let scene = Scene::new().await;
    scene.enqueue("g").await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    run(&mut worker, "update seriatim.queue_group set suspect = null").await;
    lock_group(&mut worker, "g", "update").await;
    let second = scene.enqueue("g").await;
    let claimed = scene.claim_all(&mut other, 10).await;
    assert!(claimed.jobs.is_empty());
    rollback(&mut worker).await;
    // On the same connection, in a new transaction.
    scene.run_job(&mut worker, &claim).await;
    assert_eq!(scene.claim_one(&mut other).await.job, second);
    scene.end().await;
}

#[tokio::test]
async fn an_adopter_waits_for_no_hold_and_no_settle() {
    for quick in [true, false] {
        let scene = Scene::new().await;
        scene.enqueue("g").await;
        let (mut worker, mut adopter) = (scene.session().await, scene.session().await);
        let claim = scene.claim_one(&mut worker).await;
        scene.hold(&mut worker, &claim).await;
        // Held.
        let second = scene.enqueue("g").await;
        assert_eq!(scene.adopt(&mut adopter).await, 1);
        rollback(&mut adopter).await;
        // Held by a handler that has written and enqueued.
        let own = enqueue(&mut worker, &["g", "h"]).await;
        assert_eq!(scene.adopt(&mut adopter).await, 1);
        rollback(&mut adopter).await;
        // Settled, and not committed. A quick settle looks whether it may retire the group: it sees
        // the job that follows, and takes no stronger lock.
        if quick {
            scene.settle(&mut worker, &claim, &succeeded()).await;
        } else {
            scene.store.settle(&mut worker, &claim, &succeeded(), KEEP).await.unwrap();
        }
        let third = scene.enqueue("g").await;
        let shared = scene.adopt(&mut adopter).await;
        assert_eq!(shared, 1, "quick: {quick}");
        // And a settle does not wait for an adopter.
        commit(&mut worker).await;
        commit(&mut adopter).await;
        let mut ran = scene.drain().await;
        ran.retain(|id| *id != own[1]);
        let mut expected = vec![second, own[0], third];
        expected.sort_unstable();
        assert_eq!(ran, expected);
        scene.end().await;
    }
}

/// A hold has read the rows, and has not locked them, when another transaction clears the flag of
/// the job: the hold looks at the new version of the row, and has it.
#[tokio::test]
async fn a_hold_has_a_job_that_was_written_since_it_looked() {
    let scene = Scene::new().await;
    let job = scene.enqueue("g").await;
    let mut worker = scene.session().await;
    scene.claim_one(&mut worker).await;
    scene.close_gate().await;
    let locks = "where g.claim = with_token";
    let gate = format!("{locks} and pass_gate()");
    scene.rewrite("hold_job", &[(locks, &gate)]).await;
    let hold = format!(
        "select ((seriatim.hold_job({job}, g.claim, true)).pid is not null)::integer::int8 from seriatim.queue_group g"
    );
    let holding = scene.at_gate(hold).await;
    assert_eq!(scene.run("update seriatim.job set flagged = not flagged").await, 1);
    scene.open_gate().await;
    assert_eq!(holding.await.unwrap().0, 1);
    scene.end().await;
}
