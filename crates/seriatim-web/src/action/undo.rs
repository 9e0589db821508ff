//! Requests that take a change back.

use serde::Serialize;
use serde_json::{Value, json};

use crate::action::Action;
use crate::app::App;
use crate::error::WebError;

/// The request that takes a change back.
#[derive(Debug, Serialize)]
pub(crate) struct Undo {
    label: &'static str,
    address: String,
    body: Value,
}

impl Undo {
    pub(in crate::action) fn new(label: &'static str, address: &str, body: Value) -> Self {
        Self { label, address: address.to_owned(), body }
    }
}

/// Returns the request that takes a pause, or the end of a pause, back. It is made before the
/// action, which removes the reason and the end of a pause.
pub(in crate::action) async fn undo(
    app: &App,
    action: &Action,
    reason: &str,
) -> Result<Option<Undo>, WebError> {
    let resume =
        |of: &str, body| Undo { label: "Resume", address: format!("api/v1/{of}/resume"), body };
    let pause =
        |of: &str, body| Undo { label: "Pause", address: format!("api/v1/{of}/pause"), body };
    let back = format!("taken back: {reason}");
    Ok(match action {
        Action::PauseGroup { queue, group, .. } => {
            Some(resume("groups", json!({"queue": queue, "group": group, "reason": back})))
        }
        Action::PauseQueue { queue, .. } => {
            Some(resume("queues", json!({"queue": queue, "reason": back})))
        }
        Action::ResumeGroup { queue, group } => {
            app.client.group(&app.reads, queue, group).await?.map(|was| {
                let (why, until) = (was.pause_reason.unwrap_or_default(), was.paused_until);
                let body = json!({"queue": queue, "group": group, "reason": why, "until": until});
                pause("groups", body)
            })
        }
        Action::ResumeQueue { queue } => {
            app.client.paused_queue(&app.reads, queue).await?.map(|was| {
                let why = was.reason.unwrap_or_default();
                pause("queues", json!({"queue": queue, "reason": why, "until": was.until}))
            })
        }
        _ => None,
    })
}
