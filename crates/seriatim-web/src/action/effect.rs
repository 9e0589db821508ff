//! The effect of an action, done or previewed, and the request that takes it back.

use serde::Serialize;
use seriatim::admin::{self, Redriven};

use crate::action::{Action, Ask};

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

/// The request that takes a change back.
#[derive(Debug, Serialize)]
pub(crate) struct Undo {
    label: &'static str,
    body: Ask,
}

impl Undo {
    pub(crate) fn new(action: Action, reason: String) -> Self {
        Self { label: action.label(), body: Ask { action, reason, dry_run: false } }
    }
}

impl Effect {
    pub(crate) fn new(message: String) -> Self {
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

    /// Returns an effect that the library words, as a sentence of its own.
    pub(crate) fn worded(effect: &admin::Effect<'_>) -> Self {
        Self::new(format!("{}.", sentence(&effect.to_string())))
    }

    /// Returns the effect of a redrive.
    pub(crate) fn redriven(message: String, redriven: Redriven) -> Self {
        Self {
            jobs: Some(redriven.jobs),
            overtaken: Some(redriven.overtaken),
            moved_back: Some(redriven.moved_back).filter(|moved| *moved > 0),
            ..Self::new(message)
        }
    }
}

/// Returns words with a capital at their beginning.
pub(crate) fn sentence(words: &str) -> String {
    let mut chars = words.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    first + chars.as_str()
}
