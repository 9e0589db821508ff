//! Chained turns: the next job of a group is claimed in the transaction that ends the one before
//! (P1, P3, P9).

use sqlx::{Connection, PgConnection};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{
    begin, commit, enqueue, lock_job, number, pid, rollback, run,
};
use crate::job::disposition::Disposition;
use crate::store::{AfterSettle, ChainAnswer, Claim, ClaimOptions, HoldAnswer, Succeeded};

/// Settles a held job as a success, chains if possible, and commits. Without `keep` the job is
/// deleted.
async fn settle_and_chain(
    scene: &Scene,
    conn: &mut PgConnection,
    claim: &Claim,
    keep: bool,
) -> Option<Claim> {
    let success = Succeeded { queue: Q, claim, earlier: &[], result: "null" };
    let options = ClaimOptions::new(&scene.options, None);
    let answer =
        scene.store.settle_and_chain(conn, success, keep, AfterSettle::Nothing, options).await;
    commit(conn).await;
    match answer.unwrap() {
        ChainAnswer::To { claim, held, .. } => {
            assert!(held.is_none());
            Some(claim)
        }
        ChainAnswer::Passed | ChainAnswer::Drained => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_chained_to_the_next_head_if_that_may_start() {
    // The state of the second of three jobs, of the group or of the queue; the job that the turn is
    // chained to.
    let of_job = [
        ("run_at = run_at", Some(1)),
        ("run_at = now() + interval '1 hour'", None),
        ("expires_at = now() + interval '1 hour'", None),
        ("attempts = 1", Some(1)),
        ("attempts = 3", None),
        ("attempts = 3, attempts_forgiven = 1", Some(1)),
        ("max_attempts = 1", Some(1)),
        ("created_at = now() - interval '1 day'", None),
        ("status = 'cancelled', finished_at = now(), flagged = true", Some(2)),
    ];
    let of_job = of_job.map(|(what, next)| {
        (
            format!(
                "update seriatim.job set {what} where id = (select min(id) + 1 from seriatim.job)"
            ),
            next,
        )
    });
    let beside = [
        ("insert into seriatim.queue (name, paused_at) values ('q', now())", None),
        ("insert into seriatim.queue (name, in_flight_limit) values ('q', 10)", None),
        ("insert into seriatim.queue (name, paused_at) values ('other', now())", Some(1)),
        (
            "insert into seriatim.group_setting (queue, group_id, paused_at) values ('q', 'g', now())",
            None,
        ),
        (
            "insert into seriatim.group_setting (queue, group_id, paused_at) values ('q', 'h', now())",
            Some(1),
        ),
        // Pauses that end by themselves: one is not over, one is.
        (
            "insert into seriatim.queue (name, paused_at, paused_until) values ('q', now(), now() + interval '1 h')",
            None,
        ),
        (
            "insert into seriatim.queue (name, paused_at, paused_until) values ('q', now(), clock_timestamp())",
            Some(1),
        ),
        (
            "insert into seriatim.group_setting (queue, group_id, paused_at, paused_until) \
             values ('q', 'g', now(), now() + interval '1 h')",
            None,
        ),
        (
            "insert into seriatim.group_setting (queue, group_id, paused_at, paused_until) \
             values ('q', 'g', now(), clock_timestamp())",
            Some(1),
        ),
        ("locked", None),
    ];
    let beside = beside.map(|(what, next)| (what.to_owned(), next));
    for (what, next) in of_job.into_iter().chain(beside) {
        for keep in [true, false] {
            let mut scene = Scene::new().await;
            let since = chrono::Utc::now() - chrono::TimeDelta::hours(1);
            scene.options = scene.options.clone().ignore_before(since);
            let (mut worker, mut other) = (scene.session().await, scene.session().await);
            let jobs = enqueue(&mut worker, &["g"; 3]).await;
            let claim = scene.claim_one(&mut worker).await;
            scene.hold(&mut worker, &claim).await;
            begin(&mut other).await;
            if what == "locked" {
                lock_job(&mut other, jobs[1], "share").await;
            } else {
                run(&mut other, &what).await;
                commit(&mut other).await;
                begin(&mut other).await;
            }
            let next_claim = settle_and_chain(&scene, &mut worker, &claim, keep).await;
            let job = next.map(|n: usize| jobs[n]);
            assert_eq!(next_claim.as_ref().map(|next| next.job), job, "{what}, keep: {keep}");
            let row = scene.row("g").await.unwrap();
            assert_eq!((row.job, row.head), (job, jobs[0]), "{what}");
            let ended = format!("select count(*) from seriatim.job where id = {}", jobs[0]);
            assert_eq!(scene.number(&ended).await, i64::from(keep), "{what}");
            let (started, counted) = (
                "select count(*) from seriatim.job where status = 'started' and not flagged",
                "select count(*) from seriatim.job where last_started_at > now() - interval '1 hour'",
            );
            assert_eq!(scene.number(started).await, i64::from(job.is_some()), "{what}");
            assert_eq!(scene.number(counted).await, i64::from(keep) + i64::from(job.is_some()));
            rollback(&mut other).await;
            if let Some(next) = next_claim {
                assert_eq!(next.disposition, Disposition::Run);
                assert_ne!(next.token, claim.token);
                // A late answer about the settled job does no harm.
                assert!(matches!(scene.try_hold(&mut other, &claim).await, HoldAnswer::Lost));
                rollback(&mut other).await;
                scene.run_job(&mut worker, &next).await;
            }
            worker.close().await.unwrap();
            scene.end().await;
        }
    }
}

/// A chained claim must survive a crash of the server, and must not wait for a locked row.
#[tokio::test(flavor = "multi_thread")]
async fn a_chained_claim_is_durable_whatever_its_session_sets() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    run(&mut worker, "set synchronous_commit = off").await;
    enqueue(&mut worker, &["g"; 2]).await;
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    let success = Succeeded { queue: Q, claim: &claim, earlier: &[], result: "null" };
    let options = ClaimOptions::new(&scene.options, None);
    let answer = scene
        .store
        .settle_and_chain(&mut worker, success, true, AfterSettle::Nothing, options)
        .await;
    assert!(matches!(answer.unwrap(), ChainAnswer::To { .. }));
    for (setting, value) in [("synchronous_commit", "on"), ("lock_timeout", "100ms")] {
        let sql = format!("select (current_setting('{setting}') = '{value}')::int::int8");
        assert_eq!(number(&mut worker, &sql).await, 1, "{setting}");
    }
    commit(&mut worker).await;
    scene.end().await;
}

/// The flag of a late job stands for the jobs enqueued with it. When that flag is cleared,
/// `head_id` has to be lowered.
#[tokio::test(flavor = "multi_thread")]
async fn a_chained_late_job_does_not_hide_the_job_behind_it() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (mut late, mut worker) = (scene.session().await, scene.session().await);
        begin(&mut late).await;
        let low = enqueue(&mut late, &["g"; 2]).await;
        let high = enqueue(&mut worker, &["g"; 2]).await;
        let claim = scene.claim_one(&mut worker).await;
        assert_eq!(claim.job, high[0]);
        scene.hold(&mut worker, &claim).await;
        commit(&mut late).await;
        let next = settle_and_chain(&scene, &mut worker, &claim, true).await.unwrap();
        assert_eq!(next.job, low[0]);
        if wrong {
            let head = format!("update seriatim.queue_group set head_id = {}", high[0]);
            assert_eq!(scene.run(&head).await, 1);
        }
        scene.run_job(&mut worker, &next).await;
        let expected = if wrong { high[1] } else { low[1] };
        assert_eq!(scene.claim_one(&mut worker).await.job, expected);
        scene.end().await;
    }
}

