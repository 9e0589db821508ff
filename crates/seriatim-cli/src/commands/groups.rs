//! `seriatim groups`: the groups of a queue.

use chrono::{DateTime, Utc};
use seriatim::admin::{GroupFilter, GroupOverview, GroupState};
use seriatim::explain::AttemptInfo;

use crate::args::Groups;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::{clock, number, shell, since};
use crate::output::{json_line, line};
use crate::session::Session;

/// Lists the groups.
pub(crate) async fn run(session: &Session, groups: Groups) -> Result<(), Failure> {
    let Groups { queue, state, sort, find, after, limit } = groups;
    let mut filter = GroupFilter::default().sort(sort.into()).limit(limit);
    if let Some(state) = state {
        filter = filter.state(state);
    }
    if let Some(prefix) = find {
        filter = filter.find(prefix);
    }
    if let Some(group) = after {
        filter = filter.after(group);
    }
    let page = session.client.groups(&mut *session.read().await?, &queue, &filter).await?;
    if page.groups.is_empty() {
        let unknown = session.client.doubt_about(&mut *session.read().await?, &queue).await?;
        let none = || {
            if page.or_more {
                let looked_at = filter.looked_at();
                return format!(
                    "no such group of queue {queue:?} is among those that were looked at: {looked_at}"
                );
            }
            format!("no such group of queue {queue:?} has anything to do")
        };
        return Err(Failure::NothingMatched(unknown.unwrap_or_else(none)));
    }
    if session.json() {
        return page.groups.iter().try_for_each(json_line);
    }
    let now = session.now().await?;
    let mut table = Table::new(&[
        "~group", "state", "#jobs", "#parked", "#head", "~name", "tries", "#age", "~note",
    ]);
    for group in &page.groups {
        let age = group.enqueued_at.map(|time| since(time, now)).unwrap_or_default();
        let parked = if group.parked.count > 0 { number(group.parked) } else { String::new() };
        table.row([
            group.group.clone(),
            group.state.as_str().to_owned(),
            number(group.depth),
            parked,
            group.head.map(|id| id.to_string()).unwrap_or_default(),
            group.head_name.clone().unwrap_or_default(),
            tries(group.attempt()),
            age,
            note(group, now),
        ]);
    }
    table.print()?;
    if let Some(next) = page.next {
        line(&format!("more: --after {}", shell(&next)))?;
    } else if page.or_more {
        line(&format!("there are more groups; looked at were {}", filter.looked_at()))?;
    }
    Ok(())
}

/// Returns the attempts so far, with the limit if the job has one, and with the number of those
/// that count if not all do.
pub(crate) fn tries(info: AttemptInfo) -> String {
    match info.of {
        Some(limit) if info.counted == info.attempt => format!("{} of {limit}", info.attempt),
        Some(limit) => format!("{} ({} of {limit})", info.attempt, info.counted),
        None => info.attempt.to_string(),
    }
}

/// Returns how long a job has run, and its timeout.
fn ran(group: &GroupOverview, now: DateTime<Utc>) -> Option<String> {
    let (begun, until) = (group.started_at?, group.timeout_at?);
    Some(format!("for {} of {}", since(begun, now), since(begun, until)))
}

fn note(group: &GroupOverview, now: DateTime<Utc>) -> String {
    if group.blocked {
        return String::from("its next job is locked by another transaction: lane names it");
    }
    let stopped = || group.stopped_at.map(|time| format!("for {}", since(time, now)));
    let mut note = ran(group, now).or_else(stopped).unwrap_or_default();
    if let Some(until) = group.paused_until.filter(|_| group.state == GroupState::Paused) {
        note = format!("{note}, until {}", clock(until));
    }
    let rested_by = group.rested_by.filter(|_| group.state == GroupState::Paused);
    if let Some(job) = group.halted_by.or(rested_by) {
        note = format!("by job {job}, {note}");
    }
    if let Some(until) = group.halted_until {
        note = format!("{note}, until {}", clock(until));
    }
    if group.paused_at.is_some() && group.state != GroupState::Paused {
        note = format!("{note}, paused too");
    }
    match &group.reason {
        Some(reason) if note.is_empty() => reason.clone(),
        Some(reason) => format!("{note}: {reason}"),
        None => note,
    }
}
