//! Rehearsals: what a group's next jobs would do, in a transaction that is rolled back.

use std::time::Duration;

use chrono::Utc;
use serde_json::{Value, json};
use seriatim::layer::{Ended, Layer, Next};
use seriatim::observe::EndedAs;
use seriatim::receive::Receive;
use seriatim::rehearsal::{Rehearsal, RehearsalError, RehearsalReport, RehearsedJob};
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, FailureKind, JobError, JobStatus, NewJob, OutOfAttempts, Processor,
    QueueOptions, async_trait,
};
use sqlx::PgPool;

use crate::support::{
    FnHandler, Gate, Log, by_hand, database, ended, enqueue, groups_where, handler, held_up, job,
    job_of, operator, queue, serve, value,
};

const ACCOUNTS: &str =
    "create table public.account (id int primary key, cents bigint not null check (cents >= 0));
    create table public.posting (account int references public.account, cents bigint);
    insert into public.account values (42, 1000)";

/// Posts an amount, and enqueues a receipt for it.
fn posting() -> FnHandler {
    handler(async |job: &mut ActiveJob, cents: Value| {
        let cents = cents.as_i64().ok_or_else(|| JobError::fail("no amount"))?;
        let insert = sqlx::query("insert into public.posting values (42, $1), (42, 0)");
        insert.bind(cents).execute(job.tx().await?).await?;
        let update = "update public.account set cents = cents + $1 where id = 42 returning cents";
        let balance: i64 =
            sqlx::query_scalar(update).bind(cents).fetch_one(job.tx().await?).await?;
        let receipt = job_of("receipts", "42", balance);
        job.enqueue(receipt).await.map_err(JobError::retry)?;
        Ok(json!(balance))
    })
}

async fn rehearse(pool: &PgPool, what: Rehearsal, run: FnHandler) -> RehearsalReport {
    Client::default().rehearse(pool, queue("q"), what, run).await.unwrap()
}

fn writes(job: &RehearsedJob) -> Vec<String> {
    job.writes.iter().map(ToString::to_string).collect()
}

