//! Find: by job id, by the producer's reference, by the beginning of a group's name, and dead
//! letters by the name of the job.

use serde::Serialize;
use seriatim::admin::{FailedFilter, GroupFilter};

use crate::app::App;
use crate::data::{JobView, queues};
use crate::error::WebError;

/// Bounds the queues that are looked at, and what is found in each.
const QUEUES: usize = 50;
const IN_QUEUE: u32 = 10;

/// The results of a search.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Found {
    pub(crate) queues: Vec<String>,
    pub(crate) groups: Vec<FoundGroup>,
    pub(crate) jobs: Vec<JobView>,
    /// The number of queues in which nothing was looked for.
    pub(crate) queues_left_out: usize,
}

#[derive(Debug, Serialize)]
pub(crate) struct FoundGroup {
    pub(crate) queue: String,
    pub(crate) group: String,
    pub(crate) state: &'static str,
}

impl Found {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.groups.is_empty() && self.jobs.is_empty()
    }
}

pub(crate) async fn find(app: &App, text: &str) -> Result<Found, WebError> {
    let mut found = Found::default();
    let text = text.trim();
    if text.is_empty() || text.contains('\0') {
        return Ok(found);
    }
    if let Ok(id) = text.trim_start_matches('#').parse() {
        let job = app.client.job(&app.reads(), id).await?;
        found.jobs.extend(job.map(|job| JobView::new(job, false)));
    }
    let mut queues: Vec<_> = queues(app).await?.iter().map(|queue| queue.queue.clone()).collect();
    // The queue that a text names is looked at in any case.
    queues.sort_by_key(|queue| !queue.contains(text));
    found.queues_left_out = queues.len().saturating_sub(QUEUES);
    for queue in queues.into_iter().take(QUEUES) {
        let jobs = app.client.jobs_by_reference(&app.reads(), &queue, text, IN_QUEUE).await?;
        found.jobs.extend(jobs.into_iter().map(|job| JobView::new(job, false)));
        let named = FailedFilter::default().queue(&queue).name(text).limit(IN_QUEUE);
        let failed = app.client.failed_jobs(&app.reads(), &named).await?;
        for failed in failed {
            let job = app.client.job(&app.reads(), failed.id).await?;
            found.jobs.extend(job.map(|job| JobView::new(job, false)));
        }
        let filter = GroupFilter::default().find(text).limit(IN_QUEUE);
        let page = app.client.groups(&app.reads(), &queue, &filter).await?;
        found.groups.extend(page.groups.into_iter().map(|group| FoundGroup {
            queue: queue.clone(),
            state: group.state.as_str(),
            group: group.group,
        }));
        if queue.contains(text) {
            found.queues.push(queue);
        }
    }
    Ok(found)
}
