//! The shop of the demo: customers who order, webhooks, and a report each night. One customer is
//! poisoned, one is paused, one is slow, one hangs, one is held up by a transaction that was left
//! open, and the server of one takes no more requests for a while. Tenants import documents.

use std::time::Duration;

use chrono::Utc;
use serde::{Deserialize, Serialize};
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, NewJob, OutOfAttempts, Processor, QueueOptions,
    RetryPolicy, Running, Schedule, async_trait,
};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::demo::imports::{self, Import, Summary};
use crate::failure::Failure;

/// How many customers order.
const CUSTOMERS: u32 = 20;
/// The customer with an order that always fails.
const POISONED: u32 = 13;
/// The customer whose webhooks are paused.
const PAUSED: u32 = 7;
/// The customer whose orders take long.
const SLOW: u32 = 3;
/// The customer whose first order hangs, until its run is aborted.
const HANGING: u32 = 17;
/// The customer whose first order is locked by a transaction that was left open.
const LOCKED: u32 = 11;
/// The customer whose server answers 429 to the first call of each webhook.
const LIMITED: u32 = 9;
/// How long that server takes no requests.
const RETRY_AFTER: Duration = Duration::from_secs(20);
/// The steps of a report.
const STEPS: u8 = 20;
/// Between two orders of the shop.
const ORDER_EVERY: Duration = Duration::from_millis(400);

#[derive(Serialize, Deserialize)]
struct Order {
    customer: u32,
    cents: i64,
}

/// Books an order, in the transaction of its job, and enqueues the webhook.
struct Book;

#[async_trait]
impl JobHandler for Book {
    type Data = Order;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, order: Order) -> Result<(), JobError> {
        let Order { customer, cents } = order;
        if cents < 0 {
            return Err(JobError::retry(format!("an order of {cents} cents cannot be booked")));
        }
        // An order of nothing, that is.
        if cents == 0 && job.attempt() == 1 {
            std::future::pending::<()>().await;
        }
        sleep(Duration::from_millis(if customer == SLOW { 20_000 } else { 60 })).await;
        let tx = job.tx().await?;
        sqlx::query("insert into shop_order (customer, cents) values ($1, $2)")
            .bind(i64::from(customer))
            .bind(cents)
            .execute(&mut *tx)
            .await?;
        let webhook =
            NewJob::new("webhooks", &customer).group(group(customer)).name("order.booked");
        seriatim::enqueue(&mut *tx, webhook).await?;
        Ok(())
    }
}

/// Calls a customer's server, which is down now and then.
struct Call;

#[async_trait]
impl JobHandler for Call {
    type Data = u32;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, customer: u32) -> Result<(), JobError> {
        sleep(Duration::from_millis(100)).await;
        if customer == LIMITED && job.snoozes() == 0 {
            let until = Utc::now() + RETRY_AFTER;
            job.rest_group(until, "their server answered 429").await.map_err(JobError::retry)?;
            return Err(JobError::snooze(RETRY_AFTER));
        }
        if customer.is_multiple_of(5) && job.attempt() < 3 {
            return Err(JobError::retry(format!("the server of customer {customer} answered 503")));
        }
        Ok(())
    }
}

/// Makes the report of a day in steps, and goes on at the last one after a crash.
struct Report;

#[async_trait]
impl JobHandler for Report {
    type Data = ();
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, (): ()) -> Result<(), JobError> {
        let done = job.last_checkpoint::<u8>().await?.unwrap_or(0);
        for step in done..STEPS {
            job.progress(step * (100 / STEPS), &format!("step {} of {STEPS}", step + 1))?;
            sleep(Duration::from_secs(1)).await;
            job.checkpoint(&(step + 1)).await?;
        }
        Ok(())
    }
}

/// The running shop.
pub(super) struct Shop {
    running: Running,
    customers: JoinHandle<()>,
    tenants: JoinHandle<()>,
    /// The session with the transaction that was left open.
    _left_open: PgConnection,
}

