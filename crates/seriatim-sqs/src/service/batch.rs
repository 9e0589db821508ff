//! Batches: what holds for the entries of all kinds, and the answer to each.

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::error::{Code, SqsError};
use crate::input::Entry;

const ENTRIES_LIMIT: usize = 10;
const ID_LIMIT: usize = 80;

/// Refuses a batch whose entries cannot be told apart, or are too many. `kind` names them.
pub(super) fn check<T>(entries: &[Entry<T>], kind: &str) -> Result<(), SqsError> {
    if entries.is_empty() {
        let message = format!("There should be at least one {kind} in the request.");
        return Err(SqsError::new(Code::EmptyBatchRequest, message));
    }
    let is_sound = |id: &str| {
        (1..=ID_LIMIT).contains(&id.len())
            && id.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    if !entries.iter().all(|entry| is_sound(&entry.id)) {
        let message = "A batch entry id can only contain alphanumeric characters, hyphens and \
                       underscores. It can be at most 80 letters long.";
        return Err(SqsError::new(Code::InvalidBatchEntryId, message));
    }
    if entries.len() > ENTRIES_LIMIT {
        let message = format!(
            "Maximum number of entries per request are {ENTRIES_LIMIT}. You have sent {}.",
            entries.len()
        );
        return Err(SqsError::new(Code::TooManyEntries, message));
    }
    let mut seen = HashSet::new();
    if let Some(again) = entries.iter().find(|entry| !seen.insert(&entry.id)) {
        let message = format!("Id {} repeated.", again.id);
        return Err(SqsError::new(Code::BatchEntryIdsNotDistinct, message));
    }
    Ok(())
}

/// Returns the answer to a batch: what succeeded, and what failed and why. As AWS does, a list that
/// is empty is left out.
pub(super) fn answer(entries: Vec<(String, Result<Value, SqsError>)>) -> Value {
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for (id, result) in entries {
        match result {
            Ok(mut result) => {
                if let Some(result) = result.as_object_mut() {
                    result.insert(String::from("Id"), id.into());
                }
                successful.push(result);
            }
            Err(error) => failed.push(json!({
                "Id": id,
                "SenderFault": error.code.is_the_senders(),
                "Code": error.code.names().1,
                "Message": error.message,
            })),
        }
    }
    let mut answer = json!({});
    if !successful.is_empty() {
        answer["Successful"] = successful.into();
    }
    if !failed.is_empty() {
        answer["Failed"] = failed.into();
    }
    answer
}
