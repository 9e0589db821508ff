//! `seriatim job`: show, list, and what is done with jobs by their ids.

use std::cell::{Cell, RefCell};
use std::iter;
use std::time::Duration;

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use seriatim::admin::{self, Cancelled, Moved, Operation};
use seriatim::explain::JobExplanation;
use seriatim::{ControlError, Job};
use sqlx::PgConnection;

use crate::args::{self, Ids, JobList, MoveJobs};
use crate::change::{Effect, ask};
use crate::commands::explain::no_such_job;
use crate::commands::groups::tries;
use crate::commands::{dead_letters, pause, stops};
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::{clock, count, explained, in_commands, in_words, since, visible};
use crate::output::{self, json, json_line, line};
use crate::session::Session;

/// Runs a command about jobs.
pub(crate) async fn run(session: &Session, job: args::Job) -> Result<(), Failure> {
    match job {
        args::Job::Show { id, data } => show(session, id, data).await,
        args::Job::List(list) => self::list(session, &list).await,
        args::Job::Cancel(ids) => cancel(session, &ids).await,
        args::Job::Retry(ids) => retry(session, &ids).await,
        args::Job::Skip(ids) => skip(session, &ids).await,
        args::Job::Redrive(ids) => dead_letters::redrive_jobs(session, &ids.ids).await,
        args::Job::Discard(ids) => dead_letters::discard_jobs(session, &ids.ids).await,
        args::Job::Abort(ids) => abort(session, &ids).await,
        args::Job::RunNow(ids) => run_now(session, &ids).await,
        args::Job::Move(jobs) => move_jobs(session, &jobs).await,
    }
}

async fn show(session: &Session, id: i64, with_data: bool) -> Result<(), Failure> {
    let client = if with_data { &session.carrying } else { &session.client };
    let job = client.job(&mut *session.read().await?, id).await?.ok_or_else(|| no_such_job(id))?;
    let explanation = session.client.explain_job(&session.pool, id).await?;
    let advice = explanation.as_ref().and_then(JobExplanation::advice);
    let sentence = explanation.map(|explanation| explanation.to_string());
    let operations = client.job_operations(&mut *session.read().await?, id).await?;
    if session.json() {
        let mut fields = json::job(&job, with_data)?;
        fields.insert(String::from("sentence"), to_raw_value(&sentence)?);
        fields.insert(String::from("operations"), to_raw_value(&operations)?);
        return json_line(&fields);
    }
    if let Some(sentence) = sentence {
        let (queue, group) = (Some(&*job.queue), job.group.as_deref());
        let sentence = explained(&sentence, advice.as_deref(), queue, group);
        line(&visible(&sentence))?;
    }
    for (field, value) in fields(&job, with_data) {
        line(&format!("{field:<12} {}", visible(&value)))?;
    }
    attempts(&job)?;
    done(operations)
}

/// Prints what operators did with a job.
fn done(operations: Vec<Operation>) -> Result<(), Failure> {
    if operations.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["at", "~actor", "action", "~reason"]);
    for Operation { at, actor, action, reason, .. } in operations {
        table.row([clock(at), actor, action, reason.unwrap_or_default()]);
    }
    line("")?;
    table.print()
}

/// Returns what a job has, by the names of the fields.
fn fields(job: &Job, with_data: bool) -> Vec<(&'static str, String)> {
    let time = |time: Option<_>| time.map(clock);
    let mut fields = vec![
        ("queue", Some(job.queue.clone())),
        ("failed in", job.moved_from.clone()),
        ("group", job.group.clone()),
        ("limit key", job.limit_key.clone()),
        ("status", Some(job.status.to_string())),
        ("name", job.name.clone()),
        ("reference", job.reference.clone()),
        ("attempts", Some(tries(job.attempt()))),
        ("snoozes", (job.snoozes > 0).then(|| job.snoozes.to_string())),
        ("progress", job.progress.as_ref().map(|far| format!("{far} ({})", clock(far.at)))),
        ("checkpoint", job.checkpoint_at.map(|at| format!("kept {}", clock(at)))),
        ("priority", (job.priority > 0).then(|| job.priority.to_string())),
        ("enqueued", Some(clock(job.created_at))),
        ("due", (!job.status.is_final()).then(|| clock(job.run_at))),
        ("expires", time(job.expires_at)),
        ("begun", time(job.last_started_at)),
        ("ended", time(job.finished_at)),
        ("lease", job.lease.map(in_words)),
        ("dedup id", job.dedup_id.clone()),
        ("unique key", job.unique_key.clone()),
        ("replaced", replaced(job)),
        // Headers are read with the data.
        ("scheduled", time(job.scheduled_for())),
        ("ends batch", job.ended_batch().map(|batch| batch.to_string())),
    ];
    if let Some(error) = &job.error {
        let chain = iter::once(&error.message).chain(&error.chain);
        fields.push(("error", Some(chain.cloned().collect::<Vec<_>>().join(": "))));
    }
    if with_data {
        let payload = job.payload.as_deref().map(json::hex);
        fields.push(("data", Some(payload.unwrap_or_else(|| job.data_text().to_owned()))));
        fields.push(("result", job.result_text().map(str::to_owned)));
    }
    fields.into_iter().filter_map(|(field, value)| Some((field, value?))).collect()
}

