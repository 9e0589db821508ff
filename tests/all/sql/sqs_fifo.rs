//! Behaviour that users of SQS FIFO rely on, where no other file shows it: see docs/sqs-fifo.md.

use std::time::Duration;

use serde_json::json;
use seriatim::admin::{Cancelled, DedupScope, QueueSettings};
use seriatim::explain::Reason;
use seriatim::receive::{Receive, ReceiveError, Received};
use seriatim::testing::TestDatabase;
use seriatim::{Client, JobStatus, NewJob, Retention};
use sqlx::PgPool;

use crate::support::{
    by_hand, database, drained, enqueue, handler, job, job_of, jobs_where, processor, queue, serve,
    started, until_jobs, value,
};

fn client() -> Client {
    Client::default()
}

async fn receive(pool: &PgPool, what: Receive) -> Vec<Received> {
    client().receive(pool, what).await.unwrap()
}

/// Ends the visibility of what is claimed.
async fn lapse(pool: &PgPool) {
    let past = "clock_timestamp() - interval '1 s'";
    by_hand(pool, format!("update seriatim.queue_group set ready_at = {past}")).await;
}

/// Runs what is in the queue `q` to its end.
async fn work_off(database: &TestDatabase) {
    let options = queue("q");
    let run = handler(async |_, data| Ok(data));
    let _running = serve(database, 10, options, run).await;
    drained(database.pool(), "q").await;
}

#[tokio::test]
async fn ids_are_sequence_numbers_of_64_bits_that_ascend_with_gaps() {
    let database = database().await;
    let pool = database.pool();
    let mut ids = vec![enqueue(pool, "q", "g", 0).await];
    let far = i64::MAX - 1_000;
    by_hand(pool, format!("alter sequence seriatim.job_id_seq restart with {far}")).await;
    ids.push(enqueue(pool, "q", "g", 1).await);
    let mut tx = pool.begin().await.unwrap();
    seriatim::enqueue(&mut *tx, job_of("q", "g", "undone")).await.unwrap();
    tx.rollback().await.unwrap();
    ids.push(enqueue(pool, "q", "g", 2).await);
    let sql = "select id from seriatim.enqueue('q', '3', 'g')";
    ids.push(value(pool, sql).await);
    assert!(ids.is_sorted() && ids[1] >= far && ids[2] > ids[1] + 1, "{ids:?}");

    let mut received = receive(pool, Receive::new("q").max(4)).await;
    let came: Vec<i64> = received.iter().map(|job| job.id).collect();
    assert_eq!(came, ids);
    client().ack(pool, &received.remove(3).receipt).await.unwrap();
    assert_eq!(job(pool, ids[3]).await.status, JobStatus::Succeeded);
}

#[tokio::test]
async fn a_deduplication_id_is_the_same_through_sql_and_the_library() {
    let database = database().await;
    let pool = database.pool();
    let by_sql = async |data: &str, group: &str, id: &str| -> (i64, bool) {
        let sql = format!(
            "select id, duplicate from seriatim.enqueue('q', '{data}', {group}, dedup_id => {id})"
        );
        sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_one(pool).await.unwrap()
    };
    let put = async |new: NewJob| seriatim::enqueue(pool, new).await.unwrap();
    for scope in [DedupScope::Queue, DedupScope::Group] {
        let settings = QueueSettings::new("q").dedup_scope(scope).dedup_by_content(true);
        client().configure_queue(pool, settings).await.unwrap();
        let name = scope.as_str();
        for group in [Some("g"), None] {
            let of = |new: NewJob| match group {
                Some(group) => new.group(group),
                None => new,
            };
            let literal = group.map_or(String::from("null"), |group| format!("'{group}'"));
            let mark = format!("{name} {group:?}");

            // By its own id: the library first, then SQL first.
            let first = put(of(NewJob::new("q", &mark)).dedup_id(format!("a {mark}"))).await;
            let second = by_sql("0", &literal, &format!("'a {mark}'")).await;
            assert_eq!(second, (first.id(), true), "{mark}");
            let (first, duplicate) = by_sql("1", &literal, &format!("'b {mark}'")).await;
            assert!(!duplicate, "{mark}");
            let second = put(of(NewJob::new("q", &2)).dedup_id(format!("b {mark}"))).await;
            assert_eq!((second.id(), second.is_duplicate()), (first, true), "{mark}");

            // By its content, written in another order.
            let first = put(of(NewJob::new("q", &json!({ "at": mark, "n": 1 })))).await;
            assert!(!first.is_duplicate(), "{mark}");
            let data = json!({ "n": 1, "at": mark }).to_string();
            assert_eq!(by_sql(&data, &literal, "null").await, (first.id(), true), "{mark}");
        }
    }
    // The longest of everything still fits.
    let wide = "(select string_agg(chr(66560 + (i * 7919) % 524288), '') from generate_series(1, ";
    let sql = format!(
        "insert into seriatim.queue (name, dedup_scope) select {wide}200) i), 'group';
         select seriatim.enqueue({wide}200) i), '1', {wide}400) i), dedup_id => {wide}128) i))"
    );
    by_hand(pool, sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_out_of_range_is_refused_and_the_queue_goes_on() {
    let database = database().await;
    let pool = database.pool();
    for time in ["infinity", "-infinity", "290000-01-01", "0044-03-15 BC"] {
        for field in ["expires_at", "run_at"] {
            let sql = format!("select seriatim.enqueue('q', '1', 'g', {field} => '{time}')");
            let error = sqlx::query(sqlx::AssertSqlSafe(sql)).execute(pool).await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(field) && text.contains("in the years 1 to 9999"), "{text}");
        }
    }
    assert_eq!(jobs_where(pool, "true").await, 0);
    let sql = "select seriatim.enqueue('q', '1', 'g', expires_at => '9999-12-31')";
    by_hand(pool, sql).await;
    work_off(&database).await;
    assert_eq!(client().counts(pool, "q").await.unwrap().succeeded, 1);
}

