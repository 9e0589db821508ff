//! The data that the pages and the API show. Each function reads one thing through the client;
//! pages and API share them.

mod failed;
mod find;
mod first_lanes;
mod job;
mod lane;
mod stopped;
mod words;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use seriatim::admin::{
    Batch, GroupFilter, GroupPage, GroupSort, GroupState, MoveTask, Operation, OverriddenOption,
    QueueOverview, StoredSchedule, TookOver,
};
use seriatim::explain::ProcessorInfo;
use seriatim::observe::LastHour;

pub(crate) use failed::{LetterFilter, Letters, SoFar, failed, letters};
pub(crate) use find::{Found, find};
pub(crate) use first_lanes::first_lanes;
pub(crate) use job::{JobDetail, JobView, job};
pub(crate) use lane::{Lane, LaneRow, lane, rows};
pub(crate) use stopped::{Stopped, any, parked, stopped};

use crate::app::App;
use crate::error::WebError;

/// The groups of a page.
const GROUPS: u32 = 25;
const MOST_GROUPS: u32 = 200;

/// The groups that a list shows.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct LaneFilter {
    /// The queue.
    #[serde(alias = "queue")]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) sort: String,
    #[serde(default)]
    pub(crate) find: String,
    pub(crate) after: Option<String>,
    pub(crate) limit: Option<u32>,
}

impl LaneFilter {
    /// Returns whether it asks for nothing but a queue.
    pub(crate) fn is_plain(&self) -> bool {
        let Self { name: _, state, sort, find, after, limit } = self;
        let texts = [state, sort, find];
        texts.iter().all(|text| text.is_empty()) && after.is_none() && limit.is_none()
    }

    pub(crate) fn to_filter(&self) -> Result<GroupFilter, WebError> {
        let sort = match self.sort.as_str() {
            "" | "name" => GroupSort::Name,
            "wait" => GroupSort::Wait,
            "depth" => GroupSort::Depth,
            other => {
                return Err(WebError::BadRequest(format!(
                    "sort is {other:?}, it must be name, wait or depth"
                )));
            }
        };
        let limit = self.limit.unwrap_or(GROUPS).clamp(1, MOST_GROUPS);
        let mut filter = GroupFilter::default().sort(sort).limit(limit);
        if !self.state.is_empty() {
            let state = GroupState::parse(&self.state).ok_or_else(|| {
                WebError::BadRequest(format!("there is no state {:?} of a group", self.state))
            })?;
            filter = filter.state(state);
        }
        if !self.find.is_empty() {
            filter = filter.find(self.find.as_str());
        }
        if let Some(after) = &self.after {
            filter = filter.after(after.as_str());
        }
        Ok(filter)
    }
}

pub(crate) async fn queues(app: &App) -> Result<Arc<Vec<QueueOverview>>, WebError> {
    Ok(app.queues().await?)
}

/// Returns when the server took another one's place, if it did.
pub(crate) async fn took_over(app: &App) -> Result<Option<TookOver>, WebError> {
    Ok(app.client.took_over(&app.reads()).await?)
}

/// Returns a queue at a glance; `None` if it has neither jobs nor settings.
pub(crate) async fn queue(app: &App, name: &str) -> Result<Option<QueueOverview>, WebError> {
    Ok(queues(app).await?.iter().find(|queue| queue.queue == name).cloned())
}

pub(crate) async fn groups(app: &App, filter: &LaneFilter) -> Result<GroupPage, WebError> {
    Ok(app.client.groups(&app.reads(), &filter.name, &filter.to_filter()?).await?)
}

/// Returns the last hour of queues, minute by minute.
pub(crate) async fn last_hour(app: &App, queues: &[&str]) -> Result<LastHour, WebError> {
    Ok(app.client.last_hour(&app.reads(), queues).await?)
}

/// The operations of a page.
pub(crate) const OPERATIONS: u32 = 50;

/// Returns what operators did, the last first; before an operation, for the next page.
pub(crate) async fn operations(app: &App, before: Option<i64>) -> Result<Vec<Operation>, WebError> {
    Ok(app.client.operations(&app.reads(), before, OPERATIONS).await?)
}

/// Returns the move tasks of a queue, or of all: those that run, and the last that have ended.
pub(crate) async fn move_tasks(
    app: &App,
    from_queue: Option<&str>,
) -> Result<Vec<MoveTask>, WebError> {
    Ok(app.client.move_tasks(&app.reads(), from_queue).await?)
}

/// The schedules of a page.
pub(crate) const SCHEDULES: usize = 100;

/// Returns the schedules behind a name, or from the first on: those of a page, and more if there
/// are.
pub(crate) async fn schedules(
    app: &App,
    after: Option<&str>,
) -> Result<Vec<StoredSchedule>, WebError> {
    Ok(app.client.schedules(&app.reads(), after).await?)
}

/// The batches of a page.
pub(crate) const BATCHES: usize = 100;

/// Returns the batches that have not ended, or `all`: the newest first, or those before one.
pub(crate) async fn batches(
    app: &App,
    before: Option<i64>,
    all: bool,
) -> Result<Vec<Batch>, WebError> {
    Ok(app.client.batches(&app.reads(), before, !all).await?)
}

/// Returns the processors, those that are gone first.
pub(crate) async fn nodes(app: &App) -> Result<Vec<ProcessorInfo>, WebError> {
    let mut processors = app.client.processors(&app.reads()).await?;
    processors.sort_by(|a, b| (a.alive, &a.node, a.id).cmp(&(b.alive, &b.node, b.id)));
    Ok(processors)
}

/// Returns what living processors say and does not count, a sentence each.
pub(crate) async fn overridden(app: &App) -> Result<Vec<String>, WebError> {
    let found = app.client.overridden_options(&app.reads()).await?;
    let sentence = |found: OverriddenOption| {
        let OverriddenOption { queue, node, setting, said, counts, .. } = found;
        format!(
            "Queue {queue:?}: the processor on node {node:?} says {setting} {said}, the queue's settings say \
             {counts} and count."
        )
    };
    Ok(found.into_iter().map(sentence).collect())
}

pub(crate) type Shared = Arc<App>;

/// Returns an age in words, in whole seconds: `3 s`, `12 min`, `5 h`, `9 d`.
pub(crate) fn age(since: DateTime<Utc>) -> String {
    match (Utc::now() - since).num_seconds() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => span(seconds * 1_000),
    }
}

/// Returns a time span in words, as short as can be: `12 ms`, `1.5 s`, `12 min`, `5 h`, `9 d`.
pub(crate) fn span(milliseconds: i64) -> String {
    let ms = milliseconds.max(0);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..10_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        10_000..120_000 => format!("{} s", ms / 1_000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

/// Returns a number with its digits in threes.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + 3);
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Returns a text with its control characters visible, those that turn the direction too.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            char if turns_direction(char) => shown.extend(char.escape_unicode()),
            char if char.is_control() => shown.extend(char.escape_default()),
            char => shown.push(char),
        }
    }
    shown
}

/// Returns whether a character turns the direction of the text behind it.
pub(crate) fn turns_direction(char: char) -> bool {
    let turns = ['\u{200e}', '\u{200f}', '\u{061c}'];
    turns.contains(&char) || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
