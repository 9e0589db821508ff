//! The handler, which only shows its jobs to the witness.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use seriatim::{ActiveJob, JobError, JobHandler, async_trait};

use crate::witness::{Job, Witness};

static BEGIN: OnceLock<Instant> = OnceLock::new();

/// Returns microseconds since the first call, by a clock that never goes back.
pub(crate) fn now() -> u64 {
    let since = BEGIN.get_or_init(Instant::now).elapsed();
    // From 1: 0 is a job that was loaded.
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX) + 1
}

/// Returns the start of this process's [`now`], for another process that is to count from there.
pub(crate) fn zero() -> Duration {
    unix_time().saturating_sub(BEGIN.get_or_init(Instant::now).elapsed())
}

/// Makes [`now`] count from another process's [`zero`], if it has not been called yet.
pub(crate) fn counts_from(zero: Duration) {
    let since = unix_time().saturating_sub(zero);
    BEGIN.get_or_init(|| Instant::now().checked_sub(since).unwrap_or_else(Instant::now));
}

fn unix_time() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Shows each job to the witness.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) witness: Arc<Witness>,
    /// For each job that was enqueued alone: its time, and its delay until this handler. In
    /// microseconds.
    delays: Mutex<Vec<(u64, u64)>>,
    work: Duration,
    /// The time that handlers took, in microseconds.
    took: AtomicU64,
}

impl Shown {
    /// Returns a handler that runs for `work` microseconds.
    pub(crate) fn to(witness: Witness, work: u64) -> Arc<Self> {
        let work = Duration::from_micros(work);
        let took = AtomicU64::new(0);
        Arc::new(Self { witness: Arc::new(witness), delays: Mutex::default(), work, took })
    }

    /// Returns the time that all handlers took, in microseconds.
    pub(crate) fn took(&self) -> u64 {
        self.took.load(Ordering::Relaxed)
    }

    /// Returns the delays of jobs enqueued from `since` on.
    pub(crate) fn delays(&self, since: u64) -> Vec<u64> {
        let delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        delays.iter().filter(|(t, _)| *t >= since).map(|(_, delay)| *delay).collect()
    }

    /// Returns all delays since the last call.
    pub(crate) fn take_delays(&self) -> Vec<u64> {
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *delays).into_iter().map(|(_, delay)| delay).collect()
    }
}

#[async_trait]
impl JobHandler for Shown {
    type Data = Job;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, active: &mut ActiveJob, job: Job) -> Result<(), JobError> {
        let began = now();
        let run = self.witness.start(job, active.attempt(), began);
        if job.t > 0 {
            let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
            delays.push((job.t, began.saturating_sub(job.t)));
        }
        if self.work.is_zero() {
            // Lets another handler that has this group by mistake run now.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(self.work).await;
        }
        let ended = now();
        self.took.fetch_add(ended.saturating_sub(began), Ordering::Relaxed);
        run.finish(ended);
        Ok(())
    }
}
