//! From an enqueue to an attempt through a real PostgreSQL: which spans are exported, and how they
//! belong together.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use opentelemetry::trace::{SpanId, SpanKind, Status, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use serde_json::Value;
use seriatim::receive::Receive;
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, Hold, JobError, JobHandler, NewJob, Processor, QueueOptions, RetryPolicy,
    Running, async_trait,
};
use seriatim_otel::{OtelLayer, Propagation};
use sqlx::PgPool;
use tokio::sync::Notify;
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const FOREIGN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_secs(30))];

/// One for all tests: each has queues of its own.
static EXPORTER: LazyLock<InMemorySpanExporter> = LazyLock::new(|| {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let traces = tracing_opentelemetry::layer().with_tracer(provider.tracer("tests"));
    tracing_subscriber::registry().with(traces).init();
    exporter
});

/// A handler has begun that waits for its cancel.
static BEGUN: Notify = Notify::const_new();

struct Run;

#[async_trait]
impl JobHandler for Run {
    type Data = Value;
    type Output = Value;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
        match data.as_str().unwrap_or_default() {
            "retry" if job.attempt() == 1 => Err(JobError::retry("not yet")),
            "fail" => Err(JobError::fail("never")),
            "cancelled" => {
                BEGUN.notify_one();
                job.cancelled().await;
                Err(JobError::retry("stopped half-way"))
            }
            "follow" => {
                let queue = format!("{}-next", job.queue());
                job.enqueue(NewJob::new(queue, &1)).await?;
                Ok(data)
            }
            _ => {
                tracing::info_span!("inside", messaging.destination.name = job.queue())
                    .in_scope(|| {});
                Ok(data)
            }
        }
    }
}

fn client() -> Client {
    LazyLock::force(&EXPORTER);
    Client::default().enqueue_layer(seriatim_otel::inject())
}

async fn start(pool: &PgPool, queue: &str, hold: Hold, layer: OtelLayer) -> Running {
    let retry = RetryPolicy::new(3).base(Duration::from_millis(10));
    let options = QueueOptions::new(queue).concurrency(2).hold(hold).retry(retry);
    let builder = Processor::builder(pool.clone()).client(&client()).layer(layer);
    let builder = builder.poll_interval(Duration::from_millis(20)).queue(options, Run);
    builder.build().unwrap().start().await.unwrap()
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
    found.map(|attribute| attribute.value.to_string())
}

/// Waits until so many spans of a name are exported for a queue.
async fn spans(queue: &str, operation: &str, count: usize) -> Vec<SpanData> {
    let name = format!("{operation} {queue}");
    found(&name, count, |span| span.name == name).await
}

