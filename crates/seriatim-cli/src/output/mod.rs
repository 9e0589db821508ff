//! The output of commands: tables and sentences for people, JSON lines for programs.

pub(crate) mod json;
pub(crate) mod table;
pub(crate) mod text;

use std::io::{Write, stdout};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde_json::value::to_raw_value;
use seriatim::shards::ShardId;

use crate::failure::Failure;
use crate::output::json::Fields;
use crate::output::text::visible;

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// For people.
    Text,
    /// JSON lines.
    Json,
}

/// Prints one line to standard output.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// The server that the output is of, if there are several.
static SHARD: Mutex<Option<ShardId>> = Mutex::new(None);

/// Sets the server that lines of JSON, errors and notes name from now on.
pub(crate) fn tell_shard(shard: Option<ShardId>) {
    *SHARD.lock().unwrap_or_else(PoisonError::into_inner) = shard;
}

/// Adds the number of the server to an object, if there are several.
fn with_shard(json: String) -> String {
    let Some(shard) = *SHARD.lock().unwrap_or_else(PoisonError::into_inner) else { return json };
    let named = || {
        let mut fields: Fields = serde_json::from_str(&json)?;
        fields.insert(String::from("shard"), to_raw_value(&shard.number())?);
        serde_json::to_string(&fields)
    };
    named().unwrap_or(json)
}

/// Returns what names the server before a sentence for people, if there are several.
pub(crate) fn of_shard() -> String {
    let shard = *SHARD.lock().unwrap_or_else(PoisonError::into_inner);
    shard.map(|shard| format!("shard {shard}: ")).unwrap_or_default()
}

/// Prints a value as one line of JSON. With several servers it names its own.
pub(crate) fn json_line(value: &(impl Serialize + ?Sized)) -> Result<(), Failure> {
    line(&with_shard(serde_json::to_string(value)?))
}

/// Prints why a command failed to standard error, unless it was told. `job` is the job that failed,
/// if the command has several.
pub(crate) fn failure(form: Form, failure: &Failure, job: Option<i64>) {
    match (failure, form) {
        (Failure::Told(_), _) => {}
        (_, Form::Text) => {
            eprintln!("{}error: {}", of_shard(), visible(&failure.to_string()));
        }
        (_, Form::Json) => {
            let error = json::error(&failure.to_string(), failure.code(), job);
            eprintln!("{}", with_shard(error.to_string()));
        }
    }
}

/// Prints what is worth to know beside the output to standard error.
pub(crate) fn remark(form: Form, sentence: &str) {
    match form {
        Form::Text => eprintln!("{}note: {}", of_shard(), visible(sentence)),
        Form::Json => {
            eprintln!("{}", with_shard(serde_json::json!({"note": sentence}).to_string()));
        }
    }
}
