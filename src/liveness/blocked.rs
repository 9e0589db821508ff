//! Handlers that block their threads. Each thread has a cell that says which handler it polls; the
//! monitor's thread reads the cells.
//!
//! A cell is a thread's own, so that polls of many handlers meet no common lock.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;

/// Time between two reports of a handler that goes on blocking.
const AGAIN: Duration = Duration::from_mins(1);
/// Bounds the time between two looks at the cells.
const TICK: Duration = Duration::from_millis(500);

/// A handler that may be polled.
#[derive(Debug)]
pub(crate) struct PolledHandler {
    pub(crate) processor: i64,
    pub(crate) queue: Arc<str>,
    pub(crate) job: i64,
}

type Poll = Option<(Arc<PolledHandler>, Instant)>;

/// The poll of a handler that a thread is in.
#[derive(Debug, Default)]
struct Cell(Mutex<Poll>);

impl Cell {
    fn poll(&self) -> MutexGuard<'_, Poll> {
        lock(&self.0)
    }
}

/// The cells of all threads that have polled a handler.
static CELLS: Mutex<Vec<Weak<Cell>>> = Mutex::new(Vec::new());

thread_local! {
    static CELL: OnceCell<Arc<Cell>> = const { OnceCell::new() };
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under the locks.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the cell of this thread; `None` while the thread ends.
fn own_cell() -> Option<Arc<Cell>> {
    let make = || {
        let cell = Arc::new(Cell::default());
        let mut cells = lock(&CELLS);
        cells.retain(|cell| cell.strong_count() > 0);
        cells.push(Arc::downgrade(&cell));
        cell
    };
    CELL.try_with(|cell| Arc::clone(cell.get_or_init(make))).ok()
}

/// A poll of a handler, over when dropped. A handler may poll another one: that one's end brings
/// the first one back.
struct PollGuard {
    cell: Option<Arc<Cell>>,
    before: Poll,
}

impl PollGuard {
    fn begin(handler: &Arc<PolledHandler>) -> Self {
        let cell = own_cell();
        let poll = Some((Arc::clone(handler), Instant::now()));
        let before = cell.as_ref().and_then(|cell| std::mem::replace(&mut *cell.poll(), poll));
        Self { cell, before }
    }
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        if let Some(cell) = &self.cell {
            *cell.poll() = self.before.take();
        }
    }
}

/// Runs a handler, and shows in which thread it is polled and since when.
pub(crate) async fn show_polls<F: Future>(handler: PolledHandler, run: F) -> F::Output {
    let handler = Arc::new(handler);
    let mut run = pin!(run);
    poll_fn(|context| {
        let _poll = PollGuard::begin(&handler);
        run.as_mut().poll(context)
    })
    .await
}

/// Returns the polls of a processor's handlers that have lasted for `limit`.
fn long_polls(processor: i64, limit: Duration) -> Vec<(Arc<PolledHandler>, Instant)> {
    let cells: Vec<_> = lock(&CELLS).iter().filter_map(Weak::upgrade).collect();
    let polls = cells.iter().filter_map(|cell| cell.poll().clone());
    let long =
        polls.filter(|(handler, since)| handler.processor == processor && since.elapsed() >= limit);
    long.collect()
}

/// Reports handlers of a processor that have blocked their threads for `limit`, until `stop`.
pub(crate) async fn run(
    processor: i64,
    limit: Duration,
    stop: &CancellationToken,
    report: impl Fn(BackgroundError),
) {
    let mut said: HashMap<i64, Instant> = HashMap::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(TICK.min(limit / 2)) => {}
        }
        let long = long_polls(processor, limit);
        said.retain(|job, _| long.iter().any(|(handler, _)| handler.job == *job));
        for (handler, since) in long {
            let now = Instant::now();
            let last = said.get(&handler.job);
            // The job may have blocked before, in another poll.
            if last.is_none_or(|last| *last < since || *last + AGAIN <= now) {
                said.insert(handler.job, now);
                let (queue, job) = (handler.queue.to_string(), handler.job);
                report(BackgroundError::HandlerBlocks { queue, job, lasted: now - since });
            }
        }
    }
}
