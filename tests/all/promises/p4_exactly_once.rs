//! P4: what a handler writes, its result and the jobs it enqueues commit together or not at all.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::receive::Receive;
use seriatim::testing::TestDatabase;
use seriatim::{ActiveJob, Client, FailureKind, Hold, Job, JobError, JobStatus, NewJob, Running};
use sqlx::{Connection, Executor, PgConnection, PgPool, SqlSafeStr};

use super::{HOLD, database, queue};
use crate::support::{
    Log, by_hand, ended, handler, handler_with, job_of, nothing_remains, processor, serve, started,
    value,
};

/// Does the same as an asynchronous failover that loses more ids than a sequence is logged ahead.
async fn lose(pool: &PgPool, job: i64) {
    by_hand(pool, format!("delete from seriatim.job where id = {job}")).await;
    by_hand(pool, format!("select setval('seriatim.job_id_seq', {job}, false)")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_its_jobs_alone_though_its_id_comes_again() {
    let database = database().await;
    let pool = database.pool();
    let (log, client) = (Log::default(), Client::default());
    let mut ids = Vec::new();
    for _ in 0..2 {
        let job = seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap();
        ids.push(job.id());
        let received = client.receive(pool, Receive::new("q")).await.unwrap().remove(0);
        log.add(received.key.clone());
        client.nack(pool, &received.receipt, Duration::ZERO).await.unwrap();
        let run = handler_with(log.clone(), async |log, job, _| {
            log.add(job.key());
            if job.attempt() == 2 { Err(JobError::retry("as asked")) } else { Ok(json!(1)) }
        });
        let running = processor(&database, 4).await.queue(queue("q"), run);
        let running = started(running).await;
        assert_eq!(ended(pool, job.id()).await.attempts, 3);
        running.shutdown(Duration::from_secs(5)).await;
        lose(pool, job.id()).await;
    }
    assert_eq!(ids[0], ids[1], "the id comes again");
    let keys = log.entries();
    assert_eq!((&keys[0], &keys[0]), (&keys[1], &keys[2]), "the same for each attempt");
    assert_eq!((&keys[3], &keys[3]), (&keys[4], &keys[5]), "the same for each attempt");
    assert_ne!(keys[0], keys[3]);
}

async fn write(tx: &mut PgConnection, what: &str) -> Result<(), sqlx::Error> {
    let insert = "insert into public.written (what) values ($1)";
    let insert = sqlx::query(insert).bind(what).execute(tx);
    insert.await.map(drop)
}

/// Does what the data says, after it has written and enqueued.
async fn act(job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
    let what = data.as_str().unwrap().to_owned();
    if what.starts_with("without") {
        return without_a_transaction(job, &what).await;
    }
    write(job.tx().await?, &what).await?;
    let child = NewJob::new("children", &what).group(&what);
    seriatim::enqueue(job.tx().await?, child).await?;
    let first = job.attempt() == 1;
    let tx = job.tx().await?;
    match what.as_str() {
        "error" => Err(JobError::retry("as asked"))?,
        "error once" if first => Err(JobError::retry("as asked"))?,
        "ok" | "error once" => {}
        "panic" => panic!("as asked"),
        "hang" => std::future::pending().await,
        "hang in a query" => {
            sqlx::query("select pg_sleep(60)").execute(tx).await?;
        }
        "deferred" => {
            let orphan = "insert into public.child values (4)";
            sqlx::query(orphan).execute(tx).await?;
        }
        "swallowed" => {
            let failed = sqlx::query("select 1 / 0").execute(tx).await;
            assert!(failed.is_err());
        }
        "swallowed, then error" => {
            let failed = sqlx::query("select 1 / 0").execute(tx).await;
            failed.map_err(|_| JobError::fail("another error"))?;
        }
        "rollback" | "rollback, then error" => {
            sqlx::raw_sql("rollback").execute(tx).await?;
        }
        "rollback to" => {
            let all = "rollback; begin; savepoint a; insert into public.written values ('sneaked')";
            sqlx::raw_sql(all).execute(tx).await?;
        }
        "slow" | "slow, then error" => {
            let slow = "insert into public.written select 'slow' from pg_sleep(0.2)";
            // Prepared, it is sent at once, however busy the machine is.
            tx.prepare(slow.into_sql_str()).await?;
            let slow = sqlx::query(slow).execute(tx);
            let slow = tokio::time::timeout(Duration::from_millis(50), slow);
            if slow.await.is_ok() {
                // It was not given up half-way.
                Err(JobError::fail("too quick"))?;
            }
        }
        other => panic!("what is {other:?}?"),
    }
    if what.ends_with("then error") {
        return Err(JobError::retry("as asked"));
    }
    Ok(json!(what))
}

async fn without_a_transaction(job: &mut ActiveJob, what: &str) -> Result<Value, JobError> {
    match what {
        "without tx" => {}
        "without tx, not polled" => drop(job.tx()),
        _ => {
            let entered = futures::poll!(std::pin::pin!(job.tx()));
            if entered.is_ready() {
                Err(JobError::fail("too quick"))?;
            }
            // A lease outlives a transaction that was given up, and begins another one.
            let over = HOLD == Hold::Transaction;
            assert_eq!(job.tx().await.is_err(), over, "the hold's transaction is over");
            if what.ends_with("then error") {
                return Err(JobError::retry("as asked"));
            }
        }
    }
    Ok(json!(what))
}

struct Bench {
    database: TestDatabase,
    running: Running,
}

impl Bench {
    async fn new() -> Self {
        let database = database().await;
        by_hand(
            database.pool(),
            "create table public.written (what text);
             create table public.parent (n int primary key);
             create table public.child (n int references public.parent deferrable initially deferred)",
        )
        .await;
        let running =
            serve(&database, 10, queue("q"), handler(async |job, data| act(job, data).await)).await;
        Self { database, running }
    }

    fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    /// Runs a job with one attempt, behind which another one of its group waits, which must run
    /// too.
    async fn run(&self, what: &str) -> Job {
        let limit = Duration::from_millis(if what.starts_with("hang") { 200 } else { 20_000 });
        let job = job_of("q", what, what).max_attempts(1).timeout(limit);
        let jobs = [job, job_of("q", what, "without tx")];
        let jobs = seriatim::enqueue_many(self.pool(), jobs).await.unwrap();
        let next = ended(self.pool(), jobs[1].id()).await;
        assert_eq!(next.status, JobStatus::Succeeded, "behind {what}");
        let job = ended(self.pool(), jobs[0].id()).await;
        if job.error.as_ref().is_some_and(|e| e.message == "too quick") {
            // The server answered before the future could be dropped half-way.
            return Box::pin(self.run(what)).await;
        }
        job
    }

    /// How many rows and child jobs there are of a job's making.
    async fn made(&self, what: &str) -> (i64, i64) {
        (
            value(
                self.pool(),
                format!("select count(*) from public.written where what = '{what}'"),
            )
            .await,
            value(
                self.pool(),
                format!("select count(*) from seriatim.job where queue = 'children' and group_id = '{what}'"),
            )
            .await,
        )
    }

    async fn end(self) {
        by_hand(self.pool(), "delete from seriatim.job where queue = 'children'").await;
        nothing_remains(self.pool()).await;
        self.running.shutdown(Duration::from_secs(5)).await;
        self.database.remove().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_success_commits_its_writes_its_result_and_its_jobs() {
    let bench = Bench::new().await;
    for what in ["ok", "without tx", "without tx, not polled"] {
        let job = bench.run(what).await;
        assert_eq!(job.status, JobStatus::Succeeded, "{job:?}");
        assert_eq!(job.result, Some(json!(what)));
    }
    assert_eq!(bench.made("ok").await, (1, 1));

    // One that failed once: its writes are there once.
    let job = seriatim::enqueue(bench.pool(), job_of("q", "twice", "error once"));
    let job = ended(bench.pool(), job.await.unwrap().id()).await;
    assert_eq!((job.status, job.attempts), (JobStatus::Succeeded, 2));
    assert_eq!(bench.made("error once").await, (1, 1));
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_leaves_nothing_but_its_failure() {
    let bench = Bench::new().await;
    for (what, kind, message) in [
        ("error", FailureKind::Error, "as asked"),
        ("panic", FailureKind::Panic, "as asked"),
        ("hang", FailureKind::Timeout, "200ms"),
        ("hang in a query", FailureKind::Timeout, "200ms"),
        ("deferred", FailureKind::Commit, "violates foreign key"),
        ("swallowed", FailureKind::Commit, "the handler returned Ok"),
        ("swallowed, then error", FailureKind::Permanent, "another error"),
        ("rollback", FailureKind::TransactionEnded, "the handler ended"),
        ("rollback, then error", FailureKind::TransactionEnded, "the handler ended"),
        ("rollback to", FailureKind::TransactionEnded, "the handler ended"),
        ("slow, then error", FailureKind::Error, "as asked"),
        ("without an end, then error", FailureKind::Error, "as asked"),
    ] {
        let job = bench.run(what).await;
        assert_eq!(job.status, JobStatus::Failed, "{what}");
        let failure = job.error.as_ref().unwrap();
        assert_eq!(failure.kind, kind, "{what}: {failure:?}");
        assert!(failure.message.contains(message), "{what}: {failure:?}");
        assert_eq!((job.result, job.attempts), (None, 1), "{what}");
        assert_eq!(job.history.len(), 1, "{what}");
        assert_eq!(bench.made(what).await, (0, 0), "{what}");
    }
    let job = bench.run("without an end").await;
    if HOLD == Hold::Transaction {
        let failure = job.error.unwrap();
        assert_eq!(failure.kind, FailureKind::Commit);
        assert!(failure.message.contains("broken"), "{failure:?}");
    } else {
        assert_eq!(job.status, JobStatus::Succeeded);
    }
    let left: i64 = value(bench.pool(), "select count(*) from public.written").await;
    assert_eq!(left, 0);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_given_up_half_way_still_counts_when_the_job_succeeds() {
    let bench = Bench::new().await;
    let job = bench.run("slow").await;
    assert_eq!(job.status, JobStatus::Succeeded, "{job:?}");
    // Its own write, and that of the query, which the server went on with.
    assert_eq!(bench.made("slow").await, (2, 1));
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn savepoints_of_the_handler_commit_and_roll_back_as_it_says() {
    async fn nested(job: &mut ActiveJob) -> Result<Value, JobError> {
        let tx = job.tx().await?;
        write(tx, "outer").await?;
        let mut inner = tx.begin().await?;
        write(&mut inner, "committed").await?;
        inner.commit().await?;
        let mut inner = tx.begin().await?;
        write(&mut inner, "rolled back").await?;
        inner.rollback().await?;
        let mut inner = tx.begin().await?;
        write(&mut inner, "dropped").await?;
        drop(inner);
        let mut inner = tx.begin().await?;
        let failed = sqlx::query("select 1 / 0").execute(&mut *inner).await;
        assert!(failed.is_err(), "an error that the savepoint catches");
        inner.rollback().await?;
        write(job.tx().await?, "after").await?;
        let mut inner = job.tx().await?.begin().await?;
        write(&mut inner, "forgotten").await?;
        std::mem::forget(inner);
        Ok(json!("nested"))
    }
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, "create table public.written (what text)").await;
    let _running =
        serve(&database, 10, queue("q"), handler(async |job, _| nested(job).await)).await;
    let id = seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap().id();
    let job = ended(pool, id).await;
    assert_eq!(job.status, JobStatus::Succeeded, "{job:?}");
    let written: Vec<String> = value(pool, "select array_agg(what) from public.written").await;
    assert_eq!(written, ["outer", "committed", "after"]);
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_query_given_up_keeps_the_group_to_its_timeout() {
    let database = database().await;
    let pool = database.pool();
    let running = serve(
        &database,
        10,
        queue("q").timeout(Duration::from_millis(500)),
        handler(async |job, _| {
            let (tx, endless) = (job.tx().await?, "select pg_sleep(3600)");
            // Prepared, it is sent at once, however busy the machine is.
            tx.prepare(endless.into_sql_str()).await?;
            let endless = sqlx::query(endless).execute(tx);
            let given_up = tokio::time::timeout(Duration::from_millis(20), endless).await;
            assert!(given_up.is_err());
            Ok(json!("done"))
        }),
    )
    .await;
    let job = job_of("q", "g", 1).max_attempts(1);
    let id = seriatim::enqueue(pool, job).await.unwrap().id();
    let job = ended(pool, id).await;
    assert_eq!(job.status, JobStatus::Failed);
    assert_eq!(job.error.unwrap().kind, FailureKind::Timeout);
    nothing_remains(pool).await;
    let report = running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(report.still_running, 0);
}

/// The library's statements have their plans pinned. A handler's have not, in each of its turns,
/// nor after a savepoint of its own was rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn a_handlers_statements_are_planned_by_the_sessions_settings() {
    let database = database().await;
    let pool = database.pool();
    let sql = "select string_agg(name || ' ' || (setting = reset_val), ', ') from pg_settings \
               where name like 'enable_%' or name in ('plan_cache_mode', 'jit') having not bool_and(setting = reset_val)";
    let run = handler_with(sql, async |sql, job, _| {
        let mut odd = Vec::new();
        for _ in 0..2 {
            let tx = job.tx().await?;
            odd.extend(sqlx::query_scalar::<_, String>(sql).fetch_optional(&mut *tx).await?);
            let mut inner = tx.begin().await?;
            odd.extend(sqlx::query_scalar::<_, String>(sql).fetch_optional(&mut *inner).await?);
            inner.rollback().await?;
        }
        Ok(json!(odd))
    });
    let jobs = (0..4).map(|n| job_of("q", if n < 3 { "g" } else { "h" }, n));
    let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let options = queue("q").concurrency(1).time_slice(Duration::from_secs(30));
    let _running = serve(&database, 4, options, run).await;
    for enqueued in jobs {
        let job = ended(pool, enqueued.id()).await;
        assert_eq!((job.status, job.result), (JobStatus::Succeeded, Some(json!([]))));
    }
}
