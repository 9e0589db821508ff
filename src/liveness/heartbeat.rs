//! The heartbeat of a loop: shows the watchdog that the loop is polled, and what it does.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::job::stall::{Activity, LoopSample, LoopState};

/// The heartbeat of one loop. Each field is read by itself: nothing depends on their order.
#[derive(Debug, Default)]
pub(crate) struct LoopHeartbeat {
    polls: AtomicU64,
    steps: AtomicU64,
    doing: AtomicU8,
    life: AtomicU8,
}

const OVER: u8 = 1;
const PANICKED: u8 = 2;

/// Records the end of a loop when dropped: it returned, its runtime ended, or it panicked.
struct Alive<'a> {
    heartbeat: &'a LoopHeartbeat,
    in_poll: bool,
}

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        let how = if self.in_poll { PANICKED } else { OVER };
        self.heartbeat.life.store(how, Ordering::Relaxed);
    }
}

impl LoopHeartbeat {
    /// Records that the loop begins a step.
    pub(crate) fn begin_step(&self, doing: Activity) {
        self.doing.store(doing as u8, Ordering::Relaxed);
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sample(&self) -> LoopSample {
        LoopSample {
            polls: self.polls.load(Ordering::Relaxed),
            steps: self.steps.load(Ordering::Relaxed),
            doing: Activity::from_number(self.doing.load(Ordering::Relaxed)),
            life: match self.life.load(Ordering::Relaxed) {
                OVER => LoopState::Over,
                PANICKED => LoopState::Panicked,
                _ => LoopState::Alive,
            },
        }
    }

    /// Runs a loop and polls it at least once per `interval`, so that a waiting loop shows that it
    /// could go on.
    pub(crate) async fn run<T>(
        self: Arc<Self>,
        interval: Duration,
        work: impl Future<Output = T>,
    ) -> T {
        let mut alive = Alive { heartbeat: &self, in_poll: false };
        let mut work = pin!(work);
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        poll_fn(|context| {
            self.polls.fetch_add(1, Ordering::Relaxed);
            while ticks.poll_tick(context).is_ready() {}
            alive.in_poll = true;
            let polled = work.as_mut().poll(context);
            alive.in_poll = false;
            polled
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_waiting_loop_is_polled_until_it_is_over() {
        let heartbeat = Arc::new(LoopHeartbeat::default());
        let waits =
            Arc::clone(&heartbeat).run(Duration::from_millis(5), std::future::pending::<()>());
        let waits = tokio::spawn(waits);
        let polled = async {
            while heartbeat.sample().polls < 5 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), polled).await.unwrap();
        assert_eq!(heartbeat.sample().life, LoopState::Alive);
        waits.abort();
        waits.await.unwrap_err();
        assert_eq!(heartbeat.sample().life, LoopState::Over);
    }

    #[tokio::test]
    async fn a_panic_is_told_from_an_end() {
        let heartbeat = Arc::new(LoopHeartbeat::default());
        let fails =
            Arc::clone(&heartbeat).run(Duration::from_secs(1), async { panic!("as asked") });
        std::panic::AssertUnwindSafe(fails).catch_unwind().await.unwrap_err();
        assert_eq!(heartbeat.sample().life, LoopState::Panicked);
        let heartbeat = Arc::new(LoopHeartbeat::default());
        Arc::clone(&heartbeat).run(Duration::from_secs(1), async {}).await;
        assert_eq!(heartbeat.sample().life, LoopState::Over);
    }
}
