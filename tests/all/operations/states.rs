//! The effect of each verb on a job in each state, as in the guide.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use seriatim::{Client, ControlError, JobError, JobStatus, NewJob, OutOfAttempts};
use sqlx::PgPool;

use crate::support::{database, handler, job, job_when, operator, processor, queue, started};

const VERBS: [&str; 5] = ["cancel", "retry", "skip", "redrive", "purge"];
const STATES: [JobStatus; 6] = [
    JobStatus::Queued,
    JobStatus::Started,
    JobStatus::Succeeded,
    JobStatus::Failed,
    JobStatus::Cancelled,
    JobStatus::Parked,
];

/// The guide's table: by the state and the verb, what follows.
fn table() -> BTreeMap<(String, String), String> {
    let guide = include_str!("../../../docs/guide/states.md");
    let mut cells = BTreeMap::new();
    for state in STATES {
        let row = guide.lines().find(|line| line.starts_with(&format!("| {state} |"))).unwrap();
        let row = row.split('|').map(str::trim).skip(2).map(str::to_owned);
        let cell = |(verb, cell): (&str, String)| ((state.to_string(), verb.to_owned()), cell);
        cells.extend(VERBS.into_iter().zip(row).map(cell));
    }
    cells
}

/// Enqueues a job to this queue, and returns it when it is in this state.
async fn in_state(pool: &PgPool, queue: &str, state: JobStatus) -> i64 {
    let hour = Duration::from_hours(1);
    let new = |does: &str| NewJob::new(queue, &does).group("g");
    let jobs = match state {
        JobStatus::Queued | JobStatus::Cancelled => vec![new("ok").delay(hour)],
        JobStatus::Started => vec![new("wait")],
        JobStatus::Succeeded => vec![new("ok")],
        JobStatus::Parked => vec![new("fail"), new("ok")],
        _ => vec![new("fail")],
    };
    let enqueued = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let id = enqueued.last().unwrap().id();
    if state == JobStatus::Cancelled {
        Client::default().cancel(pool, id).await.unwrap();
    }
    job_when(pool, id, |job| job.status == state).await;
    id
}

/// Returns what a verb does to a job, in the words of the guide.
async fn act(pool: &PgPool, queue: &str, id: i64, verb: &str) -> String {
    let (client, before) = (Client::default(), job(pool, id).await.status);
    let done = match verb {
        "cancel" => client.cancel(pool, id).await.map(drop),
        "retry" => client.operator("test", None).retry(pool, id).await.map(drop),
        "skip" => client.operator("test", None).skip(pool, id).await,
        "redrive" => client.operator("test", None).redrive(pool, queue, 10).await.map(drop),
        _ => client.operator("test", None).purge(pool, queue).await.map(drop),
    };
    match done {
        Err(ControlError::WrongStatus { .. }) => String::from("refused"),
        Err(error) => panic!("{verb} of a job that is {before}: {error}"),
        Ok(()) => match job(pool, id).await.status {
            after if after == before => String::from("stays"),
            after => after.to_string(),
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_matrix_is_as_the_guide_has_it() {
    let database = database().await;
    let pool = database.pool();
    let mut builder = processor(&database, 10).await.slots(8);
    let cell = |state: JobStatus, verb: &str| format!("{state}-{verb}");
    for state in STATES {
        for verb in VERBS {
            let run = handler(async |_, data| match data.as_str() {
                Some("wait") => std::future::pending().await,
                Some("fail") => Err(JobError::fail("as asked")),
                _ => Ok(json!(null)),
            });
            let park = state == JobStatus::Parked;
            let then = if park { OutOfAttempts::Park } else { OutOfAttempts::Continue };
            let options = queue(&cell(state, verb)).concurrency(1).out_of_attempts(then);
            builder = builder.queue(options, run);
        }
    }
    let running = started(builder).await;
    let mut ids = BTreeMap::new();
    for state in STATES {
        for verb in VERBS {
            let id = in_state(pool, &cell(state, verb), state).await;
            ids.insert((state.to_string(), verb.to_owned()), (id, cell(state, verb)));
        }
    }
    // Nothing that a verb queues runs then.
    for (_, queue) in ids.values() {
        operator().pause_queue(pool, queue).await.unwrap();
    }
    let mut found = BTreeMap::new();
    for ((state, verb), (id, queue)) in ids {
        let did = act(pool, &queue, id, &verb).await;
        found.insert((state, verb), did);
    }
    assert_eq!(found, table());
    running.shutdown(Duration::ZERO).await;
}
