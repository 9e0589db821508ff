//! Checks of the work: is there a processor for each queue, and what was stopped?

use std::time::Duration;

use super::{Finding, Findings};
use crate::commands::queues::number;
use crate::failure::Failure;
use crate::output::text::{in_words, shell, since};
use crate::session::Session;

/// How long jobs may be due in a queue without a processor: receivers may serve it.
const DUE: chrono::Duration = chrono::Duration::seconds(10);
/// How long a pause is not suspicious.
const PAUSE: Duration = Duration::from_hours(1);

/// Looks for queues with due jobs that no living processor serves.
pub(super) async fn processors(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("processors");
    let queues = session.client.queues(&mut *session.read().await?).await?;
    let processors = session.client.processors(&mut *session.read().await?).await?;
    let now = session.now().await?;
    for queue in &queues {
        let Some(due) = queue.unserved_since().filter(|due| now - *due > DUE) else { continue };
        findings.problem(
            format!(
                "queue {:?} has work that has been due for {}, and no living processor serves it",
                queue.queue,
                since(due, now)
            ),
            "start a processor with that queue, or see whether the name is mistyped where jobs are \
             enqueued (seriatim nodes lists the processors)",
        );
    }
    for dead in processors.iter().filter(|processor| !processor.alive) {
        let host = dead.host.as_deref().unwrap_or("?");
        let pid = dead.pid.map_or_else(|| String::from("?"), |pid| pid.to_string());
        findings.note(
            format!(
                "a processor of node {:?} (host {host}, pid {pid}) is gone, and its jobs are not \
                 taken over yet",
                dead.node
            ),
            Some(format!("seriatim nodes release {}", shell(&dead.node))),
        );
    }
    let count = processors.iter().filter(|processor| processor.alive).count();
    Ok(findings.or_fine(&format!("{count} alive, and every queue with due work is served")))
}

/// Looks for what waits for an operator: halted and parked groups, and pauses that are old.
pub(super) async fn stopped(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("stopped");
    for queue in session.client.queues(&mut *session.read().await?).await? {
        let (name, quoted) = (&queue.queue, shell(&queue.queue));
        let groups = [
            (queue.groups.halted, "halted by a job that failed", "halted"),
            (queue.groups.parked, "parked behind a job that failed", "parked"),
            (queue.groups.paused, "paused", "paused"),
        ];
        for (count, what, state) in groups.iter().filter(|(count, ..)| count.count > 0) {
            findings.note(
                format!("queue {name:?} has groups that are {what}: {}", number(*count)),
                Some(format!("seriatim groups {quoted} --state {state}")),
            );
        }
        if let Some(pause) = queue.paused.filter(|pause| pause.age > PAUSE) {
            let reason = pause.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            findings.note(
                format!("queue {name:?} has been paused for {}{reason}", in_words(pause.age)),
                Some(format!("seriatim resume {quoted}")),
            );
        }
    }
    Ok(findings.or_fine("nothing waits for an operator"))
}
