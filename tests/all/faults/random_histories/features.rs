//! Limit keys, batches and a schedule: they are set up, and what they did is noted.

use std::time::Duration;

use serde_json::json;
use seriatim::admin::{BatchState, QueueSettings, Rate};
use seriatim::{BatchEnd, Client, Missed, NewBatch, NewJob, Schedule};
use sqlx::{AssertSqlSafe, PgExecutor, PgPool};

use super::produce::QUEUE;
use super::program::Limits;
use super::recorder::{Recorder, now};
use crate::support::operator;
use seriatim_history::event::{Counted, Event, Name, Time, When};

/// A job's name in the history, in SQL. The queue makes many jobs with the same data.
pub const NAME: &str =
    "(data->>'name' || case when data->'made' is null then '' else '#' || id end)";

/// The data of jobs that the queue itself makes.
pub fn made(name: &Name) -> serde_json::Value {
    json!({ "name": name.0, "made": true, "plan": [], "does": "BeSeen" })
}

/// Sets the limits, and the attempts that received jobs and those of schedules have as well.
pub async fn set_limits(pool: &PgPool, recorder: &Recorder, limits: Limits, attempts: u32) {
    let settings = QueueSettings::new(QUEUE).max_attempts(attempts);
    let settings = match limits.rate {
        Some((rate, burst)) => settings.rate(Rate::per_second(rate).burst(burst)),
        None => settings,
    };
    let settings = match limits.spacing {
        Some(ms) => settings.group_spacing(Duration::from_millis(ms)),
        None => settings,
    };
    Client::default().configure_queue(pool, settings).await.unwrap();
    if limits.per_key.is_some() {
        set_limit_per_key(pool, recorder, limits.per_key).await;
    }
}

pub async fn set_limit_per_key(pool: &PgPool, recorder: &Recorder, limit: Option<u32>) {
    let begin = now();
    let settings = QueueSettings::new(QUEUE).limit_per_key(limit);
    Client::default().configure_queue(pool, settings).await.unwrap();
    let (queue, of) = (QUEUE.to_owned(), Counted::Key);
    recorder.note(&Event::Limit { queue, of, limit, begin, end: now() });
}

pub fn batch(number: usize) -> Name {
    Name(format!("b{number}"))
}

/// Opens a batch, and returns its id if there was an answer.
pub async fn open(
    executor: impl PgExecutor<'_>,
    recorder: &Recorder,
    name: &Name,
    follow_up_group: &str,
    all_succeed: bool,
) -> Option<i64> {
    let (begin, batch) = (now(), name.clone());
    let follow_up = NewJob::new(QUEUE, &made(name)).group(follow_up_group);
    let (end, when) = if all_succeed {
        (BatchEnd::AllSucceeded, When::AllSucceeded)
    } else {
        (BatchEnd::AllEnded, When::AllEnded)
    };
    // For the case that there is no answer.
    recorder.note(&Event::Batch { batch: batch.clone(), when, begin, end: None });
    let new = NewBatch::new(&name.0, follow_up).when(end);
    let id = Client::default().open_batch(executor, new).await.ok()?;
    recorder.note(&Event::Batch { batch, when, begin, end: Some(now()) });
    Some(id)
}

/// Seals a batch, which may be sealed. Returns whether there was an answer.
pub async fn seal(
    executor: impl PgExecutor<'_>,
    recorder: &Recorder,
    name: &Name,
    id: i64,
) -> bool {
    let (begin, batch) = (now(), name.clone());
    recorder.note(&Event::Seal { batch: batch.clone(), begin, end: None });
    let answered = Client::default().seal_batch(executor, id).await.is_ok();
    if answered {
        recorder.note(&Event::Seal { batch, begin, end: Some(now()) });
    }
    answered
}

/// Returns whether a batch is left that waits for its jobs' ends, or for its follow-up.
pub async fn batches_go_on(pool: &PgPool) -> Result<bool, seriatim::BatchError> {
    let batches = Client::default().batches(pool, None, true).await?;
    let goes_on = |state| matches!(state, BatchState::Running | BatchState::Ending);
    Ok(batches.iter().any(|batch| goes_on(batch.state)))
}

/// Stores a schedule that makes a job each second, also for each time that it missed or only for
/// the last.
pub async fn start_schedule(pool: &PgPool, name: &str, group: &str, missed: Missed) {
    let job = NewJob::new(QUEUE, &made(&Name::from(name))).group(group);
    let schedule = Schedule::every(name, Duration::from_secs(1)).missed(missed).job(job);
    let mut conn = pool.acquire().await.unwrap();
    operator().set_schedule(&mut conn, schedule).await.unwrap();
}

/// Ends a schedule behind all that was due, and notes it. Without `all`, times may be missed.
pub async fn end_schedule(pool: &PgPool, recorder: &Recorder, name: &str, all: bool) {
    let micros = |time: &str| format!("floor(extract(epoch from {time}) * 1000000)::int8");
    let sql = format!(
        "select {}, {}, next_fire > clock_timestamp() from seriatim.schedule where name = $1",
        micros("counts_from"),
        micros("clock_timestamp()")
    );
    let begun = std::time::Instant::now();
    let (from, until) = loop {
        let row = sqlx::query_as(AssertSqlSafe(sql.clone())).bind(name).fetch_one(pool).await;
        let (from, until, is_up_to_date): (Time, Time, bool) = row.unwrap();
        // The checker finds what is missing.
        if is_up_to_date || begun.elapsed() > crate::support::PATIENCE {
            break (from, until);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    operator().pause_schedule(pool, name).await.unwrap();
    let until = all.then_some(until);
    recorder.note(&Event::Schedule { schedule: name.into(), every: 1_000_000, from, until });
}

/// Its id, its name in the history, its group, what made it, and when it was due.
type Made = (i64, String, Option<String>, String, Option<Time>);

/// Notes the jobs with ids above `since` that the queue made itself. They were not there before
/// `begin`.
pub async fn note_made(pool: &PgPool, recorder: &Recorder, since: i64, begin: Time) {
    let sql = format!(
        "select id, {NAME}, group_id, data->>'name',
           floor(extract(epoch from (headers->>'seriatim-scheduled-for')::timestamptz) * 1000000)::int8
         from seriatim.job where id > $1 and data->'made' is not null"
    );
    let jobs: Vec<Made> =
        sqlx::query_as(AssertSqlSafe(sql)).bind(since).fetch_all(pool).await.unwrap();
    let end = now();
    for (place, job, group, by, due) in jobs {
        let by = Name(by);
        let (batch, schedule) = if due.is_some() { (None, Some(by)) } else { (Some(by), None) };
        recorder.note(&Event::Made {
            job: Name(job),
            batch,
            schedule,
            due,
            queue: QUEUE.to_owned(),
            group: group.map(Name),
            begin,
            end,
            place: Some(place),
        });
    }
}
