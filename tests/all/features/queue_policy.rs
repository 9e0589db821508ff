//! What receivers do with failures, as the queue's settings say; and a group that is parked by
//! hand.

use std::time::Duration;

use seriatim::{
    AfterHalt, Client, ControlError, JobStatus, OutOfAttempts, QueueSettings, Receive, Received,
};
use sqlx::PgPool;

use crate::support::{
    Log, by_hand, database, ended, enqueue, handler_with, job, job_of, job_when, processor, queue,
    until_groups, value,
};

async fn receive(pool: &PgPool, group: &str) -> Received {
    let what = Receive::new("q").group(group);
    Client::default().receive(pool, what).await.unwrap().remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nack_without_a_delay_waits_for_the_backoff_of_the_queue() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let id = enqueue(pool, "q", "g", 1).await;
    let waits = "select extract(epoch from run_at - clock_timestamp())::float8 from seriatim.job";
    // By default it is due at once, also with a cap alone.
    let minute = Duration::from_mins(1);
    client.configure_queue(pool, QueueSettings::new("q").backoff_cap(minute)).await.unwrap();
    client.nack(pool, &receive(pool, "g").await.receipt, None).await.unwrap();
    assert!(value::<f64>(pool, waits).await <= 0.0);

    let settings = QueueSettings::new("q").backoff(minute).backoff_cap(minute * 5);
    client.configure_queue(pool, settings).await.unwrap();
    let stored = client.queue_settings(pool, "q").await.unwrap();
    assert_eq!((stored.backoff, stored.backoff_cap), (Some(minute), minute * 5));
    for (attempt, minutes) in [(2, 2.0), (3, 4.0), (4, 5.0), (5, 5.0)] {
        let received = receive(pool, "g").await;
        assert_eq!(received.attempt, attempt);
        client.nack(pool, &received.receipt, None).await.unwrap();
        let seconds = value::<f64>(pool, waits).await;
        assert!((seconds - minutes * 60.0).abs() < 5.0, "{seconds} s after attempt {attempt}");
        client.run_now(pool, id).await.unwrap();
    }
    // A delay that is named counts, also in SQL.
    let receipt = receive(pool, "g").await.receipt;
    by_hand(pool, format!("select seriatim.nack('{receipt}', '0')")).await;
    assert!(value::<f64>(pool, waits).await <= 0.0);
    let receipt = receive(pool, "g").await.receipt;
    by_hand(pool, format!("select seriatim.nack('{receipt}', error => 'no')")).await;
    assert!(value::<f64>(pool, waits).await > 200.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_received_job_that_is_out_of_attempts_does_what_the_queue_says() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let fails = async |group: &str| {
        let first = job_of("q", group, 1).max_attempts(1);
        let first = seriatim::enqueue(pool, first).await.unwrap().id();
        enqueue(pool, "q", group, 2).await;
        client.nack(pool, &receive(pool, group).await.receipt, None).await.unwrap();
        assert_eq!(job(pool, first).await.status, JobStatus::Failed);
        client.halted_groups(pool, "q").await.unwrap().into_iter().find(|it| it.group == group)
    };
    assert_eq!(fails("goes on").await, None);
    let configure = async |policy: Option<OutOfAttempts>| {
        let settings = QueueSettings::new("q").out_of_attempts(policy);
        client.configure_queue(pool, settings).await.unwrap();
        assert_eq!(client.queue_settings(pool, "q").await.unwrap().out_of_attempts, policy);
    };
    configure(Some(OutOfAttempts::Halt)).await;
    assert_eq!(fails("halts").await.unwrap().until, None);
    let hour =
        OutOfAttempts::HaltFor { deadline: Duration::from_hours(1), then: AfterHalt::Continue };
    configure(Some(hour)).await;
    assert_eq!(fails("halts for").await.unwrap().then, Some(AfterHalt::Continue));
    // A group's own policy goes before its queue's.
    let own = Some(OutOfAttempts::Continue);
    client.set_group_policy(pool, "q", "own", own).await.unwrap();
    assert_eq!(fails("own").await, None);
    configure(Some(OutOfAttempts::Park)).await;
    assert_eq!(fails("parks").await.unwrap().then, Some(AfterHalt::Park));
    client.run_maintenance(pool, queue("q")).await.unwrap();
    assert_eq!(client.parked_groups(pool, "q").await.unwrap()[0].group, "parks");
    configure(None).await;
    assert_eq!(fails("goes on too").await, None);
    let soon = OutOfAttempts::HaltFor { deadline: Duration::ZERO, then: AfterHalt::Park };
    let settings = QueueSettings::new("q").out_of_attempts(soon);
    assert!(client.configure_queue(pool, settings).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_parked_by_hand_and_comes_back_in_order() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let client = Client::default().acting_as("ann").because("their server is down");
    let nothing = client.park_group(pool, "q", "g").await.unwrap_err();
    assert!(matches!(nothing, ControlError::NothingWaits { .. }), "{nothing}");
    let hour = Duration::from_hours(1);
    let head = seriatim::enqueue(pool, job_of("q", "g", 1).delay(hour)).await.unwrap().id();
    let behind = enqueue(pool, "q", "g", 2).await;
    let unseen = client.park_group(pool, "q", "g").await.unwrap_err();
    assert!(matches!(unseen, ControlError::GroupBusy { .. }), "{unseen}");

    let run = handler_with(log.clone(), async |log, job, data| {
        log.add(job.id().to_string());
        if data == "hang" {
            std::future::pending::<()>().await;
        }
        Ok(data)
    });
    let running = processor(&database, 10)
        .await
        .queue(queue("q"), run)
        .build()
        .unwrap()
        .start()
        .await
        .unwrap();
    until_groups(pool, "ready_at > now() + interval '1 min'", 1).await;
    assert_eq!(client.park_group(pool, "q", "g").await.unwrap(), head);
    job_when(pool, behind, |job| job.status == JobStatus::Parked).await;
    let dead = job(pool, head).await;
    assert_eq!(dead.status, JobStatus::Failed);
    assert_eq!(dead.error.unwrap().message, "their server is down");
    // The group goes on without them.
    let later = enqueue(pool, "q", "g", 3).await;
    ended(pool, later).await;
    let redriven = client.redrive_parked(pool, "q", "g", None).await.unwrap();
    assert_eq!((redriven.jobs, redriven.overtaken), (2, 1));
    ended(pool, behind).await;
    let ids = [later, head, behind].map(|id| id.to_string());
    assert_eq!(log.entries(), ids);

    // Nothing is behind the job that halted it.
    by_hand(
        pool,
        "insert into seriatim.queue_group (queue, group_id, ready_at, head_id, halted_at, halt_job_id) \
         values ('q', 'empty', 'infinity', 1, now(), 1)",
    )
    .await;
    let empty = client.park_group(pool, "q", "empty").await.unwrap_err();
    assert!(matches!(empty, ControlError::NothingWaits { .. }), "{empty}");

    let hangs = enqueue(pool, "q", "runs", "hang").await;
    job_when(pool, hangs, |job| job.status == JobStatus::Started).await;
    let runs = client.park_group(pool, "q", "runs").await.unwrap_err();
    assert!(matches!(runs, ControlError::GroupRuns { job, .. } if job == hangs), "{runs}");
    let actions: Vec<_> = client.operations(pool, None, 10).await.unwrap();
    let actions: Vec<_> = actions.iter().map(|done| done.action.as_str()).collect();
    assert_eq!(actions, ["redrive_parked", "park"]);
    running.shutdown(Duration::ZERO).await;
}
