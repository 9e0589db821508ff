//! A group keeps its slot for a time slice: its jobs run one after the other and in order.

use std::time::{Duration, Instant};

use serde_json::json;
use seriatim::admin::QueueSettings;
use seriatim::explain::Reason;
use seriatim::testing::{Server, TestDatabase};
use seriatim::{Client, Hold, JobError, JobStatus, OutOfAttempts, QueueOptions, RetryPolicy};

use crate::support::{
    Errors, Gate, Log, PATIENCE, by_hand, database, drained, ended, eventually, handler,
    handler_with, held_up, job, job_of, jobs_where, nothing_remains, operator, processor, queue,
    sample, serve, size, started, value,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_mins(10))];

/// A slice that no turn uses up.
const LONG: Duration = Duration::from_secs(50);

/// One slot, with turns as long as a group has jobs.
fn long(hold: Hold) -> QueueOptions {
    queue("q").concurrency(1).time_slice(LONG).hold(hold)
}

/// Runs eight jobs of each of three groups in one slot. Returns the groups in the order in which
/// they were served.
async fn served(hold: Hold, slice: Duration) -> Vec<String> {
    let database = database().await;
    let pool = database.pool();
    let jobs = (0..8).flat_map(|n| ["a", "b", "c"].map(|group| job_of("q", group, n)));
    seriatim::enqueue_many(pool, jobs).await.unwrap();
    let log = Log::default();
    let run = handler_with((log.clone(), slice), async |(log, slice), job, data| {
        log.add(format!("{} {data}", job.group().unwrap()));
        if slice == SHORT {
            // Uses the slice up.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(json!(null))
    });
    let options = queue("q").concurrency(1).time_slice(slice).hold(hold);
    let running = serve(&database, 4, options, run).await;
    drained(pool, "q").await;
    let entries = log.entries();
    for group in ["a", "b", "c"] {
        let of_group: Vec<&String> = entries.iter().filter(|e| e.starts_with(group)).collect();
        let expected: Vec<String> = (0..8).map(|n| format!("{group} {n}")).collect();
        assert_eq!(of_group, expected.iter().collect::<Vec<_>>(), "{hold:?}");
    }
    nothing_remains(pool).await;
    running.shutdown(Duration::from_secs(5)).await;
    entries.iter().map(|entry| entry[..1].to_owned()).collect()
}

/// A slice of three or four handlers.
const SHORT: Duration = Duration::from_millis(18);

/// A group that is served with others makes them wait for its slice, and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_keeps_its_slot_for_its_slice_and_then_waits() {
    for hold in sample(HOLDS) {
        let groups = served(hold, Duration::ZERO).await;
        // A job that was prefetched, and given back on a machine under load, is first in line
        // again.
        let again = groups.windows(2).filter(|two| two[0] == two[1]).count();
        assert!(again <= 2, "one job each: {groups:?}");
        let mut turns = served(hold, LONG).await;
        turns.dedup();
        turns.sort_unstable();
        assert_eq!(turns, ["a", "b", "c"], "all jobs each");
        let groups = served(hold, SHORT).await;
        let turns: Vec<&[String]> = groups.chunk_by(|a, b| a == b).collect();
        assert!(turns.iter().all(|turn| turn.len() <= 4), "{hold:?}: {groups:?}");
        for three in turns.windows(3).take(4) {
            assert_ne!(three[0][0], three[2][0], "{hold:?}, in turns: {groups:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_ends_the_turn_and_costs_those_behind_nothing() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let jobs = (0..5).map(|n| job_of("q", "g", n));
        let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
        let log = Log::default();
        let run = handler_with(log.clone(), async |log, job, data| {
            let attempt = job.attempt();
            log.add(format!("{data} at {attempt}"));
            if data == 1 && attempt == 1 {
                return Err(JobError::retry("the second job fails once"));
            }
            Ok(json!(null))
        });
        let running = serve(&database, 4, long(hold), run).await;
        drained(pool, "q").await;
        assert_eq!(
            log.entries(),
            ["0 at 1", "1 at 1", "1 at 2", "2 at 1", "3 at 1", "4 at 1"],
            "{hold:?}"
        );
        let behind = job(pool, ids[2].id()).await;
        assert_eq!(behind.attempts, 1);
        assert!(behind.history.is_empty(), "{behind:?}");
        nothing_remains(pool).await;
        running.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_final_failure_halts_or_parks_what_was_claimed_with_it() {
    for hold in sample(HOLDS) {
        for then in [OutOfAttempts::Halt, OutOfAttempts::Park] {
            let database = database().await;
            let pool = database.pool();
            let jobs = (0..4).map(|n| job_of("q", "g", n));
            let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
            let run =
                handler(
                    async |_, data| {
                        if data == 1 { Err(JobError::fail("for good")) } else { Ok(json!(null)) }
                    },
                );
            let options = long(hold).out_of_attempts(then);
            let running = serve(&database, 4, options, run).await;
            ended(pool, ids[1].id()).await;
            running.shutdown(Duration::from_secs(5)).await;
            let statuses: Vec<JobStatus> = {
                let mut statuses = Vec::new();
                for id in &ids {
                    statuses.push(job(pool, id.id()).await.status);
                }
                statuses
            };
            let waits = match then {
                OutOfAttempts::Park => JobStatus::Parked,
                _ => JobStatus::Queued,
            };
            assert_eq!(
                statuses,
                [JobStatus::Succeeded, JobStatus::Failed, waits, waits],
                "{hold:?} {then:?}"
            );
        }
    }
}

/// The first of three waits at a gate, and something happens meanwhile; gives back the jobs and the
/// log.
async fn in_the_middle_of_a_turn<F>(hold: Hold, what: F) -> (Vec<JobStatus>, Vec<String>)
where
    F: AsyncFnOnce(&sqlx::PgPool, &[i64]),
{
    let database = database().await;
    let pool = database.pool();
    let jobs = (0..3).map(|n| job_of("q", "g", n));
    let ids: Vec<i64> =
        seriatim::enqueue_many(pool, jobs).await.unwrap().iter().map(|job| job.id()).collect();
    let (log, gate) = (Log::default(), Gate::default());
    let run = held_up(&log, &gate);
    let running = serve(&database, 4, long(hold), run).await;
    log.wait_for(1).await;
    what(pool, &ids).await;
    if matches!(hold, Hold::Lease(_)) {
        // Longer than a success may wait for others: it is recorded alone, and that is when a turn
        // sees a pause.
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    gate.pass(100);
    eventually(pool, "select count(*) from seriatim.queue_group where job_id is not null", 0_i64)
        .await;
    let mut statuses = Vec::new();
    for id in ids {
        statuses.push(job(pool, id).await.status);
    }
    let entries = log.entries();
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(
        jobs_where(
            pool,
            "status = 'queued' \
        and (attempts <> 0 or last_started_at is not null or history <> '[]')"
        )
        .await,
        0
    );
    (statuses, entries)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_ends_the_turn() {
    use JobStatus::{Queued, Succeeded};
    for hold in sample(HOLDS) {
        let paused = async |pool: &sqlx::PgPool, _: &[i64]| {
            Client::default()
                .operator("test", "in a turn")
                .pause_group(pool, "q", "g")
                .await
                .unwrap();
        };
        let (statuses, log) = in_the_middle_of_a_turn(hold, paused).await;
        assert_eq!((statuses, log.len()), (vec![Succeeded, Queued, Queued], 1), "{hold:?}");
        let paused = async |pool: &sqlx::PgPool, _: &[i64]| {
            operator().pause_queue(pool, "q").await.unwrap();
        };
        let (statuses, log) = in_the_middle_of_a_turn(hold, paused).await;
        assert_eq!((statuses, log.len()), (vec![Succeeded, Queued, Queued], 1), "{hold:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_cancelled_before_it_begins_never_begins() {
    use JobStatus::{Cancelled, Succeeded};
    for hold in sample(HOLDS) {
        let cancelled = async |pool: &sqlx::PgPool, ids: &[i64]| {
            Client::default().cancel(pool, ids[1]).await.unwrap();
            if matches!(hold, Hold::Lease(_)) {
                // Its process reads such requests every 0.5 s; the handlers are slower than
                // that.
                tokio::time::sleep(Duration::from_secs(3)).await;
            }
        };
        let (statuses, log) = in_the_middle_of_a_turn(hold, cancelled).await;
        assert_eq!(statuses[..2], [Succeeded, Cancelled], "{hold:?}");
        assert!(!log.contains(&String::from("1")), "{hold:?}: {log:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_the_turn_and_leaves_the_rest_as_it_was() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let jobs = (0..3).map(|n| job_of("q", "g", n));
        let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
        let (log, gate) = (Log::default(), Gate::default());
        let run = held_up(&log, &gate);
        let running = serve(&database, 4, long(hold), run).await;
        log.wait_for(1).await;
        let shutdown = tokio::spawn(running.shutdown(PATIENCE));
        // The shutdown has begun when it was polled once. Nothing outside shows that.
        tokio::time::sleep(Duration::from_millis(100)).await;
        gate.pass(100);
        let report = shutdown.await.unwrap();
        assert_eq!((report.finished, report.released, report.lost), (1, 0, 0), "{hold:?}");
        for id in &ids[1..] {
            let job = job(pool, id.id()).await;
            assert_eq!((job.status, job.attempts), (JobStatus::Queued, 0), "{hold:?}");
            assert_eq!(job.last_started_at, None, "{hold:?}");
        }
        assert_eq!(log.entries(), ["0"]);
    }
}

/// A lower id that commits late has no order to those of the turn. It goes next after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_commits_late_runs_after_the_turn() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let mut tx = pool.begin().await.unwrap();
        seriatim::enqueue(&mut *tx, job_of("q", "g", 100)).await.unwrap();
        let jobs = (0..4).map(|n| job_of("q", "g", n));
        seriatim::enqueue_many(pool, jobs).await.unwrap();
        let (log, gate) = (Log::default(), Gate::default());
        let run = held_up(&log, &gate);
        let running = serve(&database, 4, long(hold), run).await;
        log.wait_for(1).await;
        tx.commit().await.unwrap();
        gate.pass(100);
        drained(pool, "q").await;
        assert_eq!(log.entries(), ["0", "1", "2", "3", "100"], "{hold:?}");
        running.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_tried_or_has_one_attempt_or_is_limited_runs_alone() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let ahead = |seen: Log| {
        handler_with(seen, async |seen, job, data| {
            let started = "select count(*) from seriatim.job \
                where seriatim.job_state(status, queue, group_id, id) = 'started'";
            let started: i64 = sqlx::query_scalar(started).fetch_one(job.tx().await?).await?;
            seen.add(started.to_string());
            if data == "fails once" && job.attempt() == 1 {
                return Err(JobError::retry("once"));
            }
            Ok(json!(null))
        })
    };
    // No job that has one attempt is started before its time.
    let once = long(Hold::Transaction).retry(RetryPolicy::new(1));
    seriatim::enqueue_many(pool, (0..3).map(|n| job_of("q", "g", n))).await.unwrap();
    let running = serve(&database, 4, once, ahead(log.clone())).await;
    drained(pool, "q").await;
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(log.entries(), ["1", "1", "1"]);
    // Nor where a limit counts what is started.
    let settings = QueueSettings::new("q").in_flight_limit(2);
    Client::default().configure_queue(pool, settings).await.unwrap();
    seriatim::enqueue_many(pool, (0..3).map(|n| job_of("q", "g", n))).await.unwrap();
    let limited = long(Hold::Transaction);
    let running = serve(&database, 4, limited, ahead(log.clone())).await;
    drained(pool, "q").await;
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(log.entries()[3..], ["1", "1", "1"]);
    let settings = QueueSettings::new("q").in_flight_limit(None);
    Client::default().configure_queue(pool, settings).await.unwrap();
    // The first time all three are claimed; the one that failed comes alone then, and the others
    // together again.
    let failing = long(Hold::Transaction);
    seriatim::enqueue_many(pool, ["fails once", "", ""].map(|data| job_of("q", "g", data)))
        .await
        .unwrap();
    let running = serve(&database, 4, failing, ahead(log.clone())).await;
    drained(pool, "q").await;
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(log.entries()[6..], ["3", "1", "2", "1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_explanation_names_the_job_of_the_turn_that_runs() {
    for hold in sample(HOLDS) {
        let explained = async |pool: &sqlx::PgPool, ids: &[i64]| {
            let explanation = Client::default().explain_job(pool, ids[2]).await.unwrap().unwrap();
            assert!(explanation.to_string().contains(&ids[0].to_string()), "{explanation}");
        };
        in_the_middle_of_a_turn(hold, explained).await;
    }
    // Also while a processor has no row yet, as in its first moments.
    let [tx, lease] = HOLDS;
    for (hold, has_row) in sample([(tx, true), (lease, true), (lease, false), (tx, false)]) {
        // The first has ended, and the second is the one that runs.
        let database = database().await;
        let pool = database.pool();
        let jobs = (0..3).map(|n| job_of("q", "g", n));
        let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
        let (log, gate) = (Log::default(), Gate::default());
        let run = held_up(&log, &gate);
        let builder = processor(&database, 4).await.presence(has_row);
        let running = started(builder.queue(long(hold), run)).await;
        log.wait_for(1).await;
        gate.pass(1);
        log.wait_for(2).await;
        ended(pool, ids[0].id()).await;
        if !has_row {
            eventually(pool, "select count(*) from seriatim.processor", 1_i64).await;
            by_hand(pool, "delete from seriatim.processor").await;
        }
        let second = ids[1].id();
        let last = Client::default().explain_job(pool, ids[2].id()).await.unwrap().unwrap();
        assert!(matches!(last.reason, Reason::Behind { head, .. } if head == second), "{last}");
        let group = Client::default().explain_group(pool, "q", "g").await.unwrap();
        assert_eq!(group.head, Some(second), "{group}");
        gate.pass(2);
        drained(pool, "q").await;
        running.shutdown(Duration::from_secs(5)).await;
    }
}

/// Commits of this server wait for a standby that never comes. A session that waits for
/// it has committed, and its client loses the answer if the session is ended then.
#[tokio::test(flavor = "multi_thread")]
async fn a_success_with_a_lost_answer_does_not_stop_its_group() {
    let holds = [(HOLDS[1], false), (HOLDS[1], true), (HOLDS[0], true)];
    let server = Server::start().await.unwrap();
    for (jobs, (hold, with_tx)) in
        sample(holds).into_iter().flat_map(|hold| [1, 3].map(|jobs| (jobs, hold)))
    {
        let database = TestDatabase::create_on(&server).await.unwrap();
        let pool = database.pool();
        let of_group = (0..jobs).map(|n| job_of("q", "g", n));
        seriatim::enqueue_many(pool, of_group).await.unwrap();
        let (log, gate, errors) = (Log::default(), Gate::default(), Errors::default());
        let (seen, wait) = (log.clone(), gate.clone());
        let run = handler_with((wait, seen, with_tx), async |(wait, seen, with_tx), job, data| {
            seen.add(data.to_string());
            if with_tx {
                job.tx().await?;
            }
            if data == 0 {
                wait.passed().await;
            }
            Ok(json!(null))
        });
        let running =
            started(errors.of(processor(&database, 4).await).queue(long(hold), run)).await;
        log.wait_for(1).await;
        // Longer than a success may wait for others.
        tokio::time::sleep(Duration::from_millis(40)).await;
        by_hand(pool, "alter system set synchronous_standby_names = 'nobody'").await;
        by_hand(pool, "select pg_reload_conf()").await;
        eventually(
            pool,
            "select current_setting('synchronous_standby_names')",
            "nobody".to_owned(),
        )
        .await;
        gate.pass(1);
        let waits = "select count(pg_terminate_backend(pid)) from pg_stat_activity where wait_event = 'SyncRep'";
        eventually(pool, waits, 1_i64).await;
        by_hand(pool, "alter system reset synchronous_standby_names").await;
        by_hand(pool, "select pg_reload_conf()").await;
        let since = Instant::now();
        drained(pool, "q").await;
        assert!(since.elapsed() < Duration::from_secs(10), "{hold:?}: {:?}", since.elapsed());
        assert_eq!(log.entries(), ["0", "1", "2"][..jobs], "{hold:?}");
        nothing_remains(pool).await;
        assert_eq!(errors.named("Settle"), [""; 0], "{hold:?}");
        running.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_the_turn_that_expires_before_it_begins_never_begins() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let jobs = [
            job_of("q", "g", 0),
            job_of("q", "g", 1).time_to_live(Duration::from_secs(2)),
            job_of("q", "g", 2),
        ];
        let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
        let (log, gate) = (Log::default(), Gate::default());
        let run = held_up(&log, &gate);
        let running = serve(&database, 4, long(hold), run).await;
        log.wait_for(1).await;
        eventually(pool, "select bool_or(expires_at < now()) from seriatim.job", true).await;
        gate.pass(3);
        drained(pool, "q").await;
        assert_eq!(log.entries(), ["0", "2"], "{hold:?}");
        let expired = job(pool, ids[1].id()).await;
        assert_eq!((expired.status, expired.attempts), (JobStatus::Failed, 0), "{expired:?}");
        running.shutdown(Duration::from_secs(5)).await;
    }
}

/// If the next one killed the process, a success that is not recorded would end as failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_attempts_success_is_recorded_before_the_next_begins() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let jobs = [job_of("q", "g", 0).max_attempts(1), job_of("q", "g", 1)];
        seriatim::enqueue_many(pool, jobs).await.unwrap();
        let (log, look) = (Log::default(), pool.clone());
        let run = handler_with((log.clone(), look), async |(log, look), _, data| {
            let done = "select count(*) from seriatim.job where status = 'succeeded'";
            let done: i64 = sqlx::query_scalar(done).fetch_one(&look).await.unwrap();
            log.add(format!("{data} {done}"));
            Ok(json!(null))
        });
        let running = serve(&database, 4, long(hold), run).await;
        drained(pool, "q").await;
        assert_eq!(log.entries(), ["0 0", "1 1"], "{hold:?}");
        running.shutdown(Duration::from_secs(5)).await;
    }
}

/// The cost of a claim or a settle must not grow beyond the time limit of its statement.
#[tokio::test(flavor = "multi_thread")]
async fn many_slots_with_long_turns_are_claimed_and_settled_in_bounds() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let jobs = (0..size(10_000, 20_000)).map(|n| job_of("q", &format!("g{}", n % 100), n));
        seriatim::enqueue_many(pool, jobs).await.unwrap();
        let run = handler(async |_, _| Ok(json!(null)));
        let options = queue("q").concurrency(64).time_slice(LONG).hold(hold);
        let errors = Errors::default();
        let builder = errors.of(processor(&database, 66).await);
        let running = started(builder.queue(options, run)).await;
        let (many, mut done) = (size(1_000, 5_000), -1);
        let mut since = Instant::now();
        while done < many {
            let now: i64 =
                value(pool, "select count(*) from seriatim.job where status = 'succeeded'").await;
            if now > done {
                (done, since) = (now, Instant::now());
            }
            assert!(since.elapsed() < PATIENCE, "{hold:?}: {done} jobs, and no more");
        }
        running.shutdown(PATIENCE).await;
        // A machine that stalls for 2 s is too slow for one.
        let failed = errors.named("Claim");
        let slow = errors.but_slow_checks().len() < errors.0.entries().len();
        assert!(failed.len() <= usize::from(slow), "{hold:?}: {failed:?}");
    }
}
