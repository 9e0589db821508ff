//! JSON output: the library's own values, without the fields that must not be seen.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};
use seriatim::Job;
use seriatim::admin::StoredQueueSettings;

use crate::failure::Failure;

/// The fields that a job carries.
const CARRIED: [&str; 4] = ["data", "payload", "result", "headers"];

/// Returns a job; what it carries only if that may be seen.
pub(crate) fn job(job: &Job, with_data: bool) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(job)?;
    if let (false, Value::Object(fields)) = (with_data, &mut value) {
        fields.retain(|field, _| !CARRIED.contains(&&**field));
    }
    Ok(value)
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
