//! So many groups run at once for each limit key, and none that waits for a slot is forgotten.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{Q, begin, commit, number, rollback, run};
use crate::interleavings::support::size::size;
use crate::interleavings::support::steps::{OPTIONS, bounds, failed, retried, succeeded};
use crate::store::{Claim, HoldAnswer, gave_up_waiting};
use crate::{Client, NewJob};

/// A queue in which so many groups run at once for each key.
async fn limited(per_key: i32) -> Scene {
    let scene = Scene::new().await;
    limit(&scene, per_key).await;
    scene
}

async fn limit(scene: &Scene, per_key: i32) {
    scene
        .run(&format!("insert into seriatim.queue (name, limit_per_key) values ('q', {per_key})"))
        .await;
}

fn job(group: &str, key: &str) -> NewJob {
    NewJob::new(Q, &1).group(group).limit_key(key)
}

/// Enqueues a job with the key `t` in each of these groups, one transaction for each.
async fn enqueue(conn: &mut PgConnection, groups: &[&str]) -> Vec<i64> {
    let client = Client::default().notify(false);
    let mut jobs = Vec::new();
    for group in groups {
        jobs.push(client.enqueue(&mut *conn, job(group, "t")).await.unwrap().id());
    }
    jobs
}

/// Claims in the session's open transaction, as a worker's claim does.
async fn claim_in_open(scene: &Scene, conn: &mut PgConnection) -> Vec<i64> {
    begin(conn).await;
    scene.claim_all(conn, 10).await.jobs.iter().map(|claim| claim.job).collect()
}

fn jobs(claims: &[Claim]) -> Vec<i64> {
    claims.iter().map(|claim| claim.job).collect()
}

async fn gated(scene: &Scene) -> i64 {
    scene.number("select count(*) from seriatim.queue_group where gated_by is not null").await
}

async fn slots(scene: &Scene) -> i64 {
    scene.number("select count(*) from seriatim.queue_group where limit_key = 't'").await
}

/// Claims until nothing more starts, and runs what it claims. Returns the jobs in order.
async fn run_all(scene: &Scene, conn: &mut PgConnection) -> Vec<i64> {
    let mut ran = Vec::new();
    loop {
        let answer = scene.claim_all(conn, 10).await;
        if answer.jobs.is_empty() && !answer.more {
            return ran;
        }
        for claim in &answer.jobs {
            scene.lease(claim.group.as_deref().unwrap(), 3600).await;
            scene.run_job(conn, claim).await;
        }
        ran.extend(jobs(&answer.jobs));
    }
}

#[tokio::test]
async fn claims_side_by_side_count_one_after_the_other() {
    for wrong in [true, false] {
        let scene = limited(1).await;
        if wrong {
            scene.rewrite("lock_limit_key", &[("begin\n", "begin\n  return true;\n")]).await;
        }
        let (mut one, mut other) = (scene.session().await, scene.session().await);
        let all = enqueue(&mut one, &["a", "b"]).await;
        // The first claim has one group in line, the second one the other.
        run(&mut one, "update seriatim.job set flagged = false where group_id = 'b'").await;
        assert_eq!(claim_in_open(&scene, &mut one).await, all[..1]);
        scene.run("update seriatim.job set flagged = true where group_id = 'b'").await;
        let second = claim_in_open(&scene, &mut other).await;
        assert_eq!(second.len(), usize::from(wrong), "{second:?}");
        commit(&mut one).await;
        commit(&mut other).await;
        if !wrong {
            // It could not count: so it has left the look to the next claim.
            assert_eq!((gated(&scene).await, slots(&scene).await), (1, 1));
            let answer = scene.claim_all(&mut other, 10).await;
            assert!(answer.jobs.is_empty() && !answer.more && gated(&scene).await == 1);
        }
        scene.end().await;
    }
}

