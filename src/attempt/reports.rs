//! The reports of a handler: its progress, and checkpoints. Values are kept in memory and written
//! beside the handler, at most once a second.
//!
//! They are not written in the handler's transaction, whose writes go with a failed attempt. The
//! row is fenced by the claim's token (P10). A success deletes it, once it is committed. If the
//! process dies in between, nothing shows the row, and maintenance deletes it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use crate::attempt::suppressed::Suppressed;
use crate::job::error::ProgressError;
use crate::job::redact::redact_detail;
use crate::liveness::context::Context;
use crate::store::{Report, in_short_tx};

/// Time between two writes of a job.
const INTERVAL: Duration = Duration::from_secs(1);
/// Bounds the last write of an attempt, which delays the record of its failure.
const LAST_WRITE: Duration = Duration::from_secs(1);
/// The same if the hold is lost: the record has to come before a take-over.
const LAST_WRITE_LOST: Duration = Duration::from_millis(200);

/// The claim for which something is written beside the handler's transaction, and where.
#[derive(Clone)]
pub(crate) struct Reporter {
    pub(crate) context: Arc<Context>,
    pub(crate) job: i64,
    pub(crate) token: Uuid,
    /// Where the claim was made; see `ClaimedTurn::origin`.
    pub(crate) origin: Option<Arc<PgConnectOptions>>,
    /// In a rehearsal, and in a test without a database: neither writes anything.
    pub(crate) suppressed: Option<Arc<Suppressed>>,
}

/// The reports of an attempt. Made with the first one.
pub(crate) struct Reports {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

struct Shared {
    reporter: Reporter,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    unwritten: Report,
    /// The last checkpoint of this attempt, or the one that it has read.
    checkpoint: Option<Arc<str>>,
    /// Whether the checkpoint of the attempts before has been read.
    is_read: bool,
    /// Whether the database may have a row of the job.
    has_row: bool,
    /// When the next write may begin; `None`: at once.
    next_at: Option<Instant>,
    /// True while a write is on its way.
    writing: bool,
    /// The handler, if it waits for the write that is about to begin.
    waiting: Option<oneshot::Sender<Result<(), ProgressError>>>,
    /// The error of a write that nobody has waited for.
    failed: Option<ProgressError>,
    /// Set as the handler has ended.
    end: Option<End>,
}

/// The fate of values that are not written as the handler ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Write,
    Drop,
}

impl Reporter {
    pub(crate) fn reports(self) -> Reports {
        self.reports_from(State::default())
    }

    /// Returns reports whose last checkpoint is known: no database is read for it.
    #[cfg(feature = "testing")]
    pub(crate) fn reports_after(self, checkpoint: Option<Arc<str>>) -> Reports {
        self.reports_from(State { checkpoint, is_read: true, ..State::default() })
    }

    fn reports_from(self, state: State) -> Reports {
        let (state, changed) = (Mutex::new(state), Notify::new());
        let shared = Shared { reporter: self, state, changed };
        Reports { shared: Arc::new(shared), writer: None }
    }

    async fn write(&self, report: &Report) -> Result<(), ProgressError> {
        if self.suppressed.is_some() {
            return Ok(());
        }
        let write = async |conn: &mut PgConnection| {
            self.context.store.write_progress(conn, self.job, self.token, report).await
        };
        match self.on_side(write).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ProgressError::NotHeld { job: self.job }),
            Err(error) => Err(ProgressError::Database(redact_detail(error))),
        }
    }

    /// Works on a connection beside the pool, where the claim was made.
    pub(crate) async fn on_side<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let Context { side, side_reports, .. } = &*self.context;
        side_reports.on_side(side, self.origin.as_ref(), work).await
    }

    async fn read(&self) -> Result<Option<String>, ProgressError> {
        let read = async |conn: &mut PgConnection| {
            let read =
                async |conn: &mut PgConnection| self.context.store.checkpoint(conn, self.job).await;
            in_short_tx(conn, read).await
        };
        self.on_side(read).await.map_err(|error| ProgressError::Database(redact_detail(error)))
    }
}

impl Reports {
    /// Notes a progress, to be written soon.
    pub(crate) fn progress(&mut self, percent: u8, message: String) {
        if let Some(suppressed) = &self.shared.reporter.suppressed {
            suppressed.note_progress(percent, &message);
        }
        self.shared.with(|state| state.unwritten.progress = Some((percent, message)));
        self.wake_writer();
    }

    /// Notes a checkpoint. If it may be written now, waits for that.
    ///
    /// Cancel safe: it is noted before the first await.
    pub(crate) async fn checkpoint(&mut self, json: Arc<str>) -> Result<(), ProgressError> {
        if let Some(suppressed) = &self.shared.reporter.suppressed {
            suppressed.note_checkpoint(&json);
        }
        let now = Instant::now();
        let (answer, written) = oneshot::channel();
        let (is_due, failed) = self.shared.with(|state| {
            state.checkpoint = Some(Arc::clone(&json));
            state.unwritten.checkpoint = Some(json);
            let is_due = !state.writing && state.next_at.is_none_or(|at| at <= now);
            state.waiting = is_due.then_some(answer);
            (is_due, state.failed.take())
        });
        self.wake_writer();
        if let Some(error) = failed {
            return Err(error);
        }
        // Outside of a runtime there is no writer: the end of the attempt writes it.
        if !is_due || self.writer.is_none() {
            return Ok(());
        }
        written.await.unwrap_or(Ok(()))
    }

