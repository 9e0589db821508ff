//! Jobs under both holds on servers that fail over, and what must be true of them in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use seriatim::primary::Follow;
use seriatim::receive::{Receive, ReceiveError};
use seriatim::{Client, Hold, Processor, RetryPolicy, Running};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::task::{JoinHandle, JoinSet};

use crate::support::witness::{self, Findings, Inside, Step};
use crate::support::{chain, handler_with, queue, value};

const QUEUES: [(&str, Hold); 2] =
    [("held", Hold::Transaction), ("leased", Hold::Lease(Duration::from_mins(10)))];
/// Its jobs are received.
const RECEIVED: &str = "received";
const GROUPS: u32 = 10;
const EFFECTS: &str = "select count(*) from public.effect";

/// Two processors, two receivers and a producer, each with a pool that follows the primary.
pub(super) struct Work {
    workers: [Running; 2],
    /// Aborted when dropped.
    receivers: JoinSet<()>,
    producer: JoinHandle<Vec<i64>>,
    stop: Arc<AtomicBool>,
    inside: Inside,
}

async fn follow(hosts: &[PgConnectOptions]) -> PgPool {
    let (first, others) = hosts.split_first().unwrap();
    let follow = others.iter().cloned().fold(Follow::new(first.clone()), Follow::host);
    // Its waits double up to a fifth of the timeout.
    let options = PgPoolOptions::new().max_connections(14).acquire_timeout(Duration::from_secs(5));
    follow.connect(options).await.unwrap()
}

async fn worker(name: &str, hosts: &[PgConnectOptions], inside: &Inside) -> Running {
    let pool = follow(hosts).await;
    let node = name.to_owned();
    let mut builder = Processor::builder(pool.clone()).node(name).on_error(move |error| {
        println!("{} {node}: {}", chrono::Utc::now().time(), chain(error));
    });
    for (name, hold) in QUEUES {
        let run =
            handler_with((inside.clone(), pool.clone()), async |(inside, pool), job, data| {
                let _entered = inside.enter(job);
                witness::take_step(job, &pool, data).await
            });
        let retry = RetryPolicy::new(1_000).base(Duration::from_millis(20));
        builder = builder.queue(queue(name).hold(hold).concurrency(3).retry(retry), run);
    }
    builder.build().unwrap().start_when_ready()
}

/// Receives jobs and acks each in the transaction of its effect, until it is aborted. A job whose
/// ack is lost is received again.
async fn receive(pool: PgPool) {
    let client = Client::default();
    let receive = Receive::new(RECEIVED).max(3).visibility(Duration::from_secs(5));
    loop {
        for job in client.receive(&pool, receive.clone()).await.unwrap_or_default() {
            let write = async {
                let mut tx = pool.begin().await?;
                witness::write_received(&mut tx, RECEIVED, &job).await?;
                client.ack(&mut *tx, &job.receipt).await?;
                Ok::<(), ReceiveError>(tx.commit().await?)
            };
            // The jobs behind it are no longer its, or no server is there.
            if write.await.is_err() {
                break;
            }
        }
        // The receiver's pace.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Enqueues until `stop`, one job after the other. Returns the ids that were acknowledged.
async fn produce(pool: PgPool, stop: Arc<AtomicBool>) -> Vec<i64> {
    let mut acknowledged = Vec::new();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let work = Step { producer: 1, n, ms: u64::from(n % 5) };
        let queue = [QUEUES[0].0, QUEUES[1].0, RECEIVED][n as usize % 3];
        let group = format!("g{}", n / 3 % GROUPS);
        let job = witness::job(queue, Some(&group), &work);
        if let Ok(enqueued) = seriatim::enqueue(&pool, job).await {
            acknowledged.push(enqueued.id());
        }
        // The producer's pace.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    acknowledged
}

impl Work {
    /// Begins on a database that [`witness::prepare`] has made ready.
    pub(super) async fn begin(hosts: &[PgConnectOptions]) -> Self {
        let inside = Inside::default();
        let workers = [worker("one", hosts, &inside).await, worker("two", hosts, &inside).await];
        let mut receivers = JoinSet::new();
        for _ in 0..2 {
            receivers.spawn(receive(follow(hosts).await));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let producer = tokio::spawn(produce(follow(hosts).await, Arc::clone(&stop)));
        Self { workers, receivers, producer, stop, inside }
    }

    /// Waits for so many more effects of jobs. Returns how long that took.
    pub(super) async fn goes_on(pool: &PgPool, effects: i64) -> Duration {
        let (begun, before): (_, i64) = (Instant::now(), value(pool, EFFECTS).await);
        witness::effects_are_there(pool, before + effects).await;
        begun.elapsed()
    }

    /// Ends the producer, waits for all jobs, and checks the promises: nothing that was
    /// acknowledged is lost (P3), each job has one effect (P4), in order (P1), one at a time (P2).
    /// Returns the number of jobs.
    pub(super) async fn ends_well(mut self, pool: &PgPool) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let acknowledged = self.producer.await.unwrap();
        witness::all_have_ended(pool).await;
        let there = sqlx::query_scalar("select count(*) from seriatim.job where id = any($1)");
        let there: i64 = there.bind(&acknowledged).fetch_one(pool).await.unwrap();
        let there = usize::try_from(there).unwrap();
        assert_eq!(there, acknowledged.len(), "acknowledged jobs are lost");
        assert!(self.receivers.try_join_next().is_none(), "no receiver has ended by itself");
        let all: i64 = value(pool, "select count(*) from seriatim.job").await;
        let findings = witness::findings(pool, usize::try_from(all).unwrap()).await;
        assert_eq!(findings, Findings::default());
        assert_eq!(self.inside.overlaps(), [""; 0]);
        for running in self.workers {
            running.shutdown(Duration::from_secs(5)).await;
        }
        acknowledged.len()
    }
}
