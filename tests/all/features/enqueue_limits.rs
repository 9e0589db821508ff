//! The limits of an enqueue: values beyond them are refused before any SQL, with words that help;
//! values just within them are taken.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeZone, Utc};
use serde_json::{Value, json};
use seriatim::admin::{DedupScope, QueueSettings};
use seriatim::receive::Receive;
use seriatim::{Client, EnqueueError, NameError, NewJob};
use sqlx::PgPool;

use crate::support::{chain, database, drained, handler, job, job_of, queue, serve, value};

async fn refused(pool: &PgPool, bad: NewJob) -> EnqueueError {
    let jobs = [job_of("q", "g", 0), job_of("q", "g", 1), bad];
    let refused = seriatim::enqueue_many(pool, jobs).await;
    refused.expect_err("the third job is bad")
}

fn good() -> NewJob {
    job_of("q", "g", "data")
}

#[tokio::test]
async fn a_refusal_names_field_and_position_and_writes_nothing() {
    let database = database().await;
    let pool = database.pool();
    let year = |year| Utc.with_ymd_and_hms(year, 1, 1, 0, 0, 0).unwrap();
    let unserializable = HashMap::from([((1, 2), 3)]);
    let cases: Vec<(NewJob, &[&str])> = vec![
        (NewJob::new("", &1), &["queue", "empty"]),
        (good().group(""), &["group", "empty"]),
        (NewJob::new("x".repeat(201), &1), &["queue", "201", "200"]),
        (good().group("x".repeat(401)), &["group", "401", "400"]),
        (NewJob::new("a\0b", &1), &["queue", r"'\0'", "byte 1"]),
        (good().group("ab\n"), &["group", r"'\n'", "byte 2"]),
        (good().group("é\u{85}"), &["group", r"'\u{85}'", "byte 2"]),
        (good().group("\u{7f}"), &["group", r"'\u{7f}'", "byte 0"]),
        (NewJob::new("q", "a\0b"), &["data", "NUL"]),
        (NewJob::new("q", &json!({ "\0": 1 })), &["data", "NUL", r"\u0000"]),
        (NewJob::new("q", &unserializable), &["data", "serialized"]),
        (
            NewJob::new("q", &"x".repeat(1024 * 1024 - 1)),
            &["data", "1048577", "1048576", "data_limit"],
        ),
        (good().max_attempts(0), &["max_attempts", "0", "1 to"]),
        (good().max_attempts(u32::MAX), &["max_attempts", "4294967295"]),
        (good().timeout(Duration::ZERO), &["timeout", "0ns"]),
        (good().timeout(Duration::from_micros(999)), &["timeout", "999µs"]),
        (good().timeout(Duration::MAX), &["timeout", "100 years"]),
        (good().delay(Duration::from_hours(101 * 366 * 24)), &["delay", "100 years"]),
        (good().delay(Duration::MAX), &["delay"]),
        (good().run_at(DateTime::<Utc>::MAX_UTC), &["run_at"]),
        (good().run_at(DateTime::<Utc>::MIN_UTC), &["run_at"]),
        (good().run_at(year(11_900)), &["run_at"]),
        (good().run_at(year(-7_000)), &["run_at"]),
        // PostgreSQL would take it, but it is before the time that workers read from.
        (good().run_at(year(-1_000)), &["run_at"]),
        (good().run_at(year(0)), &["run_at"]),
        (good().expires_at(year(11_900)), &["expires_at"]),
        (good().time_to_live(Duration::ZERO), &["time_to_live", "1 ms"]),
        (good().time_to_live(Duration::MAX), &["time_to_live", "100 years"]),
        (good().lease(Duration::from_millis(999)), &["lease", "1 s to 1 day"]),
        (good().lease(Duration::from_hours(25)), &["lease", "1 s to 1 day"]),
        (good().priority(10), &["priority", "10", "0 to 9"]),
        (good().name(""), &["job name", "empty"]),
        (good().name("x".repeat(201)), &["job name", "201", "200"]),
        (good().reference(""), &["the reference is empty"]),
        (good().reference("x".repeat(401)), &["reference", "401", "400"]),
        (good().reference("a\0b"), &["reference", r"'\0'"]),
        (good().dedup_id(""), &["deduplication id", "empty"]),
        (good().dedup_id("x".repeat(129)), &["deduplication id", "129", "128"]),
        (NewJob::bytes("q", "", [1]), &["content type", "empty"]),
        (NewJob::bytes("q", "x".repeat(201), [1]), &["content type", "201", "200"]),
        (NewJob::bytes("q", "x", vec![0; 1024 * 1024 + 1]), &["data", "1048577", "1048576"]),
    ];
    for (bad, words) in cases {
        let shown = format!("{bad:?}");
        let shown: String = shown.chars().take(200).collect();
        let error = refused(pool, bad).await;
        let text = chain(&error);
        assert!(!matches!(error, EnqueueError::Database(_)), "{shown}: {text}");
        assert!(text.contains("job 2"), "{shown}: {text}");
        for word in words {
            assert!(text.contains(word), "{shown}: no {word:?} in {text}");
        }
    }
    let error = refused(pool, good().group("a\tb")).await;
    assert!(
        matches!(
            error,
            EnqueueError::Name {
                index: Some(2),
                source: NameError::Control { field: "group", character: '\t', position: 1, .. },
                ..
            }
        ),
        "{error:?}"
    );
    for table in ["job", "dedup"] {
        let written: i64 = value(pool, format!("select count(*) from seriatim.{table}")).await;
        assert_eq!(written, 0, "{table}");
    }
}

