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

use crate::attempt::active_job::{ActiveJob, Keeper, Lease};
use crate::attempt::failure::lost_lease;
use crate::attempt::hold::RETRY_SKIPPED;
use crate::attempt::run::{End, Run};
use crate::attempt::settle::Late;
use crate::attempt::settle_batch::{Finished, Settled};
use crate::job::outcome::RunResult;
use crate::liveness::leases::Kept;
use crate::liveness::sessions::Signals;
use crate::liveness::shutdown::Counted;
use crate::slots::queue_slots::Occupied;
use crate::store::{Done, HeldJob, LeasedClaim};

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
struct Unrecorded<'a> {
    done: Vec<Done>,
    counted: Vec<Counted<'a>>,
    /// When the first handler began whose job is not recorded.
    since: Option<Instant>,
    /// How many of them are being recorded, and the answer.
    flush: Option<(usize, oneshot::Receiver<Settled>)>,
    /// When the next try may be made beside a handler, after one that found a row locked.
    again: Option<Instant>,
    /// The turn ends with the job that runs: somebody paused the queue or the group, or the database refused a success.
    last: bool,
}

impl Unrecorded<'_> {
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
    fn answered(&mut self, settled: Option<Settled>) -> End {
        let recorded = self.flush.take().map_or(0, |(n, _)| n);
        self.again = None;
        let end = match settled {
            Some(Settled::Stays { paused }) => {
                self.last |= paused;
                End::Stays
            }
            Some(Settled::Refused) => {
                self.last = true;
                return End::Stays;
            }
            Some(Settled::Skipped) => {
                // As long as they have waited.
                let now = Instant::now();
                self.again = self.since.map(|since| now + (now - since).min(SKIPPED));
                return End::Stays;
            }
            Some(Settled::Ended(end)) => end,
            None => End::Lost,
        };
        if end != End::Lost {
            self.done.drain(..recorded);
            self.counted.drain(..recorded).for_each(|mut counted| counted.finished());
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

impl Run {
    /// Keeps the claim by its lease, which was asked for at `asked_at`, from now on.
    pub(crate) fn kept(&mut self, held: &HashMap<i64, HeldJob>, asked_at: Instant) -> Kept {
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
        mut kept: Kept,
        slot: Occupied,
    ) {
        let mut slot = Some(slot);
        let shared = Arc::clone(&self.shared);
        let Some(time) = self.lease else { return };
        let mut unrecorded = Unrecorded::default();
        while let Some(held) = held.remove(&self.claim.job) {
            let mut counted = shared.counters.begin();
            let signals = kept.signals.clone();
            let keeper = Keeper::Lease(Lease {
                shared: Arc::clone(&shared),
                pool: pool.clone(),
                claim: self.claim.clone(),
                time,
                kept,
                record_first: None,
            });
            let mut job = self.active(&held, keeper);
            let (result, clean) =
                self.handle_and_record(&mut job, &held, &signals, &mut unrecorded).await;
            let stays = !unrecorded.last && !signals.lost.is_cancelled() && self.stays(&result);
            match (job.keeper, result) {
                (Keeper::Lease(lease), RunResult::Succeeded(result)) if stays => {
                    unrecorded.done.push(Done { job: self.claim.job, result });
                    unrecorded.counted.push(counted);
                    // If the next one kills the process, a take-over has no attempt left for it.
                    let due = job.max_attempts < 2
                        || unrecorded.due().is_some_and(|due| due <= Instant::now());
                    if due || unrecorded.are_many() {
                        match self.record_now(&mut unrecorded, &signals).await {
                            End::Stays => {}
                            End::Lost => {
                                self.lost();
                                return;
                            }
                            End::Finished | End::Drained | End::Released => return,
                        }
                    }
                    kept = lease.kept;
                }
                (keeper, result) => {
                    // What is being recorded at this moment may be recorded twice, which changes nothing.
                    self.done = std::mem::take(&mut unrecorded.done);
                    self.last = !stays;
                    let asked_at = Instant::now();
                    if matches!(keeper, Keeper::Lease(_)) {
                        job.slot = slot.take();
                    }
                    job.keeper = keeper;
                    let (end, _) = self.settle(job, held, &signals, result, clean).await;
                    match end {
                        End::Finished | End::Drained | End::Stays => {
                            counted.finished();
                            unrecorded.counted.drain(..).for_each(|mut counted| counted.finished());
                        }
                        End::Released => counted.released(),
                        End::Lost => {}
                    }
                    if end != End::Stays {
                        return;
                    }
                    self.done.clear();
                    unrecorded = Unrecorded::default();
                    kept = self.keep(time, asked_at);
                }
            }
            if !self.claim.advance() {
                return;
            }
            kept.turn_to(self.claim.job);
        }
    }

    fn keep(&self, lease: Duration, asked_at: Instant) -> Kept {
        let claim = LeasedClaim {
            job: self.claim.job,
            loose: self.claim.group.is_none(),
            behind: self.claim.behind.clone(),
            token: self.claim.token,
            lease: lease.as_secs_f64(),
        };
        self.shared.leases.keep(claim, lease, asked_at)
    }

    /// Runs the handler, and has what was done before recorded when that is due.
    async fn handle_and_record(
        &self,
        job: &mut ActiveJob,
        held: &HeldJob,
        signals: &Signals,
        unrecorded: &mut Unrecorded<'_>,
    ) -> (RunResult, bool) {
        if signals.cancel.is_cancelled() {
            // Somebody asked for it before its turn came.
            return (RunResult::Cancelled, true);
        }
        let began = Instant::now();
        if let Keeper::Lease(lease) = &job.keeper
            && !lease.kept.stands(began)
        {
            return (lost_lease(), false);
        }
        unrecorded.since.get_or_insert(began);
        let (ask, mut asked) = mpsc::unbounded_channel();
        if let Keeper::Lease(lease) = &mut job.keeper {
            lease.record_first = Some(ask);
        }
        // The handler waits for that, with its first `tx()`.
        let mut first: Option<oneshot::Sender<()>> = None;
        let mut run = std::pin::pin!(self.handle(job, held, signals));
        loop {
            if unrecorded.flush.is_none()
                && (unrecorded.done.is_empty() || unrecorded.last)
                && let Some(first) = first.take()
            {
                // Its handler may have been told to stop meanwhile.
                let _ = first.send(());
            }
            let mut due = unrecorded.due();
            if first.is_some() {
                due = due.map(|_| Instant::now());
            }
            let due = due.map(|due| unrecorded.again.map_or(due, |at| at.max(due)));
            tokio::select! {
                biased;
                ended = &mut run => return ended,
                Some(asks) = asked.recv() => first = Some(asks),
                answer = unrecorded.answer() => {
                    if unrecorded.answered(answer) == End::Lost {
                        signals.lost.cancel();
                    }
                    unrecorded.since.get_or_insert(began);
                    if first.is_some() && unrecorded.again.is_some() {
                        unrecorded.again = Some(Instant::now() + RETRY_SKIPPED);
                    }
                }
                () = sleep_until(due.unwrap_or(began)), if due.is_some() => self.flush(unrecorded, signals, false),
            }
        }
    }

    /// Has all that is done recorded before the next handler begins.
    async fn record_now(&self, unrecorded: &mut Unrecorded<'_>, signals: &Signals) -> End {
        loop {
            self.flush(unrecorded, signals, true);
            let answer = unrecorded.answer().await;
            let end = unrecorded.answered(answer);
            if end != End::Stays || unrecorded.again.is_none() {
                return end;
            }
            sleep(RETRY_SKIPPED).await;
        }
    }

    /// Has what is done recorded; the turn goes on, unless no handler runs and somebody paused the queue or the group.
    fn flush(&self, unrecorded: &mut Unrecorded<'_>, signals: &Signals, idle: bool) {
        let mut run = self.clone();
        run.idle = idle;
        run.done.clone_from(&unrecorded.done);
        let Some(last) = unrecorded.done.last() else { return };
        // Its row is the one that the settle locks beside the group's.
        run.claim.job = last.job;
        let (answer, settled) = oneshot::channel();
        let late = Late(None, None);
        let signals = signals.clone();
        let since = Instant::now();
        let finished = Finished { run, late, kept: None, signals, since, answer };
        unrecorded.flush = Some((unrecorded.done.len(), settled));
        let settler = self.queue.settler.clone();
        tokio::spawn(async move {
            // The settler outlives the slots, unless the runtime ends.
            let _ = settler.send(finished).await;
        });
    }
}
