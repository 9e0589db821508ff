//! A process that dies while its claim is being committed.

use sqlx::{Connection, PgConnection};

use super::scene::{Q, Scene, TERMS, begin, commit, plans};
use crate::store::{ProcessorRow, Terms};

const DEAD: i64 = 7;
const JUDGE: i64 = 8;
const KEY: i64 = 77;

fn row(id: i64) -> ProcessorRow {
    ProcessorRow { id, node: "node".to_owned(), host: None, pid: 1 }
}

/// A claim by a process that died meanwhile: announced, with its session gone, and what it claimed not committed yet.
async fn dies_in_its_claim(scene: &Scene) -> PgConnection {
    scene.enqueue("g").await;
    let mut presence = scene.session().await;
    let server = scene.store.server_since(&mut presence).await.unwrap();
    assert!(scene.store.take_presence(&mut presence, KEY).await.unwrap());
    scene.store.announce(&mut presence, &row(DEAD), Some(KEY), server).await.unwrap();
    let pid = super::scene::number(&mut presence, "select pg_backend_pid()::int8").await;
    let mut claim = scene.session().await;
    assert_eq!(scene.adopt(&mut claim).await, 1);
    let turns = scene.store.take_turns(&mut claim, Q, 10).await.unwrap();
    let terms = Terms { processor: Some(DEAD), ..TERMS };
    let looks = scene.store.look(&mut claim, Q, &turns, terms).await.unwrap();
    let started = scene.store.start(&mut claim, Q, &plans(&turns, &looks), terms).await.unwrap();
    assert_eq!(started.len(), 1);
    presence.close().await.unwrap();
    scene.until_gone(i32::try_from(pid).unwrap()).await;
    claim
}

async fn judge(scene: &Scene, conn: &mut PgConnection) -> u64 {
    let server = scene.store.server_since(conn).await.unwrap();
    begin(conn).await;
    let doubted = scene.store.judge(conn, JUDGE, false, server).await.unwrap();
    commit(conn).await;
    doubted
}

#[tokio::test]
async fn a_dead_process_that_is_forgotten_at_once_keeps_what_is_committed_later() {
    let scene = Scene::new().await;
    let mut claim = dies_in_its_claim(&scene).await;
    let mut judges = scene.session().await;
    assert_eq!(judge(&scene, &mut judges).await, 0, "it sees nothing of the claim");
    // Wrong: nothing is claimed by it.
    let forgotten = format!(
        "delete from seriatim.processor where id = {DEAD} \
         and not exists (select from seriatim.queue_group where claimed_by = {DEAD})"
    );
    assert_eq!(scene.run(&forgotten).await, 1);
    commit(&mut claim).await;
    assert_eq!(judge(&scene, &mut judges).await, 0, "its lease alone would end it");
    scene.end().await;
}

#[tokio::test]
async fn what_a_dead_process_committed_late_is_doubted_before_it_is_forgotten() {
    let scene = Scene::new().await;
    let mut claim = dies_in_its_claim(&scene).await;
    let mut judges = scene.session().await;
    assert_eq!(judge(&scene, &mut judges).await, 0, "it sees nothing of the claim");
    commit(&mut claim).await;
    assert_eq!(judge(&scene, &mut judges).await, 1);
    assert_eq!(judge(&scene, &mut judges).await, 0, "once");
    // Forgotten when nothing is its own any more, and nothing can come.
    let known = format!("select count(*) from seriatim.processor where id = {DEAD}");
    let last_seen = format!(
        "update seriatim.processor set seen_at = seen_at - interval '3 min' where id = {DEAD}"
    );
    scene.run(&last_seen).await;
    judge(&scene, &mut judges).await;
    assert_eq!(scene.id(&known).await, 1, "it has a claim");
    scene.lease("g", -1).await;
    let over = scene.claim_one(&mut claim).await;
    scene.run_job(&mut claim, &over).await;
    judge(&scene, &mut judges).await;
    assert_eq!(scene.id(&known).await, 0);
    scene.end().await;
}
