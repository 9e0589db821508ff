//! Jobs under both holds on servers that fail over, and what must be true of them in the end.

use std::collections::{HashMap, HashSet};
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
use crate::support::{Log, chain, handler_with, queue, size, value};

const QUEUES: [(&str, Hold); 2] =
    [("held", Hold::Transaction), ("leased", Hold::Lease(Duration::from_mins(10)))];
/// Its jobs are received.
const RECEIVED: &str = "received";
const GROUPS: u32 = 10;
const EFFECTS: &str = "select count(*) from public.effect";

/// The producer's count of a job, and the id that its enqueue returned.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Acknowledged {
    n: u32,
    id: i64,
}

/// Two processors, two receivers and a producer, each with a pool that follows the primary.
pub(super) struct Work {
    workers: [Running; 2],
    /// Aborted when dropped.
    receivers: JoinSet<()>,
    producer: JoinHandle<Vec<Acknowledged>>,
    stop: Arc<AtomicBool>,
    inside: Inside,
    /// The key and the count of each run.
    keys: Log,
}

async fn follow(hosts: &[PgConnectOptions]) -> PgPool {
    let (first, others) = hosts.split_first().unwrap();
    let follow = others.iter().cloned().fold(Follow::new(first.clone()), Follow::host);
    // Its waits double up to a fifth of the timeout.
    let options = PgPoolOptions::new().max_connections(14).acquire_timeout(Duration::from_secs(5));
    follow.connect(options).await.unwrap()
}

async fn worker(name: &str, hosts: &[PgConnectOptions], inside: &Inside, keys: &Log) -> Running {
    let pool = follow(hosts).await;
    let node = name.to_owned();
    let mut builder = Processor::builder(pool.clone()).node(name).on_error(move |error| {
        println!("{} {node}: {}", chrono::Utc::now().time(), chain(error));
    });
    for (name, hold) in QUEUES {
        let with = (inside.clone(), keys.clone(), pool.clone());
        let run = handler_with(with, async |(inside, keys, pool), job, data| {
            let _entered = inside.enter(job);
            keys.add(format!("{} {}", job.key(), data["n"]));
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
    let receive = Receive::new(RECEIVED).max(3).visibility(Duration::from_secs(size(2, 5)));
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

/// Enqueues until `stop`, one job after the other. Returns those that were acknowledged.
async fn produce(pool: PgPool, stop: Arc<AtomicBool>) -> Vec<Acknowledged> {
    let mut acknowledged = Vec::new();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let work = Step { producer: 1, n, ms: u64::from(n % 5) };
        let queue = [QUEUES[0].0, QUEUES[1].0, RECEIVED][n as usize % 3];
        let group = format!("g{}", n / 3 % GROUPS);
        let job = witness::job(queue, Some(&group), &work);
        if let Ok(enqueued) = seriatim::enqueue(&pool, job).await {
            acknowledged.push(Acknowledged { n, id: enqueued.id() });
        }
        // The producer's pace.
        tokio::time::sleep(Duration::from_millis(size(6, 2))).await;
    }
    acknowledged
}

impl Work {
    /// Begins on a database that [`witness::prepare`] has made ready.
    pub(super) async fn begin(hosts: &[PgConnectOptions]) -> Self {
        let (inside, keys) = (Inside::default(), Log::default());
        let workers = [
            worker("one", hosts, &inside, &keys).await,
            worker("two", hosts, &inside, &keys).await,
        ];
        let mut receivers = JoinSet::new();
        for _ in 0..2 {
            receivers.spawn(receive(follow(hosts).await));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let producer = tokio::spawn(produce(follow(hosts).await, Arc::clone(&stop)));
        Self { workers, receivers, producer, stop, inside, keys }
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
    pub(super) async fn ends_well(self, pool: &PgPool) -> usize {
        let overlaps = self.inside.clone();
        let (acknowledged, lost, findings) = self.ends(pool).await;
        assert_eq!(lost, [], "acknowledged jobs are lost");
        assert_eq!(findings, Findings::default());
        assert_eq!(overlaps.overlaps(), [""; 0]);
        acknowledged.len()
    }

    /// As [`ends_well`](Self::ends_well), on a server that lacks the newest commits of another one:
    /// all acknowledged jobs from one on until the failover are lost, whose ids others have got
    /// again, and not their keys. Returns how many are lost. Handlers from before may not have been
    /// dropped at once.
    pub(super) async fn ends_with_losses(self, pool: &PgPool) -> usize {
        let keys = self.keys.clone();
        let (acknowledged, lost, findings) = self.ends(pool).await;
        // Handlers from before may write outside of their transactions.
        assert_eq!(Findings { lost_increments: Vec::new(), ..findings }, Findings::default());
        let (from, to) = (lost[0].n, lost[lost.len() - 1].n);
        let gone = acknowledged.iter().filter(|job| (from..=to).contains(&job.n)).count();
        assert_eq!(gone, lost.len(), "{from} to {to}: a job in between is there");
        let again: HashSet<i64> =
            acknowledged.iter().filter(|job| job.n > to).map(|job| job.id).collect();
        assert!(lost.iter().any(|job| again.contains(&job.id)), "no id was given twice");
        let mut of_keys = HashMap::new();
        for entry in keys.entries() {
            let (key, n) = entry.split_once(' ').unwrap();
            let known = of_keys.insert(key.to_owned(), n.to_owned());
            assert!(known.is_none_or(|known| known == n), "the key {key} was given twice");
        }
        lost.len()
    }

    /// Ends the producer, and waits for all jobs that are there. Returns those that were
    /// acknowledged, the ones of them that are not there, and what is broken.
    async fn ends(mut self, pool: &PgPool) -> (Vec<Acknowledged>, Vec<Acknowledged>, Findings) {
        self.stop.store(true, Ordering::Relaxed);
        let acknowledged = self.producer.await.unwrap();
        witness::all_have_ended(pool).await;
        let there = "select coalesce(array_agg((data->>'n')::bigint), '{}') from seriatim.job";
        let there: HashSet<i64> = value::<Vec<i64>>(pool, there).await.into_iter().collect();
        assert!(self.receivers.try_join_next().is_none(), "no receiver has ended by itself");
        let all: i64 = value(pool, "select count(*) from seriatim.job").await;
        let findings = witness::findings(pool, usize::try_from(all).unwrap()).await;
        for running in self.workers {
            running.shutdown(Duration::from_secs(5)).await;
        }
        let is_lost = |job: &&Acknowledged| !there.contains(&i64::from(job.n));
        let lost = acknowledged.iter().filter(is_lost).copied().collect();
        (acknowledged, lost, findings)
    }
}
