//! Metrics of queues, as one collector of the fleet has counted them last, and their text for
//! Prometheus. Never a group, a job or a reference among the labels: their number has no bound.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::job::shard::ShardId;

/// The metrics as one collector of the fleet has counted them last.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Metrics {
    /// When they were counted; `None`: never.
    pub collected_at: Option<DateTime<Utc>>,
    /// How long ago that was, in seconds.
    pub age_s: Option<f64>,
    /// The metrics of the fleet.
    pub fleet: FleetMetrics,
    /// The metrics of each queue, by its name.
    pub queues: BTreeMap<String, QueueMetrics>,
}

/// The metrics of the fleet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FleetMetrics {
    /// Processors that were seen in the last 30 s.
    pub live_processors: u64,
    /// Processors whose sessions live, and which were not seen for 30 s: they are frozen, or cannot
    /// write.
    #[serde(default)]
    pub silent_processors: u64,
    /// The age of the oldest snapshot, which keeps vacuum from dead rows, in seconds; `None`: none
    /// is open, or the role cannot see it.
    pub vacuum_horizon_s: Option<f64>,
    /// The last id that was given to a job; its rate is that of all enqueues.
    pub job_ids: Option<u64>,
    /// How long the schedule that is due the longest has been due, in seconds; `None`: none is due.
    #[serde(default)]
    pub schedule_lag_s: Option<f64>,
    /// Batches that have not ended; 10,001 means "or more".
    #[serde(default)]
    pub pending_batches: u64,
    /// Pending batches whose jobs have all ended, and have not all succeeded.
    #[serde(default)]
    pub failed_batches: u64,
    /// How long the collection took, in seconds.
    pub collect_s: f64,
}

/// The metrics of a queue. Counts stop at 10,001, which means "or more".
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueueMetrics {
    /// Jobs by state: queued, delayed, started, parked, failed.
    pub jobs: BTreeMap<String, u64>,
    /// Groups by state: ready, running, lapsed, delayed, gated, halted, paused, parked.
    pub groups: BTreeMap<String, u64>,
    /// The whole queue is paused.
    pub paused: bool,
    /// The limit of jobs in flight.
    pub in_flight_limit: Option<u64>,
    /// How many jobs may start a second, by the queue's rate.
    #[serde(default)]
    pub rate_per_second: Option<f64>,
    /// Since when the group, or job without one, that has waited the longest could run, in seconds.
    pub oldest_due_s: Option<f64>,
    /// The age of the oldest unfinished job, in seconds.
    pub oldest_job_s: Option<f64>,
    /// The age of the oldest halt, in seconds.
    pub oldest_halt_s: Option<f64>,
    /// How long the attempt that has run the longest runs, in seconds.
    pub longest_running_s: Option<f64>,
    /// The unfinished jobs of the deepest group: of the first 100 groups of each state, those of
    /// the newest 5,000 jobs of all queues, and those of 100 jobs spread evenly over the backlog.
    pub deepest_group: Option<u64>,
}

impl QueueMetrics {
    /// Bounds each count.
    pub const LIMIT: u64 = 10_000;

    fn is_capped(&self) -> bool {
        self.jobs.values().chain(self.groups.values()).any(|count| *count > Self::LIMIT)
    }

    /// Adds another queue's.
    fn add(&mut self, other: &Self) {
        for (mine, theirs) in [(&mut self.jobs, &other.jobs), (&mut self.groups, &other.groups)] {
            for (state, count) in theirs {
                *mine.entry(state.clone()).or_default() += count;
            }
        }
        self.paused |= other.paused;
        for (mine, theirs) in [
            (&mut self.oldest_due_s, other.oldest_due_s),
            (&mut self.oldest_job_s, other.oldest_job_s),
            (&mut self.oldest_halt_s, other.oldest_halt_s),
            (&mut self.longest_running_s, other.longest_running_s),
        ] {
            *mine = match (*mine, theirs) {
                (Some(a), Some(b)) => Some(a.max(b)),
                (a, b) => a.or(b),
            };
        }
        self.deepest_group = self.deepest_group.max(other.deepest_group);
    }
}

/// Bounds the queues that have a label of their own. The others are `other`.
const QUEUES: usize = 200;

/// Reads the counts of a queue by their states.
type ByState = fn(&QueueMetrics) -> &BTreeMap<String, u64>;

/// The gauges with a value for each state of a queue, each with its help.
const STATES: [(&str, &str, ByState); 2] = [
    ("seriatim_queue_jobs", "Jobs by state, counted up to 10001.", |of| &of.jobs),
    ("seriatim_queue_groups", "Groups by state, counted up to 10001.", |of| &of.groups),
];

