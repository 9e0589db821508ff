//! The values that templates write: visible names, ages in words, rows.

use chrono::{DateTime, SecondsFormat, Utc};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use seriatim::{
    AttemptInfo, AttemptRecord, BoundedCount, FailedJob, GroupOverview, JobStatus, Operation,
    ProcessorInfo, QueueOverview,
};

use crate::action::{Button, Buttons};
use crate::app::App;
use crate::config::Access;
use crate::data::{JobView, LaneRow, age, shown, span, turns_direction};

/// Returns a text for a query string.
pub(crate) fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns a text, escaped, for the value of a field: as it is, but with nothing in it that turns
/// the direction of a page's source.
pub(crate) fn field(text: &str) -> String {
    use std::fmt::Write;
    let mut field = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '&' | '<' | '>' | '"' | '\'') || turns_direction(char) {
            // A String takes whatever is written.
            let _ = write!(field, "&#{};", u32::from(char));
        } else {
            field.push(char);
        }
    }
    field
}

pub(crate) fn lane_url(queue: &str, group: &str) -> String {
    format!("lane?queue={}&group={}", encode(queue), encode(group))
}

pub(crate) fn queue_url(queue: &str) -> String {
    format!("queue?name={}", encode(queue))
}

/// A time: as a machine reads it, and from now.
pub(crate) struct When {
    pub(crate) iso: String,
    pub(crate) words: String,
}

