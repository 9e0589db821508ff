//! The buttons of actions: those that a user may press.

use serde_json::Value;
use seriatim::JobStatus;
use seriatim::admin::{
    Batch, Change, GroupOverview, GroupState, MoveTask, MoveTaskStatus, NewMoveTask, StoredSchedule,
};

use crate::action::{Action, PageAction, SetSchedule};
use crate::app::App;
use crate::config::Access;
use crate::data::{JobView, Lane, LetterFilter, SoFar};

/// A button of an action.
#[derive(Debug)]
pub(crate) struct Button {
    pub(crate) label: &'static str,
    /// The key that presses it; empty: none.
    pub(crate) key: &'static str,
    /// The action, as the API takes it.
    pub(crate) action: Value,
    /// It throws work away.
    pub(crate) grave: bool,
    /// It is about the rows that are picked.
    pub(crate) picks: bool,
}

impl Button {
    /// Returns the action, for an attribute in single quotes.
    pub(crate) fn attribute(&self) -> String {
        attribute(&self.action)
    }
}

/// Returns JSON for an attribute in single quotes. Escapes what HTML would read, and what is not
/// ASCII, so that nothing in it turns the direction of a page's source.
pub(crate) fn attribute(json: &Value) -> String {
    use std::fmt::Write;
    let json = json.to_string();
    let mut ascii = String::with_capacity(json.len());
    for char in json.chars() {
        // These are only ever in strings.
        if char.is_ascii() && !matches!(char, '&' | '<' | '>' | '\'') {
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

/// Returns the key that presses the button of an action; empty: none.
fn key(action: &Action) -> &'static str {
    let Action::Change(change) = action else { return "" };
    match change {
        Change::Retry { .. } | Change::Unhalt { .. } => "r",
        Change::Skip { .. } => "s",
        Change::Cancel { .. } => "x",
        Change::Pause { .. } | Change::Resume { .. } => "p",
        Change::Park { .. } => "a",
        Change::Redrive { .. } | Change::RedriveParked { .. } | Change::RedriveJobs { .. } => "d",
        _ => "",
    }
}

/// Returns whether an action throws work away.
fn is_grave(action: &Action) -> bool {
    matches!(
        action,
        Action::Change(
            Change::Cancel { .. }
                | Change::Abort { .. }
                | Change::Purge { .. }
                | Change::PurgeEverything { .. }
                | Change::DiscardParked { .. }
                | Change::DiscardJobs { .. }
                | Change::RemoveSchedule { .. }
        ) | Action::Page(PageAction::DiscardMatching { .. })
    )
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

    fn add(&mut self, action: impl Into<Action>) {
        let action = action.into();
        if self.access < action.needs() || self.app.config.read_only {
            return;
        }
        let label = action.label();
        let mut json = serde_json::to_value(&action).unwrap_or_default();
        if let Some(json) = json.as_object_mut() {
            json.retain(|_, value| !value.is_null());
        }
        self.made.push(Button {
            label,
            key: key(&action),
            action: json,
            grave: is_grave(&action),
            picks: label.ends_with("picked"),
        });
    }

    /// Adds what can be done about a dead letter that waits: a skip is refused, as it failed for
    /// good already.
    fn dead_letter(&mut self, job: i64) {
        self.add(Change::RedriveJobs { ids: vec![job] });
        self.add(Change::DiscardJobs { ids: vec![job] });
    }

    /// Adds what can be done about a job.
    pub(crate) fn job(mut self, job: &JobView, parked_with_it: bool, halts_group: bool) -> Self {
        match job.status {
            JobStatus::Failed | JobStatus::Cancelled if !parked_with_it => {
                self.add(Change::Retry { job: job.id });
                if halts_group {
                    self.add(Change::Skip { job: job.id });
                }
            }
            JobStatus::Queued => {
                if job.is_delayed() {
                    self.add(Change::RunNow { job: job.id });
                }
                if job.moved_from.is_some() {
                    self.dead_letter(job.id);
                } else {
                    self.add(Change::Skip { job: job.id });
                    self.add(Change::Cancel { job: job.id });
                }
            }
            JobStatus::Started => {
                self.add(Change::Cancel { job: job.id });
                self.add(Change::Abort { job: job.id });
            }
            JobStatus::Parked => self.add(Change::Cancel { job: job.id }),
            _ => {}
        }
        self
    }

    /// Adds what can be done about a group in a state, with its next jobs.
    pub(crate) fn group(
        mut self,
        queue: &str,
        overview: &GroupOverview,
        paused: bool,
        next: &[JobView],
    ) -> Self {
        let of = || (queue.to_owned(), overview.group.clone());
        self.head(queue, overview, next);
        let waits = [
            GroupState::Ready,
            GroupState::Delayed,
            GroupState::Gated,
            GroupState::Paused,
            GroupState::Halted,
        ];
        if overview.depth.count > 0 && waits.contains(&overview.state) {
            let (queue, group) = of();
            self.add(Change::Park { queue, group });
        }
        if overview.parked.count > 0 {
            let (queue, group) = of();
            self.add(Change::RedriveParked { queue, group, job: None });
            let (queue, group) = of();
            self.add(Change::DiscardParked { queue, group, job: None });
        }
        self.pause(queue, Some(&overview.group), paused);
        if overview.depth.count > 0 {
            self.purge(queue, Some(&overview.group));
        }
        self
    }

    /// Adds what can be done about the job that a group runs, has next, or was halted by.
    fn head(&mut self, queue: &str, overview: &GroupOverview, next: &[JobView]) {
        match (overview.state, overview.halted_by, overview.head) {
            (GroupState::Halted, Some(job), _) => {
                self.add(Change::Retry { job });
                self.add(Change::Skip { job });
            }
            (GroupState::Halted, None, _) => {
                let (queue, group) = (queue.to_owned(), overview.group.clone());
                self.add(Change::Unhalt { queue, group });
            }
            (GroupState::Running | GroupState::Lapsed, _, Some(head)) => {
                self.add(Change::Cancel { job: head });
                self.add(Change::Abort { job: head });
            }
            (
                state @ (GroupState::Ready
                | GroupState::Delayed
                | GroupState::Gated
                | GroupState::Paused),
                _,
                Some(head),
            ) => {
                if state == GroupState::Delayed {
                    self.add(Change::RunNow { job: head });
                }
                let mut next = next.iter().filter(|job| job.id == head);
                if next.any(|head| head.moved_from.is_some()) {
                    self.dead_letter(head);
                } else {
                    self.add(Change::Skip { job: head });
                    self.add(Change::Cancel { job: head });
                }
            }
            _ => {}
        }
    }

    /// Adds what can be done about a lane.
    pub(crate) fn lane(mut self, lane: &Lane) -> Self {
        if let Some(overview) = &lane.overview {
            return self.group(&lane.queue, overview, lane.group_paused, &lane.jobs);
        }
        self.pause(&lane.queue, Some(&lane.group), lane.group_paused);
        self
    }

    fn pause(&mut self, queue: &str, group: Option<&str>, paused: bool) {
        let (queue, group) = (queue.to_owned(), group.map(str::to_owned));
        if paused {
            self.add(Change::Resume { queue, group });
        } else {
            self.add(Change::Pause { queue, group, until: None });
        }
    }

    fn purge(&mut self, queue: &str, group: Option<&str>) {
        let (queue, group) = (queue.to_owned(), group.map(str::to_owned));
        self.add(Change::Purge { queue, group });
    }

    /// Adds what can be done about a queue.
    pub(crate) fn queue(mut self, queue: &str, paused: bool, failed: bool, queued: bool) -> Self {
        self.pause(queue, None, paused);
        if failed {
            self.add(Change::Redrive { queue: queue.to_owned(), limit: None });
        }
        if queued {
            self.purge(queue, None);
        }
        self
    }

    /// Adds the purge of all that a queue has, for its own page alone.
    pub(crate) fn purge_everything(mut self, queue: &str) -> Self {
        self.add(Change::PurgeEverything { queue: queue.to_owned() });
        self
    }

    /// Adds what can be done about a node that seems to be gone.
    pub(crate) fn node(mut self, node: &str) -> Self {
        self.add(Change::ReleaseNode { node: node.to_owned() });
        self
    }

    /// Adds what can be done about dead letters: those that are picked, and all that the filter
    /// has.
    pub(crate) fn failed(mut self, filter: &LetterFilter) -> Self {
        let matching = || filter.clone();
        self.add(Change::RedriveJobs { ids: Vec::new() });
        self.add(Change::DiscardJobs { ids: Vec::new() });
        self.add(PageAction::RedriveMatching { matching: matching(), so_far: SoFar::default() });
        self.add(PageAction::DiscardMatching { matching: matching(), so_far: SoFar::default() });
        self
    }

    /// Adds the start of a move task from a queue.
    pub(crate) fn start_move_task(mut self, queue: &str) -> Self {
        let start = NewMoveTask::new(queue);
        self.add(Change::StartMoveTask(start));
        self
    }

    /// Adds what can be done about a move task.
    pub(crate) fn move_task(mut self, task: &MoveTask) -> Self {
        if task.status == MoveTaskStatus::Running {
            self.add(Change::CancelMoveTask { task: task.id });
        }
        self
    }

    /// Adds what can be done about a schedule.
    pub(crate) fn schedule(mut self, schedule: &StoredSchedule) -> Self {
        let name = || schedule.name.clone();
        self.add(Change::FireSchedule { schedule: name() });
        self.add(if schedule.paused_at.is_some() {
            Change::ResumeSchedule { schedule: name() }
        } else {
            Change::PauseSchedule { schedule: name() }
        });
        self.add(Change::RemoveSchedule { schedule: name() });
        self
    }

    /// Adds the making of a schedule, or its change.
    pub(crate) fn set_schedule(mut self) -> Self {
        self.add(PageAction::SetSchedule(SetSchedule::default()));
        self
    }

    /// Adds what can be done about a batch.
    pub(crate) fn batch(mut self, batch: &Batch) -> Self {
        if batch.ended_at.is_none() {
            self.add(Change::AbandonBatch { batch: batch.id });
        }
        self
    }

    pub(crate) fn made(self) -> Vec<Button> {
        self.made
    }
}
