//! Jobs that were enqueued to the wrong queue, moved to the right one.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::{MoveTaskStatus, Moved, NewMoveTask, QueueSettings};
use seriatim::receive::Receive;
use seriatim::{Client, ControlError, JobStatus, NewJob, Processor};

use crate::support::{
    Log, by_hand, database, drained, enqueue, handler_with, job, nothing_remains, operator, queue,
    started, value,
};

const HOSTILE: [&str; 5] = ["'; drop table job; --", "\"", "\u{202e}evil", "👩‍👩‍👧", "%s {move}"];

fn pairs(moved: &Moved) -> Vec<(i64, i64)> {
    moved.jobs.iter().map(|moved| (moved.job, moved.new_job)).collect()
}

/// Whatever their order in the call, they run in that of their enqueue, behind what is there.
#[tokio::test(flavor = "multi_thread")]
async fn moved_jobs_run_in_their_order_at_the_end_of_their_groups() {
    let db = database().await;
    let (pool, ann) = (db.pool(), Client::default().operator("ann", "mistyped"));
    let mut ids = Vec::new();
    enqueue(pool, "orders", HOSTILE[0], json!(["there", HOSTILE[0]])).await;
    for n in 0..3 {
        for group in HOSTILE {
            ids.push(enqueue(pool, "ordres", group, json!([n, group])).await);
        }
    }
    ids.push(
        ann.client().enqueue(pool, NewJob::new("ordres", &json!([9, ""]))).await.unwrap().id(),
    );
    let mixed: Vec<i64> = ids.iter().rev().chain(&ids).copied().collect();
    let moved = ann.move_jobs(pool, &mixed, "orders").await.unwrap();
    assert_eq!((moved.groups, moved.duplicates, moved.left_behind), (5, 0, 0));
    let moved = pairs(&moved);
    assert_eq!(moved.iter().map(|moved| moved.0).collect::<Vec<_>>(), ids);
    assert!(moved.is_sorted_by_key(|moved| moved.1), "{moved:?}");

    let old = job(pool, ids[0]).await;
    assert_eq!(old.status, JobStatus::Cancelled);
    let message = old.error.unwrap().message;
    assert_eq!(message, format!("moved to queue \"orders\" as job {}", moved[0].1));
    let advice = ann.client().explain_job(pool, ids[0]).await.unwrap().unwrap().advice().unwrap();
    assert!(advice.contains("would do its work twice"), "{advice}");
    // A retry would run it twice.
    let error = ann.retry(pool, ids[0]).await.unwrap_err();
    let words =
        format!("job {} was moved to queue \"orders\" as job {1}: retry {1}", ids[0], moved[0].1);
    assert_eq!(error.to_string(), words);
    let operation = &ann.client().operations(pool, None, 1).await.unwrap()[0];
    assert_eq!((&*operation.action, operation.affected), ("move", 16));
    assert_eq!(operation.reason.as_deref(), Some("mistyped (to queue \"orders\")"));

    let log = Log::default();
    let run = || {
        handler_with(log.clone(), async |log, _, data: Value| {
            log.add(data.to_string());
            Ok(data)
        })
    };
    let builder = Processor::builder(pool.clone()).queue(queue("orders"), run());
    // It retires the groups of the mistyped queue.
    let running = started(builder.queue(queue("ordres"), run())).await;
    drained(pool, "orders").await;
    drained(pool, "ordres").await;
    running.shutdown(Duration::from_secs(5)).await;
    let ran: Vec<Value> =
        log.entries().iter().map(|entry| serde_json::from_str(entry).unwrap()).collect();
    assert_eq!(ran.len(), 17, "none runs twice: {ran:?}");
    for (n, group) in HOSTILE.iter().enumerate() {
        let of_group: Vec<_> =
            ran.iter().filter(|run| run[1] == *group).map(|run| &run[0]).collect();
        let there = if n == 0 { vec![json!("there")] } else { vec![] };
        let expected: Vec<_> = there.into_iter().chain([json!(0), json!(1), json!(2)]).collect();
        assert_eq!(of_group, expected.iter().collect::<Vec<_>>(), "{group}");
    }
    nothing_remains(pool).await;
}

