//! `seriatim dead-letters`, `redrive` and `discard`: dead letters, listed, queued again or given
//! up.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::json;
use seriatim::admin::{self, FailedFilter, FailedJob, Redriven};
use sqlx::PgConnection;

use crate::args::DeadLetters;
use crate::change::Effect;
use crate::failure::Failure;
use crate::output::json_line;
use crate::output::table::Table;
use crate::output::text::{clock, program, shell};
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
            session.operator.redrive_jobs(conn, &jobs).await?
        } else {
            session.operator.redrive(conn, &letters.queue, letters.limit).await?
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
        let jobs = session.operator.discard_jobs(conn, &jobs).await?;
        if jobs == 0 {
            return Err(nothing(session, letters).await?);
        }
        let sentence = format!("queue {queue:?}: {}", admin::Effect::Discarded { jobs });
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
    let mut filter = FailedFilter::default().queue(queue).limit(*limit);
    filter.group.clone_from(group);
    filter.name.clone_from(name);
    filter.error.clone_from(error);
    filter.since = *since;
    Ok(session.client.failed_jobs(conn, &filter).await?)
}

fn ids(jobs: &[FailedJob]) -> Vec<i64> {
    jobs.iter().map(|job| job.id).collect()
}

/// Says that nothing matched; and if dead letters of other queues wait in this one, what brings
/// those back.
async fn nothing(session: &Session, letters: &DeadLetters) -> Result<Failure, Failure> {
    let queue = &letters.queue;
    let mut message = format!("queue {queue:?} has no such dead letter to redrive or discard");
    let queues = session.client.queues(&mut *session.read().await?).await?;
    let sources = queues.into_iter().find(|overview| overview.queue == *queue);
    let sources = sources.map(|overview| overview.dead_letters_of).unwrap_or_default();
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

/// Redrives dead letters by their ids.
pub(crate) async fn redrive_jobs(session: &Session, ids: &[i64]) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection| {
        let done = session.operator.redrive_jobs(conn, ids).await?;
        if done.jobs == 0 {
            return Err(none_is_free());
        }
        let mut sentence = done.to_string();
        sentence.push_str(&others_stay(ids, done.jobs));
        let data = json!({
            "action": "redrive", "ids": ids, "jobs": done.jobs, "groups": done.groups,
            "overtaken": done.overtaken, "moved_back": done.moved_back,
        });
        Ok(Effect::new(sentence, done.jobs, data))
    };
    session.change(act).await
}

/// Discards dead letters by their ids.
pub(crate) async fn discard_jobs(session: &Session, ids: &[i64]) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection| {
        let jobs = session.operator.discard_jobs(conn, ids).await?;
        if jobs == 0 {
            return Err(none_is_free());
        }
        let mut sentence = admin::Effect::Discarded { jobs }.to_string();
        sentence.push_str(&others_stay(ids, jobs));
        let data = json!({"action": "discard", "ids": ids, "jobs": jobs});
        Ok(Effect::new(sentence, jobs, data))
    };
    session.change(act).await
}

fn none_is_free() -> Failure {
    Failure::NothingMatched(format!(
        "none of them is a dead letter that is free (those with others parked behind them: \
         `{} parked list QUEUE`; one that a worker or receiver of its dead-letter queue has is free \
         when that has ended)",
        program()
    ))
}

/// Returns what is to be said of those that are left as they are.
fn others_stay(ids: &[i64], done: u64) -> String {
    let named: BTreeSet<_> = ids.iter().collect();
    match u64::try_from(named.len()).unwrap_or(u64::MAX).saturating_sub(done) {
        0 => String::new(),
        1 => String::from(
            "; 1 job stays: it is no dead letter, locked, or has others parked behind it",
        ),
        more => format!(
            "; {more} jobs stay: no dead letters, locked, or with others parked behind them"
        ),
    }
}

/// Returns the effect of a redrive.
pub(crate) fn redriven(queue: &str, done: Redriven) -> Effect {
    let Redriven { jobs, groups, overtaken, moved_back, .. } = done;
    let sentence = format!("queue {queue:?}: {done}");
    let data = json!({
        "action": "redrive", "queue": queue, "jobs": jobs, "groups": groups, "overtaken": overtaken,
        "moved_back": moved_back,
    });
    Effect::new(sentence, jobs, data)
}
