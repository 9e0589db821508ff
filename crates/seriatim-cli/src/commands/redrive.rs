//! `seriatim redrive`: failed jobs, queued again.

use serde_json::json;
use std::fmt::Write as _;

use seriatim::Redriven;
use sqlx::PgConnection;

use crate::args::Redrive;
use crate::change::Effect;
use crate::failure::Failure;
use crate::output::text::count;
use crate::session::Session;

/// Redrives the failed jobs of a queue.
pub(crate) async fn run(session: &Session, redrive: &Redrive) -> Result<(), Failure> {
    let Redrive { queue, limit } = redrive;
    let act = async |conn: &mut PgConnection| {
        let done = session.client.redrive(conn, queue, *limit).await?;
        if done.jobs == 0 {
            return Err(Failure::NothingMatched(format!("no job of queue {queue:?} has failed")));
        }
        Ok(redriven(queue, done))
    };
    session.change(act).await
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
    Effect { sentence, jobs, data }
}
