//! Producers: as fast as possible, or at a steady rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use seriatim::{Client, NewJob};
use sqlx::PgConnection;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::Result;
use crate::backlog::Groups;
use crate::figures::{float, rate};
use crate::handler::now;
use crate::scene::Scene;
use crate::witness::Job;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Producers {
    pub(crate) queue: &'static str,
    pub(crate) count: u32,
    /// Jobs in one call.
    pub(crate) batch: u32,
    pub(crate) groups: Groups,
    /// Jobs per second of all of them; `None`: as fast as possible.
    pub(crate) rate: Option<u32>,
    pub(crate) time: Duration,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Produced {
    pub(crate) jobs: u64,
    pub(crate) time: Duration,
}

impl Produced {
    pub(crate) fn rate(self) -> f64 {
        rate(self.jobs, self.time)
    }
}

impl Producers {
    /// Enqueues until the time is over.
    pub(crate) async fn run(self, scene: &Scene) -> Result<Produced> {
        self.run_counted(scene, &Arc::default()).await
    }

    /// Enqueues and counts the jobs in `made`, for a sampler.
    pub(crate) async fn run_counted(
        self,
        scene: &Scene,
        made: &Arc<AtomicU64>,
    ) -> Result<Produced> {
        let pool = scene.open_pool(self.count).await?;
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for number in 0..self.count {
            let mut connection = pool.acquire().await?;
            let made = Arc::clone(made);
            tasks.spawn(async move { self.produce(&mut connection, number, began, &made).await });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        let jobs = made.load(Ordering::Relaxed);
        let time = began.elapsed();
        pool.close().await;
        Ok(Produced { jobs, time })
    }

    async fn produce(
        self,
        connection: &mut PgConnection,
        number: u32,
        began: Instant,
        made: &AtomicU64,
    ) -> Result<()> {
        let (client, mut places) = (Client::default(), Places::new(self, number));
        // The producers take turns.
        let pause = self.rate.map(|rate| {
            Duration::from_secs_f64(f64::from(self.count * self.batch) / f64::from(rate))
        });
        let mut next = began + pause.unwrap_or_default().mul_f64(self.share(number));
        while began.elapsed() < self.time {
            if let Some(pause) = pause {
                sleep_until(next).await;
                next += pause;
            }
            if self.batch == 1 {
                client.enqueue(&mut *connection, places.next_job(now())).await?;
            } else {
                let batch = (0..self.batch).map(|_| places.next_job(0));
                client.enqueue_many(&mut *connection, batch).await?;
            }
            made.fetch_add(u64::from(self.batch), Ordering::Relaxed);
        }
        Ok(())
    }

    fn share(self, number: u32) -> f64 {
        float(number.into()) / float(self.count.into())
    }
}

/// The next jobs of a producer. Each group has one producer, so that its order is known.
struct Places {
    queue: &'static str,
    producers: u32,
    /// The producer's number: its first group, or without groups its first place.
    first: u32,
    given: u32,
    /// The next place in each of the producer's groups.
    next: Vec<u32>,
}

impl Places {
    fn new(of: Producers, number: u32) -> Self {
        let own = match of.groups {
            Groups::Plain => 0,
            // At least one: a producer without a group would have nothing to do.
            Groups::Even(groups) | Groups::Skewed(groups) => (groups / of.count).max(1),
        };
        Self {
            queue: of.queue,
            producers: of.count,
            first: number,
            given: 0,
            next: vec![0; own as usize],
        }
    }

    fn next_job(&mut self, t: u64) -> NewJob {
        let turn = self.given;
        self.given += 1;
        if self.next.is_empty() {
            let s = self.first + turn * self.producers;
            return NewJob::new(self.queue, &Job { g: 0, s, t });
        }
        let own = u32::try_from(self.next.len()).unwrap_or(u32::MAX);
        let place = turn % own;
        let s = self.next[place as usize];
        self.next[place as usize] += 1;
        let g = self.first + place * self.producers;
        NewJob::new(self.queue, &Job { g, s, t }).group(format!("g{g}"))
    }
}
