//! A group in a list, on several pages: as a line with its track, and behind it why it is where it
//! is and what can be done.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Map, Value, json};
use seriatim::AfterHalt;
use seriatim::admin::{GroupOverview, GroupState};

use crate::action::{Button, attribute};
use crate::data::{LaneRow, shown, thousands};
use crate::pages::frame::Visit;
use crate::pages::job_line::attempt;
use crate::pages::url::{content, lane_url};
use crate::pages::view::{PauseView, When};
use crate::track::{Axis, boxes};

/// If lanes have been due for longer, the first of them shows why it waits: the others wait for the
/// same, as a rule.
const PATIENCE: TimeDelta = TimeDelta::minutes(1);

/// Groups in a list, on one axis of time.
#[derive(Default)]
pub(crate) struct LanesView {
    /// The marks of the axis, each with its place.
    pub(crate) marks: Vec<(String, &'static str)>,
    /// The label and the key of each action, and whether it throws work away, as JSON.
    pub(crate) labels: String,
    pub(crate) rows: Vec<RowView>,
}

impl LanesView {
    pub(crate) fn new(visit: &Visit, rows: &[LaneRow], with_queue: bool) -> Self {
        let now = Utc::now();
        let axis = Axis::new(rows.iter().filter_map(|row| since(&row.group)), now);
        let mut labels = Map::new();
        let mut view = |row| {
            let (view, buttons) = RowView::new(visit, row, with_queue, axis, now);
            for Button { label, key, action, grave, .. } in buttons {
                let word = action["action"].as_str().unwrap_or_default();
                labels.entry(word).or_insert_with(|| json!([label, key, grave]));
            }
            view
        };
        let late = |row: &LaneRow| {
            matches!(row.group.state, GroupState::Ready | GroupState::Gated)
                && row.group.due_at.is_some_and(|due| now - due > PATIENCE)
        };
        let first_late = rows.iter().position(late);
        let mut rows: Vec<_> = rows.iter().map(&mut view).collect();
        if let Some(row) = first_late.and_then(|at| rows.get_mut(at)) {
            row.calm = false;
        }
        Self { marks: axis.marks(), labels: attribute(&labels.into()), rows }
    }
}

/// Returns the actions of a row, in short: the word of each, and what it is about, if that is not
/// the row's group.
fn acts(buttons: &[Button], of: &Value) -> String {
    let short = |button: &Button| {
        let mut about = button.action.clone();
        let fields = about.as_object_mut()?;
        let word = fields.remove("action")?;
        Some(if about == *of { json!([word]) } else { json!([word, about]) })
    };
    attribute(&buttons.iter().filter_map(short).collect())
}

/// Returns since when a group has stood, or run, or waited.
fn since(group: &GroupOverview) -> Option<DateTime<Utc>> {
    match group.state {
        GroupState::Running => group.started_at,
        _ => group.stopped_at.or(group.due_at),
    }
}

/// A group in a list.
pub(crate) struct RowView {
    /// Its queue and its name, for its buttons.
    pub(crate) of: String,
    pub(crate) url: String,
    pub(crate) group: String,
    /// Its queue, where groups of several queues are listed.
    pub(crate) queue: Option<String>,
    pub(crate) state: &'static str,
    /// Nothing calls for an operator: its line is enough.
    pub(crate) calm: bool,
    /// The job at its head: its id, its name and its attempt.
    pub(crate) head: Option<(i64, String, String)>,
    /// The failed job that halted it.
    pub(crate) halted_by: Option<i64>,
    /// When the halt ends by itself, and what is done then.
    pub(crate) halt_ends: Option<(When, &'static str)>,
    /// Its pause, whatever its state is.
    pub(crate) paused: Option<PauseView>,
    /// Since when it stands, runs or waits, or when it is due, with the word before.
    pub(crate) since: Option<(&'static str, When)>,
    /// The same as a bar of its track.
    pub(crate) bar: String,
    /// The jobs behind it, as boxes of its track, and in words.
    pub(crate) boxes: String,
    pub(crate) depth: String,
    /// Why it is where it is, escaped.
    pub(crate) sentence: String,
    /// Its actions, as JSON.
    pub(crate) acts: String,
}

impl RowView {
    /// Returns it with its buttons.
    fn new(
        visit: &Visit,
        row: &LaneRow,
        with_queue: bool,
        axis: Axis,
        now: DateTime<Utc>,
    ) -> (Self, Vec<Button>) {
        let group = &row.group;
        let then = match group.then {
            Some(AfterHalt::Park) => "then it is parked",
            _ => "then it goes on",
        };
        let paused = group.paused_at.is_some();
        let buttons = visit.buttons().group(&row.queue, group, paused, &row.next).made();
        let of = json!({ "queue": row.queue, "group": group.group });
        let head = group.head.map(|head| {
            let name = group.head_name.as_deref().map(shown).unwrap_or_default();
            (head, name, attempt(group.attempt()))
        });
        let since = since(group);
        let word = match group.state {
            GroupState::Running => "began",
            _ if group.stopped_at.is_some() => "stopped",
            _ => "due",
        };
        let waiting = waiting(group);
        let view = Self {
            acts: acts(&buttons, &of),
            of: attribute(&of),
            url: lane_url(&row.queue, &group.group),
            group: shown(&group.group),
            queue: with_queue.then(|| shown(&row.queue)),
            state: group.state.as_str(),
            calm: match group.state {
                GroupState::Running => !paused,
                GroupState::Ready | GroupState::Gated => !group.blocked,
                GroupState::Delayed => true,
                _ => false,
            },
            head,
            halted_by: group.halted_by,
            halt_ends: group.halted_until.map(|at| (When::new(at), then)),
            paused: PauseView::of_group(group),
            bar: since
                .filter(|since| *since <= now)
                .map(|since| axis.bar(since, now))
                .unwrap_or_default(),
            since: since.map(|since| (word, When::new(since))),
            boxes: boxes(waiting),
            depth: depth(group, waiting),
            sentence: content(&shown(&row.sentence)),
        };
        (view, buttons)
    }
}

/// Returns the number of jobs that wait in a group: the one that runs does not.
fn waiting(group: &GroupOverview) -> u64 {
    let runs = matches!(group.state, GroupState::Running | GroupState::Lapsed);
    group.depth.count.saturating_sub(runs.into())
}

fn depth(group: &GroupOverview, waiting: u64) -> String {
    let more = if group.depth.or_more { "+" } else { "" };
    let parked = match group.parked.count {
        0 => String::new(),
        parked => {
            format!("{}{} parked", thousands(parked), if group.parked.or_more { "+" } else { "" })
        }
    };
    let waits = match waiting {
        0 => String::from("nothing waits"),
        1 => String::from("1 job waits"),
        waiting => format!("{}{more} jobs wait", thousands(waiting)),
    };
    match (waiting, parked.is_empty()) {
        (_, true) => waits,
        (0, false) => parked,
        (_, false) => format!("{waits}, {parked}"),
    }
}
