//! A batch with an answer per job: a bad one does not hold up the others.

use serde_json::json;
use seriatim::{Client, EnqueueError, NewJob};
use sqlx::Executor;

use crate::support::{chain, database, job, job_of, jobs_where};

#[tokio::test]
async fn each_job_has_its_own_answer() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default().data_limit(10);
    let batch = [
        NewJob::new("", &1),
        job_of("q", "g", "first"),
        job_of("q", "g", "much too large"),
        job_of("q", "g", "first").dedup_id("a"),
        job_of("q", "g", "second").dedup_id("a"),
        job_of("q", "g", 1).priority(10),
        job_of("q", "g", "last"),
    ];
    let answers = client.enqueue_batch(pool, batch).await.unwrap();
    assert_eq!(answers.len(), 7);
    for (n, words) in [(0, "queue"), (2, "16 bytes"), (5, "priority")] {
        let text = chain(answers[n].as_ref().unwrap_err());
        assert!(text.contains(words) && text.contains(&format!("job {n}")), "{text}");
    }
    let id = |n: usize| answers[n].as_ref().unwrap().id();
    assert!(id(1) < id(3) && id(3) < id(6));
    assert!(answers[4].as_ref().unwrap().is_duplicate());
    assert_eq!(id(4), id(3));
    assert_eq!(job(pool, id(6)).await.data, json!("last"));
    let written: i64 = jobs_where(pool, "true").await;
    assert_eq!(written, 3);
}

#[tokio::test]
async fn none_and_only_bad_ones_need_no_database() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::new("not_migrated").unwrap();
    assert!(client.enqueue_batch(pool, Vec::<NewJob>::new()).await.unwrap().is_empty());
    let answers = client.enqueue_batch(pool, [NewJob::new("", &1)]).await.unwrap();
    assert!(matches!(answers[..], [Err(EnqueueError::Name { index: Some(0), .. })]));
    let refused = client.enqueue_batch(pool, [NewJob::new("", &1), job_of("q", "g", 1)]).await;
    assert!(matches!(refused, Err(EnqueueError::Database(_))), "one database error fails all");
}

#[tokio::test]
async fn it_is_one_statement_of_the_callers_transaction() {
    let database = database().await;
    let pool = database.pool();
    let mut conn = database.connect().await.unwrap();
    conn.execute("begin").await.unwrap();
    let batch = [job_of("q", "g", 1), NewJob::new("", &1), job_of("q", "g", 2)];
    Client::default().enqueue_batch(&mut conn, batch).await.unwrap();
    conn.execute("rollback").await.unwrap();
    let written: i64 = jobs_where(pool, "true").await;
    assert_eq!(written, 0);
    sqlx::Connection::close(conn).await.unwrap();
}