/// Returns how often enqueues with its unique key have replaced what it has, and when last.
fn replaced(job: &Job) -> Option<String> {
    let last = job.replaced_at?;
    let times =
        if job.replaced == 1 { "once".to_owned() } else { format!("{} times", job.replaced) };
    Some(format!("{times}, last {}", clock(last)))
}

fn attempts(job: &Job) -> Result<(), Failure> {
    if job.history.is_empty() {
        return Ok(());
    }
    line("")?;
    let mut table = Table::new(&["#attempt", "begun", "#took", "ended as", "~message"]);
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
        Table::new(&["#job", "~group", "status", "~name", "~reference", "tries", "#age", "~error"]);
    for job in page.jobs {
        let tries = tries(job.attempt());
        table.row([
            job.id.to_string(),
            job.group.unwrap_or_default(),
            job.status.to_string(),
            job.name.unwrap_or_default(),
            job.reference.unwrap_or_default(),
            tries,
            since(job.created_at, now),
            job.error.map(|error| error.message).unwrap_or_default(),
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
        let cancelled = session.operator.cancel(conn, id).await?;
        let state = if cancelled == Cancelled::Requested { "requested" } else { "cancelled" };
        let sentence = format!("job {id} is {cancelled}");
        Ok((sentence, json!({"action": "cancel", "job": id, "state": state})))
    };
    each(session, ids, act).await
}

async fn retry(session: &Session, ids: &Ids) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection, id| {
        let retried = session.operator.retry(conn, id).await?;
        let next = match retried.dead_letter_of {
            Some(_) => in_commands(&format!(" (redrive {id})"), None, None),
            None => String::new(),
        };
        let sentence = format!("job {id} is {retried}{next}");
        let data = json!({
            "action": "retry", "job": id, "overtaken": retried.overtaken,
            "dead_letter_of": retried.dead_letter_of,
        });
        Ok((sentence, data))
    };
    each(session, ids, act).await
}

async fn skip(session: &Session, ids: &Ids) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection, id| {
        session.operator.skip(conn, id).await?;
        let skipped = admin::Effect::Skipped { job: id };
        Ok((skipped.to_string(), json!({"action": "skip", "job": id})))
    };
    each(session, ids, act).await
}

/// Aborts runs. It ends sessions, and a rollback does not undo that: a dry run only explains.
async fn abort(session: &Session, ids: &Ids) -> Result<(), Failure> {
    if session.dry_run {
        for id in &ids.ids {
            let explanation = session.client.explain_job(&session.pool, *id).await?;
            let sentence = explanation.ok_or_else(|| no_such_job(*id))?.to_string();
            let data = json!({"action": "abort", "job": id, "sentence": sentence});
            session.tell(&Effect::new(sentence, 1, data))?;
        }
        return Ok(());
    }
    if ids.ids.len() > 1 && !session.yes {
        ask(&format!("the runs of {} jobs end", ids.ids.len()))?;
    }
    let mut refused = Vec::new();
    for id in &ids.ids {
        let mut tx = session.begin().await?;
        if let Err(error) = session.operator.abort(&mut *tx, *id).await {
            refused.push((*id, Failure::from(error)));
            continue;
        }
        tx.commit().await?;
        let sentence = admin::Effect::Aborted { job: *id }.to_string();
        session.tell(&Effect::new(sentence, 1, json!({"action": "abort", "job": id})))?;
    }
    let done = ids.ids.len() - refused.len();
    refusals(session, done, refused)
}

async fn run_now(session: &Session, ids: &Ids) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection, id| {
        session.operator.run_now(conn, id).await?;
        let due = admin::Effect::DueNow { job: id };
        Ok((due.to_string(), json!({"action": "run_now", "job": id})))
    };
    each(session, ids, act).await
}

