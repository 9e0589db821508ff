//! Operators' changes to waiting jobs, beside claims of the same jobs (P2).
//!
//! A claim writes nothing to the job of a group. So a statement of an operator may lock a job that
//! was claimed since the statement began, and see it as it was. A later statement checks whether a
//! claim names the job.

use sqlx::AssertSqlSafe;
use sqlx::error::DatabaseError;

use crate::Client;
use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{begin, commit, number, pid, rollback, run};
use crate::interleavings::support::steps::failed;
use crate::store::{HoldAnswer, in_tx};

/// Where jobs are moved to, or came from.
const OTHER: &str = "other";

/// The condition under which a single job is locked.
const LOCKS_ONE: &str = "j.id = of_job and j.status::text = any (states)";

/// A request of an operator about the one job that there is.
struct Request {
    /// It returns how many jobs it changed.
    sql: &'static str,
    /// The function that locks the job, and what it asks of the job as it does.
    locks: (&'static str, &'static str),
    /// The function that looks for the claim then, and the words of that. Wrong: others.
    looks: (&'static str, &'static str, &'static str),
}

const REQUESTS: [Request; 9] = [
    Request {
        sql: "select c.done::integer::bigint from seriatim.cancel($job) c",
        locks: ("lock_unclaimed", LOCKS_ONE),
        looks: ("lock_unclaimed", "perform check_unclaimed(array[of_job])", "perform 1"),
    },
    Request {
        sql: "select s.done::integer::bigint from seriatim.skip($job) s",
        locks: ("lock_unclaimed", LOCKS_ONE),
        looks: ("lock_unclaimed", "perform check_unclaimed(array[of_job])", "perform 1"),
    },
    Request {
        sql: "select r.done::integer::bigint from seriatim.run_now($job) r",
        locks: ("lock_unclaimed", LOCKS_ONE),
        looks: ("lock_unclaimed", "perform check_unclaimed(array[of_job])", "perform 1"),
    },
    Request {
        sql: "select seriatim.purge('q')",
        locks: ("purge_groups", "(select true from claim_of(j.queue, j.group_id, j.id) c) is null"),
        looks: ("purge_groups", "perform check_unclaimed(ids)", "perform 1"),
    },
    Request {
        sql: "select seriatim.purge('q', 'g')",
        locks: ("purge_groups", "(select true from claim_of(j.queue, j.group_id, j.id) c) is null"),
        looks: ("purge_groups", "perform check_unclaimed(ids)", "perform 1"),
    },
    Request {
        sql: "select cardinality(m.jobs)::bigint from seriatim.move_jobs(array[$job]::bigint[], 'other') m",
        locks: ("move_jobs", "j.status::text in ('queued') and j.queue <> to_queue"),
        looks: ("move_jobs", "perform check_unclaimed(locked)", "perform 1"),
    },
    Request {
        sql: "select seriatim.move_waiting('q', 'other', 10)",
        locks: (
            "move_waiting",
            "j.queue = any (array[from_queue]) and j.status::text in ('queued')",
        ),
        looks: ("move_waiting", ":= unclaimed(part.ids)", ":= part.ids"),
    },
    Request {
        sql: "select seriatim.discard_jobs(array[$job]::bigint[])",
        locks: ("lock_dead_letters", "j.status::text in ('queued') and j.moved_from is not null"),
        looks: ("lock_dead_letters", "perform check_unclaimed(locked)", "perform 1"),
    },
    Request {
        sql: "select r.jobs from seriatim.redrive_jobs(array[$job]::bigint[]) r",
        locks: ("lock_dead_letters", "j.status::text in ('queued') and j.moved_from is not null"),
        looks: ("lock_dead_letters", "perform check_unclaimed(locked)", "perform 1"),
    },
];

/// Returns whether a claim names the job, though it has ended or is of another queue.
async fn is_broken(scene: &Scene, job: i64) -> bool {
    let ended_or_gone = format!(
        "select count(*) from seriatim.job where id = {job} and (finished_at is not null or queue <> '{Q}')"
    );
    scene.is_claimed(job).await && scene.number(&ended_or_gone).await == 1
}

#[tokio::test]
async fn a_job_that_was_claimed_before_it_was_locked_is_left_to_its_claim() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    for Request { sql, locks: (locks, asks), looks: (looks, by, other) } in REQUESTS {
        for wrong in [true, false] {
            let functions = [scene.definition(locks).await, scene.definition(looks).await];
            let job = scene.enqueue("g").await;
            if asks.contains("moved_from is not null") {
                // A dead letter that waits in this queue.
                scene.run(&format!("update seriatim.job set moved_from = '{OTHER}'")).await;
            }
            scene.close_gate().await;
            let gate = if wrong {
                // Wrong: it looks for the claim in the statement that locks.
                scene.rewrite(looks, &[(by, other)]).await;
                format!("{asks} and unclaimed(array[j.id]) <> '{{}}' and public.pass_gate()")
            } else {
                format!("{asks} and public.pass_gate()")
            };
            scene.rewrite(locks, &[(asks, &gate)]).await;
            let operator = scene.at_gate(sql.replace("$job", &job.to_string())).await;
            let claim = scene.claim_one(&mut worker).await;
            scene.open_gate().await;
            let (changed, _) = operator.await.unwrap();
            if wrong {
                assert_eq!(changed, 1, "{sql}");
                // `run_now` writes nothing to a job that was due already, yet it counts the job.
                assert!(is_broken(&scene, job).await || sql.contains("run_now"), "{sql}");
            } else {
                assert_eq!((changed, scene.status(job).await.as_str()), (0, "started"), "{sql}");
                scene.run_job(&mut worker, &claim).await;
                assert_eq!(scene.status(job).await, "succeeded", "{sql}");
            }
            for function in &functions {
                scene.run(function).await;
            }
            scene.clear().await;
        }
    }
    scene.end().await;
}

