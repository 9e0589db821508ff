//! Deduplication: one job per id within a window, also when it has ended. No other enqueue waits
//! for it.

use std::time::Duration;

use serde_json::json;
use seriatim::admin::{DedupScope, QueueSettings};
use seriatim::{Client, Enqueued, NewJob, Retention};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};

use crate::support::{
    by_hand, chain, database, eventually, handler, job, job_of, jobs_where, processor, queue,
    started, until_jobs, value,
};

const WAITING: &str = "select count(*) from pg_stat_activity \
                       where datname = current_database() and wait_event_type = 'Lock'";

fn new(id: &str) -> NewJob {
    job_of("q", "g", 1).dedup_id(id)
}

async fn put(pool: &PgPool, job: NewJob) -> Enqueued {
    seriatim::enqueue(pool, job).await.unwrap()
}

async fn configure(pool: &PgPool, settings: QueueSettings) {
    Client::default().configure_queue(pool, settings).await.unwrap();
}

async fn jobs(pool: &PgPool) -> i64 {
    jobs_where(pool, "true").await
}

fn first(enqueued: Enqueued) -> i64 {
    assert!(!enqueued.is_duplicate(), "{enqueued:?}");
    assert_eq!(enqueued, Enqueued::New { id: enqueued.id() });
    enqueued.id()
}

#[tokio::test]
async fn an_id_is_enqueued_once_per_queue() {
    let database = database().await;
    let pool = database.pool();
    let id = first(put(pool, new("a")).await);
    let again = put(pool, new("a").group("another").priority(3)).await;
    assert_eq!(again, Enqueued::Duplicate { id });
    assert!(again.is_duplicate());
    assert_eq!((again.id(), jobs(pool).await), (id, 1));
    first(put(pool, new("b")).await);
    first(put(pool, NewJob::new("another", &1).dedup_id("a")).await);
    assert_eq!(job(pool, id).await.dedup_id.as_deref(), Some("a"));
    // The same transaction sees its own.
    let mut tx = pool.begin().await.unwrap();
    let id = first(seriatim::enqueue(&mut *tx, new("c")).await.unwrap());
    let again = seriatim::enqueue(&mut *tx, new("c")).await.unwrap();
    assert_eq!(again, Enqueued::Duplicate { id });
    tx.rollback().await.unwrap();
    first(put(pool, new("c")).await);
}

#[tokio::test]
async fn a_batch_enqueues_the_first_of_an_id_in_order() {
    let database = database().await;
    let pool = database.pool();
    let known = first(put(pool, new("known").group("other")).await);
    let batch = [
        new("known").group("h"),
        new("z"),
        job_of("q", "h", 1),
        new("a"),
        new("z"),
        job_of("q", "h", 2),
        new("known").group("h"),
        new("z"),
    ];
    let answers = seriatim::enqueue_many(pool, batch).await.unwrap();
    let duplicate: Vec<bool> = answers.iter().map(|answer| answer.is_duplicate()).collect();
    assert_eq!(duplicate, [true, false, false, false, true, false, true, true]);
    let ids: Vec<i64> = answers.iter().map(|answer| answer.id()).collect();
    assert_eq!((ids[0], ids[6]), (known, known));
    assert_eq!((ids[4], ids[7]), (ids[1], ids[1]));
    assert!([ids[1], ids[2], ids[3], ids[5]].is_sorted(), "{ids:?}");
    let flagged: Vec<i64> =
        sqlx::query_scalar("select id from seriatim.job where flagged and id > $1 order by id")
            .bind(known)
            .fetch_all(pool)
            .await
            .unwrap();
    assert_eq!(flagged, [ids[1], ids[2]], "the first of each group that was written");
}

