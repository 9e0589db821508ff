//! A claim that gates a group because of another group's slot leaves that slot where its end wakes
//! the first one, whatever is committed next to it. A locked key delays its own groups alone.

use sqlx::PgConnection;
use tokio::time::Instant;

use crate::interleavings::support::scene::{PATIENCE, Scene};
use crate::interleavings::support::session::{Q, begin, number, rollback, run};
use crate::interleavings::support::size::size;
use crate::job::disposition::Disposition;
use crate::store::Claim;
use crate::{Client, NewJob};

const GATED: &str = "select count(*) from seriatim.queue_group where gated_by is not null";
const SLOTS: &str = "select count(*) from seriatim.queue_group where limit_key is not null";

/// Variants of a test: with a wrong function, and as it is.
const WRONG: &[bool] = &[true, false];

/// A queue in which one group of each key runs at once.
async fn limited() -> Scene {
    let scene = Scene::new().await;
    scene.run("insert into seriatim.queue (name, limit_per_key) values ('q', 1)").await;
    scene
}

/// Enqueues a job of each group with this key, each in a transaction of its own.
async fn enqueue(conn: &mut PgConnection, key: &str, groups: &[&str]) -> Vec<i64> {
    let client = Client::default().notify(false);
    let mut jobs = Vec::new();
    for group in groups {
        let job = NewJob::new(Q, &1).group(*group).limit_key(key);
        jobs.push(client.enqueue(&mut *conn, job).await.unwrap().id());
    }
    jobs
}

/// The claim that a group's row has.
async fn claim_of(scene: &Scene, group: &str) -> Option<Claim> {
    let mut conn = scene.session().await;
    let sql = "select g.job_id, g.claim from seriatim.queue_group g where g.group_id = $1 and g.claim is not null";
    let row = sqlx::query_as(sql).bind(group).fetch_optional(&mut conn).await;
    let (job, token) = row.unwrap()?;
    Some(Claim {
        job,
        followers: Vec::new(),
        group: Some(group.to_owned()),
        token,
        disposition: Disposition::Run,
        may_wait: false,
        began: None,
    })
}

/// Claims and runs until nothing more starts. Returns the jobs in order.
async fn run_all(scene: &Scene, conn: &mut PgConnection) -> Vec<i64> {
    let mut ran = Vec::new();
    loop {
        let claims = scene.claim(conn, 10).await;
        if claims.is_empty() {
            return ran;
        }
        for claim in claims {
            scene.run_job(conn, &claim).await;
            ran.push(claim.job);
        }
    }
}

/// The claim starts `a`, and gates `b` because `a` has the only slot. The limit is removed before
/// it writes that.
#[tokio::test]
async fn a_limit_that_is_removed_during_a_claim_strands_no_group() {
    for wrong in WRONG.iter().copied() {
        let scene = limited().await;
        let decided = "turns := deferred;";
        let mut text = format!("{decided} perform pass_gate();");
        if wrong {
            // The start reads the limit once more.
            text += "if not exists (select from seriatim.queue q where q.name = terms.queue \
                     and q.limit_per_key > 0) then for i in 1..cardinality(started) loop \
                     started[i].held_key := null; end loop; end if;";
        }
        scene.close_gate().await;
        scene.rewrite("start_turns", &[(decided, &text)]).await;
        let mut conn = scene.session().await;
        let all = enqueue(&mut conn, "t", &["a", "b"]).await;
        let claiming = scene.claim_at_gate().await;
        scene.run("select seriatim.configure_queue('q', '{\"limit_per_key\": null}')").await;
        scene.open_gate().await;
        claiming.await.unwrap();
        assert_eq!(scene.number(GATED).await, 1);
        let first = claim_of(&scene, "a").await.unwrap();
        scene.run_job(&mut conn, &first).await;
        let ran = run_all(&scene, &mut conn).await;
        assert_eq!(ran, if wrong { vec![] } else { all[1..].to_vec() });
        scene.end().await;
    }
}

/// The key `t` is paused, and a claim is about to gate `a`. The key's limit is raised, or removed.
#[tokio::test]
async fn a_key_that_goes_on_next_to_a_claim_strands_no_group() {
    for limit in ["1", "null"] {
        for wrong in WRONG.iter().copied() {
            let scene = limited().await;
            scene.run("select seriatim.set_key_limit('q', 't', 0)").await;
            if wrong {
                let append = "perform free_slots(array[set_key_limit.queue], \
                              array[set_key_limit.limit_key], true);";
                let seen = "perform free_gated(set_key_limit.queue);";
                scene.rewrite("set_key_limit", &[(append, seen)]).await;
            }
            scene.close_gate().await;
            let decided = "turns := deferred;";
            let stops = format!("{decided} perform pass_gate();");
            scene.rewrite("start_turns", &[(decided, &stops)]).await;
            let mut conn = scene.session().await;
            let all = enqueue(&mut conn, "t", &["a"]).await;
            let claiming = scene.claim_at_gate().await;
            scene.run(&format!("select seriatim.set_key_limit('q', 't', {limit})")).await;
            // Another claim leaves the slot to the one that has the key.
            assert!(scene.claim(&mut conn, 10).await.is_empty());
            scene.open_gate().await;
            claiming.await.unwrap();
            let mut ran = Vec::new();
            if let Some(claim) = claim_of(&scene, "a").await {
                scene.run_job(&mut conn, &claim).await;
                ran.push(claim.job);
            }
            ran.extend(run_all(&scene, &mut conn).await);
            assert_eq!(ran, if wrong { vec![] } else { all }, "{limit}");
            scene.end().await;
        }
    }
}

