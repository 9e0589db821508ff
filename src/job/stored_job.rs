//! A job that is stored until it is enqueued: that of a schedule, and the follow-up of a batch. The
//! functions of `sql/functions/stored_job.sql` enqueue it.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::job::bytes::JobData;
use crate::job::headers::{self, ENDED_BATCH, SCHEDULED_FOR};
use crate::job::new_job::CheckedJob;

/// Room for the header that the library adds, in bytes of JSON.
const HEADER_ROOM: usize = 80;

/// Returns a job as the column `job` has it: all but its queue and group. Or else, what it may not
/// have.
pub(crate) fn stored_job(job: CheckedJob) -> Result<String, &'static str> {
    let CheckedJob {
        queue: _,
        group: _,
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
    if run_at.is_some() {
        return Err("its job has a run_at, and is made later: leave it out, or set a delay");
    }
    if expires_at.is_some() {
        return Err(
            "its job has an expires_at, and is made later: leave it out, or set a time_to_live",
        );
    }
    if dedup_id.is_some() || dedup_by_content {
        return Err("its job has a deduplication id, and is made in any case: leave it out");
    }
    if unique.is_some() {
        return Err("its job has a unique key, and is made in any case: leave it out");
    }
    if batch.is_some() {
        return Err("its job is to join a batch of its own, which may be sealed by then");
    }
    let own = |json: &str| [SCHEDULED_FOR, ENDED_BATCH].iter().any(|name| json.contains(name));
    if headers.as_ref().is_some_and(|json| json.len() > headers::LIMIT - HEADER_ROOM || own(json)) {
        return Err(
            "the headers of its job have more than 4016 bytes as JSON, or one that the library sets",
        );
    }
    let read = |json: Option<String>| json.and_then(|json| serde_json::from_str(&json).ok());
    let all = [
        ("delay", delay.map(|delay| json!(delay.as_secs_f64()))),
        ("time_to_live", time_to_live.map(|time| json!(time.as_secs_f64()))),
        ("max_attempts", max_attempts.map(Value::from)),
        ("timeout_ms", timeout_ms.map(Value::from)),
        ("lease_ms", lease_ms.map(Value::from)),
        ("limit_key", limit_key.map(Value::from)),
        ("name", name.map(Value::from)),
        ("reference", reference.map(Value::from)),
        ("headers", read(headers)),
        ("attributes", read(attributes)),
        ("priority", (priority > 0).then(|| Value::from(priority))),
    ];
    let fields = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let mut fields: Map<String, Value> = fields.collect();
    match content {
        // Its text stays as it is: a `Value` would round its numbers.
        JobData::Json(data) if fields.is_empty() => Ok(format!("{{\"data\":{data}}}")),
        JobData::Json(data) => {
            let others = Value::Object(fields).to_string();
            Ok(format!("{{\"data\":{data},{}", &others[1..]))
        }
        JobData::Bytes { content_type, bytes } => {
            let mut digits = String::with_capacity(2 * bytes.len());
            for byte in bytes {
                _ = write!(digits, "{byte:02x}");
            }
            fields.insert(String::from("payload"), Value::from(digits));
            if let Some(content_type) = content_type {
                fields.insert(String::from("content_type"), Value::from(content_type));
            }
            Ok(Value::Object(fields).to_string())
        }
    }
}
