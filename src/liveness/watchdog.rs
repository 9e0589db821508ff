//! Ends a process whose processor has stopped making progress.

use std::fmt;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::BackgroundError;
use crate::job::caught::caught;
use crate::job::error::BuildMistake;
use crate::job::stall::{Sample, Stall, StallDetector, StallVerdict};
use crate::liveness::context::Context;
use crate::liveness::heartbeat::LoopHeartbeat;
use crate::liveness::supervised::report_panic;

/// The watchdog, in reports.
const TASK: &str = "the watchdog";
/// Bounds the time for the log and the error hook, which may hang in the deadlock that was found.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Ends the process when its processor has stopped making progress, with the reason in the log. It
/// is for processes that a supervisor restarts (systemd, Kubernetes): one that hangs would keep its
/// jobs and do nothing.
///
/// A thread of its own, which shares nothing with the application's runtime, watches
///
/// * the runtime: does it poll tasks at all, or do handlers block its threads ([`Stall::Runtime`])?
/// * the loop of each queue: is it polled ([`Stall::Loop`]), does it come out of its claim
///   ([`Stall::Step`]), has it panicked ([`Stall::Panicked`])?
/// * a [shutdown](crate::Running::shutdown): has it ended a margin after its deadline
///   ([`Stall::Shutdown`])? A handler that blocks its thread can be neither waited for nor dropped,
///   and `#[tokio::main]` waits for its thread when `main` has returned. The deadline also stands
///   if the future of the shutdown is dropped, or if the process is to go on without its processor.
///
/// A processor without work, with long handlers, with a paused queue or without its database is not
/// stalled: its loops wait, or try again. Nor is one that was frozen: only time that the watchdog
/// itself has seen pass counts. A handler that blocks does count, so `limit` must be longer than
/// any block that is meant.
///
/// The reason goes to `tracing` at the level of errors and to the [error
/// hook](crate::ProcessorBuilder::on_error), as [`BackgroundError::Stalled`]. Both together have 2
/// s, as they may hang as well. Then the process ends with [`EXIT_CODE`](Self::EXIT_CODE), or as
/// [`end_with`](Self::end_with) says.
///
/// Nothing is lost. The running jobs end as those of a worker that was killed: their locks go with
/// the process, and what their handlers wrote through [`tx`](crate::ActiveJob::tx) is rolled back.
/// Another worker runs them again within seconds. The attempt counts.
#[derive(Clone)]
pub struct Watchdog {
    limit: Duration,
    margin: Duration,
    end: Arc<dyn Fn(&Stall) + Send + Sync>,
}

impl Watchdog {
    /// The exit code of a process that the watchdog ends: 70, the `EX_SOFTWARE` of `sysexits.h`.
    pub const EXIT_CODE: i32 = 70;

    /// Returns a watchdog that ends the process after `limit` without progress, or at most a second
    /// later. 1 s to 1 day.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            margin: Duration::from_secs(10),
            end: Arc::new(|_| std::process::exit(Self::EXIT_CODE)),
        }
    }

    /// Sets how long after its deadline a shutdown may end. Its first 5 s are for the release of
    /// handlers that were stopped at the deadline. 0 to 1 day, default 10 s.
    pub fn shutdown_margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// Replaces [`std::process::exit`], which runs the exit handlers and may hang there: `|_|
    /// std::process::abort()`, say. It is called once, in the watchdog's thread. If it returns or
    /// panics, this processor is not watched any more.
    pub fn end_with(mut self, end: impl Fn(&Stall) + Send + Sync + 'static) -> Self {
        self.end = Arc::new(end);
        self
    }

    /// Returns the interval of heartbeats: a quarter of the limit, 1 s at most.
    pub(crate) fn heartbeat_interval(&self) -> Duration {
        (self.limit / 4).min(Duration::from_secs(1))
    }

    pub(crate) fn mistakes(&self, found: &mut Vec<BuildMistake>) {
        let day = Duration::from_hours(24);
        let mut out_of_range = |setting, value: Duration, range| {
            found.push(BuildMistake::OutOfRange {
                queue: String::from("(all)"),
                setting,
                value: format!("{value:?}"),
                range,
            });
        };
        if self.limit < Duration::from_secs(1) || self.limit > day {
            out_of_range("watchdog", self.limit, "1 s to 1 day");
        }
        if self.margin > day {
            out_of_range("watchdog.shutdown_margin", self.margin, "at most 1 day");
        }
    }
}

impl fmt::Debug for Watchdog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchdog")
            .field("limit", &self.limit)
            .field("shutdown_margin", &self.margin)
            .finish_non_exhaustive()
    }
}

/// A watchdog, and what it watches.
pub(crate) struct WatchdogGuard {
    pub(crate) watchdog: Watchdog,
    pub(crate) context: Arc<Context>,
    /// The heartbeat of a task that does nothing else.
    pub(crate) runtime: Arc<LoopHeartbeat>,
    /// The heartbeat of each queue's loop.
    pub(crate) loops: Vec<(String, Arc<LoopHeartbeat>)>,
}

impl WatchdogGuard {
    /// Watches until the processor has ended. Has a thread of its own: the monitor's calls the
    /// error hook, which may hang in the very deadlock that is to be found.
    pub(crate) fn start(self) -> io::Result<()> {
        let run = move || {
            if let Err(panic) = caught(|| self.run()) {
                let down = self.context.vitals.note_down(TASK);
                report_panic(&self.context, TASK, panic);
                // Nothing watches from here on.
                std::mem::forget(down);
            }
        };
        thread::Builder::new().name("seriatim-watchdog".into()).spawn(run).map(drop)
    }

    fn run(&self) {
        let Watchdog { limit, margin, .. } = self.watchdog;
        let queues = self.loops.iter().map(|(queue, _)| queue.clone());
        let mut check = StallDetector::new(limit, margin, queues);
        let mut last = Instant::now();
        loop {
            thread::sleep(check.tick());
            let now = Instant::now();
            let elapsed = now.duration_since(last);
            last = now;
            match check.check(&self.sample(), elapsed) {
                StallVerdict::Fine => {}
                StallVerdict::Ended => return,
                StallVerdict::Stalled(stall) => return self.end(&stall),
            }
        }
    }

    fn sample(&self) -> Sample {
        Sample {
            runtime: self.runtime.sample(),
            loops: self.loops.iter().map(|(_, heartbeat)| heartbeat.sample()).collect(),
            running: self.context.counters.totals().still_running,
            deadline: self.context.deadline.get().copied(),
        }
    }

    fn end(&self, stall: &Stall) {
        let (done, said) = mpsc::channel::<()>();
        let last_words = {
            let (context, stall) = (Arc::clone(&self.context), stall.clone());
            move || {
                context.report(BackgroundError::Stalled(stall));
                drop(done);
            }
        };
        // If no thread can be started, the process ends without a word.
        if thread::Builder::new().name("seriatim-last-words".into()).spawn(last_words).is_ok() {
            let _ = said.recv_timeout(LAST_WORDS);
        }
        (self.watchdog.end)(stall);
    }
}
