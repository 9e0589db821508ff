//! `seriatim nodes`: the processors, and what to do about one that is gone.

use seriatim::explain::ProcessorInfo;
use sqlx::PgConnection;

use crate::args::Nodes;
use crate::change::Effect;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::since;
use crate::output::{json, json_line};
use crate::session::Session;

/// Lists the processors, or releases a node.
pub(crate) async fn run(session: &Session, command: Option<Nodes>) -> Result<(), Failure> {
    match command {
        None | Some(Nodes::List) => list(session).await,
        Some(Nodes::Release { node }) => release(session, &node).await,
    }
}

async fn list(session: &Session) -> Result<(), Failure> {
    let processors = session.client.processors(&mut *session.read().await?).await?;
    if processors.is_empty() {
        return Err(Failure::NothingMatched(String::from("there is no processor")));
    }
    if session.json() {
        return processors.iter().try_for_each(json_line);
    }
    let now = session.now().await?;
    let mut table = Table::new(&["~node", "state", "~host", "#pid", "#up", "#seen", "~queues"]);
    for processor in processors {
        let ProcessorInfo { node, host, pid, alive, queues, started_at, seen_at, .. } = processor;
        table.row([
            node,
            String::from(if alive { "alive" } else { "gone" }),
            host.unwrap_or_default(),
            pid.map(|pid| pid.to_string()).unwrap_or_default(),
            started_at.map(|time| since(time, now)).unwrap_or_default(),
            seen_at.map(|time| since(time, now)).unwrap_or_default(),
            queues.map_or_else(|| String::from("?"), |queues| queues.join(", ")),
        ]);
    }
    table.print()
}

async fn release(session: &Session, node: &str) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection| {
        let released = session.operator.release_node(conn, node).await?;
        let (groups, jobs) = (released.groups, released.jobs);
        if groups + jobs == 0 {
            let message =
                format!("no processor of node {node:?} has a claim that could be released");
            return Err(Failure::NothingMatched(message));
        }
        let sentence = format!("node {node:?}: {released}");
        let mut data = json::change("release_node", &released)?;
        data["node"] = node.into();
        Ok(Effect::new(sentence, groups + jobs, data))
    };
    session.change(act).await
}
