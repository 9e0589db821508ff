//! Writes down what the customers and the handlers of the demo see, and judges by that whether the
//! promises were kept.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use seriatim::layer::{self, Layer, Next};
use seriatim::shards::{ShardId, Shards};
use seriatim::{ActiveJob, async_trait};
use seriatim_history::event::{Delayed, Ended, Enqueued, Event, Found, Left, Name, Time};
use seriatim_history::{History, check, tell};
use sqlx::PgPool;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;

/// How long jobs that nothing holds up may take to end behind a failover.
const PATIENCE: Duration = Duration::from_mins(1);
/// Between two looks whether they have.
const LOOK: Duration = Duration::from_millis(200);

/// Writes down what is seen, until it judges.
#[derive(Clone, Default)]
pub(super) struct Witness(Arc<Shared>);

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    /// A handler has ended.
    ended: Notify,
}

#[derive(Default)]
struct Seen {
    /// It has judged, and writes nothing more.
    is_over: bool,
    events: Vec<Event>,
    /// Runs that succeeded: their job, and when they began.
    successes: Vec<(i64, DateTime<Utc>)>,
    /// Jobs that nothing but a failure holds up.
    free: Vec<i64>,
}

/// The judgement of all that was seen.
pub(super) struct Verdict {
    pub(super) jobs: usize,
    pub(super) runs: usize,
    /// The broken promises, each as a story.
    pub(super) broken: Vec<String>,
    /// How many jobs have not ended, although nothing holds them up.
    pub(super) stuck: usize,
}

impl Verdict {
    pub(super) fn is_good(&self) -> bool {
        self.broken.is_empty() && self.stuck == 0
    }
}

/// A job as its server has it.
struct Row {
    id: i64,
    queue: String,
    group_id: Option<String>,
    status: String,
    finished_at: Option<DateTime<Utc>>,
}

fn time(at: DateTime<Utc>) -> Time {
    at.timestamp_micros()
}

fn name(job: i64) -> Name {
    Name(job.to_string())
}

impl Witness {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics under the lock.
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, event: Event) {
        let mut seen = self.seen();
        if !seen.is_over {
            seen.events.push(event);
        }
    }

    /// Notes a job whose enqueue was acknowledged. `is_free`: nothing but a failure holds it up.
    pub(super) fn enqueued(
        &self,
        job: i64,
        (queue, group): (&str, String),
        begin: DateTime<Utc>,
        is_free: bool,
    ) {
        self.note(Event::Enqueue {
            job: name(job),
            queue: queue.to_owned(),
            group: Some(Name(group)),
            process: None,
            begin: time(begin),
            end: Some(time(Utc::now())),
            outcome: Enqueued::Committed,
            with: None,
            place: Some(job),
            max_attempts: None,
            run_at: None,
            limit_key: None,
            batch: None,
        });
        let mut seen = self.seen();
        if is_free && !seen.is_over {
            seen.free.push(job);
        }
    }

    /// Notes a fault that may have cost attempts.
    pub(super) fn fault(&self, what: &str, begin: DateTime<Utc>) {
        self.note(Event::Fault {
            what: what.to_owned(),
            begin: time(begin),
            end: time(Utc::now()),
        });
    }

    /// Waits until a job of a server has succeeded that began after a moment.
    pub(super) async fn works(&self, shard: ShardId, after: DateTime<Utc>) {
        loop {
            let ended = self.0.ended.notified();
            tokio::pin!(ended);
            // From here on each end is noticed.
            ended.as_mut().enable();
            if self.succeeded(after, |of| of == shard) > 0 {
                return;
            }
            ended.await;
        }
    }

    /// Returns how many runs have succeeded that began after a moment, on some servers.
    pub(super) fn succeeded(&self, after: DateTime<Utc>, on: impl Fn(ShardId) -> bool) -> usize {
        let seen = self.seen();
        let late = seen.successes.iter().filter(|(_, begun)| *begun >= after);
        late.filter(|(job, _)| ShardId::of_job(*job).is_some_and(&on)).count()
    }

    /// Waits until jobs that nothing holds up have ended, and judges. It writes nothing more.
    pub(super) async fn judge(&self, shards: &Shards) -> Result<Verdict, Failure> {
        let free = self.seen().free.clone();
        let begun = Instant::now();
        let stuck = loop {
            let stuck = unfinished(shards, &free).await?;
            if stuck == 0 || begun.elapsed() > PATIENCE {
                break stuck;
            }
            // A job's end on another server has no event here.
            sleep(LOOK).await;
        };
        let asked = Utc::now();
        let mut rows = Vec::new();
        for (_, pool) in shards.iter() {
            let all = sqlx::query_as(
                "select id, queue, group_id, status::text, finished_at from seriatim.job order by id",
            );
            let all = all.fetch_all(pool).await?.into_iter();
            rows.extend(all.map(|(id, queue, group_id, status, finished_at)| Row {
                id,
                queue,
                group_id,
                status,
                finished_at,
            }));
        }
        let events = {
            let mut seen = self.seen();
            seen.is_over = true;
            std::mem::take(&mut seen.events)
        };
        let runs = events.iter().filter(|event| matches!(event, Event::Start { .. })).count();
        let history = history(events, &rows, time(asked))?;
        let violations = check(&history);
        let broken = violations.kept.iter().map(|violation| tell(&history, violation)).collect();
        Ok(Verdict { jobs: rows.len(), runs, broken, stuck })
    }
}

