//! A claim must look with a snapshot that is younger than its locks (P1, P2, P3).

use sqlx::{AssertSqlSafe, PgConnection};

use crate::interleavings::support::scene::TERMS;
use crate::interleavings::support::scene::{
    KEEP, Q, Scene, begin, commit, pid, rollback, run, succeeded,
};

/// Wrong: the heads are read in the statement that locks. The head's id, 0 for none.
async fn lock_and_look_at_once(conn: &mut PgConnection, lock: &str) -> i64 {
    let sql = format!(
        "with moment as materialized (select pass_gate() as passed), \
         turn as materialized (select g.group_id from seriatim.queue_group g, moment \
           where passed and g.ready_at <= clock_timestamp() {lock}), \
         head as materialized (select distinct on (j.queue, j.group_id) j.id \
           from seriatim.job j join turn using (group_id) where j.status in ('queued', 'started') \
           order by j.queue, j.group_id, j.id) \
         select coalesce((select id from head), 0) from turn"
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await.unwrap()
}

/// A group that is in line although all its jobs have ended: the next look will retire it.
async fn drained_group(scene: &Scene, worker: &mut PgConnection) {
    scene.enqueue("g").await;
    let claim = scene.claim_one(worker).await;
    scene.hold(worker, &claim).await;
    let settled = scene.store.settle(worker, Q, &claim, &succeeded(), KEEP, true).await;
    settled.unwrap();
    commit(worker).await;
    assert!(scene.row("g").await.unwrap().due);
}

#[tokio::test]
async fn heads_read_by_the_statement_that_locks_strand_a_job() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    drained_group(&scene, &mut worker).await;
    scene.close_gate().await;
    let worker_pid = pid(&mut worker).await;
    let wrong = tokio::spawn(async move {
        begin(&mut worker).await;
        let head = lock_and_look_at_once(&mut worker, "for no key update of g skip locked").await;
        assert_eq!(head, 0);
        run(&mut worker, "delete from seriatim.queue_group").await;
        commit(&mut worker).await;
    });
    scene.until_waits(worker_pid, "advisory").await;
    let job = scene.enqueue("g").await;
    let mut adopter = scene.session().await;
    assert_eq!(scene.adopt(&mut adopter).await, 1);
    commit(&mut adopter).await;
    scene.open_gate().await;
    wrong.await.unwrap();
    assert!(scene.is_stranded(job).await);
    scene.end().await;
}

