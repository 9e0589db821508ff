//! `seriatim redrive` and `discard`: dead letters, queued again or given up.

use std::fmt::Write as _;

use serde_json::json;
use seriatim::{FailedFilter, Redriven};
use sqlx::PgConnection;

use crate::args::DeadLetters;
use crate::change::Effect;
use crate::failure::Failure;
use crate::output::text::count;
use crate::session::Session;

/// Redrives dead letters of a queue.
pub(crate) async fn redrive(session: &Session, letters: &DeadLetters) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection| {
        let done = if letters.is_filtered() {
            let jobs = selected(session, letters, conn).await?;
            session.client.redrive_jobs(conn, &jobs).await?
        } else {
            session.client.redrive(conn, &letters.queue, letters.limit).await?
        };
        if done.jobs == 0 {
            return Err(nothing(letters));
        }
        Ok(redriven(&letters.queue, done))
    };
    session.change(act).await
}

/// Discards dead letters of a queue.
pub(crate) async fn discard(session: &Session, letters: &DeadLetters) -> Result<(), Failure> {
    let queue = &letters.queue;
    let act = async |conn: &mut PgConnection| {
        let jobs = selected(session, letters, conn).await?;
        let jobs = session.client.discard_jobs(conn, &jobs).await?;
        if jobs == 0 {
            return Err(nothing(letters));
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
) -> Result<Vec<i64>, Failure> {
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
    let jobs = session.client.failed_jobs(conn, &filter).await?;
    Ok(jobs.iter().map(|job| job.id).collect())
}

fn nothing(letters: &DeadLetters) -> Failure {
    Failure::NothingMatched(format!("no such dead letter of queue {:?} is free", letters.queue))
}

/// Returns the effect of a redrive.
pub(crate) fn redriven(queue: &str, done: Redriven) -> Effect {
    let Redriven { jobs, groups, overtaken, .. } = done;
    let mut sentence = format!(
        "{} of {} of queue {queue:?} queued again, in their order",
        count(jobs, "job"),
        count(groups, "group"),
    );
    if overtaken > 0 {
        _ = write!(sentence, "; {} behind them ran already", count(overtaken, "job"));
    }
    let data = json!({
        "action": "redrive", "queue": queue, "jobs": jobs, "groups": groups, "overtaken": overtaken,
    });
    Effect::new(sentence, jobs, data)
}
