//! `seriatim dead-letters`, `redrive` and `discard`: dead letters, listed, queued again or given
//! up.

use std::fmt::Write as _;

use serde_json::json;
use seriatim::{FailedFilter, FailedJob, Redriven};
use sqlx::PgConnection;

use crate::args::DeadLetters;
use crate::change::Effect;
use crate::failure::Failure;
use crate::output::json_line;
use crate::output::table::Table;
use crate::output::text::{clock, count, program, shell};
use crate::session::Session;

/// Lists dead letters of a queue.
pub(crate) async fn list(session: &Session, letters: &DeadLetters) -> Result<(), Failure> {
    let jobs = selected(session, letters, &mut *session.read().await?).await?;
    if jobs.is_empty() {
        return Err(nothing(session, letters).await?);
    }
    if session.json() {
        return jobs.iter().try_for_each(json_line);
    }
    let mut table =
        Table::new(&["#job", "~group", "~name", "~reference", "failed", "waits in", "~error"]);
    for job in jobs {
        table.row([
            job.id.to_string(),
            job.group.unwrap_or_default(),
            job.name.unwrap_or_default(),
            job.reference.unwrap_or_default(),
            job.finished_at.map(clock).unwrap_or_default(),
            job.dead_letter_queue.unwrap_or_default(),
            job.error.map(|error| error.message).unwrap_or_default(),
        ]);
    }
    table.print()
}

/// Redrives dead letters of a queue.
pub(crate) async fn redrive(session: &Session, letters: &DeadLetters) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection| {
        let done = if letters.is_filtered() {
            let jobs = ids(&selected(session, letters, conn).await?);
            session.client.redrive_jobs(conn, &jobs).await?
        } else {
            session.client.redrive(conn, &letters.queue, letters.limit).await?
        };
        if done.jobs == 0 {
            return Err(nothing(session, letters).await?);
        }
        Ok(redriven(&letters.queue, done))
    };
    session.change(act).await
}

/// Discards dead letters of a queue.
pub(crate) async fn discard(session: &Session, letters: &DeadLetters) -> Result<(), Failure> {
    let queue = &letters.queue;
    let act = async |conn: &mut PgConnection| {
        let jobs = ids(&selected(session, letters, conn).await?);
        let jobs = session.client.discard_jobs(conn, &jobs).await?;
        if jobs == 0 {
            return Err(nothing(session, letters).await?);
        }
        let sentence = format!(
            "{} of queue {queue:?} given up; halts by them end, and their groups go on",
            count(jobs, "dead letter")
        );
        let data = json!({"action": "discard", "queue": queue, "jobs": jobs});
        Ok(Effect::new(sentence, jobs, data))
    };
    session.change(act).await
}

/// Returns the dead letters that are named, the oldest first.
async fn selected(
    session: &Session,
    letters: &DeadLetters,
    conn: &mut PgConnection,
) -> Result<Vec<FailedJob>, Failure> {
    let DeadLetters { queue, group, name, error, since, limit } = letters;
    let filter = FailedFilter {
        queue: Some(queue.clone()),
        group: group.clone(),
        name: name.clone(),
        error: error.clone(),
        since: *since,
        limit: *limit,
        ..FailedFilter::default()
    };
    Ok(session.client.failed_jobs(conn, &filter).await?)
}

fn ids(jobs: &[FailedJob]) -> Vec<i64> {
    jobs.iter().map(|job| job.id).collect()
}

/// Says that nothing matched; and if dead letters of other queues wait in this one, what brings
/// those back.
async fn nothing(session: &Session, letters: &DeadLetters) -> Result<Failure, Failure> {
    let queue = &letters.queue;
    let mut message = format!("no such dead letter of queue {queue:?} is free");
    let sources = session.sources_of_dead_letters(queue).await?;
    if !sources.is_empty() {
        let (program, back) = (program(), shell(queue));
        let named: Vec<_> = sources.iter().map(|source| format!("{source:?}")).collect();
        _ = write!(
            message,
            "; those of queue {} wait in it: `{program} redrive {}` or `{program} move-task start \
             {back}` moves them back",
            named.join(", "),
            shell(&sources[0])
        );
    }
    Ok(Failure::NothingMatched(message))
}

/// Returns the effect of a redrive.
pub(crate) fn redriven(queue: &str, done: Redriven) -> Effect {
    let Redriven { jobs, groups, overtaken, moved_back, .. } = done;
    let mut sentence = format!(
        "{} of {} of queue {queue:?} queued again, in their order",
        count(jobs, "job"),
        count(groups, "group"),
    );
    if moved_back > 0 {
        _ = write!(sentence, "; {moved_back} of them from a dead-letter queue");
    }
    if overtaken > 0 {
        _ = write!(sentence, "; {} behind them ran already", count(overtaken, "job"));
    }
    let data = json!({
        "action": "redrive", "queue": queue, "jobs": jobs, "groups": groups, "overtaken": overtaken,
        "moved_back": moved_back,
    });
    Effect::new(sentence, jobs, data)
}