/// A claim has read that the key is paused, and has not locked the key. The key is resumed, and
/// another claim consumes the slot of that change.
#[tokio::test]
async fn a_claim_reads_the_limit_of_a_key_behind_its_lock() {
    for wrong in WRONG.iter().copied() {
        let scene = limited().await;
        scene.run("select seriatim.set_key_limit('q', 't', 0)").await;
        scene.close_gate().await;
        let read = "starts := true;";
        let stops = format!("{read} perform pass_gate();");
        scene.rewrite("has_slot", &[(read, &stops)]).await;
        if wrong {
            // The claim counts by the limit that it has read before the lock. No group runs.
            scene.rewrite("has_slot", &[("+ held::integer;", "* 0 + most;")]).await;
        }
        let mut conn = scene.session().await;
        // It consumes the slot of that change, and so locks the key.
        assert!(scene.claim(&mut conn, 10).await.is_empty());
        let all = enqueue(&mut conn, "t", &["a"]).await;
        let claiming = scene.claim_at_gate().await;
        scene.run("select seriatim.set_key_limit('q', 't', 1)").await;
        assert!(scene.claim(&mut conn, 10).await.is_empty());
        assert_eq!(scene.number("select count(*) from seriatim.freed_slot").await, 0);
        scene.open_gate().await;
        claiming.await.unwrap();
        let started = claim_of(&scene, "a").await.map(|claim| claim.job);
        assert_eq!(started, (!wrong).then_some(all[0]));
        assert!(run_all(&scene, &mut conn).await.is_empty());
        scene.end().await;
    }
}

/// A claim has begun, and stops before it reads flags. Then the only slot is kept for the free row
/// of a group that has a flag: its claim is released, or another claim has woken it. The claim at
/// the gate adopts that group.
async fn adopts_a_group_that_has_a_slot(wrong: bool, how: &str, then: &str) {
    let scene = limited().await;
    let mut conn = scene.session().await;
    let mut left = enqueue(&mut conn, "t", &["a", "b", "c"]).await;
    let claim = scene.claim_one(&mut conn).await;
    assert_eq!(scene.number(GATED).await, 2);
    // As a resume leaves it.
    run(&mut conn, "update seriatim.job set flagged = true").await;
    scene.close_gate().await;
    let begins = "adoption.turns := '{}';";
    let stops = format!("{begins} perform pass_gate();");
    scene.rewrite("adopt", &[(begins, &stops)]).await;
    if wrong {
        scene.rewrite("adopt", &[("w.spaced_until, w.limit_key)", "w.spaced_until)")]).await;
    }
    let claiming = scene.claim_at_gate().await;
    let group = if how == "released" {
        assert_eq!(scene.release(&mut conn, &[claim]).await, 1);
        "a"
    } else {
        // Their turns came after the claim at the gate had begun.
        let now = "update seriatim.queue_group set gated_at = clock_timestamp() \
                   + case when group_id = 'c' then interval '1 s' else '0' end where gated_by = 't'";
        run(&mut conn, now).await;
        scene.run_job(&mut conn, &claim).await;
        left.remove(0);
        run(&mut conn, "select seriatim.wake_gated('q', 1, 1, '-infinity')").await;
        "b"
    };
    assert_eq!(scene.number(SLOTS).await, 1, "{how}");
    if then == "paused" {
        scene.run(&format!("select seriatim.pause('q', '{group}')")).await;
    }
    scene.open_gate().await;
    claiming.await.unwrap();
    // The claim wakes the next group itself, if the first one rests.
    let next = match (how, then) {
        (_, "started") => group,
        ("released", _) => "b",
        _ => "c",
    };
    if next != group {
        left.remove(0);
    }
    let started = claim_of(&scene, next).await;
    assert_eq!(started.is_some(), !wrong, "{how}, {then}");
    if let Some(claim) = started {
        assert_eq!(scene.number(SLOTS).await, 1, "{how}, {then}");
        scene.run_job(&mut conn, &claim).await;
    }
    left.remove(0);
    let expected = if wrong { vec![] } else { left };
    assert_eq!(run_all(&scene, &mut conn).await, expected, "{how}, {then}, wrong: {wrong}");
    scene.end().await;
}

