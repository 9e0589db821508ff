//! `seriatim tail`: the jobs of a queue as they begin, report and end.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use seriatim::JobStatus;
use tokio::time::sleep;

use crate::args::Tail;
use crate::failure::Failure;
use crate::output::text::{clock, in_words, since, visible};
use crate::output::{json_line, line, remark};
use crate::session::Session;
use crate::sql::JobLine;

/// Between two looks. Each is one statement and its transaction.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A job's end has a time before that of its commit: ends are looked for this far back.
const OVERLAP: chrono::Duration = chrono::Duration::seconds(5);

/// A change in a job's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Began,
    /// It has reported how far it is.
    Progress,
    Succeeded,
    Failed,
    Cancelled,
    /// An attempt ended, and there will be another.
    GivenBack,
    /// It ended, and jobs that end so are not kept.
    Gone,
}

#[derive(Debug, Serialize)]
struct Event {
    at: DateTime<Utc>,
    #[serde(rename = "event")]
    what: What,
    job: i64,
    queue: String,
    group: Option<String>,
    name: Option<String>,
    attempt: u32,
    seconds: Option<f64>,
    due_at: Option<DateTime<Utc>>,
    error: Option<seriatim::Failure>,
    progress: Option<seriatim::Progress>,
}

/// The jobs seen so far.
struct Seen {
    running: HashMap<i64, JobLine>,
    /// Attempts that ended, as far back as a look reads.
    ended: HashMap<(i64, u32), DateTime<Utc>>,
}

/// Follows a queue until it is interrupted.
pub(crate) async fn run(session: &Session, tail: &Tail) -> Result<(), Failure> {
    let began = session.now().await?;
    let doubt = session.client.doubt_about(&mut *session.read().await?, &tail.queue).await?;
    if let Some(doubt) = doubt {
        remark(session.form, &doubt);
    }
    let mut seen = Seen { running: HashMap::new(), ended: HashMap::new() };
    loop {
        let running: Vec<_> = seen.running.keys().copied().collect();
        let from = seen.ended.values().max().map_or(began, |last| (*last - OVERLAP).max(began));
        let look = session.look(&tail.queue, tail.group.as_deref(), from, &running).await?;
        for event in seen.compare(look.jobs, look.now) {
            print(session, &event, look.now)?;
        }
        seen.ended.retain(|_, at| *at >= from);
        sleep(LOOK_EVERY).await;
    }
}

impl Seen {
    /// Returns what has happened since the last look, in the order in which it did.
    fn compare(&mut self, jobs: Vec<JobLine>, now: DateTime<Utc>) -> Vec<Event> {
        let mut events = Vec::new();
        let mut found = HashSet::new();
        for job in jobs.into_iter().filter(|job| found.insert(job.id)).collect::<Vec<_>>() {
            let before = self.running.remove(&job.id);
            let reported = reported(before.as_ref(), &job).then_some(What::Progress);
            let what = match job.status {
                JobStatus::Started => {
                    let is_new = before.is_none_or(|before| before.attempts != job.attempts);
                    self.running.insert(job.id, job.clone());
                    is_new.then_some(What::Began)
                }
                JobStatus::Succeeded => Some(What::Succeeded),
                JobStatus::Failed => Some(What::Failed),
                JobStatus::Cancelled => Some(What::Cancelled),
                _ => before.map(|_| What::GivenBack),
            };
            if let Some(end) = job.finished_at
                && self.ended.insert((job.id, job.attempts), end).is_some()
            {
                continue;
            }
            events.extend(what.into_iter().chain(reported).map(|what| Event::of(what, &job, now)));
        }
        let gone: Vec<_> = self.running.keys().filter(|id| !found.contains(id)).copied().collect();
        for job in gone.into_iter().filter_map(|id| self.running.remove(&id)) {
            events.push(Event::of(What::Gone, &job, now));
        }
        events.sort_by_key(|event| (event.at, event.job));
        events
    }
}

/// Returns whether a job that runs has reported since the look before. A report of an attempt
/// before this one does not tell where this one is.
fn reported(before: Option<&JobLine>, job: &JobLine) -> bool {
    let Some(progress) = &job.progress else { return false };
    job.status == JobStatus::Started
        && job.last_started_at.is_none_or(|began| progress.at >= began)
        && before.and_then(|before| before.progress.as_ref()) != Some(progress)
}

impl Event {
    fn of(what: What, job: &JobLine, now: DateTime<Utc>) -> Self {
        let at = match what {
            What::Began => job.last_started_at,
            What::Progress => job.progress.as_ref().map(|progress| progress.at),
            _ => job.finished_at,
        };
        let took = job.finished_at.and_then(|end| (end - job.last_started_at?).to_std().ok());
        let failed = matches!(what, What::Failed | What::GivenBack);
        Self {
            at: at.unwrap_or(now),
            what,
            job: job.id,
            queue: job.queue.clone(),
            group: job.group.clone(),
            name: job.name.clone(),
            attempt: job.attempts,
            seconds: took.map(|took| took.as_secs_f64()),
            due_at: (what == What::GivenBack).then_some(job.run_at),
            error: job.error.clone().filter(|_| failed),
            progress: job.progress.clone().filter(|_| what == What::Progress),
        }
    }
}

fn print(session: &Session, event: &Event, now: DateTime<Utc>) -> Result<(), Failure> {
    if session.json() {
        return json_line(event);
    }
    let word = match event.what {
        What::Began => "began",
        What::Progress => "progress",
        What::Succeeded => "succeeded",
        What::Failed => "FAILED",
        What::Cancelled => "cancelled",
        What::GivenBack => "given back",
        What::Gone => "gone",
    };
    let group = event.group.as_ref().map(|group| format!(" of {group}")).unwrap_or_default();
    let name = event.name.as_ref().map(|name| format!("{name}, ")).unwrap_or_default();
    let mut text = format!("job {}{group} ({name}attempt {}", event.job, event.attempt);
    if let Some(seconds) = event.seconds {
        let took = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        text = format!("{text}, {}", in_words(took));
    }
    text.push(')');
    if let Some(due) = event.due_at {
        text = format!("{text}, due {}", since(due, now));
    }
    if let Some(progress) = &event.progress {
        text = format!("{text}: {progress}");
    }
    if let Some(error) = &event.error {
        text = format!("{text}: {}", error.message);
    }
    line(&format!("{}  {word:<10}  {}", clock(event.at), visible(&text)))
}
