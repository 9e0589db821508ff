//! `seriatim nodes`: the processors, and what to do about one that is gone.

use seriatim::admin::Change;
use seriatim::explain::ProcessorInfo;

use crate::args::Nodes;
use crate::failure::Failure;
use crate::output::json_line;
use crate::output::table::Table;
use crate::output::text::since;
use crate::session::Session;

/// Lists the processors, or releases a node.
pub(crate) async fn run(session: &Session, command: Option<Nodes>) -> Result<(), Failure> {
    match command {
        None | Some(Nodes::List) => list(session).await,
        Some(Nodes::Release { node }) => {
            session.apply(Change::ReleaseNode { node }).await.map(drop)
        }
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
        let state = processor.state();
        let ProcessorInfo { node, host, pid, queues, started_at, seen_at, .. } = processor;
        table.row([
            node,
            state.to_owned(),
            host.unwrap_or_default(),
            pid.map(|pid| pid.to_string()).unwrap_or_default(),
            started_at.map(|time| since(time, now)).unwrap_or_default(),
            seen_at.map(|time| since(time, now)).unwrap_or_default(),
            queues.map_or_else(|| String::from("?"), |queues| queues.join(", ")),
        ]);
    }
    table.print()
}
