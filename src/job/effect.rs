//! The effect of a change by an operator.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::job::change::Change;

/// The effect of a [`Change`], made or previewed. Prints as its sentence, with its doubts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Effect {
    /// The effect in words: it begins in lower case, and has no full stop.
    pub sentence: String,
    /// Why the change may be a mistake: a queue that nobody names, say. A program may ask before it
    /// applies a change with doubts.
    pub doubts: Vec<String>,
    /// More to know or to do.
    pub advice: Option<String>,
    /// How many jobs it changes, or dead letters, or claims; `None`: it is not about a number of
    /// them. With `Some(0)` it changes nothing.
    pub jobs: Option<u64>,
    /// The answer of the [`Operator`](crate::admin::Operator)'s method, by the names of its fields.
    pub result: Map<String, Value>,
    /// The change that takes this one back; `None`: there is none.
    pub undo: Option<Undo>,
    /// The sentence and the result of a preview, without ids of what the change makes: they go with
    /// its transaction.
    preview: Option<(String, Map<String, Value>)>,
}

/// A change that takes another one back.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Undo {
    /// The change.
    pub change: Change,
    /// The reason of the pause that comes back, if it had one.
    pub reason: Option<String>,
}

impl Effect {
    pub(crate) fn new(sentence: String) -> Self {
        let (doubts, result) = (Vec::new(), Map::new());
        Self { sentence, doubts, advice: None, jobs: None, result, undo: None, preview: None }
    }

    pub(crate) fn jobs(mut self, jobs: u64) -> Self {
        self.jobs = Some(jobs);
        self
    }

    pub(crate) fn doubts(mut self, doubts: impl IntoIterator<Item = String>) -> Self {
        self.doubts.extend(doubts);
        self
    }

    pub(crate) fn undo(mut self, change: Change) -> Self {
        self.undo = Some(Undo { change, reason: None });
        self
    }

    /// Sets the sentence of a preview, and what hides ids in its result.
    pub(crate) fn in_preview(
        mut self,
        sentence: String,
        hide: impl FnOnce(&mut Map<String, Value>),
    ) -> Self {
        let mut result = self.result.clone();
        hide(&mut result);
        self.preview = Some((sentence, result));
        self
    }

    /// Returns the effect of a preview.
    pub(crate) fn previewed(mut self) -> Self {
        if let Some((sentence, result)) = self.preview.take() {
            (self.sentence, self.result) = (sentence, result);
        }
        Self { undo: None, ..self }
    }

    /// Adds a field to the result.
    pub(crate) fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.result.insert(field.to_owned(), value.into());
        self
    }

    /// Adds the fields of a value to the result.
    pub(crate) fn with_all(mut self, value: &impl Serialize) -> Self {
        if let Ok(Value::Object(fields)) = serde_json::to_value(value) {
            self.result.extend(fields);
        }
        self
    }

    /// Returns the change and its result as one JSON object, in which the result goes before.
    pub fn to_json(&self, change: &Change) -> Value {
        let mut json = serde_json::to_value(change).unwrap_or_default();
        if let Some(fields) = json.as_object_mut() {
            fields.extend(self.result.clone());
        }
        json
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)?;
        self.doubts.iter().try_for_each(|doubt| write!(f, "; {doubt}"))
    }
}