/// The claim that gates a group has not committed when the slot comes free: the end cannot know of
/// the group, nor the claim of the end.
#[tokio::test]
async fn an_end_beside_the_claim_that_gates_wakes_the_group() {
    for wrong in [true, false] {
        let scene = limited(1).await;
        if wrong {
            let silent = [("if keys is not null then", "if false then")];
            scene.rewrite("pass_turns", &silent).await;
        }
        let (mut one, mut other) = (scene.session().await, scene.session().await);
        let all = enqueue(&mut one, &["a"]).await;
        let claim = scene.claim_one(&mut one).await;
        // A flag of a group that runs would have its row shared by the open claim.
        run(&mut one, "update seriatim.job set flagged = false").await;
        let second = enqueue(&mut one, &["b"]).await;
        assert!(claim_in_open(&scene, &mut other).await.is_empty());
        scene.run_job(&mut one, &claim).await;
        // Nothing is to be found yet: the claim that gates has the key.
        assert!(scene.claim(&mut one, 10).await.is_empty());
        commit(&mut other).await;
        let ran = run_all(&scene, &mut one).await;
        assert_eq!(ran, if wrong { vec![] } else { second.clone() }, "behind {all:?}");
        if !wrong {
            assert_eq!((gated(&scene).await, slots(&scene).await), (0, 0));
        }
        scene.end().await;
    }
}

/// The end of a job may be committed hours later: its slot is free then, and not before.
#[tokio::test]
async fn a_slot_is_free_with_the_commit_of_the_end() {
    let scene = limited(1).await;
    let (mut one, mut other) = (scene.session().await, scene.session().await);
    enqueue(&mut one, &["a"]).await;
    let mut receipt = String::new();
    for part in ["a", "b"] {
        if part == "b" {
            enqueue(&mut one, &["b"]).await;
        }
        let receive = "select coalesce((select r.receipt from seriatim.receive('q') r), '')";
        let got: String = sqlx::query_scalar(receive).fetch_one(&mut one).await.unwrap();
        if part == "a" {
            receipt = got;
        } else {
            assert_eq!((got, gated(&scene).await), (String::new(), 1));
        }
    }
    begin(&mut one).await;
    let ack = format!("select (seriatim.ack('{receipt}') = 'done')::int::int8");
    assert_eq!(number(&mut one, &ack).await, 1);
    assert!(scene.claim(&mut other, 10).await.is_empty());
    commit(&mut one).await;
    assert_eq!(run_all(&scene, &mut other).await.len(), 1);
    scene.end().await;
}

#[tokio::test]
async fn groups_are_woken_in_the_order_in_which_they_came() {
    let scene = limited(2).await;
    let mut conn = scene.session().await;
    let all = enqueue(&mut conn, &["a", "b", "c", "d", "e"]).await;
    let more = enqueue(&mut conn, &["a", "b"]).await;
    let first = scene.claim(&mut conn, 10).await;
    assert_eq!((jobs(&first), gated(&scene).await), (all[..2].to_vec(), 3));
    // The group that had the slot goes behind the others, though it has another job that is due.
    let mut started = jobs(&first);
    let mut running = first;
    while let Some(ended) = running.first().cloned() {
        running.remove(0);
        scene.run_job(&mut conn, &ended).await;
        let next = scene.claim(&mut conn, 10).await;
        assert!(next.len() <= 1 && slots(&scene).await <= 2, "{next:?}");
        started.extend(jobs(&next));
        running.extend(next);
    }
    assert_eq!(started, [all, more].concat());
    assert_eq!((gated(&scene).await, slots(&scene).await), (0, 0));
    scene.end().await;
}

