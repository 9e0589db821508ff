//! A queue whose dead letters go to another one; tasks that move them back.

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::{FailedFilter, FailedJob, MoveTaskStatus, NewMoveTask, QueueSettings};
use seriatim::explain::Reason;
use seriatim::receive::Receive;
use seriatim::{
    Client, ConfigureError, ControlError, JobError, JobStatus, NewJob, OutOfAttempts, Retention,
    RetryPolicy,
};
use sqlx::PgPool;

use crate::support::{
    Log, by_hand, database, drained, ended, enqueue, eventually, handler, handler_with, job,
    job_of, operator, processor, queue, started, until_jobs, value,
};

async fn set(pool: &PgPool, target: Option<&str>) -> Result<(), ConfigureError> {
    let settings = QueueSettings::new("q").dead_letter_queue(target.map(str::to_owned));
    Client::default().configure_queue(pool, settings).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_for_good_runs_in_the_dead_letter_queue() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    set(pool, Some("dead")).await.unwrap();
    let one = Duration::from_millis(1);
    let fails = queue("q").retry(RetryPolicy::new(2).base(one)).keep_failed(Retention::Never);
    let fails = fails.out_of_attempts(OutOfAttempts::Continue);
    let handles = || {
        handler_with(log.clone(), async |log, job, data| {
            log.add(format!("{data} of {} at {}", job.queue(), job.attempt()));
            if data == json!("bad") && job.queue() == "q" {
                return Err(JobError::retry("it is bad"));
            }
            Ok(Value::Null)
        })
    };
    let bad = enqueue(pool, "q", "g", "bad").await;
    let good = enqueue(pool, "q", "g", "good").await;
    let alone = seriatim::NewJob::new("q", &"bad");
    let alone = seriatim::enqueue(pool, alone).await.unwrap().id();
    let running = started(
        processor(&database, 10).await.queue(fails, handles()).queue(queue("dead"), handles()),
    )
    .await;
    for id in [bad, good, alone] {
        assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
    }
    drained(pool, "q").await;
    running.shutdown(Duration::from_secs(5)).await;
    let ran = log.entries();
    for (entry, times) in [
        ("\"bad\" of q at 1", 2),
        ("\"bad\" of q at 2", 2),
        ("\"bad\" of dead at 3", 2),
        ("\"good\" of q at 1", 1),
    ] {
        assert_eq!(ran.iter().filter(|ran| *ran == entry).count(), times, "{entry} in {ran:?}");
    }
    assert_eq!(ran.len(), 7, "{ran:?}");
    let moved = job(pool, bad).await;
    assert_eq!((&*moved.queue, moved.history.len()), ("dead", 2));
    assert_eq!(value::<String>(pool, "select min(moved_from) from seriatim.job").await, "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_cannot_be_is_refused() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let refused = async |settings: QueueSettings, words: &str| {
        let error = client.configure_queue(pool, settings).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let q = || QueueSettings::new("q");
    refused(q().dead_letter_queue(String::from("q")), "its own dead-letter queue").await;
    refused(q().dead_letter_queue(String::new()), "empty").await;
    let both = "cannot both have a dead-letter queue and";
    let dead = || q().dead_letter_queue(String::from("dead"));
    refused(dead().out_of_attempts(OutOfAttempts::Park), both).await;
    client.configure_queue(pool, dead()).await.unwrap();
    let stored = client.queue_settings(pool, "q").await.unwrap();
    assert_eq!(stored.dead_letter_queue.as_deref(), Some("dead"));
    refused(q().out_of_attempts(OutOfAttempts::Halt), both).await;
    client
        .configure_queue(pool, q().out_of_attempts(OutOfAttempts::Halt).dead_letter_queue(None))
        .await
        .unwrap();
    refused(dead(), both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_halts_keeps_its_dead_job() {
    let database = database().await;
    let pool = database.pool();
    set(pool, Some("dead")).await.unwrap();
    let halts = Some(OutOfAttempts::Halt);
    operator().set_group_policy(pool, "q", "own", halts).await.unwrap();
    let fails = handler(async |_, _: Value| Err::<Value, _>(JobError::fail("it is bad")));
    let running = processor(&database, 10).await.queue(queue("q"), fails).build().unwrap().start();
    let running = running.await.unwrap();
    let own = enqueue(pool, "q", "own", 1).await;
    let other = enqueue(pool, "q", "g", 1).await;
    assert_eq!(ended(pool, own).await.status, JobStatus::Failed);
    until_jobs(pool, "queue = 'dead' and status = 'queued'", 1).await;
    assert_eq!(job(pool, other).await.queue, "dead");
    assert_eq!(job(pool, own).await.queue, "q");
    running.shutdown(Duration::from_secs(5)).await;
}

/// The data of what a receiver finds in a queue, which it acks.
async fn taken(pool: &PgPool, queue: &str) -> Vec<Value> {
    let (client, mut data) = (Client::default(), Vec::new());
    loop {
        let received = client.receive(pool, Receive::new(queue).max(100)).await.unwrap();
        if received.is_empty() {
            return data;
        }
        for job in received {
            client.ack(pool, &job.receipt).await.unwrap();
            data.push(job.data);
        }
    }
}

/// Jobs in the queue `dead`: three of a group and one without from `q`, one of the group from
/// `other`, and one that was enqueued there.
async fn dead_letters(pool: &PgPool) {
    for queue in ["q", "other"] {
        let settings =
            QueueSettings::new(queue).max_attempts(1).dead_letter_queue(String::from("dead"));
        Client::default().configure_queue(pool, settings).await.unwrap();
    }
    for (queue, data) in [("q", 1), ("other", 2), ("q", 3), ("q", 4)] {
        enqueue(pool, queue, "g", data).await;
        let nack = format!("select seriatim.nack(r.receipt) from seriatim.receive('{queue}') r");
        by_hand(pool, nack).await;
    }
    seriatim::enqueue(pool, seriatim::NewJob::new("q", &5)).await.unwrap();
    by_hand(pool, "select seriatim.nack(r.receipt) from seriatim.receive('q') r").await;
    seriatim::enqueue(pool, job_of("dead", "g", 6)).await.unwrap();
    assert_eq!(
        value::<i64>(pool, "select count(*) from seriatim.job where queue = 'dead'").await,
        6
    );
}

/// The dead letters of a queue, as the library lists them.
async fn listed(pool: &PgPool, queue: &str) -> Vec<FailedJob> {
    let filter = FailedFilter::default().queue(queue);
    Client::default().failed_jobs(pool, &filter).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_in_the_queue_that_they_failed_in() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    dead_letters(pool).await;
    // One has stayed.
    set(pool, None).await.unwrap();
    let stayed = enqueue(pool, "q", "g", 7).await;
    by_hand(pool, "select seriatim.nack(r.receipt) from seriatim.receive('q') r").await;
    let of_q = listed(pool, "q").await;
    let waits = |job: &FailedJob| job.dead_letter_queue.as_deref() == Some("dead");
    assert_eq!(of_q.iter().map(waits).collect::<Vec<_>>(), [true, true, true, true, false]);
    assert_eq!(of_q.last().map(|job| job.id), Some(stayed));
    assert!(of_q.iter().all(|job| job.queue == "q" && job.finished_at.is_some()), "{of_q:?}");
    assert_eq!(listed(pool, "other").await.len(), 1);
    assert_eq!(listed(pool, "dead").await, []);
    let by_group = FailedFilter::default().group("g").limit(3);
    let first = client.failed_jobs(pool, &by_group).await.unwrap();
    let next = by_group.after(first.last().unwrap().id);
    assert_eq!((first.len(), client.failed_jobs(pool, &next).await.unwrap().len()), (3, 2));
    let view = "select string_agg(concat_ws(' ', queue, dead_letter_queue), ', ' order by id) \
                from seriatim.dead_letters";
    let expected = "q dead, other dead, q dead, q dead, q dead, q";
    assert_eq!(value::<String>(pool, view).await, expected);
    assert_eq!(job(pool, of_q[0].id).await.moved_from.as_deref(), Some("q"));
    // A job in flight there is no dead letter, nor is a job that has ended.
    client.receive(pool, Receive::new("dead").group("g")).await.unwrap();
    assert_eq!(listed(pool, "q").await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_nobody_serves_is_explained_as_one() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    dead_letters(pool).await;
    by_hand(pool, "delete from seriatim.receiver").await;
    let says = async |id: i64| client.explain_job(pool, id).await.unwrap().unwrap();
    let ids: Vec<i64> = listed(pool, "q").await.iter().map(|job| job.id).collect();
    // Whatever is before them in the dead-letter queue.
    for id in &ids {
        let seen = says(*id).await;
        let Reason::DeadLetter { failed_in, waits_in, .. } = &seen.reason else { panic!("{seen}") };
        assert_eq!((&**failed_in, &**waits_in, &seen.unserved), ("q", "dead", &None));
        let words = "is a dead letter of queue \"q\", and has waited in queue \"dead\" for ";
        let advice = format!("Redrive job {id} when the cause is fixed, or discard it.");
        let sentence = seen.to_string();
        assert!(sentence.contains(words) && sentence.ends_with(&advice), "{sentence}");
    }
    let of_other = listed(pool, "other").await[0].id;
    assert!(says(of_other).await.to_string().contains("dead letter of queue \"other\""));
    let lane = client.explain_group(pool, "dead", "g").await.unwrap();
    assert!(matches!(lane.reason, Reason::DeadLetter { .. }) && lane.unserved.is_none(), "{lane}");
    // One that was enqueued there is another matter.
    let own: i64 =
        value(pool, "select id from seriatim.job where queue = 'dead' and moved_from is null")
            .await;
    let seen = says(own).await;
    assert!(matches!(&seen.reason, Reason::Behind { head, .. } if *head == ids[0]), "{seen}");
    let sentence = seen.to_string();
    assert!(seen.unserved.is_some() && sentence.contains("Start a processor"), "{sentence}");
    let overview = async || client.queues(pool).await.unwrap().remove(0);
    assert!(overview().await.unserved_since().is_some(), "one that was enqueued there is due");
    client.cancel(pool, own).await.unwrap();
    let seen = overview().await;
    assert_eq!((&*seen.queue, seen.served), ("dead", false));
    assert_eq!(seen.dead_letters_of, ["other", "q"]);
    assert!(seen.oldest_due.is_some() && seen.unserved_since().is_none());

    // Nor is it another one's while a receiver looks at it, or delays it.
    let head = client.receive(pool, Receive::new("dead").group("g")).await.unwrap().remove(0);
    assert!(matches!(says(ids[0]).await.reason, Reason::Claimed { .. }));
    client.nack(pool, &head.receipt, Duration::from_mins(1)).await.unwrap();
    for id in &ids[..2] {
        assert!(matches!(says(*id).await.reason, Reason::DeadLetter { .. }));
    }

    // Served on purpose it is a queue as any other.
    by_hand(
        pool,
        "insert into seriatim.processor (id, node, queues, server_started_at)
         values (1, 'here', '{dead}', now())",
    )
    .await;
    assert!(matches!(says(ids[0]).await.reason, Reason::NotDue { .. }));
    assert!(matches!(says(ids[1]).await.reason, Reason::Behind { .. }));
}

/// A look that was not ended leaves them started, and where nobody receives nothing else takes them
/// over.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_that_were_looked_at_are_redriven_and_discarded_as_others() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    by_hand(pool, "select seriatim.configure_queue('dead', '{\"strict_visibility\": true}')").await;
    dead_letters(pool).await;
    let ids: Vec<i64> = listed(pool, "q").await.iter().map(|job| job.id).collect();
    let look = async || {
        let look = Receive::new("dead").max(10).visibility(Duration::from_millis(1));
        client.receive(pool, look).await.unwrap();
        by_hand(pool, "delete from seriatim.receiver").await;
        let over = "select max(greatest(g.ready_at, j.lease_until)) < clock_timestamp()
                    from seriatim.queue_group g, seriatim.job j where j.status = 'started'";
        while !value::<bool>(pool, over).await {}
    };
    look().await;
    let seen = client.explain_job(pool, ids[0]).await.unwrap().unwrap();
    assert!(matches!(seen.reason, Reason::DeadLetter { .. }), "{seen}");
    assert_eq!(operator().discard_jobs(pool, &ids[..1]).await.unwrap().jobs, 1);
    look().await;
    assert_eq!(operator().redrive_jobs(pool, &ids[1..2]).await.unwrap().jobs, 1);
    look().await;
    assert_eq!(operator().redrive(pool, "q", 10).await.unwrap().jobs, 2);
    assert_eq!(taken(pool, "q").await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_waits_is_neither_retried_nor_skipped_by_its_id() {
    let database = database().await;
    let pool = database.pool();
    dead_letters(pool).await;
    let id = listed(pool, "q").await[0].id;
    let refused = |error: ControlError, request: &str| {
        assert!(
            matches!(&error, ControlError::DeadLetter { queue, .. } if queue == "q"),
            "{error}"
        );
        let words =
            format!("cannot be {request}: redrive {id} to run it again, or discard {id} to");
        assert!(error.to_string().contains(&words), "{error}");
    };
    refused(operator().skip(pool, id).await.unwrap_err(), "skipped");
    refused(operator().retry(pool, id).await.unwrap_err(), "retried");
    for call in ["skip", "retry"] {
        let asked = format!(
            "select concat_ws(' ', done, status, dead_letter_of) from seriatim.{call}({id})"
        );
        assert_eq!(value::<String>(pool, asked).await, "f queued q");
    }
    assert_eq!(job(pool, id).await.status, JobStatus::Queued);
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.operation").await, 0);
    assert_eq!(operator().discard_jobs(pool, &[id]).await.unwrap().jobs, 1);
    assert_eq!(job(pool, id).await.status, JobStatus::Cancelled);
    // A job that was enqueued there is no dead letter.
    let own: i64 =
        value(pool, "select id from seriatim.job where queue = 'dead' and moved_from is null")
            .await;
    operator().skip(pool, own).await.unwrap();
    operator().retry(pool, own).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redrive_moves_dead_letters_back_in_order() {
    let database = database().await;
    let pool = database.pool();
    dead_letters(pool).await;
    let later = enqueue(pool, "q", "g", 8).await;
    by_hand(pool, "select seriatim.ack(r.receipt) from seriatim.receive('q') r").await;
    let ids: Vec<i64> = listed(pool, "q").await.iter().map(|job| job.id).collect();
    let first = operator().redrive(pool, "q", 1).await.unwrap();
    assert_eq!((first.jobs, first.groups, first.overtaken, first.moved_back), (1, 1, 1, 1));
    assert_eq!(job(pool, ids[0]).await.queue, "q");
    // One that failed, and others in a dead-letter queue, whatever their order.
    by_hand(pool, format!("update seriatim.job set status = 'failed' where id = {later}")).await;
    let some = operator().redrive_jobs(pool, &[ids[2], later, ids[1]]).await.unwrap();
    assert_eq!((some.jobs, some.groups, some.moved_back), (3, 1, 2));
    let of_group = operator().redrive_group(pool, "q", "g", 100).await.unwrap();
    assert_eq!(of_group.jobs, 0);
    assert_eq!(operator().redrive(pool, "q", 100).await.unwrap().moved_back, 1);
    let back = taken(pool, "q").await;
    assert_eq!(back.into_iter().filter(|data| *data != 5).collect::<Vec<_>>(), [1, 3, 4, 8]);
    // Dead letters of another queue stay, and so does a job that was enqueued there.
    assert_eq!(operator().redrive(pool, "dead", 100).await.unwrap().jobs, 0);
    assert_eq!(taken(pool, "dead").await, [2, 6]);
    let did = "select string_agg(concat_ws(' ', action, queue, affected), ', ' order by id) \
               from seriatim.operation where action = 'redrive'";
    assert_eq!(
        value::<String>(pool, did).await,
        "redrive q 1, redrive q 3, redrive q 1",
        "what was moved back, under the queue that it failed in"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_discarded_lets_its_group_go_on() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    dead_letters(pool).await;
    let ids: Vec<i64> = listed(pool, "q").await.iter().map(|job| job.id).collect();
    assert_eq!(client.operator("ann", None).discard_jobs(pool, &ids).await.unwrap().jobs, 4);
    for id in ids {
        assert_eq!(job(pool, id).await.status, JobStatus::Cancelled);
    }
    assert_eq!(taken(pool, "dead").await, [2, 6]);
    let did = "select concat_ws(' ', actor, action, queue, affected) from seriatim.operation \
               where action = 'discard'";
    assert_eq!(value::<String>(pool, did).await, "ann discard dead 4");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_started_listed_and_cancelled_by_the_library() {
    let database = database().await;
    let (pool, ann) = (database.pool(), Client::default().operator("ann", "mended"));
    dead_letters(pool).await;
    let begun = std::time::Instant::now();
    let task = ann.start_move_task(pool, &NewMoveTask::new("dead").per_second(2)).await.unwrap();
    let again = ann.start_move_task(pool, &NewMoveTask::new("dead").to("x")).await.unwrap_err();
    assert!(matches!(&again, ControlError::MoveTaskRuns { queue } if queue == "dead"), "{again}");
    let dead = || NewMoveTask::new("dead");
    for (task, words) in
        [(dead().to("dead"), "to_queue is"), (dead().per_second(0), "per_second is 0, it must")]
    {
        let error = ann.start_move_task(pool, &task).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let moved = ann.client().run_move_tasks(pool).await.unwrap();
    // It moves two jobs for its first second, and two for each second since its start.
    let most = (1_000 + begun.elapsed().as_millis()) / 500;
    assert!((2..=most).contains(&moved.into()), "{moved}");
    let shown = ann.client().move_tasks(pool, Some("dead")).await.unwrap();
    let [shown] = &*shown else { panic!("{shown:?}") };
    assert_eq!((shown.id, shown.to_move.count, shown.moved), (task, 5, moved));
    assert_eq!((shown.status, shown.per_second), (MoveTaskStatus::Running, Some(2)));
    assert_eq!(ann.cancel_move_task(pool, task).await.unwrap(), Some(moved));
    assert_eq!(ann.cancel_move_task(pool, task).await.unwrap(), None);
    ann.start_move_task(pool, &NewMoveTask::new("other").to("elsewhere")).await.unwrap();
    let all = ann.client().move_tasks(pool, None).await.unwrap();
    assert_eq!(all.iter().map(|task| &*task.from_queue).collect::<Vec<_>>(), ["other", "dead"]);
    assert_eq!(all[1].status, MoveTaskStatus::Cancelled);
    assert_eq!(ann.client().move_tasks(pool, Some("none")).await.unwrap(), []);
    let did = "select string_agg(concat_ws(' ', actor, action, reason), ', ' order by id) \
               from seriatim.operation where queue = 'dead'";
    let expected = "ann start_move_task mended, ann cancel_move_task mended";
    assert_eq!(value::<String>(pool, did).await, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_moves_each_dead_letter_back_in_order() {
    let database = database().await;
    let pool = database.pool();
    dead_letters(pool).await;
    let task: i64 = value(pool, "select seriatim.start_move_task('dead')").await;
    let again = sqlx::query("select seriatim.start_move_task('dead', 'x')").execute(pool).await;
    assert!(again.unwrap_err().to_string().contains("a task moves what waits in queue \"dead\""));
    Client::default().run_maintenance(pool, queue("any")).await.unwrap();
    let shown = format!(
        "select concat_ws(' ', status, moved, to_move) from seriatim.move_task where id = {task}"
    );
    assert_eq!(value::<String>(pool, shown).await, "completed 5 5");
    // The one without a group comes anywhere between them.
    let back = taken(pool, "q").await;
    assert!(back.contains(&json!(5)), "{back:?}");
    assert_eq!(back.into_iter().filter(|data| *data != 5).collect::<Vec<_>>(), [1, 3, 4]);
    assert_eq!(taken(pool, "other").await, [2]);
    assert_eq!(taken(pool, "dead").await, [6]);
    let of = "select count(*) from seriatim.job where moved_from is not null";
    assert_eq!(value::<i64>(pool, of).await, 0);
    let did =
        "select string_agg(action, ' ' order by id) from seriatim.operation where queue = 'dead'";
    assert_eq!(value::<String>(pool, did).await, "start_move_task");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_keeps_its_rate_over_all_that_carry_it_out_and_can_be_cancelled() {
    let database = database().await;
    let pool = database.pool();
    dead_letters(pool).await;
    let begun = std::time::Instant::now();
    let task: i64 =
        value(pool, "select seriatim.start_move_task('dead', 'elsewhere', per_second => 2)").await;
    let run = async || value::<i64>(pool, "select seriatim.run_move_tasks()").await;
    let runs = futures::future::join_all((0..8).map(|_| run())).await;
    // They move two jobs for the first second, and two for each second since the start.
    let most = i64::try_from((1_000 + begun.elapsed().as_millis()) / 500).unwrap();
    let moved = runs.iter().sum::<i64>();
    assert!((2..=most).contains(&moved), "{runs:?}");
    let later = |seconds: f64| {
        format!(
            "update seriatim.move_task set moved_at = clock_timestamp() - interval '{seconds} s' \
             where ended_at is null"
        )
    };
    let mut tx = pool.begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(later(0.6))).execute(&mut *tx).await.unwrap();
    let one = sqlx::query_scalar("select seriatim.run_move_tasks()").fetch_one(&mut *tx);
    assert_eq!(one.await.ok(), Some(1_i64));
    tx.commit().await.unwrap();
    // However long nothing has carried it out.
    by_hand(pool, later(3600.0)).await;
    assert_eq!(run().await, 5 - moved);
    let shown = format!("select status || ' ' || moved from seriatim.move_task where id = {task}");
    assert_eq!(value::<String>(pool, shown).await, "completed 6");
    assert_eq!(taken(pool, "elsewhere").await.len(), 6);

    seriatim::enqueue(pool, job_of("dead", "g", 7)).await.unwrap();
    let task: i64 =
        value(pool, "select seriatim.start_move_task('dead', 'elsewhere', per_second => 1)").await;
    let cancel = format!("select seriatim.cancel_move_task({task})");
    assert_eq!(value::<Option<i64>>(pool, cancel.clone()).await, Some(0));
    assert_eq!(value::<Option<i64>>(pool, cancel).await, None);
    assert_eq!(run().await, 0);
    assert_eq!(taken(pool, "dead").await, [7]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_moves_what_a_receiver_has_had_for_too_long() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, "select seriatim.configure_queue('dead', '{\"strict_visibility\": true}')").await;
    for n in 0..2 {
        seriatim::enqueue(pool, job_of("dead", "g", n)).await.unwrap();
        seriatim::enqueue(pool, NewJob::new("dead", &n)).await.unwrap();
    }
    let look = Receive::new("dead").max(4).visibility(Duration::from_millis(1));
    assert_eq!(Client::default().receive(pool, look).await.unwrap().len(), 4);
    let over = "select min(least(g.ready_at, j.lease_until)) < clock_timestamp() - interval '5 ms' \
                from seriatim.queue_group g, seriatim.job j";
    while !value::<bool>(pool, over).await {}
    let task: i64 = value(pool, "select seriatim.start_move_task('dead', 'elsewhere')").await;
    assert_eq!(value::<i64>(pool, "select seriatim.run_move_tasks()").await, 4);
    let shown =
        format!("select moved || ' of ' || to_move from seriatim.move_task where id = {task}");
    assert_eq!(value::<String>(pool, shown).await, "4 of 4");
    assert_eq!(taken(pool, "elsewhere").await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_held_hides_no_other_from_a_task() {
    let database = database().await;
    let pool = database.pool();
    for (group, n) in [("a", 0), ("a", 1), ("a", 2), ("b", 3)] {
        seriatim::enqueue(pool, job_of("dead", group, n)).await.unwrap();
    }
    let head = Client::default().receive(pool, Receive::new("dead").group("a")).await.unwrap();
    let mut open = pool.begin().await.unwrap();
    Client::default().ack(&mut *open, &head[0].receipt).await.unwrap();
    by_hand(pool, "select seriatim.start_move_task('dead', 'elsewhere', per_second => 1)").await;
    assert_eq!(value::<i64>(pool, "select seriatim.run_move_tasks()").await, 1);
    assert_eq!(taken(pool, "elsewhere").await, [3]);
}

/// A round of a tick reads on behind the groups that are held. Read anew each time, 8,000 of them
/// took 2.9 s a tick.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_groups_that_are_held_cost_a_task_little() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "select seriatim.enqueue('dead', to_jsonb(n), 'g' || lpad(n::text, 5, '0'))
         from generate_series(1, 8001) n",
    )
    .await;
    // A transaction has the rows of all groups but the last one.
    let mut open = pool.begin().await.unwrap();
    let locked = sqlx::query(
        "select from seriatim.job where queue = 'dead' and group_id <> 'g08001' for no key update",
    );
    locked.execute(&mut *open).await.unwrap();
    by_hand(pool, "select seriatim.start_move_task('dead', 'elsewhere', per_second => 1000)").await;
    by_hand(pool, "analyze seriatim.job").await;
    let plan = "explain (analyze, buffers, format json) select seriatim.run_move_tasks()";
    let plan: Value = value(pool, plan).await;
    assert_eq!(taken(pool, "elsewhere").await, [8001]);
    let buffers = plan[0]["Plan"]["Shared Hit Blocks"].as_i64().unwrap();
    assert!(buffers < 150_000, "{buffers} buffers");
}

/// Each sees what the other has set, also of a queue that had no settings before.
#[tokio::test(flavor = "multi_thread")]
async fn two_changes_at_once_do_not_make_what_one_may_not() {
    for has_settings in [true, false] {
        let database = database().await;
        let (pool, client) = (database.pool().clone(), Client::default());
        if has_settings {
            client.configure_queue(&pool, QueueSettings::new("q").max_attempts(2)).await.unwrap();
        }
        let mut open = pool.begin().await.unwrap();
        let to_dead = QueueSettings::new("q").dead_letter_queue(String::from("dead"));
        client.configure_queue(&mut *open, to_dead).await.unwrap();
        let other = tokio::spawn({
            let (pool, client) = (pool.clone(), client.clone());
            let halts = QueueSettings::new("q").out_of_attempts(OutOfAttempts::Halt);
            async move { client.configure_queue(&pool, halts).await }
        });
        let waits = "select count(*) from pg_stat_activity \
                     where datname = current_database() and wait_event_type = 'Lock'";
        eventually(&pool, waits, 1_i64).await;
        open.commit().await.unwrap();
        let error = other.await.unwrap().unwrap_err().to_string();
        assert!(error.contains("cannot both have"), "{error}");
    }
}

/// By a visibility that is not strict: nothing but another receive would take the claim over.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_whose_visibility_is_over_is_listed_and_redriven() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    dead_letters(pool).await;
    let ids = async || -> Vec<i64> { listed(pool, "q").await.iter().map(|job| job.id).collect() };
    let waiting = ids().await;
    let look = Receive::new("dead").max(10).visibility(Duration::from_mins(1));
    let received = client.receive(pool, look).await.unwrap();
    assert_eq!((received.len(), ids().await), (6, vec![]));
    for job in &received {
        client.extend(pool, &job.receipt, Duration::from_millis(1)).await.unwrap();
    }
    eventually(pool, "select count(*) from seriatim.dead_letters where queue = 'q'", 4_i64).await;
    assert_eq!(ids().await, waiting);

    // As a claim does, a redrive waits for a grace, in which the receiver may come back. After a
    // start of the server it would wait for longer.
    by_hand(
        pool,
        "create or replace function seriatim.server_since() returns timestamptz language sql stable \
         as $$ select timestamptz '2000-01-01' $$",
    )
    .await;
    while !ids().await.is_empty() {
        operator().redrive_jobs(pool, &waiting).await.unwrap();
    }
    let mut back = taken(pool, "q").await;
    back.sort_by_key(Value::as_i64);
    assert_eq!(back, [1, 3, 4, 5]);
}
