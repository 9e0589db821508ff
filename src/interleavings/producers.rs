//! Producers never wait and never fail by a race, at any isolation level (P5).

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{commit, enqueue, pid, run};
use crate::interleavings::support::steps::succeeded;
use crate::{Client, NewJob};

const OLD_SNAPSHOTS: [&str; 2] = ["repeatable read", "serializable"];

/// A transaction with a snapshot from before the group existed.
async fn old_snapshot(scene: &Scene, level: &str) -> PgConnection {
    let mut producer = scene.session().await;
    run(&mut producer, &format!("begin isolation level {level}")).await;
    run(&mut producer, "select count(*) from seriatim.queue_group").await;
    producer
}

async fn code(conn: &mut PgConnection, sql: &str) -> Option<String> {
    let sql = AssertSqlSafe(sql.to_owned());
    let error = sqlx::query(sql).execute(conn).await.err()?;
    Some(error.as_database_error()?.code()?.into_owned())
}

/// Index that an upsert would need.
const UNIQUE: &str = "create unique index on seriatim.queue_group (queue, group_id)";

#[tokio::test]
async fn a_producer_with_an_old_snapshot_neither_waits_nor_fails() {
    for level in OLD_SNAPSHOTS {
        let scene = Scene::new().await;
        let mut upserting = old_snapshot(&scene, level).await;
        let mut producer = old_snapshot(&scene, level).await;
        scene.enqueue("g").await;
        let second = scene.enqueue("g").await;
        let mut worker = scene.session().await;
        let claim = scene.claim_one(&mut worker).await;
        scene.hold(&mut worker, &claim).await;
        let ids = enqueue(&mut producer, &["g", "h", "g"]).await;
        let client = Client::default();
        let job = NewJob::new(Q, &1).group("g");
        let notified = client.enqueue(&mut producer, job).await.unwrap().id();
        scene.settle(&mut worker, &claim, &succeeded()).await;
        commit(&mut worker).await;
        // Wrong: producers that touch the group's row.
        scene.run(UNIQUE).await;
        let upsert = "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
                      values ('q', 'g', now(), 1) on conflict (queue, group_id) do update set ready_at = now()";
        assert_eq!(code(&mut upserting, upsert).await.as_deref(), Some("40001"), "{level}");
        run(&mut producer, "commit").await;
        let mut ran = scene.drain().await;
        ran.retain(|id| *id != ids[1]);
        assert_eq!(ran, [second, ids[0], ids[2], notified]);
        scene.end().await;
    }
}

#[tokio::test]
async fn an_upsert_waits_for_the_handler_and_an_enqueue_does_not() {
    let scene = Scene::new().await;
    scene.enqueue("g").await;
    let mut worker = scene.session().await;
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    scene.run(UNIQUE).await;
    let mut upserting = scene.session().await;
    let upserting_pid = pid(&mut upserting).await;
    let wrong = tokio::spawn(async move {
        run(
            &mut upserting,
            "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) values ('q', 'g', now(), 1) \
             on conflict (queue, group_id) do update set head_id = 1",
        )
        .await
    });
    scene.until_waits(upserting_pid, "transactionid").await;
    let second = scene.enqueue("g").await;
    scene.settle(&mut worker, &claim, &succeeded()).await;
    commit(&mut worker).await;
    wrong.await.unwrap();
    assert_eq!(scene.drain().await, [second]);
    scene.end().await;
}

/// Each would have read the rows that the other one writes, if an enqueue read jobs at all.
#[tokio::test]
async fn serializable_producers_do_not_fail_each_other() {
    for group in [Some("g"), None] {
        let scene = Scene::new().await;
        let mut one = old_snapshot(&scene, "serializable").await;
        let mut two = old_snapshot(&scene, "serializable").await;
        let client = Client::default();
        for _ in 0..2 {
            for conn in [&mut one, &mut two] {
                let mut job = NewJob::new(Q, &1);
                if let Some(group) = group {
                    job = job.group(group);
                }
                client.enqueue(&mut *conn, job).await.unwrap();
            }
        }
        assert_eq!(code(&mut one, "commit").await, None, "{group:?}");
        assert_eq!(code(&mut two, "commit").await, None, "{group:?}");
        let jobs = "select count(*) from seriatim.job";
        assert_eq!(scene.number(jobs).await, 4);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_takes_its_jobs_and_no_others() {
    let scene = Scene::new().await;
    let mut producer = scene.session().await;
    let mut outer = producer.begin().await.unwrap();
    let mut inner = outer.begin().await.unwrap();
    enqueue(&mut inner, &["g"]).await;
    inner.rollback().await.unwrap();
    // The flagged job of the group is gone; this statement has one of its own.
    let kept = enqueue(&mut outer, &["g", "g"]).await;
    let mut inner = outer.begin().await.unwrap();
    enqueue(&mut inner, &["g", "g"]).await;
    inner.rollback().await.unwrap();
    outer.commit().await.unwrap();
    assert_eq!(scene.drain().await, kept);
    scene.end().await;
}

#[tokio::test]
async fn jobs_of_a_prepared_transaction_come_when_it_is_committed() {
    let scene = Scene::new().await;
    let mut producer = scene.session().await;
    run(&mut producer, "begin").await;
    let late = enqueue(&mut producer, &["g", "g"]).await;
    run(&mut producer, "prepare transaction 'late'").await;
    producer.close().await.unwrap();
    // While its group is new, ready and busy with a higher id.
    let behind = scene.enqueue("g").await;
    let mut worker = scene.session().await;
    let claim = scene.claim_one(&mut worker).await;
    assert_eq!(claim.job, behind);
    scene.hold(&mut worker, &claim).await;
    scene.run("commit prepared 'late'").await;
    let mut other = scene.session().await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    scene.settle(&mut worker, &claim, &succeeded()).await;
    commit(&mut worker).await;
    assert_eq!(scene.drain().await, late);
    // A transaction that notifies cannot be prepared: hence `Client::notify`.
    run(&mut other, "begin").await;
    let job = NewJob::new(Q, &1).group("new");
    crate::enqueue(&mut other, job).await.unwrap();
    assert_eq!(code(&mut other, "prepare transaction 'no'").await.as_deref(), Some("0A000"));
    scene.end().await;
}