/// Returns everything that the database has of jobs, groups and accounts, as text.
async fn all(pool: &PgPool) -> String {
    let tables = "select coalesce(string_agg(line, e'\\n' order by line), '') from (
        select j::text as line from seriatim.job j union all select g::text from seriatim.queue_group g
        union all select a::text from public.account a union all select p::text from public.posting p
        union all select r::text from seriatim.job_progress r) lines";
    value(pool, tables).await
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_run_in_order_and_everything_is_rolled_back() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, ACCOUNTS).await;
    let first = enqueue(pool, "q", "42", 500).await;
    let later = job_of("q", "42", -1500).name("refund").delay(Duration::from_hours(1));
    let later = seriatim::enqueue(pool, later).await.unwrap().id();
    let beyond = enqueue(pool, "q", "42", -1).await;
    for n in [1, 2] {
        enqueue(pool, "q", "42", n).await;
    }
    enqueue(pool, "q", "43", 1).await;
    operator().pause_group(pool, "q", "42").await.unwrap();
    let before = all(pool).await;

    let report = rehearse(pool, Rehearsal::of_group("42"), posting()).await;
    assert_eq!(all(pool).await, before);
    let seen: Vec<_> = report.jobs.iter().map(|job| (job.id, job.ended_as)).collect();
    let expected = [EndedAs::Succeeded, EndedAs::Succeeded, EndedAs::Retried];
    assert_eq!(seen, [first, later, beyond].into_iter().zip(expected).collect::<Vec<_>>());
    assert!(report.rolled_back && report.more, "{report:?}");
    let written = ["public.account: 1 updated", "public.posting: 2 inserted"];
    for done in &report.jobs[..2] {
        assert_eq!(
            (writes(done), done.enqueued, done.attempt),
            (written.map(Into::into).into(), 1, 1)
        );
    }
    let outputs: Vec<_> = report.jobs.iter().map(|job| job.output.clone()).collect();
    assert_eq!(outputs, [Some(json!(1500)), Some(json!(0)), None]);
    let failed = &report.jobs[2];
    let failure = failed.failure.as_ref().unwrap();
    assert!(failure.message.contains("account_cents_check"), "{failure:?}");
    assert!(failed.again_in.is_some());
    // Its insert was one before it failed.
    assert_eq!(writes(failed), ["public.posting: 2 inserted"]);
    let said = report.to_string();
    for line in [
        "rehearsed 3 jobs of group \"42\" of queue \"q\"",
        &format!("job {later} refund, attempt 1: would succeed"),
        "public.account: 1 updated",
        "1 job enqueued",
        "would fail and be tried again in ",
        "more jobs are behind",
        "rolled back: all writes of the job's transaction",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(!format!("{report:?}").contains("1500"), "the output is data");

    let two = rehearse(pool, Rehearsal::of_group("42").jobs(2), posting()).await;
    assert_eq!((two.jobs.len(), two.more), (2, true));
    let none = rehearse(pool, Rehearsal::of_group("nobody"), posting()).await;
    assert_eq!((none.jobs.len(), none.more), (0, false));
    database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_without_statements_of_their_own_keep_the_writes_of_those_before() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, ACCOUNTS).await;
    for idles in [false, true, false, true] {
        enqueue(pool, "q", "42", idles).await;
    }
    let run = handler(async |job: &mut ActiveJob, idles: Value| {
        if idles == true {
            return Ok(json!("idle"));
        }
        let update = "update public.account set cents = cents + 1 where id = 42 returning cents";
        let cents: i64 = sqlx::query_scalar(update).fetch_one(job.tx().await?).await?;
        Ok(json!(cents))
    });
    let report = rehearse(pool, Rehearsal::of_group("42"), run).await;
    let outputs: Vec<_> = report.jobs.iter().filter_map(|job| job.output.clone()).collect();
    assert_eq!(outputs, [json!(1001), json!("idle"), json!(1002), json!("idle")], "{report:?}");
    assert!(report.rolled_back);
    assert_eq!(value::<i64>(pool, "select cents from public.account").await, 1000);
}

