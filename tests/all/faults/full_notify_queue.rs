//! A session that listens and stays in a transaction, in any database, fills the server's NOTIFY
//! queue. Then each commit that has notified fails: no wake-up is sent.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use seriatim::admin::QueueSettings;
use seriatim::testing::{Server, TestDatabase};
use seriatim::{
    Client, JobError, JobStatus, NewBatch, NewJob, OutOfAttempts, Processor, RetryPolicy,
};
use sqlx::{Connection, Executor, PgConnection, PgPool};
use tempfile::TempDir;

use crate::support::{by_hand, drained, ended, handler, job_of, queue, started, value};

/// A PostgreSQL that can have a small NOTIFY queue, as `.ci/run` installs it.
const INSTALLED: &str = "target/postgresql/18";

/// A server whose NOTIFY queue has 512 kB. `None`: no PostgreSQL of version 17 or newer is there.
async fn small_queue() -> Option<(Server, Option<TempDir>)> {
    let small = || Server::builder().setting("max_notify_queue_pages", "64");
    let version = Server::shared().await.unwrap().version().to_owned();
    let major: u32 =
        version.split(|c: char| !c.is_ascii_digit()).find(|n| !n.is_empty())?.parse().ok()?;
    if major >= 17 {
        return Some((small().start().await.unwrap(), None));
    }
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(INSTALLED);
    if !installed.is_dir() {
        return None;
    }
    // The servers' user may not read a checkout.
    let copy = tempfile::tempdir().unwrap();
    for (program, arguments) in
        [("cp", ["-r", installed.to_str().unwrap()]), ("chmod", ["-R", "a+rX"])]
    {
        let mut command = std::process::Command::new(program);
        assert!(command.args(arguments).arg(copy.path()).status().unwrap().success());
    }
    Some((small().binaries(copy.path().join("18/bin")).start().await.unwrap(), Some(copy)))
}

/// Fills the queue from another database. It stays full until the session ends.
async fn filled(server: &Server) -> PgConnection {
    let connect = || async { PgConnection::connect(&server.url_of("postgres")).await.unwrap() };
    let mut listens = connect().await;
    for sql in ["listen foreign_channel", "begin", "select 1"] {
        listens.execute(sql).await.unwrap();
    }
    let mut notifies = connect().await;
    let page =
        "select pg_notify('foreign_channel', repeat('x', 7000) || n) from generate_series(1, $1) n";
    // First many at once, then to the brim.
    for number in [32_i32, 1] {
        while sqlx::query(page).bind(number).execute(&mut notifies).await.is_ok() {}
    }
    listens
}

async fn committed(pool: &PgPool, sql: &str) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin().await?;
    tx.execute(sqlx::AssertSqlSafe(sql.to_owned())).await?;
    tx.commit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_notify_queue_fails_no_commit() {
    let Some((server, _copy)) = small_queue().await else {
        println!(
            "skipped: there is no PostgreSQL 17 or newer, and its programs are not in {INSTALLED}"
        );
        return;
    };
    let database = TestDatabase::create_on(&server).await.unwrap();
    let (pool, client) = (database.pool(), Client::default());
    for settings in [
        QueueSettings::new("keys").limit_per_key(1),
        QueueSettings::new("bad").dead_letter_queue(String::from("dead")),
    ] {
        client.configure_queue(pool, settings).await.unwrap();
    }
    let of_key = |group: &str| NewJob::new("keys", &1).group(group).limit_key("k");
    for group in ["a", "b", "c"] {
        seriatim::enqueue(pool, of_key(group)).await.unwrap();
    }
    let batch = NewBatch::new("batch", NewJob::new("after", &1));
    let batch = client.open_batch(pool, batch).await.unwrap();
    let member = |group: &str| job_of("members", group, 1).batch(batch);
    let members = client.enqueue_many(pool, [member("a"), member("b")]).await.unwrap();
    client.seal_batch(pool, batch).await.unwrap();
    let bad =
        seriatim::enqueue(pool, job_of("bad", "g", "bad").max_attempts(1)).await.unwrap().id();
    by_hand(pool, "select seriatim.pause('paused', null, 'a test')").await;
    seriatim::enqueue(pool, job_of("paused", "g", 1)).await.unwrap();

    let listens = filled(&server).await;
    let usage: f64 = value(pool, "select pg_notification_queue_usage()").await;
    assert!(usage > 0.9, "{usage}");
    // Without the rule.
    let notified = committed(pool, "select pg_notify('seriatim.wake', 'q')").await;
    assert!(notified.unwrap_err().to_string().contains("too many notifications"));

    // Producers, in their transaction.
    let mut tx = pool.begin().await.unwrap();
    let one = seriatim::enqueue(&mut *tx, job_of("members", "one", 1)).await.unwrap().id();
    let many = [job_of("members", "two", 1), job_of("members", "three", 1)];
    client.enqueue_many(&mut *tx, many).await.unwrap();
    tx.commit().await.unwrap();
    committed(pool, "select seriatim.enqueue('members', '1', 'sql')").await.unwrap();
    // Receivers: others of the key wait, of the batch few are left, the last attempt fails.
    for (queue, end) in [("keys", "ack"), ("members", "ack"), ("bad", "nack")] {
        let sql = format!("select receipt from seriatim.receive('{queue}', 1, interval '1 min')");
        let receipt: String = value(pool, sql).await;
        committed(pool, &format!("select seriatim.{end}('{receipt}')")).await.unwrap();
    }
    assert_eq!(ended_in(pool, bad).await, "dead");
    // Operators.
    let delayed =
        seriatim::enqueue(pool, job_of("members", "late", 1).delay(Duration::from_hours(1)));
    let delayed = delayed.await.unwrap().id();
    for sql in [
        "select seriatim.resume('paused')".to_owned(),
        format!("select seriatim.run_now({delayed})"),
        "select seriatim.configure_queue('keys', '{\"limit_per_key\": 2}')".to_owned(),
    ] {
        committed(pool, &sql).await.unwrap();
    }
    // A processor's settles.
    let fails = || {
        handler(async |job, data: Value| {
            if data == "bad" && job.queue() == "bad" {
                Err(JobError::retry("it is bad"))
            } else {
                Ok(data)
            }
        })
    };
    let last =
        seriatim::enqueue(pool, job_of("bad", "last", "bad").max_attempts(1)).await.unwrap().id();
    let mut builder = Processor::builder(pool.clone());
    for name in ["keys", "members", "after", "paused", "dead", "bad"] {
        let options = queue(name)
            .concurrency(1)
            .retry(RetryPolicy::new(2))
            .out_of_attempts(OutOfAttempts::Continue);
        builder = builder.queue(options, fails());
    }
    let running = started(builder).await;
    for id in [one, delayed, bad, last].into_iter().chain(members.iter().map(|job| job.id())) {
        let job = ended(pool, id).await;
        assert_eq!((job.status, job.attempts <= 2), (JobStatus::Succeeded, true), "{job:?}");
    }
    for name in ["keys", "members", "after", "paused", "dead", "bad"] {
        drained(pool, name).await;
    }
    let usage: f64 = value(pool, "select pg_notification_queue_usage()").await;
    assert!(usage > 0.9, "it is still full: {usage}");
    listens.close().await.unwrap();
    // It is emptied with the next notification.
    committed(pool, "select seriatim.enqueue('members', '1', 'again')").await.unwrap();
    drained(pool, "members").await;
    running.shutdown(Duration::from_secs(5)).await;
}

async fn ended_in(pool: &PgPool, job: i64) -> String {
    value(pool, format!("select queue from seriatim.job where id = {job}")).await
}
