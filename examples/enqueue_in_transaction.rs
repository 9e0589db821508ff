//! An order and its job exist together or not at all: `cargo run --example enqueue_in_transaction`
//!
//! The job is enqueued in the transaction that writes the order. At no moment is one of them there
//! without the other, and there is no outbox to keep. The handler's own write commits together with
//! its job's success.

use std::error::Error;
use std::time::Duration;

use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, NewJob, Processor, QueueOptions, async_trait,
};
use sqlx::{PgConnection, PgPool};

const QUEUE: &str = "shipping";

struct Ship;

#[async_trait]
impl JobHandler for Ship {
    type Data = String;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, item: String) -> Result<(), JobError> {
        let shipped = sqlx::query("update purchase set shipped = true where item = $1")
            .bind(&item)
            .execute(job.tx().await?)
            .await?;
        if shipped.rows_affected() == 0 {
            return Err(JobError::fail(format!("there is no order of {item}")));
        }
        Ok(())
    }
}

/// Writes an order and its job, in the caller's transaction.
async fn order(tx: &mut PgConnection, customer: &str, item: &str) -> Result<(), Box<dyn Error>> {
    sqlx::query("insert into purchase (customer, item) values ($1, $2)")
        .bind(customer)
        .bind(item)
        .execute(&mut *tx)
        .await?;
    seriatim::enqueue(tx, NewJob::new(QUEUE, item).group(customer)).await?;
    Ok(())
}

/// Prints the committed rows.
async fn print_committed(pool: &PgPool, when: &str) -> Result<(i64, u64, u64), Box<dyn Error>> {
    let orders: i64 = sqlx::query_scalar("select count(*) from purchase").fetch_one(pool).await?;
    let jobs = Client::default().counts(pool, QUEUE).await?;
    println!(
        "{when:<24} orders: {orders}  jobs queued: {}  succeeded: {}",
        jobs.queued, jobs.succeeded
    );
    Ok((orders, jobs.unfinished(), jobs.succeeded))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let database = TestDatabase::create().await?;
    let pool = database.pool();
    sqlx::raw_sql(
        "create table purchase (customer text, item text, shipped boolean not null default false)",
    )
    .execute(pool)
    .await?;

    let mut tx = pool.begin().await?;
    order(&mut tx, "Ada", "a lamp").await?;
    let open = print_committed(pool, "before the commit").await?;
    tx.commit().await?;
    let committed = print_committed(pool, "after the commit").await?;

    let mut tx = pool.begin().await?;
    order(&mut tx, "Ada", "a yacht").await?;
    tx.rollback().await?;
    let rolled_back = print_committed(pool, "after a rolled-back one").await?;

    let running = Processor::builder(pool.clone())
        .queue(QueueOptions::new(QUEUE).concurrency(2), Ship)
        .build()?
        .start()
        .await?;
    while Client::default().counts(pool, QUEUE).await?.unfinished() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.shutdown(Duration::from_secs(5)).await;
    let run = print_committed(pool, "after the run").await?;
    let shipped: Vec<String> =
        sqlx::query_scalar("select item from purchase where shipped").fetch_all(pool).await?;
    println!("shipped: {}", shipped.join(", "));
    database.remove().await?;

    let expected = [(0, 0, 0), (1, 1, 0), (1, 1, 0), (1, 0, 1)];
    if [open, committed, rolled_back, run] != expected || shipped != ["a lamp"] {
        return Err("an order and its job came apart".into());
    }
    Ok(())
}
