//! `seriatim purge`: all queued jobs of a queue or a group, cancelled.

use std::fmt::Write as _;

use serde_json::json;

use crate::args::Subject;
use crate::change::{Effect, ask};
use crate::commands::pause::named;
use crate::commands::queues::number;
use crate::failure::Failure;
use crate::output::text::count;
use crate::session::Session;

/// Purges a queue or a group. It commits in steps, so what it will do is counted beforehand.
pub(crate) async fn run(session: &Session, subject: &Subject) -> Result<(), Failure> {
    let Subject { queue, group } = subject;
    let preview = preview(session, subject).await?;
    if session.dry_run {
        return session.tell(&preview);
    }
    if preview.asks && !session.yes {
        ask(&preview.sentence)?;
    }
    let purged = match group {
        Some(group) => session.client.purge_group(&session.pool, queue, group).await?,
        None => session.client.purge(&session.pool, queue).await?,
    };
    let mut sentence =
        format!("{} of {} cancelled", count(purged.cancelled, "job"), named(subject));
    if purged.running > 0 {
        _ = write!(sentence, "; {} run on", purged.running);
    }
    if purged.locked > 0 {
        _ = write!(sentence, "; {} are locked by others: try again", purged.locked);
    }
    let data = json!({
        "action": "purge", "queue": queue, "group": group, "jobs": purged.cancelled,
        "running": purged.running, "locked": purged.locked,
    });
    session.tell(&Effect::new(sentence, purged.cancelled, data))
}

/// Returns what a purge would do. That of a queue always asks: its jobs may be more by then.
async fn preview(session: &Session, subject: &Subject) -> Result<Effect, Failure> {
    let Subject { queue, group } = subject;
    let nothing = || Failure::NothingMatched(format!("{} has no queued job", named(subject)));
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
        "{shown} unfinished {} of {} {} cancelled, unless they run by then",
        if jobs == 1 { "job" } else { "jobs" },
        named(subject),
        if jobs == 1 { "is" } else { "are" }
    );
    let data = json!({"action": "purge", "queue": queue, "group": group, "jobs": jobs});
    Ok(Effect { sentence, asks: jobs > 1 || group.is_none(), data })
}
