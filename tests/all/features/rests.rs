//! Groups and queues that rest because a job asked for it: its partner takes no more for a while.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::join_all;
use serde_json::{Value, json};
use seriatim::admin::{GroupFilter, GroupState};
use seriatim::receive::{Receive, ReceiveError};
use seriatim::{
    ActiveJob, Client, ControlError, Hold, JobError, JobStatus, NewJob, RestError, RetryPolicy,
};
use sqlx::PgPool;

use crate::support::{
    Gate, Log, by_hand, database, ended, enqueue, handler, handler_with, job, job_of, job_when,
    operator, processor, queue, sample, serve, size, started, value,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_secs(30))];
const HOUR: Duration = Duration::from_hours(1);
const WHY: &str = "429 from Stripe";

fn client() -> Client {
    Client::default()
}

/// Returns the time in so many milliseconds.
fn in_ms(ms: i64) -> DateTime<Utc> {
    Utc::now() + TimeDelta::milliseconds(ms)
}

async fn write(job: &mut ActiveJob) -> Result<(), JobError> {
    let insert = sqlx::query("insert into public.step values ($1)").bind(job.id());
    insert.execute(job.tx().await?).await?;
    Ok(())
}

/// Returns how long after the end of the rest, which the log has, a job began.
async fn begun_after(pool: &PgPool, log: &Log, id: i64) -> TimeDelta {
    let began = ended(pool, id).await.last_started_at.unwrap();
    let end: DateTime<Utc> = log.entries()[0].parse().unwrap();
    began - end
}

/// The first attempt of the job whose data names a way to end rests the group or the queue, writes
/// if it has a transaction, and ends that way. All others succeed.
async fn meet_limit(log: Log, job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
    if data["ends"].is_null() || job.attempt() > 1 {
        return Ok(Value::Null);
    }
    let rest = Duration::from_secs(3);
    if data["writes"] == true {
        write(job).await?;
    }
    let until = Utc::now() + rest;
    let counts = if data["rests"] == "queue" {
        job.rest_queue(until, WHY).await?
    } else {
        job.rest_group(until, WHY).await?
    };
    assert!(counts, "no other pause stands");
    log.add(until.to_rfc3339());
    match data["ends"].as_str() {
        Some("snooze") => Err(JobError::snooze(rest)),
        Some("soon") => Err(JobError::snooze(Duration::ZERO)),
        Some("error") => Err(JobError::retry_after("too many requests", Duration::ZERO)),
        Some("panic") => panic!("too many requests"),
        _ => Ok(Value::Null),
    }
}

/// An end of an attempt, and whether it writes before.
const ENDS: [(&str, bool); 5] =
    [("soon", true), ("error", true), ("snooze", true), ("snooze", false), ("panic", false)];

#[tokio::test(flavor = "multi_thread")]
async fn a_group_rests_whatever_becomes_of_the_attempt() {
    for hold in sample(HOLDS) {
        // Two side by side, because nearly all of their time is a rest.
        for ends in size(&ENDS[..2], &ENDS[..]).chunks(2) {
            join_all(ends.iter().map(|(ends, writes)| group_rests(hold, ends, *writes))).await;
        }
    }
}