/// Above READ COMMITTED the second look has the first one's snapshot, which hides the claim.
#[tokio::test]
async fn a_request_whose_snapshot_is_older_than_a_claim_is_refused() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        if wrong {
            // Wrong: it acts at any isolation level.
            let (asks, wrong) = ("select current", "select true or current");
            scene.rewrite("is_read_committed", &[(asks, wrong)]).await;
        }
        let (mut operator, mut worker) = (scene.session().await, scene.session().await);
        for Request { sql, locks: (_, asks), .. } in REQUESTS {
            for level in ["repeatable read", "serializable"] {
                let job = scene.enqueue("g").await;
                if asks.contains("moved_from is not null") {
                    scene.run(&format!("update seriatim.job set moved_from = '{OTHER}'")).await;
                }
                run(&mut operator, &format!("begin isolation level {level}")).await;
                assert_eq!(number(&mut operator, "select count(*) from seriatim.job").await, 1);
                let claim = scene.claim_one(&mut worker).await;
                let request = sql.replace("$job", &job.to_string());
                if wrong {
                    assert_eq!(number(&mut operator, &request).await, 1, "{sql}");
                    run(&mut operator, "commit").await;
                    assert!(is_broken(&scene, job).await || sql.contains("run_now"), "{sql}");
                } else if sql.contains("cancel") {
                    // Left to the worker, which sees it.
                    assert_eq!(number(&mut operator, &request).await, 0);
                    run(&mut operator, "commit").await;
                    assert!(scene.hold(&mut worker, &claim).await.cancel_requested);
                    rollback(&mut worker).await;
                } else {
                    let refused =
                        sqlx::raw_sql(AssertSqlSafe(request)).execute(&mut operator).await;
                    let error = refused.unwrap_err();
                    let code = error.as_database_error().and_then(DatabaseError::code);
                    assert_eq!(code.as_deref(), Some("0A000"), "{sql}: {error}");
                    run(&mut operator, "rollback").await;
                    scene.run_job(&mut worker, &claim).await;
                    assert_eq!(scene.status(job).await, "succeeded", "{sql}");
                }
                scene.clear().await;
            }
        }
        scene.end().await;
    }
}

/// A preview is a request in a transaction that stays open. A settle of many jobs locks their
/// groups alone, and would wait for it.
#[tokio::test]
async fn a_request_that_finds_a_claim_keeps_no_lock() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    for Request { sql, locks: (locks, asks), .. } in REQUESTS {
        let function = scene.definition(locks).await;
        let job = scene.enqueue("g").await;
        if asks.contains("moved_from is not null") {
            scene.run(&format!("update seriatim.job set moved_from = '{OTHER}'")).await;
        }
        scene.close_gate().await;
        scene.rewrite(locks, &[(asks, &format!("{asks} and public.pass_gate()"))]).await;
        let operator = scene.at_gate(sql.replace("$job", &job.to_string())).await;
        let claim = scene.claim_one(&mut worker).await;
        scene.open_gate().await;
        let (changed, mut open) = operator.await.unwrap();
        assert_eq!(changed, 0, "{sql}");
        begin(&mut open).await;
        assert_eq!(number(&mut open, &sql.replace("$job", &job.to_string())).await, 0, "{sql}");
        scene.run_job(&mut worker, &claim).await;
        assert_eq!(scene.status(job).await, "succeeded", "{sql}");
        rollback(&mut open).await;
        scene.run(&function).await;
        scene.clear().await;
    }
    scene.end().await;
}

