//! AWS JSON 1.0.

use hyper::http::request::Parts;
use serde_json::{Value, json};

use crate::error::{Code, SqsError};
use crate::protocol::call::Call;

/// The prefix of targets.
pub(super) const SERVICE: &str = "AmazonSQS.";

pub(crate) fn read(parts: &Parts, body: &[u8]) -> Result<Call, SqsError> {
    let target = parts.headers.get("x-amz-target").and_then(|target| target.to_str().ok());
    let operation = target.and_then(|target| target.strip_prefix(SERVICE)).ok_or_else(|| {
        SqsError::new(Code::InvalidAction, "The target of the request is no operation of SQS.")
    })?;
    let mut input = if body.is_empty() {
        json!({})
    } else {
        serde_json::from_slice(body).map_err(|error| {
            let at = format!("line {}, column {}", error.line(), error.column());
            SqsError::new(Code::MalformedRequest, format!("The body is not JSON at {at}."))
        })?
    };
    if !input.is_object() {
        return Err(SqsError::new(Code::MalformedRequest, "The body is no JSON object."));
    }
    remove_nulls(&mut input);
    Ok(Call { operation: operation.to_owned(), input })
}

/// Removes members that are null, also those of entries: they count as not given.
fn remove_nulls(input: &mut Value) {
    let Some(members) = input.as_object_mut() else { return };
    members.retain(|_, value| !value.is_null());
    if let Some(Value::Array(entries)) = members.get_mut("Entries") {
        entries.iter_mut().for_each(remove_nulls);
    }
}

pub(crate) fn error(name: &str, message: &str) -> String {
    let body: Value = json!({"__type": format!("com.amazonaws.sqs#{name}"), "message": message});
    body.to_string()
}
