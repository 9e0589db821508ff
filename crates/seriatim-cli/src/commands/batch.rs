//! `seriatim batch`: jobs whose end starts a follow-up.

use serde_json::json;
use seriatim::NewBatch;
use seriatim::admin::{BatchState, Change};
use sqlx::PgConnection;

use crate::args::{self, OpenBatch};
use crate::change::Effect;
use crate::commands::enqueue::read;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::{clock, program};
use crate::output::{json, json_line, line, remark};
use crate::session::Session;

/// Runs a command about batches.
pub(crate) async fn run(session: &Session, batch: args::Batch) -> Result<(), Failure> {
    match batch {
        args::Batch::List { all, before } => list(session, all, before).await,
        args::Batch::Show { batch, after } => show(session, batch, after).await,
        args::Batch::Open(open) => self::open(session, &open).await,
        args::Batch::Seal { batch } => seal(session, batch).await,
        args::Batch::Abandon { batch } => {
            session.apply(Change::AbandonBatch { batch }).await.map(drop)
        }
    }
}

async fn list(session: &Session, all: bool, before: Option<i64>) -> Result<(), Failure> {
    let batches = session.client.batches(&mut *session.read().await?, before, !all).await?;
    if batches.is_empty() {
        return Err(Failure::NothingMatched(String::from("there is no batch")));
    }
    if session.json() {
        return batches.iter().try_for_each(json_line);
    }
    let mut table = Table::new(&[
        "#batch",
        "~name",
        "state",
        "#unfinished",
        "#succeeded",
        "#unsuccessful",
        "opened",
        "~queue",
        "~group",
        "#follow-up",
    ]);
    for batch in batches {
        table.row([
            batch.id.to_string(),
            batch.name,
            batch.state.to_string(),
            batch.unfinished.to_string(),
            batch.succeeded.to_string(),
            batch.unsuccessful.to_string(),
            clock(batch.opened_at),
            batch.queue,
            batch.group.unwrap_or_default(),
            batch.follow_up.map(|job| job.to_string()).unwrap_or_default(),
        ]);
    }
    table.print()
}

fn none(batch: i64) -> Failure {
    Failure::NothingMatched(format!("there is no batch {batch}"))
}

async fn show(session: &Session, batch: i64, after: Option<i64>) -> Result<(), Failure> {
    let mut tx = session.read().await?;
    let shown = session.client.batch(&mut *tx, batch).await?.ok_or_else(|| none(batch))?;
    let jobs = session.client.batch_jobs(&mut *tx, batch, after).await?;
    if session.json() {
        json_line(&shown)?;
        return jobs.iter().try_for_each(|job| json_line(&json::batch_job(job)?));
    }
    line(&shown.to_string())?;
    let verb = match shown.state {
        BatchState::Open => Some("seal"),
        BatchState::Failed | BatchState::Refused => Some("abandon"),
        _ => None,
    };
    if let Some(verb) = verb {
        remark(session.form, &format!("`{} batch {verb} {batch}` does that", program()));
    }
    if jobs.is_empty() {
        return Ok(());
    }
    line("")?;
    let mut table = Table::new(&["#job", "~queue", "~group", "status", "ended", "~error"]);
    for job in jobs {
        table.row([
            job.job.to_string(),
            job.queue,
            job.group.unwrap_or_default(),
            job.status.to_string(),
            clock(job.ended_at),
            job.error.unwrap_or_default(),
        ]);
    }
    table.print()
}

async fn open(session: &Session, open: &OpenBatch) -> Result<(), Failure> {
    let OpenBatch { name, when, follow_up } = open;
    let data = read(&follow_up.data)?;
    let doubt = session.client.doubt_about(&mut *session.read().await?, &follow_up.queue).await?;
    let doubts = doubt.as_ref().map(|doubt| format!("; {doubt}")).unwrap_or_default();
    let act = async |conn: &mut PgConnection| {
        let batch = NewBatch::new(name, follow_up.with(&data)).when((*when).into());
        let batch = session.client.open_batch(conn, batch).await?;
        let data = |batch| json!({"action": "open_batch", "batch": batch, "name": name});
        let preview = (format!("a batch {name:?} is opened{doubts}"), data(None));
        let sentence = format!("batch {batch} is open{doubts}");
        Ok(Effect {
            sentence,
            asks: doubt.is_some(),
            data: data(Some(batch)),
            preview: Some(preview),
        })
    };
    session.change(act).await
}

async fn seal(session: &Session, batch: i64) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection| {
        if !session.client.seal_batch(conn, batch).await? {
            return Err(Failure::Refused(format!("batch {batch} is sealed already")));
        }
        let data = json!({"action": "seal_batch", "batch": batch});
        Ok(Effect::new(format!("batch {batch} is sealed; it ends when its jobs have"), 0, data))
    };
    session.change(act).await
}