/// A job commits when the next one is chosen already, and an adopter clears its flag on the claimed
/// row. Only `head_id` brings it in, which a chained turn must not raise.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_commits_while_a_turn_chains_is_not_stranded() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (mut worker, mut late) = (scene.session().await, scene.session().await);
        run(&mut worker, "set application_name = 'chains'").await;
        let first = scene.enqueue("g").await;
        begin(&mut late).await;
        let between = enqueue(&mut late, &["g"]).await[0];
        let last = scene.enqueue("g").await;
        let claim = scene.claim_one(&mut worker).await;
        assert_eq!(claim.job, first);
        scene.hold(&mut worker, &claim).await;
        let process = pid(&mut worker).await;
        scene.gate("chains", "update", "queue_group").await;
        let next = tokio::join!(
            async {
                let next = settle_and_chain(&scene, &mut worker, &claim, true).await;
                next.unwrap()
            },
            async {
                scene.until_waits(process, "advisory").await;
                commit(&mut late).await;
                let mut adopter = scene.session().await;
                assert_eq!(scene.adopt(&mut adopter).await, 1);
                commit(&mut adopter).await;
                assert!(!scene.flagged(between).await);
                scene.open_gate().await;
            },
        )
        .0;
        assert_eq!(next.job, last);
        run(&mut worker, "set application_name = ''").await;
        if wrong {
            let head = format!("update seriatim.queue_group set head_id = {last}");
            assert_eq!(scene.run(&head).await, 1);
        }
        scene.run_job(&mut worker, &next).await;
        if wrong {
            assert!(scene.claim(&mut worker, 10).await.is_empty());
            assert!(scene.rescue("g").await, "only the sweep finds it");
        }
        assert_eq!(scene.drain().await, [between]);
        scene.end().await;
    }
}

