//! A worker process under faults: its handlers write an effect, and do what is likely to go wrong.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use seriatim::{ActiveJob, JobError, Processor};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::produce::ATTEMPTS;
use crate::faults::random_histories::recorder::{Recorder, Run, now};
use crate::faults::random_histories::worker::{name_of, queue, until_told};
use crate::support::worker_process::say;
use crate::support::{chain, handler_with};
use seriatim_history::event::Ended;

/// The settings of the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    pub url: String,
    /// Where its handlers connect to for what they do beside their jobs.
    pub outside: String,
    pub folder: PathBuf,
    pub name: String,
    pub lease: Option<u64>,
    pub slots: usize,
    pub jobs_per_turn: usize,
    /// Between two rounds of it.
    pub maintenance: Duration,
    /// The program's version: the old one cannot read all data.
    pub new: bool,
}

/// A handler's work besides its effect.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Does {
    /// Not even an effect: under a lease its success is recorded together with those of others.
    BeSeen,
    Nothing,
    Sleep(u64),
    /// Locks two rows, in this order, with a moment between.
    Lock(u8, u8),
    /// Counts in a transaction of its own at REPEATABLE READ.
    Count,
    /// Puts its job off so many times, without its effect, ...
    Snooze(u32),
    /// ... and with it.
    Again(u32),
    /// Lets its group rest for so many milliseconds.
    Rest(u64),
    /// Reports how far it is, and leaves a checkpoint, which a later attempt has.
    Report,
    /// Only a new program can read it.
    BeNew,
    /// Fails for good, without its effect, in its first attempt.
    Fail,
}

#[derive(Debug, Deserialize)]
pub struct Data {
    pub name: String,
    /// The queue itself makes many jobs with this name.
    #[serde(default)]
    pub made: bool,
    pub does: Does,
}

/// For how long a job puts itself off.
const SNOOZE: Duration = Duration::from_millis(15);
/// For how long the host takes the whole pool.
pub const HOGGED: Duration = Duration::from_millis(1_500);

pub async fn work(settings: Settings) {
    let recorder = Recorder::new(&settings.folder, &settings.name);
    let options: PgConnectOptions = settings.url.parse().unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(u32::try_from(settings.slots).unwrap() + 1)
        .acquire_timeout(Duration::from_millis(500))
        .connect_lazy_with(options.application_name("worker"));
    let outside: PgConnectOptions = settings.outside.parse().unwrap();
    let outside = PgPoolOptions::new()
        .max_connections(2)
        .connect_lazy_with(outside.application_name("outside"));
    let queue = queue(ATTEMPTS, settings.lease, settings.slots, settings.jobs_per_turn)
        .timeout(Duration::from_secs(20));
    let errors = recorder.clone();
    tokio::spawn(hog(pool.clone(), signal(SignalKind::user_defined1()).unwrap()));
    let running = Processor::builder(pool)
        .poll_interval(Duration::from_millis(100))
        .maintenance_interval(settings.maintenance)
        .on_error(move |error| {
            let debug = format!("{error:?}");
            let variant = debug.split([' ', '(']).next().unwrap_or_default();
            say(format!("error: {variant}: {}", chain(error)));
            errors.fault(chain(error), now());
        })
        .queue(
            queue,
            handler_with(
                (outside, recorder.clone(), settings.new),
                async |(outside, recorder, new), job, data| {
                    let data: Data = serde_json::from_value(data).map_err(JobError::fail)?;
                    let name = name_of(&data.name, data.made, job.id());
                    let mut run = recorder.start(&name, job.attempt());
                    let result = match data.does {
                        Does::BeNew if !new => Err(JobError::retry("of a newer program")),
                        Does::Fail if job.attempt() == 1 => Ok(Ended::Failed),
                        _ => perform(job, &data, &run, &outside).await,
                    };
                    let released = recorder.is_stopping() && job.is_cancelled();
                    run.ends(match &result {
                        Ok(Ended::Snoozed | Ended::Failed) | Err(_) if released => Ended::Released,
                        Ok(ended) => *ended,
                        Err(_) => Ended::Retry,
                    });
                    match result? {
                        Ended::Snoozed => Err(JobError::snooze(SNOOZE)),
                        Ended::Failed => Err(JobError::fail("as planned")),
                        _ => Ok(json!(job.attempt())),
                    }
                },
            ),
        )
        .build()
        .unwrap()
        .start_when_ready();
    until_told(running, &recorder, Duration::from_secs(2)).await;
}

async fn perform(
    job: &mut ActiveJob,
    data: &Data,
    run: &Run,
    outside: &PgPool,
) -> Result<Ended, JobError> {
    if matches!(data.does, Does::BeSeen) {
        return Ok(Ended::Succeeded);
    }
    write(job, &run.writes(0)).await?;
    let mut ended = Ended::Succeeded;
    match data.does {
        Does::BeSeen | Does::Nothing | Does::BeNew | Does::Fail => return Ok(ended),
        Does::Snooze(times) if job.snoozes() < times => return Ok(Ended::Snoozed),
        Does::Again(times) if job.snoozes() < times => {
            job.again_after(SNOOZE);
            ended = Ended::Again;
        }
        Does::Snooze(_) | Does::Again(_) => {}
        Does::Rest(ms) => {
            job.rest_group(chrono::Utc::now() + Duration::from_millis(ms), "as planned").await?;
        }
        Does::Report => report(job).await?,
        Does::Sleep(ms) => sleep(Duration::from_millis(ms)).await,
        Does::Lock(a, b) => {
            for row in [a, b] {
                let lock = sqlx::query("update public.lock set n = n + 1 where id = $1");
                lock.bind(i32::from(row)).execute(job.tx().await?).await?;
                sleep(Duration::from_millis(20)).await;
            }
        }
        Does::Count => count(outside).await?,
    }
    write(job, &run.writes(1)).await?;
    Ok(ended)
}

async fn write(job: &mut ActiveJob, key: &str) -> Result<(), JobError> {
    let insert = sqlx::query("insert into public.effect (key) values ($1)").bind(key);
    insert.execute(job.tx().await?).await?;
    Ok(())
}

/// Fails for good if its checkpoint is not one that an attempt of its job has left.
async fn report(job: &mut ActiveJob) -> Result<(), JobError> {
    let last: Option<(i64, u32)> = job.last_checkpoint().await?;
    let now = (job.id(), job.attempt());
    if last.is_some_and(|(id, attempt)| id != now.0 || attempt > now.1) {
        return Err(JobError::fail(format!("{now:?} has the checkpoint {last:?}")));
    }
    job.progress(50, "half of it").map_err(JobError::fail)?;
    job.checkpoint(&now).await?;
    Ok(())
}

/// The second of two transactions has a serialization failure.
async fn count(outside: &PgPool) -> Result<(), JobError> {
    let mut tx = outside.begin_with("begin isolation level repeatable read").await?;
    let n: i64 =
        sqlx::query_scalar("select n from public.lock where id = 0").fetch_one(&mut *tx).await?;
    sleep(Duration::from_millis(10)).await;
    let update = sqlx::query("update public.lock set n = $1 where id = 0").bind(n + 1);
    update.execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

/// Takes the whole pool for a while when told so, as a careless host might.
async fn hog(pool: PgPool, mut told: Signal) -> Value {
    loop {
        told.recv().await;
        let until = Instant::now() + HOGGED;
        let mut taken = Vec::new();
        while let Ok(connection) = timeout_at(until, pool.acquire()).await {
            taken.extend(connection.ok());
        }
        sleep_until(until).await;
        drop(taken);
    }
}
