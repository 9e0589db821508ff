//! A turn under a lease: its handlers run one after the other, and their successes are recorded
//! together.
//!
//! Successes stay unrecorded while quick handlers follow each other within [`WINDOW`]. A slow
//! success is recorded before the next handler begins, and earlier successes while a slow handler
//! runs. If the process dies in between, unrecorded jobs run again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::attempt::active_job::{ActiveJob, HoldGuard, Lease};
use crate::attempt::ended::AttemptFacts;
use crate::attempt::hold::RETRY_SKIPPED;
use crate::attempt::lost::lease_lost;
use crate::attempt::turn::{ClaimedTurn, Finished, Settled, TurnEnd, Unrecorded};
use crate::job::outcome::{Outcome, RunResult};
use crate::liveness::leases::LeaseGuard;
use crate::liveness::sessions::Signals;
use crate::liveness::shutdown::RunningAttempt;
use crate::slots::queue_slots::SlotGuard;
use crate::store::{LeasedClaim, LoadedJob, UnrecordedSuccess};

/// Bounds the time from the begin of a handler to the record of its success.
const WINDOW: Duration = Duration::from_millis(20);
/// Bounds the successes that are recorded together.
const MAX_SUCCESSES: usize = 100;
/// Bounds the bytes of their results: one statement has 2 s for them.
const MAX_BYTES: usize = 1 << 20;
/// Bounds the delay before the next try while a handler's own transaction has the rows.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The successes of a turn that are not recorded yet.
#[derive(Default)]
struct PendingSuccesses<'a> {
    successes: Vec<UnrecordedSuccess>,
    counted: Vec<RunningAttempt<'a>>,
    facts: Vec<Arc<AttemptFacts>>,
    /// When the first handler began whose job is not recorded.
    since: Option<Instant>,
    /// The number of successes that are being recorded, and the answer.
    flush: Option<(usize, oneshot::Receiver<Settled>)>,
    /// When a record that found a row locked may be tried again beside a handler.
    retry_at: Option<Instant>,
    /// True if the turn ends with the current job: the queue or the group was paused, or the
    /// database refused a success.
    last: bool,
}

impl<'a> PendingSuccesses<'a> {
    fn add(
        &mut self,
        success: UnrecordedSuccess,
        counted: RunningAttempt<'a>,
        facts: Option<Arc<AttemptFacts>>,
    ) {
        self.successes.push(success);
        self.counted.push(counted);
        self.facts.extend(facts);
    }

    /// Returns when the successes must be recorded; `None` if there are none, or the database
    /// refused them.
    fn due_at(&self) -> Option<Instant> {
        let waiting = !self.successes.is_empty() && self.flush.is_none() && !self.last;
        self.since.filter(|_| waiting).map(|since| since + WINDOW)
    }

    /// Returns whether the successes must be recorded before the next handler begins.
    fn must_be_recorded(&self) -> bool {
        self.is_full() || self.due_at().is_some_and(|due| due <= Instant::now())
    }

    fn is_full(&self) -> bool {
        let bytes = || self.successes.iter().map(|success| success.result.len()).sum::<usize>();
        self.successes.len() >= MAX_SUCCESSES || bytes() >= MAX_BYTES
    }

    /// Applies the settler's answer. Returns whether the turn goes on, was passed on, or lost its
    /// claim.
    fn apply_answer(&mut self, settled: Option<Settled>) -> TurnEnd {
        let recorded = self.flush.take().map_or(0, |(n, _)| n);
        self.retry_at = None;
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
                // Waits as long as the successes have waited.
                let now = Instant::now();
                self.retry_at = self.since.map(|since| now + (now - since).min(MAX_RETRY_DELAY));
                return TurnEnd::Stays;
            }
            Some(Settled::Ended(end)) => end,
            None => TurnEnd::Lost, // The settler panicked.
        };
        if end != TurnEnd::Lost {
            self.successes.drain(..recorded);
            self.mark_recorded(recorded);
            self.since = None;
        }
        end
    }

    /// Counts the last job of the turn, and the successes that were settled with it.
    fn count_settled(&mut self, end: TurnEnd, last: &mut RunningAttempt<'_>) {
        match end {
            TurnEnd::Finished | TurnEnd::Drained | TurnEnd::Stays => {
                last.mark_finished();
                self.mark_recorded(self.counted.len());
            }
            // It was told with its record.
            TurnEnd::FirstOnly => self.mark_finished(1),
            TurnEnd::Released => last.mark_released(),
            TurnEnd::Lost => {}
        }
    }

    /// Counts and tells the first `recorded` successes.
    fn mark_recorded(&mut self, recorded: usize) {
        self.mark_finished(recorded);
        self.facts.drain(..recorded).for_each(|facts| facts.tell_success());
    }

    /// Counts the first `recorded` successes.
    fn mark_finished(&mut self, recorded: usize) {
        self.counted.drain(..recorded).for_each(|mut counted| counted.mark_finished());
    }

    async fn answer(&mut self) -> Option<Settled> {
        match &mut self.flush {
            Some((_, answer)) => answer.await.ok(),
            None => std::future::pending().await,
        }
    }
}

