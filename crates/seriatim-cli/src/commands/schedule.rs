//! `seriatim schedule`: jobs at set times.

use chrono::{DateTime, Utc};
use serde_json::json;
use serde_json::value::RawValue;
use seriatim::admin::{Change, StoredSchedule};
use seriatim::{ControlError, Schedule};
use sqlx::PgConnection;

use crate::args::{self, SetSchedule};
use crate::change::Effect;
use crate::commands::enqueue::read;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::{clock, program, shell};
use crate::output::{json, json_line, line, remark};
use crate::session::Session;

/// Runs a command about schedules.
pub(crate) async fn run(session: &Session, schedule: args::Schedule) -> Result<(), Failure> {
    match schedule {
        args::Schedule::List => list(session).await,
        args::Schedule::Next { name, n } => next(session, &name, n).await,
        args::Schedule::Set(set) => self::set(session, &set).await,
        args::Schedule::Pause { name: schedule } => {
            session.apply(Change::PauseSchedule { schedule }).await.map(drop)
        }
        args::Schedule::Resume { name: schedule } => {
            session.apply(Change::ResumeSchedule { schedule }).await.map(drop)
        }
        args::Schedule::Remove { name: schedule } => {
            session.apply(Change::RemoveSchedule { schedule }).await.map(drop)
        }
        args::Schedule::Fire { name: schedule } => {
            session.apply(Change::FireSchedule { schedule }).await.map(drop)
        }
    }
}

async fn set(session: &Session, set: &SetSchedule) -> Result<(), Failure> {
    let data = read(&set.job.data)?;
    let doubt = session.client.doubt_about(&mut *session.read().await?, &set.job.queue).await?;
    let doubts = doubt.as_ref().map(|doubt| format!("; {doubt}")).unwrap_or_default();
    let act = async |conn: &mut PgConnection| {
        let schedule = schedule(set, &data)?;
        session.operator.set_schedule(conn, schedule).await?;
        let stored = find(conn, session, &set.name).await?;
        let sentence = format!("{stored}{doubts}");
        let data = json::change("set_schedule", &stored)?;
        Ok(Effect { sentence, asks: doubt.is_some(), data, preview: None })
    };
    session.change(act).await
}

/// Returns the schedule of the arguments, which name one timing.
fn schedule(set: &SetSchedule, data: &RawValue) -> Result<Schedule, Failure> {
    let SetSchedule { name, cron, zone, every, at, job, missed, overlap } = set;
    let schedule = match (cron, zone, every, at) {
        (Some(spec), Some(zone), None, None) => Schedule::cron(name, spec, zone),
        (None, None, Some(interval), None) => Schedule::every(name, *interval),
        (None, None, None, Some(at)) => Schedule::once_at(name, *at),
        _ => {
            return Err(Failure::Usage(String::from(
                "a schedule takes --cron with --zone, --every, or --at",
            )));
        }
    };
    Ok(schedule.job(job.with(data)).missed(*missed).overlap((*overlap).into()))
}

async fn find(
    conn: &mut PgConnection,
    session: &Session,
    name: &str,
) -> Result<StoredSchedule, Failure> {
    let none = || Failure::NothingMatched(format!("there is no schedule {name:?}"));
    session.client.schedule(conn, name).await?.ok_or_else(none)
}

async fn list(session: &Session) -> Result<(), Failure> {
    let schedules = all(session).await?;
    if schedules.is_empty() {
        return Err(Failure::NothingMatched(String::from("there is no schedule")));
    }
    if session.json() {
        return schedules.iter().try_for_each(json_line);
    }
    let mut table = Table::new(&[
        "~schedule",
        "when",
        "~queue",
        "~group",
        "next",
        "last",
        "#last job",
        "missed",
        "overlap",
        "~paused",
    ]);
    for schedule in schedules {
        let paused =
            schedule.paused_at.map(|at| match (&schedule.paused_by, &schedule.pause_reason) {
                (Some(by), Some(reason)) => format!("{} by {by}: {reason}", clock(at)),
                (Some(by), None) => format!("{} by {by}", clock(at)),
                _ => clock(at),
            });
        table.row([
            schedule.name,
            schedule.timing.to_string(),
            schedule.queue,
            schedule.group.unwrap_or_default(),
            schedule.next_fire.map(clock).unwrap_or_default(),
            schedule.last_fire.map(clock).unwrap_or_default(),
            schedule.last_job.map(|job| job.to_string()).unwrap_or_default(),
            schedule.missed.to_string(),
            schedule.overlap.to_string(),
            paused.unwrap_or_default(),
        ]);
    }
    table.print()
}

async fn all(session: &Session) -> Result<Vec<StoredSchedule>, Failure> {
    let mut schedules: Vec<StoredSchedule> = Vec::new();
    loop {
        let after = schedules.last().map(|last| &*last.name);
        let page = session.client.schedules(&mut *session.read().await?, after).await?;
        if page.is_empty() {
            return Ok(schedules);
        }
        schedules.extend(page);
    }
}

async fn next(session: &Session, name: &str, n: u16) -> Result<(), Failure> {
    let schedule = find(&mut *session.read().await?, session, name).await?;
    let now = session.now().await?;
    let times = schedule.next(n.into(), now).map_err(ControlError::from)?;
    if times.is_empty() {
        let over = format!("schedule {name:?} is never due again: {}", schedule.timing);
        return Err(Failure::NothingMatched(over));
    }
    if schedule.paused_at.is_some() {
        let advice =
            format!("it is paused, `{} schedule resume {}` ends that", program(), shell(name));
        remark(session.form, &advice);
    }
    times.into_iter().try_for_each(|at| tell(session, name, at))
}

fn tell(session: &Session, name: &str, at: DateTime<Utc>) -> Result<(), Failure> {
    if session.json() {
        return json_line(&json!({"schedule": name, "at": at}));
    }
    line(&clock(at))
}
