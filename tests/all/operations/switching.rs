//! A new server that logical replication has filled takes the place of the old one.

use std::process::Stdio;
use std::time::Duration;

use seriatim::testing::{Server, TestDatabase};
use seriatim::{Hold, NewJob, Processor};
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;
use tokio::process::Command;

use super::carried_over::CarriedOver;
use crate::support::{by_hand, enqueue, eventually, started, value};

/// Copies all but the rows; or why that cannot be done.
async fn copy_schemas(server: &Server, from: &str, to: &PgPool) -> Result<(), String> {
    let program = server.binaries().unwrap().join("pg_dump");
    if !program.is_file() {
        return Err(String::from("the server's programs have no `pg_dump`"));
    }
    let dump = Command::new(program)
        .args(["--schema-only", "--no-publications", "-d", from])
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let dump = String::from_utf8(dump.stdout).unwrap();
    // Lines for psql alone.
    let sql: Vec<&str> = dump.lines().filter(|line| !line.starts_with('\\')).collect();
    let mut conn = to.acquire().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.join("\n"))).execute(&mut *conn).await.unwrap();
    // It sets an empty search path.
    conn.close().await.unwrap();
    Ok(())
}

async fn after_switch(pool: &PgPool) -> Result<i64, String> {
    let called = sqlx::query_scalar("select seriatim.after_switch()").fetch_one(pool).await;
    called.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_server_that_replication_has_filled_goes_on() {
    let logical = || Server::builder().setting("wal_level", "logical").start();
    let (old_server, new_server) = tokio::join!(logical(), logical());
    let (old_server, new_server) = (old_server.unwrap(), new_server.unwrap());
    let database = TestDatabase::create_on(&old_server).await.unwrap();
    let old = database.pool();
    let maintenance = PgPool::connect(&new_server.url()).await.unwrap();
    by_hand(&maintenance, "create database moved").await;
    let new = PgPool::connect(&new_server.url_of("moved")).await.unwrap();
    if let Err(reason) = copy_schemas(&old_server, &database.url(), &new).await {
        println!("skipped: {reason}");
        return;
    }
    // Work goes on while rows are copied.
    let jobs = CarriedOver::default();
    jobs.enqueue(old).await;
    by_hand(old, "create publication moving for all tables").await;
    let options: PgConnectOptions = database.url().parse().unwrap();
    let (port, name) = (options.get_port(), options.get_database().unwrap());
    let from = format!("host=127.0.0.1 port={port} user=postgres dbname={name}");
    by_hand(&new, format!("create subscription moving connection '{from}' publication moving"))
        .await;
    jobs.begin(old).await;
    // A claim, a deduplication id, and an id that is given and not there.
    let receive = "select receipt from seriatim.receive('q', 1, interval '1 h')";
    let receipt: String = value(old, receive).await;
    let deduplicated = || NewJob::new("other", &1).group("g").dedup_id("once");
    seriatim::enqueue(old, deduplicated()).await.unwrap();
    let highest: i64 = value(old, "select max(id) from seriatim.job").await;
    let lost: i64 = value(old, "select nextval('seriatim.job_id_seq')").await;
    assert!(lost > highest);
    let copied = "select count(*) = 0 from pg_subscription_rel where srsubstate <> 'r'";
    eventually(&new, copied, true).await;
    let end: String = value(old, "select pg_current_wal_lsn()::text").await;
    let caught_up =
        format!("select latest_end_lsn >= '{end}' from pg_stat_subscription where relid is null");
    eventually(&new, Box::leak(caught_up.into_boxed_str()), true).await;

    let early = after_switch(&new).await.unwrap_err();
    assert!(early.contains("subscription moving still changes this database"), "{early}");
    by_hand(&new, "drop subscription moving").await;
    let next = after_switch(&new).await.unwrap();
    assert_eq!(next, highest + 1_000_001);
    assert_eq!(after_switch(&new).await.unwrap(), next, "a second call changes nothing");
    assert!(seriatim::enqueue(&new, deduplicated()).await.unwrap().is_duplicate());
    let fresh = enqueue(&new, "q", "g0", 500).await;
    assert!(fresh >= next && fresh < next + 10, "{fresh}");

    let held = CarriedOver::options().hold(Hold::Lease(Duration::from_secs(5)));
    let builder = Processor::builder(new.clone()).node("new").queue(held, jobs.handler());
    let running = started(builder).await;
    let present =
        "select count(*) from seriatim.processor where node = 'new' and presence_key is not null";
    eventually(&new, present, 1_i64).await;
    let late = after_switch(&new).await.unwrap_err();
    assert!(late.contains("node 'new' runs here already"), "{late}");
    let acked: String = value(&new, format!("select seriatim.ack('{receipt}')")).await;
    assert_eq!(acked, "done", "the claim was carried over");
    jobs.end_in_order(&new).await;
    running.shutdown(Duration::from_secs(5)).await;
}