/// Moves queued jobs to another queue.
async fn move_jobs(session: &Session, jobs: &MoveJobs) -> Result<(), Failure> {
    let MoveJobs { ids, to } = jobs;
    let doubt = pause::doubt(session, to).await?;
    let stay = RefCell::new(Vec::new());
    let act = async |conn: &mut PgConnection| {
        let moved = session.operator.move_jobs(conn, ids, to).await?;
        if moved.jobs.is_empty() {
            return Err(Failure::NothingMatched(nothing_moved(to, &moved)));
        }
        let is_moved = |id: &i64| moved.jobs.iter().any(|moved| moved.job == *id);
        *stay.borrow_mut() = ids.iter().copied().filter(|id| !is_moved(id)).collect();
        let mut data = json::change("move", &moved)?;
        data["to"] = to.as_str().into();
        let warnings: Vec<_> =
            stops::left(session, &moved).await?.into_iter().chain(doubt.clone()).collect();
        let told = |ids: &str| {
            let moved = format!("queue {to:?}: {moved}{ids}");
            iter::once(moved).chain(warnings.iter().cloned()).collect::<Vec<_>>().join("; ")
        };
        // A preview has no ids of new jobs: they go with its transaction.
        let mut without_ids = data.clone();
        for moved in without_ids["jobs"].as_array_mut().into_iter().flatten() {
            moved["new_job"] = Value::Null;
        }
        let new_id = match &*moved.jobs {
            [one] => format!("; its id is {} now", one.new_job),
            _ => String::new(),
        };
        let asks = moved.jobs.len() > 1 || !warnings.is_empty();
        let preview = Some((told(""), without_ids));
        Ok(Effect { sentence: told(&new_id), asks, data, preview })
    };
    session.change(act).await?;
    let stays = |id| {
        let why = "it is not queued, is there already, would be a duplicate, or is locked";
        (id, Failure::Refused(format!("job {id} stays: {why}")))
    };
    let stay: Vec<i64> = stay.into_inner();
    refusals(session, 1, stay.into_iter().map(stays).collect())
}

fn nothing_moved(to: &str, moved: &Moved) -> String {
    match moved.duplicates {
        0 => format!("no such job is queued, free, and not in queue {to:?} already"),
        jobs => format!("{} would be duplicates in queue {to:?}", count(jobs, "job")),
    }
}

fn count_of(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Acts on each job in one transaction. A job that refuses does not keep the others from theirs.
async fn each(
    session: &Session,
    ids: &Ids,
    act: impl AsyncFn(&mut PgConnection, i64) -> Result<(String, Value), ControlError>,
) -> Result<(), Failure> {
    let [id] = *ids.ids else { return several(session, ids, act).await };
    let one = async |conn: &mut PgConnection| {
        let (sentence, data) = act(conn, id).await?;
        Ok(Effect::new(sentence, 1, data))
    };
    session.change(one).await
}

async fn several(
    session: &Session,
    ids: &Ids,
    act: impl AsyncFn(&mut PgConnection, i64) -> Result<(String, Value), ControlError>,
) -> Result<(), Failure> {
    let refused = RefCell::new(Vec::new());
    let done = Cell::new(0);
    let all = async |conn: &mut PgConnection| {
        refused.borrow_mut().clear();
        let (mut sentences, mut data) = (Vec::new(), Vec::new());
        for id in &ids.ids {
            match act(conn, *id).await {
                Ok((sentence, record)) => {
                    sentences.push(sentence);
                    data.push(record);
                }
                Err(error @ ControlError::Database(_)) => return Err(error.into()),
                Err(error) => refused.borrow_mut().push((*id, Failure::from(error))),
            }
        }
        done.set(data.len());
        if data.is_empty() {
            // Told job by job.
            return Err(Failure::NothingMatched(String::from("no job is changed")));
        }
        Ok(Effect::new(sentences.join("; "), count_of(data.len()), Value::Array(data)))
    };
    let changed = session.change(all).await;
    let refused = refused.into_inner();
    if done.get() == 0 && !refused.is_empty() {
        return refusals(session, 0, refused);
    }
    changed?;
    refusals(session, done.get(), refused)
}

/// Tells of jobs that refused. It is an error if others were changed; else the last one decides.
fn refusals(session: &Session, done: usize, refused: Vec<(i64, Failure)>) -> Result<(), Failure> {
    for (id, failure) in &refused {
        output::failure(session.form, failure, Some(*id));
    }
    match refused.into_iter().last() {
        None => Ok(()),
        Some(_) if done > 0 => {
            let partly = Failure::Error(String::from("not every job is changed"));
            Err(Failure::Told(Box::new(partly)))
        }
        Some((_, last)) => Err(Failure::Told(Box::new(last))),
    }
}