/// A woken group may have nothing to start any more. Its slot must not be lost.
#[tokio::test]
async fn a_woken_group_that_does_not_start_passes_its_slot_on() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        if wrong {
            scene.rewrite("defer_turns", &[("freed is not null", "false")]).await;
            scene.rewrite("start_turns", &[("freed <> '{}'", "false")]).await;
        }
        let mut conn = scene.session().await;
        for how in ["delete", "pause", "snooze", "rename"] {
            limit(&scene, 1).await;
            let all = enqueue(&mut conn, &["a", "b", "c"]).await;
            let first = scene.claim_one(&mut conn).await;
            assert_eq!(gated(&scene).await, 2);
            match how {
                "delete" => scene.run("delete from seriatim.job where group_id = 'b'").await,
                "pause" => scene.run("select seriatim.pause('q', 'b')").await,
                "snooze" => {
                    let later = "update seriatim.job set run_at = now() + interval '1 h' \
                                 where group_id = 'b'";
                    scene.run(later).await
                }
                _ => {
                    let other = "update seriatim.job set limit_key = 'u' where group_id = 'b'";
                    scene.run(other).await
                }
            };
            scene.run_job(&mut conn, &first).await;
            let ran = run_all(&scene, &mut conn).await;
            let mut expected = vec![];
            if how == "rename" {
                expected.push(all[1]);
            }
            if !wrong {
                expected.push(all[2]);
            }
            assert_eq!(ran, expected, "{how}, wrong: {wrong}");
            assert_eq!(gated(&scene).await, i64::from(wrong), "{how}");
            scene.clear().await;
        }
        scene.end().await;
    }
}

/// A claim that is taken over has its slot already, however many others wait for one.
#[tokio::test]
async fn a_claim_of_a_worker_that_died_keeps_its_slot() {
    let scene = limited(1).await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let all = enqueue(&mut worker, &["a", "b"]).await;
    assert_eq!(scene.claim_one(&mut worker).await.job, all[0]);
    scene.run("update seriatim.queue set limit_per_key = 1").await;
    let mut over = Vec::new();
    for _ in 0..2 {
        scene.lease("a", -1).await;
        over = scene.claim(&mut other, 10).await;
    }
    assert_eq!((jobs(&over), gated(&scene).await), (all[..1].to_vec(), 1));
    scene.run_job(&mut other, &over[0]).await;
    assert_eq!(run_all(&scene, &mut other).await, all[1..]);
    scene.end().await;
}

/// However a turn ends, its slot is free.
#[tokio::test]
async fn every_end_of_a_claim_frees_its_slot() {
    let hour = std::time::Duration::from_hours(1);
    let scene = Scene::new().await;
    let mut conn = scene.session().await;
    for how in ["failed", "halted", "retried", "released", "exhausted"] {
        scene.clear().await;
        limit(&scene, 1).await;
        let all = enqueue(&mut conn, &["a", "b"]).await;
        let claim = scene.claim_one(&mut conn).await;
        match how {
            "released" => {
                // It has the slot still, for its next turn.
                assert_eq!(scene.release(&mut conn, &[claim]).await, 1);
                assert_eq!((slots(&scene).await, gated(&scene).await), (1, 1));
                assert_eq!(run_all(&scene, &mut conn).await, all);
                continue;
            }
            "exhausted" => {
                scene.run("update seriatim.job set attempts = 3 where group_id = 'a'").await;
                let mut over = Vec::new();
                for _ in 0..2 {
                    scene.lease("a", -1).await;
                    over = scene.claim(&mut conn, 1).await;
                }
                // Its last attempt is lost: the job is claimed to be ended, which takes no slot.
                assert_eq!((jobs(&over), slots(&scene).await), (all[..1].to_vec(), 0));
            }
            _ => {
                scene.hold(&mut conn, &claim).await;
                let outcome = match how {
                    "retried" => retried(hour),
                    "halted" => crate::job::outcome::Outcome::Failed {
                        failure: crate::Failure {
                            kind: crate::FailureKind::Error,
                            message: "failed".into(),
                            chain: Vec::new(),
                            attempt: 1,
                        },
                        then: crate::OutOfAttempts::Halt,
                    },
                    _ => failed(),
                };
                scene.settle(&mut conn, &claim, &outcome).await;
                commit(&mut conn).await;
            }
        }
        assert_eq!(run_all(&scene, &mut conn).await, all[1..], "{how}");
    }
    scene.end().await;
}

