//! The sweep wakes a group that nothing else would, and leaves alone one that waits as it should.

use sqlx::PgConnection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::store::Claim;
use crate::{Client, NewJob};

/// A queue with this setting, whose groups have a job of one limit key each. The first one is
/// claimed, and nothing more can start.
async fn one_is_claimed(
    scene: &Scene,
    (setting, value): (&str, u32),
    groups: &[&str],
) -> (PgConnection, Claim) {
    let insert = format!("insert into seriatim.queue (name, {setting}) values ('{Q}', {value})");
    scene.run(&insert).await;
    let mut conn = scene.session().await;
    let client = Client::default().notify(false);
    for group in groups {
        let job = NewJob::new(Q, &1).group(*group).limit_key("t");
        client.enqueue(&mut conn, job).await.unwrap();
    }
    let claim = scene.claim_one(&mut conn).await;
    assert!(scene.claim(&mut conn, 10).await.is_empty());
    (conn, claim)
}

const PER_KEY: (&str, u32) = ("limit_per_key", 1);
const GATED: &str = "select count(*) from seriatim.queue_group where gated_by is not null";

#[tokio::test]
async fn gated_groups_are_left_in_their_places() {
    let scene = Scene::new().await;
    let (mut conn, claim) = one_is_claimed(&scene, PER_KEY, &["a", "b", "c"]).await;
    assert_eq!(scene.number(GATED).await, 2);
    for group in ["b", "c"] {
        assert!(!scene.rescue(group).await, "the slot of its key is taken");
    }
    scene.lease("a", 3600).await;
    scene.run_job(&mut conn, &claim).await;
    for group in ["b", "c"] {
        assert!(!scene.rescue(group).await, "a slot came free, and the next claim sees it");
    }
    assert_eq!(scene.drain().await, [claim.job + 1, claim.job + 2]);
    scene.end().await;
}

#[tokio::test]
async fn a_gated_group_is_found_when_the_row_with_the_slot_was_deleted_by_hand() {
    let scene = Scene::new().await;
    let (mut conn, claim) = one_is_claimed(&scene, PER_KEY, &["a", "b"]).await;
    scene.run("delete from seriatim.queue_group where group_id = 'a'").await;
    assert!(scene.claim(&mut conn, 10).await.is_empty(), "nothing tells that the slot is free");
    assert!(scene.rescue("b").await && scene.rescue("a").await);
    let mut ran = scene.drain().await;
    ran.sort_unstable();
    assert_eq!(ran, [claim.job, claim.job + 1]);
    scene.end().await;
}

#[tokio::test]
async fn a_group_whose_next_start_is_spaced_is_left_alone() {
    let scene = Scene::new().await;
    let (mut conn, claim) =
        one_is_claimed(&scene, ("group_spacing_ms", 3_600_000), &["a", "a"]).await;
    scene.lease("a", 3600).await;
    scene.run_job(&mut conn, &claim).await;
    assert!(scene.claim(&mut conn, 10).await.is_empty());
    assert!(!scene.rescue("a").await, "it starts in an hour");
    scene.run("update seriatim.queue set group_spacing_ms = null").await;
    scene.run("update seriatim.queue_group set ready_at = now(), spaced_until = null").await;
    assert_eq!(scene.drain().await, [claim.job + 1]);
    scene.end().await;
}
