//! `seriatim purge`: all queued jobs of a queue or a group, cancelled; or all that a queue has.

use serde_json::json;
use seriatim::admin::Purged;

use crate::args::{Purge, Subject};
use crate::change::{Effect, ask};
use crate::failure::Failure;
use crate::output::text::{count, number};
use crate::session::Session;

/// Purges a queue or a group. It commits in steps, so what it will do is counted beforehand.
pub(crate) async fn run(session: &Session, purge: &Purge) -> Result<(), Failure> {
    let Purge { subject: Subject { queue, group }, everything } = purge;
    let preview = if *everything {
        preview_of_everything(session, queue).await?
    } else {
        preview(session, &purge.subject).await?
    };
    if session.dry_run {
        return session.tell(&preview);
    }
    if preview.asks && !session.yes {
        ask(&preview.sentence)?;
    }
    let (operator, pool) = (&session.operator, &session.pool);
    let purged = match group {
        Some(group) => operator.purge_group(pool, queue, group).await?,
        None if *everything => operator.purge_everything(pool, queue).await?,
        None => operator.purge(pool, queue).await?,
    };
    session.tell(&done(purge, purged))
}

fn done(purge: &Purge, purged: Purged) -> Effect {
    let Purge { subject, everything } = purge;
    let Purged { cancelled, running, locked, forgotten, .. } = purged;
    let asked = match running {
        1.. if *everything => "; processors are asked to cancel what runs on",
        _ => "",
    };
    let sentence = format!("{subject}: {purged}{asked}");
    let mut data = json!({
        "action": "purge", "queue": subject.queue, "group": subject.group, "jobs": cancelled,
        "running": running, "locked": locked,
    });
    if *everything {
        data["everything"] = true.into();
        data["forgotten"] = forgotten.into();
    }
    Effect::new(sentence, cancelled, data)
}

/// Returns the effect that a purge would have. A purge of a queue always asks: its jobs may be more
/// by then.
async fn preview(session: &Session, subject: &Subject) -> Result<Effect, Failure> {
    let Subject { queue, group } = subject;
    let nothing = || Failure::NothingMatched(format!("{subject} has no queued job"));
    let (jobs, shown) = if let Some(group) = group {
        let overview = session.client.group(&mut *session.read().await?, queue, group).await?;
        let depth = overview.ok_or_else(nothing)?.depth;
        (depth.count, number(depth))
    } else {
        let counts = session.client.counts(&mut *session.read().await?, queue).await?;
        let jobs = counts.queued + counts.delayed;
        (jobs, jobs.to_string())
    };
    if jobs == 0 {
        return Err(nothing());
    }
    let sentence = format!(
        "{shown} unfinished {} of {subject} {} cancelled, unless they run by then",
        if jobs == 1 { "job" } else { "jobs" },
        if jobs == 1 { "is" } else { "are" }
    );
    let data = json!({"action": "purge", "queue": queue, "group": group, "jobs": jobs});
    Ok(Effect { sentence, asks: jobs > 1 || group.is_none(), data, preview: None })
}

/// Returns what a purge of everything would do. It has something to do without a job too:
/// deduplication ids, which nothing counts.
async fn preview_of_everything(session: &Session, queue: &str) -> Result<Effect, Failure> {
    let queues = session.client.queues(&mut *session.read().await?).await?;
    let counts = session.client.counts(&mut *session.read().await?, queue).await?;
    let (waiting, started) = (counts.queued + counts.delayed, counts.started);
    if waiting + started == 0 && !queues.iter().any(|known| known.queue == queue) {
        return Err(Failure::NothingMatched(format!("no job or setting names queue {queue:?}")));
    }
    let sentence = format!(
        "{} of queue {queue:?} and {started} in flight end as cancelled: receipts of those are \
         stale, and processors are asked to cancel theirs; its deduplication ids are forgotten",
        count(waiting, "queued job")
    );
    let data = json!({
        "action": "purge", "queue": queue, "group": null, "jobs": waiting + started, "everything": true,
    });
    Ok(Effect { sentence, asks: true, data, preview: None })
}
