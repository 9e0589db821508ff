//! Takes jobs, as a processor or as a receiver, and notes when the handlers of each group ran.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use seriatim::receive::{Receive, Received};
use seriatim::{ActiveJob, Client, JobError, JobHandler, Running, async_trait};
use sqlx::PgPool;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::handler::now;
use crate::scene::{QUEUE, Scene};
use crate::settings::Way;
use crate::witness::{Job, Witness};

/// How long a receiver waits after an empty answer.
const EMPTY: Duration = Duration::from_millis(5);
/// Interval at which starts are polled.
const INTERVAL: Duration = Duration::from_millis(1);

/// The kind of client that takes the jobs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum By {
    Processor(Way),
    Receiver,
}

impl By {
    /// Returns its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Processor(way) => way.hold(),
            Self::Receiver => "receive",
        }
    }
}

/// The handler.
#[derive(Debug)]
pub(crate) struct Starts {
    pub(crate) witness: Arc<Witness>,
    groups: Mutex<HashMap<u32, Group>>,
    /// Groups below this are the backlog's. Their handlers take this long.
    backlog: (u32, Duration),
}

/// The handlers of one group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    /// When the first began.
    pub(crate) began: u64,
    /// How many have ended, and when the last did.
    pub(crate) ended: u64,
    pub(crate) last: u64,
}

impl Starts {
    /// Returns the handler of jobs in `groups`. In the first `backlog` groups a job takes its time.
    pub(crate) fn new(groups: u32, backlog: u32, takes: Duration) -> Arc<Self> {
        let witness = Arc::new(Witness::of_groups(groups));
        Arc::new(Self { witness, groups: Mutex::default(), backlog: (backlog, takes) })
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<u32, Group>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `jobs` of a group have ended (0: until one has begun). Returns the group as it
    /// is then, or `until`; `None` if none has begun.
    pub(crate) async fn wait(&self, group: u32, jobs: u64, until: Instant) -> Option<Group> {
        loop {
            let found = self.groups().get(&group).copied();
            if found.is_some_and(|found| found.ended >= jobs) || Instant::now() >= until {
                return found;
            }
            sleep(INTERVAL).await;
        }
    }

    async fn run(&self, job: Job, attempt: u32) {
        let began = now();
        let run = self.witness.start(job, attempt, began);
        self.groups().entry(job.g).or_insert(Group { began, ended: 0, last: 0 });
        if job.g < self.backlog.0 && !self.backlog.1.is_zero() {
            sleep(self.backlog.1).await;
        }
        let last = now();
        run.finish(last);
        if let Some(group) = self.groups().get_mut(&job.g) {
            (group.ended, group.last) = (group.ended + 1, last);
        }
    }
}

#[async_trait]
impl JobHandler for Starts {
    type Data = Job;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, active: &mut ActiveJob, job: Job) -> Result<(), JobError> {
        self.run(job, active.attempt()).await;
        Ok(())
    }
}

/// A processor or a receiver at work.
pub(crate) enum Taker {
    Processor(Running),
    Receiver { pool: PgPool, stop: Arc<AtomicBool>, receiving: JoinHandle<Result<()>> },
}

impl Taker {
    pub(crate) async fn start(by: By, scene: &Scene, starts: &Arc<Starts>) -> Result<Self> {
        Ok(match by {
            By::Processor(way) => Self::Processor(scene.start(way, Arc::clone(starts)).await?),
            By::Receiver => {
                let (pool, stop) = (scene.open_pool(1).await?, Arc::<AtomicBool>::default());
                let receiving = receive(pool.clone(), Arc::clone(starts), Arc::clone(&stop));
                Self::Receiver { pool, stop, receiving: tokio::spawn(receiving) }
            }
        })
    }

    /// Ends it, and waits for its running handlers.
    pub(crate) async fn end(self) -> Result<()> {
        match self {
            Self::Processor(running) => {
                running.shutdown(Duration::from_secs(10)).await;
            }
            Self::Receiver { pool, stop, receiving } => {
                stop.store(true, Ordering::Relaxed);
                receiving.await??;
                pool.close().await;
            }
        }
        Ok(())
    }
}

/// Receives jobs one by one, and acks each.
async fn receive(pool: PgPool, starts: Arc<Starts>, stop: Arc<AtomicBool>) -> Result<()> {
    let client = Client::default();
    while !stop.load(Ordering::Relaxed) {
        let received = match client.receive(&pool, Receive::new(QUEUE)).await {
            Ok(received) => received,
            // The receiver comes again.
            Err(error) => {
                eprintln!("receive: {error}");
                Vec::new()
            }
        };
        if received.is_empty() {
            sleep(EMPTY).await;
        }
        for Received { receipt, attempt, data, .. } in received {
            starts.run(serde_json::from_value(data)?, attempt).await;
            client.ack(&pool, &receipt).await?;
        }
    }
    Ok(())
}
