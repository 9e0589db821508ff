//! The buttons of actions: those that a user may press.

use serde::Serialize;
use serde_json::json;
use seriatim::{GroupState, JobStatus, MoveTask, MoveTaskStatus};

use crate::app::App;
use crate::config::Access;
use crate::data::{JobView, Lane, LetterFilter};

/// A button of an action.
#[derive(Debug)]
pub(crate) struct Button {
    pub(crate) label: &'static str,
    /// The key that presses it; empty: none.
    pub(crate) key: &'static str,
    /// The address, relative to the page.
    pub(crate) address: String,
    /// The body, as JSON.
    pub(crate) body: String,
    /// It throws work away.
    pub(crate) grave: bool,
    /// It is about the rows that are picked.
    pub(crate) picks: bool,
}

#[derive(Serialize)]
struct About<'a> {
    queue: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
}

/// Escapes what is not ASCII in JSON, so that nothing in it turns the direction of a page's source.
fn ascii(json: &str) -> String {
    use std::fmt::Write;
    let mut ascii = String::with_capacity(json.len());
    for char in json.chars() {
        if char.is_ascii() {
            ascii.push(char);
            continue;
        }
        for unit in char.encode_utf16(&mut [0; 2]) {
            // A String takes whatever is written.
            let _ = write!(ascii, "\\u{unit:04x}");
        }
    }
    ascii
}

/// Makes the buttons that a user may press.
pub(crate) struct Buttons<'a> {
    app: &'a App,
    access: Access,
    made: Vec<Button>,
}

impl<'a> Buttons<'a> {
    pub(crate) fn new(app: &'a App, access: Access) -> Self {
        Self { app, access, made: Vec::new() }
    }

    fn add(
        &mut self,
        needs: Access,
        label: &'static str,
        key: &'static str,
        address: String,
        body: &impl Serialize,
    ) {
        if self.access < needs || self.app.config.read_only {
            return;
        }
        let body = ascii(&serde_json::to_string(body).unwrap_or_default());
        let grave = matches!(label, "Cancel" | "Abort")
            || ["Purge", "Discard"].iter().any(|word| label.starts_with(word));
        let picks = label.ends_with("picked");
        self.made.push(Button { label, key, address, body, grave, picks });
    }

    fn job_verb(&mut self, label: &'static str, key: &'static str, job: i64, verb: &str) {
        let none = serde_json::json!({});
        self.add(Access::Operator, label, key, format!("api/v1/jobs/{job}/{verb}"), &none);
    }

    /// Adds what can be done about a dead letter that waits: a skip is refused, as it failed for
    /// good already.
    fn dead_letter(&mut self, job: i64) {
        let (one, operator) = (json!({ "jobs": [job] }), Access::Operator);
        self.add(operator, "Redrive", "d", String::from("api/v1/failed/redrive"), &one);
        self.add(operator, "Discard", "", String::from("api/v1/failed/discard"), &one);
    }

    /// Adds what can be done about a job.
    pub(crate) fn job(mut self, job: &JobView, parked_with_it: bool, halts_group: bool) -> Self {
        match job.status {
            JobStatus::Failed | JobStatus::Cancelled if !parked_with_it => {
                self.job_verb("Retry", "r", job.id, "retry");
                if halts_group {
                    self.job_verb("Skip", "s", job.id, "skip");
                }
            }
            JobStatus::Queued if job.moved_from.is_some() => {
                if job.is_delayed() {
                    self.job_verb("Run now", "", job.id, "run-now");
                }
                self.dead_letter(job.id);
            }
            JobStatus::Queued => {
                if job.is_delayed() {
                    self.job_verb("Run now", "", job.id, "run-now");
                }
                self.job_verb("Skip", "s", job.id, "skip");
                self.job_verb("Cancel", "x", job.id, "cancel");
            }
            JobStatus::Started => {
                self.job_verb("Cancel", "x", job.id, "cancel");
                self.job_verb("Abort", "", job.id, "abort");
            }
            JobStatus::Parked => self.job_verb("Cancel", "x", job.id, "cancel"),
            _ => {}
        }
        self
    }