/// No worker knows of the job that was claimed with the settle. It is taken over, like a claim
/// whose answer was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_chained_claim_whose_answer_was_lost_is_taken_over() {
    let scene = Scene::new().await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let jobs = enqueue(&mut worker, &["g"; 2]).await;
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    settle_and_chain(&scene, &mut worker, &claim, true).await.unwrap();
    // The worker asks by the token that it knows, and learns that its settle was committed.
    assert!(matches!(scene.try_hold(&mut worker, &claim).await, HoldAnswer::Lost));
    rollback(&mut worker).await;
    scene.lease("g", -1).await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    scene.lease("g", -1).await;
    let over = scene.claim_one(&mut other).await;
    assert_eq!(over.job, jobs[1]);
    assert_eq!(scene.hold(&mut other, &over).await.attempt, 2);
    commit(&mut other).await;
    scene.end().await;
}

/// The settle is committed, and the next job claimed, when the hold in the same message meets a
/// lock. The worker knows the token and holds the job at once. If it took the whole message for
/// refused, the job would wait for its lease and a grace, and lose an attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_fails_behind_its_chains_commit_is_tried_again() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (mut worker, mut other) = (scene.session().await, scene.session().await);
        run(&mut worker, "set application_name = 'chains'").await;
        let jobs = enqueue(&mut worker, &["g"; 2]).await;
        let claim = scene.claim_one(&mut worker).await;
        scene.hold(&mut worker, &claim).await;
        let (process, locker) = (pid(&mut worker).await, pid(&mut other).await);
        scene.gate("chains", "update", "job").await;
        begin(&mut other).await;
        let success = Succeeded { queue: Q, claim: &claim, earlier: &[], result: "null" };
        let options = ClaimOptions::new(&scene.options, None);
        // Without `keep` the first job is deleted: the gate stops the start of the second one.
        let settle = scene.store.settle_and_chain(
            &mut worker,
            success,
            false,
            AfterSettle::HoldChained,
            options,
        );
        let lock = "lock table seriatim.cancel_request in access exclusive mode";
        let (answer, _, ()) = tokio::join!(settle, run(&mut other, lock), async {
            scene.until_waits(process, "advisory").await;
            scene.until_waits(locker, "relation").await;
            scene.open_gate().await;
        });
        let ChainAnswer::To { claim: next, held, .. } = answer.unwrap() else {
            panic!("the second job is not claimed");
        };
        assert_eq!((next.job, held.is_none()), (jobs[1], true));
        rollback(&mut worker).await;
        rollback(&mut other).await;
        if wrong {
            scene.lease("g", -1).await;
            assert!(scene.claim(&mut other, 10).await.is_empty());
            scene.lease("g", -1).await;
            let over = scene.claim_one(&mut other).await;
            assert_eq!(over.job, jobs[1]);
            assert_eq!(scene.hold(&mut other, &over).await.attempt, 2);
            rollback(&mut other).await;
        } else {
            assert_eq!(scene.hold(&mut worker, &next).await.attempt, 1);
            rollback(&mut worker).await;
        }
        scene.end().await;
    }
}