#[tokio::test]
async fn visibility_can_be_renewed_for_longer_than_twelve_hours() {
    let database = database().await;
    let pool = database.pool();
    enqueue(pool, "q", "g", 1).await;
    let received = receive(pool, Receive::new("q")).await.remove(0);
    let ago = "update seriatim.queue_group set started_at = now() - interval '13 h'";
    by_hand(pool, ago).await;
    let half_a_day = Duration::from_hours(12);
    client().extend(pool, &received.receipt, half_a_day).await.unwrap();
    let left =
        "select extract(epoch from ready_at - clock_timestamp())::float8 from seriatim.queue_group";
    let left: f64 = value(pool, left).await;
    assert!((43_100.0..=43_200.0).contains(&left), "{left}");
    let more = half_a_day + Duration::from_secs(1);
    let error = client().extend(pool, &received.receipt, more).await.unwrap_err();
    assert!(matches!(error, ReceiveError::Refused { .. }), "{error}");
    client().ack(pool, &received.receipt).await.unwrap();
}

#[tokio::test]
async fn jobs_received_together_have_one_visibility() {
    let database = database().await;
    let pool = database.pool();
    for n in 0..3 {
        enqueue(pool, "q", "g", n).await;
    }
    let batch = receive(pool, Receive::new("q").max(3)).await;
    for job in &batch {
        let seen = client().explain_job(pool, job.id).await.unwrap().unwrap();
        let Reason::Claimed { attempt, lease_until, .. } = &seen.reason else { panic!("{seen}") };
        assert_eq!((attempt.attempt, *lease_until), (1, job.visible_until));
        assert!(seen.to_string().contains("by a worker or a receiver"), "{seen}");
    }
    // The last one's extension keeps them all.
    lapse(pool).await;
    client().extend(pool, &batch[2].receipt, Duration::from_mins(5)).await.unwrap();
    let until: bool = value(
        pool,
        "select ready_at > clock_timestamp() + interval '4 min' from seriatim.queue_group",
    )
    .await;
    assert!(until);
    for job in &batch {
        client().ack(pool, &job.receipt).await.unwrap();
    }
}

#[tokio::test]
async fn a_late_ack_counts_while_the_job_is_not_taken_over() {
    let database = database().await;
    let pool = database.pool();
    for group in ["late", "too late"] {
        enqueue(pool, "q", group, 1).await;
        let received = receive(pool, Receive::new("q")).await.remove(0);
        // Its time is over, and a receiver has seen that.
        lapse(pool).await;
        assert!(receive(pool, Receive::new("q")).await.is_empty());
        if group == "late" {
            client().ack(pool, &received.receipt).await.unwrap();
            continue;
        }
        lapse(pool).await;
        let again = receive(pool, Receive::new("q")).await.remove(0);
        assert_eq!((again.id, again.attempt), (received.id, 2));
        let error = client().ack(pool, &received.receipt).await.unwrap_err();
        assert!(matches!(error, ReceiveError::Stale { job } if job == received.id), "{error}");
        client().ack(pool, &again.receipt).await.unwrap();
    }
}

