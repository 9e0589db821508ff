//! The ends of a worker's wait: a wake-up, the end of a job, the time when the next job is due, or
//! the poll (0.5 s).
//!
//! A success that drained its group ends no wait if the last claim took all that was ready: a claim
//! would find no job. It does if the queue shares its slots, or if the handler used its
//! transaction, in which it may have enqueued. So a lone quick job costs a claim, a hold, a settle
//! and one recheck, which is a look unless something is due.
//!
//! Tests: `wake_ups::*`.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::attempt::turn::TurnEnd;
use crate::job::stall::Activity;
use crate::liveness::shared_poll::{PollHandle, PollTarget};
use crate::worker::state::WorkerState;
use crate::worker::worker::Worker;

/// How long a worker waits for more slots to end before a claim that is known to find more jobs
/// than it has slots.
const GATHER: Duration = Duration::from_millis(1);
/// Bounds the time between a worker's own polls, in a process with few queues: only they show that
/// its connection lives, and they need no presence.
const OWN_POLL: Duration = Duration::from_secs(30);
/// How long a worker waits without a wake-up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pause {
    /// No slot is free.
    UntilFree,
    For(Duration),
    /// No job is due before `next`, as far as the last claim saw.
    Poll {
        next: Option<Duration>,
    },
}

impl Worker {
    /// Waits for a slot to end or to be given, a wake-up, the pause, or the stop.
    pub(crate) async fn wait(&self, state: &mut WorkerState, pause: Pause) {
        self.heartbeat.begin_step(Activity::Waiting);
        let room = self.free(state) > 0;
        let now = Instant::now();
        let (mut until, next, poll_handle) = match pause {
            Pause::UntilFree => (None, None, None),
            Pause::For(pause) => (Some(now + pause), None, None),
            Pause::Poll { next } => {
                // Spread, so that many processes do not poll in step.
                let poll = self.poll.mul_f64(0.9 + fastrand::f64() * 0.1);
                let soon = next.filter(|next| *next < poll);
                let poll_handle = if soon.is_none() { self.register_poll(state) } else { None };
                let next = next.and_then(|next| now.checked_add(next));
                (Some(now + soon.unwrap_or(poll)), next, poll_handle)
            }
        };
        // The next claim is at the shared poll's time, at the worker's own, or when the next job is
        // due.
        let own = self.context.shared_poll.own_poll(OWN_POLL.max(self.poll));
        let own = now + own.mul_f64(0.7 + fastrand::f64() * 0.3);
        let later = |poll_handle: &PollHandle| {
            let until = poll_handle.poll_at().min(own);
            next.map_or(until, |next| next.min(until))
        };
        // Connections that were kept while jobs followed each other.
        let idle = matches!(pause, Pause::Poll { .. });
        let trim = |state: &WorkerState| state.trim_at(Instant::now()).filter(|_| idle);
        let mut trim_at = trim(state);
        state.recheck.ended_wait = false;
        loop {
            let recheck_at =
                state.orphan_checks.into_iter().chain([state.recheck.at()]).flatten().min();
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                Some(ended) = state.slots.join_next() => {
                    let end = self.take_back(state, ended);
                    self.start_prefetched(state);
                    // In a queue with a limit each end may let another group start.
                    if end == TurnEnd::Drained && state.all_taken && !state.limited {
                        state.keep_spare(self.spares(state));
                        trim_at = trim(state);
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
                    state.keep_spare(self.spares(state));
                    trim_at = trim(state);
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
                () = sleep_until(recheck_at.unwrap_or(now)), if recheck_at.is_some() => {
                    state.recheck.ended_wait = true;
                }
            }
            break;
        }
        while let Some(ended) = state.slots.try_join_next() {
            self.take_back(state, ended);
        }
        if state.busy && state.prefetch.is_empty() {
            self.gather(state).await;
        }
    }

    /// Registers the queue for the shared poll. `None` if the last claim did not read all, or read
    /// for long.
    fn register_poll(&self, state: &WorkerState) -> Option<PollHandle> {
        let target = || PollTarget::Queue(self.queue.name.to_string());
        let polls = &self.context.shared_poll;
        let register = || polls.register(target(), Instant::now(), self.poll, polls.late());
        state.cursor.short_read().then(register).flatten()
    }

    /// Waits for more slots to end, up to half of them: a claim of many costs little more than a
    /// claim of one.
    async fn gather(&self, state: &mut WorkerState) {
        let until = Instant::now() + GATHER;
        while state.slot_usage.taken() > self.queue.options.concurrency / 2 {
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = state.slot_usage.freed() => {}
                Some(ended) = state.slots.join_next() => {
                    self.take_back(state, ended);
                }
                () = sleep_until(until) => break,
            }
        }
    }
}

/// Waits for a change of the shared poll; for ever if the queue is not registered.
async fn changed(poll_handle: Option<&PollHandle>) {
    match poll_handle {
        Some(poll_handle) => poll_handle.changed().await,
        None => std::future::pending().await,
    }
}
