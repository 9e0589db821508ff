//! Presence of processes: a process that dies while its claim is being committed, and the
//! heartbeat's poll of queues.

use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};

use crate::interleavings::support::scene::{PATIENCE, Scene};
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{begin, commit, pid, run};
use crate::store::{HeartbeatQuery, ProcessorRow};

const DEAD: i64 = 7;
const DETECTOR: i64 = 8;
const KEY: i64 = 77;

fn row(id: i64) -> ProcessorRow {
    ProcessorRow { id, node: "node".to_owned(), host: None, pid: 1, queues: Vec::new() }
}

/// A claim by a process that has died: it was announced, its session is gone, and its claim is not
/// committed yet.
async fn dies_in_its_claim(scene: &Scene) -> PgConnection {
    scene.enqueue("g").await;
    let mut presence = scene.session().await;
    let server = scene.store.server_since(&mut presence).await.unwrap();
    assert!(scene.store.take_presence(&mut presence, KEY).await.unwrap());
    scene.store.announce(&mut presence, &row(DEAD), Some(KEY), server).await.unwrap();
    let session = pid(&mut presence).await;
    let mut claim = scene.session().await;
    assert_eq!(scene.adopt(&mut claim).await, 1);
    let turns = scene.lock_turns(&mut claim, 10).await;
    let heads = scene.read_heads(&mut claim, &turns).await;
    let started = scene.start(&mut claim, &heads, Some(DEAD)).await;
    assert_eq!(started.len(), 1);
    presence.close().await.unwrap();
    scene.until_gone(session).await;
    claim
}

async fn suspect(scene: &Scene, conn: &mut PgConnection) -> u64 {
    let server = scene.store.server_since(conn).await.unwrap();
    begin(conn).await;
    let suspected =
        scene.store.suspect_dead_processors(conn, DETECTOR, false, server).await.unwrap();
    commit(conn).await;
    suspected
}

#[tokio::test]
async fn deleting_a_dead_processor_at_once_loses_its_late_claim() {
    let scene = Scene::new().await;
    let mut claim = dies_in_its_claim(&scene).await;
    let mut detector = scene.session().await;
    assert_eq!(suspect(&scene, &mut detector).await, 0, "it sees nothing of the claim");
    // Wrong: a processor without claims is deleted.
    let forget = format!(
        "delete from seriatim.processor where id = {DEAD} \
         and not exists (select from seriatim.queue_group where claimed_by = {DEAD})"
    );
    assert_eq!(scene.run(&forget).await, 1);
    commit(&mut claim).await;
    assert_eq!(suspect(&scene, &mut detector).await, 0, "its lease alone would end it");
    scene.end().await;
}

#[tokio::test]
async fn a_late_claim_of_a_dead_process_is_suspected() {
    let scene = Scene::new().await;
    let mut claim = dies_in_its_claim(&scene).await;
    let mut detector = scene.session().await;
    assert_eq!(suspect(&scene, &mut detector).await, 0, "it sees nothing of the claim");
    commit(&mut claim).await;
    assert_eq!(suspect(&scene, &mut detector).await, 1);
    assert_eq!(suspect(&scene, &mut detector).await, 0, "once");
    // Deleted when it owns no claim any more, and none can be committed.
    let known = format!("select count(*) from seriatim.processor where id = {DEAD}");
    let last_seen = format!(
        "update seriatim.processor set seen_at = seen_at - interval '3 min' where id = {DEAD}"
    );
    scene.run(&last_seen).await;
    suspect(&scene, &mut detector).await;
    assert_eq!(scene.number(&known).await, 1, "it has a claim");
    scene.lease("g", -1).await;
    let over = scene.claim_one(&mut claim).await;
    scene.run_job(&mut claim, &over).await;
    suspect(&scene, &mut detector).await;
    assert_eq!(scene.number(&known).await, 0);
    scene.end().await;
}

/// Returns the seconds until the queue has something due, and whether maintenance is awaited, by a
/// heartbeat that polls other queues too.
async fn waits(scene: &Scene) -> (Option<u64>, bool) {
    let mut conn = scene.session().await;
    let server = scene.store.server_since(&mut conn).await.unwrap();
    let asks = HeartbeatQuery::new(DETECTOR, KEY, false, server);
    let asks = HeartbeatQuery { queues: &["it's another", "NULL", Q], maintenance: true, ..asks };
    let (due_in, awaits_maintenance) = poll_all(scene, &mut conn, asks).await;
    let [None, None, due_in] = due_in[..] else { panic!("{due_in:?}") };
    (due_in.map(|due_in| (due_in + Duration::from_millis(500)).as_secs()), awaits_maintenance)
}

