//! Transfers between accounts, by handlers that fail at random: `cargo run --example ledger`
//!
//! A transfer is two postings, one in the group of each account, enqueued together. A handler may
//! fail or panic after it has written: its writes are rolled back, the posting keeps its place and
//! is tried again. At the end each account must have exactly its postings, in order, and the sum of
//! all balances must be what it was.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, JobError, JobHandler, NewJob, Processor, QueueOptions, RetryPolicy,
    async_trait,
};
use sqlx::PgPool;

const QUEUE: &str = "postings";
const ACCOUNTS: [&str; 6] = ["Ada", "Alan", "Barbara", "Edsger", "Grace", "Tony"];
const OPENING: i64 = 100_000;
const TRANSFERS: i64 = 200;

const TABLES: &str = "
    create table account (name text primary key, cents bigint not null);
    create table posting (
      id bigint generated always as identity, account text, transfer bigint, cents bigint, balance bigint)";

#[derive(Clone, Serialize, Deserialize)]
struct Posting {
    transfer: i64,
    account: String,
    cents: i64,
}

/// Books a posting, and counts its failures.
#[derive(Default)]
struct Book {
    errors: AtomicU32,
    panics: AtomicU32,
}

#[async_trait]
impl JobHandler for Book {
    type Data = Posting;
    type Output = i64;
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, posting: Posting) -> Result<i64, JobError> {
        let tx = job.tx().await?;
        let balance: i64 = sqlx::query_scalar(
            "update account set cents = cents + $2 where name = $1 returning cents",
        )
        .bind(&posting.account)
        .bind(posting.cents)
        .fetch_one(&mut *tx)
        .await?;
        sqlx::query(
            "insert into posting (account, transfer, cents, balance) values ($1, $2, $3, $4)",
        )
        .bind(&posting.account)
        .bind(posting.transfer)
        .bind(posting.cents)
        .bind(balance)
        .execute(tx)
        .await?;
        // After the writes, where a failure does the most harm.
        self.fail_at_random()?;
        Ok(balance)
    }
}

impl Book {
    #[allow(clippy::panic)] // To show that it does no harm.
    fn fail_at_random(&self) -> Result<(), JobError> {
        match fastrand::u32(..100) {
            0..10 => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                Err(JobError::retry("bad luck"))
            }
            10..15 => {
                self.panics.fetch_add(1, Ordering::Relaxed);
                panic!("worse luck")
            }
            _ => Ok(()),
        }
    }
}

/// Returns the two postings of a transfer between two accounts.
fn transfer(number: i64) -> [Posting; 2] {
    let from = fastrand::usize(..ACCOUNTS.len());
    let to = (from + fastrand::usize(1..ACCOUNTS.len())) % ACCOUNTS.len();
    let cents = fastrand::i64(1..5_000);
    [(from, -cents), (to, cents)].map(|(account, cents)| Posting {
        transfer: number,
        account: ACCOUNTS[account].to_owned(),
        cents,
    })
}

/// Prints each account, and returns whether it has the postings that were enqueued for it, in that
/// order.
async fn check(pool: &PgPool, enqueued: &[Posting]) -> Result<bool, sqlx::Error> {
    println!("account   postings   balance   in order");
    let (mut sum, mut right) = (0, true);
    for account in ACCOUNTS {
        let booked: Vec<(i64, i64, i64)> = sqlx::query_as(
            "select transfer, cents, balance from posting where account = $1 order by id",
        )
        .bind(account)
        .fetch_all(pool)
        .await?;
        let mut balance = OPENING;
        let own = enqueued.iter().filter(|posting| posting.account == account);
        let expected: Vec<_> = own
            .map(|posting| {
                balance += posting.cents;
                (posting.transfer, posting.cents, balance)
            })
            .collect();
        let cents: i64 = sqlx::query_scalar("select cents from account where name = $1")
            .bind(account)
            .fetch_one(pool)
            .await?;
        let in_order = booked == expected && cents == balance;
        let word = if in_order { "yes" } else { "NO" };
        println!("{account:<10}{:>8}{cents:>10}   {word}", booked.len());
        sum += cents;
        right &= in_order;
    }
    let opening = OPENING * i64::try_from(ACCOUNTS.len()).unwrap_or_default();
    println!("sum of all balances: {sum}, at the beginning: {opening}");
    Ok(right && sum == opening)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The panics are meant, and the library reports them as failed attempts.
    std::panic::set_hook(Box::new(|_| {}));
    let database = TestDatabase::create().await?;
    let pool = database.pool();
    sqlx::raw_sql(TABLES).execute(pool).await?;
    for account in ACCOUNTS {
        sqlx::query("insert into account values ($1, $2)")
            .bind(account)
            .bind(OPENING)
            .execute(pool)
            .await?;
    }

    let book = Arc::new(Book::default());
    // So many attempts that chance cannot use them up.
    let retry = RetryPolicy::new(100).base(Duration::from_millis(5)).factor(1.0);
    let running = Processor::builder(pool.clone())
        .queue(QueueOptions::new(QUEUE).concurrency(ACCOUNTS.len()).retry(retry), Arc::clone(&book))
        .build()?
        .start()
        .await?;

    println!("{TRANSFERS} transfers between {} accounts", ACCOUNTS.len());
    let mut enqueued = Vec::new();
    for number in 1..=TRANSFERS {
        let postings = transfer(number);
        let jobs =
            postings.iter().map(|posting| NewJob::new(QUEUE, posting).group(&posting.account));
        seriatim::enqueue_many(pool, jobs).await?;
        enqueued.extend(postings);
    }
    while Client::default().counts(pool, QUEUE).await?.unfinished() > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.shutdown(Duration::from_secs(5)).await;

    let (errors, panics) = (&book.errors, &book.panics);
    println!(
        "failed attempts: {errors:?} errors, {panics:?} panics, each tried again in its place\n"
    );
    let right = check(pool, &enqueued).await?;
    database.remove().await?;
    if right { Ok(()) } else { Err("the books are wrong".into()) }
}
