//! Time without that in which the machine stood still.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the thread that watches sleeps.
const SLEEP: Duration = Duration::from_millis(20);
/// A thread wakes up so late on a machine that has much to do.
const LATE: Duration = Duration::from_millis(10);

/// For how many microseconds the machine has stood still since it is watched.
static STOOD_STILL: LazyLock<&AtomicU64> = LazyLock::new(|| {
    let stood_still = &*Box::leak(Box::<AtomicU64>::default());
    std::thread::spawn(move || {
        loop {
            let begun = Instant::now();
            std::thread::sleep(SLEEP);
            if let Some(late) = begun.elapsed().checked_sub(SLEEP + LATE) {
                let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
                stood_still.fetch_add(late, Ordering::Relaxed);
            }
        }
    });
    stood_still
});

/// A moment. The time since then is the product's: a thread that only sleeps counts the time in
/// which the machine ran nobody, or others.
#[derive(Debug, Clone, Copy)]
pub struct AwakeInstant {
    at: Instant,
    stood_still: u64,
}

impl AwakeInstant {
    pub fn now() -> Self {
        Self { at: Instant::now(), stood_still: STOOD_STILL.load(Ordering::Relaxed) }
    }

    pub fn elapsed(&self) -> Duration {
        let stood_still = STOOD_STILL.load(Ordering::Relaxed) - self.stood_still;
        self.at.elapsed().saturating_sub(Duration::from_micros(stood_still))
    }
}

#[test]
fn time_in_which_the_machine_stands_still_does_not_count() {
    let (all, begun) = (Instant::now(), AwakeInstant::now());
    std::thread::sleep(Duration::from_millis(100));
    assert!(begun.elapsed() <= all.elapsed());
    STOOD_STILL.fetch_add(50_000, Ordering::Relaxed);
    assert!(begun.elapsed() + Duration::from_millis(50) <= all.elapsed());
}
