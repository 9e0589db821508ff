//! Large jobs over a link that takes seconds for them: a claim is bounded in bytes, so it is never
//! too large to arrive in time (P3).

use std::time::Duration;

use serde_json::{Value, json};
use seriatim::{Hold, Processor};
use sqlx::postgres::PgPoolOptions;

use crate::support::network::{Network, Weather};
use crate::support::{Errors, Log, database, drained, handler_with, queue, size, started};

/// 1 MiB each, which does not compress.
const LOAD: &str = "insert into seriatim.job (queue, group_id, data, flagged) \
    select 'q', 'g' || i % 20, to_jsonb((select string_agg(md5(random()::text || n || i), '') \
      from generate_series(1, 32768) n)), i <= 20 \
    from generate_series(1, $1::bigint) i";

#[tokio::test(flavor = "multi_thread")]
async fn large_jobs_drain_over_a_narrow_link() {
    // Without a bound, the jobs of 16 groups take more than the 5 s that a claim has.
    let (jobs, rate) = size((40_u32, 5_000_000), (80, 10_000_000));
    let db = database().await;
    sqlx::query(LOAD).bind(i64::from(jobs)).execute(db.pool()).await.unwrap();
    let network = Network::to(&db.url()).await;
    network.is(Weather::Narrow(rate));
    let options = PgPoolOptions::new().max_connections(8);
    let pool = options.connect(&network.url(&db.url())).await.unwrap();
    let (log, errors) = (Log::default(), Errors::default());
    let run = handler_with(log.clone(), async |log, job, data: Value| {
        log.add(format!("{} {}", data.as_str().map_or(0, str::len), job.attempt()));
        Ok(json!(null))
    });
    let q = queue("q")
        .hold(Hold::Lease(Duration::from_secs(30)))
        .concurrency(16)
        .time_slice(Duration::from_secs(1));
    let builder = errors.of(Processor::builder(pool));
    let running = started(builder.queue(q, run)).await;

    drained(db.pool(), "q").await;
    running.shutdown(Duration::from_secs(5)).await;
    // A check that a late machine made too slow has lost holds, which is reported.
    let mut said = errors.but_slow_checks();
    let (slow, jobs) = (said.len() < errors.0.entries().len(), jobs as usize);
    let once = log.entries() == vec![String::from("1048576 1"); jobs];
    assert!(once || slow && log.entries().len() > jobs, "{:?}", log.entries());
    // It may be too slow for one claim as well. A claim that is too large is so each time.
    said.retain(|said| said.starts_with("TooSlow"));
    assert!(said.len() <= usize::from(slow), "{said:?}");
}
