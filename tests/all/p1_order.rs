//! P1: in a group the next job to run is the lowest id that is not finished.

use serde_json::json;

use crate::support::{Log, database, drained, enqueue, handler, processor, queue};

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_group_run_in_the_order_of_their_enqueues() {
    let database = database().await;
    let log = Log::default();
    for n in 0..30 {
        enqueue(database.pool(), "q", &format!("g{}", n % 3), n).await;
    }
    let seen = log.clone();
    let running = processor(&database, 10)
        .await
        .queue(
            queue("q"),
            handler(move |job, data| {
                let entry = format!("{} {data}", job.group().unwrap());
                let seen = seen.clone();
                Box::pin(async move {
                    seen.add(entry);
                    Ok(json!(null))
                })
            }),
        )
        .build()
        .unwrap()
        .start();
    drained(database.pool(), "q").await;
    let entries = log.entries();
    assert_eq!(entries.len(), 30);
    for group in ["g0", "g1", "g2"] {
        let order: Vec<u32> = entries
            .iter()
            .filter_map(|entry| entry.strip_prefix(group)?.trim().parse().ok())
            .collect();
        assert_eq!(order.len(), 10);
        assert!(order.is_sorted(), "{group}: {order:?}");
    }
    running.shutdown(std::time::Duration::from_secs(5)).await;
    database.remove().await.unwrap();
}