#[tokio::test]
async fn a_look_sees_what_was_adopted_before_its_group_was_locked_or_after() {
    for adopted_before in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        drained_group(&scene, &mut worker).await;
        let mut adopter = scene.session().await;
        begin(&mut worker).await;
        // A statement of this transaction came before the job: its snapshot must not be used again.
        assert!(scene.store.peek(&mut worker, Q).await.unwrap().groups);
        let (job, turns);
        if adopted_before {
            job = scene.enqueue("g").await;
            assert_eq!(scene.adopt(&mut adopter).await, 1);
            commit(&mut adopter).await;
            turns = scene.store.take_turns(&mut worker, Q, 10).await.unwrap();
        } else {
            turns = scene.store.take_turns(&mut worker, Q, 10).await.unwrap();
            job = scene.enqueue("g").await;
            assert_eq!(scene.adopt(&mut adopter).await, 0);
            commit(&mut adopter).await;
            assert!(scene.flagged(job).await);
        }
        let looks = scene.store.read_heads(&mut worker, Q, &turns, TERMS).await.unwrap();
        // By this transaction's clock the job is not due yet.
        assert_eq!(looks["g"].head.as_ref().map(|head| head.id), Some(job));
        scene.write(&mut worker, &turns, &looks).await;
        assert!(!scene.is_stranded(job).await);
        assert_eq!(scene.drain().await, [job]);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_job_that_comes_after_the_look_is_not_retired_with_its_group() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        drained_group(&scene, &mut worker).await;
        begin(&mut worker).await;
        let turns = scene.store.take_turns(&mut worker, Q, 10).await.unwrap();
        let looks = scene.store.read_heads(&mut worker, Q, &turns, TERMS).await.unwrap();
        assert!(looks["g"].drained);
        let job = scene.enqueue("g").await;
        if wrong {
            // Wrong: an adopter that takes the row it sees for a row that stays.
            run(
                &mut scene.session().await,
                "update seriatim.job set flagged = false where flagged and group_id in \
                 (select group_id from seriatim.queue_group)",
            )
            .await;
            run(&mut worker, "delete from seriatim.queue_group").await;
            commit(&mut worker).await;
            assert!(scene.is_stranded(job).await);
        } else {
            let mut adopter = scene.session().await;
            assert_eq!(scene.adopt(&mut adopter).await, 0);
            commit(&mut adopter).await;
            assert!(scene.write(&mut worker, &turns, &looks).await.is_empty());
            assert!(!scene.is_stranded(job).await);
            assert_eq!(scene.drain().await, [job]);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn heads_read_by_a_statement_that_waited_run_a_finished_job_again() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let first = scene.enqueue("g").await;
    let second = scene.enqueue("g").await;
    let claim = scene.claim_one(&mut worker).await;
    scene.lease("g", -1).await;
    let held = scene.hold(&mut worker, &claim).await;
    let mut late = scene.session().await;
    let late_pid = pid(&mut late).await;
    scene.close_gate().await;
    scene.open_gate().await;
    let wrong = tokio::spawn(async move {
        begin(&mut late).await;
        lock_and_look_at_once(&mut late, "for no key update of g").await
    });
    scene.until_waits(late_pid, "transactionid").await;
    // The crate's claim does not wait for the holder, and gets nothing.
    let mut other = scene.session().await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    scene.settle(&mut worker, &claim, &held, &succeeded()).await;
    commit(&mut worker).await;
    assert_eq!(scene.status(first).await, "succeeded");
    assert_eq!(wrong.await.unwrap(), first);
    assert_eq!(scene.drain().await, [second]);
    scene.end().await;
}

#[tokio::test]
async fn a_claim_that_meets_a_retiring_settle_skips_it_whatever_becomes_of_it() {
    for retired in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        let first = scene.enqueue("g").await;
        let claim = scene.claim_one(&mut worker).await;
        scene.lease("g", -1).await;
        let held = scene.hold(&mut worker, &claim).await;
        scene.settle(&mut worker, &claim, &held, &succeeded()).await;
        let second = scene.enqueue("g").await;
        // Due in its snapshot, locked and deleted, and its flagged job can go nowhere yet.
        let mut other = scene.session().await;
        assert!(scene.claim(&mut other, 10).await.is_empty());
        assert!(scene.flagged(second).await);
        if retired {
            commit(&mut worker).await;
            assert_eq!(scene.row("g").await, None);
            assert_eq!(scene.drain().await, [second]);
        } else {
            rollback(&mut worker).await;
            assert_eq!(scene.row("g").await.unwrap().job, Some(first));
            scene.run_job(&mut worker, &claim).await;
            assert_eq!(scene.drain().await, [second]);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_group_whose_time_is_to_come_gets_no_row_before_and_its_worker_knows_when() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let later = crate::NewJob::new(Q, &1).group("g").delay(std::time::Duration::from_hours(1));
    let id = crate::enqueue(&mut worker, later).await.unwrap().id();
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    assert_eq!((scene.row("g").await, scene.flagged(id).await), (None, true));
    begin(&mut worker).await;
    let next = scene.store.peek(&mut worker, Q).await.unwrap().next.unwrap();
    rollback(&mut worker).await;
    assert!((3500..=3600).contains(&next.as_secs()), "{next:?}");
    // What comes for the group meanwhile is put in line, and waits for it.
    let behind = scene.enqueue("g").await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    assert!(!scene.row("g").await.unwrap().due);
    assert!(!scene.rescue("g").await);
    scene.run("update seriatim.job set run_at = now() - interval '1 s'").await;
    assert_eq!(scene.drain().await, [id, behind]);
    scene.end().await;
}

#[tokio::test]
async fn a_flag_is_adopted_when_its_job_expires_or_is_cancelled_before_its_time() {
    for cancelled in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        let later = crate::NewJob::new(Q, &1).group("g").delay(std::time::Duration::from_hours(1));
        let id = crate::enqueue(&mut worker, later).await.unwrap().id();
        assert!(scene.claim(&mut worker, 10).await.is_empty());
        if cancelled {
            assert!(scene.cancel(id).await);
        } else {
            let expire = "update seriatim.job set expires_at = now() - interval '1 s'";
            scene.run(expire).await;
        }
        scene.drain().await;
        assert!(!scene.flagged(id).await);
        scene.end().await;
    }
}

/// By that a worker knows whether anybody waits for its slots: whether it is to claim again, and whether a turn may go on.
#[tokio::test]
async fn a_claim_that_fills_its_slots_says_whether_more_is_due() {
    // Groups in line, groups that are only flagged, jobs without a group, slots, who comes first; whether more is due.
    let cases = [
        (3, 0, 0, 3, false, false),
        (3, 0, 0, 2, false, true),
        (0, 3, 0, 3, false, false),
        (0, 3, 0, 2, false, true),
        (1, 2, 0, 3, false, false),
        (1, 2, 0, 2, false, true),
        (0, 0, 2, 2, true, false),
        (0, 0, 2, 1, true, true),
        (1, 0, 1, 1, true, true),
        (1, 0, 1, 1, false, true),
        (1, 0, 1, 2, true, false),
        (1, 0, 1, 2, false, false),
        (0, 1, 1, 1, true, true),
        (0, 1, 1, 1, false, true),
        (0, 1, 1, 2, true, false),
    ];
    for case @ (in_line, flagged, ungrouped, slots, ungrouped_first, more) in cases {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        for n in 0..in_line {
            scene.enqueue(&format!("line {n}")).await;
        }
        if in_line > 0 {
            scene.adopt(&mut worker).await;
            commit(&mut worker).await;
        }
        for n in 0..flagged {
            scene.enqueue(&format!("flag {n}")).await;
        }
        for _ in 0..ungrouped {
            crate::enqueue(&mut worker, crate::NewJob::new(Q, &1)).await.unwrap();
        }
        let from = crate::store::ScanStart::default();
        let claim = scene.store.quick_claim(&mut worker, Q, slots, ungrouped_first, TERMS, from);
        let claim = claim.await.unwrap();
        assert_eq!(claim.jobs.len(), usize::try_from(slots).unwrap(), "{case:?}");
        assert_eq!((claim.more, claim.thorough), (more, false), "{case:?}");
        scene.end().await;
    }
}

#[tokio::test]
async fn a_lease_that_is_over_calls_for_a_take_over_only_if_nobody_holds_its_job() {
    let scene = Scene::new().await;
    let (mut worker, mut holder) = (scene.session().await, scene.session().await);
    crate::enqueue(&mut worker, crate::NewJob::new(Q, &1)).await.unwrap();
    scene.claim_one(&mut holder).await;
    scene.run("update seriatim.job set lease_until = now() - interval '1 h'").await;
    begin(&mut holder).await;
    run(&mut holder, "select 1 from seriatim.job for no key update").await;
    for held in [true, false] {
        let from = crate::store::ScanStart::default();
        let claim = scene.store.quick_claim(&mut worker, Q, 9, false, TERMS, from).await.unwrap();
        assert_eq!(claim.thorough, !held);
        if held {
            commit(&mut holder).await;
        }
    }
    scene.end().await;
}
