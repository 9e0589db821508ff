//! `seriatim log`: what operators did.

use seriatim::admin::Operation;

use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::clock;
use crate::output::{json_line, line};
use crate::session::Session;

/// Lists the changes that operators made, the last first.
pub(crate) async fn run(session: &Session, before: Option<i64>, limit: u32) -> Result<(), Failure> {
    let operations = session.client.operations(&mut *session.read().await?, before, limit).await?;
    if operations.is_empty() {
        return Err(Failure::NothingMatched(String::from("no operator has changed anything")));
    }
    if session.json() {
        return operations.iter().try_for_each(json_line);
    }
    let full = operations.len() >= usize::try_from(limit).unwrap_or(usize::MAX);
    let last = operations.last().filter(|_| full).map(|operation| operation.id);
    let mut table = Table::new(&[
        "at",
        "~actor",
        "action",
        "~queue",
        "~group",
        "#job",
        "#affected",
        "~schedule",
        "~key",
        "~reason",
    ]);
    for operation in operations {
        let Operation { at, actor, action, queue, group, job, reason, affected, .. } = operation;
        table.row([
            clock(at),
            actor,
            action,
            queue.unwrap_or_default(),
            group.unwrap_or_default(),
            job.map(|job| job.to_string()).unwrap_or_default(),
            affected.to_string(),
            operation.schedule.unwrap_or_default(),
            operation.sqs_key.unwrap_or_default(),
            reason.unwrap_or_default(),
        ]);
    }
    table.print()?;
    match last {
        Some(id) => line(&format!("more: --before {id}")),
        None => Ok(()),
    }
}