/// Reads the value of a gauge for a queue; `None`: no value.
type Of = fn(&QueueMetrics) -> Option<f64>;

/// The gauges with one value for each queue, each with its help.
const GAUGES: [(&str, &str, Of); 10] = [
    ("seriatim_collect_capped", "A count of this queue was stopped at 10001.", |of| {
        Some(f64::from(u8::from(of.is_capped())))
    }),
    ("seriatim_queue_paused", "The whole queue is paused.", |of| {
        Some(f64::from(u8::from(of.paused)))
    }),
    ("seriatim_in_flight", "Jobs that are claimed.", |of| {
        of.jobs.get("started").map(|count| float(*count))
    }),
    ("seriatim_in_flight_limit", "The limit of jobs in flight.", |of| {
        of.in_flight_limit.map(float)
    }),
    ("seriatim_rate_limit", "The starts a second that the queue's rate allows.", |of| {
        of.rate_per_second
    }),
    ("seriatim_oldest_job_age_seconds", "Age of the oldest unfinished job.", |of| {
        of.oldest_job_s.or(Some(0.0))
    }),
    (
        "seriatim_oldest_ready_group_seconds",
        "How long the group that has waited the longest could have run.",
        |of| of.oldest_due_s.or(Some(0.0)),
    ),
    ("seriatim_oldest_halt_seconds", "Age of the oldest halt.", |of| {
        of.oldest_halt_s.or(Some(0.0))
    }),
    ("seriatim_longest_running_seconds", "Age of the attempt that runs the longest.", |of| {
        of.longest_running_s.or(Some(0.0))
    }),
    (
        "seriatim_deepest_group_jobs",
        "Jobs of the deepest group, of those that are first, grow the fastest, or have the most jobs.",
        |of| of.deepest_group.map(float),
    ),
];

/// Reads the value of a metric of the fleet; `None`: no value.
type OfFleet = fn(&Metrics) -> Option<f64>;

/// The metrics with one value for the fleet, each with its type and help.
const FLEET: [(&str, &str, &str, OfFleet); 9] = [
    ("seriatim_live_processors", "gauge", "Processors seen in the last 30 s.", |of| {
        Some(float(of.fleet.live_processors))
    }),
    (
        "seriatim_silent_processors",
        "gauge",
        "Processors whose sessions live, and which were not seen for 30 s.",
        |of| Some(float(of.fleet.silent_processors)),
    ),
    (
        "seriatim_vacuum_horizon_seconds",
        "gauge",
        "Age of the oldest snapshot, which keeps vacuum from dead rows.",
        |of| of.fleet.vacuum_horizon_s,
    ),
    ("seriatim_job_ids_total", "counter", "The last id that was given to a job.", |of| {
        of.fleet.job_ids.map(float)
    }),
    (
        "seriatim_schedule_lag_seconds",
        "gauge",
        "How long the schedule that is due the longest has been due.",
        |of| of.collected_at.map(|_| of.fleet.schedule_lag_s.unwrap_or(0.0)),
    ),
    ("seriatim_pending_batches", "gauge", "Batches that have not ended.", |of| {
        of.collected_at.map(|_| float(of.fleet.pending_batches))
    }),
    (
        "seriatim_failed_batches",
        "gauge",
        "Batches whose jobs have ended, and have not all succeeded.",
        |of| of.collected_at.map(|_| float(of.fleet.failed_batches)),
    ),
    ("seriatim_collect_duration_seconds", "gauge", "How long the last collection took.", |of| {
        Some(of.fleet.collect_s)
    }),
    ("seriatim_collect_age_seconds", "gauge", "Age of the last collection.", |of| of.age_s),
];

impl Metrics {
    /// Returns the metrics in the text format of Prometheus.
    ///
    /// After 200 queues, the others are one, with the label `other`.
    pub fn to_prometheus(&self) -> String {
        text_of(&[(None, self)])
    }

    /// Returns the metrics of several servers in one text, each with the label `shard`. The gauge
    /// `seriatim_server_answers` is 0 for a server whose metrics are not there.
    pub fn all_to_prometheus<'a>(
        servers: impl IntoIterator<Item = (ShardId, Option<&'a Self>)>,
    ) -> String {
        let servers: Vec<(String, Option<&Self>)> =
            servers.into_iter().map(|(shard, of)| (shard.to_string(), of)).collect();
        let mut text = Text::default();
        text.family("seriatim_server_answers", "gauge", "The server could be asked.");
        for (shard, of) in &servers {
            let value = f64::from(u8::from(of.is_some()));
            text.sample("seriatim_server_answers", &[("shard", shard)], value);
        }
        let there: Vec<_> =
            servers.iter().filter_map(|(shard, of)| Some((Some(&**shard), (*of)?))).collect();
        text.0 + &text_of(&there)
    }

