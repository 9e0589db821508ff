//! A frozen process: its sessions live, so its locks and its presence stay, and no timeout ends its
//! run. Maintenance of another process does.

use sqlx::{Connection, PgConnection};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::pid;
use crate::store::ProcessorRow;

const FROZEN: i64 = 7;
const KEY: i64 = 77;

/// A process with a run under way: its presence, and the session that holds the job. The attempt
/// began a minute ago, with a timeout of 20 s.
async fn running(scene: &Scene) -> (PgConnection, PgConnection, i64) {
    let job = scene.enqueue("g").await;
    let mut presence = scene.session().await;
    let server = scene.store.server_since(&mut presence).await.unwrap();
    assert!(scene.store.take_presence(&mut presence, KEY).await.unwrap());
    let row = ProcessorRow {
        id: FROZEN,
        node: "node".to_owned(),
        host: None,
        pid: 1,
        queues: Vec::new(),
    };
    scene.store.announce(&mut presence, &row, Some(KEY), server).await.unwrap();
    let mut holder = scene.session().await;
    let claim = scene.claim_one(&mut holder).await;
    scene.run(&format!("update seriatim.job set timeout_ms = 20000 where id = {job}")).await;
    scene
        .run(&format!(
            "update seriatim.queue_group set claimed_by = {FROZEN}, started_at = now() - interval '1 min'"
        ))
        .await;
    scene.hold(&mut holder, &claim).await;
    (presence, holder, job)
}

async fn last_seen(scene: &Scene, ago: &str) {
    let seen = format!("update seriatim.processor set seen_at = now() - interval '{ago}'");
    scene.run(&seen).await;
}

const ABORT: &str = "select seriatim.abort_silent_run(array[7])::integer::bigint";

#[tokio::test]
async fn a_run_of_a_frozen_process_is_ended_after_its_timeout() {
    let scene = Scene::new().await;
    let (_presence, mut holder, job) = running(&scene).await;
    let session = pid(&mut holder).await;
    // Its process enforces the timeout as long as it is seen.
    last_seen(&scene, "25 s").await;
    assert_eq!(scene.number(ABORT).await, 0, "it was seen");
    last_seen(&scene, "40 s").await;
    assert_eq!(scene.number(ABORT).await, 1);
    scene.until_gone(session).await;
    assert_eq!(scene.number(ABORT).await, 0, "the claim is suspected already");
    let done = scene.text(
        "select string_agg(concat_ws(' ', o.actor, o.action, o.job_id), ', ') from seriatim.operation o",
    );
    assert_eq!(done.await, format!("maintenance abort {job}"));
    scene.lease("g", -1).await;
    let mut other = scene.session().await;
    let over = scene.claim_one(&mut other).await;
    assert_eq!(over.job, job);
    scene.run_job(&mut other, &over).await;
    assert_eq!(scene.number(ABORT).await, 0);
    scene.end().await;
}

/// A turn of several jobs keeps the row as its claim wrote it: the run is that of its first
/// unfinished job.
#[tokio::test]
async fn a_follower_of_a_turn_is_ended_too() {
    let scene = Scene::new().await;
    let (_presence, mut holder, first) = running(&scene).await;
    let second = scene.enqueue("g").await;
    let session = pid(&mut holder).await;
    holder.close().await.unwrap();
    scene.until_gone(session).await;
    for change in [
        format!("update seriatim.queue_group set batch = array[{first}, {second}]::bigint[]"),
        format!(
            "update seriatim.job set status = 'succeeded', finished_at = now(), attempts = 1, \
             flagged = false where id = {first}"
        ),
        format!("update seriatim.job set timeout_ms = 20000 where id = {second}"),
    ] {
        scene.run(&change).await;
    }
    last_seen(&scene, "40 s").await;
    assert_eq!(scene.number(ABORT).await, 1);
    scene.end().await;
}

#[tokio::test]
async fn only_runs_past_their_timeouts_are_ended() {
    let scene = Scene::new().await;
    let (mut presence, holder, _) = running(&scene).await;
    last_seen(&scene, "40 s").await;
    holder.close().await.unwrap();
    // Without a timeout a run may last. It began a minute ago, and has 30 s more.
    for (timeout, ended) in [("null", 0), ("35000", 0), ("29000", 1)] {
        scene.run(&format!("update seriatim.job set timeout_ms = {timeout}")).await;
        assert_eq!(scene.number(ABORT).await, ended, "{timeout} ms");
    }
    // A process that is gone is not silent.
    let silent = "select count(*) from seriatim.processors() where silent";
    assert_eq!(scene.number(silent).await, 1);
    let session = pid(&mut presence).await;
    presence.close().await.unwrap();
    scene.until_gone(session).await;
    assert_eq!(scene.number(silent).await, 0);
    scene.end().await;
}

/// A process that was frozen and writes again enforces its timeouts itself.
#[tokio::test]
async fn who_does_not_ask_when_a_process_was_seen_ends_the_run_of_a_living_one() {
    let scene = Scene::new().await;
    let (_presence, mut holder, _) = running(&scene).await;
    let session = pid(&mut holder).await;
    last_seen(&scene, "5 s").await;
    assert_eq!(scene.number(ABORT).await, 0);
    // Wrong: any process that lives counts.
    scene.rewrite("abort_silent_run", &[("where p.silent and", "where p.alive and")]).await;
    assert_eq!(scene.number(ABORT).await, 1);
    scene.until_gone(session).await;
    scene.end().await;
}