async fn found(what: &str, count: usize, is: impl Fn(&SpanData) -> bool) -> Vec<SpanData> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let spans = EXPORTER.get_finished_spans().unwrap();
        let found: Vec<_> = spans.into_iter().filter(&is).collect();
        if found.len() >= count {
            assert_eq!(found.len(), count, "{what}: {found:?}");
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: {found:?}");
        // An exporter has no event to wait for.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The processor's id. By transaction its first job may run before it is announced.
async fn processor_of(pool: &PgPool) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let [processor, ..] = &client().processors(pool).await.unwrap()[..] {
            return processor.id.to_string();
        }
        assert!(Instant::now() < deadline, "no processor was announced");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn links_to(span: &SpanData, other: &SpanData) {
    assert_eq!(span.parent_span_id, SpanId::INVALID, "{span:?}");
    assert_ne!(span.span_context.trace_id(), other.span_context.trace_id());
    let links: Vec<_> = span.links.iter().map(|link| &link.span_context).collect();
    assert_eq!(links.len(), 1, "{span:?}");
    assert_eq!(links[0].trace_id(), other.span_context.trace_id());
    assert_eq!(links[0].span_id(), other.span_context.span_id());
}

fn is_child(span: &SpanData, parent: &SpanData) {
    assert_eq!(span.span_context.trace_id(), parent.span_context.trace_id(), "{span:?}");
    assert_eq!(span.parent_span_id, parent.span_context.span_id(), "{span:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_is_a_trace_that_links_to_its_send() {
    for (hold, queue) in HOLDS.into_iter().zip(["linked", "linked-lease"]) {
        let database = TestDatabase::create().await.unwrap();
        let pool = database.pool();
        // It records spans from now on.
        let client = client();
        let request = tracing::info_span!("request", messaging.destination.name = queue);
        let job = NewJob::new(queue, &1).group("it's g").name("kind");
        let enqueued = client.enqueue(pool, job).instrument(request.clone()).await.unwrap();
        drop(request);
        let _running = start(pool, queue, hold, seriatim_otel::layer()).await;

        let process = &spans(queue, "process", 1).await[0];
        let send = &spans(queue, "send", 1).await[0];
        let of_queue = |name: &'static str| {
            move |span: &SpanData| {
                span.name == name
                    && attribute(span, "messaging.destination.name").as_deref() == Some(queue)
            }
        };
        is_child(send, &found("request", 1, of_queue("request")).await[0]);
        links_to(process, send);
        is_child(&found("inside", 1, of_queue("inside")).await[0], process);
        assert_eq!(
            (&send.span_kind, &process.span_kind),
            (&SpanKind::Producer, &SpanKind::Consumer)
        );
        assert_eq!((&send.status, &process.status), (&Status::Unset, &Status::Unset));
        let id = enqueued.id().to_string();
        for (span, operation) in [(send, "send"), (process, "process")] {
            let expected = [
                ("messaging.system", "seriatim"),
                ("messaging.operation.name", operation),
                ("messaging.operation.type", operation),
                ("messaging.destination.name", queue),
                ("messaging.message.id", &id),
                ("messaging.seriatim.message.group", "it's g"),
            ];
            for (key, value) in expected {
                assert_eq!(attribute(span, key).as_deref(), Some(value), "{key} of {span:?}");
            }
        }
        let expected = [
            ("messaging.seriatim.message.name", "kind"),
            ("messaging.seriatim.message.attempt", "1"),
            ("messaging.seriatim.outcome", "succeeded"),
        ];
        for (key, value) in expected {
            assert_eq!(attribute(process, key).as_deref(), Some(value), "{key} of {process:?}");
        }
        for key in ["messaging.seriatim.lane_wait_ms", "messaging.seriatim.slot_wait_ms"] {
            assert!(attribute(process, key).is_some(), "{key} of {process:?}");
        }
        let client_id = attribute(process, "messaging.client.id");
        assert_eq!(client_id, Some(processor_of(pool).await));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_link_and_only_a_failed_attempt_has_an_error() {
    for (hold, queue) in HOLDS.into_iter().zip(["retried", "retried-lease"]) {
        let database = TestDatabase::create().await.unwrap();
        let pool = database.pool();
        let layer = seriatim_otel::layer().propagation(Propagation::Parent);
        let _running = start(pool, queue, hold, layer).await;
        client().enqueue(pool, NewJob::new(queue, "retry").group("g")).await.unwrap();
        client().enqueue(pool, NewJob::new(queue, "fail").group("g")).await.unwrap();
        let process = spans(queue, "process", 3).await;
        let send = spans(queue, "send", 2).await;
        let seen: Vec<_> = process
            .iter()
            .map(|span| {
                let failed = matches!(span.status, Status::Error { .. });
                (
                    failed,
                    attribute(span, "error.type"),
                    attribute(span, "messaging.seriatim.outcome"),
                )
            })
            .collect();
        let (kind, outcome) =
            (|kind: &str| Some(kind.to_owned()), |end: &str| Some(end.to_owned()));
        assert_eq!(seen[0], (true, kind("error"), outcome("retried")));
        assert_eq!(seen[1], (false, None, outcome("succeeded")));
        assert_eq!(seen[2], (true, kind("permanent"), outcome("failed")));
        is_child(&process[0], &send[0]);
        links_to(&process[1], &send[0]);
        is_child(&process[2], &send[1]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_a_delay_links_in_parent_mode_too() {
    let database = TestDatabase::create().await.unwrap();
    let pool = database.pool();
    let layer = seriatim_otel::layer().propagation(Propagation::Parent);
    let _running = start(pool, "delayed", Hold::Transaction, layer).await;
    let job = NewJob::new("delayed", &1).delay(Duration::from_millis(100));
    client().enqueue(pool, job).await.unwrap();
    let process = spans("delayed", "process", 1).await;
    links_to(&process[0], &spans("delayed", "send", 1).await[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_has_one_span_whose_context_is_in_all_its_jobs() {
    let database = TestDatabase::create().await.unwrap();
    let pool = database.pool();
    let jobs = (0..3).map(|n| NewJob::new("batch", &n).group(format!("g{n}")));
    client().enqueue_many(pool, jobs).await.unwrap();
    let _running = start(pool, "batch", Hold::Transaction, seriatim_otel::layer()).await;
    let process = spans("batch", "process", 3).await;
    let send = &spans("batch", "send", 1).await[0];
    let count =
        send.attributes.iter().find(|of| of.key.as_str() == "messaging.batch.message_count");
    assert_eq!(count.map(|count| &count.value), Some(&opentelemetry::Value::I64(3)));
    for process in &process {
        links_to(process, send);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_producers_own_context_wins_and_a_malformed_one_is_ignored() {
    let database = TestDatabase::create().await.unwrap();
    let pool = database.pool();
    let jobs = ["foreign", "malformed"].map(|queue| NewJob::new(queue, &1));
    let [foreign, malformed] = jobs;
    client().enqueue(pool, foreign.header("traceparent", FOREIGN)).await.unwrap();
    client().enqueue(pool, malformed.header("traceparent", "00-nonsense-01")).await.unwrap();
    let mut running = Vec::new();
    for queue in ["foreign", "malformed"] {
        running.push(start(pool, queue, Hold::Transaction, seriatim_otel::layer()).await);
    }
    let process = &spans("foreign", "process", 1).await[0];
    let link = process.links.iter().next().unwrap();
    assert_eq!(link.span_context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(link.span_context.span_id().to_string(), "b7ad6b7169203331");
    let process = &spans("malformed", "process", 1).await[0];
    assert_eq!(process.links.iter().count(), 0, "{process:?}");
    assert_eq!(process.parent_span_id, SpanId::INVALID);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_is_no_error() {
    let database = TestDatabase::create().await.unwrap();
    let pool = database.pool();
    let _running = start(pool, "cancel", Hold::Transaction, seriatim_otel::layer()).await;
    let id = client().enqueue(pool, NewJob::new("cancel", "cancelled")).await.unwrap().id();
    BEGUN.notified().await;
    client().cancel(pool, id).await.unwrap();
    let process = &spans("cancel", "process", 1).await[0];
    assert_eq!(attribute(process, "messaging.seriatim.outcome").as_deref(), Some("cancelled"));
    assert_eq!(process.status, Status::Unset);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_enqueues_is_a_child_of_its_attempt() {
    let database = TestDatabase::create().await.unwrap();
    let pool = database.pool();
    let _running = start(pool, "first", Hold::Transaction, seriatim_otel::layer()).await;
    let _next = start(pool, "first-next", Hold::Transaction, seriatim_otel::layer()).await;
    client().enqueue(pool, NewJob::new("first", "follow")).await.unwrap();
    let process = &spans("first", "process", 1).await[0];
    let send = &spans("first-next", "send", 1).await[0];
    is_child(send, process);
    links_to(&spans("first-next", "process", 1).await[0], send);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receivers_calls_have_spans_and_its_jobs_a_context() {
    let database = TestDatabase::create().await.unwrap();
    let pool = database.pool();
    let client = client();
    let jobs = (0..2).map(|n| NewJob::new("received", &n).group(format!("g{n}")));
    client.enqueue_many(pool, jobs).await.unwrap();
    let jobs = client.receive(pool, Receive::new("received").max(10)).await.unwrap();
    client.ack(pool, &jobs[0].receipt).await.unwrap();
    client.nack(pool, &jobs[1].receipt, Duration::from_mins(1)).await.unwrap();
    assert!(client.ack(pool, &jobs[0].receipt).await.is_err());

    let send = &spans("received", "send", 1).await[0];
    for job in &jobs {
        let context = seriatim_otel::extract(&job.headers);
        assert_eq!(context.trace_id(), send.span_context.trace_id());
        assert_eq!(context.span_id(), send.span_context.span_id());
        assert!(context.is_remote());
    }
    let receive = &spans("received", "receive", 1).await[0];
    assert_eq!(receive.span_kind, SpanKind::Client);
    assert_eq!(attribute(receive, "messaging.operation.type").as_deref(), Some("receive"));
    assert_eq!(attribute(receive, "messaging.batch.message_count").as_deref(), Some("2"));
    let mut settles = BTreeMap::new();
    for (name, job, count) in [("ack", &jobs[0], 2), ("nack", &jobs[1], 1)] {
        let id = job.id.to_string();
        let of_job = |span: &SpanData| {
            span.name == name && attribute(span, "messaging.message.id").as_ref() == Some(&id)
        };
        for span in found(name, count, of_job).await {
            assert_eq!(span.span_kind, SpanKind::Client);
            assert_eq!(attribute(&span, "messaging.operation.type").as_deref(), Some("settle"));
            let failed = matches!(span.status, Status::Error { .. });
            settles
                .entry(name)
                .or_insert_with(Vec::new)
                .push((failed, attribute(&span, "error.type")));
        }
    }
    assert_eq!(settles["ack"], [(false, None), (true, Some(String::from("stale")))]);
    assert_eq!(settles["nack"], [(false, None)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_enqueue_is_an_error_of_its_span() {
    let database = TestDatabase::create().await.unwrap();
    let job = NewJob::new("refused", &1).priority(10);
    assert!(client().enqueue(database.pool(), job).await.is_err());
    let send = &spans("refused", "send", 1).await[0];
    assert!(matches!(send.status, Status::Error { .. }));
    assert_eq!(attribute(send, "error.type").as_deref(), Some("out_of_range"));
}
