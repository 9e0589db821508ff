//! The shop of the demo: customers who order, webhooks, and a report each night. One customer is
//! poisoned, one is paused, one is slow, one hangs, one is held up by a transaction that was left
//! open, and the server of one takes no more requests for a while. Tenants import documents.

use std::time::Duration;

use chrono::Utc;
use serde::{Deserialize, Serialize};
use seriatim::shards::Shards;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, JobKind, NewJob, OutOfAttempts, Processor,
    QueueOptions, RetryPolicy, Running, Schedule, async_trait,
};
use sqlx::{Connection, PgConnection, PgPool};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::demo::imports::{self, Import, Summary};
use crate::demo::witness::Witness;
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
/// The customer whose first order is for later.
const DELAYED: u32 = CUSTOMERS;
/// Customers who order only at the opening.
const SPECIAL: [u32; 4] = [POISONED, SLOW, HANGING, LOCKED];
/// How long that server takes no requests.
const RETRY_AFTER: Duration = Duration::from_secs(20);
/// The group of all reports.
pub(super) const REPORTS: &str = "the shop";
/// The steps of a report.
const STEPS: u8 = 20;
/// Between two orders of the shop.
const ORDER_EVERY: Duration = Duration::from_millis(400);

#[derive(Serialize, Deserialize)]
struct Order {
    customer: u32,
    cents: i64,
}

impl JobKind for Order {
    const NAME: &'static str = "order";
    const QUEUE: &'static str = "orders";

    fn group(&self) -> Option<String> {
        Some(group(self.customer))
    }
}

/// Says to a customer that an order was booked.
#[derive(Serialize, Deserialize)]
struct Booked(u32);

impl JobKind for Booked {
    const NAME: &'static str = "order.booked";
    const QUEUE: &'static str = "webhooks";

    fn group(&self) -> Option<String> {
        Some(group(self.0))
    }
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
        seriatim::enqueue(&mut *tx, &Booked(customer)).await?;
        Ok(())
    }
}

/// Calls a customer's server, which is down now and then.
struct Call;

