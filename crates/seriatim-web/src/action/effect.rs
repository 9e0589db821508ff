//! The effect of an action, done or previewed, and the request that takes it back.

use serde::Serialize;
use serde_json::Value;
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
    pub(crate) fn new(action: impl Into<Action>, reason: String) -> Self {
        let action = action.into();
        Self { label: action.label(), body: Ask { action, reason, dry_run: false } }
    }
}

impl Effect {
    /// Returns the effect of a change of the library. `taken_back` is the reason of its undo.
    pub(crate) fn new(effect: &admin::Effect, taken_back: String) -> Self {
        let sentences = effect.doubts.iter().chain(&effect.advice);
        let sentences = std::iter::once(&effect.sentence).chain(sentences);
        let number = |field: &str| effect.result.get(field).and_then(Value::as_u64);
        Self {
            jobs: effect.jobs,
            overtaken: number("overtaken"),
            moved_back: number("moved_back").filter(|moved| *moved > 0),
            undo: effect.undo.clone().map(|undo| {
                let reason = undo.reason.unwrap_or(taken_back);
                Undo::new(undo.change, reason)
            }),
            ..Self::said(sentences.map(|words| sentence(words)).collect::<Vec<_>>().join(" "))
        }
    }

    pub(crate) fn said(message: String) -> Self {
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

    /// Returns the effect of a redrive.
    pub(crate) fn redriven(message: String, redriven: Redriven) -> Self {
        Self {
            jobs: Some(redriven.jobs),
            overtaken: Some(redriven.overtaken),
            moved_back: Some(redriven.moved_back).filter(|moved| *moved > 0),
            ..Self::said(message)
        }
    }
}

/// Returns words as a sentence: with a capital at their beginning, and a full stop.
pub(crate) fn sentence(words: &str) -> String {
    let mut chars = words.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let stop = if words.ends_with(['?', '.']) { "" } else { "." };
    format!("{first}{}{stop}", chars.as_str())
}
