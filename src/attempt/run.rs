//! One attempt of one claimed job: hold, handle, decide, settle.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::attempt::active_job::{ActiveJob, HoldGuard, Lease, Locks, Savepoint, leave_savepoint};
use crate::attempt::connection::SlotConnection;
use crate::attempt::failure::{ended_by_hand, run_result, with_note};
use crate::attempt::hold::{HeldJob, hold};
use crate::attempt::layer::Next;
use crate::attempt::lost::{lease_lost, report_lost_hold, session_lost};
use crate::attempt::panics;
use crate::attempt::release::{UnstartedTurn, release};
use crate::attempt::reports::Reporter;
use crate::attempt::run_caught::run_caught;
use crate::attempt::settle_late::ANSWER_LIMIT;
use crate::attempt::turn::{ClaimedTurn, Finished, Settled, TurnEnd, Unrecorded};
use crate::error::BackgroundError;
use crate::job::disposition::Disposition;
use crate::job::job::FailureKind;
use crate::job::job_error::{JobError, storable_text};
use crate::job::outcome::RunResult;
use crate::job::reason::reason;
use crate::job::waits::Waits;
use crate::liveness::blocked::{PolledHandler, show_polls};
use crate::liveness::sessions::{Signals, has_left};
use crate::slots::queue_slots::SlotGuard;
use crate::store::{CLAIM_LEASE, LoadedJob, WorkConnection, cannot_read, in_short_tx};

/// Bounds the time that a handler has to stop after [`ActiveJob::cancelled`] resolved. With
/// `monitor::LIMIT` it stays below the grace of a take-over.
const WIND_UP: Duration = Duration::from_millis(150);

/// Bounds the wait of a held job for a handler to end. Jobs are held ahead only while handlers are
/// quicker than this.
const PERMIT_LIMIT: Duration = Duration::from_millis(100);

/// Bounds the look at the session of a handler that was dropped.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// The reason why a handler was stopped before it returned.
enum Stopped {
    TimedOut(Duration),
    /// Timed out while it waited for a connection of the pool: no attempt of the job.
    GotNoConnection,
    HoldLost,
    Deadline,
}

impl ClaimedTurn {
    /// Runs the jobs of the turn to their ends, each in a transaction that holds its job. On return
    /// this process holds none of them. `jobs` are as the claim has read them.
    ///
    /// Returns how the last attempt ended, and the connection if it can be used again.
    pub(crate) async fn into_end(
        mut self,
        mut jobs: VecDeque<LoadedJob>,
        mut conn: SlotConnection,
    ) -> (TurnEnd, Option<SlotConnection>) {
        while let Some(loaded) = jobs.pop_front() {
            match self.run_one(loaded, conn).await {
                (TurnEnd::Stays, Some(left)) => {
                    if !self.claim.advance() {
                        return (TurnEnd::Lost, Some(left));
                    }
                    conn = left;
                }
                ended => return ended,
            }
        }
        (TurnEnd::Lost, Some(conn))
    }

    async fn run_one(
        &mut self,
        mut loaded: LoadedJob,
        mut conn: SlotConnection,
    ) -> (TurnEnd, Option<SlotConnection>) {
        let context = Arc::clone(&self.context);
        let mut counted = context.counters.begin();
        let begun = Instant::now();
        let holding = hold(&self.context, &self.claim, CLAIM_LEASE, &mut conn);
        let answer = timeout(ANSWER_LIMIT, holding)
            .await
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        let HeldJob { hold, asked_at, cancel_requested } = match answer {
            Ok(Some(held)) => held,
            Ok(None) => return (TurnEnd::Lost, self.report_not_held(conn, None)),
            Err(error) => {
                let conn = self.report_not_held(conn, Some(error));
                if self.began.is_none() {
                    return (TurnEnd::Lost, conn);
                }
                // Behind another job of the turn. If each hold of a job fails, those of its own
                // turns use up its attempts.
                release(vec![UnstartedTurn { run: self.clone(), guard: None }]).await;
                counted.mark_unbegun();
                return (TurnEnd::Released, conn);
            }
        };
        // A job that may not wait is given back at once.
        let limit = if self.claim.may_wait { PERMIT_LIMIT } else { Duration::ZERO };
        let permit = timeout(limit, Arc::clone(&self.queue.handlers).acquire_owned()).await;
        let Some(permit) = permit.ok().filter(|_| !context.stop.is_cancelled()) else {
            // The handlers of others take longer than they did.
            let left = conn.rollback().await.is_ok().then_some(conn);
            release(vec![UnstartedTurn { run: self.clone(), guard: None }]).await;
            counted.mark_unbegun();
            return (TurnEnd::Released, left);
        };
        loaded.cancel_requested |= cancel_requested;
        self.begin_attempt(&loaded);
        let signals = Signals::default();
        let options = conn.options.clone();
        let monitor = &self.context.session_monitor;
        let watch = monitor.watch(self.claim.job, hold, options, asked_at, signals.clone());
        let guard = HoldGuard::Locked(Locks { conn, hold, watch });
        let mut job = self.active_job(&loaded, guard);
        let before = Instant::now();
        let (result, clean) = self.handle(&mut job, &loaded, &signals).await;
        drop(permit);
        let handled = before.elapsed();
        self.handled += handled;
        let unrecorded = Unrecorded::from(result);
        let (end, conn) = self.settle(job, &signals, unrecorded, clean).await;
        self.queue.time_slice.record(handled, begun.elapsed());
        match end {
            TurnEnd::Finished | TurnEnd::Drained | TurnEnd::Stays => counted.mark_finished(),
            TurnEnd::Released => counted.mark_released(),
            TurnEnd::FirstOnly | TurnEnd::Lost => {}
        }
        (end, conn)
    }