/// The dead letter that a group waits for, and what is behind it, with a handler that was mended.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_and_what_is_behind_it_are_tried_before_the_retry() {
    for then in [OutOfAttempts::Halt, OutOfAttempts::Park, OutOfAttempts::Continue] {
        let database = database().await;
        let pool = database.pool();
        by_hand(pool, ACCOUNTS).await;
        let dead = enqueue(pool, "q", "42", json!("twenty")).await;
        // Before the first job ends: a unit that parks has only what is there by then.
        let behind = [enqueue(pool, "q", "42", 1).await, enqueue(pool, "q", "42", 2).await];
        let options = queue("q").out_of_attempts(then);
        let running = serve(&database, 4, options, posting()).await;
        assert_eq!(ended(pool, dead).await.status, JobStatus::Failed);
        if then == OutOfAttempts::Continue {
            ended(pool, behind[1]).await;
        }
        running.shutdown(Duration::from_secs(5)).await;
        let before = all(pool).await;

        let mended = || handler(async |_, data: Value| Ok(data));
        let report = rehearse(pool, Rehearsal::of_group("42").from_job(dead), mended()).await;
        let ran: Vec<_> = report.jobs.iter().map(|job| (job.id, job.ended_as)).collect();
        let expected: Vec<_> = [&[dead][..], &behind].concat();
        let expected = if then == OutOfAttempts::Continue { &expected[..1] } else { &expected };
        let all_well: Vec<_> = expected.iter().map(|id| (*id, EndedAs::Succeeded)).collect();
        assert_eq!(ran, all_well, "{then:?}");
        assert_eq!(report.jobs[0].attempt, 2);

        // A group that halts is tried from there on, without its being named.
        let next = rehearse(pool, Rehearsal::of_group("42"), mended()).await;
        let next: Vec<_> = next.jobs.iter().map(|job| job.id).collect();
        match then {
            OutOfAttempts::Halt => assert_eq!(next, expected),
            _ => assert_eq!(next, [0; 0]),
        }
        assert_eq!(all(pool).await, before);
        let other = Rehearsal::of_group("43").from_job(dead);
        let refused = Client::default().rehearse(pool, queue("q"), other, mended()).await;
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, RehearsalError::NotOfGroup { job, .. } if *job == dead));
        database.remove().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_beside_the_transaction() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, ACCOUNTS).await;
    let expired = job_of("q", "42", 0).time_to_live(Duration::from_millis(1));
    let expired = seriatim::enqueue(pool, expired).await.unwrap().id();
    let cancelled = enqueue(pool, "q", "42", 0).await;
    // The cancel that is carried out later: another transaction had the job's row.
    by_hand(pool, format!("insert into seriatim.cancel_request (job_id) values ({cancelled})"))
        .await;
    let id = enqueue(pool, "q", "42", 1).await;
    let before = all(pool).await;
    let reports = handler(async |job: &mut ActiveJob, _| {
        assert!(job.is_rehearsal());
        job.progress(40, "page 4")?;
        job.checkpoint(&4).await?;
        assert_eq!(job.last_checkpoint::<i32>().await?, Some(4));
        let until = Utc::now() + Duration::from_hours(1);
        assert!(job.rest_group(until, "429").await.map_err(JobError::retry)?);
        assert!(job.rest_queue(until, "429 too").await.map_err(JobError::retry)?);
        Err(JobError::snooze(Duration::from_mins(5)))
    });
    let report = rehearse(pool, Rehearsal::of_group("42"), reports).await;
    assert_eq!(all(pool).await, before);
    let client = Client::default();
    assert!(client.paused_queue(pool, "q").await.unwrap().is_none());
    assert!(client.paused_groups(pool, "q").await.unwrap().is_empty());
    let [gone, unwanted, put_off] = &report.jobs[..] else { panic!("{report}") };
    assert_eq!((gone.id, gone.ended_as), (expired, EndedAs::Expired));
    assert_eq!((unwanted.id, unwanted.ended_as), (cancelled, EndedAs::Cancelled));
    assert_eq!((put_off.id, put_off.ended_as), (id, EndedAs::Snoozed));
    assert_eq!(put_off.again_in, Some(Duration::from_mins(5)));
    let [group, queue] = &put_off.suppressed[..] else { panic!("{report}") };
    assert!(group.starts_with("the group rests until ") && group.ends_with(": 429"), "{group}");
    assert!(queue.starts_with("the queue rests until ") && queue.ends_with(": 429 too"), "{queue}");
    let really = handler(async |job: &mut ActiveJob, _| Ok(json!(job.is_rehearsal())));
    let _running = serve(&database, 4, crate::support::queue("q"), really).await;
    assert_eq!(ended(pool, id).await.result, Some(json!(false)));
}

