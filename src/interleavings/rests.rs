//! A job lets its group or its queue rest, beside the transaction that holds it and beside claims.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use sqlx::PgConnection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{begin, commit, pid, run};
use crate::interleavings::support::steps::retried;
use crate::store::{Claim, RestArguments, RestState};

const PAUSES: &str = "select (select count(*) from seriatim.queue where paused_until > now()) \
                      + (select count(*) from seriatim.group_setting where paused_until > now())";

/// Lets the group of a claim rest for an hour, or its whole queue.
async fn rest(
    scene: &Scene,
    conn: &mut PgConnection,
    claim: &Claim,
    whole_queue: bool,
) -> RestState {
    let until = Utc::now() + TimeDelta::hours(1);
    let arguments = RestArguments { whole_queue, until: until.into(), reason: "429" };
    let receipt = format!("{}.{}", claim.job, claim.token);
    scene.store.rest(conn, &receipt, arguments).await.unwrap()
}

/// Wrong: the group's own row rests. The handler's transaction has it locked, and its handler waits
/// for this call.
const REST_THE_ROW: &str =
    "update seriatim.queue_group set ready_at = now() + interval '1 h' where group_id = 'g'";

#[tokio::test]
async fn a_rest_waits_for_no_lock_of_its_own_job() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (first, second) = (scene.enqueue("g").await, scene.enqueue("g").await);
        let (mut worker, mut side) = (scene.session().await, scene.session().await);
        let claim = scene.claim_one(&mut worker).await;
        scene.hold(&mut worker, &claim).await;
        if wrong {
            run(&mut side, "set lock_timeout = '200ms'").await;
            let waits = sqlx::query(REST_THE_ROW).execute(&mut side).await.unwrap_err();
            let code = waits.as_database_error().and_then(|error| error.code().map(String::from));
            assert_eq!(code.as_deref(), Some("55P03"), "{waits}");
        } else {
            assert_eq!(rest(&scene, &mut side, &claim, true).await, RestState::Set);
            scene.run("select seriatim.resume('q')").await;
            assert_eq!(rest(&scene, &mut side, &claim, false).await, RestState::Set);
        }
        scene.settle(&mut worker, &claim, &retried(Duration::ZERO)).await;
        commit(&mut worker).await;
        if !wrong {
            assert!(scene.claim(&mut worker, 10).await.is_empty(), "the group rests");
            let until_the_end = "select count(*) from seriatim.queue_group g \
                                 join seriatim.group_setting s using (queue, group_id) \
                                 where g.ready_at = s.paused_until";
            assert_eq!(scene.number(until_the_end).await, 1);
            assert!(!scene.rescue("g").await, "a group that rests is not stranded");
            // Nothing but the clock ends it.
            scene.lease("g", -1).await;
            scene.run("update seriatim.group_setting set paused_until = clock_timestamp()").await;
        }
        assert_eq!(scene.drain().await, [first, second]);
        scene.end().await;
    }
}

/// Wrong: a row that a claim has locked for a moment is skipped.
const SKIP_LOCKED: &str =
    "update seriatim.queue set paused_at = now(), paused_until = now() + interval '1 h'
     where name in (select name from seriatim.queue for no key update skip locked)";

#[tokio::test]
async fn a_rest_beside_a_claim_is_not_lost() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        scene.run("insert into seriatim.queue (name, in_flight_limit) values ('q', 9)").await;
        scene.enqueue("g").await;
        let (mut worker, mut other) = (scene.session().await, scene.session().await);
        let claim = scene.claim_one(&mut worker).await;
        let next = scene.enqueue("h").await;
        // As a claim of a queue with a limit does.
        begin(&mut other).await;
        run(&mut other, "select from seriatim.queue for no key update").await;
        if wrong {
            assert_eq!(run(&mut worker, SKIP_LOCKED).await, 0);
            commit(&mut other).await;
            let claims = scene.claim(&mut other, 10).await;
            assert_eq!(claims.iter().map(|claim| claim.job).collect::<Vec<_>>(), [next]);
        } else {
            let waits = pid(&mut worker).await;
            let (rests, ()) = tokio::join!(rest(&scene, &mut worker, &claim, true), async {
                scene.until_waits(waits, "transactionid").await;
                commit(&mut other).await;
            });
            assert_eq!(rests, RestState::Set);
            assert!(scene.claim(&mut other, 10).await.is_empty(), "the queue rests");
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_rest_gives_up_on_a_lock_that_is_kept() {
    let scene = Scene::new().await;
    scene.enqueue("g").await;
    let (mut worker, mut operator) = (scene.session().await, scene.session().await);
    let claim = scene.claim_one(&mut worker).await;
    begin(&mut operator).await;
    run(&mut operator, "select seriatim.pause('q', 'g', 'deploy')").await;
    assert_eq!(rest(&scene, &mut worker, &claim, false).await, RestState::Busy);
    commit(&mut operator).await;
    assert_eq!(rest(&scene, &mut worker, &claim, false).await, RestState::Kept);
    run(&mut operator, "select seriatim.resume('q', 'g')").await;
    assert_eq!(rest(&scene, &mut worker, &claim, false).await, RestState::Set);
    scene.end().await;
}

/// Wrong: the job is named by its id alone.
const BY_ID: &str = "insert into seriatim.group_setting (queue, group_id, paused_at, paused_until)
     select j.queue, j.group_id, now(), now() + interval '1 h' from seriatim.job j limit 1";

#[tokio::test]
async fn a_claim_that_was_taken_over_lets_nothing_rest() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        scene.enqueue("g").await;
        let (mut worker, mut other) = (scene.session().await, scene.session().await);
        let old = scene.claim_one(&mut worker).await;
        let mut over = Vec::new();
        while over.is_empty() {
            scene.lease("g", -1).await;
            over = scene.claim(&mut other, 10).await;
            if over.is_empty() {
                // It is suspected: its claim stands until it is taken over.
                assert!(scene.row("g").await.unwrap().suspected);
                let past = RestArguments {
                    whole_queue: false,
                    until: (Utc::now() - TimeDelta::seconds(1)).into(),
                    reason: "429",
                };
                let receipt = format!("{}.{}", old.job, old.token);
                let state = scene.store.rest(&mut worker, &receipt, past).await.unwrap();
                assert_eq!(state, RestState::Kept);
            }
        }
        assert_eq!((over[0].job, over[0].token == old.token), (old.job, false));
        if wrong {
            run(&mut worker, BY_ID).await;
            assert_eq!(scene.number(PAUSES).await, 1, "a stale worker has paused the group");
        } else {
            for whole_queue in [true, false] {
                let state = rest(&scene, &mut worker, &old, whole_queue).await;
                assert_eq!(state, RestState::Stale);
            }
            assert_eq!(scene.number(PAUSES).await, 0);
            assert_eq!(rest(&scene, &mut other, &over[0], false).await, RestState::Set);
        }
        scene.end().await;
    }
}