#[async_trait]
impl JobHandler for Call {
    type Data = Booked;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, booked: Booked) -> Result<(), JobError> {
        let Booked(customer) = booked;
        sleep(Duration::from_millis(100)).await;
        if customer == LIMITED && job.snoozes() == 0 {
            let rested = job.rest_group(RETRY_AFTER, "their server answered 429").await;
            rested.map_err(JobError::retry)?;
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
    /// A task for each server: one that is away stops its own customers, and no others.
    customers: Vec<JoinHandle<()>>,
    tenants: JoinHandle<()>,
    /// The session with the transaction that was left open.
    _left_open: PgConnection,
}

/// Opens the shop on each server: its table, its workers and its customers. A customer's jobs are
/// on one server. The witness sees what happens.
pub(super) async fn open(shards: &Shards, witness: Option<&Witness>) -> Result<Shop, Failure> {
    let table = "create table shop_order (
        id bigint generated always as identity primary key,
        customer bigint not null, cents bigint not null)";
    for (_, pool) in shards.iter() {
        sqlx::raw_sql(table).execute(pool).await?;
        imports::configure(pool).await?;
    }
    let client = Client::default();
    let of = |customer| shards.of_group(&group(customer)).1;
    let ann = client.operator("ann", "their server moves, until Monday");
    ann.pause_group(of(PAUSED), "webhooks", &group(PAUSED)).await?;
    client.enqueue(of(POISONED), order(POISONED, -500).name("refund").max_attempts(2)).await?;
    client.enqueue_many(of(POISONED), (0..3).map(|n| order(POISONED, 900 + n))).await?;
    client.enqueue_many(of(SLOW), (0..6).map(|n| order(SLOW, 4_000 + n))).await?;
    let hanging = [0, 1_200, 800].map(|cents| order(HANGING, cents));
    client.enqueue_many(of(HANGING), hanging).await?;
    let locked = client.enqueue(of(LOCKED), order(LOCKED, 700)).await?.id();
    let left_open = leave_open(of(LOCKED), locked).await?;
    client.enqueue(of(DELAYED), order(DELAYED, 2_500).delay(Duration::from_hours(1))).await?;
    // Nobody serves it: the name is mistyped.
    let mistyped = NewJob::new("weebhooks", &DELAYED).group(group(DELAYED));
    client.enqueue(of(DELAYED), mistyped).await?;
    let retry = |attempts| RetryPolicy::new(attempts).base(Duration::from_secs(1));
    let orders = QueueOptions::new(Order::QUEUE)
        .concurrency(6)
        .retry(retry(4))
        .out_of_attempts(OutOfAttempts::Halt);
    let webhooks = QueueOptions::new(Booked::QUEUE).concurrency(4).retry(retry(5));
    let report = || NewJob::new("reports", &()).group(REPORTS).name("report");
    let nightly = Schedule::cron("close the day", "0 3 * * *", "Europe/Berlin").job(report());
    let (_, of_reports) = shards.of_group(REPORTS);
    client.enqueue(of_reports, report()).await?;
    let mut servers = shards.iter();
    let builder = if let (Some((_, only)), None) = (servers.next(), servers.next()) {
        Processor::builder(only.clone()).schedule(nightly)
    } else {
        // A processor of several servers takes none: each would fire it.
        let mut conn = of_reports.acquire().await?;
        client.operator("ann", "the books").set_schedule(&mut conn, nightly).await?;
        Processor::over(shards)
    };
    let builder = match witness {
        Some(witness) => builder.layer(witness.clone()),
        None => builder,
    };
    let summary = Summary { shards: shards.clone() };
    let running = builder
        .queue(orders, Book)
        .queue(webhooks, Call)
        .queue(QueueOptions::new("reports").concurrency(1), Report)
        .queue(QueueOptions::new(imports::QUEUE).concurrency(6), Import)
        .queue(QueueOptions::new(imports::SUMMARIES).concurrency(1), summary)
        .build()
        .map_err(Failure::could_not("build the workers"))?
        .start()
        .await
        .map_err(Failure::could_not("start the workers"))?;
    let customers = shards.iter().map(|(shard, pool)| {
        let own = |customer: &u32| shards.of_group(&group(*customer)).0 == shard;
        let ordering = (1..=CUSTOMERS).filter(|customer| !SPECIAL.contains(customer)).filter(own);
        tokio::spawn(keep_ordering(pool.clone(), ordering.collect(), witness.cloned()))
    });
    let customers = customers.collect();
    let tenants = tokio::spawn(imports::keep_importing(shards.clone()));
    Ok(Shop { running, customers, tenants, _left_open: left_open })
}

impl Shop {
    /// Closes the shop. Handlers that still run are dropped after `within`.
    pub(super) async fn close(self, within: Duration) {
        for customers in self.customers {
            customers.abort();
        }
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

/// Lets customers order, one after another.
async fn keep_ordering(pool: PgPool, customers: Vec<u32>, witness: Option<Witness>) {
    let client = Client::default();
    let mut tick = interval(ORDER_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for customer in customers.into_iter().cycle() {
        tick.tick().await;
        let (cents, begin) = (i64::from(fastrand::u32(100..10_000)), Utc::now());
        match client.enqueue(&pool, order(customer, cents)).await {
            Ok(enqueued) => {
                if let Some(witness) = &witness {
                    let of = ("orders", group(customer));
                    witness.enqueued(enqueued.id(), of, begin, customer != DELAYED);
                }
            }
            Err(error) => eprintln!("an order was not enqueued: {error}"),
        }
    }
}

fn order(customer: u32, cents: i64) -> NewJob {
    NewJob::of(&Order { customer, cents })
}

fn group(customer: u32) -> String {
    format!("customer-{customer}")
}
