//! A server that is away for some seconds: what a processor reports.

use std::collections::BTreeMap;
use std::time::Duration;

use seriatim::Hold;
use seriatim::testing::{Server, TestDatabase};

use crate::support::{
    Errors, Gate, Log, drained, enqueue, held_up, processor, queue, size, started,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_reported_a_few_times() {
    let server = Server::start().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let pool = database.pool();
    let (errors, log, gate) = (Errors::default(), Log::default(), Gate::default());
    let leased = queue("leased").hold(Hold::Lease(Duration::from_mins(10)));
    let mut builder = errors.of(processor(&database, 20).await).queue(leased, held_up(&log, &gate));
    for name in ["a", "b", "c"] {
        builder = builder.queue(queue(name), held_up(&log, &gate));
    }
    let _running = started(builder).await;
    enqueue(pool, "leased", "g", 1).await;
    log.wait_for(1).await;
    server.stop_immediately().await.unwrap();
    // The time without a server is what is tested.
    tokio::time::sleep(Duration::from_secs(size(3, 6))).await;
    server.start_again().await.unwrap();
    gate.pass(10);
    drained(pool, "leased").await;
    let mut kinds = BTreeMap::new();
    for entry in errors.0.entries() {
        *kinds.entry(entry.split(':').next().unwrap_or_default().to_owned()).or_insert(0) += 1;
    }
    println!("{kinds:?}");
    assert!(kinds.contains_key("Presence"), "{kinds:?}");
    // At once, after 1 s and 3 s; three words of the server's for it: it crashed, refuses, starts.
    for (kind, reports) in &kinds {
        assert!(*reports <= 9, "{kind}: {reports} reports: {:#?}", errors.named(kind));
    }
}
