//! A worker process: its handlers do what their jobs' plans say, and write down what they see.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use seriatim::observe::BackgroundError;
use seriatim::{
    ActiveJob, FailureKind, Hold, JobError, NewJob, OutOfAttempts, Processor, QueueOptions,
    Retention, RetryPolicy, Running,
};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::produce::{ATTEMPTS, QUEUE, group};
use super::program::{Rest, Sabotage, Then, Turn};
use super::recorder::{Recorder, Run, now};
use crate::support::worker_process::{input_is_closed, say};
use crate::support::{chain, handler_with};
use seriatim_history::event::{Ended, Enqueued, Event, Name, Of, Time};

/// The settings of the process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    pub url: String,
    pub folder: PathBuf,
    pub name: String,
    pub lease: Option<u64>,
    pub slots: usize,
    pub jobs_per_turn: usize,
    pub halt: bool,
    pub sweeps: bool,
    pub sabotage: Option<Sabotage>,
}

#[derive(Debug, Deserialize)]
pub struct Data {
    name: String,
    /// The queue itself makes many jobs with this name.
    #[serde(default)]
    made: bool,
    /// The handler's limit.
    timeout: Option<u64>,
    pub plan: Vec<Turn>,
}

/// How a fault begins that tells of groups which only the sweep has woken.
pub const STRANDED: &str = "Stranded";
/// The limit of handlers whose job says nothing else, in milliseconds.
const TIMEOUT: u64 = 600;

impl Data {
    /// Returns the job's name in the history.
    pub fn name_of(&self, id: i64) -> String {
        name_of(&self.name, self.made, id)
    }
}

/// Returns a job's name in the history, as `features::NAME` does.
pub fn name_of(name: &str, made: bool, id: i64) -> String {
    if made { format!("{name}#{id}") } else { name.to_owned() }
}

/// How an attempt ends that does not succeed.
enum Bad {
    Retry(JobError),
    Snooze(Duration),
    Fail,
}

impl<E: Into<JobError>> From<E> for Bad {
    fn from(error: E) -> Self {
        Self::Retry(error.into())
    }
}

pub async fn work(settings: Settings) {
    // Many panic as planned.
    std::panic::set_hook(Box::new(|panic| say(format!("panic: {panic}"))));
    let recorder = Recorder::new(&settings.folder, &settings.name);
    let options: PgConnectOptions = settings.url.parse().unwrap();
    let pool = PgPoolOptions::new()
        .max_connections(u32::try_from(settings.slots).unwrap() + 1)
        .connect_lazy_with(options.clone().application_name("worker"));
    let outside = PgPoolOptions::new().max_connections(2);
    let outside = outside.connect_lazy_with(options.application_name("outside"));
    let queue = queue(ATTEMPTS, settings.lease, settings.slots, settings.jobs_per_turn)
        .timeout(Duration::from_millis(TIMEOUT))
        .keep_cancelled(Retention::Forever)
        .out_of_attempts(if settings.halt { OutOfAttempts::Halt } else { OutOfAttempts::Continue });
    let (errors, timeouts) = (recorder.clone(), recorder.clone());
    // The attempts whose handlers have returned.
    let returned: Arc<Mutex<HashSet<(i64, u32)>>> = Arc::default();
    let ended = Arc::clone(&returned);
    let sabotage = settings.sabotage;
    let running = Processor::builder(pool)
        .poll_interval(Duration::from_millis(50))
        .maintenance_interval(if settings.sweeps {
            Duration::from_millis(100)
        } else {
            Duration::from_hours(24)
        })
        .on_error(move |error| {
            let stranded = matches!(error, BackgroundError::Stranded { .. });
            let what = if stranded { format!("{STRANDED}: ") } else { String::new() };
            say(format!("error: {error:?}"));
            errors.fault(what + &chain(error), now());
        })
        // The limit counts a round trip behind the handler, which has said how it ends by then.
        .on_event(move |event| {
            let failure = event.failure.as_ref().map(|failure| failure.kind);
            let returned = ended.lock().unwrap().contains(&(event.job, event.attempt));
            if let (true, Some(FailureKind::Timeout), Some(lasted)) =
                (returned, failure, event.duration)
            {
                let lasted = Time::try_from(lasted.as_micros()).unwrap();
                timeouts.fault(format!("job {} timed out", event.job), now() - lasted);
            }
        })
        .queue(
            queue,
            handler_with(
                (outside, recorder.clone(), sabotage, returned),
                async |(outside, recorder, sabotage, returned), job, data| {
                    let data: Data = serde_json::from_value(data).map_err(JobError::fail)?;
                    let run = recorder.start(&data.name_of(job.id()), job.attempt());
                    let beside = (sabotage == Some(Sabotage::WriteOutside)).then_some(&outside);
                    let result = attempt(job, &data, run, &recorder, beside).await;
                    returned.lock().unwrap().insert((job.id(), job.attempt()));
                    result
                },
            ),
        )
        .build()
        .unwrap()
        .start_when_ready();
    until_told(running, &recorder, Duration::from_millis(50)).await;
}

/// The options of all worker processes: short pauses between attempts, and jobs stay when they have
/// ended. With 0 jobs per turn, the library's own slice; else a slice that is likely to have so
/// many jobs.
pub fn queue(
    attempts: u32,
    lease: Option<u64>,
    slots: usize,
    jobs_per_turn: usize,
) -> QueueOptions {
    let hold = lease.map(Duration::from_millis).map_or(Hold::Transaction, Hold::Lease);
    let retry = RetryPolicy::new(attempts).base(Duration::from_millis(5));
    let options = QueueOptions::new(QUEUE);
    let options = match jobs_per_turn {
        0 => options,
        jobs => options.time_slice(Duration::from_millis(20) * u32::try_from(jobs - 1).unwrap()),
    };
    options
        .concurrency(slots)
        .retry(retry.cap(Duration::from_millis(50)))
        .hold(hold)
        .keep_succeeded(Retention::Forever)
        .keep_failed(Retention::Forever)
}

