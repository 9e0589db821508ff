//! Followers of a head, and a worker that dies in the middle of its turn (P9).

use sqlx::Connection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{begin, commit, enqueue, lock_job, rollback};
use crate::interleavings::support::steps::{KEEP, bounds, failed, succeeded};
use crate::job::disposition::Disposition;
use crate::store::{Claim, UnrecordedSuccess};

/// Returns the attempts that count, in order of the ids.
async fn counted(scene: &Scene, jobs: &[i64]) -> Vec<i64> {
    let mut counted = Vec::new();
    for job in jobs {
        let sql = format!(
            "select (attempts - attempts_forgiven)::int8 from seriatim.job where id = {job}"
        );
        counted.push(scene.number(&sql).await);
    }
    counted
}

/// A job with a lower id is committed behind the read of the head, and another is enqueued behind
/// that commit: as a follower it would run before the first one (P1).
#[tokio::test]
async fn a_late_commit_behind_the_read_of_the_head_has_no_job_before_it() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let mut late = scene.session().await;
        begin(&mut late).await;
        let low = enqueue(&mut late, &["g"]).await[0];
        let head = scene.enqueue("g").await;
        let mut worker = scene.session().await;
        scene.adopt(&mut worker).await;
        commit(&mut worker).await;
        if wrong {
            scene.rewrite("follow", &[("n on head.is_head", "n on true")]).await;
        }
        begin(&mut worker).await;
        let turns = scene.lock_turns(&mut worker, 1).await;
        let heads = scene.read_heads(&mut worker, &turns).await;
        assert_eq!(heads.jobs, [Some(head)]);
        commit(&mut late).await;
        let behind = scene.enqueue("g").await;
        let claims = scene.start_with_followers(&mut worker, &heads).await;
        commit(&mut worker).await;
        if wrong {
            assert_eq!(claims, [head, behind]);
        } else {
            assert_eq!(claims, [head]);
            assert!(scene.flagged(low).await, "it comes next");
        }
        scene.end().await;
    }
}

