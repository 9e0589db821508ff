//! The command line, and the sizes that follow from it.

use std::fmt;
use std::num::ParseIntError;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use seriatim::{Hold, QueueOptions, Retention};

use crate::backlog::Groups;
use crate::scene::QUEUE;

/// Measures seriatim on a private PostgreSQL, or on that of `DATABASE_URL` (in databases of its
/// own).
#[derive(Debug, Parser)]
#[command(name = "queue")]
// Each is a flag of the command line.
#[allow(clippy::struct_excessive_bools)]
pub(crate) struct Settings {
    /// Scenarios to measure [default: all]
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// How jobs are held
    #[arg(long, value_enum, default_value = "both")]
    hold: HoldArg,
    /// Slots of the processor [default: 8; of `drain --work`: 8,16,32]
    #[arg(long, value_delimiter = ',')]
    concurrency: Vec<usize>,
    /// Time slice of a group's turn in milliseconds, or `auto`: the library's default [default:
    /// auto]
    #[arg(long, value_delimiter = ',')]
    time_slice: Vec<Slice>,
    /// Whether succeeded jobs are kept
    #[arg(long, value_enum, value_delimiter = ',', default_value = "keep")]
    retention: Vec<Keep>,
    /// Small sizes: all scenarios in three minutes
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Full sizes: backlogs up to 1 M, 100 k groups
    #[arg(long)]
    full: bool,
    /// A backlog of 10 M as well
    #[arg(long)]
    deep: bool,
    /// How long `horizon` is pinned [default: 60; with --quick: 5], or `life` lasts [default: 1800;
    /// with --quick: 20]
    #[arg(long)]
    seconds: Option<u64>,
    /// Jobs per second and hold in `life`
    #[arg(long, default_value_t = 100)]
    pub(crate) rate: u32,
    /// Draw `life` into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Draw the last `life` that this file of `--json` has, and run nothing
    #[arg(long, value_name = "FILE", requires = "plot")]
    pub(crate) redraw: Option<PathBuf>,
    /// How long a handler takes, in microseconds, rounded up to a millisecond. `drain` measures
    /// each of a list; more than 0 makes it one of 100 groups, in which a slot's own time shows.
    /// Other scenarios take the first: it makes overlaps easier to find, and is no rate
    #[arg(long, value_delimiter = ',', default_value = "0")]
    work: Vec<u64>,
    /// Jobs before the one that `worst` waits for [default: 20000; with --quick: 2000]
    #[arg(long, value_delimiter = ',')]
    ahead: Vec<u32>,
    /// Append the figures to this file, as lines of JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// cargo says this to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// Producers alone
    Enqueue,
    /// A processor alone, over a backlog
    Drain,
    /// From an enqueue to its handler, at a steady rate
    Latency,
    /// Producers and a processor together
    Mixed,
    /// One group has half of all jobs
    Skew,
    /// Beside groups that are not due
    Delayed,
    /// Beside groups that others hold
    Busy,
    /// While another session pins vacuum's horizon
    Horizon,
    /// Transactions, WAL and row versions per job
    Cost,
    /// Memory of a processor's process
    Memory,
    /// Cost of a processor without work
    Idle,
    /// A job in an idle group, behind the worst that the tables may have. Only when it is named
    Worst,
    /// Half an hour under both holds at a steady rate: does anything grow? Only when it is named
    Life,
    /// Only the limit
    Limit,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum HoldArg {
    Transaction,
    Lease,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
enum Keep {
    /// For a day
    #[value(name = "keep")]
    Day,
    /// For a minute
    Minute,
    /// Deleted as they succeed
    Never,
}

/// The time slice of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Slice {
    /// The library's default.
    Auto,
    Millis(u64),
}

impl FromStr for Slice {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Millis) }
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Millis(millis) => write!(f, "{millis} ms"),
        }
    }
}