/// Returns how many of these jobs have not ended.
async fn unfinished(shards: &Shards, jobs: &[i64]) -> Result<usize, Failure> {
    let mut all = 0;
    for (shard, pool) in shards.iter() {
        let own: Vec<i64> =
            jobs.iter().copied().filter(|job| ShardId::of_job(*job) == Some(shard)).collect();
        all += of_those(pool, &own).await?;
    }
    Ok(all)
}

async fn of_those(pool: &PgPool, jobs: &[i64]) -> Result<usize, Failure> {
    let sql = "select count(*) from seriatim.job where id = any($1) and finished_at is null";
    let count: i64 = sqlx::query_scalar(sql).bind(jobs).fetch_one(pool).await?;
    Ok(usize::try_from(count).unwrap_or_default())
}

/// Returns the history of what was seen, and of the jobs as their servers have them since `asked`.
fn history(events: Vec<Event>, rows: &[Row], asked: Time) -> Result<History, Failure> {
    let mut there: HashSet<Name> = rows.iter().map(|row| name(row.id)).collect();
    let mut acknowledged = HashSet::new();
    let mut missing = Vec::new();
    for event in &events {
        let Event::Enqueue { job, end, .. } = event else { continue };
        acknowledged.insert(job.clone());
        if !there.contains(job) && end.is_some_and(|end| end < asked) {
            missing.push(job.clone());
        }
    }
    let mut all = vec![Event::History {
        version: 1,
        uncertainty: 0,
        delayed: Delayed::Hold,
        followers: true,
    }];
    all.extend(missing.into_iter().map(|job| Event::Status {
        job,
        status: Found::Missing,
        forgiven: None,
    }));
    for row in rows {
        all.extend(as_found(row, acknowledged.contains(&name(row.id))));
    }
    there.extend(acknowledged);
    // Jobs that were enqueued while the servers were asked are no part of it.
    all.extend(events.into_iter().filter(|event| match event {
        Event::Start { job, .. } | Event::End { job, .. } => there.contains(job),
        _ => true,
    }));
    let mut lines = Vec::new();
    for event in &all {
        serde_json::to_writer(&mut lines, event)?;
        lines.push(b'\n');
    }
    History::read(&*lines).map_err(Failure::could_not("read what the demo has seen"))
}

/// Returns what a job says as its server has it. Handlers, batches and schedules enqueue jobs as
/// well, and nobody else is told of these.
fn as_found(row: &Row, is_acknowledged: bool) -> Vec<Event> {
    let job = name(row.id);
    let mut events = Vec::new();
    if !is_acknowledged {
        events.push(Event::Enqueue {
            job: job.clone(),
            queue: row.queue.clone(),
            group: row.group_id.clone().map(Name),
            process: None,
            begin: 0,
            end: None,
            outcome: Enqueued::Unknown,
            with: None,
            place: Some(row.id),
            max_attempts: None,
            run_at: None,
            limit_key: None,
            batch: None,
        });
    }
    let (status, left) = match row.status.as_str() {
        "succeeded" => (Found::Succeeded, None),
        "failed" => (Found::Failed, Some(Left::Failed)),
        "cancelled" => (Found::Cancelled, Some(Left::Cancelled)),
        "parked" => (Found::Parked, Some(Left::Parked)),
        // It may end while the others are asked.
        _ => return events,
    };
    events.push(Event::Status { job: job.clone(), status, forgiven: None });
    if let Some((left, at)) = left.zip(row.finished_at) {
        events.push(Event::Leave { job, left, begin: time(at), end: None });
    }
    events
}

