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

/// Prints what is worth to know beside the output to standard error.
pub(crate) fn remark(form: Form, sentence: &str) {
    match form {
        Form::Text => eprintln!("note: {}", visible(sentence)),
        Form::Json => eprintln!("{}", serde_json::json!({"note": sentence})),
    }
}