async fn group_rests(hold: Hold, ends: &str, writes: bool) {
    let (database, log) = (database().await, Log::default());
    let pool = database.pool();
    by_hand(pool, "create table public.step (job bigint)").await;
    let first = json!({ "ends": ends, "writes": writes });
    let first = enqueue(pool, "q", "g", first).await;
    let second = enqueue(pool, "q", "g", json!({})).await;
    let options = queue("q").hold(hold).retry(RetryPolicy::new(3).base(Duration::ZERO));
    // No poll finds what is due.
    let builder = processor(&database, 10).await.poll_interval(Duration::from_secs(30));
    let run = handler_with(log.clone(), meet_limit);
    let _running = started(builder.queue(options, run)).await;
    log.wait_for(1).await;
    let resting = client().paused_groups(pool, "q").await.unwrap().remove(0);
    assert_eq!((resting.rested_by, resting.reason.as_deref()), (Some(first), Some(WHY)));
    assert_eq!(resting.until.unwrap().to_rfc3339()[..23], log.entries()[0][..23]);
    // Other groups go on, and jobs without a group.
    let other = enqueue(pool, "q", "other", json!({})).await;
    let plain = seriatim::enqueue(pool, NewJob::new("q", &json!({}))).await.unwrap().id();
    for id in [other, plain] {
        assert!(begun_after(pool, &log, id).await < TimeDelta::zero(), "{hold:?} {ends}");
    }
    for id in [first, second] {
        let late = begun_after(pool, &log, id).await;
        assert!(late >= TimeDelta::zero(), "{hold:?} {ends}: {late}");
        assert!(late < TimeDelta::seconds(10), "no poll: {hold:?} {ends}: {late}");
        println!("{hold:?} {ends} {writes}: {} ms late", late.num_milliseconds());
    }
    let seen = job(pool, first).await;
    let snoozed = u32::from(["snooze", "soon"].contains(&ends));
    assert_eq!(seen.status, JobStatus::Succeeded);
    assert_eq!((seen.snoozes, seen.attempts_forgiven), (snoozed, snoozed));
    // The writes of the first attempt are gone.
    assert_eq!(value::<i64>(pool, "select count(*) from public.step").await, 0);
    assert!(client().paused_groups(pool, "q").await.unwrap().is_empty());
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.operation").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_rests_as_a_whole() {
    for hold in sample(HOLDS) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        let first = json!({ "ends": "snooze", "rests": "queue" });
        let first = seriatim::enqueue(pool, NewJob::new("q", &first)).await.unwrap().id();
        let idle = handler(async |_, data| Ok(data));
        let builder = processor(&database, 10).await.poll_interval(Duration::from_secs(30));
        let run = handler_with(log.clone(), meet_limit);
        let builder = builder.queue(queue("q").hold(hold), run).queue(queue("other"), idle);
        let _running = started(builder).await;
        log.wait_for(1).await;
        let resting = client().paused_queue(pool, "q").await.unwrap().unwrap();
        assert_eq!((resting.rested_by, resting.reason.as_deref()), (Some(first), Some(WHY)));
        let grouped = enqueue(pool, "q", "g", json!({})).await;
        let plain = seriatim::enqueue(pool, NewJob::new("q", &json!({}))).await.unwrap().id();
        let other = enqueue(pool, "other", "g", json!({})).await;
        assert!(begun_after(pool, &log, other).await < TimeDelta::zero());
        for id in [first, grouped, plain] {
            let late = begun_after(pool, &log, id).await;
            assert!(late >= TimeDelta::zero() && late < TimeDelta::seconds(10), "{hold:?} {late}");
            println!("{hold:?} queue: {} ms late", late.num_milliseconds());
        }
        assert_eq!(client().paused_queue(pool, "q").await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_the_same_turn_stop_at_a_rest() {
    for hold in sample(HOLDS) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        // It has done its work, and the next one would be too much.
        let first = enqueue(pool, "q", "g", json!({ "ends": "ok" })).await;
        let behind = [(); 3].map(|()| job_of("q", "g", json!({})));
        let behind = seriatim::enqueue_many(pool, behind).await.unwrap();
        let options = queue("q").hold(hold).time_slice(Duration::from_secs(30));
        let _running = serve(&database, 10, options, handler_with(log.clone(), meet_limit)).await;
        for each in behind {
            assert!(begun_after(pool, &log, each.id()).await >= TimeDelta::zero(), "{hold:?}");
        }
        assert_eq!(job(pool, first).await.status, JobStatus::Succeeded);
    }
}

/// Answers each call of the test with what the handler's own call returned.
#[derive(Clone, Default)]
struct Script {
    log: Log,
    gate: Gate,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rest_never_shortens_and_an_operator_ends_it_early() {
    for (hold, group) in HOLDS.into_iter().zip([Some("g"), None]) {
        let (database, script) = (database().await, Script::default());
        let pool = database.pool();
        let run = handler_with(script.clone(), async |Script { log, gate }, job, data| {
            if data.is_null() {
                return Ok(data);
            }
            for (seconds, why) in [(-60, "past"), (60, "a"), (30, "sooner"), (90, "later")] {
                gate.passed().await;
                let until = in_ms(seconds * 1_000);
                let counts = match data["queue"].as_bool() {
                    Some(true) => job.rest_queue(until, why).await?,
                    _ => job.rest_group(until, why).await?,
                };
                log.add(format!("{why} {counts}"));
            }
            for _ in 0..3 {
                gate.passed().await;
                let until = in_ms(120_000);
                let counts = match data["queue"].as_bool() {
                    Some(true) => job.rest_queue(until, "last").await?,
                    _ => job.rest_group(until, "last").await?,
                };
                log.add(format!("last {counts}"));
            }
            Ok(Value::Null)
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        let first = enqueue(pool, "q", "g", json!({ "queue": group.is_none() })).await;
        let paused = async || {
            if group.is_some() {
                let pause = client().paused_groups(pool, "q").await.unwrap().pop();
                pause.map(|pause| (pause.since, pause.reason, pause.until, pause.rested_by))
            } else {
                let pause = client().paused_queue(pool, "q").await.unwrap();
                pause.map(|pause| (pause.since, pause.reason, pause.until, pause.rested_by))
            }
        };
        let next = async |count: usize| {
            script.gate.pass(1);
            script.log.wait_for(count).await;
            script.log.entries()[count - 1].clone()
        };
        assert_eq!(next(1).await, "past false");
        assert_eq!(paused().await, None);
        assert_eq!(next(2).await, "a true");
        let (since, reason, until, by) = paused().await.unwrap();
        assert_eq!((reason.as_deref(), by), (Some("a"), Some(first)));
        assert_eq!(next(3).await, "sooner false");
        assert_eq!(paused().await.unwrap(), (since, reason, until, by));
        assert_eq!(next(4).await, "later true");
        let later = paused().await.unwrap();
        assert_eq!((later.0, later.1.as_deref(), later.3), (since, Some("later"), Some(first)));
        assert!(later.2 > until);
        // An operator's pause goes before a rest, also with a sooner end; one that lasts longer, or
        // has no end, stays as it is.
        let ann = client().operator("ann", "deploy");
        let pause = async |until: Option<DateTime<Utc>>| match (group, until) {
            (Some(group), Some(end)) => ann.pause_group_until(pool, "q", group, end).await,
            (Some(group), None) => ann.pause_group(pool, "q", group).await,
            (None, Some(end)) => ann.pause_queue_until(pool, "q", end).await,
            (None, None) => ann.pause_queue(pool, "q").await,
        };
        for end in [Some(in_ms(3_600_000)), None] {
            pause(end).await.unwrap();
            let before = paused().await.unwrap();
            assert_eq!((before.1.as_deref(), before.3), (Some("deploy"), None));
            assert_eq!(before.2.is_some(), end.is_some());
            assert_eq!(next(5 + usize::from(end.is_none())).await, "last false");
            assert_eq!(paused().await.unwrap(), before);
        }
        pause(Some(in_ms(60_000))).await.unwrap();
        assert_eq!(next(7).await, "last true");
        assert_eq!(paused().await.unwrap().3, Some(first));
        // It is ended by an operator.
        let waits = enqueue(pool, "q", "g", Value::Null).await;
        ended(pool, first).await;
        assert_eq!(job(pool, waits).await.status, JobStatus::Queued);
        let resume = async || match group {
            Some(group) => ann.resume_group(pool, "q", group).await,
            None => ann.resume_queue(pool, "q").await,
        };
        resume().await.unwrap();
        ended(pool, waits).await;
        assert!(matches!(resume().await, Err(ControlError::NotPaused { .. })), "{hold:?}");
        assert_eq!(paused().await, None);
        let left = "select (select count(*) from seriatim.queue) + \
                    (select count(*) from seriatim.group_setting)";
        assert_eq!(value::<i64>(pool, left).await, 0, "an ended rest leaves no row");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_lost_its_claim_lets_nothing_rest() {
    for hold in sample(HOLDS) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        let run = handler_with(log.clone(), async |log, job, _| {
            if job.attempt() > 1 {
                return Ok(Value::Null);
            }
            log.add("began");
            // An end that is over makes no rest; until the claim is lost, it is no error.
            let lost = loop {
                if let Err(error) = job.rest_group(in_ms(-1_000), WHY).await {
                    break error;
                }
            };
            log.add(lost.to_string());
            let lost = [
                job.rest_group(Utc::now() + HOUR, WHY).await,
                job.rest_queue(Utc::now() + HOUR, WHY).await,
            ];
            log.add(format!("{lost:?}"));
            std::future::pending().await
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        let id = enqueue(pool, "q", "g", 1).await;
        log.wait_for(1).await;
        operator().abort(pool, id).await.unwrap();
        log.wait_for(3).await;
        let words = "nothing rests for job 1: another worker has taken its claim over";
        let lost = RestError::TakenOver { job: id };
        assert_eq!(
            log.entries()[1..],
            [words.to_owned(), format!("[Err({lost:?}), Err({lost:?})]")]
        );
        assert!(client().paused_groups(pool, "q").await.unwrap().is_empty(), "{hold:?}");
        assert_eq!(client().paused_queue(pool, "q").await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rest_that_cannot_be_is_refused_with_advice() {
    let (database, log) = (database().await, Log::default());
    let pool = database.pool();
    // An attempt waits for 5 s before it is told that the pause is locked.
    let waits = size(false, true);
    let run = handler_with((log.clone(), waits), async |(log, waits), job, _| {
        let refused = job.rest_group(in_ms(1_000), WHY).await.unwrap_err();
        log.add(refused.to_string());
        for until in [Utc::now() + TimeDelta::days(36_600), DateTime::<Utc>::MAX_UTC] {
            let refused = job.rest_queue(until, WHY).await.unwrap_err();
            assert!(matches!(refused, RestError::OutOfRange { .. }), "{refused:?}");
            assert!(refused.to_string().contains("within 100 years"), "{refused}");
        }
        if waits {
            // Its own transaction has the row of the pause, and waits for this call to return.
            operator().pause_queue(job.tx().await?, "q").await?;
            let refused = job.rest_queue(in_ms(60_000), WHY).await.unwrap_err();
            assert!(matches!(refused, RestError::Busy { .. }), "{refused:?}");
            log.add(refused.to_string());
        }
        Err(JobError::fail("as it should"))
    });
    let _running = serve(&database, 10, queue("q").hold(HOLDS[0]), run).await;
    let id = seriatim::enqueue(pool, NewJob::new("q", &1)).await.unwrap().id();
    let failed = ended(pool, id).await;
    assert_eq!(failed.error.unwrap().message, "as it should");
    let words = [
        "job 1 has no group that could rest: call rest_queue to let its queue rest",
        "nothing rests for job 1: the pause is locked by another transaction, try again",
    ];
    assert_eq!(log.entries(), words[..=usize::from(waits)]);
    assert_eq!(client().paused_queue(pool, "q").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_handlers_may_ask_at_once() {
    const JOBS: usize = 20;
    for hold in sample(HOLDS) {
        let (database, script) = (database().await, Script::default());
        let pool = database.pool();
        let run = handler_with(script.clone(), async |Script { log, gate }, job, _| {
            log.add("began");
            gate.passed().await;
            let own = job.rest_group(in_ms(3_600_000), WHY).await?;
            let until = in_ms(3_600_000) + TimeDelta::seconds(job.id());
            let counts = job.rest_queue(until, &format!("{}", job.id())).await?;
            log.add(format!("{own} {counts}"));
            Err(JobError::snooze(HOUR))
        });
        let options = queue("q").hold(hold).concurrency(JOBS);
        let _running = serve(&database, 50, options, run).await;
        let jobs = (0..JOBS).map(|n| job_of("q", &format!("g{n}"), n));
        let jobs = seriatim::enqueue_many(pool, jobs).await.unwrap();
        script.log.wait_for(JOBS).await;
        script.gate.pass(JOBS);
        for each in &jobs {
            job_when(pool, each.id(), |job| job.snoozes == 1).await;
        }
        // The one that lasts the longest counts, in whatever order they came.
        let last = jobs.last().unwrap().id();
        let rest = client().paused_queue(pool, "q").await.unwrap().unwrap();
        assert_eq!((rest.rested_by, rest.reason), (Some(last), Some(last.to_string())), "{hold:?}");
        assert_eq!(client().paused_groups(pool, "q").await.unwrap().len(), JOBS);
        let entries = script.log.entries();
        assert!(entries.iter().all(|entry| entry == "began" || entry.starts_with("true ")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rest_is_told_as_one() {
    let (database, log) = (database().await, Log::default());
    let (pool, client) = (database.pool(), client());
    let run = handler_with(log.clone(), async |log, job, _| {
        job.rest_group(Utc::now() + Duration::from_secs(25), WHY).await?;
        job.rest_queue(Utc::now() + HOUR, "the partner\nis down").await?;
        log.add("rests");
        Err(JobError::snooze(Duration::ZERO))
    });
    let _running = serve(&database, 10, queue("q"), run).await;
    let first = enqueue(pool, "q", "g", 1).await;
    let behind = enqueue(pool, "q", "g", 2).await;
    log.wait_for(1).await;
    job_when(pool, first, |job| job.snoozes == 1).await;
    let says = async |id| client.explain_job(pool, id).await.unwrap().unwrap().to_string();
    let told = says(first).await;
    assert!(
        told.starts_with("Job 1 of group \"g\" waits because its queue rests until 2"),
        "{told}"
    );
    let words = " (in 60 min): job 1 asked for that (the partner is down). 1 job waits behind job 1. \
                 It goes on by itself; call resume_queue to end the rest now.";
    assert!(told.ends_with(words), "{told}");
    let queues = client.queues(pool).await.unwrap();
    assert_eq!(queues[0].paused.as_ref().unwrap().rested_by, Some(first));

    operator().resume_queue(pool, "q").await.unwrap();
    let told = says(behind).await;
    let words =
        "Job 2 waits behind job 1 of group \"g\", which waits because its group rests until";
    assert!(told.starts_with(words), "{told}");
    assert!(told.contains(" s): job 1 asked for that (429 from Stripe). It goes on by"), "{told}");
    assert!(told.ends_with("itself; call resume_group to end the rest now."), "{told}");
    let group = client.explain_group(pool, "q", "g").await.unwrap();
    let reason = serde_json::to_value(&group.reason).unwrap();
    assert_eq!((&reason["reason"], &reason["rested_by"]), (&json!("group_paused"), &json!(first)));
    let seconds = reason["seconds_left"].as_f64().unwrap();
    assert!(seconds > 0.0 && seconds <= 25.0, "{seconds}");
    let listed = client.groups(pool, "q", &GroupFilter::default()).await.unwrap().groups.remove(0);
    assert_eq!((listed.state, listed.rested_by), (GroupState::Paused, Some(first)));
    assert_eq!(listed.pause_reason.as_deref(), Some(WHY));
    let stopped: Value = value(
        pool,
        "select jsonb_agg(jsonb_build_array(state, queue, group_id, job, reason)) from seriatim.stopped",
    )
    .await;
    assert_eq!(stopped, json!([["paused", "q", "g", first, WHY]]));

    // A pause of an operator is told as before.
    client.operator("ann", "deploy").pause_group(pool, "q", "g").await.unwrap();
    let told = says(first).await;
    assert!(
        told.contains("its group has been paused since") && told.contains("(deploy)"),
        "{told}"
    );
    let listed = client.groups(pool, "q", &GroupFilter::default()).await.unwrap().groups.remove(0);
    assert_eq!(listed.rested_by, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_lets_its_group_or_queue_rest() {
    let database = database().await;
    let (pool, client) = (database.pool(), client());
    let first = enqueue(pool, "q", "g", 1).await;
    let plain = seriatim::enqueue(pool, NewJob::new("q", &1)).await.unwrap().id();
    let receive = async || client.receive(pool, Receive::new("q").max(10)).await.unwrap();
    let receipt = async |id: i64| {
        let received = receive().await;
        received.into_iter().find(|job| job.id == id).unwrap().receipt
    };
    let jobs = receive().await;
    assert_eq!(jobs.len(), 2);
    let of = |id: i64| jobs.iter().find(|job| job.id == id).unwrap().receipt;
    let until = in_ms(1_500);
    let long = "x".repeat(5_000) + "\0";
    assert!(client.rest_group(pool, &of(first), until, &long).await.unwrap());
    assert!(!client.rest_group(pool, &of(first), until, WHY).await.unwrap(), "it stands already");
    let rests = client.paused_groups(pool, "q").await.unwrap().remove(0);
    assert_eq!(rests.rested_by, Some(first));
    assert_eq!(rests.reason.unwrap(), "x".repeat(4_000));
    client.snooze(pool, &of(first), Duration::ZERO, 100).await.unwrap();
    for gone in [
        client.rest_group(pool, &of(first), in_ms(60_000), WHY).await,
        client.rest_queue(pool, &of(first), in_ms(60_000), WHY).await,
    ] {
        assert!(matches!(gone, Err(ReceiveError::Stale { job }) if job == first), "{gone:?}");
    }
    // A job without a group.
    let refused = client.rest_group(pool, &of(plain), in_ms(60_000), WHY).await.unwrap_err();
    assert!(matches!(refused, ReceiveError::Refused { .. }), "{refused:?}");
    assert!(refused.to_string().contains("has no group that could rest"), "{refused}");
    // In a transaction it counts when that commits.
    let mut tx = pool.begin().await.unwrap();
    assert!(client.rest_queue(&mut *tx, &of(plain), in_ms(60_000), WHY).await.unwrap());
    let busy = client.rest_queue(pool, &of(plain), in_ms(60_000), WHY).await;
    assert!(matches!(busy, Err(ReceiveError::Busy { job }) if job == plain), "{busy:?}");
    tx.rollback().await.unwrap();
    assert_eq!(client.paused_queue(pool, "q").await.unwrap(), None);
    // The group comes again when its rest is over.
    let again = loop {
        if let Some(job) = receive().await.pop() {
            break job;
        }
        assert!(Utc::now() < until + TimeDelta::seconds(10), "nothing came");
    };
    assert_eq!(again.id, first);
    assert!(job(pool, first).await.last_started_at >= Some(until));
    // In SQL; and a bad call does nothing.
    let sql = async |arguments: &str| {
        let sql = format!("select seriatim.rest('{}', {arguments})", again.receipt);
        sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(sql)).fetch_one(pool).await
    };
    for bad in ["null", "'infinity'", "now() + interval '101 years'", "now(), 'x', null"] {
        let refused = sql(bad).await.unwrap_err();
        let code = refused.as_database_error().and_then(|error| error.code().map(String::from));
        assert_eq!(code.as_deref(), Some("22023"), "{bad}: {refused}");
    }
    assert_eq!(sql("now() - interval '1 s'").await.unwrap(), "kept");
    assert!(client.paused_groups(pool, "q").await.unwrap().is_empty());
    assert_eq!(sql("now() + interval '1 h'").await.unwrap(), "done");
    assert_eq!(client.paused_groups(pool, "q").await.unwrap()[0].reason, None);
    assert_eq!(sql("now() + interval '1 h', 'all', true").await.unwrap(), "done");
    assert_eq!(sql("now() + interval '1 min', 'less', true").await.unwrap(), "kept");
    assert_eq!(client.paused_queue(pool, "q").await.unwrap().unwrap().rested_by, Some(first));
    assert!(receive().await.is_empty());
    operator().resume_queue(pool, "q").await.unwrap();
    client.ack(pool, &of(plain)).await.unwrap();
    operator().resume_group(pool, "q", "g").await.unwrap();
    client.nack(pool, &again.receipt, Duration::ZERO).await.unwrap();
    client.ack(pool, &receipt(first).await).await.unwrap();
}

/// A job whose visibility is over may be received again at any time, and its first receiver is
/// refused from then on.
#[tokio::test]
async fn a_receiver_that_was_too_late_lets_nothing_rest() {
    let database = database().await;
    let (pool, client) = (database.pool(), client());
    by_hand(pool, "select seriatim.configure_queue('q', '{\"strict_visibility\": true}')").await;
    enqueue(pool, "q", "g", 1).await;
    seriatim::enqueue(pool, NewJob::new("q", &1)).await.unwrap();
    let what = Receive::new("q").max(10).visibility(Duration::ZERO);
    let received = client.receive(pool, what).await.unwrap();
    assert_eq!(received.len(), 2);
    for job in received {
        let late = client.rest_queue(pool, &job.receipt, Utc::now() + HOUR, WHY).await;
        assert!(matches!(late, Err(ReceiveError::Stale { .. })), "{late:?}");
    }
    assert_eq!(client.paused_queue(pool, "q").await.unwrap(), None);
}