    /// Returns the last checkpoint: of this attempt, or of one before. Reads it once.
    pub(crate) async fn last_checkpoint(&mut self) -> Result<Option<Arc<str>>, ProgressError> {
        let known = |state: &mut State| {
            (state.is_read || state.checkpoint.is_some()).then(|| state.checkpoint.clone())
        };
        if let Some(checkpoint) = self.shared.with(known) {
            return Ok(checkpoint);
        }
        let read: Option<Arc<str>> = self.shared.reporter.read().await?.map(Into::into);
        self.shared.with(|state| {
            state.is_read = true;
            state.has_row |= read.is_some();
            state.checkpoint.clone_from(&read);
        });
        Ok(read)
    }

    fn wake_writer(&mut self) {
        self.shared.changed.notify_one();
        if self.writer.is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            self.writer = Some(runtime.spawn(write_reports(Arc::clone(&self.shared))));
        }
    }

    /// Ends the reports: a write of now ends, and with `keep` what is left is written. The claim
    /// must not have been settled. Returns whether the database may have a row of the job.
    pub(crate) async fn end(mut self, keep: bool, is_lost: bool) -> bool {
        let end = if keep { End::Write } else { End::Drop };
        let is_left = self.shared.with(|state| {
            state.end = Some(end);
            keep && state.unwritten != Report::default()
        });
        if is_left || self.writer.is_some() {
            self.wake_writer();
        }
        if let Some(writer) = &mut self.writer {
            let limit = if is_lost { LAST_WRITE_LOST } else { LAST_WRITE };
            // A write that goes on in the server beyond it is refused once the claim is settled. If
            // it read the claim just before, it leaves a row, which maintenance deletes.
            let _ = timeout(limit, writer).await;
        }
        self.shared.with(|state| state.has_row)
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        if let Some(writer) = &self.writer {
            writer.abort();
        }
    }
}

impl Shared {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // Nothing panics under the lock.
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes what is to be written, if there is anything.
    fn take(&self) -> Option<Report> {
        let now = Instant::now();
        self.with(|state| {
            if state.unwritten == Report::default() || state.end == Some(End::Drop) {
                return None;
            }
            state.next_at = Some(now + INTERVAL);
            state.writing = true;
            // Also if no answer comes.
            state.has_row = true;
            Some(std::mem::take(&mut state.unwritten))
        })
    }

    /// Passes the answer on. Values that were not written are tried again, unless there are newer
    /// ones.
    fn answer(&self, report: Report, answer: Result<(), ProgressError>) {
        self.with(|state| {
            state.writing = false;
            state.failed = None;
            if answer.is_err() {
                let newer = &mut state.unwritten;
                newer.progress = newer.progress.take().or(report.progress);
                newer.checkpoint = newer.checkpoint.take().or(report.checkpoint);
            }
            let unheard = match state.waiting.take() {
                Some(waiting) => waiting.send(answer).err(),
                None => Some(answer),
            };
            state.failed = unheard.and_then(Result::err);
        });
    }

    /// Waits until something may be written, or the handler has ended.
    async fn wait(&self) {
        loop {
            let (is_over, next_at) = self.with(|state| {
                let due_at = state.next_at.unwrap_or_else(Instant::now);
                let wants = state.unwritten != Report::default();
                (state.end.is_some(), wants.then_some(due_at))
            });
            if is_over || next_at.is_some_and(|at| at <= Instant::now()) {
                return;
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(next_at.unwrap_or_else(Instant::now)), if next_at.is_some() => {}
            }
        }
    }
}

/// Writes what is noted until the handler has ended.
async fn write_reports(shared: Arc<Shared>) {
    loop {
        let is_last = shared.with(|state| state.end.is_some());
        if let Some(report) = shared.take() {
            let answer = shared.reporter.write(&report).await;
            shared.answer(report, answer);
        }
        if is_last {
            return;
        }
        shared.wait().await;
    }
}

/// Deletes the row of a job that has succeeded, beside everything else: jobs that come meanwhile go
/// together. If the process dies before, maintenance deletes it.
pub(crate) fn forget_reports(context: &Arc<Context>, job: i64) {
    if !context.side_reports.add_succeeded(job) {
        return;
    }
    let context = Arc::clone(context);
    tokio::spawn(async move {
        let mut done = 0;
        while let Some(jobs) = context.side_reports.next_succeeded(done) {
            done = jobs.len();
            let forget = async |conn: &mut PgConnection| {
                let forget =
                    async |conn: &mut PgConnection| context.store.forget_progress(conn, jobs).await;
                in_short_tx(conn, forget).await
            };
            if let Err(error) = context.side_reports.on_side(&context.side, None, forget).await {
                tracing::debug!(%error, "the progress of jobs is left to maintenance");
            }
        }
    });
}
