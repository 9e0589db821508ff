//! Who did what: the table `operation`, and the requests that are new with it.

use std::time::Duration;

use serde_json::Value;
use seriatim::admin::FailedFilter;
use seriatim::{Client, ControlError, JobError, JobStatus, NewJob, OutOfAttempts, RetryPolicy};
use sqlx::PgPool;

use crate::support::{
    by_hand, database, ended, enqueue, handler, job, job_of, job_when, nothing_remains, operator,
    queue, serve, value,
};

async fn actions(pool: &PgPool) -> Vec<(String, Option<String>, u64)> {
    let operations = Client::default().operations(pool, None, 100).await.unwrap();
    assert!(operations.iter().all(|operation| operation.actor == "ann"));
    operations.into_iter().rev().map(|done| (done.action, done.reason, done.affected)).collect()
}

#[tokio::test]
async fn what_was_done_with_a_job_is_found_by_its_id() {
    let database = database().await;
    let pool = database.pool();
    let ann = Client::default().operator("ann", "refunded by hand");
    let (first, second) = (enqueue(pool, "q", "g", 1).await, enqueue(pool, "q", "g", 2).await);
    ann.skip(pool, first).await.unwrap();
    ann.retry(pool, first).await.unwrap();
    ann.skip(pool, second).await.unwrap();
    let done = ann.client().job_operations(pool, first).await.unwrap();
    let actions: Vec<_> = done.iter().map(|done| &*done.action).collect();
    assert_eq!(actions, ["skip", "retry"]);
    assert_eq!(done[0].reason.as_deref(), Some("refunded by hand"));
}

