//! `seriatim job`: show, list, cancel, retry and skip.

use std::iter;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::{Cancelled, ControlError, Job};
use sqlx::PgConnection;

use crate::args::{self, Ids, JobList};
use crate::change::{Effect, ask};
use crate::commands::explain::no_such_job;
use crate::commands::groups::tries;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::{clock, count, in_commands, in_words, since, visible};
use crate::output::{json, json_line, line};
use crate::session::Session;

/// Runs a command about jobs.
pub(crate) async fn run(session: &Session, job: args::Job) -> Result<(), Failure> {
    match job {
        args::Job::Show { id, data } => show(session, id, data).await,
        args::Job::List(list) => self::list(session, &list).await,
        args::Job::Cancel(ids) => cancel(session, &ids).await,
        args::Job::Retry(ids) => retry(session, &ids).await,
        args::Job::Skip(ids) => skip(session, &ids).await,
        args::Job::Abort(ids) => abort(session, &ids).await,
        args::Job::RunNow(ids) => run_now(session, &ids).await,
    }
}

async fn show(session: &Session, id: i64, with_data: bool) -> Result<(), Failure> {
    let client = if with_data { &session.carrying } else { &session.client };
    let job = client.job(&mut *session.read().await?, id).await?.ok_or_else(|| no_such_job(id))?;
    let explanation = session.client.explain_job(&session.pool, id).await?;
    let sentence = explanation.map(|explanation| explanation.to_string());
    if session.json() {
        let mut value = json::job(&job, with_data);
        value["sentence"] = sentence.into();
        return json_line(&value);
    }
    if let Some(sentence) = sentence {
        line(&visible(&in_commands(&sentence)))?;
    }
    for (field, value) in fields(&job, with_data) {
        line(&format!("{field:<12} {}", visible(&value)))?;
    }
    attempts(&job)
}

/// Returns what a job has, by the names of the fields.
fn fields(job: &Job, with_data: bool) -> Vec<(&'static str, String)> {
    let time = |time: Option<_>| time.map(clock);
    let mut fields = vec![
        ("queue", Some(job.queue.clone())),
        ("group", job.group.clone()),
        ("status", Some(job.status.to_string())),
        ("name", job.name.clone()),
        ("reference", job.reference.clone()),
        ("attempts", Some(tries(job.attempts.into(), job.max_attempts.map(i64::from)))),
        ("priority", (job.priority > 0).then(|| job.priority.to_string())),
        ("enqueued", Some(clock(job.created_at))),
        ("due", (!job.status.is_final()).then(|| clock(job.run_at))),
        ("expires", time(job.expires_at)),
        ("begun", time(job.last_started_at)),
        ("ended", time(job.finished_at)),
        ("lease", job.lease.map(in_words)),
        ("dedup id", job.dedup_id.clone()),
    ];
    if let Some(error) = &job.error {
        let chain = iter::once(&error.message).chain(&error.chain);
        fields.push(("error", Some(chain.cloned().collect::<Vec<_>>().join(": "))));
    }
    if with_data {
        let payload = job.payload.as_deref().map(json::hex);
        fields.push(("data", Some(payload.unwrap_or_else(|| job.data.to_string()))));
        fields.push(("result", job.result.as_ref().map(Value::to_string)));
    }
    fields.into_iter().filter_map(|(field, value)| Some((field, value?))).collect()
}

fn attempts(job: &Job) -> Result<(), Failure> {
    if job.history.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["#attempt", "begun", "#took", "ended as", "message"]);
    for attempt in &job.history {
        let took = attempt.started_at.and_then(|begun| (attempt.finished_at - begun).to_std().ok());
        let took = took.map(|took| Duration::from_millis(took.as_millis().try_into().unwrap_or(0)));
        let kind = serde_json::to_value(attempt.kind)?;
        table.row([
            attempt.attempt.to_string(),
            attempt.started_at.map(clock).unwrap_or_default(),
            took.map(in_words).unwrap_or_default(),
            kind.as_str().unwrap_or_default().to_owned(),
            attempt.message.clone().unwrap_or_default(),
        ]);
    }
    table.print()
}

async fn list(session: &Session, list: &JobList) -> Result<(), Failure> {
    let page = session.jobs(list).await?;
    if page.jobs.is_empty() {
        let more = page.next.map(|id| format!("; older jobs: --before {id}")).unwrap_or_default();
        return Err(Failure::NothingMatched(format!(
            "no job of queue {:?} matches{more}",
            list.queue
        )));
    }
    if session.json() {
        return page.jobs.iter().try_for_each(json_line);
    }
    let now = session.now().await?;
    let mut table =
        Table::new(&["#job", "group", "status", "name", "reference", "tries", "#age", "error"]);
    for job in page.jobs {
        table.row([
            job.id.to_string(),
            job.group.unwrap_or_default(),
            job.status.to_string(),
            job.name.unwrap_or_default(),
            job.reference.unwrap_or_default(),
            tries(job.attempts.into(), job.max_attempts.map(i64::from)),
            since(job.created_at, now),
            job.error.unwrap_or_default(),
        ]);
    }
    table.print()?;
    match page.next {
        Some(id) => line(&format!("more: --before {id}")),
        None => Ok(()),
    }
}

