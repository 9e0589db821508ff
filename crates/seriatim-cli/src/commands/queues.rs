//! `seriatim queues`: each queue at a glance.

use seriatim::admin::{GroupCounts, JobCounts, QueueOverview};
use seriatim::explain::BoundedCount;

use crate::failure::Failure;
use crate::output::json_line;
use crate::output::table::Table;
use crate::output::text::{clock, in_words, number, since};
use crate::session::Session;

/// Lists the queues.
pub(crate) async fn run(session: &Session) -> Result<(), Failure> {
    let queues = session.client.queues(&mut *session.read().await?).await?;
    if queues.is_empty() {
        return Err(Failure::NothingMatched(String::from("no queue has a job or a setting")));
    }
    if session.json() {
        return queues.iter().try_for_each(json_line);
    }
    let now = session.now().await?;
    let mut table = Table::new(&["~queue", "~jobs", "~groups", "#waits", "~note"]);
    for queue in &queues {
        let waits = queue.oldest_due.map(|time| since(time, now)).unwrap_or_default();
        let (jobs, groups) = (jobs(&queue.jobs), groups(&queue.groups));
        table.row([queue.queue.clone(), jobs, groups, waits, note(queue)]);
    }
    table.print()
}

fn jobs(jobs: &JobCounts) -> String {
    words(&[
        (jobs.queued, "queued"),
        (jobs.delayed, "delayed"),
        (jobs.started, "started"),
        (jobs.parked, "parked"),
        (jobs.failed, "failed"),
    ])
}

fn groups(groups: &GroupCounts) -> String {
    words(&[
        (groups.ready, "ready"),
        (groups.running, "running"),
        (groups.lapsed, "lapsed"),
        (groups.delayed, "delayed"),
        (groups.gated, "gated"),
        (groups.halted, "halted"),
        (groups.paused, "paused"),
        (groups.parked, "parked"),
    ])
}

/// Returns the counts that are not 0. Jobs that have succeeded are not among them.
fn words(counts: &[(BoundedCount, &str)]) -> String {
    let some = counts.iter().filter(|(count, _)| count.count > 0);
    let words: Vec<_> = some.map(|(count, word)| format!("{} {word}", number(*count))).collect();
    if words.is_empty() { String::from("none") } else { words.join(", ") }
}

fn note(queue: &QueueOverview) -> String {
    let mut notes = Vec::new();
    if let Some(pause) = &queue.paused {
        let reason = pause.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let until = pause.until.map(|until| format!(", until {}", clock(until)));
        let until = until.unwrap_or_default();
        let by = pause.rested_by.map(|job| format!(" by job {job}")).unwrap_or_default();
        notes.push(format!("paused{by} for {}{until}{reason}", in_words(pause.age)));
    }
    if queue.unserved_since().is_some() {
        notes.push(String::from("no living processor or receiver serves it"));
    }
    if queue.lapsed.count > 0 {
        let claims = number(queue.lapsed);
        notes.push(format!("{claims} of its claims lapsed, and nobody has taken them over"));
    }
    if !queue.dead_letters_of.is_empty() {
        let sources: Vec<_> =
            queue.dead_letters_of.iter().map(|source| format!("{source:?}")).collect();
        notes.push(format!("dead letters of {} wait in it", sources.join(", ")));
    }
    if let Some(limit) = queue.in_flight_limit {
        notes.push(format!("at most {limit} in flight"));
    }
    if let Some(limit) = queue.limit_per_key {
        notes.push(format!("at most {limit} groups for each limit key"));
    }
    if let Some(rate) = queue.rate {
        notes.push(format!("starts {rate} at most"));
    }
    if let Some(target) = &queue.dead_letter_queue {
        notes.push(format!("dead letters go to {target:?}"));
    }
    notes.join("; ")
}
