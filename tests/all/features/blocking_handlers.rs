//! Handlers that block their threads: bad manners, but no reason to lose a hold.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::support::{database, drained, enqueue, handler, processor, queue, size, started};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_block_every_thread_keep_their_holds() {
    let database = database().await;
    let errors = Arc::new(Mutex::new(Vec::new()));
    // One for each thread. In CI as many more wait for one.
    let jobs = size(2, 4);
    for n in 0..jobs {
        enqueue(database.pool(), "q", &format!("g{n}"), n).await;
    }
    let seen = Arc::clone(&errors);
    let _running = started(
        processor(&database, 4)
            .await
            .on_error(move |error| seen.lock().unwrap().push(error.to_string()))
            .queue(
                queue("q"),
                handler(async |job, _| {
                    sqlx::query("select 1").execute(job.tx().await?).await?;
                    // Longer than a hold may go unseen: no check on this runtime could run.
                    std::thread::sleep(Duration::from_millis(1600));
                    Ok(json!(null))
                }),
            ),
    )
    .await;
    drained(database.pool(), "q").await;
    let attempts: Vec<i32> = sqlx::query_scalar("select attempts from seriatim.job order by id")
        .fetch_all(database.pool())
        .await
        .unwrap();
    assert_eq!(attempts, vec![1; jobs], "{:?}", errors.lock().unwrap());
}
