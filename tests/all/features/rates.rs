//! The rate of a queue, exact over all processors and while they die, and the spacing of a group's
//! starts.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use seriatim::admin::{QueueSettings, Rate};
use seriatim::explain::Reason;
use seriatim::receive::Receive;
use seriatim::{Client, Hold, JobError, NewJob};
use sqlx::PgPool;
use tokio::time::Instant;

use crate::support::worker_process::{Settings, WorkerProcess};
use crate::support::{
    Log, by_hand, database, drained, ended, enqueue, eventually, handler, handler_with, job,
    job_of, nothing_remains, queue, sample, serve, size, value,
};

async fn configure(pool: &PgPool, settings: QueueSettings) {
    Client::default().configure_queue(pool, settings).await.unwrap();
}

/// All starts of a queue's jobs: the last ones, and those of attempts that were lost.
async fn starts(pool: &PgPool) -> Vec<DateTime<Utc>> {
    let starts = "select at from (select last_started_at as at from seriatim.job \
        union all select started_at from seriatim.queue_group \
        union all select (h->>'started_at')::timestamptz from seriatim.job, \
          jsonb_array_elements(history) h where (h->>'attempt')::integer < attempts) s \
        where at is not null order by at";
    sqlx::query_scalar(starts).fetch_all(pool).await.unwrap()
}