/// Opens the shop: its table, its workers and its customers.
pub(super) async fn open(pool: &PgPool) -> Result<Shop, Failure> {
    let table = "create table shop_order (
        id bigint generated always as identity primary key,
        customer bigint not null, cents bigint not null)";
    sqlx::raw_sql(table).execute(pool).await?;
    let client = Client::default();
    let ann = client.operator("ann", "their server moves, until Monday");
    ann.pause_group(pool, "webhooks", &group(PAUSED)).await?;
    client.enqueue(pool, order(POISONED, -500).name("refund").max_attempts(2)).await?;
    client.enqueue_many(pool, (0..3).map(|n| order(POISONED, 900 + n))).await?;
    client.enqueue_many(pool, (0..6).map(|n| order(SLOW, 4_000 + n))).await?;
    client.enqueue_many(pool, [0, 1_200, 800].map(|cents| order(HANGING, cents))).await?;
    let locked = client.enqueue(pool, order(LOCKED, 700)).await?.id();
    let left_open = leave_open(pool, locked).await?;
    client.enqueue(pool, order(CUSTOMERS, 2_500).delay(Duration::from_hours(1))).await?;
    // Nobody serves it: the name is mistyped.
    client.enqueue(pool, NewJob::new("weebhooks", &CUSTOMERS).group(group(CUSTOMERS))).await?;
    let retry = |attempts| RetryPolicy::new(attempts).base(Duration::from_secs(1));
    let orders = QueueOptions::new("orders")
        .concurrency(6)
        .retry(retry(4))
        .out_of_attempts(OutOfAttempts::Halt);
    let webhooks = QueueOptions::new("webhooks").concurrency(4).retry(retry(5));
    let nightly = Schedule::cron("close the day", "0 3 * * *", "Europe/Berlin")
        .job(NewJob::new("reports", &()).group("the shop").name("report"));
    client.enqueue(pool, NewJob::new("reports", &()).group("the shop").name("report")).await?;
    imports::configure(pool).await?;
    let running = Processor::builder(pool.clone())
        .queue(orders, Book)
        .queue(webhooks, Call)
        .queue(QueueOptions::new("reports").concurrency(1), Report)
        .queue(QueueOptions::new(imports::QUEUE).concurrency(6), Import)
        .queue(QueueOptions::new(imports::SUMMARIES).concurrency(1), Summary { pool: pool.clone() })
        .schedule(nightly)
        .build()
        .map_err(Failure::could_not("build the workers"))?
        .start()
        .await
        .map_err(Failure::could_not("start the workers"))?;
    let customers = tokio::spawn(keep_ordering(pool.clone()));
    let tenants = tokio::spawn(imports::keep_importing(pool.clone()));
    Ok(Shop { running, customers, tenants, _left_open: left_open })
}

impl Shop {
    /// Closes the shop. Handlers that still run are dropped after `within`.
    pub(super) async fn close(self, within: Duration) {
        self.customers.abort();
        self.tenants.abort();
        self.running.shutdown(within).await;
    }
}

/// Locks a job in a transaction that nobody ends, as in a forgotten terminal.
async fn leave_open(pool: &PgPool, job: i64) -> Result<PgConnection, Failure> {
    let options = pool.connect_options().as_ref().clone().application_name("psql");
    let mut session = PgConnection::connect_with(&options).await?;
    sqlx::raw_sql("begin").execute(&mut session).await?;
    sqlx::query("select id from seriatim.job where id = $1 for update")
        .bind(job)
        .execute(&mut session)
        .await?;
    Ok(session)
}

/// Lets all customers but the special ones order, one after another.
async fn keep_ordering(pool: PgPool) {
    let client = Client::default();
    let mut tick = interval(ORDER_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let special = [POISONED, SLOW, HANGING, LOCKED];
    let customers = (1..=CUSTOMERS).filter(|customer| !special.contains(customer));
    for customer in customers.cycle() {
        tick.tick().await;
        let cents = i64::from(fastrand::u32(100..10_000));
        if let Err(error) = client.enqueue(&pool, order(customer, cents)).await {
            eprintln!("an order was not enqueued: {error}");
        }
    }
}

fn order(customer: u32, cents: i64) -> NewJob {
    NewJob::new("orders", &Order { customer, cents }).group(group(customer)).name("order")
}

fn group(customer: u32) -> String {
    format!("customer-{customer}")
}
