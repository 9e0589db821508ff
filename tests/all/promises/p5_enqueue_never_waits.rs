//! P5: an enqueue waits for no other transaction, and no race makes it abort its caller's
//! transaction.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use futures::future::join_all;
use serde_json::json;
use seriatim::{Client, NewJob};
use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor, PgConnection, PgPool};
use tokio::sync::Notify;

use super::{database, queue};
use crate::support::{
    Log, by_hand, drained, ended, handler, handler_with, job, job_of, jobs_where, nothing_remains,
    serve, size,
};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

/// The probe: a statement that would wait for a lock fails instead. A commit that notifies waits
/// for the notifying commits of other databases, which takes less; transactions here last longer.
async fn impatient(conn: &mut PgConnection) {
    conn.execute("set lock_timeout = '5s'").await.unwrap();
}

async fn begin(conn: &mut PgConnection, level: &str) {
    conn.execute(sqlx::AssertSqlSafe(format!("begin isolation level {level}"))).await.unwrap();
    // So that it has a snapshot from before all that follows.
    conn.execute("select 1").await.unwrap();
}

async fn put(conn: &mut PgConnection, group: &str, data: &str) -> i64 {
    seriatim::enqueue(conn, job_of("q", group, data)).await.expect("an enqueue does not wait").id()
}

