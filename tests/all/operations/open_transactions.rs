//! Runs the table of `docs/open-transactions.md`: each kind of transaction is left open, and each
//! cell is checked.

use std::time::Duration;

use serde_json::json;
use seriatim::testing::TestDatabase;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};

use crate::support::{
    Log, by_hand, database, enqueue, eventually, handler_with, processor, queue, size, started,
    value,
};

const TABLE: &str = include_str!("../../../docs/open-transactions.md");

/// A row of the table: what a session ran, and whether each of the eight works at the same time.
struct Row {
    sql: &'static str,
    cells: Vec<bool>,
}

fn rows() -> Vec<Row> {
    let rows = TABLE.lines().filter(|line| line.starts_with("| `"));
    rows.map(|line| {
        let (sql, cells) = line[3..].split_once("` |").unwrap();
        let cells = cells.trim_end_matches(" |").split('|').map(|cell| match cell.trim() {
            "yes" => true,
            "waits" => false,
            other => panic!("a cell is {other:?}"),
        });
        Row { sql, cells: cells.collect() }
    })
    .collect()
}

/// Returns whether a statement ends without a wait for a lock.
async fn works(pool: &PgPool, sql: String) -> bool {
    let limited = format!("set lock_timeout = '150ms'; {sql}; reset lock_timeout");
    match sqlx::raw_sql(AssertSqlSafe(limited)).execute(pool).await {
        Ok(_) => true,
        Err(error) => {
            let code = error.as_database_error().and_then(|error| error.code().map(String::from));
            assert_eq!(code.as_deref(), Some("55P03"), "{sql}: {error}");
            false
        }
    }
}

/// Leaves a transaction open for each row, in a queue of the row's own.
async fn open_transactions(database: &TestDatabase, rows: &[Row]) -> Vec<PgConnection> {
    let pool = database.pool();
    let mut open = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        let q = format!("q{n}");
        enqueue(pool, &q, "dead", "dead").await;
        by_hand(pool, format!("select seriatim.receive('{q}', 1, '0 s')")).await;
        let job = enqueue(pool, &q, "a", "a").await;
        enqueue(pool, &q, "a", "a").await;
        let mut sql = row.sql.replace("'q'", &format!("'{q}'"));
        if sql.contains("'receipt'") {
            let receipt =
                format!("select receipt from seriatim.receive('{q}', 1, '1 min', group_id => 'a')");
            let receipt: String = value(pool, &receipt).await;
            sql = sql.replace("'receipt'", &format!("'{receipt}'"));
        }
        sql = sql.replace("(1)", &format!("({job})")).replace("[1]", &format!("[{job}]"));
        sql = sql.replace("id = 1", &format!("id = {job}"));
        let mut session = database.connect().await.unwrap();
        sqlx::raw_sql("begin").execute(&mut session).await.unwrap();
        let ran = sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&mut session).await;
        ran.unwrap_or_else(|error| panic!("{sql}: {error}"));
        open.push(session);
    }
    open
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_left_open_delays_what_the_table_lists() {
    let rows = rows();
    assert!(rows.len() > 15);
    let rows: Vec<Row> = rows.into_iter().step_by(size(2, 1)).collect();
    let database = database().await;
    let pool = database.pool();
    // The processor does not run yet.
    let open = open_transactions(&database, &rows).await;
    let mut found: Vec<Vec<bool>> = Vec::new();
    for n in 0..rows.len() {
        let q = format!("q{n}");
        let enqueued =
            |group: &str| format!("select seriatim.enqueue('{q}', '\"{group}\"', '{group}')");
        let mut cells = vec![
            works(pool, enqueued("a")).await,
            works(pool, enqueued("received")).await,
            works(
                pool,
                format!("select seriatim.pause('{q}', 'p'); select seriatim.resume('{q}', 'p')"),
            )
            .await,
            works(pool, format!("select seriatim.pause('{q}'); select seriatim.resume('{q}')"))
                .await,
        ];
        let received = format!(
            "select count(*) from seriatim.receive('{q}', group_id => 'received') r \
             cross join lateral seriatim.ack(r.receipt) a"
        );
        cells.insert(0, value::<i64>(pool, &received).await == 1);
        found.push(cells);
        enqueue(pool, &q, "worked", "worked").await;
    }

    // All three at once for all rows: what must start has started, and the rest has not.
    let ran = Log::default();
    let mut builder = processor(&database, 40).await.slots(16);
    for n in 0..rows.len() {
        builder = builder.queue(
            queue(&format!("q{n}")),
            handler_with(ran.clone(), async |ran, job, data| {
                ran.add(format!("{} {}", job.queue(), data.as_str().unwrap_or_default()));
                Ok(json!(1))
            }),
        );
    }
    let running = started(builder).await;
    let wanted: Vec<String> = rows
        .iter()
        .enumerate()
        .flat_map(|(n, row)| {
            let kinds = [("a", row.cells[0]), ("worked", row.cells[1]), ("dead", row.cells[3])];
            kinds
                .into_iter()
                .filter(|(_, works)| *works)
                .map(move |(kind, _)| format!("q{n} {kind}"))
        })
        .collect();
    let entries = ran
        .wait("all has started that the table lists", |entries| {
            wanted.iter().all(|wanted| entries.contains(wanted))
        })
        .await;
    for (n, row) in rows.iter().enumerate() {
        let ran = |kind: &str| entries.contains(&format!("q{n} {kind}"));
        let cells = &found[n];
        let all = [
            ran("a"),
            ran("worked"),
            cells[0],
            ran("dead"),
            cells[1],
            cells[2],
            cells[3],
            cells[4],
        ];
        assert_eq!(all.as_slice(), row.cells, "{}", row.sql);
    }
    drop(open);
    all_starts_after_the_end(pool).await;
    running.shutdown(Duration::from_secs(10)).await;
}

/// Waits until the sessions are gone, and no job of group `a` is queued but those of receivers.
async fn all_starts_after_the_end(pool: &PgPool) {
    eventually(
        pool,
        "select count(*) from pg_stat_activity where datname = current_database() \
         and state = 'idle in transaction'",
        0_i64,
    )
    .await;
    let left = "select count(*) from seriatim.job j where status = 'queued' and group_id = 'a' \
                and not exists (select from seriatim.queue_group g \
                  where g.queue = j.queue and g.group_id = 'a' and g.claim is not null \
                    and g.claimed_by is null)";
    eventually(pool, left, 0_i64).await;
}