#[tokio::test]
async fn the_limit_changes_with_the_next_claim() {
    let scene = limited(1).await;
    let mut conn = scene.session().await;
    let configure = |limit: &str| {
        format!("select seriatim.configure_queue('q', '{{\"limit_per_key\": {limit}}}')")
    };
    let all = enqueue(&mut conn, &["a", "b", "c", "d", "e", "f"]).await;
    let mut running = scene.claim(&mut conn, 10).await;
    assert_eq!(jobs(&running), all[..1]);
    scene.run(&configure("3")).await;
    running.extend(scene.claim(&mut conn, 10).await);
    assert_eq!(jobs(&running), all[..3]);
    // Nobody is stopped, and nobody begins before two have ended.
    scene.run(&configure("2")).await;
    assert!(scene.claim(&mut conn, 10).await.is_empty());
    for ended in [0, 1] {
        scene.run_job(&mut conn, &running[ended]).await;
        let next = scene.claim(&mut conn, 10).await;
        assert_eq!(next.len(), ended, "{next:?}");
        running.extend(next);
    }
    // Without a limit all start, and none waits for the ends of others.
    scene.run(&configure("null")).await;
    let rest = scene.claim(&mut conn, 10).await;
    assert_eq!((jobs(&rest), gated(&scene).await), (all[4..].to_vec(), 0));
    scene.end().await;
}

/// A claim that has read the limit of before may gate a group behind the change.
#[tokio::test]
async fn a_group_that_is_gated_beside_the_end_of_the_limit_is_woken() {
    let scene = limited(1).await;
    let (mut conn, mut other) = (scene.session().await, scene.session().await);
    enqueue(&mut conn, &["a"]).await;
    let first = scene.claim_one(&mut conn).await;
    let second = enqueue(&mut conn, &["b"]).await;
    assert!(claim_in_open(&scene, &mut other).await.is_empty());
    scene.run("select seriatim.configure_queue('q', '{\"limit_per_key\": null}')").await;
    assert!(scene.claim(&mut conn, 10).await.is_empty());
    commit(&mut other).await;
    scene.run_job(&mut conn, &first).await;
    assert_eq!(run_all(&scene, &mut conn).await, second);
    scene.end().await;
}

/// The key of the group that was gated beside the change has room now. Its wait need not last as
/// long as the jobs of others.
#[tokio::test]
async fn a_group_that_is_gated_beside_a_higher_limit_does_not_wait_for_an_end() {
    for higher in ["2", "null"] {
        let scene = limited(1).await;
        let (mut conn, mut other) = (scene.session().await, scene.session().await);
        enqueue(&mut conn, &["a"]).await;
        let first = scene.claim_one(&mut conn).await;
        scene.lease("a", 3600).await;
        let second = enqueue(&mut conn, &["b"]).await;
        assert!(claim_in_open(&scene, &mut other).await.is_empty());
        let configure =
            format!("select seriatim.configure_queue('q', '{{\"limit_per_key\": {higher}}}')");
        scene.run(&configure).await;
        commit(&mut other).await;
        assert!(scene.claim(&mut conn, 10).await.is_empty(), "nobody knows of the room");
        assert_eq!(scene.wake_stranded().await, 0, "it is late, and not stranded");
        assert_eq!(run_all(&scene, &mut conn).await, second, "limit: {higher}");
        scene.run_job(&mut conn, &first).await;
        assert_eq!((gated(&scene).await, slots(&scene).await), (0, 0));
        scene.end().await;
    }
}

