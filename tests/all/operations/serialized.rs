//! The values that operators read, as JSON.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use seriatim::admin::{
    Cancelled, HaltedGroup, ParkedUnit, Purged, QueueSettings, Redriven, Released, Retried,
};
use seriatim::receive::Receive;
use seriatim::{Client, Hold, JobError, NewJob, OutOfAttempts, ShutdownReport};

use crate::support::{database, ended, handler, processor, queue};

/// Compiles for what is `Serialize`.
fn serializable<T: Serialize>() {}

fn json_of(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[tokio::test]
async fn what_operators_read_is_json_with_times_in_seconds() {
    serializable::<(HaltedGroup, ParkedUnit, Purged, Released, Redriven, Retried, ShutdownReport)>(
    );
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let run = handler(async |_, _| Err(JobError::fail("no")));
    let options = queue("q").out_of_attempts(OutOfAttempts::Halt).hold(Hold::Transaction);
    let running = processor(&database, 10).await.queue(options, run).build().unwrap();
    let running = running.start().await.unwrap();
    let new = NewJob::bytes("q", "text/plain", vec![0, 255]).group("g");
    let enqueued = client.enqueue(pool, new).await.unwrap();
    let job = json_of(ended(pool, enqueued.id()).await);
    let report = running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(json_of(report)["still_running"], json!(0));

    assert_eq!(json_of(enqueued), json!({"enqueued": "new", "id": enqueued.id()}));
    assert_eq!(job["payload"], json!("\\x00ff"));
    assert_eq!((&job["status"], &job["error"]["kind"]), (&json!("failed"), &json!("data")));
    assert_eq!(json_of(client.counts(pool, "q").await.unwrap())["failed"], json!(1));
    let halted = json_of(client.halted_groups(pool, "q").await.unwrap());
    assert!(halted[0]["age"].is_f64() && halted[0]["group"] == "g", "{halted}");
    client.operator("test", "lunch").pause_queue(pool, "q").await.unwrap();
    let paused = json_of(client.paused_queue(pool, "q").await.unwrap());
    assert!(paused["age"].is_f64() && paused["reason"] == "lunch", "{paused}");
    let settings = QueueSettings::new("slow").delay(Duration::from_millis(1_500));
    client.configure_queue(pool, settings).await.unwrap();
    let settings = json_of(client.queue_settings(pool, "slow").await.unwrap());
    assert_eq!((&settings["delay"], &settings["dedup_window"]), (&json!(1.5), &json!(300.0)));
    client.enqueue(pool, NewJob::new("by-hand", &7)).await.unwrap();
    let received = client.receive(pool, Receive::new("by-hand")).await.unwrap();
    let received = json_of(received);
    assert!(received[0]["receipt"].is_string() && received[0]["data"] == 7, "{received}");
    assert_eq!(json_of(Cancelled::Requested), json!("requested"));
}
