//! From a send to the end of the long poll that has the message.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::interval;

use crate::host::Host;
use crate::{Failure, Figures, Metered, Queue, Result, Settings};

const EVERY: Duration = Duration::from_millis(20);

pub(crate) async fn run(settings: &Settings, host: &Host, queue: &Queue) -> Result<()> {
    let origin = Instant::now();
    let number = settings.seconds * 50;
    let sender = {
        let queue = queue.clone();
        tokio::spawn(async move {
            let mut connection = queue.client.connect().await?;
            let mut ticks = interval(EVERY);
            for number in 0..number {
                ticks.tick().await;
                let body = origin.elapsed().as_micros().to_string();
                let mut input = json!({"QueueUrl": queue.url, "MessageBody": body});
                if queue.is_fifo {
                    input["MessageGroupId"] = format!("group-{}", number % 100).into();
                    input["MessageDeduplicationId"] = format!("{number}-{body}").into();
                }
                connection.call("SendMessage", &input).await?;
            }
            Ok::<_, Failure>(())
        })
    };
    let (begun, metered) = (Instant::now(), Metered::begin(host));
    let mut connection = queue.client.connect().await?;
    let wait = json!({"QueueUrl": queue.url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 20});
    let mut latencies: Vec<u128> = Vec::new();
    while latencies.len() < usize::try_from(number)? {
        let received = connection.call("ReceiveMessage", &wait).await?;
        let now = origin.elapsed().as_micros();
        let bodies = queue.client.dialect.texts(&received, "Body");
        if bodies.is_empty() {
            return Err("a message did not come within 20 s".into());
        }
        for body in bodies {
            latencies.push(now - body.parse::<u128>()?);
        }
        for handle in queue.client.dialect.texts(&received, "ReceiptHandle") {
            let input = json!({"QueueUrl": queue.url, "ReceiptHandle": handle});
            connection.call("DeleteMessage", &input).await?;
        }
    }
    sender.await??;
    let (time, cpu) = (begun.elapsed(), metered.end(host));
    latencies.sort_unstable();
    let at = |percent: usize| {
        Duration::from_micros(
            latencies[latencies.len() * percent / 100].try_into().unwrap_or(u64::MAX),
        )
    };
    let more = format!("p50 {:.1?}, p90 {:.1?}, p99 {:.1?}", at(50), at(90), at(99));
    let (scenario, messages) = ("latency at 50/s", latencies.len());
    Figures { scenario, connections: 2, messages, time, cpu, more }.print();
    Ok(())
}