#[tokio::test]
async fn a_moved_job_keeps_what_its_producer_gave_it() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let new = NewJob::bytes("ordres", "text/plain", vec![0, 255])
        .group("g")
        .name("order")
        .reference("shop-7")
        .header("tenant", "7")
        .priority(3)
        .delay(Duration::from_hours(1))
        .time_to_live(Duration::from_hours(2))
        .max_attempts(4)
        .timeout(Duration::from_secs(7))
        .lease(Duration::from_secs(40))
        .dedup_id("once");
    let id = client.enqueue(pool, new).await.unwrap().id();
    by_hand(pool, "update seriatim.job set attempts = 1, created_at = created_at - interval '1 h'")
        .await;
    // A rollback leaves all as it was.
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(operator().move_jobs(&mut *tx, &[id], "orders").await.unwrap().jobs.len(), 1);
    tx.rollback().await.unwrap();
    let old = job(pool, id).await;
    assert_eq!(old.status, JobStatus::Queued);

    let moved = operator().move_jobs(pool, &[id], "orders").await.unwrap();
    let new = job(pool, moved.jobs[0].new_job).await;
    let mut expected = old;
    (expected.id, expected.queue, expected.attempts) = (new.id, "orders".to_owned(), 0);
    assert_eq!(new, expected);
    let timeout: i64 =
        value(pool, format!("select timeout_ms from seriatim.job where id = {}", new.id)).await;
    assert_eq!(timeout, 7_000);
    // Its deduplication id counts in the new queue.
    let again = client.enqueue(pool, NewJob::new("orders", &1).group("g").dedup_id("once"));
    assert_eq!(again.await.unwrap().id(), new.id);
}

#[tokio::test]
async fn what_cannot_be_moved_stays_and_is_counted() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let once = |queue: &str| NewJob::new(queue, &1).group("g").dedup_id("once");
    client.enqueue(pool, once("orders")).await.unwrap();
    let duplicate = client.enqueue(pool, once("ordres")).await.unwrap().id();
    let running = enqueue(pool, "ordres", "run", 1).await;
    let behind = enqueue(pool, "ordres", "run", 2).await;
    client.receive(pool, Receive::new("ordres").group("run")).await.unwrap();
    let there = enqueue(pool, "orders", "g", 1).await;
    let locked = enqueue(pool, "ordres", "locked", 1).await;
    let mut other = pool.begin().await.unwrap();
    let lock = format!("select 1 from seriatim.job where id = {locked} for update");
    sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut *other).await.unwrap();

    let all = [duplicate, running, behind, there, locked, 4_711];
    let moved = operator().move_jobs(pool, &all, "orders").await.unwrap();
    assert_eq!((moved.jobs.len(), moved.jobs[0].job), (1, behind));
    assert_eq!((moved.groups, moved.duplicates, moved.left_behind), (1, 1, 1));
    assert_eq!(job(pool, duplicate).await.status, JobStatus::Queued);
    assert_eq!(job(pool, running).await.status, JobStatus::Started);
    other.rollback().await.unwrap();
    let refused = operator().move_jobs(pool, &all, "").await.unwrap_err();
    assert!(matches!(refused, ControlError::Name(_)), "{refused}");
}

