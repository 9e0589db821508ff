//! A paused queue or group starts nothing until it is resumed, and then goes on. Nothing else is
//! touched by it.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use seriatim::receive::Receive;
use seriatim::testing::TestDatabase;
use seriatim::{Client, ControlError, JobStatus, NewJob, Running};
use sqlx::PgPool;

use crate::support::{
    Gate, Log, by_hand, database, ended, enqueue, eventually, handler_with, job, nothing_remains,
    operator, present_transactions_end, processor, queue, sample, started, until_groups,
    until_jobs, value,
};

struct Bench {
    database: TestDatabase,
    log: Log,
    /// Holds up the handlers of "slow".
    gate: Gate,
    running: Running,
}

impl Bench {
    async fn new() -> Self {
        let database = database().await;
        let (log, gate) = (Log::default(), Gate::default());
        let mut builder = processor(&database, 8).await;
        for name in ["q", "other"] {
            let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, data| {
                log.add(format!("{} {data}", job.group().unwrap_or("-")));
                if data == "slow" {
                    gate.passed().await;
                }
                Ok(Value::Null)
            });
            builder = builder.queue(queue(name), run);
        }
        let running = started(builder).await;
        Self { database, log, gate, running }
    }

    fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    /// Other groups, or another queue, are served for long enough for anything else to have run.
    async fn others_go_on(&self, queue: &str) {
        for _ in 0..10 {
            let other = enqueue(self.pool(), queue, "other", 0).await;
            ended(self.pool(), other).await;
        }
    }

    fn ran(&self) -> Vec<String> {
        let mut entries = self.log.entries();
        entries.retain(|entry| !entry.starts_with("other"));
        entries
    }

    async fn end(self) {
        nothing_remains(self.pool()).await;
        self.running.shutdown(Duration::from_secs(5)).await;
        self.database.remove().await.unwrap();
    }
}

