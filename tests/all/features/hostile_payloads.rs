//! Payloads that are large, deep, no text, or that others than serde can write.

use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use seriatim::receive::Receive;
use seriatim::testing::Jobs;
use seriatim::{
    ActiveJob, Bytes, Client, EnqueueError, FailureKind, Hold, JobError, JobHandler, JobStatus,
    NewJob, async_trait,
};
use sqlx::PgPool;

use crate::support::{
    chain, database, ended, handler, job, job_of, jobs_where, processor, queue, serve, size,
    started, until_jobs, value,
};

const MB: usize = 1024 * 1024;

fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

async fn none_there(pool: &PgPool) {
    assert_eq!(jobs_where(pool, "true").await, 0);
}

/// Gives back what it gets.
struct Mirror;

#[async_trait]
impl JobHandler for Mirror {
    type Data = Bytes;
    type Output = Vec<usize>;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, data: Bytes) -> Result<Vec<usize>, JobError> {
        sqlx::query("create table public.mirror as select $1::bytea as bytes")
            .bind(data.to_vec())
            .execute(job.tx().await?)
            .await?;
        Ok(vec![data.len()])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn megabytes_come_and_go_where_they_are_allowed() {
    let database = database().await;
    let pool = database.pool();
    let length = size(3 * MB / 2, 10 * MB);
    let large = "\"\\'é🦀".repeat(length / 9);
    let bytes: Vec<u8> = (0..length).map(|n| (n * 7919).to_le_bytes()[1]).collect();
    assert!(std::str::from_utf8(&bytes).is_err());
    let refused = seriatim::enqueue(pool, NewJob::new("q", &large)).await.unwrap_err();
    assert!(chain(&refused).contains("data_limit"), "{refused}");
    none_there(pool).await;

    let client = Client::default().data_limit(20 * MB);
    let leased = queue("leased").hold(Hold::Lease(Duration::from_mins(10)));
    let echo = || handler(async |_, data| Ok(data));
    let running = processor(&database, 20).await.client(&client).queue(queue("q"), echo());
    let running = running.queue(leased, echo()).queue(queue("bytes"), Mirror);
    let _running = started(running).await;
    let jobs = [
        NewJob::new("q", &large).group("g"),
        NewJob::new("leased", &large).group("g"),
        NewJob::bytes("bytes", "x", bytes.clone()).group("g"),
    ];
    let ids = client.enqueue_many(pool, jobs).await.unwrap();
    // Without reading the megabytes at each look.
    until_jobs(pool, "status = 'succeeded'", 3).await;
    for id in &ids[..2] {
        let done = ended(pool, id.id()).await;
        assert!(done.data == large && done.result == Some(json!(large)), "{done:?}");
    }
    let done = ended(pool, ids[2].id()).await;
    assert_eq!(done.result, Some(json!([length])), "{done:?}");
    assert!(value::<Vec<u8>>(pool, "select bytes from public.mirror").await == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_no_handler_could_read_is_refused() {
    let database = database().await;
    let pool = database.pool();
    let mut deep = Value::Null;
    for depth in 1..=1_000 {
        deep = json!([deep]);
        if [128, 200, 1_000].contains(&depth) {
            let refused = seriatim::enqueue(pool, job_of("q", "g", deep.clone())).await;
            assert!(matches!(refused, Err(EnqueueError::DataTooDeep { limit: 127, .. })));
            assert!(chain(&refused.unwrap_err()).contains("flatten"));
        }
    }
    for json in [json!("a\0"), json!({ "a\0": [] }), json!([[{ "x": ["\\\0"] }]])] {
        let refused = seriatim::enqueue(pool, job_of("q", "g", json)).await;
        assert!(matches!(refused, Err(EnqueueError::DataHasNul { index: None })));
    }
    // By SQL, the cast to jsonb refuses: before the function is called.
    for bad in [r#""\u0000""#, r#""\ud800""#, "[", &nested(200_000)] {
        let refused = sqlx::query("select seriatim.enqueue('q', $1::text::jsonb, 'g')").bind(bad);
        let refused = refused.execute(pool).await.unwrap_err();
        assert!(refused.as_database_error().is_some(), "{refused}");
    }
    none_there(pool).await;

    let deepest: Value = serde_json::from_str(&nested(127)).unwrap();
    let extremes = json!([u64::MAX, i64::MIN, 0.5, 127, "\u{ffff}\u{10ffff}\u{1}"]);
    for fine in [deepest, extremes, serde_json::from_str(&nested(10)).unwrap()] {
        let id = seriatim::enqueue(pool, job_of("q", "g", fine.clone())).await.unwrap().id();
        let run = handler(async |_, data| Ok(data));
        assert_eq!(Jobs::new(pool).drain(queue("q"), run).await.unwrap(), 1);
        let done = job(pool, id).await;
        assert_eq!((&done.data, done.result.as_ref()), (&fine, Some(&fine)));
    }
}

/// Others may write it: a job that cannot be read ends as one, and keeps no other job from being
/// seen or received.
#[tokio::test(flavor = "multi_thread")]
async fn json_that_only_postgresql_can_read_harms_no_other_job() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default();
    let digits = "7".repeat(500);
    let odd = ["1e400", "[-1e400]", &digits, &nested(128), &nested(200), &nested(1_000)];
    let mut ids = Vec::new();
    for json in odd {
        let enqueue = "select id from seriatim.enqueue('q', $1::text::jsonb, 'g', max_attempts => 2, reference => 'r')";
        let id = sqlx::query_scalar(enqueue).bind(json).fetch_one(pool).await.unwrap();
        ids.push(id);
    }
    let fine = seriatim::enqueue(pool, job_of("q", "g", "fine").reference("r")).await.unwrap().id();
    assert_eq!(client.group_jobs(pool, "q", "g", 10).await.unwrap().len(), 7);
    assert_eq!(client.jobs_by_reference(pool, "q", "r", 10).await.unwrap().len(), 7);
    let received = client.receive(pool, Receive::new("q").max(10)).await.unwrap();
    assert_eq!(received.len(), 7);
    assert_eq!(received[3].data, json!(nested(128)), "as its text");
    assert_eq!(received[6].data, "fine");
    client.nack(pool, &received[0].receipt, Duration::ZERO).await.unwrap();

    let run = handler(async |_, data| Ok(data));
    let options = queue("q").hold(Hold::Transaction);
    let _running = serve(&database, 10, options, run).await;
    assert_eq!(ended(pool, fine).await.result, Some(json!("fine")));
    for (id, json) in ids.iter().zip(odd) {
        let dead = ended(pool, *id).await;
        let failure = dead.error.clone().unwrap();
        assert_eq!((dead.status, failure.kind), (JobStatus::Failed, FailureKind::Data));
        let words = ["number out of range", "recursion limit"];
        assert!(words.iter().any(|word| failure.message.contains(word)), "{failure:?}");
        assert!(dead.data.is_string(), "{json}");
    }
}

/// JSON of any shape, with odd texts and keys.
fn any_json() -> impl Strategy<Value = Value> {
    let text = || {
        const ODD: [&str; 11] =
            ["'", "\"", "\\", "\\u0000", "$1", "?1", "\u{ffff}", "🦀", "\n", "\u{202e}", ""];
        let piece = prop_oneof![
            prop::sample::select(&ODD[..]).prop_map(str::to_owned),
            any::<char>().prop_filter("no NUL", |c| *c != '\0').prop_map(String::from),
        ];
        prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
    };
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i16>().prop_map(|n| json!(f64::from(n) + 0.125)),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(20, 200, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(text(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn json_of_any_shape_comes_back_as_it_was() {
    let database = database().await;
    let pool = database.pool();
    let mut runner = TestRunner::default();
    let any = any_json();
    let count = size(80, 200);
    let shapes: Vec<Value> =
        (0..count).map(|_| any.new_tree(&mut runner).unwrap().current()).collect();
    let jobs = shapes.iter().map(|json| job_of("q", "g", json.clone()));
    let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let run = handler(async |_, data| Ok(data));
    assert_eq!(Jobs::new(pool).drain(queue("q"), run).await.unwrap(), count);
    for (id, json) in ids.iter().zip(shapes) {
        let done = job(pool, id.id()).await;
        assert_eq!((done.data, done.result), (json.clone(), Some(json)));
    }
}