/// A run on its way. Dropped, its handler was dropped.
struct Run<'a> {
    witness: &'a Witness,
    job: i64,
    attempt: u32,
    begun: DateTime<Utc>,
    outcome: Ended,
}

const PROCESS: &str = "demo";

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let Self { witness, job, attempt, begun, outcome } = self;
        let (process, at) = (Name::from(PROCESS), time(Utc::now()));
        witness.note(Event::End {
            job: name(*job),
            attempt: *attempt,
            process,
            at,
            outcome: *outcome,
        });
        if *outcome == Ended::Succeeded {
            let mut seen = witness.seen();
            if !seen.is_over {
                seen.successes.push((*job, *begun));
            }
        }
        witness.0.ended.notify_waiters();
    }
}

#[async_trait]
impl Layer for Witness {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> layer::Ended {
        let (id, attempt, begun) = (job.id(), job.attempt(), Utc::now());
        let process = Name::from(PROCESS);
        self.note(Event::Start { job: name(id), attempt, process, at: time(begun) });
        let outcome = Ended::Dropped;
        let mut run = Run { witness: self, job: id, attempt, begun, outcome };
        let ended = next.run(job).await;
        run.outcome = match (ended.is_success(), ended.snoozed()) {
            (true, None) => Ended::Succeeded,
            (true, Some(_)) => Ended::Again,
            (false, Some(_)) => Ended::Snoozed,
            (false, None) => Ended::Retry,
        };
        drop(run);
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: i64, status: &str) -> Row {
        let finished_at = (status == "succeeded").then(Utc::now);
        let (queue, group_id) = (String::from("orders"), Some(String::from("customer-1")));
        Row { id, queue, group_id, status: status.to_owned(), finished_at }
    }

    /// A run from one moment to another.
    fn run(job: i64, [begin, end]: [Time; 2]) -> [Event; 2] {
        let (job, process) = (name(job), Name::from(PROCESS));
        [
            Event::Start { job: job.clone(), attempt: 1, process: process.clone(), at: begin },
            Event::End { job, attempt: 1, process, at: end, outcome: Ended::Succeeded },
        ]
    }

    fn broken(events: impl IntoIterator<Item = Event>, rows: &[Row]) -> Vec<String> {
        let history = history(events.into_iter().collect(), rows, 1_000).unwrap();
        let violations = check(&history);
        violations.kept.iter().map(|violation| violation.promise.to_string()).collect()
    }

    /// An enqueue that was acknowledged at a moment.
    fn enqueued(job: i64, at: Time) -> Event {
        let witness = Witness::default();
        let begin = DateTime::from_timestamp_micros(at - 1).unwrap();
        witness.enqueued(job, ("orders", String::from("customer-1")), begin, true);
        let mut event = witness.seen().events.pop().unwrap();
        if let Event::Enqueue { end, .. } = &mut event {
            *end = Some(at);
        }
        event
    }

    #[test]
    fn a_judgement_finds_what_was_lost_overlaps_or_is_out_of_order() {
        let rows = [row(1, "succeeded"), row(2, "succeeded"), row(3, "queued")];
        let both = [enqueued(1, 2), enqueued(2, 4)];
        let with = |runs: [[Event; 2]; 2]| both.iter().cloned().chain(runs.concat());
        assert_eq!(broken(with([run(1, [10, 20]), run(2, [30, 40])]), &rows), [""; 0]);
        let overlap = broken(with([run(1, [10, 35]), run(2, [30, 40])]), &rows);
        assert!(overlap.contains(&String::from("P2 one at a time")), "{overlap:?}");
        let swapped = broken(with([run(2, [10, 20]), run(1, [30, 40])]), &rows);
        assert!(swapped.contains(&String::from("P1 order")), "{swapped:?}");
        assert_eq!(broken([enqueued(4, 5)], &rows[2..]), ["P3 nothing lost"]);
    }

    #[test]
    fn jobs_that_came_while_it_asked_are_no_part_of_it() {
        assert_eq!(broken(run(5, [1_100, 1_200]), &[row(3, "queued")]), [""; 0]);
    }
}