    fn report_not_held(
        &self,
        conn: SlotConnection,
        source: Option<sqlx::Error>,
    ) -> Option<SlotConnection> {
        let broken = source.is_some();
        self.context.report(BackgroundError::Hold {
            queue: self.queue.name.to_string(),
            job: self.claim.job,
            source,
        });
        if broken {
            conn.close();
            return None;
        }
        Some(conn)
    }

    pub(crate) fn active_job(&self, loaded: &LoadedJob, guard: HoldGuard) -> ActiveJob {
        ActiveJob {
            context: Arc::clone(&self.context),
            id: self.claim.job,
            queue: Arc::clone(&self.queue.name),
            group: self.claim.group.clone(),
            attempt: loaded.number.of_all,
            max_attempts: loaded.max_attempts.unwrap_or(self.queue.options.retry.max_attempts),
            snoozes: loaded.snoozes,
            again: None,
            rests: AtomicBool::default(),
            name: loaded.name.clone(),
            reference: loaded.reference.clone(),
            headers: loaded.headers.clone(),
            priority: loaded.priority,
            content_type: loaded.content_type.clone(),
            created_at: loaded.created_at,
            run_at: loaded.run_at,
            waits: self.facts.as_ref().map_or_else(Waits::default, |facts| facts.waits),
            guard,
            savepoint: Savepoint::None,
            cancelled: CancellationToken::new(),
            reporter: Reporter {
                context: Arc::clone(&self.context),
                job: self.claim.job,
                token: self.claim.token,
                origin: self.origin.clone(),
                suppressed: None,
            },
            reports: None,
            slot: None,
        }
    }

    /// Runs the handler, leaves its savepoint, and writes what it reported last. Also returns
    /// whether the connection is in a known state. It is not if a handler was dropped after it had
    /// used it, or had ended the transaction itself.
    pub(crate) async fn handle(
        &self,
        job: &mut ActiveJob,
        loaded: &LoadedJob,
        signals: &Signals,
    ) -> (RunResult, bool) {
        let (result, clean) = self.handle_job(job, loaded, signals).await;
        if let Some(reports) = job.reports.take() {
            let keep = !matches!(result, RunResult::Succeeded(_));
            let is_lost = signals.lost.is_cancelled();
            // Before the settle: the claim fences the write.
            let has_row = reports.end(keep, is_lost).await;
            if let Some(facts) = self.facts.as_ref().filter(|_| has_row) {
                facts.note_reports(&self.context);
            }
        }
        (result, clean)
    }

    async fn handle_job(
        &self,
        job: &mut ActiveJob,
        loaded: &LoadedJob,
        signals: &Signals,
    ) -> (RunResult, bool) {
        if let Some(end) = self.end_without_handler(loaded) {
            return (end, true);
        }
        // Its handler's panic as it was dropped, if it was and did.
        let dropped = OnceLock::new();
        let stopped = match self.run_until_stopped(job, loaded, signals, &dropped).await {
            Ok(ended) => return ended,
            Err(stopped) => stopped,
        };
        if let Some(facts) = &self.facts {
            facts.record_end();
        }
        if self.has_ended_by_hand(job, &stopped).await {
            return (ended_by_hand(), false);
        }
        let clean = job.savepoint == Savepoint::None;
        let result = match stopped {
            Stopped::TimedOut(limit) => {
                let message = format!("the handler did not return within {limit:?}");
                RunResult::Broken(FailureKind::Timeout, message)
            }
            Stopped::HoldLost if job.is_leased() => {
                return (with_note(lease_lost(), dropped.get()), false);
            }
            Stopped::HoldLost => return (with_note(session_lost(), dropped.get()), false),
            Stopped::Deadline | Stopped::GotNoConnection => RunResult::Released,
        };
        (with_note(result, dropped.get()), clean)
    }

