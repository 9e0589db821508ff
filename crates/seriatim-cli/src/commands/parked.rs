//! `seriatim parked`: jobs that stepped aside with one that failed.

use serde_json::json;
use seriatim::{ControlError, admin};
use sqlx::PgConnection;

use crate::args::{GroupArgs, Parked, ParkedUnits};
use crate::change::Effect;
use crate::commands::dead_letters::redriven;
use crate::failure::Failure;
use crate::output::json_line;
use crate::output::table::Table;
use crate::output::text::{clock, count, program, shell};
use crate::session::Session;

/// Runs a command about parked jobs.
pub(crate) async fn run(session: &Session, parked: Parked) -> Result<(), Failure> {
    match parked {
        Parked::List { queue } => list(session, &queue).await,
        Parked::Redrive(units) => redrive(session, &units).await,
        Parked::Discard(units) => discard(session, &units).await,
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
pub(crate) async fn park(session: &Session, group: &GroupArgs) -> Result<(), Failure> {
    let GroupArgs { queue, group } = group;
    let act = async |conn: &mut PgConnection| {
        let overview = session.client.group(&mut *conn, queue, group).await?;
        let (depth, halted_by) =
            overview.map_or((1, None), |overview| (overview.depth.count, overview.halted_by));
        let job = match session.operator.park_group(conn, queue, group).await {
            Err(error @ ControlError::NothingWaits { .. }) => {
                // It may be halted, and empty.
                let halted = halted_by.map(|job| nothing_to_park(queue, group, job));
                return Err(halted.unwrap_or_else(|| error.into()));
            }
            parked => parked?,
        };
        let parked = admin::Effect::Parked { queue, group, job };
        let sentence = format!("{parked} ({} in all)", count(depth, "unfinished job"));
        let data = json!({"action": "park", "queue": queue, "group": group, "job": job});
        Ok(Effect::new(sentence, depth, data))
    };
    session.change(act).await
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

async fn redrive(session: &Session, units: &ParkedUnits) -> Result<(), Failure> {
    let ParkedUnits { queue, group, job } = units;
    let act = async |conn: &mut PgConnection| {
        let done = session.operator.redrive_parked(conn, queue, group, *job).await?;
        Ok(redriven(queue, done))
    };
    session.change(act).await
}

async fn discard(session: &Session, units: &ParkedUnits) -> Result<(), Failure> {
    let ParkedUnits { queue, group, job } = units;
    let act = async |conn: &mut PgConnection| -> Result<Effect, Failure> {
        let jobs: Result<u64, ControlError> =
            session.operator.discard_parked(conn, queue, group, *job).await;
        let jobs = jobs?;
        let sentence = admin::Effect::ParkedDiscarded { queue, group, jobs }.to_string();
        let data = json!({"action": "discard", "queue": queue, "group": group, "jobs": jobs});
        Ok(Effect::new(sentence, jobs, data))
    };
    session.change(act).await
}
