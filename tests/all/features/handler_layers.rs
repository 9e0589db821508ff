//! Layers around handlers and enqueues, and events after the commit.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::layer::{Ended, Layer, Next};
use seriatim::observe::{EndedAs, Event};
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, FailureKind, Hold, JobError, JobStatus, NewJob, ProcessorBuilder,
    async_trait,
};
use sqlx::PgPool;
use tokio::sync::mpsc;

use crate::support::{
    Log, by_hand, database, drained, ended, enqueue, handler, handler_with, job, job_of, processor,
    queue, sample, started, value,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_secs(30))];

/// Writes down when it begins and how what it is around ended.
struct Told(&'static str, Log);

#[async_trait]
impl Layer for Told {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
        self.1.add(format!("{} begins", self.0));
        let ended = next.run(job).await;
        let error = ended.error().map(ToString::to_string);
        let kind = ended.failure_kind().map(FailureKind::as_str);
        self.1.add(format!("{} ends: {} {kind:?} {error:?}", self.0, ended.is_success()));
        ended
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_layer_is_the_outermost() {
    for hold in sample(HOLDS) {
        let (database, log) = (database().await, Log::default());
        let run = handler_with(log.clone(), async |log, job, data| {
            log.add("handler");
            if job.attempt() == 1 { Err(JobError::retry("not yet")) } else { Ok(data) }
        });
        let builder = processor(&database, 10).await.layer(Told("outer", log.clone()));
        let builder = builder.layer(Told("inner", log.clone())).queue(queue("q").hold(hold), run);
        let _running = started(builder).await;
        let id = enqueue(database.pool(), "q", "g", 1).await;
        ended(database.pool(), id).await;
        let failed = "ends: false Some(\"error\") Some(\"not yet\")";
        let first = ["outer begins", "inner begins", "handler"];
        let expected = [
            &first[..],
            &[&format!("inner {failed}"), &format!("outer {failed}")],
            &first[..],
            &["inner ends: true None None", "outer ends: true None None"],
        ];
        assert_eq!(log.entries(), expected.concat());
    }
}

/// Sets the job's tenant for its transaction, and refuses a job without one.
struct Tenant;

#[async_trait]
impl Layer for Tenant {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
        let Some(tenant) = job.headers().get("tenant").cloned() else {
            return Ended::failed("the job has no header tenant");
        };
        let set = async {
            let set = sqlx::query("select set_config('app.tenant', $1, true)").bind(tenant);
            set.execute(job.tx().await?).await
        };
        match set.await {
            Ok(_) => next.run(job).await,
            Err(error) => Ended::retry(error),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_sets_what_the_handlers_transaction_sees() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let run = handler(async |job, _| {
            let tenant = sqlx::query_scalar("select current_setting('app.tenant')");
            let tenant: String = tenant.fetch_one(job.tx().await?).await?;
            Ok(json!(tenant))
        });
        let builder = processor(&database, 10).await.layer(Tenant);
        let running = builder.queue(queue("q").hold(hold), run).build().unwrap();
        let _running = running.start().await.unwrap();
        let of_ann = job_of("q", "g", 1).header("tenant", "ann");
        let of_ann = seriatim::enqueue(pool, of_ann).await.unwrap().id();
        assert_eq!(ended(pool, of_ann).await.result, Some(json!("ann")));
        let of_nobody = enqueue(pool, "q", "h", 2).await;
        let failed = ended(pool, of_nobody).await;
        let failure = failed.error.unwrap();
        assert_eq!((failed.status, failure.kind), (JobStatus::Failed, FailureKind::Permanent));
        assert_eq!(failure.message, "the job has no header tenant");
    }
}

/// Makes a failure of a success of the first attempt, and panics in the second.
struct Strict;

#[async_trait]
impl Layer for Strict {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
        let ended = next.run(job).await;
        match job.attempt() {
            1 if ended.is_success() => Ended::retry("not good enough"),
            2 => panic!("in the layer"),
            _ => ended,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_a_layer_is_one_of_its_attempt() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        by_hand(pool, "create table effect (attempt int4)").await;
        let run = handler(async |job, data| {
            let write = sqlx::query("insert into effect values ($1)");
            let write = write.bind(i32::try_from(job.attempt()).unwrap());
            write.execute(job.tx().await?).await?;
            Ok(data)
        });
        let builder = processor(&database, 10).await.layer(Strict);
        let running = builder.queue(queue("q").hold(hold), run).build().unwrap();
        let _running = running.start().await.unwrap();
        let id = enqueue(pool, "q", "g", 1).await;
        let done = ended(pool, id).await;
        assert_eq!((done.status, done.attempts), (JobStatus::Succeeded, 3));
        let kinds: Vec<_> = done.history.iter().map(|attempt| attempt.kind).collect();
        assert_eq!(kinds, [FailureKind::Error, FailureKind::Panic]);
        assert_eq!(value::<i32>(pool, "select sum(attempt)::int4 from effect").await, 3);
    }
}

/// Never ends.
struct Hangs(Log);

#[async_trait]
impl Layer for Hangs {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
        let ended = next.run(job).await;
        self.0.add("the handler has ended");
        job.cancelled().await;
        self.0.add("told to stop");
        std::future::pending::<()>().await;
        ended
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_counts_to_the_timeout_of_its_job() {
    for hold in sample(HOLDS) {
        let (database, log) = (database().await, Log::default());
        let builder = processor(&database, 10).await.layer(Hangs(log.clone()));
        let options = queue("q").hold(hold).timeout(Duration::from_millis(50));
        let run = handler(async |_, data| Ok(data));
        let _running = started(builder.queue(options, run)).await;
        let job = job_of("q", "g", 1).max_attempts(1);
        let id = seriatim::enqueue(database.pool(), job).await.unwrap().id();
        let done = ended(database.pool(), id).await;
        assert_eq!(done.error.map(|failure| failure.kind), Some(FailureKind::Timeout));
        assert_eq!(log.entries(), ["the handler has ended", "told to stop"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_enqueue_of_a_client_passes_its_layers() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default()
        .enqueue_layer(|job| job.header_if_none("by", format!("layer of {}", job.queue())))
        .enqueue_layer(|job| {
            let seen = job.headers().contains_key("by");
            job.header_if_none("second", format!("{seen} {:?}", job.group_id()));
        });
    let run = handler(async |job, data| {
        job.enqueue(NewJob::new("next", &data).group("follow-up")).await?;
        Ok(data)
    });
    let builder = processor(&database, 10).await.client(&client);
    let _running = started(builder.queue(queue("q"), run)).await;
    client.enqueue(pool, job_of("a", "one", 1)).await.unwrap();
    client.enqueue_many(pool, [job_of("a", "many", 1)]).await.unwrap();
    client.enqueue_batch(pool, [job_of("a", "batch", 1)]).await.unwrap();
    client.enqueue(pool, job_of("a", "own", 1).header("by", "producer")).await.unwrap();
    client.enqueue(pool, job_of("q", "g", 1)).await.unwrap();
    drained(pool, "q").await;
    let headers = |group: &'static str| async move {
        let headers =
            sqlx::query_scalar::<_, Value>("select headers from seriatim.job where group_id = $1");
        headers.bind(group).fetch_one(pool).await.unwrap()
    };
    for group in ["one", "many", "batch"] {
        let expected = json!({"by": "layer of a", "second": format!("true Some({group:?})")});
        assert_eq!(headers(group).await, expected);
    }
    let second = "true Some(\"own\")";
    assert_eq!(headers("own").await, json!({"by": "producer", "second": second}));
    let second = "true Some(\"follow-up\")";
    assert_eq!(headers("follow-up").await, json!({"by": "layer of next", "second": second}));
}

/// A processor that sends its events.
async fn with_events(
    database: &TestDatabase,
) -> (ProcessorBuilder, mpsc::UnboundedReceiver<Event>) {
    let (sender, events) = mpsc::unbounded_channel();
    let hook = move |event: &Event| sender.send(event.clone()).unwrap();
    (processor(database, 10).await.on_event(hook), events)
}

/// Waits for an event, and asserts that its outcome is committed.
async fn next_event(pool: &PgPool, events: &mut mpsc::UnboundedReceiver<Event>) -> Event {
    let event = tokio::time::timeout(crate::support::PATIENCE, events.recv()).await;
    let event = event.unwrap().unwrap();
    let job = job(pool, event.job).await;
    match event.outcome {
        EndedAs::Retried => assert!(job.history.len() >= event.attempt as usize, "{job:?}"),
        _ => assert!(job.status.is_final(), "{job:?}"),
    }
    event
}

fn act(job: &ActiveJob, data: Value) -> Result<Value, JobError> {
    match data.as_str().unwrap_or_default() {
        "retry" if job.attempt() == 1 => {
            Err(JobError::retry_after("later", Duration::from_millis(20)))
        }
        "fail" => Err(JobError::fail("never")),
        "panic" => panic!("a bug"),
        _ => Ok(data),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_ended_attempt_is_told_after_its_commit() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        // The commit takes so long that what is told before it is seen to be.
        by_hand(
            pool,
            "create function slow() returns trigger language plpgsql as $$ begin
               perform pg_sleep(0.05); return null; end $$;
             create constraint trigger slow after update on seriatim.job initially deferred
               for each row when (old.attempts < new.attempts) execute function slow()",
        )
        .await;
        let (builder, mut events) = with_events(&database).await;
        let run = handler(async |job, data| act(job, data));
        let options = queue("q").hold(hold).retry(seriatim::RetryPolicy::new(2));
        let _running = started(builder.queue(options, run)).await;
        let mut told = async |data: &str| {
            let job = job_of("q", "it's g", data).name("kind").reference("r-1");
            let id = seriatim::enqueue(pool, job).await.unwrap().id();
            let event = next_event(pool, &mut events).await;
            assert_eq!(
                (event.job, &*event.queue, event.group.as_deref()),
                (id, "q", Some("it's g"))
            );
            assert_eq!(
                event.name.as_deref().zip(event.reference.as_deref()),
                Some(("kind", "r-1"))
            );
            assert!(event.duration.is_some(), "{event:?}");
            let more = event.outcome == EndedAs::Retried;
            (event, if more { Some(next_event(pool, &mut events).await) } else { None })
        };
        let (event, _) = told("ok").await;
        let json = serde_json::to_value(&event).unwrap();
        assert!(json["outcome"] == "succeeded" && json["duration"].is_f64(), "{json}");
        assert_eq!((event.outcome, event.attempt, event.failure), (EndedAs::Succeeded, 1, None));
        let (event, then) = told("retry").await;
        assert_eq!(event.failure.unwrap().message, "later");
        assert_eq!(event.retry_in, Some(Duration::from_millis(20)));
        let then = then.unwrap();
        assert_eq!((then.outcome, then.attempt), (EndedAs::Succeeded, 2));
        let (event, _) = told("fail").await;
        assert_eq!(event.outcome, EndedAs::Failed);
        assert_eq!(event.failure.unwrap().kind, FailureKind::Permanent);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_panics_stops_nothing() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let builder = processor(&database, 10).await.on_event(|_| panic!("in the hook"));
        let run = handler(async |job, data| act(job, data));
        let options = queue("q").hold(hold);
        let _running = started(builder.queue(options, run)).await;
        for n in 0..5 {
            let id = enqueue(pool, "q", "g", n).await;
            assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
        }
    }
}

/// The database refuses the third success of a turn: those that were to be recorded with it are not
/// told before they are.
#[tokio::test(flavor = "multi_thread")]
async fn a_success_that_was_not_recorded_is_not_told() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "alter table seriatim.job add constraint no_two check (result is distinct from '2')",
    )
    .await;
    let jobs = (0..5).map(|n| job_of("q", "g", n));
    let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let run = handler(async |job, data| Ok(if job.attempt() == 1 { data } else { json!(null) }));
    let (builder, mut events) = with_events(&database).await;
    let options =
        queue("q").hold(Hold::Lease(Duration::from_secs(30))).time_slice(Duration::from_secs(30));
    let running = started(builder.queue(options, run)).await;
    drained(pool, "q").await;
    running.shutdown(Duration::from_secs(5)).await;
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        told.push((event.job, event.outcome));
    }
    for id in ids {
        let succeeded = (id.id(), EndedAs::Succeeded);
        let times = told.iter().filter(|told| **told == succeeded).count();
        assert_eq!(times, 1, "job {}: {told:?}", id.id());
    }
}