/// Settings of a processor.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Way {
    leased: bool,
    pub(crate) concurrency: usize,
    time_slice: Slice,
    keep: Keep,
    /// In a queue of its hold, beside the queue of the other hold.
    beside: bool,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = self.said().into_iter().map(|(name, value)| format!("{name} {value}"));
        f.write_str(&said.collect::<Vec<_>>().join(", "))
    }
}

impl Way {
    pub(crate) fn with_concurrency(self, concurrency: usize) -> Self {
        Self { concurrency, ..self }
    }

    /// Returns one of each hold, in queues beside each other.
    pub(crate) fn both() -> [Self; 2] {
        let (concurrency, time_slice, keep, beside) = (8, Slice::Auto, Keep::Minute, true);
        [false, true].map(|leased| Self { leased, concurrency, time_slice, keep, beside })
    }

    pub(crate) fn queue(self) -> &'static str {
        match (self.beside, self.leased) {
            (false, _) => QUEUE,
            (true, false) => "by transaction",
            (true, true) => "by lease",
        }
    }

    pub(crate) fn hold(self) -> &'static str {
        if self.leased { "lease" } else { "transaction" }
    }

    /// Returns the connections of the processor's pool.
    pub(crate) fn connections(self) -> u32 {
        let needed = if self.leased { 1 } else { self.concurrency };
        u32::try_from(needed).unwrap_or(u32::MAX)
    }

    pub(crate) fn options(self) -> QueueOptions {
        let options = QueueOptions::new(self.queue());
        let options = match self.time_slice {
            Slice::Auto => options,
            Slice::Millis(millis) => options.time_slice(Duration::from_millis(millis)),
        };
        options
            .concurrency(self.concurrency)
            .hold(if self.leased { Hold::Lease(LEASE) } else { Hold::Transaction })
            .keep_succeeded(match self.keep {
                Keep::Day => Retention::For(Duration::from_hours(24)),
                Keep::Minute => Retention::For(Duration::from_mins(1)),
                Keep::Never => Retention::Never,
            })
    }

    /// Returns its settings for tables and figures.
    pub(crate) fn said(self) -> Vec<(&'static str, String)> {
        let kept = match self.keep {
            Keep::Day => "keep",
            Keep::Minute => "minute",
            Keep::Never => "never",
        };
        vec![
            ("hold", self.hold().to_owned()),
            ("slots", self.concurrency.to_string()),
            ("slice", self.time_slice.to_string()),
            ("kept", kept.to_owned()),
        ]
    }
}

const LEASE: Duration = Duration::from_secs(30);

impl Settings {
    /// Returns each combination of settings that the command line asks for.
    pub(crate) fn ways(&self) -> Vec<Way> {
        self.ways_or(&[8], &[Slice::Auto])
    }

    /// Returns those for handlers that take time.
    pub(crate) fn work_ways(&self) -> Vec<Way> {
        self.ways_or(&[8, 16, 32], &[Slice::Auto])
    }

    /// Returns each combination, with these settings where the command line names none.
    fn ways_or(&self, concurrency: &[usize], time_slice: &[Slice]) -> Vec<Way> {
        fn given<'a, T>(given: &'a [T], default: &'a [T]) -> &'a [T] {
            if given.is_empty() { default } else { given }
        }
        let mut ways = Vec::new();
        for leased in self.holds() {
            for &concurrency in given(&self.concurrency, concurrency) {
                for &time_slice in given(&self.time_slice, time_slice) {
                    for &keep in &self.retention {
                        let beside = false;
                        ways.push(Way { leased, concurrency, time_slice, keep, beside });
                    }
                }
            }
        }
        ways
    }

    /// Returns the scenarios, in the order in which they are listed.
    pub(crate) fn chosen(&self) -> Vec<Scenario> {
        let all = Scenario::value_variants().iter().copied();
        all.filter(|scenario| match self.scenarios[..] {
            [] => !matches!(scenario, Scenario::Limit | Scenario::Life | Scenario::Worst),
            _ => self.scenarios.contains(scenario),
        })
        .collect()
    }

