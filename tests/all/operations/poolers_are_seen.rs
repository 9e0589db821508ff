//! A processor sees at its start what kind of pooler it is behind, says so, and does what is
//! possible there.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use seriatim::receive::Receive;
use seriatim::testing::TestDatabase;
use seriatim::{
    Client, Hold, JobError, JobStatus, NewJob, Processor, ProcessorBuilder, RetryPolicy, StartError,
};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgPool, Row};
use tokio::time::Instant;

use crate::support::pooler::{Pooler, pooler};
use crate::support::{
    Errors, FnHandler, chain, database, drained, eventually, handler, job_of, job_when, jobs_where,
    nothing_remains, queue, size, started, value,
};

const SESSIONS: u32 = 10;

async fn pool_at(url: &str) -> PgPool {
    PgPoolOptions::new().max_connections(8).connect(url).await.unwrap()
}

/// Fails once; then the attempt, if the host's own statement in the job's transaction worked.
fn run() -> FnHandler {
    handler(async |job, data| {
        if job.attempt() == 1 && data == json!(3) {
            return Err(JobError::retry("once more"));
        }
        let attempt = i64::from(job.attempt());
        let query = sqlx::query_scalar::<_, i64>("select $1 + 0").bind(attempt);
        // Sessions are shared: a name may be another client's.
        Ok(json!(query.persistent(false).fetch_one(job.tx().await?).await?))
    })
}

fn processor(pool: &PgPool, errors: &Errors) -> ProcessorBuilder {
    let retry = RetryPolicy::new(5).base(Duration::from_millis(5));
    let long = Hold::Lease(Duration::from_secs(20));
    errors
        .of(Processor::builder(pool.clone()))
        .poll_interval(Duration::from_millis(50))
        .maintenance_interval(Duration::from_millis(100))
        .queue(
            queue("q").concurrency(3).time_slice(Duration::from_secs(30)).retry(retry.clone()),
            run(),
        )
        .queue(queue("leased").concurrency(3).retry(retry).hold(long), run())
}

