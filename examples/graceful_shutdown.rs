//! Running jobs at a shutdown: `cargo run --example graceful_shutdown`
//!
//! Stop it with Ctrl-C or SIGTERM, or wait a second. The shutdown waits for short jobs. The job
//! that does not end before the deadline is released: it goes back to the head of its group, and
//! the next processor runs it first. A handler that blocks its thread could be neither waited for
//! nor dropped: for that case there is a watchdog, which would end the process with exit code 70
//! and the reason in the log.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use seriatim::observe::Watchdog;
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, NewJob, Processor, QueueOptions, Running, async_trait,
};
use sqlx::PgPool;

const QUEUE: &str = "reports";

#[derive(Serialize, Deserialize)]
struct Report {
    name: String,
    ms: u64,
}

/// Writes reports, slowly. Keeps the names of those that it finished.
struct Write {
    /// The second processor has a faster machine.
    speed: u64,
    finished: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl JobHandler for Write {
    type Data = Report;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, report: Report) -> Result<(), JobError> {
        let name = report.name;
        println!("  {name}: begins, attempt {}", job.attempt());
        // At the deadline the handler is dropped here.
        tokio::time::sleep(Duration::from_millis(report.ms / self.speed)).await;
        println!("  {name}: done");
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        finished.push(name);
        Ok(())
    }
}

async fn start(
    pool: &PgPool,
    speed: u64,
    finished: &Arc<Mutex<Vec<String>>>,
) -> Result<Running, Box<dyn Error>> {
    let handler = Write { speed, finished: Arc::clone(finished) };
    Ok(Processor::builder(pool.clone())
        .queue(QueueOptions::new(QUEUE).concurrency(4), handler)
        // No loop stands still for so long, and no shutdown takes 10 s more than its deadline.
        .watchdog(Watchdog::new(Duration::from_secs(30)).shutdown_margin(Duration::from_secs(10)))
        .build()?
        .start()
        .await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database = TestDatabase::create().await?;
    let pool = database.pool();
    let reports = [
        ("daily", "daily 1", 300),
        ("weekly", "weekly 1", 1_400),
        ("yearly", "yearly 1", 60_000),
        ("yearly", "yearly 2", 100),
    ];
    let jobs = reports.map(|(group, name, ms)| {
        let name = name.to_owned();
        NewJob::new(QUEUE, &Report { name, ms }).group(group)
    });
    seriatim::enqueue_many(pool, jobs).await?;

    println!("a processor starts");
    let finished = Arc::default();
    let running = start(pool, 1, &finished).await?;
    // After a signal, the long job may not have begun yet.
    let must_release = tokio::select! {
        signal = seriatim::shutdown_signal() => signal.map(|()| 0)?,
        () = tokio::time::sleep(Duration::from_secs(1)) => 1,
    };
    println!("it is shut down, with a deadline of 1 s");
    let report = running.shutdown(Duration::from_secs(1)).await;
    println!("{report:#?}");

    println!("another processor starts");
    let running = start(pool, 1_000, &finished).await?;
    while Client::default().counts(pool, QUEUE).await?.unfinished() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.shutdown(Duration::from_secs(5)).await;
    database.remove().await?;

    let mut finished = finished.lock().unwrap_or_else(PoisonError::into_inner).clone();
    finished.retain(|name| name.starts_with("yearly"));
    if report.released < must_release || finished != ["yearly 1", "yearly 2"] {
        return Err(format!("not as it should be: {report:?}, {finished:?}").into());
    }
    println!("the group was run in order");
    Ok(())
}
