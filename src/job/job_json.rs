//! A job as JSON: as the functions of `sql/functions/enqueue_jobs.sql` take it, and as it is stored
//! until it is enqueued, by a schedule or as the follow-up of a batch.

use serde::ser::{Error, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::job::bytes::{JobData, hex};
use crate::job::headers::{self, ENDED_BATCH, SCHEDULED_FOR};
use crate::job::new_job::{CheckedJob, DATA_LIMIT, NewJob};

/// Room for the header that the library adds, in bytes of JSON.
const HEADER_ROOM: usize = 80;

/// A job is the object that the SQL function `enqueue_jobs` takes, and several are an array. So any
/// driver enqueues in a transaction of its own. By `serde_json`, which keeps the text of the data.
///
/// ```
/// # use seriatim::NewJob;
/// let jobs = [NewJob::new("postings", &1).group("account-42")];
/// let jobs = serde_json::to_string(&jobs)?;
/// assert_eq!(jobs, r#"[{"data":1,"group_id":"account-42","queue":"postings"}]"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Errors
/// What an enqueue refuses without a database: see [`EnqueueError`](crate::EnqueueError).
impl Serialize for NewJob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let job = self.clone().check(None, DATA_LIMIT).map_err(S::Error::custom)?;
        RawValue::from_string(job_json(job)).map_err(S::Error::custom)?.serialize(serializer)
    }
}

/// Returns a job as the column `job` of a schedule or a batch has it: all but its queue and group.
/// Otherwise, what it may not have.
pub(crate) fn stored_job(mut job: CheckedJob) -> Result<String, &'static str> {
    if job.run_at.is_some() {
        return Err("its job has a run_at, and is made later: leave it out, or set a delay");
    }
    if job.expires_at.is_some() {
        return Err(
            "its job has an expires_at, and is made later: leave it out, or set a time_to_live",
        );
    }
    if job.dedup_id.is_some() || job.dedup_by_content {
        return Err("its job has a deduplication id, and is made in any case: leave it out");
    }
    if job.unique.is_some() {
        return Err("its job has a unique key, and is made in any case: leave it out");
    }
    if job.batch.is_some() {
        return Err("its job is to join a batch of its own, which may be sealed by then");
    }
    let own = |json: &str| [SCHEDULED_FOR, ENDED_BATCH].iter().any(|name| json.contains(name));
    let headers = job.headers.as_ref();
    if headers.is_some_and(|json| json.len() > headers::LIMIT - HEADER_ROOM || own(json)) {
        return Err(
            "the headers of its job have more than 4016 bytes as JSON, or one that the library sets",
        );
    }
    job.queue.clear();
    job.group = None;
    Ok(job_json(job))
}

/// Returns a job as an object, without what it does not have.
fn job_json(job: CheckedJob) -> String {
    let CheckedJob {
        queue,
        group,
        limit_key,
        content,
        delay,
        run_at,
        time_to_live,
        expires_at,
        max_attempts,
        timeout_ms,
        lease_ms,
        name,
        reference,
        headers,
        attributes,
        priority,
        dedup_id,
        dedup_by_content,
        unique,
        batch,
    } = job;
    let read = |json: Option<String>| json.and_then(|json| serde_json::from_str(&json).ok());
    let (unique_mode, unique_scope) =
        unique.as_ref().map(|unique| (unique.mode.as_str(), unique.scope())).unzip();
    let all = [
        ("queue", (!queue.is_empty()).then(|| Value::from(queue))),
        ("group_id", group.map(Value::from)),
        ("delay", delay.map(|delay| json!(delay.as_secs_f64()))),
        ("run_at", run_at.map(|at| json!(at))),
        ("time_to_live", time_to_live.map(|time| json!(time.as_secs_f64()))),
        ("expires_at", expires_at.map(|at| json!(at))),
        ("max_attempts", max_attempts.map(Value::from)),
        ("timeout_ms", timeout_ms.map(Value::from)),
        ("lease_ms", lease_ms.map(Value::from)),
        ("limit_key", limit_key.map(Value::from)),
        ("name", name.map(Value::from)),
        ("reference", reference.map(Value::from)),
        ("headers", read(headers)),
        ("attributes", read(attributes)),
        ("priority", (priority > 0).then(|| Value::from(priority))),
        ("dedup_id", dedup_id.map(Value::from)),
        ("dedup_by_content", dedup_by_content.then_some(Value::Bool(true))),
        ("unique_mode", unique_mode.map(Value::from)),
        ("unique_scope", unique_scope.map(Value::from)),
        ("unique_key", unique.map(|unique| Value::from(unique.key))),
        ("batch", batch.map(Value::from)),
    ];
    let fields = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let mut fields: Map<String, Value> = fields.collect();
    match content {
        // Its text stays as it is: a `Value` would round its numbers.
        JobData::Json(data) if fields.is_empty() => format!("{{\"data\":{data}}}"),
        JobData::Json(data) => {
            let others = Value::Object(fields).to_string();
            format!("{{\"data\":{data},{}", &others[1..])
        }
        JobData::Bytes { content_type, bytes } => {
            fields.insert(String::from("payload"), Value::from(hex(&bytes)));
            if let Some(content_type) = content_type {
                fields.insert(String::from("content_type"), Value::from(content_type));
            }
            Value::Object(fields).to_string()
        }
    }
}