#[tokio::test]
async fn a_skip_that_changes_nothing_is_not_written_down() {
    let database = database().await;
    let pool = database.pool();
    let ann = Client::default().operator("ann", None);
    let id = enqueue(pool, "q", "g", 1).await;
    let skip = format!("select concat_ws(' ', status, done, busy) from seriatim.skip({id})");
    assert_eq!(value::<String>(pool, skip.as_str()).await, "queued t f");
    assert_eq!(value::<String>(pool, skip.as_str()).await, "failed f f");
    ann.skip(pool, id).await.unwrap();
    assert_eq!(ann.client().job_operations(pool, id).await.unwrap().len(), 1);

    // It halts its group: then there is something to do.
    by_hand(
        pool,
        format!(
            "insert into seriatim.queue_group (queue, group_id, ready_at, head_id, halted_at, halt_job_id) \
             values ('q', 'g', 'infinity', {id}, now(), {id})"
        ),
    )
    .await;
    let mut other = pool.begin().await.unwrap();
    let lock = "select from seriatim.job where id = $1 for update";
    sqlx::query(lock).bind(id).execute(&mut *other).await.unwrap();
    assert_eq!(value::<String>(pool, skip.as_str()).await, "failed f t");
    other.rollback().await.unwrap();
    assert_eq!(value::<String>(pool, skip.as_str()).await, "failed t f");
    assert_eq!(value::<String>(pool, skip.as_str()).await, "failed f f");
    assert_eq!(ann.client().job_operations(pool, id).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_changes_is_written_down_with_it() {
    let database = database().await;
    let pool = database.pool();
    let ann = Client::default().operator("ann", "a test");
    let first = enqueue(pool, "q", "g", 1).await;
    enqueue(pool, "q", "g", 2).await;

    // A preview changes nothing, and so writes nothing.
    let mut tx = pool.begin().await.unwrap();
    ann.cancel(&mut *tx, first).await.unwrap();
    assert_eq!(ann.client().operations(&mut *tx, None, 10).await.unwrap().len(), 1);
    tx.rollback().await.unwrap();
    assert_eq!(actions(pool).await, []);

    let closed = Client::default().operator("ann", "the bank is closed");
    closed.pause_queue(pool, "q").await.unwrap();
    ann.resume_queue(pool, "q").await.unwrap();
    ann.pause_group(pool, "q", "g").await.unwrap();
    assert_eq!(
        ann.client().paused_groups(pool, "q").await.unwrap()[0].reason.as_deref(),
        Some("a test"),
        "the reason of the operator"
    );
    ann.resume_group(pool, "q", "g").await.unwrap();
    ann.cancel(pool, first).await.unwrap();
    ann.retry(pool, first).await.unwrap();
    ann.skip(pool, first).await.unwrap();
    ann.redrive(pool, "q", 10).await.unwrap();
    ann.set_group_policy(pool, "q", "g", Some(OutOfAttempts::Park)).await.unwrap();
    ann.set_group_policy(pool, "q", "g", None).await.unwrap();
    ann.set_key_limit(pool, "q", "t", 0).await.unwrap();
    ann.set_key_limit(pool, "q", "t", None).await.unwrap();
    ann.configure_queue(pool, seriatim::admin::QueueSettings::new("q").max_attempts(3))
        .await
        .unwrap();
    ann.purge(pool, "q").await.unwrap();
    // Nothing was changed.
    ann.unhalt_group(pool, "q", "g").await.unwrap_err();
    ann.set_key_limit(pool, "q", "t", None).await.unwrap();
    ann.resume_queue(pool, "q").await.unwrap_err();
    ann.redrive(pool, "q", 10).await.unwrap();
    ann.retry(pool, 404).await.unwrap_err();
    ann.release_node(pool, "nowhere").await.unwrap();
    // The application's own changes.
    let third = enqueue(pool, "q", "g", 3).await;
    Client::default().cancel(pool, third).await.unwrap();
    let settings = seriatim::admin::QueueSettings::new("q").max_attempts(4);
    Client::default().configure_queue(pool, settings).await.unwrap();

    let why = || Some(String::from("a test"));
    let expected = [
        ("pause", Some(String::from("the bank is closed")), 1),
        ("resume", why(), 1),
        ("pause", why(), 1),
        ("resume", why(), 1),
        ("cancel", why(), 1),
        ("retry", why(), 1),
        ("skip", why(), 1),
        ("redrive", why(), 1),
        ("set_group_policy", why(), 1),
        ("set_group_policy", why(), 1),
        ("set_key_limit", Some(String::from("a test (limit key \"t\": 0)")), 1),
        ("set_key_limit", Some(String::from("a test (limit key \"t\": as the queue says)")), 1),
        ("configure_queue", why(), 1),
        ("purge", why(), 2),
    ];
    assert_eq!(
        actions(pool).await,
        expected.map(|(action, why, affected)| (action.to_owned(), why, affected))
    );
    let last = ann.client().operations(pool, None, 1).await.unwrap();
    let before = ann.client().operations(pool, Some(last[0].id), 1).await.unwrap();
    assert_eq!((last[0].action.as_str(), before[0].action.as_str()), ("purge", "configure_queue"));
    let of_retry = ann.client().operations(pool, None, 100).await.unwrap();
    let of_retry = of_retry.iter().find(|done| done.action == "retry").unwrap();
    assert_eq!((of_retry.queue.as_deref(), of_retry.group.as_deref()), (Some("q"), Some("g")));
    assert_eq!(of_retry.job, Some(first));
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_functions_do_the_same_and_name_the_sessions_user() {
    let database = database().await;
    let pool = database.pool();
    let id = enqueue(pool, "q", "g", 1).await;
    for sql in [
        "select seriatim.pause('q', 'g', 'by psql')".to_owned(),
        "select seriatim.resume('q', 'g')".to_owned(),
        format!("select * from seriatim.skip({id})"),
        format!("select * from seriatim.retry({id}, reason => 'mended')"),
        format!("select * from seriatim.cancel({id}, actor => 'bob')"),
        "select * from seriatim.redrive('q', 'g', 5)".to_owned(),
        "select seriatim.unhalt('q', 'g')".to_owned(),
    ] {
        by_hand(pool, sql).await;
    }
    let operations = Client::default().operations(pool, None, 10).await.unwrap();
    let actions: Vec<_> = operations.iter().rev().map(|done| done.action.as_str()).collect();
    assert_eq!(actions, ["pause", "resume", "skip", "retry", "cancel"]);
    let user: String = value(pool, "select session_user::text").await;
    let actors: Vec<_> = operations.iter().map(|done| done.actor.as_str()).collect();
    assert_eq!(actors[0], "bob");
    assert!(actors[1..].iter().all(|actor| *actor == user));
    assert_eq!(job(pool, id).await.status, JobStatus::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_its_time_runs_now() {
    let database = database().await;
    let pool = database.pool();
    let retry = RetryPolicy::new(2).base(Duration::from_hours(1)).cap(Duration::from_hours(1));
    let run = handler(async |job, data: Value| {
        if data == "later" && job.attempt() == 1 {
            return Err(JobError::retry("not yet"));
        }
        Ok(data)
    });
    let options = queue("q").retry(retry);
    let running = serve(&database, 10, options, run).await;
    let delayed = job_of("q", "delayed", 1).delay(Duration::from_hours(1));
    let delayed = seriatim::enqueue(pool, delayed).await.unwrap().id();
    let ungrouped = NewJob::new("q", &2).delay(Duration::from_hours(1)).priority(3);
    let ungrouped = seriatim::enqueue(pool, ungrouped).await.unwrap().id();
    let backs_off = enqueue(pool, "q", "backs-off", "later").await;
    let behind = enqueue(pool, "q", "backs-off", 3).await;
    job_when(pool, backs_off, |job| job.attempts == 1 && job.status == JobStatus::Queued).await;
    for id in [delayed, ungrouped, backs_off] {
        operator().run_now(pool, id).await.unwrap();
        assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
    }
    ended(pool, behind).await;
    let refused = operator().run_now(pool, behind).await.unwrap_err();
    assert!(matches!(refused, ControlError::WrongStatus { .. }), "{refused}");
    assert!(matches!(operator().run_now(pool, 404).await, Err(ControlError::NoSuchJob { .. })));
    nothing_remains(pool).await;
    running.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_and_redriven_or_discarded_by_selection() {
    let database = database().await;
    let (pool, ann) = (database.pool(), Client::default().operator("ann", None));
    let mut ids = Vec::new();
    for (queue, group, name) in
        [("q", "g", "a"), ("q", "g", "b"), ("q", "h", "a"), ("r", "g", "a"), ("q", "g", "c")]
    {
        let job = job_of(queue, group, 1).name(name);
        ids.push(seriatim::enqueue(pool, job).await.unwrap().id());
    }
    for id in &ids[..4] {
        ann.skip(pool, *id).await.unwrap();
    }
    by_hand(
        pool,
        format!(
            "update seriatim.job set error = '{{\"kind\": \"error\", \"message\": \"Bank closed\", \
             \"chain\": [], \"attempt\": 1}}' where id = {}",
            ids[2]
        ),
    )
    .await;
    let listed = async |filter: FailedFilter| -> Vec<i64> {
        ann.client().failed_jobs(pool, &filter).await.unwrap().iter().map(|job| job.id).collect()
    };
    let all = FailedFilter::default;
    let of_q = || all().queue("q");
    assert_eq!(listed(all()).await, ids[..4]);
    assert_eq!(listed(of_q()).await, ids[..3]);
    assert_eq!(listed(of_q().group("g")).await, ids[..2]);
    assert_eq!(listed(all().name("b")).await, [ids[1]]);
    assert_eq!(listed(all().error("bank")).await, [ids[2]]);
    let failed_at = job(pool, ids[3]).await.finished_at.unwrap();
    assert_eq!(listed(all().since(failed_at)).await, [ids[3]]);
    assert_eq!(listed(all().limit(2)).await, ids[..2]);
    assert_eq!(listed(all().after(ids[1]).limit(1)).await, [ids[2]]);

    assert_eq!(ann.discard_jobs(pool, &[ids[2], ids[4], 404]).await.unwrap().jobs, 1);
    assert_eq!(ann.client().job_status(pool, ids[2]).await.unwrap(), Some(JobStatus::Cancelled));
    assert_eq!(ann.client().job_status(pool, 404).await.unwrap(), None);
    // Whatever the order of the selection, and only dead letters.
    let chosen = [ids[4], ids[1], 404, ids[0]];
    let redriven = ann.redrive_jobs(pool, &chosen).await.unwrap();
    assert_eq!((redriven.jobs, redriven.groups, redriven.overtaken), (2, 1, 0));
    assert_eq!(listed(all()).await, [ids[3]]);
    let operations = ann.client().operations(pool, None, 2).await.unwrap();
    let done: Vec<_> = operations.iter().map(|done| (&*done.action, done.affected)).collect();
    assert_eq!(done, [("redrive", 2), ("discard", 1)]);
    assert_eq!(operations[0].group.as_deref(), Some("g"));

    assert_eq!(ann.redrive_group(pool, "r", "other", 10).await.unwrap().jobs, 0);
    assert_eq!(ann.redrive_group(pool, "r", "g", 10).await.unwrap().jobs, 1);
    let run = handler(async |job, _| Ok(Value::from(job.id())));
    let running = serve(&database, 10, queue("q"), run).await;
    let mut began = Vec::new();
    for id in [ids[0], ids[1], ids[4]] {
        began.push(ended(pool, id).await.last_started_at);
    }
    assert!(began.is_sorted(), "{began:?}");
    running.shutdown(Duration::from_secs(5)).await;
}
