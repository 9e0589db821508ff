//! Messages a second: sends, and receives with deletes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::client::Connection;
use crate::host::Host;
use crate::{Failure, Figures, Metered, Queue, Result, Settings};

const BATCH: usize = 10;
const GROUPS: usize = 10_000;
/// The body of a typical message.
const BODY: &str = "0123456789012345678901234567890123456789012345678901234567890123456789\
                    012345678901234567890123456789";

/// Returns a message, in the group of its number.
fn message(queue: &Queue, number: usize) -> Value {
    let mut message = json!({"MessageBody": BODY});
    if queue.is_fifo {
        message["MessageGroupId"] = format!("group-{}", number % GROUPS).into();
        message["MessageDeduplicationId"] = format!("{number}-{}", fastrand::u64(..)).into();
    }
    message
}

async fn send_one(connection: &mut Connection, queue: &Queue, number: usize) -> Result<()> {
    let mut input = message(queue, number);
    input["QueueUrl"] = queue.url.clone().into();
    connection.call("SendMessage", &input).await.map(drop)
}

async fn send_ten(connection: &mut Connection, queue: &Queue, from: usize) -> Result<()> {
    let entries = (from..from + BATCH).map(|number| {
        let mut entry = message(queue, number);
        entry["Id"] = number.to_string().into();
        entry
    });
    let entries: Vec<Value> = entries.collect();
    let input = json!({"QueueUrl": queue.url, "Entries": entries});
    let answer = connection.call("SendMessageBatch", &input).await?;
    if answer.contains("SenderFault") { Err(answer.into()) } else { Ok(()) }
}

/// Sends on some connections, `each` messages a request, until the time is over or `limit` is
/// reached. Returns how many.
async fn send_for(
    queue: &Queue,
    connections: usize,
    each: usize,
    time: Duration,
    limit: usize,
) -> Result<usize> {
    let (next, end) = (Arc::new(AtomicUsize::new(0)), Instant::now() + time);
    let tasks = (0..connections).map(|_| {
        let (queue, next) = (queue.clone(), Arc::clone(&next));
        tokio::spawn(async move {
            let mut connection = queue.client.connect().await?;
            let mut sent = 0;
            while Instant::now() < end {
                let number = next.fetch_add(each, Ordering::Relaxed);
                if number >= limit {
                    break;
                }
                if each == 1 {
                    send_one(&mut connection, &queue, number).await?;
                } else {
                    send_ten(&mut connection, &queue, number).await?;
                }
                sent += each;
            }
            Ok::<_, Failure>(sent)
        })
    });
    let sent = try_join_all(tasks).await?;
    sent.into_iter().sum()
}

pub(crate) async fn send(settings: &Settings, host: &Host, queue: &Queue) -> Result<()> {
    sends(settings, host, queue, "SendMessage", settings.connections, 1).await
}

pub(crate) async fn batch(settings: &Settings, host: &Host, queue: &Queue) -> Result<()> {
    let connections = settings.connections.div_ceil(4);
    sends(settings, host, queue, "SendMessageBatch of 10", connections, BATCH).await
}

async fn sends(
    settings: &Settings,
    host: &Host,
    queue: &Queue,
    scenario: &'static str,
    connections: usize,
    each: usize,
) -> Result<()> {
    let (begun, metered) = (Instant::now(), Metered::begin(host));
    let messages = send_for(queue, connections, each, settings.time(), usize::MAX).await?;
    let (time, cpu) = (begun.elapsed(), metered.end(host));
    let more = String::new();
    Figures { scenario, connections, messages, time, cpu, more }.print();
    Ok(())
}

pub(crate) async fn receive(settings: &Settings, host: &Host, queue: &Queue) -> Result<()> {
    let connections = settings.connections.div_ceil(4);
    let forever = Duration::from_hours(1);
    send_for(queue, connections, BATCH, forever, settings.backlog).await?;
    let (begun, metered) = (Instant::now(), Metered::begin(host));
    let tasks = (0..connections).map(|_| {
        let queue = queue.clone();
        let end = begun + settings.time();
        tokio::spawn(async move {
            let mut connection = queue.client.connect().await?;
            let input = json!({"QueueUrl": queue.url, "MaxNumberOfMessages": BATCH});
            let (mut messages, mut failed, mut empty) = (0, 0, 0);
            while Instant::now() < end && empty < 3 {
                let received = connection.call("ReceiveMessage", &input).await?;
                let handles = queue.client.dialect.texts(&received, "ReceiptHandle");
                if handles.is_empty() {
                    empty += 1;
                    continue;
                }
                empty = 0;
                let entries = handles.iter().enumerate();
                let entries: Vec<Value> = entries
                    .map(|(id, handle)| json!({"Id": id.to_string(), "ReceiptHandle": handle}))
                    .collect();
                let input = json!({"QueueUrl": queue.url, "Entries": entries});
                let answer = connection.call("DeleteMessageBatch", &input).await?;
                // Busy ones come again.
                let not_done = answer.matches("SenderFault").count();
                failed += not_done;
                messages += handles.len() - not_done;
            }
            Ok::<_, Failure>((messages, failed))
        })
    });
    let received = try_join_all(tasks).await?;
    let (time, cpu) = (begun.elapsed(), metered.end(host));
    let (mut messages, mut failed) = (0, 0);
    for received in received {
        let received = received?;
        messages += received.0;
        failed += received.1;
    }
    let groups = GROUPS.min(settings.backlog);
    let more = format!("of {} in {groups} groups; {failed} deletes failed", settings.backlog);
    let scenario = "receive 10, delete 10";
    Figures { scenario, connections, messages, time, cpu, more }.print();
    Ok(())
}