/// Says that the process is ready, and goes on until it is told to stop.
pub async fn until_told(running: Running, recorder: &Recorder, limit: Duration) {
    say("ready");
    input_is_closed().await;
    recorder.stops();
    running.shutdown(limit).await;
}

async fn attempt(
    job: &mut ActiveJob,
    data: &Data,
    mut run: Run,
    recorder: &Recorder,
    beside: Option<&PgPool>,
) -> Result<Value, JobError> {
    let turn = data.plan.get(job.attempt() as usize - 1);
    let (clock, begin) = (Instant::now(), now());
    let result = match turn {
        Some(turn) => perform(job, data, turn, &run, recorder, beside).await,
        None => Ok(()),
    };
    if clock.elapsed() >= Duration::from_millis(data.timeout.unwrap_or(TIMEOUT)) {
        // Whatever it says now, its time was over.
        recorder.fault(format!("{} took its time", data.name), begin);
    }
    // By a shutdown: whatever it says now, its failure is not held against the job.
    let released = recorder.is_stopping() && job.is_cancelled();
    match result {
        Ok(()) => {
            let again = turn.is_some_and(|turn| matches!(turn.then, Then::Again(_)));
            run.ends(if again { Ended::Again } else { Ended::Succeeded });
            Ok(json!(job.attempt()))
        }
        Err(Bad::Snooze(delay)) => {
            run.ends(if released { Ended::Released } else { Ended::Snoozed });
            Err(JobError::snooze(delay))
        }
        Err(Bad::Retry(error)) => {
            run.ends(if released { Ended::Released } else { Ended::Retry });
            Err(error)
        }
        Err(Bad::Fail) => {
            run.ends(if released { Ended::Released } else { Ended::Failed });
            Err(JobError::fail("as planned"))
        }
    }
}

async fn perform(
    job: &mut ActiveJob,
    data: &Data,
    turn: &Turn,
    run: &Run,
    recorder: &Recorder,
    beside: Option<&PgPool>,
) -> Result<(), Bad> {
    for n in 0..turn.writes.0 {
        write(job, &run.writes(n), beside).await?;
    }
    if let Some(number) = turn.follower {
        follow(job, data, number, recorder).await?;
    }
    let until = |ms| chrono::Utc::now() + Duration::from_millis(ms);
    match turn.rest {
        Some(Rest::Queue(ms)) => {
            job.rest_queue(until(ms), "as planned").await?;
        }
        Some(Rest::Group(ms)) if job.group().is_some() => {
            job.rest_group(until(ms), "as planned").await?;
        }
        Some(Rest::Group(_)) | None => {}
    }
    if turn.reports {
        job.progress(50, "half")?;
        job.checkpoint(&job.attempt()).await?;
    }
    tokio::time::sleep(Duration::from_millis(turn.ms)).await;
    for n in 0..turn.writes.1 {
        write(job, &run.writes(turn.writes.0 + n), beside).await?;
    }
    match turn.then {
        Then::Succeed => Ok(()),
        Then::Retry => Err(Bad::Retry(JobError::retry("as planned"))),
        Then::RetryAt(ms) => {
            let later = Duration::from_millis(ms);
            Err(Bad::Retry(JobError::retry_after("as planned", later)))
        }
        Then::Snooze(ms) => Err(Bad::Snooze(Duration::from_millis(ms))),
        Then::Again(ms) => {
            job.again_after(Duration::from_millis(ms));
            Ok(())
        }
        Then::Fail => Err(Bad::Fail),
        Then::Panic => panic!("as planned"),
        Then::UntilTold => {
            job.cancelled().await;
            Err(Bad::Retry(JobError::retry("told to stop")))
        }
        Then::Hang => std::future::pending().await,
    }
}

async fn write(job: &mut ActiveJob, key: &str, beside: Option<&PgPool>) -> Result<(), Bad> {
    let insert = sqlx::query("insert into public.effect (key) values ($1)").bind(key);
    match beside {
        Some(pool) => insert.execute(pool).await?,
        None => insert.execute(job.tx().await?).await?,
    };
    Ok(())
}

/// Enqueues a job in the transaction of this one.
async fn follow(
    job: &mut ActiveJob,
    data: &Data,
    number: u8,
    recorder: &Recorder,
) -> Result<(), Bad> {
    let attempt = job.attempt();
    let name = format!("{}+{attempt}", data.name);
    let (begin, process) = (now(), recorder.process());
    let note = |outcome, with, place| {
        recorder.note(&Event::Enqueue {
            job: name.as_str().into(),
            queue: QUEUE.to_owned(),
            group: Some(group(number)),
            process: Some(process.clone()),
            begin,
            end: None,
            outcome,
            with,
            place,
            max_attempts: Some(ATTEMPTS),
            run_at: None,
            limit_key: None,
            batch: None,
        });
    };
    note(Enqueued::Unknown, None, None);
    let new = NewJob::new(QUEUE, &json!({ "name": name, "plan": [] })).group(group(number).0);
    let there = seriatim::enqueue(job.tx().await?, new).await;
    let there = there.map_err(|error| Bad::Retry(error.into()))?;
    let with = Of { job: Name(data.name.clone()), attempt };
    note(Enqueued::With, Some(with), Some(there.id()));
    Ok(())
}
