//! `seriatim enqueue`: one job.

use std::fs;
use std::io::{Read, stdin};

use serde_json::json;
use serde_json::value::RawValue;
use seriatim::{NewJob, Unique};

use crate::args::{Enqueue, UniqueMode};
use crate::change::Effect;
use crate::failure::Failure;
use crate::session::Session;

/// Enqueues a job.
pub(crate) async fn run(session: &Session, enqueue: Enqueue) -> Result<(), Failure> {
    let replaces = enqueue.unique_key.is_some()
        && matches!(enqueue.unique_mode, UniqueMode::Replace | UniqueMode::Debounce);
    let job = job(enqueue)?;
    let mut tx = session.begin().await?;
    let enqueued = session.client.enqueue(&mut *tx, job).await?;
    if session.dry_run {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    let (id, duplicate) = (enqueued.id(), enqueued.is_duplicate());
    // The id of a preview goes with its transaction; that of an earlier job stays.
    let id = (!session.dry_run || duplicate).then_some(id);
    let sentence = match id {
        Some(id) if duplicate && replaces => format!("job {id} waits, and its data is replaced"),
        Some(id) if duplicate => format!("a duplicate of job {id}, nothing was enqueued"),
        Some(id) => format!("job {id} is enqueued"),
        None => String::from("1 job is enqueued"),
    };
    let data = json!({"action": "enqueue", "job": id, "duplicate": duplicate});
    session.tell(&Effect::new(sentence, 1, data))
}

fn job(enqueue: Enqueue) -> Result<NewJob, Failure> {
    let Enqueue {
        queue,
        group,
        limit_key,
        data,
        name,
        reference,
        delay,
        time_to_live,
        priority,
        max_attempts,
        dedup_id,
        unique_key,
        unique_mode,
        unique_in_group,
        batch,
    } = enqueue;
    let mut job = NewJob::new(queue, &read(&data)?);
    if let Some(group) = group {
        job = job.group(group);
    }
    if let Some(key) = limit_key {
        job = job.limit_key(key);
    }
    if let Some(name) = name {
        job = job.name(name);
    }
    if let Some(reference) = reference {
        job = job.reference(reference);
    }
    if let Some(delay) = delay {
        job = job.delay(delay);
    }
    if let Some(time) = time_to_live {
        job = job.time_to_live(time);
    }
    if let Some(priority) = priority {
        job = job.priority(priority);
    }
    if let Some(attempts) = max_attempts {
        job = job.max_attempts(attempts);
    }
    if let Some(id) = dedup_id {
        job = job.dedup_id(id);
    }
    if let Some(key) = unique_key {
        let unique = match unique_mode {
            UniqueMode::UntilStart => Unique::until_start(key),
            UniqueMode::UntilEnd => Unique::until_end(key),
            UniqueMode::Replace => Unique::replace(key),
            UniqueMode::Debounce => Unique::debounce(key),
        };
        job = job.unique(if unique_in_group { unique.in_group() } else { unique });
    }
    if let Some(batch) = batch {
        job = job.batch(batch);
    }
    Ok(job)
}

/// Reads the data: the argument itself, a file, or standard input.
pub(crate) fn read(argument: &str) -> Result<Box<RawValue>, Failure> {
    let usage = |message: String| Failure::Usage(message);
    let text = match argument.strip_prefix('@') {
        Some(path) => fs::read_to_string(path)
            .map_err(|error| usage(format!("{path} cannot be read: {error}")))?,
        None if argument == "-" => {
            let mut text = String::new();
            let read = stdin().read_to_string(&mut text);
            read.map_err(|error| usage(format!("standard input cannot be read: {error}")))?;
            text
        }
        None => argument.to_owned(),
    };
    parse(&text, "the data")
}

/// Checks JSON, and keeps its text: a value would round its numbers. The message does not repeat
/// it: it may be a secret.
pub(crate) fn parse(text: &str, what: &str) -> Result<Box<RawValue>, Failure> {
    serde_json::from_str(text).map_err(|error| {
        Failure::Usage(format!(
            "{what} is no JSON, at line {}, column {}: a text needs double quotes",
            error.line(),
            error.column()
        ))
    })
}
