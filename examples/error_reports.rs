//! Reports for an error service such as Sentry: `cargo run --example error_reports`
//!
//! A layer sees the error itself, with its sources, and gathers what happened in the attempt. Only
//! the commit decides whether it was the last attempt: that is told by an event, which sends the
//! report. A panic, a timeout or a dead worker passes no layer. The event knows those too.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use seriatim::layer::{Ended, Layer, Next};
use seriatim::observe::{EndedAs, Event};
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, NewJob, Processor, QueueOptions, RetryPolicy,
    async_trait,
};

const QUEUE: &str = "payments";

/// The errors of unfinished jobs, by job id. Reports go to a channel, so that nobody waits for the
/// service.
#[derive(Clone)]
struct Reports {
    gathered: Arc<Mutex<HashMap<i64, Vec<String>>>>,
    sender: tokio::sync::mpsc::UnboundedSender<String>,
}

impl Reports {
    fn gathered(&self) -> MutexGuard<'_, HashMap<i64, Vec<String>>> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_event(&self, event: &Event) {
        if event.outcome == EndedAs::Retried {
            return;
        }
        let errors = self.gathered().remove(&event.job).unwrap_or_default();
        if let (EndedAs::Failed, Some(failure)) = (event.outcome, &event.failure) {
            let (queue, group) = (&event.queue, event.group.as_deref().unwrap_or("(none)"));
            let kind = failure.kind.as_str();
            let report = format!(
                "queue {queue}, group {group}, attempt {}: {kind}: {} (before: {errors:?})",
                event.attempt, failure.message,
            );
            // The receiver is gone at the end of the program.
            let _ = self.sender.send(report);
        }
    }
}

#[async_trait]
impl Layer for Reports {
    async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
        let ended = next.run(job).await;
        if let Some(error) = ended.error() {
            self.gathered().entry(job.id()).or_default().push(error.to_string());
        }
        ended
    }
}

struct Charge;

#[async_trait]
impl JobHandler for Charge {
    type Data = String;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, card: String) -> Result<(), JobError> {
        match (&*card, job.attempt()) {
            ("slow bank", 1) => Err(JobError::retry("the bank did not answer")),
            ("closed", _) => Err(JobError::fail("the account is closed")),
            ("broken", attempt) => {
                // A bug.
                assert!(attempt < 3, "the answer of the bank has no amount");
                Err(JobError::retry(format!("no route to the bank, try {attempt}")))
            }
            _ => Ok(()),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database = TestDatabase::create().await?;
    let (pool, client) = (database.pool(), Client::default());
    let cards = ["good", "slow bank", "closed", "broken"];
    let jobs = cards.map(|card| NewJob::new(QUEUE, card).group(card));
    client.enqueue_many(pool, jobs).await?;

    let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let layer = Reports { gathered: Arc::default(), sender };
    let hook = layer.clone();
    let retry = RetryPolicy::new(3).base(Duration::from_millis(10));
    let running = Processor::builder(pool.clone())
        .layer(layer)
        .on_event(move |event| hook.on_event(event))
        .queue(QueueOptions::new(QUEUE).concurrency(4).retry(retry), Charge)
        .build()?
        .start()
        .await?;
    while client.counts(pool, QUEUE).await?.unfinished() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.shutdown(Duration::from_secs(5)).await;
    database.remove().await?;

    // With the processor its hook is gone, and the channel ends.
    let mut sent = Vec::new();
    while let Some(report) = reports.recv().await {
        sent.push(report);
    }
    sent.sort();
    println!("{}\n{} reports", sent.join("\n"), sent.len());
    Ok(())
}
