//! The charts of the last hour, on the page of a queue and in the list of all.

use chrono::Utc;
use seriatim::observe::LastHour;

use crate::chart::{HEIGHT, Hour, WIDTH, hour};
use crate::data;
use crate::error::WebError;
use crate::pages::frame::Visit;
use crate::pages::view::When;

/// The last hour of a queue.
#[derive(Default)]
pub(crate) struct HourView {
    /// `None`: nobody counts.
    pub(crate) charts: Option<Hour>,
    /// When the count stopped, if it did.
    pub(crate) stale_since: Option<When>,
    /// This page counts when its metrics are asked for.
    pub(crate) counts: bool,
}

impl HourView {
    pub(crate) fn new(visit: &Visit, last: &LastHour, queue: &str) -> Self {
        let charts = hour(last, queue, Utc::now());
        let stale_since = charts.as_ref().and_then(|hour| hour.stale_since).map(When::new);
        Self { charts, stale_since, counts: !visit.app.config.read_only }
    }

    pub(crate) async fn read(visit: &Visit, queue: &str) -> Result<Self, WebError> {
        Ok(Self::new(visit, &data::last_hour(&visit.app, &[queue]).await?, queue))
    }

    /// Returns the view box of a chart.
    pub(crate) fn view_box() -> String {
        format!("0 0 {WIDTH} {HEIGHT}")
    }
}