/// A group keeps the slot that it had when the limit was removed: its end wakes who was gated
/// beside that.
#[tokio::test]
async fn a_slot_outlives_its_limit() {
    for lost in [true, false] {
        let scene = limited(1).await;
        let (mut conn, mut other) = (scene.session().await, scene.session().await);
        enqueue(&mut conn, &["a"]).await;
        let first = scene.claim_one(&mut conn).await;
        // A flag of a group that runs would have its row shared by the open claim.
        run(&mut conn, "update seriatim.job set flagged = false").await;
        let second = enqueue(&mut conn, &["b"]).await;
        assert!(claim_in_open(&scene, &mut other).await.is_empty());
        if !lost {
            assert_eq!(scene.release(&mut conn, &[first]).await, 1);
        }
        scene.run("select seriatim.configure_queue('q', '{\"limit_per_key\": null}')").await;
        let mut again = Vec::new();
        for _ in 0..2 {
            if lost {
                scene.lease("a", -1).await;
            }
            again.extend(scene.claim(&mut conn, 10).await);
        }
        commit(&mut other).await;
        scene.run_job(&mut conn, &again[0]).await;
        assert_eq!(run_all(&scene, &mut conn).await, second, "lost: {lost}");
        scene.end().await;
    }
}

#[tokio::test]
async fn a_gated_head_expires_and_a_late_one_goes_first() {
    let scene = limited(1).await;
    let (mut conn, mut late) = (scene.session().await, scene.session().await);
    enqueue(&mut conn, &["a"]).await;
    let first = scene.claim_one(&mut conn).await;
    // An id below those that are gated, whose commit comes last.
    begin(&mut late).await;
    let below = enqueue(&mut late, &["c"]).await;
    let hour = std::time::Duration::from_hours(1);
    let client = Client::default().notify(false);
    let expiring = client.enqueue(&mut conn, job("b", "t").time_to_live(hour)).await.unwrap().id();
    let behind = enqueue(&mut conn, &["c"]).await;
    assert!(scene.claim(&mut conn, 10).await.is_empty());
    assert_eq!(gated(&scene).await, 2);
    let due = "select (ready_at < now() + interval '2 h')::int::int8 from seriatim.queue_group \
               where group_id = 'b'";
    assert_eq!(scene.number(due).await, 1, "an expiry is not put off");
    commit(&mut late).await;
    scene.run("update seriatim.job set expires_at = now() where expires_at is not null").await;
    scene.lease("b", -1).await;
    let expired = scene.claim(&mut conn, 10).await;
    assert_eq!((jobs(&expired), slots(&scene).await), (vec![expiring], 1));
    scene.run_job(&mut conn, &first).await;
    assert_eq!(run_all(&scene, &mut conn).await, [below, behind].concat());
    scene.end().await;
}

/// One slot is not for jobs of two keys, whatever the turn could take.
#[tokio::test]
async fn jobs_of_a_turn_have_one_key() {
    for wrong in [true, false] {
        let mut scene = limited(1).await;
        scene.jobs_per_turn = 10;
        if wrong {
            let any = [("and j.limit_key is not distinct from next.limit_key", "")];
            scene.rewrite("follow", &any).await;
        }
        let mut conn = scene.session().await;
        let client = Client::default().notify(false);
        for key in ["t", "t", "u", "t"] {
            client.enqueue(&mut conn, job("a", key)).await.unwrap();
        }
        let turn = scene.claim_one(&mut conn).await;
        assert_eq!(turn.followers.len(), if wrong { 3 } else { 1 });
        scene.end().await;
    }
}

/// A receive may stay open for hours. It keeps its own keys, and no others.
#[tokio::test]
async fn a_receive_that_stays_open_delays_its_own_key_alone() {
    let scene = limited(2).await;
    let (mut receiver, mut conn) = (scene.session().await, scene.session().await);
    enqueue(&mut conn, &["a"]).await;
    begin(&mut receiver).await;
    let given = number(&mut receiver, "select count(*) from seriatim.receive('q')").await;
    assert_eq!(given, 1);
    let client = Client::default().notify(false);
    let same = client.enqueue(&mut conn, job("b", "t")).await.unwrap().id();
    let others = client.enqueue(&mut conn, job("c", "u")).await.unwrap().id();
    let started = scene.claim_one(&mut conn).await;
    assert_eq!(started.job, others);
    scene.run_job(&mut conn, &started).await;
    let answer = scene.claim_all(&mut conn, 10).await;
    let soon = answer.next.is_some_and(|next| next.as_secs() < 1);
    assert!(answer.jobs.is_empty() && !answer.more && soon, "it looks again soon: {answer:?}");
    rollback(&mut receiver).await;
    let mut ran = run_all(&scene, &mut conn).await;
    ran.sort_unstable();
    assert_eq!((ran.len(), ran[1]), (2, same));
    scene.end().await;
}

