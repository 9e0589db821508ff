//! `seriatim receive`, `ack`, `nack`, `snooze`, `rest`, `progress` and `extend`: jobs by hand, for
//! scripts.

use std::time::Duration;

use serde_json::json;
use seriatim::Job;
use seriatim::receive::{Receipt, Receive};
use sqlx::PgConnection;

use crate::args;
use crate::change::Effect;
use crate::commands::enqueue::parse;
use crate::commands::pause::end_of;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::text::{clock, explained, in_words, number, program, shell};
use crate::output::{json, json_line};
use crate::session::Session;

/// Receives jobs and prints them, with their data.
pub(crate) async fn receive(session: &Session, receive: args::Receive) -> Result<(), Failure> {
    let args::Receive { queue, group, max, visibility, attempt_id } = receive;
    let mut request = Receive::new(&queue).max(max).visibility(visibility);
    if let Some(group) = &group {
        request = request.group(group);
    }
    if let Some(id) = attempt_id {
        request = request.attempt_id(id);
    }
    let mut tx = session.begin().await?;
    let jobs = session.client.receive(&mut *tx, request).await?;
    if session.dry_run {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    if jobs.is_empty() {
        let why = why_empty(session, &queue, group.as_deref()).await?;
        return Err(Failure::NothingMatched(why));
    }
    if session.json() {
        return jobs.iter().try_for_each(|job| json_line(&json::received(job)?));
    }
    let mut table = Table::new(&["receipt", "~group", "#attempt", "until", "~data"]);
    for job in &jobs {
        let payload = job.payload.as_deref().map(json::hex);
        table.row([
            job.receipt.to_string(),
            job.group.clone().unwrap_or_default(),
            job.attempt.to_string(),
            clock(job.visible_until),
            payload.unwrap_or_else(|| job.data_text().to_owned()),
        ]);
    }
    table.print()
}

/// Returns why there was no job to receive.
async fn why_empty(session: &Session, queue: &str, group: Option<&str>) -> Result<String, Failure> {
    let nothing = format!("queue {queue:?} has no job to receive now");
    let queues = session.client.queues(&mut *session.read().await?).await?;
    let Some(overview) = queues.into_iter().find(|overview| overview.queue == queue) else {
        return Ok(format!("{nothing}: it has no job at all"));
    };
    if let Some(pause) = overview.paused {
        let reason = pause.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        let by = pause.rested_by.map(|job| format!(" by job {job}")).unwrap_or_default();
        let (age, quoted) = (in_words(Duration::from_secs(pause.age.as_secs())), shell(queue));
        return Ok(format!(
            "{nothing}: it has been paused{by} for {age}{reason}; `{} resume {quoted}` ends that",
            program()
        ));
    }
    if let Some(group) = group {
        let explanation = session.client.explain_group(&session.pool, queue, group).await?;
        let (sentence, advice) = (explanation.to_string(), explanation.advice());
        let sentence = explained(&sentence, advice.as_deref(), Some(queue), Some(group));
        return Ok(format!("{nothing}: {sentence}"));
    }
    let (jobs, groups) = (overview.jobs, overview.groups);
    if overview.in_flight_limit.is_some_and(|limit| jobs.started.count >= limit.into()) {
        return Ok(format!("{nothing}: its limit of {} in flight is reached", jobs.started.count));
    }
    let counts = [
        (jobs.started, "started"),
        (jobs.delayed, "not due yet"),
        (groups.halted, "in groups that are halted"),
        (groups.paused, "in groups that are paused"),
        (jobs.parked, "parked"),
    ];
    let mut why: Vec<String> = Vec::new();
    for (count, word) in counts.into_iter().filter(|(count, _)| count.count > 0) {
        why.push(match word.strip_prefix("in groups that are ") {
            Some(state) => format!("{} of its groups {state}", number(count)),
            None => format!("{} of its jobs {word}", number(count)),
        });
    }
    Ok(if why.is_empty() {
        format!("{nothing}: it has none that is unfinished")
    } else {
        format!("{nothing}: {}", why.join(", "))
    })
}

/// Ends a received job as succeeded.
pub(crate) async fn ack(
    session: &Session,
    receipt: &Receipt,
    result: Option<String>,
) -> Result<(), Failure> {
    let result = result.map(|result| parse(&result, "the result")).transpose()?;
    let act = async |conn: &mut PgConnection| {
        match &result {
            Some(result) => session.client.ack_with(conn, receipt, result).await?,
            None => session.client.ack(conn, receipt).await?,
        }
        Ok(effect(receipt, "ack", "has succeeded"))
    };
    session.change(act).await
}

/// Gives a received job back.
pub(crate) async fn nack(
    session: &Session,
    receipt: &Receipt,
    delay: Option<Duration>,
    error: Option<String>,
) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection| {
        match &error {
            Some(error) => session.client.nack_with(&mut *conn, receipt, delay, error).await?,
            None => session.client.nack(&mut *conn, receipt, delay).await?,
        }
        let job = session.client.job(conn, receipt.job()).await?;
        let due = match delay {
            Some(Duration::ZERO) => String::from("due now"),
            Some(delay) => format!("due in {}", in_words(delay)),
            None => String::from("due by the queue's backoff"),
        };
        let word = ended(job.as_ref()).unwrap_or_else(|| format!("is given back, {due}"));
        Ok(effect(receipt, "nack", &word))
    };
    session.change(act).await
}

