//! Long polls: what ends them, what they cost, and what becomes of those whose client is gone.

use std::time::Duration;

use serde_json::json;
use seriatim::{Client, NewJob, Schedule};
use seriatim_sqs::{Access, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::support::{PATIENCE, Sqs, bodies};

/// Longer than any event takes that these tests wait for.
fn wait() -> serde_json::Value {
    json!({"WaitTimeSeconds": 20, "MaxNumberOfMessages": 10})
}

/// Waits until so many requests wait for messages: each has found nothing.
async fn until_received(sqs: &Sqs, url: &str, waits: usize) -> Vec<TcpStream> {
    let body = format!("{{\"QueueUrl\":\"{url}\",\"WaitTimeSeconds\":20}}");
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {}\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\n\
         content-length: {}\r\n\r\n{body}",
        sqs.address,
        body.len()
    );
    let mut streams = Vec::new();
    for _ in 0..waits {
        let mut stream = TcpStream::connect(&sqs.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        streams.push(stream);
    }
    streams
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_is_due_ends_a_wait() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    let nightly = Schedule::once_at("nightly", chrono::Utc::now() + Duration::from_secs(1));
    let nightly = nightly.job(NewJob::new("q.fifo", &"every night").group("reports"));
    let operator = Client::default().operator("test", None);
    operator
        .set_schedule(&mut sqs.database.pool().acquire().await.unwrap(), nightly)
        .await
        .unwrap();
    let received = sqs.receive_with(&url, wait()).await;
    assert_eq!(bodies(&received), ["\"every night\""]);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_ends_a_wait() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    let begun = Instant::now();
    // A message sent by a client, one behind a deleted message, one given back, and one sent by
    // SQL.
    let (received, ()) =
        tokio::join!(sqs.receive_with(&url, wait()), sqs.send_to(&url, "g", &["1"]));
    assert_eq!(bodies(&received), ["1"]);
    let handle = &received[0]["ReceiptHandle"];
    sqs.send_to(&url, "g", &["2"]).await;
    let (next, _) = tokio::join!(sqs.receive_with(&url, wait()), sqs.delete(&url, &received[0]));
    assert_eq!(bodies(&next), ["2"], "{handle}");
    let visible =
        json!({"QueueUrl": url, "ReceiptHandle": next[0]["ReceiptHandle"], "VisibilityTimeout": 0});
    let (again, _) =
        tokio::join!(sqs.receive_with(&url, wait()), sqs.call("ChangeMessageVisibility", visible));
    assert_eq!(bodies(&again), ["2"]);
    let (of_sql, ()) = tokio::join!(
        sqs.receive_with(&url, wait()),
        sqs.sql("select seriatim.enqueue('q.fifo', '3', 'h', delay => '1 s')")
    );
    assert_eq!(bodies(&of_sql), ["3"]);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_without_messages_ends_in_time() {
    let sqs = Sqs::start().await;
    let url = sqs.queue_with("q", json!({"ReceiveMessageWaitTimeSeconds": "1"})).await;
    let begun = Instant::now();
    assert!(sqs.receive(&url).await.is_empty());
    assert!(begun.elapsed() >= Duration::from_secs(1));
    let mut quickest = PATIENCE;
    for _ in 0..5 {
        let begun = Instant::now();
        assert!(sqs.receive_with(&url, json!({"WaitTimeSeconds": 0})).await.is_empty());
        quickest = quickest.min(begun.elapsed());
    }
    assert!(quickest < Duration::from_secs(1), "{quickest:?}");
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_waits_need_no_connections_of_their_own() {
    let sqs = Sqs::start_with(Config::new().access(Access::Anonymous), 3).await;
    let url = sqs.queue("q").await;
    let mut waits = until_received(&sqs, &url, 300).await;
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})).await;
    // One of them has it.
    let answers = waits.iter_mut().map(|wait| {
        Box::pin(async move {
            let mut answer = vec![0; 4096];
            let read = wait.read(&mut answer).await.unwrap();
            String::from_utf8_lossy(&answer[..read]).into_owned()
        })
    });
    let (answer, ..) = timeout(PATIENCE, futures::future::select_all(answers)).await.unwrap();
    assert!(answer.contains("\"Body\":\"1\""), "{answer}");
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hung_up_gets_nothing() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    drop(until_received(&sqs, &url, 20).await);
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})).await;
    let received = sqs.receive_with(&url, wait()).await;
    assert_eq!(bodies(&received), ["1"]);
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_claimed_for_a_client_that_hung_up_is_released() {
    let sqs = Sqs::start().await;
    let url = sqs.queue("q.fifo").await;
    sqs.send_to(&url, "g", &["1", "2"]).await;
    // A claim takes a second, in which the client goes.
    sqs.sql(
        "create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(1); return new; end $$;
         create trigger slow before update on seriatim.job for each statement execute function slow()",
    )
    .await;
    let waits = until_received(&sqs, &url, 1).await;
    let claims = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'";
    while sqs.number(claims).await == 0 {}
    drop(waits);
    let forgiven = "select coalesce(sum(attempts_forgiven), 0)::int8 from seriatim.job";
    let begun = Instant::now();
    while sqs.number(forgiven).await == 0 {
        assert!(begun.elapsed() < PATIENCE, "what was claimed is not released");
    }
    sqs.sql("drop trigger slow on seriatim.job").await;
    let all = json!({"WaitTimeSeconds": 20, "MaxNumberOfMessages": 10});
    assert_eq!(bodies(&sqs.receive_with(&url, all).await), ["1", "2"]);
    assert_eq!(
        sqs.number(
            "select max(attempts - attempts_forgiven + (select count(c.started_at)
               from seriatim.claim_of(queue, group_id, id) c))::int8 from seriatim.job"
        )
        .await,
        1
    );
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_server_ends_its_waits() {
    let mut sqs = Sqs::start().await;
    let url = sqs.queue("q").await;
    let mut waits = until_received(&sqs, &url, 1).await;
    // The request has been read, and found nothing.
    let begun = Instant::now();
    while sqs.number("select count(*) from seriatim.receiver where queue = 'q'").await == 0 {
        assert!(begun.elapsed() < PATIENCE, "nobody receives");
    }
    let begun = Instant::now();
    sqs.tell_to_end();
    let mut answer = Vec::new();
    timeout(PATIENCE, waits[0].read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    assert!(String::from_utf8(answer).unwrap().starts_with("HTTP/1.1 200"));
    sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_comes_again_when_its_visibility_ends() {
    let sqs = Sqs::start().await;
    for name in ["q", "q.fifo"] {
        let url = sqs.queue(name).await;
        sqs.sql(&format!(
            "select seriatim.enqueue('{name}', '1', 'g'), seriatim.enqueue('{name}', '2', 'g')"
        ))
        .await;
        let of_one_second = json!({"VisibilityTimeout": 1, "MaxNumberOfMessages": 10});
        // Longer than the visibility, and shorter than with the grace of a take-over. A stalled
        // machine may look too late.
        let again = json!({"WaitTimeSeconds": 2, "MaxNumberOfMessages": 10, "AttributeNames": ["ApproximateReceiveCount"]});
        let mut first = of_one_second.clone();
        for received in 1.. {
            assert_eq!(bodies(&sqs.receive_with(&url, first).await), ["1", "2"]);
            let again = sqs.receive_with(&url, again.clone()).await;
            if !again.is_empty() {
                assert_eq!(bodies(&again), ["1", "2"]);
                let count = (received + 1).to_string();
                assert_eq!(again[0]["Attributes"]["ApproximateReceiveCount"], count);
                break;
            }
            assert!(received < 5, "they do not come again within 2 s");
            first = of_one_second.clone();
            first["WaitTimeSeconds"] = json!(20);
        }
        sqs.receive(&url).await;
    }
    sqs.end().await;
}