    /// The queues with a label of their own, and the sum of the others.
    fn labelled(&self) -> Vec<(&str, QueueMetrics)> {
        let mut queues: Vec<_> =
            self.queues.iter().map(|(queue, of)| (&**queue, of.clone())).take(QUEUES).collect();
        let mut rest = self.queues.values().skip(QUEUES).peekable();
        if rest.peek().is_some() {
            let mut other = QueueMetrics::default();
            rest.for_each(|of| other.add(of));
            queues.push(("other", other));
        }
        queues
    }
}

/// Returns the text of one server, or of several by their labels. Each family stands in it once.
fn text_of(servers: &[(Option<&str>, &Metrics)]) -> String {
    let mut text = Text::default();
    let servers: Vec<_> = servers.iter().map(|(shard, of)| (*shard, *of, of.labelled())).collect();
    for (name, help, of_state) in STATES {
        text.family(name, "gauge", help);
        for (shard, _, queues) in &servers {
            for (queue, of) in queues {
                for (state, count) in of_state(of) {
                    let own = [("queue", *queue), ("state", &**state)];
                    text.sample_of(*shard, name, &own, float(*count));
                }
            }
        }
    }
    for (name, help, of) in GAUGES {
        text.family(name, "gauge", help);
        for (shard, _, queues) in &servers {
            for (queue, metrics) in queues {
                if let Some(value) = of(metrics) {
                    text.sample_of(*shard, name, &[("queue", queue)], value);
                }
            }
        }
    }
    for (name, kind, help, of) in FLEET {
        let values: Vec<_> =
            servers.iter().filter_map(|(shard, metrics, _)| Some((*shard, of(metrics)?))).collect();
        if !values.is_empty() {
            text.family(name, kind, help);
        }
        for (shard, value) in values {
            text.sample_of(shard, name, &[], value);
        }
    }
    text.0
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}

/// The text format, as <https://prometheus.io/docs/instrumenting/exposition_formats/> has it.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writes to a string do not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample of a server, if there are several.
    fn sample_of(&mut self, shard: Option<&str>, name: &str, own: &[(&str, &str)], value: f64) {
        let labels: Vec<_> =
            shard.map(|shard| ("shard", shard)).into_iter().chain(own.iter().copied()).collect();
        self.sample(name, &labels, value);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0.push_str(name);
        for (n, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let open = if n == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{open}{label}=\"{text}\"");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(queues: BTreeMap<String, QueueMetrics>) -> Metrics {
        Metrics { collected_at: None, age_s: None, fleet: FleetMetrics::default(), queues }
    }

    #[test]
    fn a_queues_name_cannot_break_the_text() {
        let name = "a\"b\\c\nd".to_owned();
        let text = of(BTreeMap::from([(name, QueueMetrics::default())])).to_prometheus();
        assert!(text.contains("seriatim_queue_paused{queue=\"a\\\"b\\\\c\\nd\"} 0\n"), "{text}");
    }

    #[test]
    fn several_servers_are_one_text_and_one_that_is_away_is_named() {
        let there = of(BTreeMap::from([("q".to_owned(), QueueMetrics::default())]));
        let shard = |number| ShardId::new(number).unwrap();
        let servers = [(shard(0), Some(&there)), (shard(1), None), (shard(2), Some(&there))];
        let text = Metrics::all_to_prometheus(servers);
        for line in [
            "seriatim_server_answers{shard=\"1\"} 0",
            "seriatim_queue_paused{shard=\"0\",queue=\"q\"} 0",
            "seriatim_queue_paused{shard=\"2\",queue=\"q\"} 0",
            "seriatim_live_processors{shard=\"2\"} 0",
        ] {
            assert!(text.lines().any(|of| of == line), "{text}");
        }
        assert!(!text.contains("{shard=\"1\",queue"));
        assert_eq!(text.matches("# TYPE seriatim_queue_paused").count(), 1);
    }

    #[test]
    fn many_queues_are_one() {
        let one = QueueMetrics {
            jobs: BTreeMap::from([("queued".into(), 2)]),
            oldest_job_s: Some(3.0),
            ..QueueMetrics::default()
        };
        let queues = (0..QUEUES + 5).map(|n| (format!("q{n:04}"), one.clone())).collect();
        let text = of(queues).to_prometheus();
        assert!(
            text.contains("seriatim_queue_jobs{queue=\"other\",state=\"queued\"} 10\n"),
            "{text}"
        );
        assert!(text.contains("seriatim_oldest_job_age_seconds{queue=\"other\"} 3\n"));
        assert!(!text.contains("q0200"));
    }
}
