//! Dead letters: a page of them, and those that a filter has.

use chrono::{TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use seriatim::admin::{FailedFilter, FailedJob, QueueOverview};

use crate::app::App;
use crate::data::{queues, shown};
use crate::error::WebError;

/// The dead letters of a page.
const LETTERS: u32 = 50;
const MOST_LETTERS: u32 = 500;
/// Bounds the queues that are looked at, if none is named: all that a list of queues has.
const QUEUES: usize = 1000;

/// Which dead letters. Empty fields filter nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LetterFilter {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) queue: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    /// A part of the error's message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) error: String,
    /// Failed in the last `hour`, `day` or `week`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) within: String,
    #[serde(skip_serializing)]
    pub(crate) after: Option<i64>,
    #[serde(skip_serializing)]
    pub(crate) limit: Option<u32>,
}

impl LetterFilter {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { queue, group, name, error, within, .. } = self;
        [queue, group, name, error, within].iter().all(|field| field.is_empty())
    }

    /// Returns the filter in words, for the question before an action.
    pub(crate) fn about(&self) -> String {
        let Self { queue, group, name, error, within, .. } = self;
        let mut about = String::from("All dead letters");
        for (word, value) in [(" of queue", queue), (" of group", group), (" named", name)] {
            if !value.is_empty() {
                about = format!("{about}{word} {value:?}");
            }
        }
        if !error.is_empty() {
            about = format!("{about} whose error has {error:?}");
        }
        if !within.is_empty() {
            about = format!("{about} of the last {within}");
        }
        shown(&about)
    }

    fn to_filter(&self, limit: u32) -> Result<FailedFilter, WebError> {
        let Self { queue, group, name, error, .. } = self;
        if [queue, group, name, error].iter().any(|field| field.contains('\0')) {
            return Err(WebError::BadRequest(String::from("A filter has no NUL.")));
        }
        let since = match self.within.as_str() {
            "" => None,
            "hour" => Some(TimeDelta::hours(1)),
            "day" => Some(TimeDelta::days(1)),
            "week" => Some(TimeDelta::weeks(1)),
            other => {
                return Err(WebError::BadRequest(format!(
                    "within is {other:?}, it must be hour, day or week"
                )));
            }
        };
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let mut filter = FailedFilter::default().limit(limit);
        filter.queue = given(&self.queue);
        filter.group = given(&self.group);
        filter.name = given(&self.name);
        filter.error = given(&self.error);
        filter.since = since.map(|age| Utc::now() - age);
        filter.after = self.after;
        Ok(filter)
    }
}

/// A page of dead letters, in the order of their ids.
#[derive(Debug, Serialize)]
pub(crate) struct Letters {
    pub(crate) jobs: Vec<FailedJob>,
    /// Behind which job the next page begins; `None`: there is none.
    pub(crate) next: Option<i64>,
}

/// Returns a page of the dead letters that the filter has.
pub(crate) async fn failed(app: &App, filter: &LetterFilter) -> Result<Letters, WebError> {
    let limit = filter.limit.unwrap_or(LETTERS).clamp(1, MOST_LETTERS);
    letters(app, filter, limit).await
}

/// As [`failed`], up to `limit`. Without a queue each queue that may have dead letters is asked, so
/// that an index has them in order.
pub(crate) async fn letters(
    app: &App,
    filter: &LetterFilter,
    limit: u32,
) -> Result<Letters, WebError> {
    let mut wanted = filter.to_filter(limit.saturating_add(1))?;
    let mut jobs = Vec::new();
    if wanted.queue.is_some() {
        jobs = app.client.failed_jobs(&app.reads(), &wanted).await?;
    } else {
        let queues = queues(app).await?;
        let may_have = |queue: &&QueueOverview| {
            queue.jobs.failed.count > 0 || queue.dead_letter_queue.is_some()
        };
        for queue in queues.iter().filter(may_have).take(QUEUES) {
            wanted.queue = Some(queue.queue.clone());
            jobs.extend(app.client.failed_jobs(&app.reads(), &wanted).await?);
        }
        jobs.sort_by_key(|job| job.id);
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = jobs.len() > limit;
    jobs.truncate(limit);
    let next = jobs.last().filter(|_| more).map(|last| last.id);
    Ok(Letters { jobs, next })
}
/// The dead letters that earlier requests of the same change have done: each answer has the sums,
/// and the next request brings them back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SoFar {
    pub(crate) jobs: u64,
    pub(crate) overtaken: u64,
    pub(crate) moved_back: u64,
}
