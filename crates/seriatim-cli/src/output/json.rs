//! JSON output: the library's own values, without the fields that must not be seen.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use seriatim::Job;
use seriatim::admin::{BatchJob, StoredQueueSettings};
use seriatim::receive::Received;

use crate::failure::Failure;

/// The fields that a job carries.
const CARRIED: [&str; 4] = ["data", "payload", "result", "headers"];

/// The fields of an object, each with its text: a value would round numbers.
pub(crate) type Fields = BTreeMap<String, Box<RawValue>>;

/// Returns the fields of a value, and instead of some the texts that PostgreSQL has.
fn exact(value: &impl Serialize, texts: &[(&str, Option<&str>)]) -> Result<Fields, Failure> {
    let mut fields: Fields = serde_json::from_str(&serde_json::to_string(value)?)?;
    for (field, text) in texts {
        if let Some(text) = text {
            fields.insert((*field).to_owned(), RawValue::from_string((*text).to_owned())?);
        }
    }
    Ok(fields)
}

/// Returns a job; what it carries only if that may be seen.
pub(crate) fn job(job: &Job, with_data: bool) -> Result<Fields, Failure> {
    let texts = [("data", Some(job.data_text())), ("result", job.result_text())];
    let mut fields = exact(job, &texts)?;
    if !with_data {
        fields.retain(|field, _| !CARRIED.contains(&&**field));
    }
    Ok(fields)
}

/// Returns a job that was received, with what it carries.
pub(crate) fn received(job: &Received) -> Result<Fields, Failure> {
    exact(job, &[("data", Some(job.data_text())), ("checkpoint", job.checkpoint_text())])
}

/// Returns how a job of a batch has ended, with its result.
pub(crate) fn batch_job(job: &BatchJob) -> Result<Fields, Failure> {
    exact(job, &[("result", job.result_text())])
}

/// Returns the settings of a queue, with its name.
pub(crate) fn settings(queue: &str, settings: &StoredQueueSettings) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(settings)?;
    value["queue"] = queue.into();
    Ok(value)
}

/// Returns a change: its action, and the fields of its result.
pub(crate) fn change(action: &str, result: &impl Serialize) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(result)?;
    value["action"] = action.into();
    Ok(value)
}

/// Returns an error, as it is printed to standard error.
pub(crate) fn error(message: &str, code: u8, job: Option<i64>) -> Value {
    let mut value = json!({"error": message, "code": code});
    if let Some(job) = job {
        value["job"] = job.into();
    }
    value
}

/// Returns bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        _ = write!(digits, "{byte:02x}");
    }
    digits
}
