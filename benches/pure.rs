//! Work in memory, for every job and once for a client or a queue: `cargo bench --bench pure`.

use std::hint::black_box;
use std::time::Duration;

use divan::Bencher;
use serde::Serialize;
use seriatim::receive::Receipt;
use seriatim::{Client, NewJob, QueueOptions, Retention, RetryPolicy};

fn main() {
    divan::main();
}

#[derive(Serialize)]
struct Posting {
    account: u32,
    cents: i64,
    text: String,
}

fn posting(length: usize) -> Posting {
    Posting { account: 42, cents: 1_500, text: "x".repeat(length) }
}

/// Serializes data of so many bytes.
#[divan::bench(args = [0, 100, 10_000])]
fn new_job(bencher: Bencher<'_, '_>, length: usize) {
    let posting = posting(length);
    bencher.bench_local(|| NewJob::new("postings", black_box(&posting)).group("account-42"));
}

/// With every option set.
#[divan::bench]
fn new_job_with_all(bencher: Bencher<'_, '_>) {
    let posting = posting(100);
    bencher.bench_local(|| {
        NewJob::new("postings", black_box(&posting))
            .group("account-42")
            .name("post")
            .reference("order-1")
            .dedup_id("order-1")
            .priority(5)
            .max_attempts(3)
            .delay(Duration::from_secs(1))
            .time_to_live(Duration::from_mins(1))
            .timeout(Duration::from_secs(10))
            .lease(Duration::from_secs(30))
    });
}

/// After so many failures.
#[divan::bench(args = [1, 10, 1_000])]
fn retry_delay(attempt: u32) -> Duration {
    RetryPolicy::default().delay(black_box(attempt), black_box(0.5))
}

/// The statements of a schema, once per client.
#[divan::bench]
fn client() -> Result<Client, seriatim::NameError> {
    Client::new(black_box("jobs"))
}

/// As every `ack`, `nack` and `extend` does.
#[divan::bench]
fn receipt(bencher: Bencher<'_, '_>) {
    let text = "1234567.67e55044-10b1-426f-9247-bb680e5fe0c8";
    bencher.bench_local(|| black_box(text).parse::<Receipt>());
}

#[divan::bench]
fn queue_options() -> QueueOptions {
    QueueOptions::new(black_box("postings"))
        .concurrency(8)
        .time_slice(Duration::from_millis(10))
        .retry(RetryPolicy::new(5))
        .keep_succeeded(Retention::Never)
}
