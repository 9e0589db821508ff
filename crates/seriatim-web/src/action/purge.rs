//! A purge from the page. It is done in small transactions, so its preview is the number of jobs
//! that are there now.

use crate::action::change::Change;
use crate::action::effect::Effect;
use crate::data;
use crate::error::WebError;

/// Purges what a queue, or a group of it, has queued.
pub(crate) async fn purge(
    change: &Change<'_>,
    queue: &str,
    group: Option<&str>,
) -> Result<Effect, WebError> {
    if change.dry_run {
        let of =
            group.map_or_else(|| format!("queue {queue:?}"), |group| format!("group {group:?}"));
        let queued = queued(change, queue, group).await?;
        return Ok(Effect::new(format!(
            "All queued jobs of {of} are cancelled ({queued} are unfinished). Running and parked \
             ones are left alone. This cannot be undone."
        )));
    }
    let (operator, pool) = (&change.operator, &change.app.writes());
    let (purged, of) = match group {
        Some(group) => {
            (operator.purge_group(pool, queue, group).await?, format!("Group {group:?}"))
        }
        None => (operator.purge(pool, queue).await?, format!("Queue {queue:?}")),
    };
    Ok(Effect { jobs: Some(purged.cancelled), ..Effect::new(format!("{of}: {purged}.")) })
}

/// As [`purge`], with what is in flight and the queue's deduplication ids.
pub(crate) async fn purge_everything(change: &Change<'_>, queue: &str) -> Result<Effect, WebError> {
    if change.dry_run {
        let what = data::queue(change.app, queue).await?.map_or_else(String::new, |queue| {
            let jobs = queue.jobs;
            format!(
                " ({} queued, {} delayed, {} in flight)",
                jobs.queued, jobs.delayed, jobs.started
            )
        });
        return Ok(Effect::new(format!(
            "All unfinished jobs of queue {queue:?} end as cancelled{what}: receipts are stale, and \
             processors are asked to cancel theirs. Its deduplication ids are forgotten. Parked \
             jobs are left alone. This cannot be undone."
        )));
    }
    let purged = change.operator.purge_everything(&change.app.writes(), queue).await?;
    let asked = match purged.running {
        0 => "",
        _ => " Processors are asked to cancel what runs on.",
    };
    let message = format!("Queue {queue:?}: {purged}.{asked}");
    Ok(Effect { jobs: Some(purged.cancelled), ..Effect::new(message) })
}

async fn queued(change: &Change<'_>, queue: &str, group: Option<&str>) -> Result<String, WebError> {
    let app = change.app;
    let queued = if let Some(group) = group {
        app.client.group(&app.reads(), queue, group).await?.map(|group| group.depth)
    } else {
        data::queue(app, queue).await?.map(|queue| queue.jobs.queued)
    };
    Ok(queued.map_or_else(|| String::from("0"), |queued| queued.to_string()))
}
