//! A purge from the page.

use seriatim::admin::Operator;
use sqlx::PgPool;

use crate::action::effect::{Effect, count};
use crate::app::App;
use crate::error::WebError;

/// Purges in small transactions, so its preview is the number of jobs that are unfinished now.
pub(in crate::action) async fn purge(
    app: &App,
    operator: &Operator,
    queue: &str,
    group: Option<&str>,
    dry_run: bool,
) -> Result<Effect, WebError> {
    let of = group.map_or_else(|| format!("queue {queue:?}"), |group| format!("group {group:?}"));
    if dry_run {
        let queued = queued(app, queue, group).await?;
        return Ok(Effect::of(format!(
            "All queued jobs of {of} are cancelled ({queued} are unfinished). Running and parked \
             ones are left alone. This cannot be undone."
        )));
    }
    let pool: &PgPool = &app.writes;
    let purged = match group {
        Some(group) => operator.purge_group(pool, queue, group).await?,
        None => operator.purge(pool, queue).await?,
    };
    let message = format!(
        "{} of {of} were cancelled; {} ran and were left alone, {} were locked.",
        count(purged.cancelled),
        purged.running,
        purged.locked
    );
    Ok(Effect { jobs: Some(purged.cancelled), ..Effect::of(message) })
}

/// As [`purge`], with what is in flight and the queue's deduplication ids.
pub(in crate::action) async fn purge_everything(
    app: &App,
    operator: &Operator,
    queue: &str,
    dry_run: bool,
) -> Result<Effect, WebError> {
    if dry_run {
        let what = crate::data::queue(app, queue).await?.map_or_else(String::new, |queue| {
            let jobs = queue.jobs;
            format!(
                " ({} queued, {} delayed, {} in flight)",
                jobs.queued, jobs.delayed, jobs.started
            )
        });
        return Ok(Effect::of(format!(
            "All unfinished jobs of queue {queue:?} end as cancelled{what}: receipts are stale, and \
             processors are asked to cancel theirs. Its deduplication ids are forgotten. Parked \
             jobs are left alone. This cannot be undone."
        )));
    }
    let purged = operator.purge_everything(&app.writes, queue).await?;
    let message = format!(
        "{} of queue {queue:?} were cancelled, and {} deduplication ids forgotten; {} run on until \
         their processors cancel them, {} were locked.",
        count(purged.cancelled),
        purged.forgotten,
        purged.running,
        purged.locked
    );
    Ok(Effect { jobs: Some(purged.cancelled), ..Effect::of(message) })
}

async fn queued(app: &App, queue: &str, group: Option<&str>) -> Result<String, WebError> {
    let queued = if let Some(group) = group {
        app.client.group(&app.reads, queue, group).await?.map(|group| group.depth)
    } else {
        crate::data::queue(app, queue).await?.map(|queue| queue.jobs.queued)
    };
    Ok(queued.map_or_else(|| String::from("0"), |queued| queued.to_string()))
}
