//! A claim must read heads with a snapshot that is younger than its locks (P1, P2, P3).

use sqlx::{AssertSqlSafe, PgConnection};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{
    begin, commit, enqueue_delayed, enqueue_ungrouped, lock_job, pid, rollback, run,
};
use crate::interleavings::support::steps::{KEEP, OPTIONS, succeeded};
use crate::store::{ClaimBounds, ScanStart};

/// Wrong: the statement that locks also reads the heads. Returns the head's id, or 0.
async fn lock_and_read_heads(conn: &mut PgConnection, lock: &str) -> i64 {
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

/// A ready group whose jobs have all ended: the next claim will retire it.
async fn drained_group(scene: &Scene, worker: &mut PgConnection) {
    scene.enqueue("g").await;
    let claim = scene.claim_one(worker).await;
    scene.hold(worker, &claim).await;
    let settled = scene.store.settle(worker, &claim, &succeeded(), KEEP).await;
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
        let head = lock_and_read_heads(&mut worker, "for no key update of g skip locked").await;
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
async fn heads_show_a_job_adopted_before_or_after_the_lock() {
    for adopted_before in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        drained_group(&scene, &mut worker).await;
        let mut adopter = scene.session().await;
        begin(&mut worker).await;
        // A statement of this transaction came before the job: its snapshot must not be used again.
        run(&mut worker, "select from seriatim.queue_group").await;
        let (job, turns);
        if adopted_before {
            job = scene.enqueue("g").await;
            assert_eq!(scene.adopt(&mut adopter).await, 1);
            commit(&mut adopter).await;
            turns = scene.lock_turns(&mut worker, 10).await;
        } else {
            turns = scene.lock_turns(&mut worker, 10).await;
            job = scene.enqueue("g").await;
            assert_eq!(scene.adopt(&mut adopter).await, 0);
            commit(&mut adopter).await;
            assert!(scene.flagged(job).await);
        }
        let heads = scene.read_heads(&mut worker, &turns).await;
        assert_eq!(heads.jobs, [Some(job)]);
        let claims = scene.write(&mut worker, &heads).await;
        scene.lease("g", 3600).await;
        assert!(!scene.is_stranded(job).await);
        let [claim] = &claims[..] else { panic!("{claims:?}") };
        assert_eq!(claim.job, job);
        scene.run_job(&mut worker, claim).await;
        assert_eq!(scene.drain().await, [0_i64; 0]);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_job_enqueued_after_the_heads_is_not_retired() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        drained_group(&scene, &mut worker).await;
        begin(&mut worker).await;
        let turns = scene.lock_turns(&mut worker, 10).await;
        let heads = scene.read_heads(&mut worker, &turns).await;
        assert_eq!(heads.jobs, [None]);
        let job = scene.enqueue("g").await;
        if wrong {
            // Wrong: an adopter that takes a visible row for a row that stays.
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
            assert!(scene.write(&mut worker, &heads).await.is_empty());
            assert!(!scene.is_stranded(job).await);
            assert_eq!(scene.drain().await, [job]);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn heads_read_by_a_statement_that_waited_rerun_a_job() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let first = scene.enqueue("g").await;
    let second = scene.enqueue("g").await;
    let claim = scene.claim_one(&mut worker).await;
    scene.lease("g", -1).await;
    scene.hold(&mut worker, &claim).await;
    let mut late = scene.session().await;
    let late_pid = pid(&mut late).await;
    scene.close_gate().await;
    scene.open_gate().await;
    let wrong = tokio::spawn(async move {
        begin(&mut late).await;
        lock_and_read_heads(&mut late, "for no key update of g").await
    });
    scene.until_waits(late_pid, "transactionid").await;
    // The crate's claim does not wait for the holder, and gets nothing.
    let mut other = scene.session().await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    scene.settle(&mut worker, &claim, &succeeded()).await;
    commit(&mut worker).await;
    assert_eq!(scene.status(first).await, "succeeded");
    assert_eq!(wrong.await.unwrap(), first);
    assert_eq!(scene.drain().await, [second]);
    scene.end().await;
}

#[tokio::test]
async fn a_claim_skips_a_retiring_settle_committed_or_not() {
    for retired in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        let first = scene.enqueue("g").await;
        let claim = scene.claim_one(&mut worker).await;
        scene.lease("g", -1).await;
        scene.hold(&mut worker, &claim).await;
        scene.settle(&mut worker, &claim, &succeeded()).await;
        let second = scene.enqueue("g").await;
        // The row is due in the claim's snapshot, but locked and deleted; the flagged job cannot be
        // adopted yet.
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
async fn a_delayed_group_has_no_row_and_a_known_time() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let id = enqueue_delayed(&mut worker, "g").await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    assert_eq!((scene.row("g").await, scene.flagged(id).await), (None, true));
    let next = scene.claim_all(&mut worker, 10).await.next.unwrap();
    assert!((3500..=3600).contains(&next.as_secs()), "{next:?}");
    // A job that the group gets meanwhile makes a row, and waits for the first.
    let behind = scene.enqueue("g").await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    assert!(!scene.row("g").await.unwrap().due);
    assert!(!scene.rescue("g").await);
    scene.run("update seriatim.job set run_at = now() - interval '1 s', turn_at = now() - interval '1 s'").await;
    assert_eq!(scene.drain().await, [id, behind]);
    scene.end().await;
}

#[tokio::test]
async fn a_delayed_flag_is_adopted_on_expiry_or_cancel() {
    for cancelled in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        let id = enqueue_delayed(&mut worker, "g").await;
        assert!(scene.claim(&mut worker, 10).await.is_empty());
        if cancelled {
            assert!(scene.cancel(id).await);
        } else {
            let expire = "update seriatim.job set expires_at = now() - interval '1 s', turn_at = now() - interval '1 s'";
            scene.run(expire).await;
        }
        scene.drain().await;
        assert!(!scene.flagged(id).await);
        scene.end().await;
    }
}

/// The answer tells a worker whether to claim again.
#[tokio::test]
async fn a_claim_that_fills_its_slots_says_whether_more_is_due() {
    // Ready groups, groups with flags only, ungrouped jobs, slots, whether ungrouped jobs go first;
    // the expected `more`.
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
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    for case @ (ready, flagged, ungrouped, slots, ungrouped_first, more) in cases {
        for n in 0..ready {
            scene.enqueue(&format!("ready {n}")).await;
        }
        if ready > 0 {
            scene.adopt(&mut worker).await;
            commit(&mut worker).await;
        }
        for n in 0..flagged {
            scene.enqueue(&format!("flag {n}")).await;
        }
        for _ in 0..ungrouped {
            enqueue_ungrouped(&mut worker).await;
        }
        let from = ScanStart::default();
        let claim = scene.store.claim(
            &mut worker,
            Q,
            ClaimBounds::new(slots, 0, ungrouped_first, from),
            OPTIONS,
        );
        let claim = claim.await.unwrap();
        assert_eq!(claim.jobs.len(), slots, "{case:?}");
        assert_eq!(claim.more, more, "{case:?}");
        scene.clear().await;
    }
    scene.end().await;
}

#[tokio::test]
async fn a_lapsed_lease_is_taken_over_only_if_its_job_is_not_held() {
    let scene = Scene::new().await;
    let (mut worker, mut holder) = (scene.session().await, scene.session().await);
    let job = enqueue_ungrouped(&mut worker).await;
    scene.claim_one(&mut holder).await;
    let lapsed = "update seriatim.job set lease_until = now() - interval '1 h'";
    let suspected = "select count(*) from seriatim.job where suspect = claim";
    scene.run(lapsed).await;
    begin(&mut holder).await;
    lock_job(&mut holder, job, "no key update").await;
    for held in [true, false] {
        assert!(scene.claim_all(&mut worker, 9).await.jobs.is_empty());
        assert_eq!(scene.number(suspected).await, i64::from(!held));
        if held {
            commit(&mut holder).await;
        }
    }
    scene.run(lapsed).await;
    assert_eq!(scene.claim_all(&mut worker, 9).await.jobs[0].job, job);
    scene.end().await;
}
