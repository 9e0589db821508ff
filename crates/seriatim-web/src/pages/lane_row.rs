//! A group in a list, on several pages.

use seriatim::AfterHalt;
use seriatim::admin::GroupState;

use crate::action::Button;
use crate::data::{LaneRow, shown};
use crate::pages::frame::Visit;
use crate::pages::job_line::{JobLine, attempt};
use crate::pages::url::lane_url;
use crate::pages::view::{PauseView, When, bounded, thousands};

/// A group in a list.
pub(crate) struct RowView {
    pub(crate) url: String,
    pub(crate) group: String,
    /// Its queue, where groups of several queues are listed.
    pub(crate) queue: Option<String>,
    pub(crate) state: &'static str,
    pub(crate) head: Option<(i64, String, String)>,
    /// The failed job that halted it.
    pub(crate) halted_by: Option<i64>,
    /// When the halt ends by itself, and what is done then.
    pub(crate) halt_ends: Option<(When, &'static str)>,
    /// Its pause, whatever its state is.
    pub(crate) paused: Option<PauseView>,
    pub(crate) wait: Option<When>,
    pub(crate) depth: String,
    /// The word after the depth: `deep` or `parked`.
    pub(crate) counts: &'static str,
    /// The length of the bar, up to 100. Each tenfold is a third.
    pub(crate) bar: u32,
    pub(crate) sentence: String,
    pub(crate) next: Vec<JobLine>,
    pub(crate) more: String,
    pub(crate) buttons: Vec<Button>,
}

impl RowView {
    pub(crate) fn new(visit: &Visit, row: &LaneRow, with_queue: bool) -> Self {
        let group = &row.group;
        let then = match group.then {
            Some(AfterHalt::Park) => "then it is parked",
            _ => "then it goes on",
        };
        let paused = group.paused_at.is_some();
        let buttons = visit.buttons().group(&row.queue, group, paused, &row.next).made();
        let (depth, counts) = match group.state {
            GroupState::Parked => (group.parked, "parked"),
            _ => (group.depth, "deep"),
        };
        let listed = u64::try_from(row.next.len()).unwrap_or(u64::MAX);
        let more = match group.depth.count.saturating_sub(listed) {
            0 => String::new(),
            more => {
                format!("{}{} more", thousands(more), if group.depth.or_more { "+" } else { "" })
            }
        };
        let head = group.head.map(|head| {
            let name = group.head_name.as_deref().map(shown).unwrap_or_default();
            (head, name, attempt(group.attempt()))
        });
        Self {
            url: lane_url(&row.queue, &group.group),
            group: shown(&group.group),
            queue: with_queue.then(|| shown(&row.queue)),
            state: group.state.as_str(),
            head,
            wait: group.stopped_at.or(group.enqueued_at).map(When::new),
            halted_by: group.halted_by,
            halt_ends: group.halted_until.map(|at| (When::new(at), then)),
            paused: PauseView::of_group(group),
            depth: bounded(depth),
            counts,
            bar: bar(depth.count),
            sentence: shown(&row.sentence),
            next: row.next.iter().map(JobLine::new).collect(),
            more,
            buttons,
        }
    }
}

fn bar(depth: u64) -> u32 {
    let tenfolds =
        f64::from(u32::try_from(depth).unwrap_or(u32::MAX)).max(0.0).ln_1p() / 10_f64.ln();
    // At most 100, and never negative.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let length = (tenfolds / 3.0 * 100.0).clamp(0.0, 100.0).round() as u32;
    length
}