    /// Adds what can be done about a group in a state, with its next jobs.
    pub(crate) fn group(
        mut self,
        queue: &str,
        group: &seriatim::GroupOverview,
        paused: bool,
        next: &[JobView],
    ) -> Self {
        let about = About { queue, group: Some(&group.group) };
        match (group.state, group.halted_by, group.head) {
            (GroupState::Halted, Some(job), _) => {
                self.job_verb("Retry", "r", job, "retry");
                self.job_verb("Skip", "s", job, "skip");
            }
            (GroupState::Halted, None, _) => {
                let address = String::from("api/v1/groups/unhalt");
                self.add(Access::Operator, "Unhalt", "r", address, &about);
            }
            (GroupState::Running | GroupState::Lapsed, _, Some(head)) => {
                self.job_verb("Cancel", "x", head, "cancel");
                self.job_verb("Abort", "", head, "abort");
            }
            (
                state @ (GroupState::Ready | GroupState::Resting | GroupState::Paused),
                _,
                Some(head),
            ) => {
                if state == GroupState::Resting {
                    self.job_verb("Run now", "", head, "run-now");
                }
                let mut next = next.iter().filter(|job| job.id == head);
                if next.any(|head| head.moved_from.is_some()) {
                    self.dead_letter(head);
                } else {
                    self.job_verb("Skip", "s", head, "skip");
                    self.job_verb("Cancel", "x", head, "cancel");
                }
            }
            _ => {}
        }
        let waits =
            [GroupState::Ready, GroupState::Resting, GroupState::Paused, GroupState::Halted];
        if group.depth.count > 0 && waits.contains(&group.state) {
            self.add(Access::Operator, "Park", "a", String::from("api/v1/groups/park"), &about);
        }
        if group.parked.count > 0 {
            let address = |verb| format!("api/v1/parked/{verb}");
            self.add(Access::Operator, "Redrive", "d", address("redrive"), &about);
            self.add(Access::Operator, "Discard", "", address("discard"), &about);
        }
        self.pause(&about, "groups", paused);
        if group.depth.count > 0 {
            self.add(Access::Admin, "Purge", "", String::from("api/v1/groups/purge"), &about);
        }
        self
    }

    /// Adds what can be done about a lane.
    pub(crate) fn lane(mut self, lane: &Lane) -> Self {
        if let Some(overview) = &lane.overview {
            return self.group(&lane.queue, overview, lane.group_paused, &lane.jobs);
        }
        let about = About { queue: &lane.queue, group: Some(&lane.group) };
        self.pause(&about, "groups", lane.group_paused);
        self
    }

    fn pause(&mut self, about: &About<'_>, of: &str, paused: bool) {
        let (label, verb) = if paused { ("Resume", "resume") } else { ("Pause", "pause") };
        self.add(Access::Operator, label, "p", format!("api/v1/{of}/{verb}"), about);
    }

    /// Adds what can be done about a queue.
    pub(crate) fn queue(mut self, queue: &str, paused: bool, failed: bool, queued: bool) -> Self {
        let about = About { queue, group: None };
        self.pause(&about, "queues", paused);
        if failed {
            let address = String::from("api/v1/queues/redrive");
            self.add(Access::Operator, "Redrive", "d", address, &about);
        }
        if queued {
            self.add(Access::Admin, "Purge", "", String::from("api/v1/queues/purge"), &about);
        }
        self
    }

    /// Adds the purge of all that a queue has, for its own page alone.
    pub(crate) fn purge_everything(mut self, queue: &str) -> Self {
        let about = About { queue, group: None };
        let address = String::from("api/v1/queues/purge-everything");
        self.add(Access::Admin, "Purge everything", "", address, &about);
        self
    }

    /// Adds what can be done about a node that seems to be gone.
    pub(crate) fn node(mut self, node: &str) -> Self {
        let about = serde_json::json!({ "node": node });
        let address = String::from("api/v1/nodes/release");
        self.add(Access::Operator, "Release", "", address, &about);
        self
    }

    /// Adds what can be done about dead letters: those that are picked, and all that the filter
    /// has.
    pub(crate) fn failed(mut self, filter: &LetterFilter) -> Self {
        let address = |verb| format!("api/v1/failed/{verb}");
        let (none, matching) = (json!({}), json!({ "matching": filter }));
        let operator = Access::Operator;
        self.add(operator, "Redrive picked", "d", address("redrive"), &none);
        self.add(operator, "Discard picked", "", address("discard"), &none);
        self.add(operator, "Redrive all of these", "", address("redrive"), &matching);
        self.add(operator, "Discard all of these", "", address("discard"), &matching);
        self
    }

    /// Adds the start of a move task from a queue.
    pub(crate) fn start_move_task(mut self, queue: &str) -> Self {
        let about = About { queue, group: None };
        let address = String::from("api/v1/move-tasks/start");
        self.add(Access::Operator, "Start move task", "", address, &about);
        self
    }

    /// Adds what can be done about a move task.
    pub(crate) fn move_task(mut self, task: &MoveTask) -> Self {
        if task.status == MoveTaskStatus::Running {
            let about = json!({ "queue": task.from_queue, "task": task.id });
            let address = String::from("api/v1/move-tasks/cancel");
            self.add(Access::Operator, "Cancel move task", "", address, &about);
        }
        self
    }

    pub(crate) fn made(self) -> Vec<Button> {
        self.made
    }
}