    fn holds(&self) -> Vec<bool> {
        match self.hold {
            HoldArg::Transaction => vec![false],
            HoldArg::Lease => vec![true],
            HoldArg::Both => vec![false, true],
        }
    }

    pub(crate) fn sizes(&self) -> Sizes {
        let thousands = |list: &[u32]| list.iter().map(|n| n * 1_000).collect::<Vec<_>>();
        let mut sizes = Sizes {
            probe: Duration::from_millis(500),
            time: Duration::from_secs(3),
            backlogs: thousands(&[1, 100]),
            groups: vec![Groups::Plain, Groups::Even(1), Groups::Even(100), Groups::Even(10_000)],
            delayed: 100_000,
            held: 500,
            pinned: Duration::from_secs(self.seconds.unwrap_or(60)),
            life: Duration::from_secs(self.seconds.unwrap_or(1_800)),
            memory: 1_000_000,
            cost: 20_000,
            idle: Duration::from_mins(2),
            work: self.work.clone(),
            worked: 30_000,
            ahead: if self.ahead.is_empty() { thousands(&[20]) } else { self.ahead.clone() },
            tries: 3,
            patience: Duration::from_secs(15),
            drains: 6_000,
        };
        if self.quick {
            sizes.probe = Duration::from_millis(200);
            sizes.time = Duration::from_millis(700);
            sizes.backlogs = thousands(&[10]);
            (sizes.delayed, sizes.held, sizes.memory) = (10_000, 100, 100_000);
            (sizes.cost, sizes.idle) = (2_000, Duration::from_secs(4));
            sizes.worked = 3_000;
            (sizes.tries, sizes.patience, sizes.drains) = (2, Duration::from_secs(3), 500);
            if self.ahead.is_empty() {
                sizes.ahead = thousands(&[2]);
            }
            sizes.pinned = Duration::from_secs(self.seconds.unwrap_or(5));
            sizes.life = Duration::from_secs(self.seconds.unwrap_or(20));
        }
        if self.full {
            sizes.probe = Duration::from_secs(1);
            sizes.time = Duration::from_secs(8);
            sizes.backlogs = thousands(&[1, 100, 1_000]);
            sizes.groups.push(Groups::Even(100_000));
        }
        if self.deep {
            sizes.backlogs.push(10_000_000);
        }
        sizes
    }
}

/// Sizes and times.
#[derive(Debug, Clone)]
pub(crate) struct Sizes {
    /// Time of each measurement of the limit.
    pub(crate) probe: Duration,
    /// Limit of the time that a rate is measured.
    pub(crate) time: Duration,
    pub(crate) backlogs: Vec<u32>,
    pub(crate) groups: Vec<Groups>,
    /// Groups that are not due.
    pub(crate) delayed: u32,
    /// Groups that others hold.
    pub(crate) held: u32,
    /// Time for which the horizon is pinned.
    pub(crate) pinned: Duration,
    /// Time of a life.
    pub(crate) life: Duration,
    /// The backlog beside which memory is measured.
    pub(crate) memory: u32,
    /// The jobs whose cost is measured, two in each group.
    pub(crate) cost: u32,
    /// Time for which a processor without work is watched.
    pub(crate) idle: Duration,
    /// Run times of handlers, in microseconds.
    pub(crate) work: Vec<u64>,
    /// The backlog of handlers that take time.
    pub(crate) worked: u32,
    /// Jobs before the one that is waited for.
    pub(crate) ahead: Vec<u32>,
    /// How many jobs are waited for, one after the other.
    pub(crate) tries: u32,
    /// Limit of the wait for each.
    pub(crate) patience: Duration,
    /// Jobs of one group that drains with each, beside a pinned horizon.
    pub(crate) drains: u32,
}