impl ClaimedTurn {
    /// Extends the claim's lease from now on. `asked_at` is when the claim was sent.
    pub(crate) fn guard_lease(
        &mut self,
        first: Option<&LoadedJob>,
        asked_at: Instant,
    ) -> LeaseGuard {
        let time = first.and_then(|first| first.lease).unwrap_or(self.queue.options.hold.lease());
        self.lease = Some(time);
        self.extend_lease(time, asked_at)
    }

    /// Runs the jobs of the turn to their ends.
    pub(crate) async fn into_end_leased(
        mut self,
        mut jobs: VecDeque<LoadedJob>,
        pool: PgPool,
        mut lease_guard: LeaseGuard,
        slot: SlotGuard,
    ) {
        let mut slot = Some(slot);
        let context = Arc::clone(&self.context);
        let Some(time) = self.lease else { return };
        let mut pending = PendingSuccesses::default();
        while let Some(loaded) = jobs.pop_front() {
            let mut counted = context.counters.begin();
            let signals = lease_guard.signals.clone();
            let guard = self.leased_guard(time, lease_guard, Some(pool.clone()));
            self.begin_attempt(&loaded);
            let mut job = self.active_job(&loaded, guard);
            let begun = Instant::now();
            let (result, clean) =
                self.handle_and_record(&mut job, &loaded, &signals, &mut pending).await;
            let handled = begun.elapsed();
            self.handled += handled;
            self.queue.time_slice.record(handled, handled);
            let unrecorded = Unrecorded::from(result);
            // The next job would begin before the database says that the group is paused.
            pending.last |= job.rests.load(Ordering::Relaxed);
            let stays = !pending.last && !signals.lost.is_cancelled() && self.stays(&unrecorded);
            match (job.guard, unrecorded) {
                (HoldGuard::Leased(lease), Unrecorded::Outcome(Outcome::Succeeded { result }))
                    if stays =>
                {
                    pending.add(self.success(result), counted, self.facts.clone());
                    // If the next job kills the process, the take-over of a job with a single
                    // attempt has none left.
                    if (job.max_attempts < 2 || pending.must_be_recorded())
                        && self.record_now(&mut pending, &signals).await != TurnEnd::Stays
                    {
                        return;
                    }
                    lease_guard = lease.guard;
                }
                (guard, unrecorded) => {
                    // A success that is being recorded now may be recorded twice, which changes
                    // nothing.
                    self.earlier = std::mem::take(&mut pending.successes);
                    self.earlier_facts.clone_from(&pending.facts);
                    self.last = !stays;
                    let asked_at = Instant::now();
                    if matches!(guard, HoldGuard::Leased(_)) {
                        job.slot = slot.take();
                    }
                    job.guard = guard;
                    let (end, _) = self.settle(job, &signals, unrecorded, clean).await;
                    pending.count_settled(end, &mut counted);
                    if end != TurnEnd::Stays {
                        return;
                    }
                    self.earlier.clear();
                    self.earlier_facts.clear();
                    pending = PendingSuccesses::default();
                    lease_guard = self.extend_lease(time, asked_at);
                }
            }
            if !self.claim.advance() {
                return;
            }
            lease_guard.pass_to(self.claim.job);
        }
    }

