//! One session of a script: its statements, transactions, locks and enqueues.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};

use crate::store::{short, transaction};
use crate::{Client, NewJob};

pub(crate) async fn run(conn: &mut PgConnection, sql: &str) -> u64 {
    let done = sqlx::query(AssertSqlSafe(sql.to_owned())).execute(conn).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}")).rows_affected()
}

pub(crate) async fn number(conn: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(conn)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"))
}

pub(crate) async fn pid(conn: &mut PgConnection) -> i32 {
    sqlx::query_scalar("select pg_backend_pid()").fetch_one(conn).await.unwrap()
}

/// The one queue of every script.
pub(crate) const Q: &str = "q";

/// Enqueues jobs in one statement, one for each named group.
pub(crate) async fn enqueue(conn: &mut PgConnection, groups: &[&str]) -> Vec<i64> {
    let jobs = groups.iter().map(|group| NewJob::new(Q, &1).group(*group));
    let client = Client::default().notify(false);
    let enqueued = client.enqueue_many(conn, jobs).await.unwrap();
    enqueued.iter().map(|job| job.id()).collect()
}

/// Enqueues a job without a group.
pub(crate) async fn enqueue_ungrouped(conn: &mut PgConnection) -> i64 {
    crate::enqueue(conn, NewJob::new(Q, &1)).await.unwrap().id()
}

/// Enqueues a job of a group that is due in an hour.
pub(crate) async fn enqueue_delayed(conn: &mut PgConnection, group: &str) -> i64 {
    let job = NewJob::new(Q, &1).group(group).delay(Duration::from_hours(1));
    crate::enqueue(conn, job).await.unwrap().id()
}

/// Locks a job's row in the open transaction: `for no key update`, for example.
pub(crate) async fn lock_job(conn: &mut PgConnection, job: i64, strength: &str) {
    run(conn, &format!("select 1 from seriatim.job where id = {job} for {strength}")).await;
}

/// Locks a group's row in the open transaction.
pub(crate) async fn lock_group(conn: &mut PgConnection, group: &str, strength: &str) {
    let sql =
        format!("select 1 from seriatim.queue_group where group_id = '{group}' for {strength}");
    run(conn, &sql).await;
}

/// Begins a short transaction like the library, with longer timeouts: a script is slow between its
/// statements.
pub(crate) async fn begin(conn: &mut PgConnection) {
    transaction::begin(conn, short(conn)).await.unwrap();
    let limits = "set local idle_in_transaction_session_timeout = '60s'; \
                  set local statement_timeout = '60s'; set local lock_timeout = '5s'";
    sqlx::raw_sql(limits).execute(conn).await.unwrap();
}

/// Begins a transaction that takes its time, as a handler does.
pub(crate) async fn begin_hold(conn: &mut PgConnection) {
    transaction::begin(conn, short(conn)).await.unwrap();
    let limits = "set local idle_in_transaction_session_timeout = 0; \
                  set local statement_timeout = 0; set local lock_timeout = '100ms'";
    sqlx::raw_sql(limits).execute(conn).await.unwrap();
}

pub(crate) async fn commit(conn: &mut PgConnection) {
    transaction::commit(conn).await.unwrap();
}

pub(crate) async fn rollback(conn: &mut PgConnection) {
    transaction::rollback(conn).await.unwrap();
}
