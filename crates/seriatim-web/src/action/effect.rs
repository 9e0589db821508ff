//! The effects of actions, done or previewed, in words.

use serde::Serialize;
use seriatim::admin::Redriven;

use crate::action::undo::Undo;

/// The effect of an action, done or previewed.
#[derive(Debug, Serialize)]
pub(crate) struct Effect {
    pub(crate) message: String,
    pub(crate) dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) jobs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) overtaken: Option<u64>,
    /// The number of these jobs that go from a dead-letter queue back to where they failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) moved_back: Option<u64>,
    /// There is more to do: the same again, with this as `after` in `matching`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<i64>,
    /// The request that takes the action back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) undo: Option<Undo>,
}

impl Effect {
    pub(in crate::action) fn of(message: String) -> Self {
        Self {
            message,
            dry_run: false,
            jobs: None,
            overtaken: None,
            moved_back: None,
            next: None,
            undo: None,
        }
    }
}

pub(in crate::action) fn redriven_effect(redriven: Redriven, which: &str) -> Effect {
    let message = format!(
        "{} that {which} run again, in their original order{}.{}",
        count(redriven.jobs),
        overtaken(redriven.overtaken),
        back(redriven.jobs, redriven.moved_back)
    );
    Effect {
        jobs: Some(redriven.jobs),
        overtaken: Some(redriven.overtaken),
        moved_back: Some(redriven.moved_back).filter(|moved| *moved > 0),
        ..Effect::of(message)
    }
}

/// Returns where those of the jobs go that wait in a dead-letter queue, in a sentence.
pub(in crate::action) fn back(jobs: u64, moved_back: u64) -> String {
    const BACK: &str = "from a dead-letter queue back to the queue in which";
    match (jobs, moved_back) {
        (_, 0) => String::new(),
        (1, _) => format!(" It goes {BACK} it failed."),
        (_, 1) => format!(" 1 of them goes {BACK} it failed."),
        (_, moved) => format!(" {moved} of them go {BACK} they failed, in order."),
    }
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
