//! Time without the stalls of the machine.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the thread that watches sleeps.
const SLEEP: Duration = Duration::from_millis(20);
/// A thread wakes up so late on a machine that has much to do.
const LATE: Duration = Duration::from_millis(10);

/// The microseconds of all stalls since the thread watches.
static STALLED: AtomicU64 = AtomicU64::new(0);
static WATCHES: Once = Once::new();

fn stalled() -> u64 {
    WATCHES.call_once(|| {
        std::thread::spawn(|| {
            loop {
                let begun = Instant::now();
                std::thread::sleep(SLEEP);
                if let Some(late) = begun.elapsed().checked_sub(SLEEP + LATE) {
                    let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
                    STALLED.fetch_add(late, Ordering::Relaxed);
                }
            }
        });
    });
    STALLED.load(Ordering::Relaxed)
}

/// A moment from which time counts for the product alone: a stall of the machine does not count. A
/// thread that only sleeps measures the stalls, by how late it wakes up.
#[derive(Debug, Clone, Copy)]
pub struct AwakeInstant {
    at: Instant,
    stalled: u64,
}

impl AwakeInstant {
    pub fn now() -> Self {
        Self { at: Instant::now(), stalled: stalled() }
    }

    pub fn elapsed(&self) -> Duration {
        let stalled = Duration::from_micros(stalled() - self.stalled);
        self.at.elapsed().saturating_sub(stalled)
    }
}

#[test]
fn a_stall_of_the_machine_does_not_count() {
    let (all, begun) = (Instant::now(), AwakeInstant::now());
    std::thread::sleep(Duration::from_millis(100));
    assert!(begun.elapsed() <= all.elapsed());
    STALLED.fetch_add(50_000, Ordering::Relaxed);
    assert!(begun.elapsed() + Duration::from_millis(50) <= all.elapsed());
}
