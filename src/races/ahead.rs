//! Jobs that were claimed ahead, and a worker that dies in the middle of its turn (P9).

use sqlx::Connection;

use super::scene::{KEEP, Q, Scene, commit, enqueue, failed, rollback, succeeded};
use crate::store::Done;
use crate::turn::Go;

/// Attempts that count, in order of the ids.
async fn counted(scene: &Scene, jobs: &[i64]) -> Vec<i64> {
    let mut counted = Vec::new();
    for job in jobs {
        let sql = format!(
            "select (attempts - attempts_forgiven)::int8 from seriatim.job where id = {job}"
        );
        counted.push(scene.id(&sql).await);
    }
    counted
}

/// Drains a group whose third job kills each worker that begins it. A worker records each success, or all with the last
/// job of its turn. How often each job was begun, and the attempts that count in the end.
async fn with_a_killer(record_each: bool) -> (Vec<usize>, Vec<i64>) {
    let mut scene = Scene::new().await;
    scene.options = scene.options.clone().jobs_per_turn(4);
    let mut conn = scene.session().await;
    let jobs = enqueue(&mut conn, &["g"; 5]).await;
    let killer = jobs[2];
    let mut begun = vec![0; jobs.len()];
    while scene.row("g").await.is_some() || begun[0] == 0 {
        let mut claims = scene.claim(&mut conn, 1).await;
        let Some(mut claim) = claims.pop() else {
            // Doubted, or its grace is over.
            if scene.row("g").await.is_some() {
                scene.lease("g", -1).await;
            }
            continue;
        };
        let mut done: Vec<Done> = Vec::new();
        loop {
            let held = scene.hold(&mut conn, &claim).await;
            if claim.go == Go::Run {
                begun[jobs.iter().position(|job| *job == claim.job).unwrap()] += 1;
                if claim.job == killer {
                    rollback(&mut conn).await;
                    scene.lease("g", -1).await;
                    break;
                }
            }
            let last = claim.behind.is_empty();
            if claim.go == Go::Run {
                done.push(Done { job: claim.job, result: "null".into() });
            }
            if (record_each || last) && !done.is_empty() && !(last && done.len() == 1) {
                let earlier = if last { &done[..done.len() - 1] } else { &done[..] };
                scene.store.record_done(&mut conn, Q, Some("g"), earlier, KEEP).await.unwrap();
            }
            if last {
                let outcome = if claim.go == Go::Run { succeeded() } else { failed() };
                scene.settle(&mut conn, &claim, &held, &outcome).await;
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
async fn a_job_that_kills_its_worker_runs_out_of_attempts_and_no_other_does() {
    let (begun, counted) = with_a_killer(true).await;
    assert_eq!(begun, [1, 1, 3, 1, 1]);
    assert_eq!(counted, [1, 1, 3, 1, 1]);
}

/// Successes that were not recorded are charged to their own jobs, once each: what was tried runs alone.
#[tokio::test(flavor = "multi_thread")]
async fn nor_where_successes_are_recorded_together() {
    let (begun, counted) = with_a_killer(false).await;
    // The first turn dies at the third job, which is charged to the first job: that runs alone then. So does the second
    // after the next death, and then the third, whose own attempts count from there on.
    assert_eq!(begun, [2, 3, 5, 1, 1]);
    assert_eq!(counted, [2, 2, 3, 1, 1]);
}
