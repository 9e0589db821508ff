//! One queue in one process: wait, claim, start.
//!
//! It uses `attempt` and everything below it. The work inside a slot belongs in `attempt`.

mod claim;
mod connections;
mod cursor;
mod destination;
mod orphans;
mod prefetch;
mod recheck;
mod slot;
mod state;
mod wait;
pub(crate) mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::liveness::supervised::supervised;

use self::state::WorkerState;
use self::wait::Pause;
use self::worker::Worker;

/// How long to wait for our presence to be registered before claiming leases without it.
const UNANNOUNCED: Duration = Duration::from_secs(5);

impl Worker {
    /// Runs the loop of the queue; again if it panics. The claims that it had then are lost: their
    /// handlers are dropped with its slots.
    pub(crate) async fn run_supervised(self) {
        let task = format!("the loop of queue {:?}", &*self.queue.name);
        let begun = AtomicBool::new(false);
        let run = || async {
            // After a panic it has claims that nobody knows.
            let again = begun.swap(true, Ordering::Relaxed);
            self.queue.left_claim.fetch_or(again, Ordering::Relaxed);
            self.run().await;
        };
        supervised(&self.context, &task, &self.stop, run).await;
    }

    /// Runs until it is told to stop and all slots are empty.
    pub(crate) async fn run(&self) {
        tokio::select! {
            _ = self.context.pooler_state.has_transactions() => {}
            () = self.stop.cancelled() => {}
        }
        tokio::select! {
            () = self.context.schema.opened() => {}
            () = self.stop.cancelled() => {}
        }
        if self.leased() {
            // Before that, a death would not be suspected: its claims would stand for the whole
            // lease.
            tokio::select! {
                () = self.context.leases.announced.cancelled() => {}
                () = sleep(UNANNOUNCED) => {}
                () = self.stop.cancelled() => {}
            }
        }
        let mut state = WorkerState::new(&self.queue.options, &self.wake, &self.vitals);
        let prefetch = Arc::clone(&state.prefetch);
        self.warm_up(&mut state).await;
        tokio::select! {
            () = self.work(&mut state) => {}
            () = prefetch.release_stale() => {}
        }
        state.spare.clear();
        state.coming.detach_all();
        prefetch.close().await;
        while let Some(ended) = state.slots.join_next().await {
            self.take_back(&mut state, ended);
        }
    }

    /// Claims and waits in turns until it is told to stop.
    async fn work(&self, state: &mut WorkerState) {
        while !self.stop.is_cancelled() {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.context.schema.opened() => {}
            }
            self.suspect_orphans(state).await;
            self.start_prefetched(state);
            let reserved = self.reserve(state);
            state.all_taken = false;
            state.recheck.begin_claim(Instant::now());
            let pause = if reserved.count() == 0 && !self.may_prefetch(state) {
                state.recheck.clear();
                Pause::UntilFree
            } else if !self.may_claim() {
                // Others may use the slots and the connections meanwhile.
                drop(reserved);
                state.keep_spare(0);
                Pause::For(self.poll)
            } else {
                self.claim_and_start(state, reserved).await
            };
            self.wait(state, pause).await;
        }
    }
}