/// The claims of a full key beside its ends, at random: never more than the limit at once, and at
/// the end nothing is left.
#[tokio::test]
async fn at_random_no_key_runs_over_its_limit_and_no_group_stays() {
    let scene = std::sync::Arc::new(limited(2).await);
    let mut conn = scene.session().await;
    let client = Client::default().notify(false);
    for n in 0..size(60, 120) {
        let (group, key) = (format!("g{}", n % 30), format!("t{}", n % 3));
        client.enqueue(&mut conn, job(&group, &key)).await.unwrap();
    }
    let left =
        format!("select count(*) from seriatim.job where queue = '{Q}' and status < 'succeeded'");
    let workers: Vec<_> = (0..6)
        .map(|_| {
            let (scene, left) = (std::sync::Arc::clone(&scene), left.clone());
            tokio::spawn(async move {
                let mut conn = scene.session().await;
                let over = "select count(*) from (select 1 from seriatim.queue_group \
                            where limit_key is not null group by limit_key having count(*) > 2) o";
                while number(&mut conn, &left).await > 0 {
                    let claimed = scene.store.claim(&mut conn, Q, bounds(2), OPTIONS).await;
                    let claims = match claimed {
                        // A stalled session holds a row.
                        Err(error) if gave_up_waiting(&error) => continue,
                        claimed => claimed.unwrap().jobs,
                    };
                    assert_eq!(number(&mut conn, over).await, 0, "more than two run for a key");
                    for claim in claims {
                        scene.lease(claim.group.as_deref().unwrap(), 3600).await;
                        if fastrand::u8(..4) == 0 {
                            scene.release(&mut conn, &[claim]).await;
                            continue;
                        }
                        // Another claim may have the row for a moment.
                        loop {
                            match scene.try_hold(&mut conn, &claim).await {
                                HoldAnswer::Held(_) => break,
                                HoldAnswer::Skipped => rollback(&mut conn).await,
                                other @ HoldAnswer::Lost => panic!("not held: {other:?}"),
                            }
                        }
                        scene.settle(&mut conn, &claim, &succeeded()).await;
                        commit(&mut conn).await;
                    }
                }
            })
        })
        .collect();
    let all = futures::future::join_all(workers);
    let done = tokio::time::timeout(std::time::Duration::from_mins(1), all).await;
    for worker in done.expect("a group was forgotten") {
        worker.unwrap();
    }
    assert_eq!((gated(&scene).await, slots(&scene).await), (0, 0));
    let order: bool = sqlx::query_scalar(AssertSqlSafe(String::from(
        "select bool_and(ordered) from (select last_started_at > lag(last_started_at, 1, '-infinity') \
         over (partition by group_id order by id) as ordered from seriatim.job) o",
    )))
    .fetch_one(&mut conn)
    .await
    .unwrap();
    assert!(order);
    std::sync::Arc::try_unwrap(scene).ok().unwrap().end().await;
}

/// Sets the limit of the key `t`.
fn key_limit(limit: &str) -> String {
    format!("select seriatim.set_key_limit('q', 't', {limit})")
}