    /// Returns how the job ends if its handler must not run.
    fn end_without_handler(&self, loaded: &LoadedJob) -> Option<RunResult> {
        if loaded.cancel_requested {
            return Some(RunResult::Cancelled);
        }
        match self.claim.disposition {
            Disposition::Run => None,
            Disposition::Exhausted => Some(RunResult::Exhausted),
            Disposition::Expired(at) => Some(RunResult::Expired(at)),
            Disposition::Ignored => Some(RunResult::Ignored),
            Disposition::Cancelled => Some(RunResult::Cancelled),
        }
    }

    /// Runs the handler until it returns or has to stop. Also returns whether the connection is in
    /// a known state. A handler that did not stop within its wind-up is dropped.
    async fn run_until_stopped(
        &self,
        job: &mut ActiveJob,
        loaded: &LoadedJob,
        signals: &Signals,
        dropped: &OnceLock<String>,
    ) -> Result<(RunResult, bool), Stopped> {
        let limit = loaded.timeout.or(self.queue.options.timeout);
        let waits = job.waits_for_connection();
        let waits = || waits.as_ref().is_some_and(|waits| waits.load(Ordering::Relaxed));
        let cancelled = job.cancelled.clone();
        let mut run = pin!(self.run_to_end(job, loaded, dropped));
        let mut expired = pin!(expire_after(limit));
        let mut asked = false;
        let stopped = loop {
            tokio::select! {
                biased;
                ended = &mut run => return Ok(ended),
                () = signals.lost.cancelled() => break Stopped::HoldLost,
                () = &mut expired => break match limit {
                    Some(limit) if !waits() => Stopped::TimedOut(limit),
                    _ => Stopped::GotNoConnection,
                },
                () = self.context.release.cancelled() => break Stopped::Deadline,
                () = signals.cancel.cancelled(), if !asked => {
                    asked = true;
                    cancelled.cancel();
                }
            }
        };
        cancelled.cancel();
        match timeout(WIND_UP, &mut run).await {
            Ok(ended @ (RunResult::Broken(FailureKind::TransactionEnded, _), _)) => Ok(ended),
            // An error after a shutdown's deadline is no failure of the job.
            Ok((result, clean)) if matches!(stopped, Stopped::Deadline) => match result {
                kept if kept.keeps_writes() => Ok((kept, clean)),
                _ => Ok((RunResult::Released, clean)),
            },
            _ => Err(stopped),
        }
    }

    /// Runs the handler and leaves its savepoint. Both have the same limits: a query that the
    /// handler dropped half-way has to end first.
    async fn run_to_end(
        &self,
        job: &mut ActiveJob,
        loaded: &LoadedJob,
        dropped: &OnceLock<String>,
    ) -> (RunResult, bool) {
        let (processor, queue) = (self.context.processor, Arc::clone(&self.queue.name));
        let polled = PolledHandler { processor, queue, job: self.claim.job };
        let run = run_caught(self.run_handler(job, loaded), dropped);
        let ended = show_polls(polled, run).await;
        if ended.is_err() {
            tracing::warn!(
                target: "seriatim::job",
                queue = &*self.queue.name,
                job = self.claim.job,
                at = panics::place(),
                "the handler panicked"
            );
        }
        let result = run_result(ended);
        let result = result.bounded(loaded.snoozes, self.queue.options.max_snoozes);
        if let Some(facts) = &self.facts {
            facts.record_end();
        }
        match leave_savepoint(job, result).await {
            Ok(result) => (result, true),
            Err(result) => (result, false),
        }
    }

    /// Runs the layers and the handler, in the attempt's span.
    async fn run_handler(&self, job: &mut ActiveJob, loaded: &LoadedJob) -> RunResult {
        let read;
        let data = match &loaded.data {
            Some(data) => data,
            // Boxed: it is rare, and would make the future of every job larger.
            None => match Box::pin(job.read_data()).await {
                Ok(data) => {
                    read = data;
                    &read
                }
                Err(error) => return unread(error),
            },
        };
        let span = self.facts.as_ref().map_or_else(Span::none, |facts| facts.span());
        let layers = &*self.queue.hooks.layers;
        for layer in layers {
            layer.begin_span(job, &span);
        }
        let handler = &*self.queue.handler;
        let ended = if layers.is_empty() {
            handler.run(job, data).instrument(span).await
        } else {
            Next::new(layers, handler, data).run(job).instrument(span).await.0
        };
        // Its words are made here, where a panic is the attempt's.
        ended.unwrap_or_else(RunResult::from)
    }

