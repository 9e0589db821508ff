//! What was done, or would be, in words.

use serde::Serialize;
use seriatim::Redriven;

use crate::action::undo::Undo;

/// What was done, or would be.
#[derive(Debug, Serialize)]
pub(crate) struct Effect {
    pub(crate) message: String,
    pub(crate) dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jobs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overtaken: Option<u64>,
    /// There is more to do: the same again, with this as `after` in `matching`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<i64>,
    /// What takes it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) undo: Option<Undo>,
}

impl Effect {
    pub(in crate::action) fn of(message: String) -> Self {
        Self { message, dry_run: false, jobs: None, overtaken: None, next: None, undo: None }
    }
}

pub(in crate::action) fn redriven_effect(redriven: Redriven, which: &str) -> Effect {
    let message = format!(
        "{} that {which} run again, in their original order{}.",
        count(redriven.jobs),
        overtaken(redriven.overtaken)
    );
    Effect { jobs: Some(redriven.jobs), overtaken: Some(redriven.overtaken), ..Effect::of(message) }
}

pub(in crate::action) fn count(jobs: u64) -> String {
    match jobs {
        1 => String::from("1 job"),
        jobs => format!("{jobs} jobs"),
    }
}

pub(in crate::action) fn overtaken(jobs: u64) -> String {
    match jobs {
        0 => String::from("; no later job is known to have begun"),
        1 => String::from("; 1 later job has already begun"),
        jobs => format!("; {jobs} later jobs have already begun"),
    }
}
