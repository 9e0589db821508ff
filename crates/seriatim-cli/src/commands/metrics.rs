//! `seriatim metrics`: the metrics of the fleet, as Prometheus reads them.

use std::time::Duration;

use seriatim::observe::Metrics;

use crate::args::{Global, NumberedServer};
use crate::failure::Failure;
use crate::output::{self, Form, json_line, line, tell_shard};
use crate::session::{Session, Source, check_number};

/// How old the last count may be. Others may have counted.
const EVERY: Duration = Duration::from_secs(15);

/// Counts the metrics, unless that was done lately or must not be, and prints them.
pub(crate) async fn run(session: &Session, read_only: bool) -> Result<(), Failure> {
    let metrics = counted(session, read_only).await?;
    if session.json() {
        return json_line(&metrics);
    }
    line(metrics.to_prometheus().trim_end())
}

/// Prints the metrics of all servers in one text. One that fails is named, in the text too.
pub(crate) async fn run_over(global: &Global, numbered: &[NumberedServer]) -> Result<(), Failure> {
    let (mut all, mut last) = (Vec::new(), None);
    for NumberedServer { shard, url } in numbered {
        let global = Global { database_url: Some(url.clone()), ..global.clone() };
        let read_only = global.read_only;
        let asked = async {
            let session = Session::open(global, true).await?;
            check_number(&session.client, &session.pool, *shard).await?;
            counted(&session, read_only).await
        };
        let metrics = asked.await.map_err(|failure| {
            tell_shard(Some(*shard));
            output::failure(Form::Text, &failure, None);
            last = Some(failure);
        });
        tell_shard(None);
        all.push((*shard, metrics.ok()));
    }
    let all = all.iter().map(|(shard, of)| (*shard, of.as_ref()));
    line(Metrics::all_to_prometheus(all).trim_end())?;
    last.map_or(Ok(()), |failure| Err(Failure::Told(Box::new(failure))))
}

async fn counted(session: &Session, read_only: bool) -> Result<Metrics, Failure> {
    if !read_only && session.source == Source::Primary {
        let mut tx = session.begin().await?;
        match session.client.collect_metrics(&mut *tx, EVERY).await {
            Ok(_) => tx.commit().await?,
            // An observer may not: it reads what others have counted.
            Err(error) if is_denied(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(session.client.metrics(&mut *session.read().await?).await?)
}

fn is_denied(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.as_deref() == Some("42501")
}
