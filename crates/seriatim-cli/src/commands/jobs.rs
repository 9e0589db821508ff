//! `seriatim job`: show, list, and what is done with jobs by their ids.

use std::collections::BTreeSet;
use std::iter;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::to_raw_value;
use seriatim::Job;
use seriatim::admin::{Change, Operation};
use seriatim::explain::JobExplanation;

use crate::args::{self, Ids, JobList, MoveJobs};
use crate::commands::explain::no_such_job;
use crate::commands::groups::tries;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::{clock, explained, in_words, since, visible};
use crate::output::{json, json_line, line};
use crate::session::Session;

/// Runs a command about jobs.
pub(crate) async fn run(session: &Session, job: args::Job) -> Result<(), Failure> {
    match job {
        args::Job::Show { id, data } => show(session, id, data).await,
        args::Job::List(list) => self::list(session, &list).await,
        args::Job::Cancel(ids) => each(session, &ids, |job| Change::Cancel { job }).await,
        args::Job::Retry(ids) => each(session, &ids, |job| Change::Retry { job }).await,
        args::Job::Skip(ids) => each(session, &ids, |job| Change::Skip { job }).await,
        args::Job::Abort(ids) => each(session, &ids, |job| Change::Abort { job }).await,
        args::Job::RunNow(ids) => each(session, &ids, |job| Change::RunNow { job }).await,
        args::Job::Redrive(Ids { ids }) => {
            session.apply(Change::RedriveJobs { ids }).await.map(drop)
        }
        args::Job::Discard(Ids { ids }) => {
            session.apply(Change::DiscardJobs { ids }).await.map(drop)
        }
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

/// Makes a change of each of the jobs.
async fn each(session: &Session, ids: &Ids, change: impl Fn(i64) -> Change) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    let ids = ids.ids.iter().filter(|id| seen.insert(**id));
    let changes: Vec<_> = ids.map(|id| change(*id)).collect();
    session.apply_all(&changes).await
}

/// Moves queued jobs to another queue.
async fn move_jobs(session: &Session, jobs: &MoveJobs) -> Result<(), Failure> {
    let MoveJobs { ids, to } = jobs;
    let effect = session.apply(Change::MoveJobs { ids: ids.clone(), to: to.clone() }).await?;
    let moved = effect.result.get("jobs").and_then(Value::as_array).into_iter().flatten();
    let moved: BTreeSet<_> = moved.filter_map(|moved| moved["job"].as_i64()).collect();
    let stays = |id: &&i64| !moved.contains(id);
    let why = "it is not queued, is there already, would be a duplicate, or is locked";
    let stay = ids.iter().filter(stays);
    let stay = stay.map(|id| (Some(*id), Failure::Refused(format!("job {id} stays: {why}"))));
    session.refusals(1, stay.collect())
}
