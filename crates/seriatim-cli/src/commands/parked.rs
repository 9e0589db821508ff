//! `seriatim parked`: jobs that stepped aside with one that failed.

use seriatim::admin::Change;

use crate::args::{GroupArgs, Parked, ParkedUnits};
use crate::failure::Failure;
use crate::output::json_line;
use crate::output::table::Table;
use crate::output::text::{clock, program, shell};
use crate::session::Session;

/// Runs a command about parked jobs.
pub(crate) async fn run(session: &Session, parked: Parked) -> Result<(), Failure> {
    match parked {
        Parked::List { queue } => list(session, &queue).await,
        Parked::Redrive(ParkedUnits { queue, group, job }) => {
            session.apply(Change::RedriveParked { queue, group, job }).await.map(drop)
        }
        Parked::Discard(ParkedUnits { queue, group, job }) => {
            session.apply(Change::DiscardParked { queue, group, job }).await.map(drop)
        }
    }
}

async fn list(session: &Session, queue: &str) -> Result<(), Failure> {
    let units = session.client.parked_groups(&mut *session.read().await?, queue).await?;
    if units.is_empty() {
        return Err(Failure::NothingMatched(format!("no job of queue {queue:?} is parked")));
    }
    if session.json() {
        return units.iter().try_for_each(json_line);
    }
    let mut table = Table::new(&["~group", "#failed job", "#parked", "since", "~error"]);
    for unit in units {
        table.row([
            unit.group,
            unit.job.to_string(),
            unit.parked.to_string(),
            unit.since.map(clock).unwrap_or_default(),
            unit.reason.unwrap_or_default(),
        ]);
    }
    table.print()
}

/// Parks a group by hand.
pub(crate) async fn park(session: &Session, group: GroupArgs) -> Result<(), Failure> {
    let GroupArgs { queue, group } = group;
    let parked = session.apply(Change::Park { queue: queue.clone(), group: group.clone() }).await;
    let Err(failure @ Failure::NothingMatched(_)) = parked else { return parked.map(drop) };
    // It may be halted, and empty.
    let overview = session.client.group(&mut *session.read().await?, &queue, &group).await?;
    let halted_by = overview.and_then(|overview| overview.halted_by);
    Err(halted_by.map_or(failure, |job| nothing_to_park(&queue, &group, job)))
}

/// Returns what helps against the halt of a group that has nothing to park.
fn nothing_to_park(queue: &str, group: &str, job: i64) -> Failure {
    let (shell_queue, shell_group, program) = (shell(queue), shell(group), program());
    Failure::NothingMatched(format!(
        "no job of group {group:?} of queue {queue:?} waits, job {job} has halted it: \
         `{program} job retry {job}` runs that again, `{program} job skip {job}` or `{program} unhalt \
         {shell_queue} {shell_group}` ends the halt"
    ))
}