impl When {
    pub(crate) fn new(at: DateTime<Utc>) -> Self {
        let ahead = (at - Utc::now()).num_milliseconds();
        Self {
            iso: at.to_rfc3339_opts(SecondsFormat::Millis, true),
            words: if ahead > 0 {
                format!("in {}", span(ahead))
            } else {
                format!("{} ago", age(at))
            },
        }
    }
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

pub(crate) fn bounded(count: BoundedCount) -> String {
    format!("{}{}", thousands(count.count), if count.or_more { "+" } else { "" })
}

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

/// A pause.
pub(crate) struct PauseView {
    pub(crate) since: When,
    /// Empty if none was given.
    pub(crate) reason: String,
    /// When it ends by itself.
    pub(crate) ends: Option<When>,
}

impl PauseView {
    pub(crate) fn new(
        since: DateTime<Utc>,
        reason: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> Self {
        Self {
            since: When::new(since),
            reason: reason.map(shown).unwrap_or_default(),
            ends: until.map(When::new),
        }
    }

    pub(crate) fn of_group(group: &GroupOverview) -> Option<Self> {
        let since = group.paused_at?;
        Some(Self::new(since, group.pause_reason.as_deref(), group.paused_until))
    }
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
    pub(crate) buttons: Vec<Button>,
}

/// Returns where the dead letters of a queue are, and its name.
fn letters_of(queue: &str) -> (String, String) {
    (format!("failed?queue={}", encode(queue)), shown(queue))
}

impl QueueRow {
    pub(crate) fn new(app: &App, access: Access, queue: QueueOverview) -> Self {
        let (jobs, groups) = (queue.jobs, queue.groups);
        let buttons = Buttons::new(app, access).queue(
            &queue.queue,
            queue.paused.is_some(),
            jobs.failed.count > 0,
            jobs.queued.count + jobs.delayed.count > 0,
        );
        Self {
            name: shown(&queue.queue),
            raw: field(&queue.queue),
            url: queue_url(&queue.queue),
            letters_url: letters_of(&queue.queue).0,
            dead_letter_queue: queue.dead_letter_queue.as_deref().map(shown),
            dead_letters_of: queue
                .dead_letters_of
                .iter()
                .map(|source| letters_of(source))
                .collect(),
            unserved: queue.unserved_since().map(When::new),
            paused: queue
                .paused
                .map(|paused| PauseView::new(paused.since, paused.reason.as_deref(), paused.until)),
            groups: vec![
                counted("running", groups.running),
                counted("lapsed", groups.lapsed),
                counted("ready", groups.ready),
                counted("resting", groups.resting),
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
            buttons: buttons.made(),
        }
    }

    /// Adds buttons.
    pub(crate) fn with(mut self, buttons: Buttons<'_>) -> Self {
        self.buttons.extend(buttons.made());
        self
    }
}

/// A job in a line: in a list, or as a box.
pub(crate) struct JobLine {
    pub(crate) id: i64,
    /// `queued`, `delayed`, `started`, `retrying`, …: also its colour.
    pub(crate) state: &'static str,
    pub(crate) name: String,
    pub(crate) attempt: String,
    pub(crate) created: When,
    pub(crate) due: When,
    pub(crate) queue: String,
    pub(crate) group: Option<(String, String)>,
    pub(crate) error: String,
}

impl JobLine {
    pub(crate) fn new(job: &JobView) -> Self {
        let state = match job.status {
            JobStatus::Queued if job.is_delayed() && job.attempts > 0 => "retrying",
            JobStatus::Queued if job.is_delayed() => "delayed",
            status => status.as_str(),
        };
        Self {
            id: job.id,
            state,
            name: job.name.as_deref().map(shown).unwrap_or_default(),
            attempt: attempt(job.attempt),
            created: When::new(job.created_at),
            due: When::new(job.run_at),
            queue: shown(&job.queue),
            group: job.group.as_ref().map(|group| (lane_url(&job.queue, group), shown(group))),
            error: job.error.as_ref().map(|error| shown(&error.message)).unwrap_or_default(),
        }
    }
}

fn attempt(info: AttemptInfo) -> String {
    if info.attempt == 0 { String::from("no attempt yet") } else { info.to_string() }
}

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
    pub(crate) fn new(app: &App, access: Access, row: &LaneRow, with_queue: bool) -> Self {
        let group = &row.group;
        let then = match group.then {
            Some(seriatim::AfterHalt::Park) => "then it is parked",
            _ => "then it goes on",
        };
        let paused = group.paused_at.is_some();
        let buttons = Buttons::new(app, access).group(&row.queue, group, paused, &row.next).made();
        let (depth, counts) = match group.state {
            seriatim::GroupState::Parked => (group.parked, "parked"),
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

/// An attempt that did not succeed.
pub(crate) struct AttemptView {
    pub(crate) number: u32,
    pub(crate) began: Option<When>,
    pub(crate) took: String,
    pub(crate) kind: String,
    pub(crate) message: String,
}

impl AttemptView {
    pub(crate) fn new(record: &AttemptRecord) -> Self {
        let took = record.started_at.map(|start| (record.finished_at - start).num_milliseconds());
        let kind = serde_json::to_value(record.kind).unwrap_or_default();
        Self {
            number: record.attempt,
            began: record.started_at.map(When::new),
            took: took.map(span).unwrap_or_default(),
            kind: kind.as_str().unwrap_or_default().replace('_', " "),
            message: record.message.as_deref().map(shown).unwrap_or_default(),
        }
    }
}

/// A dead letter in a list.
pub(crate) struct LetterRow {
    pub(crate) id: i64,
    pub(crate) queue: String,
    pub(crate) group: Option<(String, String)>,
    pub(crate) name: String,
    pub(crate) reference: String,
    pub(crate) attempts: u32,
    pub(crate) failed: Option<When>,
    pub(crate) error: String,
    /// The dead-letter queue that it waits in, and its address.
    pub(crate) dead_letter_queue: Option<(String, String)>,
    /// Others are parked with it, and go with it: it cannot be picked.
    pub(crate) parked: bool,
    pub(crate) parked_url: String,
}

impl LetterRow {
    pub(crate) fn new(job: &FailedJob) -> Self {
        Self {
            id: job.id,
            queue: shown(&job.queue),
            group: job.group.as_ref().map(|group| (lane_url(&job.queue, group), shown(group))),
            name: job.name.as_deref().map(shown).unwrap_or_default(),
            reference: job.reference.as_deref().map(shown).unwrap_or_default(),
            attempts: job.attempts,
            failed: job.finished_at.map(When::new),
            error: job.error.as_ref().map(|error| shown(&error.message)).unwrap_or_default(),
            dead_letter_queue: job
                .dead_letter_queue
                .as_ref()
                .map(|queue| (queue_url(queue), shown(queue))),
            parked: job.parked,
            parked_url: format!("parked?queue={}", encode(&job.queue)),
        }
    }
}

/// A processor in a list.
pub(crate) struct NodeRow {
    pub(crate) node: String,
    pub(crate) process: String,
    pub(crate) alive: bool,
    /// The queues that it serves, each with its address; `None`: it does not say.
    pub(crate) queues: Option<Vec<(String, String)>>,
    pub(crate) started: Option<When>,
    pub(crate) seen: Option<When>,
    pub(crate) buttons: Vec<Button>,
}

impl NodeRow {
    pub(crate) fn new(app: &App, access: Access, processor: &ProcessorInfo) -> Self {
        let buttons = Buttons::new(app, access);
        let host = processor.host.as_deref().map(shown).unwrap_or_default();
        let pid = processor.pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
        let queue = |name: &String| (queue_url(name), shown(name));
        Self {
            node: shown(&processor.node),
            process: format!("{host}{pid}"),
            alive: processor.alive,
            queues: processor.queues.as_ref().map(|queues| queues.iter().map(queue).collect()),
            started: processor.started_at.map(When::new),
            seen: processor.seen_at.map(When::new),
            buttons: if processor.alive {
                Vec::new()
            } else {
                buttons.node(&processor.node).made()
            },
        }
    }
}

/// An operator's change, as a row of the log.
pub(crate) struct OperationRow {
    pub(crate) at: When,
    pub(crate) actor: String,
    pub(crate) action: String,
    pub(crate) queue: Option<(String, String)>,
    pub(crate) group: Option<(String, String)>,
    pub(crate) job: Option<i64>,
    pub(crate) reason: String,
    pub(crate) affected: u64,
}

impl OperationRow {
    pub(crate) fn new(operation: &Operation) -> Self {
        let queue = operation.queue.as_ref();
        let group = operation.group.as_ref().zip(queue);
        Self {
            at: When::new(operation.at),
            actor: shown(&operation.actor),
            action: shown(&operation.action).replace('_', " "),
            queue: queue.map(|queue| (queue_url(queue), shown(queue))),
            group: group.map(|(group, queue)| (lane_url(queue, group), shown(group))),
            job: operation.job,
            reason: operation.reason.as_deref().map(shown).unwrap_or_default(),
            affected: operation.affected,
        }
    }
}