#[tokio::test]
async fn the_limit_of_the_data_is_the_clients() {
    let database = database().await;
    let pool = database.pool();
    // With its quotes it is just 1 MiB.
    let big = "x".repeat(1024 * 1024 - 2);
    let id = seriatim::enqueue(pool, NewJob::new("q", &big)).await.unwrap().id();
    assert_eq!(job(pool, id).await.data, json!(big));

    let small = Client::default().data_limit(10);
    small.enqueue(pool, NewJob::new("q", "8 bytes")).await.unwrap();
    let refused = small.enqueue(pool, NewJob::new("q", "9 bytes..")).await;
    assert!(matches!(
        refused,
        Err(EnqueueError::DataTooLarge { index: None, size: 11, limit: 10, .. })
    ));
    let large = Client::default().data_limit(usize::MAX);
    let id = large.enqueue(pool, NewJob::new("q", &"x".repeat(3 << 20))).await.unwrap().id();
    let length: i32 =
        value(pool, format!("select length(data #>> '{{}}') from seriatim.job where id = {id}"))
            .await;
    assert_eq!(length, 3 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_names_of_the_widest_characters_work() {
    let database = database().await;
    let pool = database.pool();
    // Differing characters, which do not compress.
    let wide = |n: u32| -> String {
        (0..n).map(|i| char::from_u32(0x1_0400 + (i * 7919) % 0x8_0000).unwrap()).collect()
    };
    let (name, group) = (wide(200), wide(400));
    assert_eq!((name.len(), group.len()), (800, 1600));
    let _running = serve(
        &database,
        10,
        queue(&name),
        handler(async |job, data| Ok(json!([job.queue(), job.group(), data]))),
    )
    .await;
    // The index entries with queue, group and deduplication id are the longest.
    let scope = QueueSettings::new(&name).dedup_scope(DedupScope::Group);
    Client::default().configure_queue(pool, scope).await.unwrap();
    let jobs = (0..3).map(|n| {
        job_of(&name, &group, n)
            .dedup_id(format!("{}{n}", wide(127)))
            .reference(wide(400))
            .name(wide(200))
    });
    let enqueued = seriatim::enqueue_many(pool, jobs).await.unwrap();
    drained(pool, &name).await;
    for (n, enqueued) in enqueued.iter().enumerate() {
        let result: Option<Value> = job(pool, enqueued.id()).await.result;
        assert_eq!(result, Some(json!([name, group, n])));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_extremes_that_are_allowed_work() {
    let database = database().await;
    let pool = database.pool();
    let _running = serve(&database, 10, queue("q"), handler(async |_, data| Ok(data))).await;
    let year = |year| Utc.with_ymd_and_hms(year, 12, 31, 23, 59, 59).unwrap();
    let odd = json!({ "": [1e300, -0.0, u64::MAX, "\u{10ffff}", "\\u0000", "\u{1}\u{7f}"] });
    let jobs = [
        job_of("q", "g", odd.clone()),
        good().max_attempts(i32::MAX as u32),
        good().timeout(Duration::from_millis(1) * 1000 * 3600),
        good().delay(Duration::ZERO),
        good().run_at(year(1)),
        good().run_at(DateTime::UNIX_EPOCH),
        // The last two sleep, in groups of their own.
        job_of("q", "far", 1).run_at(year(9_999)),
        job_of("q", "farther", 1).delay(Duration::from_hours(100 * 366 * 24)),
    ];
    let enqueued = seriatim::enqueue_many(pool, jobs).await.unwrap();
    crate::support::ended(pool, enqueued[5].id()).await;
    assert_eq!(job(pool, enqueued[0].id()).await.result, Some(odd));
    assert_eq!(job(pool, enqueued[6].id()).await.run_at, year(9_999));
    let counts = Client::default().counts(pool, "q").await.unwrap();
    assert_eq!((counts.succeeded, counts.delayed), (6, 2));
    assert_eq!(
        seriatim::enqueue_many(pool, Vec::<NewJob>::new()).await.unwrap(),
        [],
        "none is no error"
    );
}

#[tokio::test]
async fn a_result_of_an_ack_is_no_larger_than_data_may_be() {
    let database = database().await;
    let (pool, small) = (database.pool(), Client::default().data_limit(10));
    small.enqueue(pool, NewJob::new("q", &1)).await.unwrap();
    let received = small.receive(pool, Receive::new("q")).await.unwrap();
    let receipt = &received[0].receipt;
    let refused = small.ack_with(pool, receipt, "123456789").await.unwrap_err().to_string();
    assert!(refused.contains("has 11 bytes, at most 10 are allowed"), "{refused}");
    small.ack_with(pool, receipt, "12345678").await.unwrap();
}

#[tokio::test]
async fn each_size_that_sql_takes_has_a_limit() {
    let database = database().await;
    let pool = database.pool();
    let text = |bytes: usize| format!("to_jsonb(repeat('a', {}))", bytes - 2);
    let bytes = |bytes: usize| format!("convert_to(repeat('a', {bytes}), 'UTF8')");
    let (limit, more) = (1024 * 1024, 1024 * 1024 + 1);
    let enqueue =
        |arguments: String| format!("select e.id from seriatim.enqueue('q', {arguments}) e");
    let stored = |text: &str| {
        format!("select seriatim.check_stored_job('q', null, jsonb_build_object('data', {text}))")
    };
    let payload =
        |size| enqueue(format!("null, payload => {}, content_type => 'text/plain'", bytes(size)));
    for within in [enqueue(text(limit)), payload(limit)] {
        sqlx::query(sqlx::AssertSqlSafe(within)).execute(pool).await.unwrap();
    }
    let receive = "select receipt from seriatim.receive('q')";
    let receipt: String = value(pool, receive).await;
    let nested = format!("jsonb_build_array({})", text(more - 2));
    let cases = [
        (enqueue(text(more)), "data of the job has 1048577 bytes, at most 1048576"),
        (enqueue(nested), "data of the job has 1048577 bytes, at most 1048576"),
        (payload(more), "payload of the job has 1048577 bytes, at most 1048576"),
        (stored(&text(more)), "data of the job has 1048577 bytes, at most 1048576"),
        (
            enqueue(format!("'1', attributes => jsonb_build_object('a', {})", text(2 * limit))),
            "attributes have 2097159 bytes, at most 2097152",
        ),
        (
            enqueue(format!("'1', headers => jsonb_build_object('a', {})", text(4096))),
            "headers have 4103 bytes, at most 4096",
        ),
        (
            format!("select seriatim.ack('{receipt}', {})", text(more)),
            "result has 1048577 bytes, at most 1048576",
        ),
        (
            format!("select seriatim.checkpoint('{receipt}', {})", text(64 * 1024 + 1)),
            "checkpoint has 65537 bytes, at most 65536",
        ),
    ];
    for (call, words) in cases {
        let refused = sqlx::query(sqlx::AssertSqlSafe(&*call)).execute(pool).await.unwrap_err();
        let refused = refused.into_database_error().unwrap();
        assert!(refused.message().contains(words), "{call}: {refused}");
        assert_eq!(refused.code().as_deref(), Some("22023"), "{call}");
    }
    // Messages are cut.
    let nack = format!("select seriatim.nack('{receipt}', null, repeat('a', 5000))");
    assert_eq!(value::<String>(pool, nack).await, "done");
    let longest = "select max(length(j.history -> 0 ->> 'message')) from seriatim.job j";
    assert_eq!(value::<i32>(pool, longest).await, 4_000);
}

#[tokio::test]
async fn each_size_of_a_client_has_a_limit() {
    let database = database().await;
    let pool = database.pool();
    let attributes = serde_json::Map::from_iter([(String::from("a"), json!("x".repeat(2 << 20)))]);
    let error = refused(pool, good().attributes(attributes)).await.to_string();
    assert!(error.contains("attributes of job 2") && error.contains("2097152 bytes"), "{error}");

    // One call: refused before anything is sent.
    let large = Client::default().data_limit(usize::MAX);
    let jobs = || (0..5).map(|_| NewJob::bytes("q", "text/plain", vec![b'a'; 60 << 20]));
    let called = large.enqueue_many(pool, jobs()).await.unwrap_err();
    assert!(matches!(called, EnqueueError::CallTooLarge { limit: 268_435_456, .. }), "{called}");
    assert!(called.to_string().contains("split the call"), "{called}");
    let called = large.enqueue_batch(pool, jobs()).await.unwrap_err();
    assert!(matches!(called, EnqueueError::CallTooLarge { .. }), "{called}");
    let job = NewJob::bytes("q", "text/plain", vec![b'a'; (256 << 20) + 1]);
    let one = large.enqueue(pool, job).await.unwrap_err();
    assert!(matches!(one, EnqueueError::DataTooLarge { limit: 268_435_456, .. }), "{one}");

    // A job that is stored to be enqueued later keeps to the limit of SQL.
    let follow_up = NewJob::new("q", &"x".repeat(2 << 20)).group("g");
    let batch = large.open_batch(pool, seriatim::NewBatch::new("b", follow_up)).await;
    let refused = batch.unwrap_err().to_string();
    assert!(refused.contains("at most 1048576 are allowed"), "{refused}");
}