async fn cancel(session: &Session, ids: &Ids) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection, id| {
        let (word, state) = match session.client.cancel(conn, id).await? {
            Cancelled::Now => ("is cancelled", "cancelled"),
            Cancelled::Requested => {
                ("runs, or a transaction has its row: it is asked to end", "requested")
            }
            _ => ("is cancelled", "unknown"),
        };
        Ok((word.to_owned(), json!({"job": id, "cancel": state})))
    };
    each(session, ids, act).await
}

async fn retry(session: &Session, ids: &Ids) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection, id| {
        let retried = session.client.retry(conn, id).await?;
        let overtaken = overtaken(retried.overtaken);
        let word = format!("is queued again in its old place{overtaken}");
        Ok((word, json!({"job": id, "retry": "queued", "overtaken": retried.overtaken})))
    };
    each(session, ids, act).await
}

async fn skip(session: &Session, ids: &Ids) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection, id| {
        session.client.skip(conn, id).await?;
        Ok((
            String::from(
                "is given up, and its group goes on; it stays a dead letter, which redrive would queue again (discard ends it for good)",
            ),
            json!({"job": id, "skip": "done"}),
        ))
    };
    each(session, ids, act).await
}

/// Aborts runs. It ends sessions, and a rollback does not undo that: a dry run only explains.
async fn abort(session: &Session, ids: &Ids) -> Result<(), Failure> {
    if session.dry_run {
        for id in &ids.ids {
            let explanation = session.client.explain_job(&session.pool, *id).await?;
            let sentence = explanation.ok_or_else(|| no_such_job(*id))?.to_string();
            let data = json!({"job": id, "sentence": sentence});
            session.tell(&Effect { sentence, jobs: 1, data })?;
        }
        return Ok(());
    }
    if ids.ids.len() > 1 && !session.yes {
        ask(&format!("the runs of {} jobs end", ids.ids.len()))?;
    }
    let mut refused = None;
    for id in &ids.ids {
        let mut tx = session.begin().await?;
        if let Err(error) = session.client.abort(&mut *tx, *id).await {
            let failure = Failure::from(error);
            failure.print();
            refused = Some(failure);
            continue;
        }
        tx.commit().await?;
        let sentence = format!("the run of job {id} ends, and its attempt counts");
        session.tell(&Effect { sentence, jobs: 1, data: json!({"job": id, "abort": "done"}) })?;
    }
    refused.map_or(Ok(()), |failure| Err(Failure::Told(Box::new(failure))))
}

async fn run_now(session: &Session, ids: &Ids) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection, id| {
        session.client.run_now(conn, id).await?;
        let word = String::from("is due now, and runs at its turn");
        Ok((word, json!({"job": id, "run_now": "due"})))
    };
    each(session, ids, act).await
}

/// Returns what is to be said of jobs that ran meanwhile, though they come later.
pub(crate) fn overtaken(jobs: u64) -> String {
    match jobs {
        0 => String::new(),
        _ => format!("; {} behind it ran already", count(jobs, "job")),
    }
}

/// Acts on each job in one transaction. A job that refuses does not keep the others from theirs.
async fn each(
    session: &Session,
    ids: &Ids,
    act: impl AsyncFn(&mut PgConnection, i64) -> Result<(String, Value), ControlError>,
) -> Result<(), Failure> {
    let [id] = *ids.ids else { return several(session, ids, act).await };
    let one = async |conn: &mut PgConnection| {
        let (word, data) = act(conn, id).await?;
        Ok(Effect { sentence: format!("job {id} {word}"), jobs: 1, data })
    };
    session.change(one).await
}

async fn several(
    session: &Session,
    ids: &Ids,
    act: impl AsyncFn(&mut PgConnection, i64) -> Result<(String, Value), ControlError>,
) -> Result<(), Failure> {
    let refused = std::cell::RefCell::new(Vec::new());
    let all = async |conn: &mut PgConnection| {
        refused.borrow_mut().clear();
        let mut effect = Effect { sentence: String::new(), jobs: 0, data: Value::Null };
        let (mut sentences, mut data) = (Vec::new(), Vec::new());
        for id in &ids.ids {
            match act(conn, *id).await {
                Ok((word, record)) => {
                    sentences.push(format!("job {id} {word}"));
                    data.push(record);
                }
                Err(error @ ControlError::Database(_)) => return Err(error.into()),
                Err(error) => refused.borrow_mut().push(Failure::from(error)),
            }
        }
        effect.jobs = u64::try_from(data.len()).unwrap_or(u64::MAX);
        effect.sentence = if sentences.is_empty() {
            String::from("no job is changed")
        } else {
            sentences.join("; ")
        };
        effect.data = Value::Array(data);
        Ok(effect)
    };
    session.change(all).await?;
    let mut refused = refused.into_inner();
    for failure in &refused {
        failure.print();
    }
    match refused.pop() {
        Some(failure) => Err(Failure::Told(Box::new(failure))),
        None => Ok(()),
    }
}