    /// Returns whether a handler that was dropped had ended the job's transaction, as far as its
    /// session still shows it.
    async fn has_ended_by_hand(&self, job: &ActiveJob, stopped: &Stopped) -> bool {
        let HoldGuard::Locked(Locks { hold, watch, .. }) = &job.guard else {
            return false;
        };
        if matches!(stopped, Stopped::HoldLost) || job.savepoint == Savepoint::None {
            return watch.was_ended();
        }
        let context = &self.context;
        let look = async {
            let mut conn =
                WorkConnection::from(context.side.acquire_at(self.origin.as_ref()).await?);
            let pids = [hold.session.pid];
            let look = async |conn: &mut PgConnection| context.store.sessions(conn, &pids).await;
            let found = in_short_tx(&mut conn, look).await?;
            conn.done();
            Ok::<_, sqlx::Error>(found)
        };
        let Ok(Ok(found)) = timeout(LOOK_LIMIT, look).await else {
            return watch.was_ended();
        };
        // Another server's sessions tell nothing of this one.
        let now = found.get(&(hold.session.pid, hold.session.since));
        now.map_or_else(|| watch.was_ended(), |now| has_left(hold.xid, *now))
    }

    /// Settles the run: in the hold's own transaction if it stands, else by token on another
    /// connection, or in a batch under a lease.
    pub(crate) async fn settle(
        &self,
        job: ActiveJob,
        signals: &Signals,
        unrecorded: Unrecorded,
        clean: bool,
    ) -> (TurnEnd, Option<SlotConnection>) {
        let since = Instant::now();
        let settled = match job.guard {
            // Boxed: this large future would be moved with each leased job as well.
            HoldGuard::Locked(locks) => {
                Box::pin(self.settle_held(locks, signals, unrecorded, clean)).await
            }
            HoldGuard::Leased(lease) => {
                (self.settle_in_batch(lease, unrecorded, job.slot).await, None)
            }
        };
        if settled.0 != TurnEnd::Lost {
            self.queue.meter.record_settle(since.elapsed());
        }
        settled
    }

    async fn settle_held(
        &self,
        locks: Locks,
        signals: &Signals,
        unrecorded: Unrecorded,
        clean: bool,
    ) -> (TurnEnd, Option<SlotConnection>) {
        let Locks { mut conn, hold, watch } = locks;
        watch.begin_settle();
        let unrecorded = if clean {
            let settled = tokio::select! {
                settled = self.settle_in_hold(&mut conn, unrecorded) => settled,
                () = signals.lost.cancelled() => Err(Unrecorded::Result(session_lost())),
            };
            match settled {
                Ok(end) => return (end, Some(conn)),
                Err(unrecorded) => unrecorded,
            }
        } else {
            unrecorded
        };
        self.report_if_lost(&unrecorded);
        // Closed before the record, which needs the locks that this session may still have.
        conn.close();
        drop(watch);
        let end = self.settle_by_token(hold.session, unrecorded).await;
        (end, None)
    }

    /// Settles by the settler. The slot is free again when the settler has the job.
    async fn settle_in_batch(
        &self,
        lease: Lease,
        unrecorded: Unrecorded,
        slot: Option<SlotGuard>,
    ) -> TurnEnd {
        self.report_if_lost(&unrecorded);
        let settler = self.queue.settler.clone();
        let (answer, end) = oneshot::channel();
        let signals = lease.guard.signals.clone();
        let (guard, since) = (Some(lease.guard), Instant::now());
        let finished =
            Finished { run: self.clone(), unrecorded, guard, signals, since, failed: None, answer };
        // The settler outlives the slots, unless the runtime ends; the lease runs out then.
        if settler.send(finished).await.is_err() {
            return TurnEnd::Lost;
        }
        drop(slot);
        match end.await {
            Ok(Settled::Ended(end)) => end,
            Ok(_) => TurnEnd::Lost,
            // The settler panicked.
            Err(_) => {
                self.queue.left_claim.store(true, Ordering::Relaxed);
                TurnEnd::Lost
            }
        }
    }

    fn report_if_lost(&self, unrecorded: &Unrecorded) {
        if let Unrecorded::Result(result) = unrecorded {
            report_lost_hold(&self.context, &self.queue.name, self.claim.job, result);
        }
    }
}

/// Returns how an attempt ends whose data could not be read.
fn unread(error: sqlx::Error) -> RunResult {
    if cannot_read(&error) {
        let message = format!("the data of the job cannot be read: {}", reason(&error));
        return RunResult::Broken(FailureKind::Data, storable_text(&message));
    }
    RunResult::from(JobError::retry(error))
}

/// Resolves after the limit; never if it is `None`.
async fn expire_after(limit: Option<Duration>) {
    match limit {
        Some(limit) => sleep(limit).await,
        None => std::future::pending().await,
    }
}