fn client() -> Client {
    Client::default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_starts_nothing_until_it_is_resumed() {
    let bench = Bench::new().await;
    let pool = bench.pool();
    let slow = enqueue(pool, "q", "g", "slow").await;
    bench.log.wait_for(1).await;
    assert_eq!(client().paused_queue(pool, "q").await.unwrap(), None);
    client().operator("test", "first").pause_queue(pool, "q").await.unwrap();
    let first = client().paused_queue(pool, "q").await.unwrap().unwrap();
    client().operator("test", "maintenance").pause_queue(pool, "q").await.unwrap();
    let paused = client().paused_queue(pool, "q").await.unwrap().unwrap();
    assert_eq!((paused.queue.as_str(), paused.reason.as_deref()), ("q", Some("maintenance")));
    assert_eq!(paused.since, first.since);
    assert!(paused.age < Duration::from_secs(30));

    let next = enqueue(pool, "q", "g", "next").await;
    let ungrouped = seriatim::enqueue(pool, NewJob::new("q", &"ungrouped")).await.unwrap().id();
    // Running jobs go on, and another queue is not touched.
    bench.gate.pass(1);
    assert_eq!(ended(pool, slow).await.status, JobStatus::Succeeded);
    bench.others_go_on("other").await;
    assert_eq!(bench.ran(), ["g \"slow\""]);
    assert_eq!(job(pool, next).await.status, JobStatus::Queued);

    operator().resume_queue(pool, "q").await.unwrap();
    ended(pool, next).await;
    ended(pool, ungrouped).await;
    assert_eq!(client().paused_queue(pool, "q").await.unwrap(), None);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_group_rests_whatever_comes_and_goes_on_in_order() {
    let bench = Bench::new().await;
    let pool = bench.pool();
    enqueue(pool, "q", "g", "slow").await;
    bench.log.wait_for(1).await;
    client().operator("test", "angry customer").pause_group(pool, "q", "g").await.unwrap();
    // Without any job, and so without a row.
    operator().pause_group(pool, "q", "empty").await.unwrap();
    let groups = client().paused_groups(pool, "q").await.unwrap();
    let names: Vec<_> =
        groups.iter().map(|g| (g.queue.as_str(), g.group.as_str(), g.reason.as_deref())).collect();
    assert_eq!(names, [("q", "g", Some("angry customer")), ("q", "empty", None)]);
    assert!(groups[0].age >= groups[1].age && groups[0].since <= groups[1].since);

    enqueue(pool, "q", "g", 1).await;
    enqueue(pool, "q", "empty", 1).await;
    bench.gate.pass(1);
    let resting =
        "select count(*) from seriatim.queue_group where ready_at = 'infinity' and claim is null";
    eventually(pool, resting, 2_i64).await;
    // A further one wakes it for one read of its heads, and no more.
    let last = enqueue(pool, "q", "g", 2).await;
    until_jobs(pool, "flagged", 0).await;
    bench.others_go_on("q").await;
    eventually(pool, resting, 2_i64).await;
    assert_eq!(bench.ran(), ["g \"slow\""]);
    // It is neither halted nor stranded.
    assert!(client().halted_groups(pool, "q").await.unwrap().is_empty());

    operator().resume_group(pool, "q", "g").await.unwrap();
    ended(pool, last).await;
    assert_eq!(bench.ran(), ["g \"slow\"", "g 1", "g 2"]);
    operator().resume_group(pool, "q", "empty").await.unwrap();
    bench.log.wait("the other one ran", |seen| seen.iter().any(|e| e == "empty 1")).await;
    assert!(client().paused_groups(pool, "q").await.unwrap().is_empty());
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_take_part_in_the_callers_transaction() {
    let bench = Bench::new().await;
    let pool = bench.pool();
    let mut tx = pool.begin().await.unwrap();
    operator().pause_group(&mut *tx, "q", "g").await.unwrap();
    operator().pause_queue(&mut *tx, "q").await.unwrap();
    tx.rollback().await.unwrap();
    let first = enqueue(pool, "q", "g", 1).await;
    ended(pool, first).await;

    operator().pause_group(pool, "q", "g").await.unwrap();
    let second = enqueue(pool, "q", "g", 2).await;
    until_groups(pool, "ready_at = 'infinity'", 1).await;
    for commits in [false, true] {
        let mut tx = pool.begin().await.unwrap();
        operator().resume_group(&mut *tx, "q", "g").await.unwrap();
        bench.others_go_on("q").await;
        assert_eq!(job(pool, second).await.status, JobStatus::Queued);
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
    }
    ended(pool, second).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_paused_is_resumed_and_odd_names_are_kept() {
    let bench = Bench::new().await;
    let pool = bench.pool();
    for (refused, words) in [
        (operator().resume_queue(pool, "q").await, "queue \"q\" is not paused"),
        (operator().resume_group(pool, "q", "g").await, "group \"g\" of queue \"q\" is not paused"),
    ] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, ControlError::NotPaused { .. }), "{refused:?}");
        assert!(refused.to_string().starts_with(words), "{refused}");
    }
    for refused in
        [operator().pause_queue(pool, "").await, operator().pause_group(pool, "q", "\0").await]
    {
        assert!(matches!(refused, Err(ControlError::Name(_))), "{refused:?}");
    }
    let odd = "it's \\'; drop schema seriatim; -- $1 ?1 \u{1f600}";
    client().operator("test", odd).pause_group(pool, "q", odd).await.unwrap();
    let waiting = enqueue(pool, "q", odd, 1).await;
    until_groups(pool, "ready_at = 'infinity'", 1).await;
    operator().resume_group(pool, "q", odd).await.unwrap();
    ended(pool, waiting).await;
    let settings: i64 = value(pool, "select count(*) from seriatim.group_setting").await;
    assert_eq!(settings, 0, "an ended pause leaves no row");
    bench.end().await;
}

/// Returns the time in so many milliseconds, by the database's clock.
async fn in_ms(pool: &PgPool, ms: i64) -> DateTime<Utc> {
    let now: DateTime<Utc> = value(pool, "select clock_timestamp()").await;
    now + TimeDelta::milliseconds(ms)
}

/// Pauses the queue `q`, or its group.
async fn pause_until(pool: &PgPool, group: Option<&str>, until: DateTime<Utc>) {
    let (client, why) = (client(), Some("for a while"));
    match group {
        Some(group) => {
            client.operator("test", why).pause_group_until(pool, "q", group, until).await.unwrap();
        }
        None => client.operator("test", why).pause_queue_until(pool, "q", until).await.unwrap(),
    }
}

/// Returns the end of the pause of the queue `q`, or of its one paused group.
async fn paused_until(pool: &PgPool, group: Option<&str>) -> Option<DateTime<Utc>> {
    match group {
        Some(_) => client().paused_groups(pool, "q").await.unwrap().pop()?.until,
        None => client().paused_queue(pool, "q").await.unwrap()?.until,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_with_an_end_ends_by_itself_and_never_sooner() {
    for group in sample([None, Some("g")]) {
        let bench = Bench::new().await;
        let pool = bench.pool();
        // Jobs of a turn that goes on stop at the pause as well.
        enqueue(pool, "q", "g", "slow").await;
        bench.log.wait_for(1).await;
        let chained = enqueue(pool, "q", "g", 1).await;
        let until = in_ms(pool, 1_500).await;
        pause_until(pool, group, until).await;
        assert_eq!(paused_until(pool, group).await, Some(until));
        let last = enqueue(pool, "q", "g", 2).await;
        bench.gate.pass(1);
        for id in [chained, last] {
            let started = ended(pool, id).await.last_started_at;
            assert!(started >= Some(until), "{started:?} is before {until}");
        }
        assert_eq!(bench.ran(), ["g \"slow\"", "g 1", "g 2"]);
        // It is over for all who ask.
        assert_eq!(paused_until(pool, group).await, None);
        let over = match group {
            Some(group) => operator().resume_group(pool, "q", group).await,
            None => operator().resume_queue(pool, "q").await,
        };
        assert!(matches!(over, Err(ControlError::NotPaused { .. })), "{over:?}");
        // Its end cleared what the pause left.
        let left = "select (select count(*) from seriatim.queue where paused_until is not null)
            + (select count(*) from seriatim.group_setting where paused_until is not null)";
        assert_eq!(value::<i64>(pool, left).await, 0);
        // The next pause is a new one.
        pause_until(pool, group, in_ms(pool, 3_600_000).await).await;
        let since: DateTime<Utc> = match group {
            Some(_) => client().paused_groups(pool, "q").await.unwrap()[0].since,
            None => client().paused_queue(pool, "q").await.unwrap().unwrap().since,
        };
        assert!(since >= until);
        bench.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_replaced_or_resumed_does_not_count() {
    for group in sample([Some("g"), None]) {
        let bench = Bench::new().await;
        let pool = bench.pool();
        pause_until(pool, group, in_ms(pool, 3_600_000).await).await;
        let first = enqueue(pool, "q", "g", 1).await;
        if group.is_some() {
            until_groups(pool, "ready_at > now() + interval '30 min'", 1).await;
        }
        // A sooner end wakes what rests until the later one.
        let sooner = in_ms(pool, 1_500).await;
        pause_until(pool, group, sooner).await;
        assert!(ended(pool, first).await.last_started_at >= Some(sooner));
        // A resume goes before the end, and a later end, or none, before a sooner one.
        let mut wait_ms = 300;
        let end = loop {
            let end = in_ms(pool, wait_ms).await;
            pause_until(pool, group, end).await;
            match group {
                Some(group) => operator().pause_group(pool, "q", group).await.unwrap(),
                None => operator().pause_queue(pool, "q").await.unwrap(),
            }
            if in_ms(pool, 0).await < end {
                break end;
            }
            // Too late on a busy machine: a claim may have begun between the pauses.
            wait_ms *= 2;
        };
        // A claim that began before the pause would start the second job.
        present_transactions_end(pool).await;
        let second = enqueue(pool, "q", "g", 2).await;
        while in_ms(pool, 0).await <= end {
            bench.others_go_on("other").await;
        }
        bench.others_go_on("other").await;
        assert_eq!(job(pool, second).await.status, JobStatus::Queued);
        match group {
            Some(group) => operator().resume_group(pool, "q", group).await.unwrap(),
            None => operator().resume_queue(pool, "q").await.unwrap(),
        }
        ended(pool, second).await;
        bench.end().await;
    }
}

#[tokio::test]
async fn a_receiver_gets_nothing_before_the_end_of_a_pause() {
    for group in sample([None, Some("g")]) {
        let database = database().await;
        let pool = database.pool();
        let until = in_ms(pool, 1_500).await;
        pause_until(pool, group, until).await;
        let id = enqueue(pool, "q", "g", 1).await;
        let received = loop {
            let before = in_ms(pool, 0).await;
            if let Some(job) = client().receive(pool, Receive::new("q")).await.unwrap().pop() {
                break job;
            }
            // It rests 20 ms at most if it was looked at just before the end.
            assert!(before <= until + TimeDelta::seconds(10), "nothing came");
        };
        assert_eq!(received.receipt.job(), id);
        assert!(job(pool, id).await.last_started_at >= Some(until));
        database.remove().await.unwrap();
    }
}

#[tokio::test]
async fn a_pause_that_would_be_over_is_refused() {
    let database = database().await;
    let pool = database.pool();
    let past = in_ms(pool, -1).await;
    let far = past + TimeDelta::days(36_600);
    for refused in [
        operator().pause_queue_until(pool, "q", far).await,
        operator().pause_queue_until(pool, "q", DateTime::<Utc>::MAX_UTC).await,
        operator().pause_queue_until(pool, "q", past).await,
        operator().pause_group_until(pool, "q", "g", past).await,
    ] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, ControlError::OutOfRange { .. }), "{refused:?}");
        assert!(refused.to_string().contains("a time to come"), "{refused}");
    }
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.operation").await, 0);
    by_hand(pool, "select seriatim.pause('q', until => 'infinity')").await;
    assert_eq!(client().paused_queue(pool, "q").await.unwrap().unwrap().until, None);
    database.remove().await.unwrap();
}