/// Puts a received job off.
pub(crate) async fn snooze(
    session: &Session,
    receipt: &Receipt,
    delay: Duration,
    max: u32,
) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection| {
        session.client.snooze(&mut *conn, receipt, delay, max).await?;
        let job = session.client.job(conn, receipt.job()).await?;
        let word = ended(job.as_ref()).unwrap_or_else(|| match job {
            // It was put off too often, and has failed an attempt.
            Some(job) if job.error.as_ref().is_some_and(|error| error.attempt == job.attempts) => {
                format!("was snoozed {} of {max} times, and is given back as by nack", job.snoozes)
            }
            _ => format!("is snoozed, due in {}", in_words(delay)),
        });
        Ok(effect(receipt, "snooze", &word))
    };
    session.change(act).await
}

/// Says how far a received job is, and keeps a checkpoint.
pub(crate) async fn progress(
    session: &Session,
    receipt: &Receipt,
    percent: u8,
    message: &str,
    checkpoint: Option<String>,
) -> Result<(), Failure> {
    let checkpoint = checkpoint.map(|json| parse(&json, "the checkpoint")).transpose()?;
    let act = async |conn: &mut PgConnection| {
        session.client.progress(&mut *conn, receipt, percent, message).await?;
        if let Some(checkpoint) = &checkpoint {
            session.client.checkpoint(conn, receipt, checkpoint).await?;
        }
        let kept = if checkpoint.is_some() { ", and its checkpoint is kept" } else { "" };
        Ok(effect(receipt, "progress", &format!("is at {percent} %{kept}")))
    };
    session.change(act).await
}

/// Lets the group of a received job rest, or its queue.
pub(crate) async fn rest(
    session: &Session,
    receipt: &Receipt,
    lasts: Duration,
    whole_queue: bool,
) -> Result<(), Failure> {
    let until = end_of(session, lasts).await?;
    let what = if whole_queue { "queue" } else { "group" };
    let act = async |conn: &mut PgConnection| {
        let (client, reason) = (&session.client, session.reason.as_deref().unwrap_or_default());
        let counts = if whole_queue {
            client.rest_queue(conn, receipt, until, reason).await?
        } else {
            client.rest_group(conn, receipt, until, reason).await?
        };
        let (job, end) = (receipt.job(), clock(until));
        let sentence = if counts {
            format!("the {what} of job {job} rests until {end}: no other job of it starts before")
        } else {
            format!("the {what} of job {job} is paused until {end} or longer: that stays as it is")
        };
        let data =
            json!({"action": "rest", "job": job, "rests": what, "until": until, "counts": counts});
        Ok(Effect::new(sentence, 1, data))
    };
    session.change(act).await
}

/// Returns how a job ended instead of going back, if it did: an operator has cancelled it, or it
/// has used up its attempts.
fn ended(job: Option<&Job>) -> Option<String> {
    let job = job.filter(|job| job.status.is_final())?;
    Some(format!("has ended as {}", job.status))
}

/// Extends the claim of a received job.
pub(crate) async fn extend(
    session: &Session,
    receipt: &Receipt,
    visibility: Duration,
) -> Result<(), Failure> {
    let act = async |conn: &mut PgConnection| {
        session.client.extend(conn, receipt, visibility).await?;
        Ok(effect(receipt, "extend", &format!("is kept for {}", in_words(visibility))))
    };
    session.change(act).await
}

fn effect(receipt: &Receipt, action: &str, word: &str) -> Effect {
    let job = receipt.job();
    let data = json!({"action": action, "job": job});
    Effect::new(format!("job {job} {word}"), 1, data)
}