#[tokio::test]
async fn a_released_group_that_is_adopted_keeps_its_slot() {
    for wrong in WRONG {
        adopts_a_group_that_has_a_slot(*wrong, "released", "started").await;
    }
}

#[tokio::test]
async fn a_woken_group_that_is_adopted_keeps_its_slot() {
    for wrong in WRONG {
        adopts_a_group_that_has_a_slot(*wrong, "woken", "started").await;
    }
}

#[tokio::test]
async fn a_group_that_is_adopted_and_rests_passes_its_slot_on() {
    for how in ["released", "woken"] {
        for wrong in WRONG {
            adopts_a_group_that_has_a_slot(*wrong, how, "paused").await;
        }
    }
}

/// Locks so many keys in the session's open transaction: `k0` and so on.
async fn lock_keys(conn: &mut PgConnection, keys: usize) {
    begin(conn).await;
    let lock = format!(
        "select count(*) from generate_series(0, {keys} - 1) k where seriatim.lock_limit_key('q', 'k' || k, 1)"
    );
    assert_eq!(number(conn, &lock).await, i64::try_from(keys).unwrap());
}

/// Claims as a worker or a receiver does. Returns the jobs that start.
async fn claims(scene: &Scene, conn: &mut PgConnection, receives: bool) -> Vec<i64> {
    if receives {
        let receive = "select r.id from seriatim.receive('q', 10) r";
        return sqlx::query_scalar(receive).fetch_all(conn).await.unwrap();
    }
    scene.claim(conn, 10).await.iter().map(|claim| claim.job).collect()
}

/// So many groups come, one after the other, whose keys another transaction has locked. Then a slot
/// of another key becomes free.
async fn other_keys_go_on(groups: usize, keys: usize, receives: bool) {
    let scene = limited().await;
    let (mut holder, mut conn) = (scene.session().await, scene.session().await);
    let others = enqueue(&mut conn, "z", &["z1", "z2"]).await;
    let first = scene.claim_one(&mut conn).await;
    lock_keys(&mut holder, keys).await;
    for number in 0..groups {
        enqueue(&mut conn, &format!("k{}", number % keys), &[&format!("g{number}")]).await;
        assert!(claims(&scene, &mut conn, receives).await.is_empty());
    }
    // Some groups may have the lock of one of the keys.
    let waiting = i64::try_from(groups).unwrap() * 9 / 10;
    assert!(scene.number(GATED).await > waiting);
    scene.run_job(&mut conn, &first).await;
    assert_eq!(claims(&scene, &mut conn, receives).await, others[1..], "{groups} of {keys} keys");
    let notes = scene.number("select count(*) from seriatim.freed_slot").await;
    assert!(notes <= i64::try_from(keys).unwrap(), "{notes} notes of {keys} keys");
    let due = "select count(*) from seriatim.due_queues(array['q'])";
    // It is one again after as long as it has waited, which is some milliseconds at first.
    let begun = Instant::now();
    loop {
        let is_due = number(&mut conn, due).await == 1;
        let answer = scene.claim_all(&mut conn, 10).await;
        if !is_due && !answer.more && answer.next.is_some_and(|next| next.as_secs() < 1) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "a locked key is no work: {answer:?}");
    }
    rollback(&mut holder).await;
    assert_eq!(number(&mut conn, due).await, 1);
    assert!(!claims(&scene, &mut conn, receives).await.is_empty());
    scene.end().await;
}

/// Far more groups than a claim has slots.
fn many() -> usize {
    size(60, 300)
}

#[tokio::test]
async fn a_locked_key_with_many_groups_delays_no_other_key() {
    other_keys_go_on(many(), 1, false).await;
}

#[tokio::test]
async fn a_locked_key_with_many_groups_delays_no_receiver() {
    other_keys_go_on(many(), 1, true).await;
}

#[tokio::test]
async fn many_locked_keys_delay_no_other_key() {
    other_keys_go_on(many(), many(), false).await;
}

#[tokio::test]
async fn many_locked_keys_delay_no_receiver() {
    other_keys_go_on(many(), many(), true).await;
}

/// A receive of all groups wakes those that waited for the limit, though it gives back what it does
/// not return.
#[tokio::test]
async fn receivers_alone_go_on_when_the_limit_is_removed() {
    let scene = limited().await;
    let mut conn = scene.session().await;
    let all = enqueue(&mut conn, "t", &["a", "b", "c"]).await;
    assert_eq!(claims(&scene, &mut conn, true).await, all[..1]);
    assert_eq!(scene.number(GATED).await, 2);
    scene.run("select seriatim.configure_queue('q', '{\"limit_per_key\": null}')").await;
    let mut received = Vec::new();
    for _ in 0..3 {
        received.extend(claims(&scene, &mut conn, true).await);
    }
    assert_eq!((received, scene.number(GATED).await), (all[1..].to_vec(), 0));
    scene.end().await;
}
