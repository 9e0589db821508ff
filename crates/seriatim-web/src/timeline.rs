//! The timeline of a lane: time to the right, a line for each job, a box for each attempt, waits
//! hatched. Only geometry; the template draws it.

use chrono::{DateTime, TimeDelta, Utc};
use seriatim::{FailureKind, JobStatus};

use crate::data::{JobView, shown, span};

/// The width of the picture, and of the labels at its left, in its own units.
pub(crate) const WIDTH: f64 = 1_000.0;
const LABELS: f64 = 110.0;
const LINE: f64 = 26.0;
/// So narrow may a box be that it can still be seen.
const NARROWEST: f64 = 5.0;
/// The jobs that are drawn.
const LINES: usize = 20;
const TICKS: i32 = 4;
/// The least time that the picture spans.
const LEAST: TimeDelta = TimeDelta::seconds(2);

/// Where the boxes of a lane are drawn.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    pub(crate) height: f64,
    pub(crate) lines: Vec<Line>,
    pub(crate) ticks: Vec<Tick>,
}

/// One job.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) job: i64,
    pub(crate) y: f64,
    pub(crate) boxes: Vec<Bar>,
}

/// An attempt, or a wait.
#[derive(Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) x: f64,
    pub(crate) width: f64,
    /// `wait`, `ok`, `error`, `lost`, `released`, `running`.
    pub(crate) class: &'static str,
    pub(crate) title: String,
}

/// A mark of the time axis.
#[derive(Debug)]
pub(crate) struct Tick {
    pub(crate) x: f64,
    pub(crate) label: String,
}

struct Scale {
    from: DateTime<Utc>,
    seconds: f64,
}

impl Scale {
    fn x(&self, at: DateTime<Utc>) -> f64 {
        let part = seconds(at - self.from) / self.seconds;
        LABELS + part.clamp(0.0, 1.0) * (WIDTH - LABELS - NARROWEST)
    }

    fn bar(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        class: &'static str,
        title: String,
    ) -> Bar {
        let x = self.x(from);
        Bar { x, width: (self.x(to) - x).max(NARROWEST), class, title }
    }
}

fn seconds(delta: TimeDelta) -> f64 {
    delta.as_seconds_f64()
}

/// Draws jobs in their order, until `now`.
pub(crate) fn timeline<'a>(
    jobs: impl IntoIterator<Item = &'a JobView>,
    now: DateTime<Utc>,
) -> Timeline {
    let jobs: Vec<_> = jobs.into_iter().take(LINES).collect();
    let Some(from) = jobs.iter().map(|job| job.created_at).min() else {
        return Timeline::default();
    };
    let from = from.min(now - LEAST);
    let scale = Scale { from, seconds: seconds(now - from) };
    let mut y = 6.0;
    let mut lines = Vec::with_capacity(jobs.len());
    for job in jobs {
        lines.push(Line { job: job.id, y, boxes: boxes(job, &scale, now) });
        y += LINE;
    }
    let ticks = (0..=TICKS).map(|n| {
        let before_now = (now - from) * (TICKS - n) / TICKS;
        let label = match n {
            TICKS => String::from("now"),
            _ => format!("{} ago", span(before_now.num_milliseconds())),
        };
        Tick { x: scale.x(now - before_now), label }
    });
    Timeline { height: y + 22.0, ticks: ticks.collect(), lines }
}

/// Returns the attempts of a job, and its waits between them.
fn boxes(job: &JobView, scale: &Scale, now: DateTime<Utc>) -> Vec<Bar> {
    let mut boxes = Vec::new();
    let mut waits_since = job.created_at;
    let mut add = |begin: DateTime<Utc>, end: DateTime<Utc>, class, title: String| {
        if begin > waits_since {
            let waited = format!("waited {}", span((begin - waits_since).num_milliseconds()));
            boxes.push(scale.bar(waits_since, begin, "wait", waited));
        }
        boxes.push(scale.bar(begin, end, class, title));
        waits_since = end;
    };
    for record in &job.history {
        let end = record.finished_at;
        let begin = record.started_at.unwrap_or(end);
        let took = span((end - begin).num_milliseconds());
        let message = record.message.as_deref().map(shown).unwrap_or_default();
        let title =
            format!("attempt {}: {:?} after {took}. {message}", record.attempt, record.kind);
        add(begin, end, class(record.kind), title);
    }
    match (job.status, job.last_started_at, job.finished_at) {
        (JobStatus::Started, Some(begin), _) => {
            let runs = span((now - begin).num_milliseconds());
            add(begin, now, "running", format!("attempt {} runs for {runs}", job.attempts));
        }
        (JobStatus::Succeeded, Some(begin), Some(end)) => {
            let took = span((end - begin).num_milliseconds());
            add(begin, end, "ok", format!("attempt {} succeeded in {took}", job.attempts));
        }
        (JobStatus::Queued | JobStatus::Parked, ..) if now > waits_since => {
            let waits = format!("waits for {}", span((now - waits_since).num_milliseconds()));
            boxes.push(scale.bar(waits_since, now, "wait", waits));
        }
        _ => {}
    }
    boxes
}

fn class(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Released => "released",
        FailureKind::ConnectionLost | FailureKind::LeaseLost | FailureKind::WorkerLost => "lost",
        FailureKind::Aborted | FailureKind::Cancelled | FailureKind::Skipped => "given-up",
        _ => "error",
    }
}
