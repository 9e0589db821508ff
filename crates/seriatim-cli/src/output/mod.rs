//! The output of commands: tables and sentences for people, JSON lines for programs.

pub(crate) mod json;
pub(crate) mod table;
pub(crate) mod text;

use std::io::{Write, stdout};

use serde::Serialize;

use crate::failure::Failure;
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

/// Prints a value as one line of JSON.
pub(crate) fn json_line(value: &(impl Serialize + ?Sized)) -> Result<(), Failure> {
    line(&serde_json::to_string(value)?)
}

/// Prints why a command failed to standard error, unless it was told. `job` is the job that failed,
/// if the command has several.
pub(crate) fn failure(form: Form, failure: &Failure, job: Option<i64>) {
    match (failure, form) {
        (Failure::Told(_), _) => {}
        (_, Form::Text) => eprintln!("error: {}", visible(&failure.to_string())),
        (_, Form::Json) => {
            eprintln!("{}", json::error(&failure.to_string(), failure.code(), job));
        }
    }
}

/// Prints what is worth to know beside the output to standard error.
pub(crate) fn remark(form: Form, sentence: &str) {
    match form {
        Form::Text => eprintln!("note: {}", visible(sentence)),
        Form::Json => eprintln!("{}", serde_json::json!({"note": sentence})),
    }
}