/// A rehearsal claims nothing and locks no row of a job or a group.
#[tokio::test(flavor = "multi_thread")]
async fn workers_go_on_beside_a_rehearsal_and_one_at_work_is_left_alone() {
    let database = database().await;
    let pool = database.pool();
    let id = enqueue(pool, "q", "42", 1).await;
    let (log, gate) = (Log::default(), Gate::default());
    let (of, run) = (pool.clone(), held_up(&log, &gate));
    let rehearsal =
        tokio::spawn(async move { rehearse(&of, Rehearsal::of_group("42"), run).await });
    log.wait_for(1).await;
    let running = serve(&database, 4, queue("q"), handler(async |_, data| Ok(data))).await;
    assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
    running.shutdown(Duration::from_secs(5)).await;
    gate.pass(1);
    assert_eq!(rehearsal.await.unwrap().jobs[0].ended_as, EndedAs::Succeeded);

    let id = enqueue(pool, "q", "42", 2).await;
    let received = Client::default().receive(pool, Receive::new("q")).await.unwrap();
    assert_eq!(received[0].id, id);
    let (client, run) = (Client::default(), handler(async |_, data| Ok(data)));
    let refused = client.rehearse(pool, queue("q"), Rehearsal::of_group("42"), run).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, RehearsalError::Running { job } if job == id), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_takes_too_long_panics_or_commits_is_reported() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, ACCOUNTS).await;
    for how in ["waits", "panics", "commits"] {
        by_hand(pool, "delete from seriatim.job").await;
        enqueue(pool, "q", "42", how).await;
        let run = handler(async |job: &mut ActiveJob, how: Value| {
            let update = "update public.account set cents = cents + 1";
            sqlx::query(update).execute(job.tx().await?).await?;
            match how.as_str() {
                Some("waits") => std::future::pending().await,
                Some("panics") => panic!("no such account"),
                _ => sqlx::raw_sql("commit").execute(job.tx().await?).await?,
            };
            Ok(Value::Null)
        });
        let seconds = if how == "waits" { 2 } else { 60 };
        let what = Rehearsal::of_group("42").within(Duration::from_secs(seconds));
        let report = rehearse(pool, what, run).await;
        let [job] = &report.jobs[..] else { panic!("{report}") };
        let kind = job.failure.as_ref().map(|failure| failure.kind);
        let cents = value::<i64>(pool, "select cents from public.account").await;
        let said = report.to_string();
        match how {
            "waits" => {
                assert_eq!((job.ended_as, kind, cents), (EndedAs::Released, None, 1000));
                assert!(said.contains("the time of the rehearsal is over"), "{said}");
            }
            "panics" => {
                let panicked = Some(FailureKind::Panic);
                assert_eq!((job.ended_as, kind, cents), (EndedAs::Retried, panicked, 1000));
                assert_eq!(writes(job), ["public.account: 1 updated"]);
            }
            _ => {
                let ended = Some(FailureKind::TransactionEnded);
                assert_eq!((job.ended_as, kind, cents), (EndedAs::Failed, ended, 1001));
                assert!(!report.rolled_back && said.contains("NOT ROLLED BACK"), "{said}");
            }
        }
    }
    assert_eq!(groups_where(pool, "claim is not null").await, 0);
}

/// Sets what the handler's transaction sees, as one for row-level security does.
struct Tenant;

#[async_trait]
impl Layer for Tenant {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
        if let Ok(tx) = job.tx().await {
            let set = "select set_config('app.tenant', 'acme', true)";
            let _ = sqlx::query(set).execute(tx).await;
        }
        next.run(job).await
    }
}

fn tenant_processor(database: &TestDatabase) -> Processor {
    let run = handler(async |job: &mut ActiveJob, _| {
        let tenant = "select current_setting('app.tenant', true)";
        let tenant: Option<String> = sqlx::query_scalar(tenant).fetch_one(job.tx().await?).await?;
        Ok(json!(tenant))
    });
    Processor::builder(database.pool().clone())
        .queue(QueueOptions::new("q"), run)
        .layer(Tenant)
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_rehearses_with_its_handlers_and_layers_and_starts_nothing() {
    let database = database().await;
    let pool = database.pool();
    let id = enqueue(pool, "q", "42", 1).await;
    let other = seriatim::enqueue(pool, NewJob::new("q", &1)).await.unwrap().id();
    let processor = tenant_processor(&database);
    let report = processor.rehearse("q", Rehearsal::of_group("42")).await.unwrap();
    assert_eq!(report.jobs[0].output, Some(json!("acme")));
    for id in [id, other] {
        assert_eq!(
            (job(pool, id).await.status, job(pool, id).await.attempts),
            (JobStatus::Queued, 0)
        );
    }
    let processor = tenant_processor(&database);
    let refused = processor.rehearse("p", Rehearsal::of_group("42")).await.unwrap_err();
    assert!(matches!(&refused, RehearsalError::NoHandler { queue } if queue == "p"), "{refused}");
}