#[tokio::test(flavor = "multi_thread")]
async fn not_for_a_running_handler() {
    let database = database().await;
    let pool = database.pool();
    let (log, go) = (Log::default(), Arc::new(Notify::new()));
    let (seen, gate) = (log.clone(), Arc::clone(&go));
    let _running = serve(
        &database,
        10,
        queue("q"),
        handler_with((gate, seen), async |(gate, seen), job, data| {
            sqlx::query("select 1").execute(job.tx().await?).await?;
            seen.add(data.as_str().unwrap());
            if data == json!("first") {
                gate.notified().await;
            }
            Ok(data)
        }),
    )
    .await;
    let mut conn = database.connect().await.unwrap();
    impatient(&mut conn).await;
    put(&mut conn, "g", "first").await;
    log.wait_for(1).await;
    let mut expected = vec!["first".to_owned()];
    for level in LEVELS {
        begin(&mut conn, level).await;
        for n in 0..3 {
            let data = format!("{level} {n}");
            put(&mut conn, "g", &data).await;
            expected.push(data);
        }
        conn.execute("commit").await.unwrap();
    }
    assert_eq!(log.entries(), ["first"], "it runs all the while");
    go.notify_one();
    drained(pool, "q").await;
    assert_eq!(log.entries(), expected);
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn not_for_other_producers_of_the_same_new_group() {
    let database = database().await;
    let pool = database.pool();
    let _running = serve(&database, 10, queue("q"), handler(async |_, data| Ok(data))).await;
    let mut producers = Vec::new();
    for level in [LEVELS, LEVELS].concat() {
        let mut conn = database.connect().await.unwrap();
        impatient(&mut conn).await;
        begin(&mut conn, level).await;
        producers.push(conn);
    }
    for (n, conn) in producers.iter_mut().enumerate() {
        put(conn, "g", &n.to_string()).await;
        seriatim::enqueue(&mut *conn, NewJob::new("q", &n)).await.expect("nor one without a group");
    }
    // The last first: each lower id comes late, into a group that has run meanwhile.
    for conn in producers.iter_mut().rev() {
        conn.execute("commit").await.unwrap();
        drained(pool, "q").await;
    }
    let ended: i64 = jobs_where(pool, "status = 'succeeded'").await;
    assert_eq!(ended, 12);
    nothing_remains(pool).await;
}

/// One producer: transactions with jobs of few groups and of none, some in savepoints that are
/// rolled back.
async fn produce(mut conn: PgConnection, level: &str, seed: u64) -> u64 {
    impatient(&mut conn).await;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut kept = 0;
    for _ in 0..size(15, 40) {
        begin(&mut conn, level).await;
        for _ in 0..random.u8(1..4) {
            let group = format!("g{}", random.u8(..3));
            let jobs = [job_of("q", &group, 1), NewJob::new("q", &2)];
            let rolled_back = random.u8(..3) == 0;
            let mut savepoint = conn.begin().await.unwrap();
            seriatim::enqueue_many(&mut *savepoint, jobs).await.expect("no race aborts an enqueue");
            if rolled_back {
                savepoint.rollback().await.unwrap();
            } else {
                savepoint.commit().await.unwrap();
                kept += 2;
            }
        }
        conn.execute("commit").await.expect("nor the commit");
    }
    kept
}

#[tokio::test(flavor = "multi_thread")]
async fn no_race_with_workers_or_producers_aborts_a_transaction() {
    let database = database().await;
    let pool = database.pool();
    let _running =
        serve(&database, 20, queue("q").concurrency(10), handler(async |_, data| Ok(data))).await;
    let mut expected = 0;
    for level in ["repeatable read", "serializable"] {
        let mut producers = Vec::new();
        for seed in 0..4 {
            let conn = database.connect().await.unwrap();
            producers.push(tokio::spawn(produce(conn, level, seed)));
        }
        for kept in join_all(producers).await {
            expected += kept.unwrap_or_else(|error| panic!("at {level}: {error}"));
        }
    }
    drained(pool, "q").await;
    let counts = Client::default().counts(pool, "q").await.unwrap();
    assert_eq!(counts.succeeded, expected);
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_was_never_enqueued() {
    let database = database().await;
    let pool = database.pool();
    let _running = serve(&database, 10, queue("q"), handler(async |_, data| Ok(data))).await;
    let mut tx = pool.begin().await.unwrap();
    // The flagged job of the group goes, the next one has a flag of its own.
    let mut savepoint = tx.begin().await.unwrap();
    let gone = put(&mut savepoint, "g", "gone").await;
    savepoint.rollback().await.unwrap();
    let kept = put(&mut tx, "g", "kept").await;
    tx.commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let gone_too = put(&mut tx, "h", "gone").await;
    tx.rollback().await.unwrap();

    ended(pool, kept).await;
    for id in [gone, gone_too] {
        assert_eq!(Client::default().job(pool, id).await.unwrap(), None);
    }
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_can_be_prepared_without_wake_ups() {
    let database = database().await;
    let pool = database.pool();
    let _running = serve(&database, 10, queue("q"), handler(async |_, data| Ok(data))).await;
    let name = database.name();
    let mut conn = database.connect().await.unwrap();
    let prepare = || sqlx::AssertSqlSafe(format!("prepare transaction '{name}'"));

    begin(&mut conn, "read committed").await;
    put(&mut conn, "g", "notifies").await;
    let refused = conn.execute(prepare()).await.unwrap_err();
    assert!(refused.to_string().contains("NOTIFY"), "PostgreSQL's own word: {refused}");

    let client = Client::default().notify(false);
    begin(&mut conn, "read committed").await;
    let job = job_of("q", "g", "prepared");
    let id = client.enqueue(&mut conn, job).await.unwrap().id();
    conn.execute(prepare()).await.unwrap();
    conn.close().await.unwrap();
    // Others of the group overtake it: it is not committed yet.
    let other = seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap();
    ended(pool, other.id()).await;
    assert_eq!(client.job(pool, id).await.unwrap(), None);
    by_hand(pool, format!("commit prepared '{name}'")).await;
    assert_eq!(ended(pool, id).await.result, Some(json!("prepared")));
    nothing_remains(pool).await;
}

#[tokio::test]
async fn thousands_of_ids_come_back_in_the_order_of_the_jobs() {
    let database = database().await;
    let pool = database.pool();
    let jobs = (0..5_000).map(|n| match n % 5 {
        0 => NewJob::new("ungrouped", &n),
        rest => job_of(&format!("q{}", n % 2), &format!("g{}", n * 7919 % (rest * 100)), n),
    });
    let enqueued = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let rows: Vec<(i64, i64, bool)> = sqlx::query_as(
        "select id, data::int8, flagged = (group_id is not null and \
         id = min(id) over (partition by queue, group_id)) from seriatim.job order by id",
    )
    .fetch_all(pool)
    .await
    .unwrap();
    let expected: Vec<_> = enqueued.iter().zip(0..).map(|(job, n)| (job.id(), n, true)).collect();
    assert_eq!(expected.len(), 5_000);
    assert!(rows == expected, "ids, data or flags do not match");
}

async fn through_each_executor(pool: &PgPool) -> Vec<i64> {
    let mut ids = Vec::new();
    let mut put = |job: seriatim::Enqueued| ids.push(job.id());
    put(seriatim::enqueue(pool, job_of("q", "g", 0)).await.unwrap());
    let mut conn = pool.acquire().await.unwrap();
    put(seriatim::enqueue(&mut *conn, job_of("q", "g", 1)).await.unwrap());
    let mut tx = conn.begin().await.unwrap();
    put(seriatim::enqueue(&mut *tx, job_of("q", "g", 2)).await.unwrap());
    tx.commit().await.unwrap();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_or_a_time_holds_the_job_and_what_is_behind_it() {
    let database = database().await;
    let pool = database.pool();
    let _running = serve(&database, 10, queue("q"), handler(async |_, data| Ok(data))).await;
    let ids = through_each_executor(pool).await;
    for id in ids {
        ended(pool, id).await;
    }
    let half = Duration::from_millis(1_500);
    let heads = [
        job_of("q", "delayed", 1).delay(half),
        job_of("q", "later", 1).run_at(Utc::now() + half),
        NewJob::new("q", &1).delay(half),
    ];
    let heads = seriatim::enqueue_many(pool, heads).await.unwrap();
    let behind = ["delayed", "later"].map(|group| job_of("q", group, 2));
    let behind = seriatim::enqueue_many(pool, behind).await.unwrap();
    let counts = Client::default().counts(pool, "q").await.unwrap();
    assert!(counts.delayed > 0, "{counts:?}");
    for (n, head) in heads.iter().enumerate() {
        let head = ended(pool, head.id()).await;
        let started = head.last_started_at.unwrap();
        assert!(started >= head.run_at, "{head:?}");
        assert!(head.run_at > head.created_at, "{head:?}");
        if n < behind.len() {
            let second = ended(pool, behind[n].id()).await;
            assert!(second.last_started_at >= head.finished_at, "{second:?}");
        }
    }
    // A time long past is no reason to overtake.
    let jobs = [
        job_of("q", "past", 1).delay(Duration::from_hours(1)),
        job_of("q", "past", 2).run_at(chrono::DateTime::UNIX_EPOCH),
    ];
    let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let probe = seriatim::enqueue(pool, job_of("q", "probe", 1)).await.unwrap();
    ended(pool, probe.id()).await;
    assert_eq!(job(pool, jobs[1].id()).await.attempts, 0);
}

/// A wake-up in every enqueue's commit would have all producers commit one after the other.
#[tokio::test]
async fn a_job_behind_others_that_wait_sends_no_wake_up() {
    let database = database().await;
    let pool = database.pool();
    let mut wakes = PgListener::connect_with(pool).await.unwrap();
    wakes.listen("seriatim.wake").await.unwrap();
    // As workers have it that are busy with the group.
    by_hand(
        pool,
        "insert into seriatim.queue_group (queue, group_id, ready_at, head_id)
         select name, 'busy', now(), 1 from unnest(array['one', 'many', 'sql']) name",
    )
    .await;
    for _ in 0..3 {
        for group in [None, Some("busy")] {
            let job = |queue| match group {
                Some(group) => NewJob::new(queue, &1).group(group),
                None => NewJob::new(queue, &1),
            };
            seriatim::enqueue(pool, job("one")).await.unwrap();
            seriatim::enqueue_many(pool, [job("many"), job("many")]).await.unwrap();
            let group = group.map_or_else(|| "null".to_owned(), |group| format!("'{group}'"));
            by_hand(pool, format!("select seriatim.enqueue('sql', '1', {group})")).await;
        }
    }
    by_hand(pool, "select pg_notify('seriatim.wake', 'over')").await;
    let mut heard = Vec::new();
    while heard.last().is_none_or(|last| last != "over") {
        heard.push(wakes.recv().await.unwrap().payload().to_owned());
    }
    assert_eq!(heard, ["one", "many", "sql", "over"]);
    drop(wakes);
}