/// Drains a group whose third job kills each worker that begins it. A worker records each success,
/// or all with the last job of its turn. Returns each job's begun handlers, and the attempts that
/// count in the end.
async fn with_a_killer(record_each: bool) -> (Vec<usize>, Vec<i64>) {
    let mut scene = Scene::new().await;
    scene.jobs_per_turn = 4;
    let mut conn = scene.session().await;
    let jobs = enqueue(&mut conn, &["g"; 5]).await;
    let killer = jobs[2];
    let mut begun = vec![0; jobs.len()];
    while scene.row("g").await.is_some() || begun[0] == 0 {
        let mut claims = scene.claim(&mut conn, 1).await;
        let Some(mut claim) = claims.pop() else {
            // Suspected, or its grace is over.
            if scene.row("g").await.is_some() {
                scene.lease("g", -1).await;
            }
            continue;
        };
        let mut done: Vec<UnrecordedSuccess> = Vec::new();
        loop {
            scene.hold(&mut conn, &claim).await;
            if claim.disposition == Disposition::Run {
                begun[jobs.iter().position(|job| *job == claim.job).unwrap()] += 1;
                if claim.job == killer {
                    rollback(&mut conn).await;
                    scene.lease("g", -1).await;
                    break;
                }
            }
            let last = claim.followers.is_empty();
            if claim.disposition == Disposition::Run {
                done.push(UnrecordedSuccess {
                    job: claim.job,
                    result: "null".into(),
                    began: None,
                    ended: None,
                });
            }
            if (record_each || last) && !done.is_empty() && !(last && done.len() == 1) {
                let earlier = if last { &done[..done.len() - 1] } else { &done[..] };
                scene.store.record_earlier(&mut conn, Q, &claim, earlier, KEEP).await.unwrap();
            }
            if last {
                let outcome =
                    if claim.disposition == Disposition::Run { succeeded() } else { failed() };
                scene.settle(&mut conn, &claim, &outcome).await;
            }
            commit(&mut conn).await;
            if record_each {
                done.clear();
            }
            if !claim.advance() {
                break;
            }
        }
    }
    let counted = counted(&scene, &jobs).await;
    for (n, job) in jobs.iter().enumerate() {
        let expected = if n == 2 { "failed" } else { "succeeded" };
        assert_eq!(scene.status(*job).await, expected, "job {n}");
    }
    conn.close().await.unwrap();
    scene.end().await;
    (begun, counted)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_its_worker_uses_up_only_its_own_attempts() {
    let (begun, counted) = with_a_killer(true).await;
    assert_eq!(begun, [1, 1, 3, 1, 1]);
    assert_eq!(counted, [1, 1, 3, 1, 1]);
}

/// An unrecorded success is charged to its own job, once: a job that was tried runs alone.
#[tokio::test(flavor = "multi_thread")]
async fn successes_recorded_together_are_charged_once_if_lost() {
    let (begun, counted) = with_a_killer(false).await;
    // The first turn dies at the third job, which is charged to the first: that one runs alone
    // then. The second runs alone after the next death, and then the third, whose own attempts
    // count from there on.
    assert_eq!(begun, [2, 3, 5, 1, 1]);
    assert_eq!(counted, [2, 2, 3, 1, 1]);
}

/// An enqueue before the queue's `ignore_before`.
const IGNORED: &str = "created_at = now() - interval '1 day'";

/// A claim of turns.
async fn turns(scene: &Scene, conn: &mut sqlx::PgConnection, slots: usize) -> Vec<Claim> {
    scene.store.claim(conn, Q, bounds(slots), scene.claim_options()).await.unwrap().jobs
}

/// Returns the rows that a claim has written, without times, tokens and the flag of its first job,
/// which only a claim that takes its time clears.
async fn written(conn: &mut sqlx::PgConnection) -> String {
    let sql = "select string_agg(concat_ws(' ', j.id, j.status, j.flagged and j.id <> g.job_id, j.attempts, j.attempts_forgiven, \
        j.last_started_at is not null, j.history, g.job_id, g.head_id, g.batch, g.started_at is not null, g.aging_priority, \
        g.claimed_by, g.claim is not null, g.suspect), e'\n' order by j.id) \
        from seriatim.job j join seriatim.queue_group g using (queue, group_id)";
    sqlx::query_scalar(sql).fetch_one(conn).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_end_before_the_first_job_that_may_not_follow() {
    // Index of the changed job among six, the change, and the number of followers behind the head.
    let cases = [
        (2, "run_at = run_at", 3),
        (2, "run_at = now() + interval '1 hour'", 1),
        (2, "expires_at = now() + interval '1 hour'", 1),
        (2, "attempts = 1", 1),
        (2, "attempts = 1, attempts_forgiven = 1", 3),
        (2, "max_attempts = 1", 1),
        (2, "lease_ms = 1000", 3),
        (2, IGNORED, 1),
        (2, "status = 'cancelled', finished_at = now()", 3),
        (2, "locked", 1),
        (0, "attempts = 1", 0),
        (0, "attempts = 1, attempts_forgiven = 1", 3),
        (0, "attempts = 3", 0),
        (0, "max_attempts = 1", 3),
        (0, "expires_at = now()", 0),
        (0, IGNORED, 0),
    ];
    let mut scene = Scene::new().await;
    let since = chrono::Utc::now() - chrono::TimeDelta::hours(1);
    scene.options = scene.options.clone().ignore_before(since);
    scene.jobs_per_turn = 4;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    for (which, what, expected) in cases {
        let mut jobs = enqueue(&mut worker, &["g"; 6]).await;
        enqueue(&mut worker, &["h"; 3]).await;
        begin(&mut other).await;
        let job = jobs[which];
        if what == "locked" {
            lock_job(&mut other, job, "share").await;
        } else {
            scene.run(&format!("update seriatim.job set {what} where id = {job}")).await;
        }
        if what.starts_with("status") {
            jobs.remove(which);
        }
        let mut claims = turns(&scene, &mut worker, 2).await;
        claims.sort_by_key(|claim| claim.job);
        let [claim, beside] = &claims[..] else { panic!("{claims:?}") };
        let case = format!("{which}: {what}");
        assert_eq!((claim.job, &claim.followers[..]), (jobs[0], &jobs[1..=expected]), "{case}");
        assert_eq!(beside.followers.len(), 2, "{case}");
        commit(&mut other).await;
        scene.clear().await;
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_turn_is_claimed_again_as_it_was() {
    let mut scene = Scene::new().await;
    scene.jobs_per_turn = 4;
    let mut worker = scene.session().await;
    enqueue(&mut worker, &["g"; 6]).await;
    let first = turns(&scene, &mut worker, 1).await.remove(0);
    assert_eq!(first.followers.len(), 3);
    let before = written(&mut worker).await;
    let (job, behind) = (first.job, first.followers.clone());
    assert_eq!(scene.release(&mut worker, &[first]).await, 1);
    let begun = "select count(*) from seriatim.job where status <> 'queued' or attempts > 0 \
        or last_started_at is not null or history <> '[]'";
    assert_eq!(scene.number(begun).await, 0);
    let claimed = "select count(*) from seriatim.queue_group where claim is not null \
        or job_id is not null or batch is not null or started_at is not null";
    assert_eq!(scene.number(claimed).await, 0);
    let again = turns(&scene, &mut worker, 1).await.remove(0);
    assert_eq!((again.job, again.followers), (job, behind));
    assert_eq!(written(&mut worker).await, before);
    scene.end().await;
}