/// The job of the request that a claim overtook is cancelled by its worker.
#[tokio::test]
async fn a_cancel_behind_a_claim_is_a_request() {
    let scene = Scene::new().await;
    let job = scene.enqueue("g").await;
    scene.close_gate().await;
    let asks = REQUESTS[0].locks.1;
    scene.rewrite("lock_unclaimed", &[(asks, &format!("{asks} and public.pass_gate()"))]).await;
    let cancel = format!("select requested::integer::bigint from seriatim.cancel({job})");
    let operator = scene.at_gate(cancel).await;
    let mut worker = scene.session().await;
    let claim = scene.claim_one(&mut worker).await;
    scene.open_gate().await;
    assert_eq!(operator.await.unwrap().0, 1);
    assert!(scene.hold(&mut worker, &claim).await.cancel_requested);
    scene.end().await;
}

/// A park locks the group's row, so it sees the claim that it has waited for.
#[tokio::test]
async fn a_group_that_was_claimed_before_it_was_locked_is_not_parked() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let job = scene.enqueue("g").await;
        let mut worker = scene.session().await;
        scene.adopt(&mut worker).await;
        commit(&mut worker).await;
        scene.close_gate().await;
        let locks = "g.group_id = park.group_id for no key update skip locked";
        let gate = if wrong {
            // Wrong: it reads the row, and locks the job alone.
            "g.group_id = park.group_id and public.pass_gate()"
        } else {
            "g.group_id = park.group_id and public.pass_gate() for no key update skip locked"
        };
        scene.rewrite("park", &[(locks, gate)]).await;
        if wrong {
            // The halt would refuse it, as the row's token is the proof.
            let proof = "g.claim is not distinct from end_behind.token";
            scene.rewrite("end_behind", &[(proof, "true")]).await;
        }
        let park = format!("select coalesce(p.job, -p.running) from seriatim.park('{Q}', 'g') p");
        let operator = scene.at_gate(park).await;
        let claim = scene.claim_one(&mut worker).await;
        scene.open_gate().await;
        let (parked, _) = operator.await.unwrap();
        if wrong {
            // The claim is gone: the end of the halt starts the next job beside this one.
            assert_eq!((parked, scene.status(job).await.as_str()), (job, "failed"));
            assert!(!scene.is_claimed(job).await);
            let held = scene.try_hold(&mut worker, &claim).await;
            assert!(matches!(held, HoldAnswer::Lost), "{held:?}");
        } else {
            assert_eq!((parked, scene.status(job).await.as_str()), (-job, "started"));
            scene.run_job(&mut worker, &claim).await;
            assert_eq!(scene.status(job).await, "succeeded");
        }
        scene.end().await;
    }
}

/// Maintenance carries out a request that met a claim's lock, while that claim commits.
#[tokio::test]
async fn maintenance_leaves_a_job_that_was_claimed_before_it_was_locked() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let job = scene.enqueue("g").await;
        // Its statements are the crate's own: the requests that they read wait at the gate.
        for sql in [
            "alter table seriatim.cancel_request rename to the_requests",
            "create function at_gate() returns boolean language plpgsql volatile as $$ begin \
               return current_setting('application_name') <> 'maintenance' or public.pass_gate(); end $$",
            "create view seriatim.cancel_request as \
               select r.ctid, r.job_id, r.requested_at from seriatim.the_requests r where public.at_gate()",
        ] {
            scene.run(sql).await;
        }
        if wrong {
            // Wrong: it looks for no claim behind its lock.
            let looks = "where j.group_id is null";
            scene.rewrite("unclaimed", &[(looks, "where true or j.group_id is null")]).await;
        }
        let (mut worker, mut maintenance) = (scene.session().await, scene.session().await);
        scene.adopt(&mut worker).await;
        commit(&mut worker).await;
        begin(&mut worker).await;
        let turns = scene.lock_turns(&mut worker, 10).await;
        let heads = scene.read_heads(&mut worker, &turns).await;
        assert!(!scene.cancel(job).await, "the claim has locked it: a request");
        scene.close_gate().await;
        run(&mut maintenance, "set application_name = 'maintenance'").await;
        let waits = pid(&mut maintenance).await;
        let store = scene.store.clone();
        let settling = tokio::spawn(async move {
            begin(&mut maintenance).await;
            let cancelled = store.settle_requests(&mut maintenance).await.unwrap();
            commit(&mut maintenance).await;
            cancelled
        });
        scene.until_waits(waits, "advisory").await;
        let claims = scene.write(&mut worker, &heads).await;
        scene.lease("g", 3600).await;
        scene.open_gate().await;
        let cancelled = settling.await.unwrap();
        let requests = number(&mut worker, "select count(*) from seriatim.the_requests").await;
        if wrong {
            assert_eq!((cancelled, requests), (1, 0));
            assert!(is_broken(&scene, job).await);
        } else {
            assert_eq!((cancelled, requests), (0, 1));
            let held = match scene.try_hold(&mut worker, &claims[0]).await {
                HoldAnswer::Held(held) => held,
                other => panic!("not held: {other:?}"),
            };
            assert!(held.cancel_requested, "its worker carries it out");
        }
        scene.end().await;
    }
}

