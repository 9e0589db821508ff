//! The guides for moving from other queues: their SQL is run as pasted, on tables as the other
//! projects' migrations make them, with the columns that are used.

mod graphile_worker;
mod oban;
mod pgmq;
mod river;
mod sqlxmq;

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::testing::TestDatabase;
use seriatim::{Client, Processor};
use sqlx::{AssertSqlSafe, PgPool, Row};

use super::read;
use crate::support::{
    Log, PATIENCE, by_hand, eventually, groups_where, handler_with, queue, value,
};

/// The SQL of a page, of its lists too.
fn sql_of(page: &str) -> Vec<String> {
    let text = read(page);
    let mut found = Vec::new();
    let mut block: Option<String> = None;
    for line in text.lines() {
        match (line.trim(), &mut block) {
            ("```sql", None) => block = Some(String::new()),
            ("```", Some(_)) => found.extend(block.take()),
            (_, Some(block)) => {
                block.push_str(line);
                block.push('\n');
            }
            (_, None) => {}
        }
    }
    found
}

/// Another queue, and how its guide names things.
struct Old {
    page: &'static str,
    /// Its tables and functions, with some jobs that must stay as they are.
    tables: &'static str,
    /// How its producers enqueue job `n` of an account.
    add: fn(account: usize, n: usize) -> String,
    /// How a failed job is stored, 99 of account 9, that has used three attempts and is due in an
    /// hour.
    delayed: &'static str,
    /// The attempts that it has left, its group and its name here.
    delayed_is: &'static str,
    /// The numbers of the jobs that wait there, as one text in the order in which they would run.
    waiting: &'static str,
    /// The queue here.
    queue: &'static str,
}

/// A guide's SQL in the order of its steps.
struct Steps {
    functions: String,
    pause: String,
    /// Counts that must be 0 before the move.
    ready: String,
    moving: String,
    check: String,
    resume: String,
    back: String,
}

impl Old {
    fn steps(&self) -> Steps {
        let [functions, pause, ready, moving, check, resume, back] =
            sql_of(self.page).try_into().expect("a block for each step");
        Steps { functions, pause, ready, moving, check, resume, back }
    }

    async fn add(&self, pool: &PgPool, n: usize) {
        by_hand(pool, (self.add)(n % 3, n)).await;
    }

    /// Whether these wait in the old queue, in this order, and behind them the delayed one.
    async fn waits_there(&self, pool: &PgPool, expected: RangeInclusive<usize>) {
        let expected = expected.chain([99]).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(value::<String>(pool, self.waiting).await, expected);
    }

    /// Does what the page says, with a producer in the middle of its transaction as the jobs move,
    /// and another one that comes meanwhile.
    async fn moves(&self, database: &TestDatabase) {
        let pool = database.pool();
        let steps = self.steps();
        by_hand(pool, self.tables).await;
        for n in 1..=12 {
            self.add(pool, n).await;
        }
        by_hand(pool, self.delayed).await;
        self.waits_there(pool, 1..=12).await;
        by_hand(pool, steps.functions).await;
        by_hand(pool, steps.pause).await;
        all_zero(database, steps.ready).await;

        let mut open = pool.begin().await.unwrap();
        let sql = AssertSqlSafe((self.add)(1, 13));
        sqlx::raw_sql(sql).execute(&mut *open).await.unwrap();
        let moving = tokio::spawn({
            let pool = pool.clone();
            async move { by_hand(&pool, steps.moving).await }
        });
        eventually(pool, LOCKS_WAITED_FOR, 1_i64).await;
        let late = tokio::spawn({
            let (pool, sql) = (pool.clone(), (self.add)(2, 14));
            async move { by_hand(&pool, sql).await }
        });
        eventually(pool, LOCKS_WAITED_FOR, 2_i64).await;
        open.commit().await.unwrap();
        moving.await.unwrap();
        late.await.unwrap();
        self.add(pool, 15).await;

        all_zero(database, steps.check).await;
        assert_eq!(value::<String>(pool, self.waiting).await, "");
        let delayed = "select concat_ws(' ', max_attempts, group_id, name, run_at > now() + interval '50 min')
            from seriatim.job where data ->> 'n' = '99'";
        let expected = format!("{} t", self.delayed_is);
        assert_eq!(value::<String>(pool, delayed).await, expected);

        let log = Log::default();
        let run = handler_with(log.clone(), async |log, job, data: Value| {
            log.add(format!("{} {}", job.group().unwrap_or("none"), data["n"]));
            Ok(json!(null))
        });
        let running = Processor::builder(pool.clone()).queue(queue(self.queue), run);
        let running = running.build().unwrap().start().await.unwrap();
        // The queue is paused: a claim comes back, and has begun no job.
        let claimed = async {
            while running.health().queues[0].last_claim_age.is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, claimed).await.unwrap();
        assert_eq!(groups_where(pool, "claim is not null").await, 0);
        assert_eq!(log.entries(), [""; 0]);
        by_hand(pool, steps.resume).await;
        let ran = log.wait_for(15).await;
        self.add(pool, 16).await;
        log.wait_for(16).await;
        for account in 0..3 {
            let group = format!("account-{account} ");
            let of_it = ran.iter().filter_map(|entry| entry.strip_prefix(&group));
            let expected = (1..=15).filter(|n| n % 3 == account).map(|n: usize| n.to_string());
            assert_eq!(of_it.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
        running.shutdown(Duration::from_secs(10)).await;
        assert_eq!(log.entries().len(), 16);
    }

    /// The way back, of what waits here.
    async fn goes_back(&self, database: &TestDatabase) {
        let pool = database.pool();
        let steps = self.steps();
        by_hand(pool, steps.pause).await;
        for n in 17..=22 {
            self.add(pool, n).await;
        }
        assert_eq!(value::<String>(pool, self.waiting).await, "");
        by_hand(pool, steps.back).await;
        assert_eq!(Client::default().counts(pool, self.queue).await.unwrap().unfinished(), 0);
        self.add(pool, 23).await;
        self.waits_there(pool, 17..=23).await;
    }
}

const LOCKS_WAITED_FOR: &str = "select count(*) from pg_locks where not granted
    and database = (select oid from pg_database where datname = current_database())";

/// Runs queries that each answer 0.
async fn all_zero(database: &TestDatabase, sql: String) {
    let mut conn = database.connect().await.unwrap();
    let rows = sqlx::raw_sql(AssertSqlSafe(sql.clone())).fetch_all(&mut conn).await.unwrap();
    assert_eq!(rows.len(), sql.matches(';').count(), "{sql}");
    for row in rows {
        assert_eq!(row.get::<i64, _>(0), 0, "{sql}");
    }
}
