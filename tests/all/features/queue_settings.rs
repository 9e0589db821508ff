//! The settings of a queue, which hold in the whole fleet.

use std::time::Duration;

use seriatim::admin::{DedupScope, QueueSettings, Rate};
use seriatim::{Client, ConfigureError, NewJob, Processor};
use sqlx::{Connection, Executor};

use crate::support::{chain, database, handler, job, job_of, queue, value};

fn of(queue: &str) -> QueueSettings {
    QueueSettings::new(queue)
}

/// A processor's settings are stored before it works, and leave other settings as they are.
#[tokio::test(flavor = "multi_thread")]
async fn a_processor_stores_its_settings_when_it_starts() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    client.configure_queue(pool, of("q").in_flight_limit(7).max_attempts(9)).await.unwrap();
    let build = |settings: QueueSettings| {
        let builder = Processor::builder(pool.clone()).settings(settings).settings(of("r"));
        builder.queue(queue("q"), handler(async |_, data| Ok(data))).build()
    };
    let started = build(of("q").max_attempts(2).rate(Rate::per_second(50))).unwrap().start().await;
    let stored = client.queue_settings(pool, "q").await.unwrap();
    assert_eq!((stored.in_flight_limit, stored.max_attempts), (Some(7), Some(2)));
    assert_eq!(stored.rate.unwrap().starts(), 50);
    let log = client.operations(pool, None, 10).await.unwrap();
    assert!(log.is_empty(), "an application's own settings are no operation: {log:?}");
    started.unwrap().shutdown(Duration::from_secs(5)).await;

    let wrong = build(of("q").max_attempts(0).backoff_cap(Duration::MAX)).unwrap_err().to_string();
    assert!(wrong.contains("max_attempts of queue \"q\" is 0"), "{wrong}");
    let wrong = build(of("")).unwrap_err().to_string();
    assert!(wrong.contains("queue name is empty"), "{wrong}");
}

#[tokio::test]
async fn what_is_named_changes_and_nothing_else() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let set = async |settings| client.configure_queue(pool, settings).await.unwrap();
    let seen = async || client.queue_settings(pool, "q").await.unwrap();
    let unset = seen().await;
    assert_eq!((unset.delay, unset.in_flight_limit, unset.max_attempts), (None, None, None));
    assert_eq!(unset.dedup_window, Duration::from_mins(5));
    assert_eq!((unset.dedup_scope, unset.dedup_by_content), (DedupScope::Queue, false));
    set(of("q")).await;
    assert_eq!(seen().await, unset, "a queue with settings of which none is set");

    let hour = Duration::from_hours(1);
    set(of("q").delay(Duration::from_millis(1_500)).in_flight_limit(7)).await;
    set(of("q").dedup_window(hour).dedup_scope(DedupScope::Group)).await;
    set(of("q").dedup_by_content(true).max_attempts(3)).await;
    set(of("q").strict_visibility(true)).await;
    set(of("other").delay(hour).in_flight_limit(1)).await;
    let all = seen().await;
    assert_eq!((all.delay, all.dedup_window), (Some(Duration::from_millis(1_500)), hour));
    assert_eq!((all.in_flight_limit, all.max_attempts), (Some(7), Some(3)));
    assert_eq!((all.dedup_scope, all.dedup_by_content), (DedupScope::Group, true));

    assert!(all.strict_visibility && !unset.strict_visibility);

    set(of("q").delay(None).max_attempts(None).dedup_scope(DedupScope::Queue)).await;
    let some = seen().await;
    assert_eq!((some.delay, some.max_attempts, some.in_flight_limit), (None, None, Some(7)));
    assert_eq!((some.dedup_scope, some.dedup_by_content), (DedupScope::Queue, true));
    set(of("q").strict_visibility(false)).await;
    set(of("q").in_flight_limit(None).dedup_window(None).dedup_by_content(false)).await;
    assert_eq!(seen().await, unset);
}