/// An open transaction that has enqueued the id `a`, and another session.
async fn one_open(pool: &PgPool, url: &str) -> (PgConnection, Enqueued, PgConnection) {
    let mut one = PgConnection::connect(url).await.unwrap();
    one.execute("begin").await.unwrap();
    let enqueued = seriatim::enqueue(&mut one, new("a")).await.unwrap();
    eventually(pool, WAITING, 0_i64).await;
    (one, enqueued, PgConnection::connect(url).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_waits_for_an_open_transaction_with_its_id() {
    for (end, is_duplicate) in [("commit", true), ("rollback", false)] {
        let database = database().await;
        let pool = database.pool();
        let (mut one, enqueued, mut two) = one_open(pool, &database.url()).await;
        let second =
            tokio::spawn(async move { seriatim::enqueue(&mut two, new("a")).await.unwrap() });
        eventually(pool, WAITING, 1_i64).await;
        assert!(!second.is_finished());
        one.execute(end).await.unwrap();
        let second = second.await.unwrap();
        assert_eq!(second.is_duplicate(), is_duplicate, "{end}");
        assert_eq!(second.id() == enqueued.id(), is_duplicate, "{end}");
        assert_eq!(jobs(pool).await, 1);
        one.close().await.unwrap();
    }
}

#[tokio::test]
async fn an_enqueue_with_another_id_or_none_does_not_wait() {
    let database = database().await;
    let pool = database.pool();
    let (mut one, _, mut two) = one_open(pool, &database.url()).await;
    two.execute("set lock_timeout = '100ms'").await.unwrap();
    for level in ["read committed", "repeatable read", "serializable"] {
        let begin = format!("begin isolation level {level}");
        two.execute(AssertSqlSafe(begin)).await.unwrap();
        let of_another_queue = NewJob::new("r", &1).dedup_id("a");
        for new in [new("b"), job_of("q", "g", 1), of_another_queue] {
            let enqueued = seriatim::enqueue(&mut two, new).await.unwrap();
            assert!(!enqueued.is_duplicate());
        }
        two.execute("rollback").await.unwrap();
    }
    // The probe can fail: with the same id it waits.
    let refused = seriatim::enqueue(&mut two, new("a")).await.unwrap_err();
    assert!(chain(&refused).contains("lock timeout"), "{}", chain(&refused));
    one.execute("rollback").await.unwrap();
    one.close().await.unwrap();
    two.close().await.unwrap();
}

#[tokio::test]
async fn jobs_without_an_id_leave_no_trace_and_lock_no_row() {
    let database = database().await;
    let pool = database.pool();
    put(pool, new("a")).await;
    let mut lock = pool.begin().await.unwrap();
    lock.execute("select from seriatim.dedup for update").await.unwrap();
    let mut conn = database.connect().await.unwrap();
    conn.execute("set lock_timeout = '100ms'").await.unwrap();
    seriatim::enqueue(&mut conn, job_of("q", "g", 1)).await.expect("it does not wait");
    seriatim::enqueue_many(&mut conn, (0..9).map(|n| NewJob::new("q", &n))).await.unwrap();
    seriatim::enqueue(&mut conn, new("a")).await.expect_err("one with the id does");
    lock.rollback().await.unwrap();
    let ids: i64 = value(pool, "select count(*) from seriatim.dedup").await;
    assert_eq!(ids, 1);
    conn.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_with_the_same_ids_in_any_order_do_not_deadlock() {
    let database = database().await;
    let pool = database.pool();
    let by_group = QueueSettings::new("by group").dedup_scope(DedupScope::Group);
    Client::default().configure_queue(pool, by_group).await.unwrap();
    let produce = async |reverse: bool| {
        let mut written = 0;
        for round in 0..100 {
            let mut ids: Vec<u32> = (0..20).collect();
            if reverse {
                ids.reverse();
            }
            // In every other round they differ by their groups alone.
            let batch = ids.iter().map(|id| match round % 2 {
                0 => NewJob::new("q", id).dedup_id(format!("{round} {id}")),
                _ => NewJob::new("by group", id).group(id.to_string()).dedup_id(round.to_string()),
            });
            let answers = seriatim::enqueue_many(pool, batch).await.expect("no deadlock");
            written += answers.iter().filter(|answer| !answer.is_duplicate()).count();
        }
        written
    };
    let (one, two) = tokio::join!(produce(false), produce(true));
    assert_eq!(one + two, 2000);
    assert_eq!(jobs(pool).await, 2000);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_outlives_its_job_and_not_its_window() {
    let database = database().await;
    let pool = database.pool();
    let _running = started(
        processor(&database, 10)
            .await
            .queue(queue("q").keep_succeeded(Retention::Never), handler(async |_, data| Ok(data)))
            .maintenance_interval(Duration::from_millis(50)),
    )
    .await;
    let id = first(put(pool, new("a")).await);
    until_jobs(pool, "true", 0).await;
    assert_eq!(put(pool, new("a")).await, Enqueued::Duplicate { id });
    // The window is over, as far as the clock of the row goes; maintenance may come before the
    // enqueue or after it.
    by_hand(pool, "update seriatim.dedup set expires_at = now() - interval '1 s'").await;
    let second = first(put(pool, new("a")).await);
    assert_ne!(second, id);
    assert_eq!(put(pool, new("a")).await, Enqueued::Duplicate { id: second });
    by_hand(pool, "update seriatim.dedup set expires_at = now()").await;
    eventually(pool, "select count(*) from seriatim.dedup", 0_i64).await;
}

#[tokio::test]
async fn the_window_counts_from_the_first_enqueue() {
    let database = database().await;
    let pool = database.pool();
    let expires = "select extract(epoch from expires_at - now())::float8 from seriatim.dedup";
    first(put(pool, new("a")).await);
    let left: f64 = value(pool, expires).await;
    assert!((290.0..=300.5).contains(&left), "5 minutes unless configured: {left}");
    configure(pool, QueueSettings::new("q").dedup_window(Duration::from_hours(24))).await;
    assert!(put(pool, new("a")).await.is_duplicate());
    let same: f64 = value(pool, expires).await;
    assert!(same <= left, "a duplicate renews nothing: {same}");
    by_hand(pool, "update seriatim.dedup set expires_at = now()").await;
    // Without maintenance: the row is taken over.
    let second = first(put(pool, new("a")).await);
    let left: f64 = value(pool, expires).await;
    assert!((86_300.0..=86_400.5).contains(&left), "{left}");
    assert_eq!(put(pool, new("a")).await, Enqueued::Duplicate { id: second });
}

#[tokio::test]
async fn a_scope_of_groups_tells_them_apart() {
    let database = database().await;
    let pool = database.pool();
    configure(pool, QueueSettings::new("q").dedup_scope(DedupScope::Group)).await;
    let of = |group: &str| new("a").group(group);
    let ungrouped = || NewJob::new("q", &1).dedup_id("a");
    let batch = [of("g"), of("h"), of("g"), ungrouped(), ungrouped()];
    let answers = seriatim::enqueue_many(pool, batch).await.unwrap();
    let duplicate: Vec<bool> = answers.iter().map(|answer| answer.is_duplicate()).collect();
    assert_eq!(duplicate, [false, false, true, false, true]);
    assert_eq!(answers[2].id(), answers[0].id());
    assert_eq!(put(pool, of("h")).await, Enqueued::Duplicate { id: answers[1].id() });
}

#[tokio::test]
async fn content_is_an_id() {
    // It is written with b before a.
    #[derive(serde::Serialize)]
    struct Reversed {
        b: u8,
        a: u8,
    }
    let database = database().await;
    let pool = database.pool();
    let two = json!({ "a": 1, "b": 2 });
    let id = first(put(pool, NewJob::new("q", &two).dedup_by_content()).await);
    let same = NewJob::new("q", &Reversed { b: 2, a: 1 }).dedup_by_content();
    assert_eq!(put(pool, same).await, Enqueued::Duplicate { id });
    first(put(pool, NewJob::new("q", &json!({ "a": 1, "b": 3 })).dedup_by_content()).await);
    first(put(pool, NewJob::new("q", &two)).await);
    let bytes = |bytes: &[u8]| NewJob::bytes("q", "text/plain", bytes).dedup_by_content();
    let id = first(put(pool, bytes(b"\xff\x00")).await);
    assert_eq!(put(pool, bytes(b"\xff\x00")).await, Enqueued::Duplicate { id });
    first(put(pool, bytes(b"\xff")).await);
    let key = job(pool, id).await.dedup_id.unwrap();
    let expected: String = value(pool, r"select encode(sha256('\xff00'), 'hex')").await;
    assert_eq!(key, expected);

    configure(pool, QueueSettings::new("q").dedup_by_content(true)).await;
    let third = json!({ "a": 1, "b": 3 });
    assert!(put(pool, NewJob::new("q", &third)).await.is_duplicate());
    // The group is not content; an id of its own is.
    assert!(put(pool, job_of("q", "g", third.clone())).await.is_duplicate());
    first(put(pool, NewJob::new("q", &third).dedup_id("own")).await);
    let batch = ["x", "y", "x"].map(|data| NewJob::new("q", data));
    let answers = seriatim::enqueue_many(pool, batch).await.unwrap();
    assert_eq!(answers[2], Enqueued::Duplicate { id: answers[0].id() });
    first(answers[1]);
    first(put(pool, NewJob::new("another", &third)).await);
}

fn code(error: &seriatim::EnqueueError) -> Option<String> {
    let seriatim::EnqueueError::Database(source) = error else { panic!("{error:?}") };
    source.as_database_error().and_then(sqlx::error::DatabaseError::code).map(Into::into)
}

/// As documented: each of them waits for the other, and PostgreSQL ends one of them.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_cross_their_ids_deadlock() {
    let database = database().await;
    let (mut one, mut two) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    for (conn, id) in [(&mut one, "a"), (&mut two, "b")] {
        conn.execute("begin").await.unwrap();
        first(seriatim::enqueue(&mut *conn, new(id)).await.unwrap());
    }
    let crossed = async |conn: &mut PgConnection, id| {
        let enqueued = seriatim::enqueue(&mut *conn, new(id)).await;
        conn.execute(if enqueued.is_ok() { "commit" } else { "rollback" }).await.unwrap();
        enqueued
    };
    let (in_one, in_two) = tokio::join!(crossed(&mut one, "b"), crossed(&mut two, "a"));
    let (went, refused) = if in_one.is_ok() { (in_one, in_two) } else { (in_two, in_one) };
    first(went.unwrap());
    assert_eq!(code(&refused.unwrap_err()).as_deref(), Some("40P01"));
    assert_eq!(jobs(database.pool()).await, 2);
}

/// As documented: PostgreSQL cannot show such a transaction the row that it conflicts with.
#[tokio::test]
async fn an_old_snapshot_fails_only_for_an_id_committed_since() {
    let database = database().await;
    let pool = database.pool();
    let mut conn = database.connect().await.unwrap();
    for level in ["repeatable read", "serializable"] {
        let begin = format!("begin isolation level {level}; select 1");
        sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut conn).await.unwrap();
        put(pool, new(level)).await;
        first(seriatim::enqueue(&mut conn, new("other")).await.unwrap());
        first(seriatim::enqueue(&mut conn, job_of("q", "g", 1)).await.unwrap());
        let refused = seriatim::enqueue(&mut conn, new(level)).await.unwrap_err();
        assert_eq!(code(&refused).as_deref(), Some("40001"), "{level}: {}", chain(&refused));
        conn.execute("rollback").await.unwrap();
        // Begun anew, it is a duplicate.
        conn.execute(AssertSqlSafe(format!("begin isolation level {level}"))).await.unwrap();
        assert!(seriatim::enqueue(&mut conn, new(level)).await.unwrap().is_duplicate());
        conn.execute("rollback").await.unwrap();
    }
    conn.close().await.unwrap();
}