/// A handler that waits for a query gets its error as soon as the abort ends the session. The abort
/// is recorded first.
#[tokio::test]
async fn an_abort_that_has_ended_a_session_comes_before_the_end_of_its_handler() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let job = scene.enqueue("g").await;
        let ends = "terminated := of_session;";
        scene.rewrite("abort", &[(ends, &format!("{ends} perform public.pass_gate();"))]).await;
        if wrong {
            let lock = "perform pg_advisory_xact_lock(session_end_key(of_session));";
            scene.rewrite("abort", &[(lock, "")]).await;
        }
        let (mut holder, mut worker) = (scene.session().await, scene.session().await);
        let claim = scene.claim_one(&mut worker).await;
        scene.hold(&mut holder, &claim).await;
        let session = scene.store.session(&mut holder).await.unwrap();
        scene.close_gate().await;
        let abort = format!("select done::int::int8 from seriatim.abort({job})");
        let aborting = scene.at_gate(abort).await;
        let pid = pid(&mut worker).await;
        let store = scene.store.clone();
        let settling = tokio::spawn(async move {
            in_tx(&mut worker, async |conn| store.terminate(conn, session).await).await.unwrap();
            worker
        });
        if wrong {
            let mut worker = settling.await.unwrap();
            scene.hold(&mut worker, &claim).await;
            scene.settle(&mut worker, &claim, &failed()).await;
            commit(&mut worker).await;
            scene.open_gate().await;
        } else {
            scene.until_waits(pid, "advisory").await;
            scene.open_gate().await;
            let mut worker = settling.await.unwrap();
            let late = scene.try_hold(&mut worker, &claim).await;
            assert!(matches!(late, HoldAnswer::Lost), "{late:?}");
        }
        let (done, mut conn) = aborting.await.unwrap();
        assert_eq!(done, 1);
        let kind = "select (history -> -1 ->> 'kind' = 'aborted')::int::int8 from seriatim.job";
        assert_eq!(number(&mut conn, kind).await, i64::from(!wrong));
        scene.end().await;
    }
}

/// A group that a dead job has halted, and that maintenance is to park now. Returns the dead job.
async fn halted(scene: &Scene) -> i64 {
    let mut worker = scene.session().await;
    let job = scene.enqueue("g").await;
    scene.enqueue("g").await;
    scene.adopt(&mut worker).await;
    commit(&mut worker).await;
    let failed = format!(
        "update seriatim.job set status = 'failed', finished_at = now(), flagged = false where id = {job}"
    );
    let halt = format!(
        "update seriatim.queue_group set ready_at = 'infinity', halted_at = now(), halt_job_id = {job}, \
         halt_until = now(), halt_then = 'park'"
    );
    assert_eq!((scene.run(&failed).await, scene.run(&halt).await), (1, 1));
    job
}

/// A retry and a skip lock the job before they wait for the row of the group that it halted, and
/// maintenance has that row.
#[tokio::test]
async fn a_retry_and_the_parking_of_its_group_wait_in_no_circle() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let job = halted(&scene).await;
        let (mut operator, mut maintenance) = (scene.session().await, scene.session().await);
        let pids = (pid(&mut operator).await, pid(&mut maintenance).await);
        begin(&mut operator).await;
        run(&mut operator, &format!("select seriatim.lock_unclaimed({job}, '{{failed}}')")).await;
        begin(&mut maintenance).await;
        if wrong {
            // It waits for the job.
            run(&mut maintenance, "select 1 from seriatim.queue_group for no key update").await;
            let park = format!("update seriatim.job set parked_with = id where id = {job}");
            let parking = tokio::spawn(async move {
                sqlx::raw_sql(AssertSqlSafe(park)).execute(&mut maintenance).await
            });
            scene.until_waits(pids.1, "transactionid").await;
            let retried = Client::default().operator("test", None).retry(&mut operator, job).await;
            assert!(retried.is_err() || parking.await.unwrap().is_err(), "one was ended");
            continue;
        }
        assert!(!scene.store.end_halts(&mut maintenance).await.unwrap(), "it is left alone");
        let retrying = tokio::spawn(async move {
            Client::default().operator("test", None).retry(&mut operator, job).await.unwrap();
            operator
        });
        scene.until_waits(pids.0, "transactionid").await;
        commit(&mut maintenance).await;
        commit(&mut retrying.await.unwrap()).await;
        assert_eq!(scene.drain().await[0], job);
        scene.end().await;
    }
}