#[tokio::test]
async fn a_key_has_another_limit_than_its_queue() {
    for of_queue in [Some(1), None] {
        let scene = Scene::new().await;
        if let Some(per_key) = of_queue {
            limit(&scene, per_key).await;
        }
        let mut conn = scene.session().await;
        scene.run(&key_limit("2")).await;
        let all = enqueue(&mut conn, &["a", "b", "c", "d", "e", "f"]).await;
        let client = Client::default().notify(false);
        for group in ["x", "y"] {
            client.enqueue(&mut conn, job(group, "u")).await.unwrap();
        }
        let mut running = scene.claim(&mut conn, 20).await;
        // A limit of one key does not count for another key.
        assert_eq!(running.len(), 2 + if of_queue.is_some() { 1 } else { 2 });
        running.retain(|claim| all.contains(&claim.job));
        assert_eq!((jobs(&running), slots(&scene).await), (all[..2].to_vec(), 2));
        scene.run(&key_limit("3")).await;
        running.extend(scene.claim(&mut conn, 10).await);
        assert_eq!(jobs(&running), all[..3]);
        // No job is stopped, and no group starts before two have ended.
        scene.run(&key_limit("2")).await;
        assert!(scene.claim(&mut conn, 10).await.is_empty());
        for ended in [0, 1] {
            scene.run_job(&mut conn, &running[ended]).await;
            let next = scene.claim(&mut conn, 10).await;
            assert_eq!(next.len(), ended, "{next:?}");
            running.extend(next);
        }
        scene.run(&key_limit("null")).await;
        let rest = scene.claim(&mut conn, 10).await;
        if of_queue.is_none() {
            assert_eq!((jobs(&rest), gated(&scene).await), (all[4..].to_vec(), 0));
        } else {
            // Two run, and the queue's limit is one.
            assert_eq!((jobs(&rest), gated(&scene).await), (vec![], 3));
        }
        scene.end().await;
    }
}

/// A group that was woken has a slot, and must not start with it when its key is paused.
#[tokio::test]
async fn no_group_of_a_paused_key_starts() {
    for wrong in [true, false] {
        let scene = limited(1).await;
        if wrong {
            scene.rewrite("has_slot", &[("held and most > 0", "held")]).await;
        }
        let mut conn = scene.session().await;
        let all = enqueue(&mut conn, &["a", "b", "c"]).await;
        let first = scene.claim_one(&mut conn).await;
        scene.run_job(&mut conn, &first).await;
        scene.run("select seriatim.wake_gated('q', 1, 1, '-infinity')").await;
        assert_eq!((slots(&scene).await, gated(&scene).await), (1, 1));
        scene.run(&key_limit("0")).await;
        let answer = scene.claim_all(&mut conn, 10).await;
        assert_eq!(answer.jobs.len(), usize::from(wrong), "{answer:?}");
        if !wrong {
            assert!(!answer.more, "nothing is left to do: {answer:?}");
            assert_eq!((slots(&scene).await, gated(&scene).await), (0, 2));
            let late = enqueue(&mut conn, &["d"]).await;
            assert!(run_all(&scene, &mut conn).await.is_empty());
            scene.wake_stranded().await;
            assert!(run_all(&scene, &mut conn).await.is_empty());
            scene.run(&key_limit("2")).await;
            assert_eq!(run_all(&scene, &mut conn).await, [&all[1..], &late[..]].concat());
        }
        scene.end().await;
    }
}

/// Removes the last limit of a key, or raises it.
#[tokio::test]
async fn all_groups_are_woken_when_their_key_is_not_paused_any_longer() {
    for (of_queue, then, start) in [(None, "null", 4), (Some(2), "null", 2), (None, "3", 3)] {
        let scene = Scene::new().await;
        if let Some(per_key) = of_queue {
            limit(&scene, per_key).await;
        }
        let mut conn = scene.session().await;
        scene.run(&key_limit("0")).await;
        let all = enqueue(&mut conn, &["a", "b", "c", "d"]).await;
        assert!(scene.claim(&mut conn, 10).await.is_empty());
        assert_eq!(gated(&scene).await, 4);
        scene.run(&key_limit(then)).await;
        assert_eq!(jobs(&scene.claim(&mut conn, 10).await), all[..start], "{of_queue:?}, {then}");
        scene.end().await;
    }
}