#[tokio::test]
async fn a_queue_is_moved_group_by_group_by_tasks_with_limits() {
    let db = database().await;
    let (pool, client, ann) = (db.pool(), Client::default(), operator());
    for n in 0..3 {
        for group in ["a", "b"] {
            enqueue(pool, "ordres", group, n).await;
        }
        client.enqueue(pool, NewJob::new("ordres", &n)).await.unwrap();
    }
    let to_orders = || NewMoveTask::new("ordres").to("orders");
    let run = async |task: NewMoveTask, begins: &str| {
        let id = ann.start_move_task(pool, &task).await.unwrap();
        client.run_move_tasks(pool).await.unwrap();
        let task = client.move_tasks(pool, Some("ordres")).await.unwrap().remove(0);
        assert_eq!((task.id, task.status), (id, MoveTaskStatus::Completed), "{task:?}");
        assert_eq!(task.moved, task.to_move.count, "{task:?}");
        assert!(task.to_string().starts_with(begins), "{task}");
        let there = "select array_agg(id order by id) from seriatim.job where queue = 'orders'";
        value::<Vec<i64>>(pool, there).await
    };
    let of_b =
        run(to_orders().group("b").limit(2), "2 jobs of group \"b\" of queue \"ordres\" move");
    assert_eq!(of_b.await, [2, 5]);
    assert_eq!(run(to_orders().limit(4), "4 jobs of queue").await, [1, 2, 4, 5, 7, 8]);
    assert_eq!(run(to_orders().group("b"), "0 jobs of group").await.len(), 6);
    assert_eq!(run(to_orders(), "3 jobs of queue").await, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for (task, setting) in [
        (to_orders().limit(0), "limit is 0, it must"),
        (to_orders().limit(u32::MAX), "limit is 4294967295, it must"),
        (to_orders().group(""), "group"),
    ] {
        let refused = ann.start_move_task(pool, &task).await.unwrap_err().to_string();
        assert!(refused.contains(setting), "{refused}");
    }
}

#[tokio::test]
async fn dead_letters_of_one_group_are_moved_back() {
    let db = database().await;
    let (pool, client, ann) = (db.pool(), Client::default(), operator());
    let settings = QueueSettings::new("orders").dead_letter_queue(String::from("dead"));
    client.configure_queue(pool, settings.max_attempts(1)).await.unwrap();
    for group in ["a", "b", "a"] {
        enqueue(pool, "orders", group, 1).await;
        let received = client.receive(pool, Receive::new("orders")).await.unwrap();
        client.nack(pool, &received[0].receipt, None).await.unwrap();
    }
    let task = NewMoveTask::new("dead").group("a").limit(1);
    ann.start_move_task(pool, &task).await.unwrap();
    assert_eq!(client.run_move_tasks(pool).await.unwrap(), 1);
    assert_eq!(client.run_move_tasks(pool).await.unwrap(), 0);
    let queues = "select array_agg(queue order by id) from seriatim.job";
    assert_eq!(value::<Vec<String>>(pool, queues).await, ["orders", "dead", "dead"]);
    let log = "select concat_ws(' ', action, queue, group_id) from seriatim.operation";
    assert_eq!(value::<String>(pool, log).await, "start_move_task dead a");
}

/// A client may allow more than SQL does, and the database writes JSON with spaces.
#[tokio::test]
async fn no_verb_refuses_the_size_that_an_enqueue_accepted() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default().data_limit(4 << 20);
    let large = Value::from("x".repeat(2 << 20));
    let spaced = Value::from(vec![1; 400_000]);
    let header = "h".repeat(4_000);
    let mut ids = Vec::new();
    for data in [&large, &spaced] {
        let new = NewJob::new("ordres", data).group("g").header("note", &*header);
        ids.push(client.enqueue(pool, new).await.unwrap().id());
    }
    let bytes = NewJob::bytes("ordres", "text/plain", vec![7; 2 << 20]).group("g");
    ids.push(client.enqueue(pool, bytes).await.unwrap().id());
    let moved = operator().move_jobs(pool, &ids, "orders").await.unwrap();
    assert_eq!((moved.jobs.len(), moved.duplicates), (3, 0));
    let ids: Vec<i64> = moved.jobs.iter().map(|moved| moved.new_job).collect();
    let same = "select count(*) from seriatim.job a join seriatim.job b on b.id = a.id + 3 \
        and (a.data, a.payload, a.headers, a.group_id) is not distinct from (b.data, b.payload, b.headers, b.group_id) \
        where a.queue = 'ordres'";
    assert_eq!(value::<i64>(pool, same).await, 3);
    // So does no verb that moves a job without a copy.
    for id in &ids {
        operator().skip(pool, *id).await.unwrap();
    }
    assert_eq!(operator().redrive_jobs(pool, &ids).await.unwrap().jobs, 3);
    let task = NewMoveTask::new("orders").to("ordres");
    operator().start_move_task(pool, &task).await.unwrap();
    assert_eq!(client.run_move_tasks(pool).await.unwrap(), 3);
    let receive = Receive::new("ordres");
    assert_eq!(client.receive(pool, receive).await.unwrap().len(), 1);
}