#[tokio::test]
async fn a_bad_setting_is_named_and_nothing_changes() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let cases = [
        (of("").delay(None), "queue name is empty"),
        (of("a\nb").delay(None), "control character"),
        (of("q").delay(Duration::MAX), "delay of queue \"q\""),
        (of("q").dedup_window(Duration::ZERO), "dedup_window of queue \"q\" is 0ns"),
        (of("q").dedup_window(Duration::MAX), "100 years"),
        (of("q").in_flight_limit(0), "in_flight_limit of queue \"q\" is 0, it must be 1"),
        (of("q").max_attempts(0), "max_attempts"),
        (of("q").max_attempts(u32::MAX), "4294967295"),
    ];
    for (bad, words) in cases {
        let error = client.configure_queue(pool, bad).await.unwrap_err();
        assert!(!matches!(error, ConfigureError::Database(_)), "{error:?}");
        let text = chain(&error);
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let rows: i64 = value(pool, "select count(*) from seriatim.queue").await;
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn a_delay_is_that_of_jobs_that_name_no_time() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    client.configure_queue(pool, of("q").delay(Duration::from_mins(1))).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let jobs = [
        job_of("q", "g", 1),
        NewJob::new("q", &1),
        job_of("q", "g", 1).delay(Duration::ZERO),
        job_of("q", "g", 1).delay(Duration::from_hours(1)),
        job_of("q", "g", 1).run_at(chrono::DateTime::UNIX_EPOCH),
        job_of("another", "g", 1),
    ];
    let mut delays = Vec::new();
    for enqueued in client.enqueue_many(&mut *tx, jobs).await.unwrap() {
        let job = job(&mut *tx, enqueued.id()).await;
        delays.push(job.run_at.signed_duration_since(job.created_at).num_minutes().max(-1));
    }
    assert_eq!(delays, [1, 1, 0, 60, -1, 0]);
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn an_enqueue_does_not_wait_for_a_change() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    client.configure_queue(pool, of("q").delay(Duration::from_hours(1))).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    client.configure_queue(&mut *tx, of("q").delay(None)).await.unwrap();
    let mut conn = database.connect().await.unwrap();
    conn.execute("set lock_timeout = '100ms'").await.unwrap();
    let id = client.enqueue(&mut conn, job_of("q", "g", 1)).await.expect("it does not wait").id();
    let job = job(pool, id).await;
    assert!(job.run_at > job.created_at, "the change is not committed");
    tx.commit().await.unwrap();
    conn.close().await.unwrap();
}

#[tokio::test]
async fn rates_that_cannot_be_are_refused_in_rust_and_in_sql() {
    let database = database().await;
    let pool = database.pool();
    let settings = || of("q");
    for (wrong, says) in [
        (settings().rate(Rate::per_second(0)), "rate"),
        (settings().rate(Rate::per_second(5).burst(0)), "rate_burst"),
        (settings().rate(Rate::new(1, Duration::ZERO)), "rate_per"),
        (settings().rate(Rate::per_second(100_001)), "at most 100000 starts a second"),
        (settings().group_spacing(Duration::ZERO), "group_spacing"),
    ] {
        let error = Client::default().configure_queue(pool, wrong).await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    for (wrong, says) in [
        (r#"{"rate": 0}"#, "rate is \"0\", it must be a number from 1"),
        (r#"{"rate": 1, "rate_per": "0 s"}"#, "rate_per is 0 s, it must be from"),
        (r#"{"rate": 1000000}"#, "at most 100000 starts a second"),
        (r#"{"rate_per": "1 s"}"#, "rate_per and rate_burst come with rate"),
        (r#"{"rate": null, "rate_burst": 3}"#, "rate_per and rate_burst come with rate"),
        (r#"{"group_spacing": "soon"}"#, "group_spacing is \"soon\", it must be an interval"),
    ] {
        let call = format!("select seriatim.configure_queue('q', '{wrong}')");
        let error = sqlx::raw_sql(sqlx::AssertSqlSafe(call)).execute(pool).await.unwrap_err();
        assert!(error.to_string().contains(says), "{wrong}: {error}");
    }
    // The default burst is the starts of a tenth of a second.
    for (rate, burst) in [(5, 1), (100, 10), (101, 11)] {
        Client::default()
            .configure_queue(pool, settings().rate(Rate::per_second(rate)))
            .await
            .unwrap();
        let stored = Client::default().queue_settings(pool, "q").await.unwrap().rate.unwrap();
        assert_eq!((stored.starts(), stored.burst_size()), (rate, Some(burst)));
    }
    database.remove().await.unwrap();
}
