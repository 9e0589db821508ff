//! `seriatim dead-letters`, `redrive` and `discard`: dead letters, listed, queued again or given
//! up.

use seriatim::admin::{Change, FailedFilter, FailedJob};
use sqlx::PgConnection;

use crate::args::DeadLetters;
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
    let DeadLetters { queue, limit, .. } = letters;
    let redriven = if letters.is_filtered() {
        let ids = ids(session, letters).await?;
        session.apply_of(Some(queue), Change::RedriveJobs { ids }).await
    } else {
        session.apply(Change::Redrive { queue: queue.clone(), limit: Some(*limit) }).await
    };
    match redriven {
        Err(Failure::NothingMatched(_)) => Err(nothing(session, letters).await?),
        done => done.map(drop),
    }
}

/// Discards dead letters of a queue.
pub(crate) async fn discard(session: &Session, letters: &DeadLetters) -> Result<(), Failure> {
    let ids = ids(session, letters).await?;
    session.apply_of(Some(&letters.queue), Change::DiscardJobs { ids }).await.map(drop)
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

async fn ids(session: &Session, letters: &DeadLetters) -> Result<Vec<i64>, Failure> {
    let jobs = selected(session, letters, &mut *session.read().await?).await?;
    if jobs.is_empty() {
        return Err(nothing(session, letters).await?);
    }
    Ok(jobs.iter().map(|job| job.id).collect())
}

/// Says that nothing matched; and if dead letters of other queues wait in this one, what brings
/// those back.
async fn nothing(session: &Session, letters: &DeadLetters) -> Result<Failure, Failure> {
    let queue = &letters.queue;
    let mut message = format!("queue {queue:?} has no such dead letter to redrive or discard");
    let queues = session.client.queues(&mut *session.read().await?).await?;
    let sources = queues.into_iter().find(|overview| overview.queue == *queue);
    let sources = sources.map(|overview| overview.dead_letters_of).unwrap_or_default();
    if let Some(first) = sources.first() {
        let (program, source, back) = (program(), shell(first), shell(queue));
        let named: Vec<_> = sources.iter().map(|source| format!("{source:?}")).collect();
        message = format!(
            "{message}; those of queue {} wait in it: `{program} redrive {source}` or `{program} \
             move-task start {back}` moves them back",
            named.join(", ")
        );
    }
    Ok(Failure::NothingMatched(message))
}
