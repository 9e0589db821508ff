//! What ends a wait of a worker.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::attempt::turn::TurnEnd;
use crate::job::stall::Activity;
use crate::liveness::shared_poll::{LATE, PollHandle, PollTarget};
use crate::slots::queue_slots::QUICK;
use crate::worker::connections::KEPT;
use crate::worker::state::WorkerState;
use crate::worker::worker::Worker;

/// How long a claim that is known to find more work than it has slots for waits for further slots to end.
const GATHER: Duration = Duration::from_millis(1);
/// How long others may look for a worker: its own look shows whether its connection still lives, and needs no presence.
const OWN_LOOK: Duration = Duration::from_secs(30);
/// How long a worker waits that is not called.
#[derive(Debug, Clone, Copy)]
pub(in crate::worker) enum Pause {
    /// No slot is free.
    UntilFree,
    For(Duration),
    /// Nothing is due, as far as it is known before then.
    Poll {
        next: Option<Duration>,
    },
}

impl Worker {
    /// Waits for a slot to end or to be given, a wake-up, the pause, or the stop.
    pub(in crate::worker) async fn wait(&self, state: &mut WorkerState, pause: Pause) {
        self.heartbeat.begin_step(Activity::Waiting);
        let room = self.free(state) > 0;
        let now = Instant::now();
        let (mut until, next, poll_handle) = match pause {
            Pause::UntilFree => (None, None, None),
            Pause::For(pause) => (Some(now + pause), None, None),
            Pause::Poll { next } => {
                // A little apart, so that many processes do not poll in step.
                let poll = self.poll.mul_f64(0.9 + fastrand::f64() * 0.1);
                let soon = next.filter(|next| *next < poll);
                let poll_handle = if soon.is_none() { self.ask(state) } else { None };
                let next = next.and_then(|next| now.checked_add(next));
                (Some(now + soon.unwrap_or(poll)), next, poll_handle)
            }
        };
        // When to look, by what the process has seen meanwhile.
        let own = now + OWN_LOOK.max(self.poll).mul_f64(0.7 + fastrand::f64() * 0.3);
        let later = |poll_handle: &PollHandle| {
            let until = poll_handle.poll_at().min(own);
            next.map_or(until, |next| next.min(until))
        };
        // Connections that were kept while jobs came one after the other.
        let idle = matches!(pause, Pause::Poll { .. });
        let mut trim_at = (idle && state.spare.len() > KEPT).then(|| now + QUICK);
        loop {
            let look_at =
                state.orphan_checks.into_iter().chain([state.recheck.at()]).flatten().min();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                Some(ended) = state.slots.join_next() => {
                    let end = state.ended(ended);
                    self.start_prefetched(state);
                    if end == TurnEnd::Drained && state.all_taken {
                        state.keep_spare(self.spares(state));
                        continue;
                    }
                }
                () = state.slot_usage.freed(), if !state.all_taken || !state.prefetch.is_empty() => {
                    self.start_prefetched(state);
                    if state.all_taken {
                        continue;
                    }
                }
                () = self.slots.given(), if room => {}
                () = self.wake.notified(), if until.is_some() => {}
                () = sleep_until(trim_at.unwrap_or(now)), if trim_at.is_some() => {
                    trim_at = None;
                    state.keep_spare(self.spares(state));
                    continue;
                }
                () = changed(poll_handle.as_ref()) => {
                    until = poll_handle.as_ref().map(later);
                    continue;
                }
                () = sleep_until(until.unwrap_or(now)), if until.is_some() => {
                    let later = poll_handle.as_ref().map(later).filter(|at| *at > Instant::now());
                    if later.is_some() {
                        until = later;
                        continue;
                    }
                }
                () = sleep_until(look_at.unwrap_or(now)), if look_at.is_some() => {}
            }
            break;
        }
        while let Some(ended) = state.slots.try_join_next() {
            state.ended(ended);
        }
        if state.busy && state.prefetch.is_empty() {
            self.gather(state).await;
        }
    }

    /// Has the process look for this queue together with others, if the last claim has read all, and not for long.
    pub(in crate::worker) fn ask(&self, state: &WorkerState) -> Option<PollHandle> {
        let place = || PollTarget::Queue(self.queue.name.to_string());
        let unrecorded = LATE.mul_f64(0.5 + fastrand::f64() / 2.0);
        let ask =
            || self.context.shared_poll.register(place(), Instant::now(), self.poll, unrecorded);
        state.cursor.read_shortly().then(ask).flatten()
    }

    /// Lets more slots end, up to half of them: a claim for many costs little more than one for a single job.
    pub(in crate::worker) async fn gather(&self, state: &mut WorkerState) {
        let until = Instant::now() + GATHER;
        while state.slot_usage.taken() > self.queue.options.concurrency / 2 {
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = state.slot_usage.freed() => {}
                Some(ended) = state.slots.join_next() => {
                    state.ended(ended);
                }
                () = sleep_until(until) => break,
            }
        }
    }
}

/// Waits for a look of the process, if somebody asked for one.
async fn changed(poll_handle: Option<&PollHandle>) {
    match poll_handle {
        Some(poll_handle) => poll_handle.changed().await,
        None => std::future::pending().await,
    }
}
