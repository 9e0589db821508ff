//! A processor at work: its jobs, their time, and whether they ran in order.

use std::sync::Arc;
use std::time::Duration;

use seriatim::Running;
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::figures::float;
use crate::handler::{Shown, now};
use crate::scene::Scene;
use crate::settings::Way;

/// Interval at which the witness is polled.
const INTERVAL: Duration = Duration::from_millis(1);
/// If no job began for so long, something is broken.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct Work {
    shown: Arc<Shown>,
    running: Running,
}

/// From the start of the first handler on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) jobs: u64,
    pub(crate) seconds: f64,
}

impl Measured {
    pub(crate) fn rate(self) -> f64 {
        float(self.jobs) / self.seconds
    }
}

impl Work {
    pub(crate) async fn start(scene: &Scene, way: Way, shown: &Arc<Shown>) -> Result<Self> {
        let running = scene.start(way, Arc::clone(shown)).await?;
        Ok(Self { shown: Arc::clone(shown), running })
    }

    /// Waits until `jobs` have ended, for at most `cap` from the first start on.
    pub(crate) async fn until(&self, jobs: u64, cap: Duration) -> Result<Measured> {
        let witness = &self.shown.witness;
        let began = Instant::now();
        let first = loop {
            if let Some(first) = witness.first() {
                break first;
            }
            if began.elapsed() > PATIENCE {
                return Err("no job was started in a minute".into());
            }
            sleep(INTERVAL).await;
        };
        let end = first + u64::try_from(cap.as_micros()).unwrap_or(u64::MAX);
        while witness.finished() < jobs && now() < end {
            sleep(INTERVAL).await;
        }
        let finished = witness.finished();
        // The last handler of a whole backlog ended some time before this poll.
        let last = if finished == jobs { witness.last() } else { now() };
        let seconds = float(last.saturating_sub(first).max(1)) / 1e6;
        Ok(Measured { jobs: finished, seconds })
    }

    /// Ends the processor. Checks order and overlap, and that each of the `loaded` jobs has ended
    /// or is still there.
    pub(crate) async fn end(self, scene: &Scene, loaded: u64) -> Result<()> {
        self.running.shutdown(Duration::from_secs(20)).await;
        let witness = &self.shown.witness;
        witness.verdict()?;
        if witness.repeated() > 0 {
            let repeated = witness.repeated();
            eprintln!("{repeated} jobs ran again, their holds were lost: the machine is too busy");
        }
        let (left, ran) = (scene.unfinished().await?, witness.finished());
        if left + ran + witness.strangers() != loaded || witness.started() != ran {
            let began = witness.started();
            return Err(format!(
                "of {loaded} jobs {left} are left, but {began} handlers began and {ran} ended"
            )
            .into());
        }
        Ok(())
    }
}
