//! Enqueues in a transaction of a driver other than sqlx: one line with one parameter, a job or
//! several as JSON. A rollback leaves nothing.

// A test states its expectations.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use diesel::sql_types::{BigInt, Bool, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use sea_orm::{ConnectionTrait, Database, DbBackend, Statement, TransactionTrait};
use seriatim::testing::TestDatabase;
use seriatim::{Job, NewJob, Unique};

/// As text: each driver can bind one.
const ENQUEUE: &str = "select id, duplicate from seriatim.enqueue_jobs($1::text::jsonb)";

const CREATE: &str = "create table invoice (id bigint primary key)";
const INSERT: &str = "insert into invoice values (7)";

fn jobs() -> String {
    let job = |n: i64| NewJob::new("invoices", &n).group("customer-7");
    let mail = NewJob::bytes("mails", "text/plain", *b"hello").delay(Duration::from_hours(1));
    let unique = || job(3).unique(Unique::replace("k")).timeout(Duration::from_secs(9));
    serde_json::to_string(&[job(1).name("send").header("tenant", "t"), mail, unique(), unique()])
        .unwrap()
}

async fn database() -> TestDatabase {
    let database = TestDatabase::create().await.unwrap();
    sqlx_run(&database, CREATE).await;
    database
}

async fn sqlx_run(database: &TestDatabase, sql: &'static str) {
    seriatim::sqlx::query(sql).execute(database.pool()).await.unwrap();
}

/// The invoice and its jobs are there, or nothing is.
async fn are_there(database: &TestDatabase, committed: Option<Vec<(i64, bool)>>) {
    let count = seriatim::sqlx::query_scalar(
        "select (select count(*) from invoice) * 10 + (select count(*) from seriatim.job)",
    );
    let count: i64 = count.fetch_one(database.pool()).await.unwrap();
    let Some(answers) = committed else {
        assert_eq!(count, 0);
        return;
    };
    assert_eq!(count, 13);
    assert_eq!(
        answers.iter().map(|(_, duplicate)| *duplicate).collect::<Vec<_>>(),
        [false, false, false, true]
    );
    assert_eq!(answers[2].0, answers[3].0);
    let mut jobs = Vec::<Job>::new();
    for (id, _) in &answers {
        jobs.extend(seriatim::Client::default().job(database.pool(), *id).await.unwrap());
    }
    assert_eq!((jobs[0].data.clone(), jobs[0].name.as_deref()), (1.into(), Some("send")));
    assert_eq!(jobs[0].headers["tenant"], "t");
    assert_eq!(jobs[1].payload.as_deref(), Some(&b"hello"[..]));
    assert!(jobs[1].run_at > jobs[1].created_at + Duration::from_mins(59));
    assert_eq!((jobs[2].replaced, jobs[2].unique_key.as_deref()), (1, Some("k")));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokio_postgres_enqueues_in_its_transaction() {
    let database = database().await;
    let (mut client, connection) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut answers = None;
    for commits in [false, true] {
        let tx = client.transaction().await.unwrap();
        tx.batch_execute(INSERT).await.unwrap();
        let rows = tx.query(ENQUEUE, &[&jobs()]).await.unwrap();
        if commits {
            answers = Some(rows.iter().map(|row| (row.get(0), row.get(1))).collect());
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        are_there(&database, answers.clone()).await;
    }
    drop(client);
    connection.await.unwrap().unwrap();
}

#[derive(diesel::QueryableByName)]
struct Answer {
    #[diesel(sql_type = BigInt)]
    id: i64,
    #[diesel(sql_type = Bool)]
    duplicate: bool,
}

#[tokio::test(flavor = "multi_thread")]
async fn diesel_enqueues_in_its_transaction() {
    let database = database().await;
    let mut conn = AsyncPgConnection::establish(&database.url()).await.unwrap();
    let refused: Result<(), diesel::result::Error> = conn
        .transaction(async |conn| {
            conn.batch_execute(INSERT).await?;
            diesel::sql_query(ENQUEUE).bind::<Text, _>(jobs()).execute(conn).await?;
            Err(diesel::result::Error::RollbackTransaction)
        })
        .await;
    assert!(refused.is_err());
    are_there(&database, None).await;
    let answers: Result<Vec<Answer>, diesel::result::Error> = conn
        .transaction(async |conn| {
            conn.batch_execute(INSERT).await?;
            diesel::sql_query(ENQUEUE).bind::<Text, _>(jobs()).load(conn).await
        })
        .await;
    let answers = answers.unwrap().iter().map(|answer| (answer.id, answer.duplicate)).collect();
    are_there(&database, Some(answers)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sea_orm_enqueues_in_its_transaction() {
    let database = database().await;
    let conn = Database::connect(database.url()).await.unwrap();
    let mut answers = None;
    for commits in [false, true] {
        let tx = conn.begin().await.unwrap();
        tx.execute_unprepared(INSERT).await.unwrap();
        let enqueue = Statement::from_sql_and_values(DbBackend::Postgres, ENQUEUE, [jobs().into()]);
        let rows = tx.query_all_raw(enqueue).await.unwrap();
        if commits {
            let answer = |row: &sea_orm::QueryResult| {
                (row.try_get_by_index(0).unwrap(), row.try_get_by_index(1).unwrap())
            };
            answers = Some(rows.iter().map(answer).collect());
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        are_there(&database, answers.clone()).await;
    }
    conn.close().await.unwrap();
}
