//! The first program of the guide: `DATABASE_URL=postgres://… cargo run --example first_job`

use std::time::Duration;

use serde::{Deserialize, Serialize};
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, JobKind, Processor, QueueOptions, async_trait,
};
use sqlx::PgPool;

#[derive(Serialize, Deserialize)]
struct Posting {
    account: i32,
    cents: i64,
}

impl JobKind for Posting {
    const NAME: &'static str = "posting";
    const QUEUE: &'static str = "postings";

    fn group(&self) -> Option<String> {
        Some(format!("account-{}", self.account)) // what must keep an order
    }
}

struct Post;

#[async_trait]
impl JobHandler for Post {
    type Data = Posting;
    type Output = i64; // stored as the job's result
    type Error = JobError; // `?` makes one of any std::error::Error, and means retry

    async fn handle(&self, job: &mut ActiveJob, posting: Posting) -> Result<i64, JobError> {
        let balance: Option<i64> = sqlx::query_scalar(
            "update account set cents = cents + $2 where id = $1 returning cents",
        )
        .bind(posting.account)
        .bind(posting.cents)
        .fetch_optional(job.tx().await?) // commits together with the job, or not at all
        .await?;
        let balance = balance.ok_or_else(|| JobError::fail("no such account"))?;
        println!("job {}: {:+} cents, balance {balance}", job.id(), posting.cents);
        Ok(balance)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init(); // what the processor logs
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    seriatim::migrate(&pool).await?;
    let table = "create table if not exists account (id int primary key, cents bigint not null);
        insert into account values (42, 0) on conflict do nothing";
    sqlx::raw_sql(table).execute(&pool).await?;

    // The jobs exist if and only if this transaction commits.
    let mut tx = pool.begin().await?;
    for cents in [1_500, -300, 25] {
        seriatim::enqueue(&mut *tx, &Posting { account: 42, cents }).await?;
    }
    tx.commit().await?;

    let running = Processor::builder(pool.clone())
        .queue(QueueOptions::new(Posting::QUEUE).concurrency(4), Post)
        .build()?
        .start()
        .await?;
    // A service awaits `seriatim::shutdown_signal()` here.
    let client = Client::default();
    while client.counts(&pool, "postings").await?.unfinished() > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    running.shutdown(Duration::from_secs(20)).await;
    println!("{} jobs have succeeded", client.counts(&pool, "postings").await?.succeeded);
    Ok(())
}
