//! A server that is far: a round trip takes as long as between two continents. New sessions, of
//! the presence and of the monitor, need many of them.

use std::time::Duration;

use serde_json::json;
use seriatim::{Hold, JobStatus, Processor};
use sqlx::postgres::PgPoolOptions;

use crate::support::network::{Network, Weather};
use crate::support::{Errors, Log, database, ended, enqueue, handler_with, queue, started};

/// There, and back.
const DELAY: Duration = Duration::from_millis(75);

#[tokio::test(flavor = "multi_thread")]
async fn long_jobs_of_a_far_server_succeed_at_their_first_attempt() {
    for hold in [Hold::Transaction, Hold::Lease(Duration::from_secs(30))] {
        let db = database().await;
        let network = Network::to(&db.url()).await;
        network.is(Weather::Slow(DELAY));
        let options = PgPoolOptions::new().max_connections(8);
        let pool = options.connect(&network.url(&db.url())).await.unwrap();
        let mut jobs = Vec::new();
        for n in 0..3 {
            jobs.push(enqueue(db.pool(), "q", &format!("g{n}"), n).await);
        }
        let (log, errors) = (Log::default(), Errors::default());
        let run = handler_with(log.clone(), async |log, job, _| {
            log.add(format!("{} {}", job.id(), job.attempt()));
            // Longer than a hold stands that is not seen alive.
            tokio::time::sleep(Duration::from_secs(3)).await;
            Ok(json!(null))
        });
        let builder = errors.of(Processor::builder(pool));
        let running = started(builder.queue(queue("q").hold(hold), run)).await;
        for id in jobs {
            let job = ended(db.pool(), id).await;
            let as_told = (job.status, job.attempts);
            assert_eq!(as_told, (JobStatus::Succeeded, 1), "{hold:?}: {:?}", errors.0.entries());
        }
        running.shutdown(Duration::from_secs(5)).await;
    }
}