/// Repeats heartbeats until one finds this. Time passes, and a poll that took over 20 ms says that
/// something may be due.
async fn waits_are(scene: &Scene, (due_in, maintenance): (Option<u64>, bool), why: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = waits(scene).await;
        let is_near = match (found.0, due_in) {
            (Some(found), Some(due_in)) => found <= due_in && found >= due_in / 2,
            (found, due_in) => found == due_in,
        };
        if is_near && found.1 == maintenance {
            return;
        }
        assert!(Instant::now() < deadline, "{why}: {found:?}");
    }
}

/// Repeats a heartbeat until it reaches all queues: a slow one, as the session's first may be, does
/// not.
async fn poll_all(
    scene: &Scene,
    conn: &mut PgConnection,
    asks: HeartbeatQuery<'_>,
) -> (Vec<Option<Duration>>, bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let polled = scene.store.heartbeat(&mut *conn, asks).await.unwrap();
        if let Some(waits) = polled.awaits_maintenance
            && polled.due_in.len() == asks.queues.len()
        {
            return (polled.due_in, waits);
        }
        assert!(Instant::now() < deadline, "{polled:?}");
    }
}

#[tokio::test]
async fn a_heartbeat_polls_all_that_a_claim_would_find() {
    let scene = Scene::new().await;
    waits_are(&scene, (None, false), "nothing is there").await;
    scene.enqueue("g").await;
    waits_are(&scene, (Some(0), false), "a flag").await;
    let mut conn = scene.session().await;
    let claim = scene.claim_one(&mut conn).await;
    scene.lease("g", 60).await;
    waits_are(&scene, (Some(60), false), "claimed").await;
    scene.lease("g", -1).await;
    waits_are(&scene, (Some(0), false), "its lease ran out").await;
    scene.run("update seriatim.queue_group set ready_at = 'infinity'").await;
    waits_are(&scene, (None, false), "a halted group, or a paused one").await;
    scene.run_job(&mut conn, &claim).await;
    waits_are(&scene, (None, false), "done").await;

    let ungrouped = "insert into seriatim.job (queue, data, run_at, turn_at) \
                 values ('q', '1', now() + interval '1 min', now() + interval '1 min')";
    scene.run(ungrouped).await;
    waits_are(&scene, (Some(60), false), "later").await;
    let due = "update seriatim.job set run_at = now(), turn_at = now() where status = 'queued'";
    scene.run(due).await;
    waits_are(&scene, (Some(0), false), "without a group").await;
    let claim = scene.claim_one(&mut conn).await;
    let lease =
        "update seriatim.job set lease_until = now() + interval '1.4 s' where status = 'started'";
    scene.run(lease).await;
    waits_are(&scene, (Some(1), false), "suspected").await;
    scene.run("update seriatim.job set lease_until = now() where status = 'started'").await;
    waits_are(&scene, (Some(0), false), "its lease ran out").await;
    scene.run_job(&mut conn, &claim).await;

    scene.run("insert into seriatim.cancel_request (job_id) values (1)").await;
    waits_are(&scene, (None, true), "a request").await;
    scene.run("delete from seriatim.cancel_request").await;
    let halt = "insert into seriatim.queue_group (queue, group_id, ready_at, head_id, halted_at, halt_reason, halt_then, halt_until) \
                values ('q', 'h', 'infinity', 1, now(), 'for a minute', 'resume', now())";
    scene.run(halt).await;
    waits_are(&scene, (None, true), "a halt is over").await;
    scene.end().await;
}

#[tokio::test]
async fn a_poll_that_cannot_be_answered_keeps_the_presence() {
    let scene = Scene::new().await;
    let (mut conn, mut host) = (scene.session().await, scene.session().await);
    let server = scene.store.server_since(&mut conn).await.unwrap();
    assert!(scene.store.take_presence(&mut conn, KEY).await.unwrap());
    begin(&mut host).await;
    run(&mut host, "lock table seriatim.cancel_request").await;
    let asks = HeartbeatQuery {
        queues: &[Q],
        maintenance: true,
        ..HeartbeatQuery::new(DETECTOR, KEY, false, server)
    };
    let polled = scene.store.heartbeat(&mut conn, asks).await.unwrap();
    assert!(polled.held && polled.awaits_maintenance.is_none(), "{polled:?}");
    commit(&mut host).await;
    let deadline = Instant::now() + PATIENCE;
    // A poll that took over 20 ms says that something may be due.
    while poll_all(&scene, &mut conn, asks).await != (vec![None], false) {
        assert!(Instant::now() < deadline);
    }
    scene.end().await;
}
