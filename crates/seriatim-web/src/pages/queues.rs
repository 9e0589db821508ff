//! `/`: the queues.

use askama::Template;
use axum::Router;
use axum::routing::get;
use seriatim::admin::{QueueOverview, Rate};
use seriatim::explain::BoundedCount;

use crate::action::{Button, Buttons};
use crate::data::{self, Shared, shown};
use crate::pages::frame::{Shown, Visit};
use crate::pages::hour::HourView;
use crate::pages::url::{field, letters_url, queue_url};
use crate::pages::view::{PauseView, When, bounded};

pub(crate) fn route() -> Router<Shared> {
    Router::new().route("/", get(show))
}

/// The queues whose last hour is drawn.
const DRAWN: usize = 200;

#[derive(Template)]
#[template(path = "queues.html")]
struct Queues<'a> {
    base: &'a str,
    schema: &'a str,
    rows: Vec<QueueRow>,
}

async fn show(visit: Visit) -> Shown {
    visit
        .show(async || {
            let queues = data::queues(&visit.app).await?;
            let names: Vec<_> = queues.iter().take(DRAWN).map(|queue| &*queue.queue).collect();
            let last = data::last_hour(&visit.app, &names).await?;
            let row = |queue: &QueueOverview| {
                let hour = HourView::new(&visit, &last, &queue.queue);
                QueueRow { hour, ..QueueRow::new(&visit, queue.clone()) }
            };
            let schema = visit.app.client.schema();
            let rows = queues.iter().map(row).collect();
            let main = Queues { base: &visit.base, schema, rows }.render()?;
            Ok((String::from("Queues"), main))
        })
        .await
}

/// A count of a queue, and where it leads.
pub(crate) struct Count {
    pub(crate) word: &'static str,
    pub(crate) number: String,
    pub(crate) any: bool,
}

fn counted(word: &'static str, count: BoundedCount) -> Count {
    Count { word, number: bounded(count), any: count.count > 0 }
}

/// A queue in a list.
pub(crate) struct QueueRow {
    pub(crate) name: String,
    /// The name as it is, as the value of a field.
    pub(crate) raw: String,
    pub(crate) url: String,
    /// Where its dead letters are.
    pub(crate) letters_url: String,
    /// The queue that they wait in.
    pub(crate) dead_letter_queue: Option<String>,
    /// The queues whose dead letters wait in it, and where those are.
    pub(crate) dead_letters_of: Vec<(String, String)>,
    pub(crate) paused: Option<PauseView>,
    pub(crate) groups: Vec<Count>,
    pub(crate) jobs: Vec<Count>,
    pub(crate) oldest: Option<When>,
    /// Since when it has had due work that no living processor or receiver serves.
    pub(crate) unserved: Option<When>,
    pub(crate) limit: Option<u32>,
    pub(crate) limit_per_key: Option<u32>,
    pub(crate) rate: Option<Rate>,
    /// Its last hour, if it is drawn.
    pub(crate) hour: HourView,
    pub(crate) buttons: Vec<Button>,
}

impl QueueRow {
    pub(crate) fn new(visit: &Visit, queue: QueueOverview) -> Self {
        let (jobs, groups) = (queue.jobs, queue.groups);
        let buttons = visit.buttons().queue(
            &queue.queue,
            queue.paused.is_some(),
            jobs.failed.count > 0,
            jobs.queued.count + jobs.delayed.count > 0,
        );
        Self {
            name: shown(&queue.queue),
            raw: field(&queue.queue),
            url: queue_url(&queue.queue),
            letters_url: letters_url(&queue.queue),
            dead_letter_queue: queue.dead_letter_queue.as_deref().map(shown),
            dead_letters_of: queue
                .dead_letters_of
                .iter()
                .map(|source| (letters_url(source), shown(source)))
                .collect(),
            unserved: queue.unserved_since().map(When::new),
            paused: queue.paused.map(|paused| {
                let reason = paused.reason.as_deref();
                PauseView::new(paused.since, reason, paused.until, paused.rested_by)
            }),
            groups: vec![
                counted("running", groups.running),
                counted("lapsed", groups.lapsed),
                counted("ready", groups.ready),
                counted("delayed", groups.delayed),
                counted("gated", groups.gated),
                counted("halted", groups.halted),
                counted("paused", groups.paused),
                counted("parked", groups.parked),
            ],
            jobs: vec![
                counted("queued", jobs.queued),
                counted("delayed", jobs.delayed),
                counted("started", jobs.started),
                counted("failed", jobs.failed),
                counted("parked", jobs.parked),
            ],
            oldest: queue.oldest_due.map(When::new),
            limit: queue.in_flight_limit,
            limit_per_key: queue.limit_per_key,
            rate: queue.rate,
            hour: HourView::default(),
            buttons: buttons.made(),
        }
    }

    /// Adds buttons.
    pub(crate) fn with(mut self, buttons: Buttons<'_>) -> Self {
        self.buttons.extend(buttons.made());
        self
    }
}
