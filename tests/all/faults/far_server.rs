//! A server that is far: a round trip takes as long as between two continents. New sessions, of
//! the presence and of the monitor, need many of them.

use std::time::Duration;

use serde_json::json;
use seriatim::{Hold, JobStatus, Processor};
use sqlx::postgres::PgPoolOptions;

use crate::support::network::{Network, Weather};
use crate::support::{Errors, database, ended, enqueue, handler, queue, sample, started};

/// There, and back.
const DELAY: Duration = Duration::from_millis(50);

/// Runs jobs over the network. Returns how many attempts they took, and what was reported.
async fn attempts_of_long_jobs(hold: Hold) -> (Vec<u32>, Vec<String>) {
    let db = database().await;
    let network = Network::to(&db.url()).await;
    network.is(Weather::Slow(DELAY));
    let options = PgPoolOptions::new().max_connections(8);
    let pool = options.connect(&network.url(&db.url())).await.unwrap();
    let mut jobs = Vec::new();
    for n in 0..3 {
        jobs.push(enqueue(db.pool(), "q", &format!("g{n}"), n).await);
    }
    let errors = Errors::default();
    let run = handler(async |_, _| {
        // A hold that is not seen alive is lost sooner.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(json!(null))
    });
    let builder = errors.of(Processor::builder(pool));
    let running = started(builder.queue(queue("q").hold(hold), run)).await;
    let mut attempts = Vec::new();
    for id in jobs {
        let job = ended(db.pool(), id).await;
        assert_eq!(job.status, JobStatus::Succeeded, "{hold:?}: {:?}", errors.0.entries());
        attempts.push(job.attempts);
    }
    running.shutdown(Duration::from_secs(5)).await;
    (attempts, errors.0.entries())
}

/// Up to three times: a late machine leaves a check less time than the network needs.
#[tokio::test(flavor = "multi_thread")]
async fn long_jobs_of_a_far_server_succeed_at_their_first_attempt() {
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_secs(30))]) {
        let mut seen = Vec::new();
        for _ in 0..3 {
            let (attempts, errors) = attempts_of_long_jobs(hold).await;
            seen.push((attempts, errors));
            if seen.last().unwrap().0 == [1, 1, 1] {
                break;
            }
        }
        assert_eq!(seen.last().unwrap().0, [1, 1, 1], "{hold:?}: {seen:?}");
    }
}
