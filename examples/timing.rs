//! A layer that measures handlers: `cargo run --example timing`
//!
//! It counts how long each kind of job took, and names the slow ones while they are still known.
//! The same shape serves a histogram of a metrics library, or a line of the log.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use seriatim::layer::{Ended, Layer, Next};
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, NewJob, Processor, QueueOptions, async_trait,
};

const QUEUE: &str = "images";
/// The upper bounds of the histogram; what is longer has a place of its own.
const BOUNDS: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];

/// How many jobs of a kind took up to each of the bounds, and how many took longer.
type Histogram = [u32; BOUNDS.len() + 1];

#[derive(Clone, Default)]
struct Timing(Arc<Mutex<BTreeMap<String, Histogram>>>);

impl Timing {
    fn record(&self, kind: &str, took: Duration) {
        let place = BOUNDS.iter().take_while(|bound| took > **bound).count();
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.entry(kind.to_owned()).or_default()[place] += 1;
    }

    fn kinds(&self) -> BTreeMap<String, Histogram> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Layer for Timing {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
        let since = Instant::now();
        let ended = next.run(job).await;
        let took = since.elapsed();
        self.record(job.name().unwrap_or("(no name)"), took);
        if took > BOUNDS[1] {
            // A group is for lines like this one, and never the label of a metric.
            println!("slow: job {} of group {:?}, {took:?}", job.id(), job.group());
        }
        ended
    }
}

struct Render;

#[async_trait]
impl JobHandler for Render {
    type Data = u64;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, ms: u64) -> Result<(), JobError> {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database = TestDatabase::create().await?;
    let (pool, client, timing) = (database.pool(), Client::default(), Timing::default());
    let job = |kind, ms: u64| NewJob::new(QUEUE, &ms).group("ann").name(kind);
    let jobs = [job("thumbnail", 0), job("thumbnail", 0), job("poster", 150)];
    client.enqueue_many(pool, jobs).await?;

    let running = Processor::builder(pool.clone())
        .layer(timing.clone())
        .queue(QueueOptions::new(QUEUE).concurrency(4), Render)
        .build()?
        .start()
        .await?;
    while client.counts(pool, QUEUE).await?.unfinished() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.shutdown(Duration::from_secs(5)).await;
    database.remove().await?;

    for (kind, [short, middle, long]) in timing.kinds() {
        println!("{kind}: {short} up to 10 ms, {middle} up to 100 ms, {long} longer");
    }
    Ok(())
}
