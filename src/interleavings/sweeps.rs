//! The sweep wakes a group that nothing else would, and leaves alone one that waits as it should.

use std::time::Duration;

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
        assert!(!scene.rescue(group).await, "it is gated");
    }
    let freed = "select count(*) from seriatim.freed_slot";
    assert_eq!(
        (scene.wake_stranded().await, scene.number(freed).await),
        (0, 0),
        "the slot is taken"
    );
    scene.lease("a", 3600).await;
    scene.run_job(&mut conn, &claim).await;
    let next = "a slot came free, and the next claim sees it";
    assert_eq!((scene.wake_stranded().await, scene.number(freed).await), (0, 1), "{next}");
    assert_eq!(scene.drain().await, [claim.job + 1, claim.job + 2]);
    scene.end().await;
}

#[tokio::test]
async fn a_gated_group_is_found_when_the_row_with_the_slot_was_deleted_by_hand() {
    let scene = Scene::new().await;
    let (mut conn, claim) = one_is_claimed(&scene, PER_KEY, &["a", "b"]).await;
    scene.run("delete from seriatim.queue_group where group_id = 'a'").await;
    scene.run("update seriatim.job set flagged = false where group_id = 'a'").await;
    assert!(scene.claim(&mut conn, 10).await.is_empty(), "nothing tells that the slot is free");
    assert!(scene.wake_stranded().await == 1 && scene.rescue("a").await);
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

/// One round finds a limit key that nothing speaks for, wherever its groups are among those that
/// wait for something else. A round visits 200 groups, in the order of their names.
#[tokio::test]
async fn a_round_finds_a_gated_group_beside_many_delayed_ones() {
    let scene = Scene::new().await;
    let (mut conn, _) = one_is_claimed(&scene, PER_KEY, &["z1", "z2"]).await;
    let groups: Vec<String> = (0..2_000).map(|number| format!("a{number}")).collect();
    let delayed = |group: &String| NewJob::new(Q, &1).group(group).delay(Duration::from_hours(1));
    crate::enqueue_many(&mut conn, groups.iter().map(delayed)).await.unwrap();
    scene.run("update seriatim.queue_group set limit_key = null").await;
    assert!(scene.claim(&mut conn, 10).await.is_empty(), "nothing tells that the slot is free");
    assert_eq!(scene.number("select repaired from seriatim.sweep('q', '', '', 200)").await, 1);
    let started = scene.claim_one(&mut conn).await;
    assert_eq!(started.group.as_deref(), Some("z2"));
    scene.end().await;
}

/// A key has its slot again by one look at that key, however many others gate groups.
#[tokio::test]
async fn a_round_looks_once_at_each_key_and_frees_no_slot_twice() {
    let scene = Scene::new().await;
    scene.run("insert into seriatim.queue (name, limit_per_key) values ('q', 2)").await;
    // Two groups of each key have its slots, and ten wait. One key in a hundred has a slot left.
    let row = "insert into seriatim.queue_group (queue, group_id, ready_at, head_id, limit_key, gated_by, gated_at)";
    let values = "select 'q', k || '-' || g, 'infinity', 1, case when g <= 2 and (g = 1 or k % 100 > 0) then k::text end, \
                  case when g > 2 then k::text end, case when g > 2 then now() end \
                  from generate_series(1, 1000) k, generate_series(1, 12) g";
    scene.run(&format!("{row} {values}")).await;
    let freed = "select count(*) from seriatim.freed_slot";
    for _ in 0..2 {
        assert_eq!((scene.wake_stranded().await, scene.number(freed).await), (0, 10));
    }
    scene.end().await;
}
