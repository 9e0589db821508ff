//! Long polls on an idle queue: what they cost.

use std::time::{Duration, Instant};

use serde_json::json;
use sqlx::PgPool;
use tokio::time::sleep;

use crate::host::Host;
use crate::processes::{cpu_of, memory_of};
use crate::{Queue, Result, Settings};

/// How long statements are counted: less than a long poll lasts.
const COUNTED: Duration = Duration::from_secs(5);
/// Sessions that become idle report what they did up to 10 s later.
const REPORTED: Duration = Duration::from_secs(11);

pub(crate) async fn run(settings: &Settings, host: &Host, queue: &Queue) -> Result<()> {
    let empty = host.server().and_then(memory_of);
    let commits = async || match host.pool() {
        Some(pool) => transactions(pool).await.map(Some),
        None => Ok(None),
    };
    let before = commits().await?;
    let begun = Instant::now();
    let mut polls = Vec::new();
    for _ in 0..settings.polls {
        let (mut connection, url) = (queue.client.connect().await?, queue.url.clone());
        polls.push(tokio::spawn(async move {
            let input = json!({"QueueUrl": url, "WaitTimeSeconds": 20});
            connection.call("ReceiveMessage", &input).await.map(drop)
        }));
    }
    let connected = begun.elapsed();
    sleep(REPORTED).await;
    let arrived = commits().await?;
    let (cpu, counting) = (cpu_of(&host.processes), Instant::now());
    sleep(COUNTED).await;
    let counted = commits().await?;
    let cpu = cpu_of(&host.processes).zip(cpu).map(|(now, then)| now.saturating_sub(then));
    let time = counting.elapsed().as_secs_f64();
    if begun.elapsed() > Duration::from_secs(20) {
        return Err("the first long polls ended before they were all there".into());
    }
    let memory = host.server().and_then(memory_of);
    for poll in polls {
        poll.await??;
    }
    let after = host.server().and_then(memory_of);
    let number = |number: Option<f64>| number.map_or_else(|| "-".into(), |n| format!("{n:.1}"));
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let between =
        |from: Option<i64>, to: Option<i64>| to.zip(from).map(|(to, from)| (to - from) as f64);
    println!(
        "| waiting | {} | 0 | - | - | arrived in {connected:.1?} with {} transactions; idle: {} \
         transactions/s, {} % of a core; memory {} MB before, {} MB waiting, {} MB after |",
        settings.polls,
        number(between(before, arrived)),
        number(between(arrived, counted).map(|counted| counted / time)),
        number(cpu.map(|cpu| cpu.as_secs_f64() / time * 100.0)),
        empty.unwrap_or_default(),
        memory.unwrap_or_default(),
        after.unwrap_or_default(),
    );
    Ok(())
}

/// Returns how many transactions there were in the database, this one not yet.
async fn transactions(pool: &PgPool) -> Result<i64> {
    let sql = "select xact_commit + xact_rollback from pg_stat_database
               where datname = current_database()";
    Ok(sqlx::query_scalar(sql).fetch_one(pool).await?)
}
