//! A turn that a lease keeps: handlers one after the other, their successes recorded together.
//!
//! What succeeded is unrecorded for as long as quick handlers follow each other within [`WINDOW`]; a slow one is recorded
//! before the next begins, and what was done before it while it runs. If the process dies in between, those run again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::attempt::active_job::{ActiveJob, HoldGuard, Lease};
use crate::attempt::hold::RETRY_SKIPPED;
use crate::attempt::lost::lease_lost;
use crate::attempt::turn::{ClaimedTurn, Finished, Settled, TurnEnd, Unrecorded};
use crate::job::outcome::{Outcome, RunResult};
use crate::liveness::leases::LeaseGuard;
use crate::liveness::sessions::Signals;
use crate::liveness::shutdown::RunningAttempt;
use crate::slots::queue_slots::SlotGuard;
use crate::store::{HeldJob, LeasedClaim, UnrecordedSuccess};

/// How long after the begin of a handler its success may wait for others to be recorded with it.
const WINDOW: Duration = Duration::from_millis(20);
/// How many successes are recorded together at most.
const TOGETHER: usize = 100;
/// And how many bytes of results: one statement has 2 s for them.
const BYTES: usize = 1 << 20;
/// How long the next try waits at most while a handler's own transaction has the rows.
const SKIPPED: Duration = Duration::from_secs(1);

/// The successes of a turn that are not recorded yet.
#[derive(Default)]
struct PendingSuccesses<'a> {
    done: Vec<UnrecordedSuccess>,
    counted: Vec<RunningAttempt<'a>>,
    /// When the first handler began whose job is not recorded.
    since: Option<Instant>,
    /// How many of them are being recorded, and the answer.
    flush: Option<(usize, oneshot::Receiver<Settled>)>,
    /// When the next try may be made beside a handler, after one that found a row locked.
    again: Option<Instant>,
    /// The turn ends with the job that runs: somebody paused the queue or the group, or the database refused a success.
    last: bool,
}

impl PendingSuccesses<'_> {
    /// When they are to be recorded at the latest; none: nothing is, or the database refused to.
    fn due(&self) -> Option<Instant> {
        let waiting = !self.done.is_empty() && self.flush.is_none() && !self.last;
        self.since.filter(|_| waiting).map(|since| since + WINDOW)
    }

    fn are_many(&self) -> bool {
        let bytes = || self.done.iter().map(|done| done.result.len()).sum::<usize>();
        self.done.len() >= TOGETHER || bytes() >= BYTES
    }

    /// The answer to what is being recorded: whether the turn goes on, was passed on, or the claim is lost.
    fn answered(&mut self, settled: Option<Settled>) -> TurnEnd {
        let recorded = self.flush.take().map_or(0, |(n, _)| n);
        self.again = None;
        let end = match settled {
            Some(Settled::Stays { paused }) => {
                self.last |= paused;
                TurnEnd::Stays
            }
            Some(Settled::Refused) => {
                self.last = true;
                return TurnEnd::Stays;
            }
            Some(Settled::Skipped) => {
                // As long as they have waited.
                let now = Instant::now();
                self.again = self.since.map(|since| now + (now - since).min(SKIPPED));
                return TurnEnd::Stays;
            }
            Some(Settled::Ended(end)) => end,
            None => TurnEnd::Lost,
        };
        if end != TurnEnd::Lost {
            self.done.drain(..recorded);
            self.counted.drain(..recorded).for_each(|mut counted| counted.mark_finished());
            self.since = None;
        }
        end
    }

    async fn answer(&mut self) -> Option<Settled> {
        match &mut self.flush {
            Some((_, answer)) => answer.await.ok(),
            None => std::future::pending().await,
        }
    }
}

impl ClaimedTurn {
    /// Keeps the claim by its lease, which was asked for at `asked_at`, from now on.
    pub(crate) fn guard_lease(
        &mut self,
        held: &HashMap<i64, HeldJob>,
        asked_at: Instant,
    ) -> LeaseGuard {
        let first = held.get(&self.claim.job);
        let time = first.and_then(|held| held.lease).unwrap_or(self.queue.options.hold.lease());
        self.lease = Some(time);
        self.keep(time, asked_at)
    }

