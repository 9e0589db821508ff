//! A Mermaid sequence diagram of a few groups of the run, from the records of the database.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use seriatim::{Client, Job};
use sqlx::PgPool;

use crate::Result;
use crate::fleet::Fleet;

const GROUPS: usize = 3;
const JOBS_OF_A_GROUP: usize = 4;
const EVENTS: usize = 48;

/// The jobs that were enqueued, by group in the order of the groups' first jobs.
#[derive(Default)]
pub(crate) struct Enqueued {
    groups: Vec<(String, Vec<i64>)>,
    places: BTreeMap<String, usize>,
}

impl Enqueued {
    pub(crate) fn add(&mut self, group: &str, job: i64) {
        let place = *self.places.entry(group.to_owned()).or_insert_with(|| {
            self.groups.push((group.to_owned(), Vec::new()));
            self.groups.len() - 1
        });
        self.groups[place].1.push(job);
    }

    /// Returns the groups to show: first those that lost a worker, then those with a few jobs, then
    /// any.
    fn chosen(&self, reruns: &[i64]) -> Vec<(&str, &[i64])> {
        let mut chosen = BTreeMap::new();
        let lost = |jobs: &[i64]| jobs.iter().position(|job| reruns.contains(job));
        let places = |wanted: &dyn Fn(&[i64]) -> bool| {
            let groups = self.groups.iter().enumerate();
            let places = groups.filter(|(_, (_, jobs))| wanted(jobs));
            places.map(|(place, _)| place).take(GROUPS).collect::<Vec<_>>()
        };
        let with_loss = places(&|jobs| lost(jobs).is_some());
        let rest = places(&|jobs| jobs.len() > 1).into_iter().chain(places(&|_| true));
        for place in with_loss.into_iter().take(2).chain(rest) {
            if chosen.len() == GROUPS {
                break;
            }
            let (group, jobs) = &self.groups[place];
            // Not the beginning of a long group, but the jobs before and after the loss.
            let from = lost(jobs).map_or(0, |place| place.saturating_sub(1));
            let to = jobs.len().min(from + JOBS_OF_A_GROUP);
            chosen.insert(place, (group.as_str(), &jobs[from..to]));
        }
        chosen.into_values().collect()
    }
}

/// One arrow or note.
struct Event {
    at: DateTime<Utc>,
    line: String,
    workers: Vec<String>,
}

/// Returns the diagram's text.
pub(crate) async fn draw(
    pool: &PgPool,
    enqueued: &Enqueued,
    reruns: &[i64],
    fleet: &Fleet,
) -> Result<String> {
    let mut events = Vec::new();
    let mut legend = String::new();
    for (letter, (group, jobs)) in ('a'..).zip(enqueued.chosen(reruns)) {
        writeln!(legend, "%% {letter}: {group}")?;
        for (number, id) in jobs.iter().enumerate() {
            let name = format!("{letter}{}", number + 1);
            if let Some(job) = Client::default().job(pool, *id).await? {
                events.extend(life(&name, &job, fleet));
            }
        }
    }
    let shown: BTreeSet<String> = events.iter().flat_map(|e| e.workers.clone()).collect();
    let killed = fleet.kills.iter().filter(|kill| shown.contains(&kill.worker));
    events.extend(killed.map(|kill| Event {
        at: kill.at,
        line: format!("note over {}: killed", kill.worker),
        workers: Vec::new(),
    }));
    events.sort_by_key(|event| event.at);
    events.truncate(EVENTS);
    let mut workers: Vec<&String> = events.iter().flat_map(|event| &event.workers).collect();
    workers.sort_by_key(|name| (name.len(), *name));
    workers.dedup();

    let mut text = String::from("sequenceDiagram\n");
    writeln!(text, "{}", legend.trim_end())?;
    writeln!(text, "    participant P as producer")?;
    writeln!(text, "    participant Q as queue")?;
    for worker in workers {
        writeln!(text, "    participant {worker}")?;
    }
    for event in &events {
        writeln!(text, "    {}", event.line)?;
    }
    Ok(text)
}

/// The events of a job: enqueued, claimed (again), done.
fn life(name: &str, job: &Job, fleet: &Fleet) -> Vec<Event> {
    let mut events = vec![Event {
        at: job.created_at,
        line: format!("P->>Q: enqueue {name}"),
        workers: Vec::new(),
    }];
    let worker_of = |attempt| fleet.runs.get(&(job.id, attempt)).cloned();
    let failed = job.history.iter().map(|a| (a.attempt, a.started_at));
    for (attempt, at) in failed.chain([(job.attempts, job.last_started_at)]) {
        // A job that was killed between its claim and its handler reported nothing.
        let (Some(at), Some(worker)) = (at, worker_of(attempt)) else {
            continue;
        };
        let again = if attempt > 1 { ", again" } else { "" };
        events.push(Event {
            at,
            line: format!("Q->>{worker}: {name}{again}"),
            workers: vec![worker],
        });
    }
    let worker = job.result.as_ref().and_then(|result| result.as_str());
    if let (Some(at), Some(worker)) = (job.finished_at, worker) {
        events.push(Event {
            at,
            line: format!("{worker}-->>Q: {name} done"),
            workers: vec![worker.to_owned()],
        });
    }
    events
}
