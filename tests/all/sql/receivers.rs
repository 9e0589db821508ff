//! Receivers beside processors: the promises hold for them too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use seriatim::receive::{Receive, ReceiveError, Received};
use seriatim::{Client, JobError, JobStatus};
use sqlx::PgPool;

use crate::support::{
    AwakeInstant, Log, PATIENCE, STARTED, by_hand, database, drained, ended, enqueue, handler_with,
    job, jobs_where, processor, queue, serve, size, started, value,
};

async fn receive(pool: &PgPool, what: Receive) -> Vec<Received> {
    Client::default().receive(pool, what).await.unwrap()
}

/// Ends the visibility of whatever is claimed in the queue `q`.
async fn lapse(pool: &PgPool) {
    by_hand(
        pool,
        "update seriatim.queue_group set ready_at = clock_timestamp() - interval '1 s' where queue = 'q'",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_commits_with_the_callers_writes_or_not_at_all() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    by_hand(pool, "create table effect (n int)").await;
    let id = enqueue(pool, "q", "g", 1).await;
    let receipt = receive(pool, Receive::new("q")).await.remove(0).receipt;

    for commits in [false, true] {
        let mut tx = pool.begin().await.unwrap();
        sqlx::query("insert into effect values (1)").execute(&mut *tx).await.unwrap();
        client.ack_with(&mut *tx, &receipt, &"sent").await.unwrap();
        // A receiver skips the locked job, as others do. Another ack fails with `Busy` in the end.
        assert!(receive(pool, Receive::new("q")).await.is_empty());
        let error = client.ack(pool, &receipt).await.unwrap_err();
        assert!(matches!(error, ReceiveError::Busy { job } if job == id), "{error}");
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
            assert_eq!(job(pool, id).await.status, JobStatus::Started);
            assert!(receive(pool, Receive::new("q")).await.is_empty(), "still claimed");
        }
    }
    let job = job(pool, id).await;
    assert_eq!((job.status, job.result), (JobStatus::Succeeded, Some(json!("sent"))));
    assert_eq!(value::<i64>(pool, "select count(*) from effect").await, 1);
    let error = client.ack(pool, &receipt).await.unwrap_err();
    assert!(error.to_string().contains("undo what this attempt did"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_takes_a_lapsed_batch_over_in_order() {
    let database = database().await;
    let pool = database.pool();
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(enqueue(pool, "q", "g", n).await);
    }
    let batch = receive(pool, Receive::new("q").max(3).group("g")).await;
    assert_eq!(batch.len(), 3);
    Client::default().ack(pool, &batch[0].receipt).await.unwrap();
    lapse(pool).await;

    let ran = Log::default();
    let builder = processor(&database, 10).await;
    let running = started(builder.queue(
        queue("q"),
        handler_with(ran.clone(), async |ran, job, data| {
            ran.add(format!("{data} attempt {}", job.attempt()));
            Ok(json!(1))
        }),
    ))
    .await;
    ended(pool, ids[3]).await;
    assert_eq!(ran.entries(), ["1 attempt 2", "2 attempt 2", "3 attempt 1"]);
    let forgiven = "select array_agg(attempts_forgiven order by id) from seriatim.job";
    assert_eq!(value::<Vec<i32>>(pool, forgiven).await, [0, 0, 1, 0]);
    let error = Client::default().ack(pool, &batch[2].receipt).await.unwrap_err();
    assert!(matches!(error, ReceiveError::Stale { .. }), "{error}");
    running.shutdown(Duration::from_secs(10)).await;
}

/// Checks every run: the group's jobs before it are done, and no other job of the group runs.
#[derive(Clone, Default)]
struct Oracle(Arc<Mutex<Books>>);

#[derive(Default)]
struct Books {
    inside: HashMap<String, i64>,
    done: HashMap<String, i64>,
    violations: Vec<String>,
}

impl Oracle {
    fn enter(&self, group: &str, n: i64) {
        let mut books = self.0.lock().unwrap();
        let done = books.done.get(group).copied().unwrap_or(0);
        if done != n {
            books.violations.push(format!("{group}: {n} begins when {done} are done"));
        }
        if let Some(other) = books.inside.insert(group.to_owned(), n) {
            books.violations.push(format!("{group}: {n} beside {other}"));
        }
    }

    /// Before the commit: the next one may begin at once.
    fn leave(&self, group: &str, n: i64, done: bool) {
        let mut books = self.0.lock().unwrap();
        books.inside.remove(group);
        if done {
            books.done.insert(group.to_owned(), n + 1);
        }
    }

    fn violation(&self, what: String) {
        self.0.lock().unwrap().violations.push(what);
    }
}

/// Receives, and acks, nacks or dies, until the queue is drained.
async fn receiver(pool: PgPool, oracle: Oracle, seed: u64, total: i64) {
    let client = Client::default();
    let mut rng = fastrand::Rng::with_seed(seed);
    while jobs_where(&pool, "status = 'succeeded'").await < total {
        let jobs = receive(&pool, Receive::new("q").max(rng.u32(1..=6))).await;
        if jobs.is_empty() {
            // Nothing says when something is due.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut lost: Vec<String> = Vec::new();
        for job in jobs {
            let (group, n) = (job.group.clone().unwrap(), job.data.as_i64().unwrap());
            if lost.contains(&group) {
                continue;
            }
            match rng.u8(0..40) {
                0 => {
                    // Dies before the job: the visibility of what it has of the group is over.
                    client.extend(&pool, &job.receipt, Duration::ZERO).await.unwrap();
                    lost.push(group);
                }
                1..4 => {
                    oracle.enter(&group, n);
                    oracle.leave(&group, n, false);
                    client.nack(&pool, &job.receipt, Duration::from_millis(5)).await.unwrap();
                    lost.push(group);
                }
                _ => {
                    oracle.enter(&group, n);
                    tokio::time::sleep(Duration::from_millis(rng.u64(0..4))).await;
                    oracle.leave(&group, n, true);
                    if let Err(error) = client.ack(&pool, &job.receipt).await {
                        oracle.violation(format!("{group}: the ack of {n}: {error}"));
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_and_a_processor_keep_order_and_never_overlap() {
    const GROUPS: i64 = 8;
    const EACH: i64 = 40;
    let database = database().await;
    let pool = database.pool();
    let oracle = Oracle::default();

    let builder = processor(&database, 10).await;
    let running = started(builder.queue(
        queue("q").concurrency(2),
        handler_with(oracle.clone(), async |oracle, job, data| {
            let n = data.as_i64().unwrap();
            let group = job.group().unwrap().to_owned();
            oracle.enter(&group, n);
            tokio::time::sleep(Duration::from_millis(2)).await;
            let fails = fastrand::u8(0..20) == 0;
            oracle.leave(&group, n, !fails);
            if fails { Err(JobError::retry("no luck")) } else { Ok(json!(n)) }
        }),
    ))
    .await;
    let receivers: Vec<_> = (0..4)
        .map(|seed| tokio::spawn(receiver(pool.clone(), oracle.clone(), seed, GROUPS * EACH)))
        .collect();
    for n in 0..EACH {
        for group in 0..GROUPS {
            let sql = format!(
                "select id from seriatim.enqueue('q', '{n}', 'g{group}', max_attempts => 1000)"
            );
            value::<i64>(pool, sql).await;
        }
    }
    for receiver in receivers {
        receiver.await.unwrap();
    }
    drained(pool, "q").await;
    running.shutdown(Duration::from_secs(10)).await;
    let books = std::mem::take(&mut *oracle.0.lock().unwrap());
    assert_eq!(books.violations, [""; 0]);
    assert!(books.done.values().all(|done| *done == EACH), "{:?}", books.done);
    let received = "select count(*) from seriatim.job where result is null";
    let received: i64 = value(pool, received).await;
    assert!(received > 0 && received < GROUPS * EACH, "{received} received: one side did nothing");
}

/// The locks of a handler's transaction keep no receive in it from its own job.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_receives_from_other_queues_only() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    for name in ["q", "other"] {
        enqueue(pool, name, "g", 1).await;
    }
    let run = handler_with(log.clone(), async |log, job, data| {
        let client = Client::default();
        let tx = job.tx().await.map_err(JobError::retry)?;
        let mut savepoint = sqlx::Connection::begin(&mut *tx).await.map_err(JobError::retry)?;
        let own = client.receive(&mut *savepoint, Receive::new("q")).await;
        savepoint.rollback().await.map_err(JobError::retry)?;
        let other = client.receive(&mut *tx, Receive::new("other")).await;
        log.add(format!(
            "{:?} {:?}",
            own.map_err(|error| error.to_string()),
            other.map(|jobs| jobs.len())
        ));
        Ok(data)
    });
    let running = serve(&database, 10, queue("q"), run).await;
    let said = log.wait_for(1).await;
    assert!(said[0].contains("this transaction holds a job of queue q"), "{said:?}");
    assert!(said[0].ends_with("Ok(1)"), "{said:?}");
    running.shutdown(Duration::from_secs(5)).await;
}

/// A thousand receipts must not wait half a second each.
#[tokio::test(flavor = "multi_thread")]
async fn many_receipts_wait_once_for_another_transaction() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    for group in 0..6 {
        enqueue(pool, "q", &group.to_string(), 1).await;
    }
    let received = receive(pool, Receive::new("q").max(6)).await;
    let receipts: Vec<_> = received.iter().map(|job| job.receipt).collect();
    let mut open = pool.begin().await.unwrap();
    for receipt in &receipts[..5] {
        client.ack(&mut *open, receipt).await.unwrap();
    }
    let begun = AwakeInstant::now();
    let answers = client.ack_many(pool, &receipts).await.unwrap();
    let took = begun.elapsed();
    let busy = answers.iter().filter(|of| matches!(of, Err(ReceiveError::Busy { .. }))).count();
    assert_eq!((busy, answers.last().unwrap().is_ok()), (5, true), "{answers:?}");
    assert!(took < Duration::from_millis(1500), "five times half a second: {took:?}");
    open.commit().await.unwrap();
}

/// Several acks of one transaction leave rows of their groups. They are no work.
#[tokio::test(flavor = "multi_thread")]
async fn drained_groups_are_not_due() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    for group in ["a", "b", "c"] {
        enqueue(pool, "q", group, 1).await;
    }
    let received = receive(pool, Receive::new("q").max(3)).await;
    // Only the first ack of a transaction deletes its group's row.
    let mut tx = pool.begin().await.unwrap();
    for job in &received {
        client.ack(&mut *tx, &job.receipt).await.unwrap();
    }
    tx.commit().await.unwrap();
    let rows: i64 = value(pool, "select count(*) from seriatim.queue_group").await;
    assert!(rows > 0, "this is of no use");
    assert_eq!(client.queues(pool).await.unwrap()[0].oldest_due, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_requests_are_received_for_and_share_no_group() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    for group in ["a", "b", "c", "d"] {
        for n in 0..4 {
            enqueue(pool, "q", group, n).await;
        }
    }
    let what = Receive::new("q").max(5).together(true).requests(3);
    let received = receive(pool, what.clone()).await;
    let groups: String = received.iter().map(|job| job.group.as_deref().unwrap()).collect();
    // A job stays if it would begin an answer behind others of its group.
    assert_eq!(groups, "aaaabccccd");
    for (job, n) in received.iter().zip([0, 1, 2, 3, 0, 0, 1, 2, 3, 0]) {
        assert_eq!((&job.data, job.attempt), (&json!(n), 1));
    }
    let started = jobs_where(pool, STARTED).await;
    let untouched =
        jobs_where(pool, &format!("not {STARTED} and status = 'queued' and attempts = 0")).await;
    assert_eq!((started, untouched), (10, 6));
    assert!(receive(pool, what.clone()).await.is_empty(), "their groups are taken");
    let receipts: Vec<_> = received.iter().map(|job| job.receipt).collect();
    assert!(client.ack_many(pool, &receipts).await.unwrap().iter().all(Result::is_ok));
    let rest = receive(pool, what).await;
    let rest: Vec<_> =
        rest.iter().map(|job| format!("{}{}", job.group.as_deref().unwrap(), job.data)).collect();
    assert_eq!(rest, ["b1", "b2", "b3", "d1", "d2"]);

    // One each: a second job of a group is not claimed in vain.
    for group in ["e", "f", "g", "h", "i"] {
        enqueue(pool, "q", group, 0).await;
        enqueue(pool, "q", group, 1).await;
    }
    let one_each = receive(pool, Receive::new("q").together(true).requests(5)).await;
    let groups: String = one_each.iter().map(|job| job.group.as_deref().unwrap()).collect();
    assert_eq!(groups, "efghi");

    for (what, why) in [
        (Receive::new("q").requests(0), "from 1 to 1000"),
        (Receive::new("q").max(300).requests(4), "from 1 to 3"),
        (Receive::new("q").requests(u32::MAX), "from 1 to 1000"),
        (Receive::new("q").requests(2).group("a"), "a group or an attempt id is given"),
        (Receive::new("q").requests(2).attempt_id("x"), "a group or an attempt id is given"),
    ] {
        let error = client.receive(pool, what).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_of_before_and_a_repeated_one_are_stale_beside_those_that_count() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    by_hand(pool, "select seriatim.configure_queue('q', '{\"strict_visibility\": true}')").await;
    enqueue(pool, "q", "a", 1).await;
    enqueue(pool, "q", "b", 1).await;
    let both = Receive::new("q").max(2);
    let before = receive(pool, both.clone().visibility(Duration::ZERO)).await;
    let now = receive(pool, both).await;
    let receipts = [&before[0], &now[0], &now[1], &now[1]].map(|job| job.receipt);
    assert_eq!((before[0].id, before.len(), now.len()), (now[0].id, 2, 2));
    let answers = client.ack_many(pool, &receipts).await.unwrap();
    let done: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(done, [false, true, true, false], "{answers:?}");
}

/// The server's lock table is the application's as well: 6,400 locks by default.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_with_many_new_groups_leaves_the_servers_lock_table_alone() {
    // More groups than it has locks by default, and some for the other receivers.
    let (many, all): (i64, i64) = size((8_000, 10_000), (20_000, 24_000));
    let database = database().await;
    let pool = database.pool();
    let fill = format!(
        "insert into seriatim.job (queue, group_id, data, flagged) \
         select 'q', 'g' || n, '1', true from generate_series(1, {all}) n; analyze"
    );
    by_hand(pool, fill).await;
    let mut open = pool.begin().await.unwrap();
    let mut received = 0;
    while received < many {
        let receive = "select count(*) from seriatim.receive('q', 1000)";
        let more: i64 = sqlx::query_scalar(receive).fetch_one(&mut *open).await.unwrap();
        assert!(more > 0, "after {received}");
        received += more;
    }
    let locks = "select count(*) from pg_locks where pid = pg_backend_pid()";
    let locks: i64 = sqlx::query_scalar(locks).fetch_one(&mut *open).await.unwrap();
    assert!(locks < 200, "{locks} locks for {received} groups");

    let tables =
        (0..40).map(|n| format!("create table public.of_host_{n} (id integer primary key)"));
    by_hand(pool, tables.collect::<Vec<_>>().join(";")).await;
    // A new group shares its lock with few others: these are for the other receivers, which have to
    // read past the locked ones.
    let (mut others, left) = (0, all - received);
    for _ in 0..500 {
        others += value::<i64>(pool, "select count(*) from seriatim.receive('q', 1000)").await;
        if others > left / 2 {
            break;
        }
    }
    assert!(others > left / 2 && others < left, "{others} of {left}");
    open.rollback().await.unwrap();
    // Receives that had read past them come back to them.
    let deadline = Instant::now() + 3 * PATIENCE;
    while others < all {
        others += value::<i64>(pool, "select count(*) from seriatim.receive('q', 1000)").await;
        assert!(Instant::now() < deadline, "{others} of {all}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_with_spaces_are_groups_of_their_own() {
    let database = database().await;
    let pool = database.pool();
    for (queue, group) in [("a", "x y"), ("a x", "y")] {
        enqueue(pool, queue, group, 1).await;
    }
    let mut open = pool.begin().await.unwrap();
    sqlx::query("select from seriatim.receive('a', 1)").execute(&mut *open).await.unwrap();
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.receive('a x', 1)").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_came_without_its_rows_says_so() {
    let database = database().await;
    let pool = database.pool();
    enqueue(pool, "q", "g", 1).await;
    by_hand(pool, "delete from seriatim.adoption_lock").await;
    let receive = sqlx::query("select from seriatim.receive('q')").execute(pool).await;
    let error = receive.unwrap_err().to_string();
    assert!(error.contains("the table adoption_lock is empty"), "{error}");
    by_hand(pool, "insert into seriatim.adoption_lock select generate_series(0, 65535)").await;
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.receive('q')").await, 1);
}