    /// Returns the hold of the turn's next job: the claim under its lease. Without a pool the job
    /// gets no transaction.
    pub(crate) fn leased_guard(
        &self,
        time: Duration,
        guard: LeaseGuard,
        pool: Option<PgPool>,
    ) -> HoldGuard {
        HoldGuard::Leased(Lease {
            context: Arc::clone(&self.context),
            pool,
            claim: self.claim.clone(),
            time,
            guard,
            waits: Arc::default(),
            record_first: None,
        })
    }

    /// Returns the success of the turn's job, which ended just now.
    fn success(&self, result: String) -> UnrecordedSuccess {
        UnrecordedSuccess {
            job: self.claim.job,
            result,
            began: self.claim.began,
            ended: Some(std::time::Instant::now()),
        }
    }

    /// Extends the claim's lease from now on, which also makes the claim known.
    pub(crate) fn extend_lease(&self, lease: Duration, asked_at: Instant) -> LeaseGuard {
        let claim = LeasedClaim {
            job: self.claim.job,
            ungrouped: self.claim.group.is_none(),
            followers: self.claim.followers.clone(),
            token: self.claim.token,
            lease: lease.as_secs_f64(),
        };
        self.context.leases.keep(claim, lease, asked_at)
    }

    /// Runs the handler, and has earlier successes recorded when they are due.
    async fn handle_and_record(
        &self,
        job: &mut ActiveJob,
        loaded: &LoadedJob,
        signals: &Signals,
        pending: &mut PendingSuccesses<'_>,
    ) -> (RunResult, bool) {
        if signals.cancel.is_cancelled() {
            // The request to cancel came before the job's turn.
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
        // The handler's first `tx()` waits for this answer.
        let mut first: Option<oneshot::Sender<()>> = None;
        let mut run = std::pin::pin!(self.handle(job, loaded, signals));
        loop {
            if pending.flush.is_none()
                && (pending.successes.is_empty() || pending.last)
                && let Some(first) = first.take()
            {
                // The handler may have been told to stop meanwhile.
                let _ = first.send(());
            }
            let mut due = pending.due_at();
            if first.is_some() {
                due = due.map(|_| Instant::now());
            }
            let due = due.map(|due| pending.retry_at.map_or(due, |at| at.max(due)));
            tokio::select! {
                biased;
                ended = &mut run => return ended,
                Some(asks) = asked.recv() => first = Some(asks),
                answer = pending.answer() => {
                    if pending.apply_answer(answer) == TurnEnd::Lost {
                        signals.lost.cancel();
                    }
                    pending.since.get_or_insert(began);
                    if first.is_some() && pending.retry_at.is_some() {
                        pending.retry_at = Some(Instant::now() + RETRY_SKIPPED);
                    }
                }
                () = sleep_until(due.unwrap_or(began)), if due.is_some() => self.flush(pending, signals, false),
            }
        }
    }

    /// Records all pending successes before the next handler begins. Reports a claim that is lost.
    async fn record_now(&self, pending: &mut PendingSuccesses<'_>, signals: &Signals) -> TurnEnd {
        loop {
            self.flush(pending, signals, true);
            let answer = pending.answer().await;
            let end = pending.apply_answer(answer);
            if end == TurnEnd::Lost {
                self.report_claim_lost();
            }
            if end != TurnEnd::Stays || pending.retry_at.is_none() {
                return end;
            }
            sleep(RETRY_SKIPPED).await;
        }
    }

    /// Sends the pending successes to the settler. The turn goes on, unless no handler runs and the
    /// queue or the group is paused.
    fn flush(&self, pending: &mut PendingSuccesses<'_>, signals: &Signals, idle: bool) {
        let mut run = self.clone();
        run.idle = idle;
        run.earlier.clone_from(&pending.successes);
        let Some(last) = pending.successes.last() else { return };
        // The settle locks this job's row beside the group's row.
        run.claim.job = last.job;
        let (answer, settled) = oneshot::channel();
        let unrecorded = Unrecorded::EarlierOnly;
        let signals = signals.clone();
        let since = Instant::now();
        let finished =
            Finished { run, unrecorded, guard: None, signals, since, failed: None, answer };
        pending.flush = Some((pending.successes.len(), settled));
        let settler = self.queue.settler.clone();
        tokio::spawn(async move {
            // The settler outlives the slots, unless the runtime ends.
            let _ = settler.send(finished).await;
        });
    }
}