/// Enqueues past the pooler, runs through it.
async fn works(database: &TestDatabase, builder: ProcessorBuilder) {
    let direct = database.pool();
    let running = started(builder).await;
    for queue in ["q", "leased"] {
        let jobs = (0..40).map(|n| job_of(queue, ["a", "b", "c"][n % 3], n % 7));
        seriatim::enqueue_many(direct, jobs).await.unwrap();
        seriatim::enqueue(direct, NewJob::new(queue, &1)).await.unwrap();
    }
    for queue in ["q", "leased"] {
        drained(direct, queue).await;
        let counts = Client::default().counts(direct, queue).await.unwrap();
        assert_eq!((counts.succeeded, counts.failed), (41, 0), "{queue}");
    }
    nothing_remains(direct).await;
    let report = running.shutdown(Duration::from_secs(5)).await;
    assert_eq!((report.lost, report.still_running), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_pooler_is_seen_and_worked_around() {
    let database = database().await;
    let pooler = pooler!(Pooler::plain(&database, SESSIONS, "transaction"));
    let pool = pool_at(&pooler.plain_url(&database)).await;
    let errors = Errors::default();
    works(&database, processor(&pool, &errors)).await;
    let said = errors.but_slow_checks();
    println!("{said:?}");
    // Nothing else: no statement met a name of another client's.
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].starts_with("TransactionPooler: a transaction pooler is in between"),
        "{said:?}"
    );
    assert!(said[0].contains("listen(false) and presence(false)"), "{said:?}");
    let locks = "select count(*) from pg_locks where locktype = 'advisory' and database =
                 (select oid from pg_database where datname = current_database())";
    assert_eq!(value::<i64>(database.pool(), locks).await, 0, "no presence was tried");
    pool.close().await;
    drop(pooler);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_pooler_with_a_single_session_is_seen() {
    let database = database().await;
    let pooler = pooler!(Pooler::plain(&database, 1, "transaction"));
    let pool = pool_at(&pooler.plain_url(&database)).await;
    let errors = Errors::default();
    let begun = Instant::now();
    let running = started(processor(&pool, &errors)).await;
    let seen = |said: &[String]| said.iter().any(|said| said.starts_with("TransactionPooler: "));
    errors.0.wait("it is seen", seen).await;
    let said = errors.but_slow_checks();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "by the first look: {:?}", begun.elapsed());
    running.shutdown(Duration::from_secs(5)).await;
    pool.close().await;
    drop(pooler);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_what_a_transaction_pooler_lacks_hears_nothing() {
    let database = database().await;
    let pooler = pooler!(Pooler::plain(&database, SESSIONS, "transaction"));
    let pool = pool_at(&pooler.plain_url(&database)).await;
    let errors = Errors::default();
    works(&database, processor(&pool, &errors).listen(false).presence(false)).await;
    assert_eq!(errors.but_slow_checks(), [""; 0]);
    pool.close().await;
    drop(pooler);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_of_statements_is_refused_and_no_attempt_is_spent() {
    let database = database().await;
    let pooler = pooler!(Pooler::plain(&database, SESSIONS, "statement"));
    let pool = pool_at(&pooler.plain_url(&database)).await;
    let job = seriatim::enqueue(database.pool(), job_of("q", "g", 1)).await.unwrap().id();
    let errors = Errors::default();
    let refused = processor(&pool, &Errors::default()).build().unwrap().start().await;
    assert!(matches!(refused, Err(StartError::StatementPooler(_))), "{refused:?}");
    let running = processor(&pool, &errors).build().unwrap().start_when_ready();
    let refusal = |said: &[String]| said.iter().any(|said| said.starts_with("StatementPooler: "));
    let said = errors.0.wait("it is refused", refusal).await;
    println!("{said:?}");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("set its mode to `transaction` or `session`"), "{said:?}");
    running.shutdown(Duration::from_secs(5)).await;
    let job = Client::default().job(database.pool(), job).await.unwrap().unwrap();
    assert_eq!((job.status, job.attempts), (JobStatus::Queued, 0));
    assert_eq!(errors.0.entries().len(), 1, "{:?}", errors.0.entries());
    pool.close().await;
    drop(pooler);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_pooler_is_as_none() {
    let database = database().await;
    // A session for each connection.
    let pooler = pooler!(Pooler::plain(&database, 30, "session"));
    let pool = pool_at(&pooler.plain_url(&database)).await;
    let errors = Errors::default();
    let idle = queue("idle");
    let hours = Duration::from_hours(1);
    // Only a wake-up can find the job in time.
    let running = started(
        errors.of(Processor::builder(pool.clone())).poll_interval(hours).queue(idle, run()),
    )
    .await;
    let listens = "select count(*) from pg_stat_activity where query ilike 'listen %'
                   and datname = current_database()";
    eventually(database.pool(), listens, 1_i64).await;
    let present = "select count(*) from seriatim.processor p where exists
                   (select from pg_locks where locktype = 'advisory' and pid = p.presence_pid)";
    eventually(database.pool(), present, 1_i64).await;
    let job = seriatim::enqueue(&pool, job_of("idle", "g", 1)).await.unwrap().id();
    job_when(database.pool(), job, |job| job.status == JobStatus::Succeeded).await;
    running.shutdown(Duration::from_secs(5)).await;
    works(&database, processor(&pool, &errors)).await;
    assert_eq!(errors.but_slow_checks(), [""; 0]);
    pool.close().await;
    drop(pooler);
}

/// As another client with sqlx does: each session is left with statements of the first names.
async fn leave_names(pool: &PgPool) -> BTreeSet<i32> {
    let mut busy = Vec::new();
    let mut left = BTreeSet::new();
    for _ in 0..SESSIONS / 2 {
        // Kept open, so that the next one has another session.
        let mut tx = pool.begin().await.unwrap();
        let pid = sqlx::raw_sql("deallocate all; select pg_backend_pid()").fetch_one(&mut *tx);
        let pid = pid.await.unwrap().get(0);
        for n in 1..30 {
            let prepare = format!("prepare sqlx_s_{n} as select $1::int8 + {n}");
            sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *tx).await.unwrap();
        }
        left.insert(pid);
        busy.push(tx);
    }
    left
}

/// As where a pooler was noticed late, or another client of the program has used the connection.
#[tokio::test]
async fn a_name_that_a_connection_remembers_is_not_used() {
    let database = database().await;
    let mut conn = database.connect().await.unwrap();
    let client = Client::default().named_statements(false);
    seriatim::enqueue(&mut conn, NewJob::new("q", &1)).await.unwrap();
    conn.execute("deallocate all").await.unwrap();
    for n in 0..2 {
        client.enqueue(&mut conn, NewJob::new("q", &n)).await.unwrap();
    }
    let remembered = seriatim::enqueue(&mut conn, NewJob::new("q", &1)).await.unwrap_err();
    assert!(chain(&remembered).contains("named_statements(false)"), "{}", chain(&remembered));
    conn.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_transaction_calls_work_whatever_the_session_holds() {
    let database = database().await;
    let pooler = pooler!(Pooler::plain(&database, SESSIONS, "transaction"));
    let pool = pool_at(&pooler.plain_url(&database)).await;
    assert_eq!(leave_names(&pool).await.len(), SESSIONS as usize / 2);
    let client = Client::default().named_statements(false);
    client.migrate(&pool).await.unwrap();
    let new = Client::new("another").unwrap().named_statements(false);
    new.migrate(&pool).await.unwrap();

    let mut tx = pool.begin().await.unwrap();
    let jobs = (0..3).map(|n| job_of("q", "g", n).reference("r"));
    let ids: Vec<i64> =
        client.enqueue_many(&mut *tx, jobs).await.unwrap().iter().map(|job| job.id()).collect();
    tx.commit().await.unwrap();

    let mut tx = pool.begin().await.unwrap();
    let received = client.receive(&mut *tx, Receive::new("q").max(10)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(received.iter().map(|job| job.id).collect::<Vec<_>>(), ids);
    let mut tx = pool.begin().await.unwrap();
    client.extend(&mut *tx, &received[0].receipt, Duration::from_mins(1)).await.unwrap();
    client.ack(&mut *tx, &received[0].receipt).await.unwrap();
    client.nack(&mut *tx, &received[1].receipt, Duration::ZERO).await.unwrap();
    client.operator("test", "for a look").pause_queue(&mut *tx, "q").await.unwrap();
    client.cancel(&mut *tx, ids[2]).await.unwrap();
    tx.commit().await.unwrap();

    let mut tx = pool.begin().await.unwrap();
    let counts = client.counts(&mut *tx, "q").await.unwrap();
    assert_eq!((counts.succeeded, counts.cancelled), (1, 1));
    assert!(client.paused_queue(&mut *tx, "q").await.unwrap().is_some());
    assert_eq!(client.jobs_by_reference(&mut *tx, "q", "r", 10).await.unwrap().len(), 3);
    client.operator("test", None).retry(&mut *tx, ids[2]).await.unwrap();
    client.operator("test", None).redrive(&mut *tx, "q", 10).await.unwrap();
    client.operator("test", None).resume_queue(&mut *tx, "q").await.unwrap();
    tx.commit().await.unwrap();

    // These have transactions of their own.
    let explained = client.explain_job(&pool, ids[1]).await.unwrap().unwrap();
    println!("{explained}");
    client.explain_group(&pool, "q", "g").await.unwrap();
    // Beside others, for whom the pooler takes the session between any two messages.
    let others = (0..4).map(|_| {
        let pool = pool.clone();
        tokio::spawn(async move { while pool.execute("select 1").await.is_ok() {} })
    });
    let others: Vec<_> = others.collect();
    for _ in 0..size(15, 50) {
        client.operator("test", None).purge(&pool, "q").await.unwrap();
        client.explain_job(&pool, ids[1]).await.unwrap().unwrap();
    }
    for other in others {
        other.abort();
    }
    pool.close().await;
    drop(pooler);
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_a_transaction_the_error_says_what_to_do() {
    let database = database().await;
    let pooler = pooler!(Pooler::plain(&database, 1, "transaction"));
    let pool = pool_at(&pooler.plain_url(&database)).await;
    let ours = Client::default();
    // In the one session that the pooler gives there is a statement of the first name.
    pool.execute("prepare sqlx_s_1 as select 1").await.unwrap();
    let fresh = PgPoolOptions::new().max_connections(1);
    let fresh = fresh.connect(&pooler.plain_url(&database)).await.unwrap();
    let refused = ours.enqueue(&fresh, job_of("q", "g", 1)).await.unwrap_err();
    let said = chain(&refused);
    println!("{said}");
    assert!(said.contains("already exists") && said.contains("named_statements(false)"), "{said}");
    fresh.close().await;
    pool.close().await;
    drop(pooler);
}

/// The SQL functions, as a client without prepared statements calls them.
#[tokio::test(flavor = "multi_thread")]
async fn the_sql_functions_work_as_single_statements() {
    let database = database().await;
    let pooler = pooler!(Pooler::plain(&database, SESSIONS, "transaction"));
    let pool = pool_at(&pooler.plain_url(&database)).await;
    pool.fetch_all("select * from seriatim.enqueue('q', '1', 'g')").await.unwrap();
    let received = pool.fetch_one("select receipt from seriatim.receive('q', 10)").await.unwrap();
    let receipt: String = received.get(0);
    for call in [format!("extend('{receipt}', '5 min')"), format!("ack('{receipt}')")] {
        let call = AssertSqlSafe(format!("select seriatim.{call}"));
        let answer = sqlx::raw_sql(call).fetch_one(&pool).await.unwrap();
        assert_eq!(answer.get::<String, _>(0), "done");
    }
    assert_eq!(jobs_where(database.pool(), "status = 'succeeded'").await, 1);
    pool.close().await;
    drop(pooler);
}