    /// Runs the attempt, and those of the jobs behind it, to their ends.
    pub(crate) async fn into_end_leased(
        mut self,
        mut held: HashMap<i64, HeldJob>,
        pool: PgPool,
        mut lease_guard: LeaseGuard,
        slot: SlotGuard,
    ) {
        let mut slot = Some(slot);
        let context = Arc::clone(&self.context);
        let Some(time) = self.lease else { return };
        let mut pending = PendingSuccesses::default();
        while let Some(held) = held.remove(&self.claim.job) {
            let mut counted = context.counters.begin();
            let signals = lease_guard.signals.clone();
            let guard = HoldGuard::Leased(Lease {
                context: Arc::clone(&context),
                pool: pool.clone(),
                claim: self.claim.clone(),
                time,
                guard: lease_guard,
                record_first: None,
            });
            let mut job = self.active(&held, guard);
            let (result, clean) =
                self.handle_and_record(&mut job, &held, &signals, &mut pending).await;
            let unrecorded = self.decide_success(&held, result);
            let stays = !pending.last && !signals.lost.is_cancelled() && self.stays(&unrecorded);
            match (job.guard, unrecorded) {
                (HoldGuard::Leased(lease), Unrecorded::Outcome(Outcome::Succeeded { result }))
                    if stays =>
                {
                    pending.done.push(UnrecordedSuccess { job: self.claim.job, result });
                    pending.counted.push(counted);
                    // If the next one kills the process, a take-over has no attempt left for it.
                    let due = job.max_attempts < 2
                        || pending.due().is_some_and(|due| due <= Instant::now());
                    if due || pending.are_many() {
                        match self.record_now(&mut pending, &signals).await {
                            TurnEnd::Stays => {}
                            TurnEnd::Lost => {
                                self.claim_lost();
                                return;
                            }
                            TurnEnd::Finished | TurnEnd::Drained | TurnEnd::Released => return,
                        }
                    }
                    lease_guard = lease.guard;
                }
                (guard, unrecorded) => {
                    // What is being recorded at this moment may be recorded twice, which changes nothing.
                    self.done = std::mem::take(&mut pending.done);
                    self.last = !stays;
                    let asked_at = Instant::now();
                    if matches!(guard, HoldGuard::Leased(_)) {
                        job.slot = slot.take();
                    }
                    job.guard = guard;
                    let (end, _) = self.settle(job, held, &signals, unrecorded, clean).await;
                    match end {
                        TurnEnd::Finished | TurnEnd::Drained | TurnEnd::Stays => {
                            counted.mark_finished();
                            pending
                                .counted
                                .drain(..)
                                .for_each(|mut counted| counted.mark_finished());
                        }
                        TurnEnd::Released => counted.mark_released(),
                        TurnEnd::Lost => {}
                    }
                    if end != TurnEnd::Stays {
                        return;
                    }
                    self.done.clear();
                    pending = PendingSuccesses::default();
                    lease_guard = self.keep(time, asked_at);
                }
            }
            if !self.claim.advance() {
                return;
            }
            lease_guard.pass_to(self.claim.job);
        }
    }

    fn keep(&self, lease: Duration, asked_at: Instant) -> LeaseGuard {
        let claim = LeasedClaim {
            job: self.claim.job,
            ungrouped: self.claim.group.is_none(),
            behind: self.claim.behind.clone(),
            token: self.claim.token,
            lease: lease.as_secs_f64(),
        };
        self.context.leases.keep(claim, lease, asked_at)
    }

    /// Runs the handler, and has what was done before recorded when that is due.
    async fn handle_and_record(
        &self,
        job: &mut ActiveJob,
        held: &HeldJob,
        signals: &Signals,
        pending: &mut PendingSuccesses<'_>,
    ) -> (RunResult, bool) {
        if signals.cancel.is_cancelled() {
            // Somebody asked for it before its turn came.
            return (RunResult::Cancelled, true);
        }
        let began = Instant::now();
        if let HoldGuard::Leased(lease) = &job.guard
            && !lease.guard.may_begin(began)
        {
            return (lease_lost(), false);
        }
        pending.since.get_or_insert(began);
        let (ask, mut asked) = mpsc::unbounded_channel();
        if let HoldGuard::Leased(lease) = &mut job.guard {
            lease.record_first = Some(ask);
        }
        // The handler waits for that, with its first `tx()`.
        let mut first: Option<oneshot::Sender<()>> = None;
        let mut run = std::pin::pin!(self.handle(job, held, signals));
        loop {
            if pending.flush.is_none()
                && (pending.done.is_empty() || pending.last)
                && let Some(first) = first.take()
            {
                // Its handler may have been told to stop meanwhile.
                let _ = first.send(());
            }
            let mut due = pending.due();
            if first.is_some() {
                due = due.map(|_| Instant::now());
            }
            let due = due.map(|due| pending.again.map_or(due, |at| at.max(due)));
            tokio::select! {
                biased;
                ended = &mut run => return ended,
                Some(asks) = asked.recv() => first = Some(asks),
                answer = pending.answer() => {
                    if pending.answered(answer) == TurnEnd::Lost {
                        signals.lost.cancel();
                    }
                    pending.since.get_or_insert(began);
                    if first.is_some() && pending.again.is_some() {
                        pending.again = Some(Instant::now() + RETRY_SKIPPED);
                    }
                }
                () = sleep_until(due.unwrap_or(began)), if due.is_some() => self.flush(pending, signals, false),
            }
        }
    }

    /// Has all that is done recorded before the next handler begins.
    async fn record_now(&self, pending: &mut PendingSuccesses<'_>, signals: &Signals) -> TurnEnd {
        loop {
            self.flush(pending, signals, true);
            let answer = pending.answer().await;
            let end = pending.answered(answer);
            if end != TurnEnd::Stays || pending.again.is_none() {
                return end;
            }
            sleep(RETRY_SKIPPED).await;
        }
    }

    /// Has what is done recorded; the turn goes on, unless no handler runs and somebody paused the queue or the group.
    fn flush(&self, pending: &mut PendingSuccesses<'_>, signals: &Signals, idle: bool) {
        let mut run = self.clone();
        run.idle = idle;
        run.done.clone_from(&pending.done);
        let Some(last) = pending.done.last() else { return };
        // Its row is the one that the settle locks beside the group's.
        run.claim.job = last.job;
        let (answer, settled) = oneshot::channel();
        let unrecorded = Unrecorded::EarlierOnly;
        let signals = signals.clone();
        let since = Instant::now();
        let finished = Finished { run, unrecorded, guard: None, signals, since, answer };
        pending.flush = Some((pending.done.len(), settled));
        let settler = self.queue.settler.clone();
        tokio::spawn(async move {
            // The settler outlives the slots, unless the runtime ends.
            let _ = settler.send(finished).await;
        });
    }
}
