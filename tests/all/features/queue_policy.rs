//! One policy of failures for a queue, whoever works on it: what its settings store goes before
//! what a processor says; and a group that is parked by hand.

use std::time::Duration;

use seriatim::admin::QueueSettings;
use seriatim::receive::{Receive, Received};
use seriatim::testing::TestDatabase;
use seriatim::{
    AfterHalt, Client, ControlError, Job, JobError, JobStatus, NewJob, OutOfAttempts, QueueOptions,
    RetryPolicy, Running,
};
use sqlx::PgPool;

use crate::support::logged::Logged;
use crate::support::{
    Log, by_hand, database, ended, enqueue, handler_with, job, job_of, job_when, operator,
    processor, queue, serve, started, until_groups, value,
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
    // By default it waits as a processor's does: 1 s, and twice as long each time. A cap alone
    // bounds that.
    let minute = Duration::from_mins(1);
    client.nack(pool, &receive(pool, "g").await.receipt, None).await.unwrap();
    let seconds = value::<f64>(pool, waits).await;
    assert!(seconds > 0.0 && seconds <= 1.0, "{seconds} s");
    operator().run_now(pool, id).await.unwrap();
    let short = Duration::from_millis(1);
    client.configure_queue(pool, QueueSettings::new("q").backoff_cap(short)).await.unwrap();
    client.nack(pool, &receive(pool, "g").await.receipt, None).await.unwrap();
    assert!(value::<f64>(pool, waits).await <= 0.001);

    let settings = QueueSettings::new("q").backoff(minute).backoff_cap(minute * 5);
    client.configure_queue(pool, settings).await.unwrap();
    let stored = client.queue_settings(pool, "q").await.unwrap();
    assert_eq!((stored.backoff, stored.backoff_cap), (Some(minute), minute * 5));
    for (attempt, minutes) in [(3, 4.0), (4, 5.0), (5, 5.0)] {
        let received = receive(pool, "g").await;
        assert_eq!(received.attempt, attempt);
        client.nack(pool, &received.receipt, None).await.unwrap();
        let seconds = value::<f64>(pool, waits).await;
        assert!((seconds - minutes * 60.0).abs() < 5.0, "{seconds} s after attempt {attempt}");
        operator().run_now(pool, id).await.unwrap();
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
    operator().set_group_policy(pool, "q", "own", own).await.unwrap();
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

/// A processor whose handler always fails.
async fn failing(database: &TestDatabase, options: QueueOptions) -> Running {
    let fails = handler_with((), async |(), _, _| Err(JobError::retry("no luck")));
    serve(database, 10, options, fails).await
}

/// Receives and nacks what is due in a queue until the job has ended.
async fn nack_until_ended(pool: &PgPool, queue: &str, id: i64) -> Job {
    let client = Client::default();
    loop {
        let found = job(pool, id).await;
        if found.status.is_final() {
            return found;
        }
        for received in client.receive(pool, Receive::new(queue)).await.unwrap() {
            let (at_once, error) = (Duration::ZERO, "no luck");
            client.nack_with(pool, &received.receipt, at_once, error).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_stored_goes_before_what_a_processor_says() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let ms = Duration::from_millis(1);
    let stored =
        QueueSettings::new("q").max_attempts(3).backoff(ms).out_of_attempts(OutOfAttempts::Halt);
    client.configure_queue(pool, stored).await.unwrap();
    // Its own waits would take hours, and its group would go on after one attempt.
    let own = RetryPolicy::new(1).base(Duration::from_hours(1));
    let options = queue("q").retry(own).out_of_attempts(OutOfAttempts::Continue);
    let running = failing(&database, options).await;
    let first = enqueue(pool, "q", "g", 1).await;
    let behind = enqueue(pool, "q", "g", 2).await;
    let dead = job_when(pool, first, |job| job.status == JobStatus::Failed).await;
    assert_eq!((dead.attempts, dead.history.len()), (3, 3));
    let halted = client.halted_groups(pool, "q").await.unwrap();
    assert_eq!((halted.len(), halted[0].job, halted[0].until), (1, Some(first), None));
    assert_eq!(halted[0].reason.as_deref(), Some("no luck"));
    assert_eq!(job(pool, behind).await.status, JobStatus::Queued);

    // Before the queue's settings go a job's own limit and a group's own policy.
    operator().set_group_policy(pool, "q", "own", Some(OutOfAttempts::Park)).await.unwrap();
    let ids = [job_of("q", "own", 1).max_attempts(2), job_of("q", "own", 2)];
    let ids = seriatim::enqueue_many(pool, ids).await.unwrap();
    let dead = job_when(pool, ids[0].id(), |job| job.status == JobStatus::Failed).await;
    assert_eq!(dead.attempts, 2);
    assert_eq!(job(pool, ids[1].id()).await.status, JobStatus::Parked);

    // A stored setting counts from then on, and so does the removal of one.
    let aside = QueueSettings::new("q").out_of_attempts(None).dead_letter_queue("dead".to_owned());
    client.configure_queue(pool, aside).await.unwrap();
    let moved = enqueue(pool, "q", "moves", 1).await;
    let there = job_when(pool, moved, |job| job.queue == "dead").await;
    assert_eq!(there.attempts, 3);
    let unset = QueueSettings::new("q").dead_letter_queue(None).max_attempts(None).backoff(None);
    client.configure_queue(pool, unset).await.unwrap();
    let goes = enqueue(pool, "q", "goes on", 1).await;
    let dead = job_when(pool, goes, |job| job.status == JobStatus::Failed).await;
    assert_eq!(dead.attempts, 1);
    assert_eq!(client.halted_groups(pool, "q").await.unwrap().len(), 1);
    running.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_queue_goes_before_a_halt_that_a_processor_says() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let stored = QueueSettings::new("q").max_attempts(1).dead_letter_queue("dead".to_owned());
    client.configure_queue(pool, stored).await.unwrap();
    let running = failing(&database, queue("q").out_of_attempts(OutOfAttempts::Halt)).await;
    let first = enqueue(pool, "q", "g", 1).await;
    let behind = enqueue(pool, "q", "g", 2).await;
    for id in [first, behind] {
        job_when(pool, id, |job| job.queue == "dead").await;
    }
    assert_eq!(client.halted_groups(pool, "q").await.unwrap(), []);
    running.shutdown(Duration::from_secs(5)).await;
}

/// A lane in which a job dies by whoever works on it, and what becomes of the lane.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_and_a_receiver_do_the_same_with_a_job_that_dies() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    for policy in [
        OutOfAttempts::Halt,
        OutOfAttempts::Continue,
        OutOfAttempts::HaltFor { deadline: Duration::from_hours(1), then: AfterHalt::Park },
    ] {
        let mut seen = Vec::new();
        for by in ["worker", "receiver"] {
            let name = format!("{by} {policy:?}");
            let stored = QueueSettings::new(&name).max_attempts(2).out_of_attempts(policy);
            let stored = stored.backoff(Duration::from_millis(1));
            client.configure_queue(pool, stored).await.unwrap();
            let jobs = [1, 2].map(|n| {
                NewJob::new(&name, &n).group("g").max_attempts(if n == 1 { 2 } else { 1 })
            });
            let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
            let dead = if by == "worker" {
                let other = RetryPolicy::new(7);
                let running = failing(&database, queue(&name).retry(other)).await;
                let dead = ended(pool, ids[0].id()).await;
                if policy == OutOfAttempts::Continue {
                    ended(pool, ids[1].id()).await;
                }
                running.shutdown(Duration::from_secs(5)).await;
                dead
            } else {
                let dead = nack_until_ended(pool, &name, ids[0].id()).await;
                if policy == OutOfAttempts::Continue {
                    nack_until_ended(pool, &name, ids[1].id()).await;
                }
                dead
            };
            let halted = client.halted_groups(pool, &name).await.unwrap();
            let halted: Vec<_> = halted
                .into_iter()
                .map(|it| (it.job == Some(dead.id), it.reason, it.until.is_some(), it.then))
                .collect();
            let kinds: Vec<_> = dead.history.iter().map(|lost| lost.kind).collect();
            let behind = job(pool, ids[1].id()).await;
            seen.push((
                dead.status,
                dead.attempts,
                dead.error,
                kinds,
                halted,
                behind.status,
                behind.attempts,
            ));
        }
        assert_eq!(seen[0], seen[1], "{policy:?}");
        assert_eq!(seen[0].0, JobStatus::Failed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn options_that_do_not_count_are_told_of() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let stored = QueueSettings::new("q").max_attempts(3).out_of_attempts(OutOfAttempts::Halt);
    client.configure_queue(pool, stored).await.unwrap();
    let options = [queue("q").retry(RetryPolicy::new(5)), queue("same")];
    let mut builder = processor(&database, 10).await.node("here");
    for options in options {
        let fails = handler_with((), async |(), _, _| Err(JobError::retry("no luck")));
        builder = builder.queue(options, fails);
    }
    let logged = Logged::default();
    let guard = logged.start();
    let running = started(builder).await;
    drop(guard);
    let text = logged.text();
    let warned: Vec<_> = text.lines().filter(|line| line.contains("does not count")).collect();
    assert_eq!(warned.len(), 2, "{text}");
    assert!(warned[0].contains("max_attempts") && warned[0].contains("\"3\""), "{text}");
    let rows = "select count(*) from seriatim.processor where policies is not null";
    while value::<i64>(pool, rows).await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let found = client.overridden_options(pool).await.unwrap();
    let seen: Vec<_> = found
        .iter()
        .map(|it| (&*it.queue, &*it.node, it.setting, &*it.said, &*it.counts))
        .collect();
    let attempts = ("q", "here", "max_attempts", "5", "3");
    assert_eq!(seen, [attempts, ("q", "here", "out_of_attempts", "continue", "halt")]);
    // An explanation has the limit that counts.
    let waits = seriatim::enqueue(pool, job_of("q", "g", 1).delay(Duration::from_hours(1))).await;
    let why = client.explain_job(pool, waits.unwrap().id()).await.unwrap().unwrap();
    assert!(format!("{why:?}").contains("of: Some(3)"), "{why:?}");
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(client.overridden_options(pool).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_parked_by_hand_and_comes_back_in_order() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let ann = Client::default().operator("ann", "their server is down");
    let nothing = ann.park_group(pool, "q", "g").await.unwrap_err();
    assert!(matches!(nothing, ControlError::NothingWaits { .. }), "{nothing}");
    let hour = Duration::from_hours(1);
    let head = seriatim::enqueue(pool, job_of("q", "g", 1).delay(hour)).await.unwrap().id();
    let behind = enqueue(pool, "q", "g", 2).await;
    let mut reader = pool.begin().await.unwrap();
    sqlx::query("select 1 from seriatim.job where id = $1 for update")
        .bind(head)
        .execute(&mut *reader)
        .await
        .unwrap();
    let locked = ann.park_group(pool, "q", "g").await.unwrap_err();
    assert!(matches!(locked, ControlError::GroupBusy { .. }), "{locked}");
    reader.rollback().await.unwrap();

    let run = handler_with(log.clone(), async |log, job, data| {
        log.add(job.id().to_string());
        if data == "hang" {
            std::future::pending::<()>().await;
        }
        Ok(data)
    });
    let running = serve(&database, 10, queue("q"), run).await;
    until_groups(pool, "ready_at > now() + interval '1 min'", 1).await;
    assert_eq!(ann.park_group(pool, "q", "g").await.unwrap(), head);
    job_when(pool, behind, |job| job.status == JobStatus::Parked).await;
    let dead = job(pool, head).await;
    assert_eq!(dead.status, JobStatus::Failed);
    assert_eq!(dead.error.unwrap().message, "their server is down");
    // The group goes on without them.
    let later = enqueue(pool, "q", "g", 3).await;
    ended(pool, later).await;
    let redriven = ann.redrive_parked(pool, "q", "g", None).await.unwrap();
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
    let empty = ann.park_group(pool, "q", "empty").await.unwrap_err();
    assert!(matches!(empty, ControlError::NothingWaits { .. }), "{empty}");

    let hangs = enqueue(pool, "q", "runs", "hang").await;
    job_when(pool, hangs, |job| job.status == JobStatus::Started).await;
    let runs = ann.park_group(pool, "q", "runs").await.unwrap_err();
    assert!(matches!(runs, ControlError::GroupRuns { job, .. } if job == hangs), "{runs}");
    let actions: Vec<_> = ann.client().operations(pool, None, 10).await.unwrap();
    let actions: Vec<_> = actions.iter().map(|done| done.action.as_str()).collect();
    assert_eq!(actions, ["redrive_parked", "park"]);
    running.shutdown(Duration::ZERO).await;
}