async fn until(pool: &PgPool, count: &'static str, at_least: i64) {
    while value::<i64>(pool, count).await < at_least {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_is_exact_over_four_processes_that_are_killed() {
    // A loaded machine starts as many with builds that are not optimized.
    let per_second = size(20_u32, 30);
    let database = database().await;
    let pool = database.pool();
    // Starts may be late by 15 s, and none is lost: a machine may stall.
    let burst = 15 * per_second;
    let settings = QueueSettings::new("q").rate(Rate::per_second(per_second).burst(burst));
    configure(pool, settings).await;
    let seconds = size(3_u32, 60);
    let jobs = (0..per_second * (seconds + 60)).map(|n| job_of("q", &format!("g{}", n % 97), "ok"));
    seriatim::enqueue_many(pool, jobs).await.unwrap();
    let log = Log::default();
    let start = |n: u32| {
        let mut settings = Settings::new(database.url(), &["q"]);
        settings.lease = (n % 2 == 1).then_some(Duration::from_secs(2));
        WorkerProcess::start(format!("worker {n}"), &settings, &log)
    };
    let mut workers: Vec<_> = (0..4).map(start).collect();
    for worker in &workers {
        worker.is_ready(&log).await;
    }
    // No start is late: from here on it is the rate.
    let in_time = "select coalesce(max(rate_next_at) > clock_timestamp() + interval '14.9 s', \
                   false) from seriatim.queue";
    let begun = "select count(*) from seriatim.job where status = 'succeeded'";
    until(pool, begun, i64::from(burst) + size(20, 50)).await;
    eventually(pool, in_time, true).await;
    let from: DateTime<Utc> = value(pool, "select clock_timestamp()").await;
    let end = Instant::now() + Duration::from_secs(seconds.into());
    let mut killed = 4;
    while Instant::now() + Duration::from_secs(2) < end {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        workers.remove(0).kill().await;
        let next = start(killed);
        // Three of them go on.
        next.is_ready(&log).await;
        workers.push(next);
        killed += 1;
    }
    tokio::time::sleep_until(end).await;
    eventually(pool, in_time, true).await;
    let until: DateTime<Utc> = value(pool, "select clock_timestamp()").await;
    for worker in workers {
        worker.kill().await;
    }
    let starts = starts(pool).await;
    let begun = starts.iter().filter(|at| (from..until).contains(at)).count();
    let begun = f64::from(u32::try_from(begun).unwrap());
    let span = (until - from).as_seconds_f64();
    let expected = f64::from(per_second) * span;
    println!("{begun} starts in {span:.2} s, {expected:.0} expected, {} killed", killed - 4);
    // A claim that comes late takes several, of 16 slots: the ends of the span may cut one.
    let within = (expected * 0.01).max(16.0);
    assert!((begun - expected).abs() <= within, "{begun} starts, {expected} expected");
    // No span has more than its part, the burst and one. A handler begins behind its claim, in any
    // of 16 slots.
    for (n, at) in starts.iter().enumerate() {
        let most = |earlier: &DateTime<Utc>| {
            (*at - earlier).as_seconds_f64() * f64::from(per_second) + f64::from(burst) + 17.0
        };
        let (first, _) = starts[..n]
            .iter()
            .enumerate()
            .find(|(m, earlier)| f64::from(u32::try_from(n - m + 1).unwrap()) > most(earlier))
            .unwrap_or((n, at));
        assert_eq!(first, n, "{} starts between {} and {at}", n - first + 1, starts[first]);
    }
    database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_may_not_start_costs_no_attempt_and_is_explained() {
    let database = database().await;
    let pool = database.pool();
    configure(pool, QueueSettings::new("q").rate(Rate::per_hour(1))).await;
    let running = serve(&database, 4, queue("q"), handler(async |_, _| Ok(Value::Null))).await;
    let first = enqueue(pool, "q", "a", 1).await;
    ended(pool, first).await;
    let second = enqueue(pool, "q", "b", 2).await;
    let other = seriatim::enqueue(pool, NewJob::new("other", &1)).await.unwrap().id();
    for asked in [second, second] {
        let why = Client::default().explain_job(pool, asked).await.unwrap().unwrap();
        let Reason::AtRate { rate, until } = &why.reason else { panic!("{why}") };
        assert_eq!((rate.starts(), rate.per()), (1, Duration::from_hours(1)));
        assert!((*until - Utc::now()).num_minutes() >= 58, "{until}");
        let said = why.to_string();
        assert!(said.contains("because its queue starts 1 an hour at most"), "{said}");
        assert!(said.contains("raise the queue's rate"), "{said}");
    }
    let waiting = job(pool, second).await;
    assert_eq!((waiting.attempts, waiting.last_started_at), (0, None));
    let overview = Client::default().queues(pool).await.unwrap();
    let of = |name: &str| overview.iter().find(|queue| queue.queue == name).unwrap().rate;
    assert_eq!((of("q"), of("other")), (Some(Rate::per_hour(1)), None));
    assert_eq!(job(pool, other).await.attempts, 0);
    // Another rate counts from the next claim on.
    configure(pool, QueueSettings::new("q").rate(Rate::per_second(100))).await;
    ended(pool, second).await;
    configure(pool, QueueSettings::new("q").rate(None)).await;
    let stored = Client::default().queue_settings(pool, "q").await.unwrap();
    assert_eq!(stored.rate, None);
    running.shutdown(Duration::from_secs(5)).await;
    database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_start_counts_also_of_a_retry_and_a_snooze() {
    let database = database().await;
    let pool = database.pool();
    configure(pool, QueueSettings::new("q").rate(Rate::per_minute(600).burst(1))).await;
    let run = handler(async |job, _| match (job.attempt(), job.snoozes()) {
        (1, 0) => Err(JobError::retry("once")),
        (_, 0) => Err(JobError::snooze(Duration::from_millis(1))),
        _ => Ok(Value::Null),
    });
    let began: DateTime<Utc> = value(pool, "select clock_timestamp()").await;
    let running = serve(&database, 4, queue("q"), run).await;
    let jobs = [enqueue(pool, "q", "a", 1).await, enqueue(pool, "q", "b", 1).await];
    for id in jobs {
        ended(pool, id).await;
    }
    let last: DateTime<Utc> = value(pool, "select max(last_started_at) from seriatim.job").await;
    // Six starts, 0.1 s apart.
    assert!(last - began >= chrono::Duration::milliseconds(495), "{}", last - began);
    running.shutdown(Duration::from_secs(5)).await;
    database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_get_what_the_rate_allows() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default();
    configure(pool, QueueSettings::new("q").rate(Rate::per_hour(1).burst(3))).await;
    for n in 0..6 {
        enqueue(pool, "q", &format!("g{}", n % 2), n).await;
    }
    let receive = || Receive::new("q").max(10);
    let got = client.receive(pool, receive()).await.unwrap();
    assert_eq!(got.len(), 3, "also of one group");
    assert!(client.receive(pool, receive()).await.unwrap().is_empty());
    let due: f64 = value(pool, "select seriatim.due_in('q')").await;
    assert!((3_500.0..3_600.0).contains(&due), "long polls wait for {due} s");
    by_hand(pool, "update seriatim.queue set rate_next_at = null").await;
    for job in &got {
        client.ack(pool, &job.receipt).await.unwrap();
    }
    assert_eq!(client.receive(pool, receive()).await.unwrap().len(), 3);
    database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_starts_of_a_group_are_spaced() {
    let spacing = chrono::Duration::milliseconds(150);
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_secs(30))]) {
        let database = database().await;
        let pool = database.pool();
        configure(pool, QueueSettings::new("q").group_spacing(spacing.to_std().unwrap())).await;
        let run = handler(async |job, _| match job.attempt() {
            1 => Err(JobError::retry("once")),
            _ => Ok(Value::Null),
        });
        let running = serve(&database, 8, queue("q").hold(hold), run).await;
        for n in 0..12 {
            enqueue(pool, "q", &format!("g{}", n % 3), n).await;
        }
        drained(pool, "q").await;
        // The group has drained, and its next job comes right behind.
        let late = enqueue(pool, "q", "g0", 99).await;
        ended(pool, late).await;
        let mut begins = Vec::new();
        let mut ends = Vec::new();
        for group in ["g0", "g1", "g2"] {
            let starts: Vec<DateTime<Utc>> = sqlx::query_scalar(
                "select at from (select last_started_at as at from seriatim.job where group_id = $1 \
                 union all select (h->>'started_at')::timestamptz from seriatim.job, \
                   jsonb_array_elements(history) h \
                   where group_id = $1 and (h->>'attempt')::integer < attempts) s order by at",
            )
            .bind(group)
            .fetch_all(pool)
            .await
            .unwrap();
            assert_eq!(starts.len(), if group == "g0" { 10 } else { 8 }, "{group}");
            for pair in starts.windows(2) {
                assert!(pair[1] - pair[0] >= spacing, "{group}: {}", pair[1] - pair[0]);
            }
            begins.push(starts[0]);
            ends.push(starts[7]);
        }
        // Side by side, and not one after the other.
        assert!(begins.iter().max() < ends.iter().min(), "{begins:?} {ends:?}");
        nothing_remains(pool).await;
        running.shutdown(Duration::from_secs(5)).await;
        database.remove().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spaced_group_is_explained_and_receivers_get_one_job_of_it() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default();
    configure(pool, QueueSettings::new("q").group_spacing(Duration::from_hours(1))).await;
    let (first, second) = (enqueue(pool, "q", "g", 1).await, enqueue(pool, "q", "g", 2).await);
    let other = enqueue(pool, "q", "other", 3).await;
    let got = client.receive(pool, Receive::new("q").max(10)).await.unwrap();
    let ids: Vec<i64> = got.iter().map(|job| job.receipt.job()).collect();
    assert_eq!(ids, [first, other]);
    client.ack(pool, &got[0].receipt).await.unwrap();
    let why = client.explain_job(pool, second).await.unwrap().unwrap();
    assert!(matches!(why.reason, Reason::Spaced { .. }), "{why}");
    assert!(why.to_string().contains("spaces the starts of each group"), "{why}");
    assert!(client.receive(pool, Receive::new("q").max(10)).await.unwrap().is_empty());
    database.remove().await.unwrap();
}

/// The jobs of a turn have been counted, and would start together when a slot is free.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_claimed_ahead_of_its_start() {
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_secs(30))]) {
        let database = database().await;
        let pool = database.pool();
        configure(pool, QueueSettings::new("q").rate(Rate::per_second(1_000).burst(100_000))).await;
        let log = Log::default();
        let run = handler_with(log.clone(), async |log, _, data| {
            log.add(data.to_string());
            Ok(Value::Null)
        });
        let jobs = size(150, 300);
        let fill = (0..jobs).map(|n| job_of("q", &format!("g{}", n % 60), n));
        seriatim::enqueue_many(pool, fill).await.unwrap();
        let options = queue("q").hold(hold).concurrency(2);
        let running = serve(&database, 8, options, run).await;
        loop {
            let claims = "select (select count(*) from seriatim.job where status = 'succeeded') + \
                (select coalesce(sum(cardinality(coalesce(batch, array[job_id]))), 0)::bigint \
                 from seriatim.queue_group where job_id is not null)";
            let claimed = usize::try_from(value::<i64>(pool, claims).await).unwrap();
            let begun = log.entries().len();
            // One more may wait for the slot whose connection claims.
            assert!(claimed <= begun + 4, "{claimed} jobs are claimed, {begun} have begun");
            if begun == jobs {
                break;
            }
        }
        drained(pool, "q").await;
        running.shutdown(Duration::from_secs(5)).await;
        database.remove().await.unwrap();
    }
}
