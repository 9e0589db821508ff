//! Observers read on a standby.

use std::time::Duration;

use serde_json::json;
use seriatim::explain::Reason;
use seriatim::{Client, Hold, Processor};
use sqlx::PgPool;

use crate::support::standby::Pair;
use crate::support::{Gate, enqueue, eventually, handler_with, queue, started, value};

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_answers_observers_and_guesses_nothing() {
    let Some(pair) = Pair::new().await else { return };
    let (primary, client) = (pair.old().clone(), Client::default());
    let standby = PgPool::connect(&pair.standby_url()).await.unwrap();
    let gate = Gate::default();
    let run = handler_with(gate.clone(), async |gate, job, _| {
        job.tx().await?;
        gate.passed().await;
        Ok(json!(null))
    });
    let held = queue("q").hold(Hold::Lease(Duration::from_mins(10)));
    let running = started(Processor::builder(primary.clone()).node("web-1").queue(held, run)).await;
    let (job, behind) =
        (enqueue(&primary, "q", "g", 1).await, enqueue(&primary, "q", "g", 2).await);
    let begun = "select count(*) from seriatim.queue_group where started_at is not null";
    eventually(&standby, begun, 1_i64).await;
    // The session of `job.tx()` is seen on the primary alone.
    let on = async |pool| client.explain_job(pool, job).await.unwrap().unwrap();
    let mut here = on(&primary).await;
    while !matches!(here.reason, Reason::Running { .. }) {
        here = on(&primary).await;
    }
    assert_eq!(here.standby_at, None);
    let there = on(&standby).await;
    assert!(there.standby_at.is_some());
    let Reason::Claimed { processor: Some(processor), .. } = &there.reason else {
        panic!("{there:?}")
    };
    assert!(processor.alive, "{processor:?}");
    let words = there.to_string();
    assert!(words.contains("by processor web-1 (host "), "{words}");
    assert!(words.contains("This is read from a standby, as of "), "{words}");
    assert!(!words.contains("gone") && !words.contains("transaction"), "{words}");
    let group = client.explain_group(&standby, "q", "g").await.unwrap();
    assert!(group.standby_at.is_some());
    let waits = client.explain_job(&standby, behind).await.unwrap().unwrap();
    assert!(matches!(waits.reason, Reason::Behind { head, .. } if head == job), "{waits:?}");
    let processors = client.processors(&standby).await.unwrap();
    assert!(processors.iter().all(|processor| processor.alive), "{processors:?}");
    let queues = client.queues(&standby).await.unwrap();
    assert!(queues[0].served, "{queues:?}");
    client.metrics(&standby).await.unwrap();
    let locks = "select count(*) from pg_locks where locktype = 'advisory'";
    assert_eq!(value::<i64>(&standby, locks).await, 0);

    // Gone since a minute, by the primary's clock.
    gate.pass(2);
    running.shutdown(Duration::from_secs(5)).await;
    let left = "insert into seriatim.processor (id, node, seen_at, queues, presence_key, server_started_at) \
                values (1, 'dead', clock_timestamp() - interval '1 min', '{q}', 7, now())";
    sqlx::query(left).execute(&primary).await.unwrap();
    eventually(&standby, "select count(*) from seriatim.processors() where not alive", 1_i64).await;
    assert!(!client.queues(&standby).await.unwrap().first().is_some_and(|queue| queue.served));
    standby.close().await;
}