#[tokio::test]
async fn several_acks_are_one_commit_and_a_stale_one_says_so_alone() {
    let database = database().await;
    let pool = database.pool();
    for n in 0..4 {
        enqueue(pool, "q", &format!("g{n}"), n).await;
    }
    let received = receive(pool, Receive::new("q").max(4)).await;
    client().nack(pool, &received[1].receipt, Duration::from_mins(1)).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    for (n, job) in received.iter().enumerate() {
        let acked = client().ack(&mut *tx, &job.receipt).await;
        assert_eq!(acked.is_err(), n == 1, "{acked:?}");
    }
    let succeeded = async || client().counts(pool, "q").await.unwrap().succeeded;
    assert_eq!(succeeded().await, 0);
    tx.commit().await.unwrap();
    assert_eq!(succeeded().await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_is_kept_however_old_it_is() {
    let database = database().await;
    let pool = database.pool();
    let hour = Duration::from_hours(1);
    let jobs = [job_of("q", "g", 1).delay(hour), NewJob::new("q", &1).delay(hour)];
    seriatim::enqueue_many(pool, jobs).await.unwrap();
    by_hand(
        pool,
        "update seriatim.job set created_at = now() - interval '900 days';
         insert into seriatim.job (queue, status, data, finished_at)
         select 'q', s::seriatim.job_status, '1', now() from unnest(array['succeeded', 'failed', 'cancelled']) s",
    )
    .await;
    let options = queue("q")
        .keep_succeeded(Retention::Never)
        .keep_failed(Retention::Never)
        .keep_cancelled(Retention::Never);
    let run = handler(async |_, data| Ok(data));
    let builder = processor(&database, 4).await.maintenance_interval(Duration::from_millis(20));
    let _running = started(builder.queue(options, run)).await;
    until_jobs(pool, "finished_at is not null", 0).await;
    assert_eq!(jobs_where(pool, "true").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_queues_delay_leaves_enqueued_jobs_alone() {
    let database = database().await;
    let pool = database.pool();
    let delay = async |delay: Option<Duration>| {
        client().configure_queue(pool, QueueSettings::new("q").delay(delay)).await.unwrap();
    };
    delay(Some(Duration::from_hours(1))).await;
    enqueue(pool, "q", "before", 1).await;
    delay(None).await;
    enqueue(pool, "q", "after", 2).await;
    let received = receive(pool, Receive::new("q").max(10)).await;
    let groups: Vec<_> = received.iter().map(|job| job.group.as_deref()).collect();
    assert_eq!(groups, [Some("after")]);
}

#[tokio::test]
async fn a_limit_of_jobs_in_flight_counts_each_job_of_a_batch() {
    let database = database().await;
    let pool = database.pool();
    client().configure_queue(pool, QueueSettings::new("q").in_flight_limit(3)).await.unwrap();
    for n in 0..5 {
        enqueue(pool, "q", "g", n).await;
    }
    enqueue(pool, "q", "h", 5).await;
    let batch = receive(pool, Receive::new("q").group("g").max(10)).await;
    assert_eq!(batch.len(), 3);
    assert!(receive(pool, Receive::new("q").max(10)).await.is_empty());
    let why = client().explain_group(pool, "q", "h").await.unwrap();
    assert!(matches!(why.reason, Reason::AtLimit { in_flight: 3, limit: 3 }), "{why}");
    client().ack(pool, &batch[1].receipt).await.unwrap();
    let other = receive(pool, Receive::new("q").max(10)).await;
    assert_eq!(other.iter().filter_map(|job| job.group.as_deref()).collect::<Vec<_>>(), ["h"]);
}

#[tokio::test]
async fn a_repeated_receive_gets_nothing_beside_the_first_then_same() {
    let database = database().await;
    let pool = database.pool();
    for group in ["g", "h"] {
        enqueue(pool, "q", group, 1).await;
    }
    let what = || Receive::new("q").attempt_id("x");
    let mut first = pool.begin().await.unwrap();
    let received = client().receive(&mut *first, what()).await.unwrap();
    assert_eq!(received.len(), 1);
    assert!(receive(pool, what()).await.is_empty());
    first.commit().await.unwrap();
    let again = receive(pool, what()).await;
    assert_eq!((again.len(), again[0].receipt), (1, received[0].receipt));
}

#[tokio::test]
async fn a_receiver_is_not_told_of_a_cancel_and_its_ack_counts() {
    let database = database().await;
    let pool = database.pool();
    for (acks, status) in [(true, JobStatus::Succeeded), (false, JobStatus::Cancelled)] {
        let id = enqueue(pool, "q", "g", 1).await;
        let received = receive(pool, Receive::new("q")).await.remove(0);
        assert_eq!(client().cancel(pool, id).await.unwrap(), Cancelled::Requested);
        if acks {
            client().ack(pool, &received.receipt).await.unwrap();
        } else {
            client().nack(pool, &received.receipt, Duration::ZERO).await.unwrap();
        }
        assert_eq!(job(pool, id).await.status, status);
    }
}
