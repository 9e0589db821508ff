//! The end of a pause wakes its group, whatever a claim saw of the pause (P3).

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;

use crate::Client;
use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{begin, commit, pid, run};
use crate::interleavings::support::steps::{retried, succeeded};

/// Wrong: the pause ends, and no job is flagged.
const FORGET: &str = "update seriatim.group_setting set paused_at = null";

async fn paused(scene: &Scene) -> i64 {
    let mut me = scene.session().await;
    let job = scene.enqueue("g").await;
    let mut adopter = scene.session().await;
    scene.adopt(&mut adopter).await;
    commit(&mut adopter).await;
    Client::default().operator("test", None).pause_group(&mut me, Q, "g").await.unwrap();
    scene.run("update seriatim.job set flagged = false").await;
    job
}

/// Returns whether the group's row is never due.
async fn rests(scene: &Scene) -> bool {
    let sql = "select count(*) from seriatim.queue_group where ready_at = 'infinity'";
    scene.number(sql).await == 1
}

#[tokio::test]
async fn a_resume_between_heads_and_their_write_is_not_lost() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let job = paused(&scene).await;
        let (mut worker, mut operator) = (scene.session().await, scene.session().await);
        begin(&mut worker).await;
        let turns = scene.lock_turns(&mut worker, 10).await;
        let heads = scene.read_heads(&mut worker, &turns).await;
        assert_eq!(heads.jobs, [None], "it is paused");
        if wrong {
            run(&mut operator, FORGET).await;
            run(&mut worker, "update seriatim.queue_group set ready_at = 'infinity'").await;
            commit(&mut worker).await;
            assert!(rests(&scene).await && !scene.flagged(job).await);
            assert!(scene.claim(&mut worker, 10).await.is_empty());
            // Only the sweep would find it.
            assert!(scene.rescue("g").await);
        } else {
            Client::default()
                .operator("test", None)
                .resume_group(&mut operator, Q, "g")
                .await
                .unwrap();
            assert!(scene.flagged(job).await, "its row is free for the resume");
            assert!(scene.write(&mut worker, &heads).await.is_empty());
            assert!(!rests(&scene).await);
            assert!(!scene.rescue("g").await);
        }
        assert_eq!(scene.drain().await, [job]);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_resume_after_the_write_waits_and_wakes_the_group() {
    let scene = Scene::new().await;
    let job = paused(&scene).await;
    let (mut worker, mut operator) = (scene.session().await, scene.session().await);
    begin(&mut worker).await;
    let turns = scene.lock_turns(&mut worker, 10).await;
    let heads = scene.read_heads(&mut worker, &turns).await;
    scene.defer(&mut worker, &heads).await;
    let operator_pid = pid(&mut operator).await;
    let resume = tokio::spawn(async move {
        Client::default().operator("test", None).resume_group(&mut operator, Q, "g").await.unwrap();
    });
    scene.until_waits(operator_pid, "transactionid").await;
    commit(&mut worker).await;
    resume.await.unwrap();
    assert!(rests(&scene).await && scene.flagged(job).await);
    assert_eq!(scene.drain().await, [job]);
    scene.end().await;
}

/// The job ran when the resume began. The flag that it gets then goes to the job as it is behind
/// the settle.
#[tokio::test]
async fn a_resume_sees_a_job_settled_while_it_waited() {
    let scene = Scene::new().await;
    let (mut worker, mut claimer) = (scene.session().await, scene.session().await);
    let mut operator = scene.session().await;
    let job = scene.enqueue("g").await;
    let claim = scene.claim_one(&mut worker).await;
    Client::default().operator("test", None).pause_group(&mut operator, Q, "g").await.unwrap();
    scene.hold(&mut worker, &claim).await;
    // Another session has the setting locked, so the resume waits before it has changed
    // anything.
    let mut other = scene.session().await;
    begin(&mut other).await;
    run(&mut other, "select 1 from seriatim.group_setting for share").await;
    let operator_pid = pid(&mut operator).await;
    let resume = tokio::spawn(async move {
        Client::default().operator("test", None).resume_group(&mut operator, Q, "g").await.unwrap();
    });
    scene.until_waits(operator_pid, "transactionid").await;
    scene.settle(&mut worker, &claim, &retried(Duration::ZERO)).await;
    commit(&mut worker).await;
    assert!(scene.claim(&mut claimer, 10).await.is_empty());
    assert!(rests(&scene).await);
    commit(&mut other).await;
    resume.await.unwrap();
    assert!(scene.flagged(job).await);
    assert!(!scene.rescue("g").await);
    assert_eq!(scene.drain().await, [job]);
    scene.end().await;
}

#[tokio::test]
async fn a_job_claimed_before_a_pause_is_taken_over_under_it() {
    let scene = Scene::new().await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let (first, second) = (scene.enqueue("g").await, scene.enqueue("g").await);
    scene.claim_one(&mut worker).await;
    Client::default().operator("test", None).pause_group(&mut worker, Q, "g").await.unwrap();
    for _ in 0..2 {
        scene.lease("g", -1).await;
        if scene.claim(&mut other, 10).await.is_empty() {
            assert!(scene.row("g").await.unwrap().suspected);
        }
    }
    let over = scene.row("g").await.unwrap();
    assert_eq!((over.job, over.suspected), (Some(first), false), "taken over");
    assert!(!scene.rescue("g").await, "a paused group is not stranded");
    let claim = sqlx::query_scalar("select claim from seriatim.queue_group");
    let token = claim.fetch_one(&mut other).await.unwrap();
    let disposition = crate::job::disposition::Disposition::Run;
    let over = crate::store::Claim {
        job: first,
        followers: Vec::new(),
        group: Some("g".into()),
        token,
        disposition,
        may_wait: false,
        began: None,
    };
    scene.hold(&mut other, &over).await;
    scene.settle(&mut other, &over, &succeeded()).await;
    commit(&mut other).await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    assert!(rests(&scene).await && !scene.rescue("g").await);
    Client::default().operator("test", None).resume_group(&mut other, Q, "g").await.unwrap();
    assert_eq!(scene.drain().await, [second]);
    scene.end().await;
}

/// Pauses the group until so many seconds from now.
async fn pause_until(conn: &mut PgConnection, seconds: i64) {
    let now = sqlx::query_scalar("select clock_timestamp()").fetch_one(&mut *conn).await;
    let now: DateTime<Utc> = now.unwrap();
    let until = now + TimeDelta::seconds(seconds);
    Client::default().operator("test", None).pause_group_until(conn, Q, "g", until).await.unwrap();
}

/// A job of a group that is paused for an hour, with its row in line and no flag.
async fn paused_for_an_hour(scene: &Scene) -> i64 {
    let mut me = scene.session().await;
    let job = paused(scene).await;
    pause_until(&mut me, 3600).await;
    scene.run("update seriatim.job set flagged = false").await;
    job
}

/// Lets the hour pass for the setting alone.
const PASS: &str = "update seriatim.group_setting set paused_until = clock_timestamp()";

/// Returns whether the group's row is due at the end of the pause, and not sooner.
async fn rests_until_the_end(scene: &Scene) -> bool {
    let sql = "select count(*) from seriatim.queue_group g join seriatim.group_setting s \
               using (queue, group_id) where g.ready_at = s.paused_until and s.paused_until > now()";
    scene.number(sql).await == 1
}

#[tokio::test]
async fn a_paused_group_is_due_at_the_end_of_its_pause() {
    let scene = Scene::new().await;
    let job = paused_for_an_hour(&scene).await;
    let mut worker = scene.session().await;
    for _ in 0..2 {
        assert!(scene.claim(&mut worker, 10).await.is_empty());
        assert!(rests_until_the_end(&scene).await && !scene.rescue("g").await);
        // A row that is due sooner only rests again.
        scene.lease("g", -1).await;
    }
    // Nothing but the clock ends it.
    scene.run(PASS).await;
    assert_eq!(scene.drain().await, [job]);
    scene.end().await;
}

#[tokio::test]
async fn a_pause_that_ends_between_heads_and_their_write_keeps_nothing() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let job = paused_for_an_hour(&scene).await;
        let mut worker = scene.session().await;
        begin(&mut worker).await;
        let turns = scene.lock_turns(&mut worker, 10).await;
        let heads = scene.read_heads(&mut worker, &turns).await;
        assert_eq!(heads.jobs, [None], "it is paused");
        scene.run(PASS).await;
        if wrong {
            // The rest that the first read called for: nothing comes to end it.
            run(&mut worker, "update seriatim.queue_group set ready_at = 'infinity'").await;
            commit(&mut worker).await;
            assert!(scene.claim(&mut worker, 10).await.is_empty() && scene.rescue("g").await);
        } else {
            assert!(scene.write(&mut worker, &heads).await.is_empty());
            assert!(!rests(&scene).await && !scene.rescue("g").await);
        }
        assert_eq!(scene.drain().await, [job]);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_sooner_end_of_a_pause_wakes_a_row_that_rests_until_a_later_one() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let job = paused_for_an_hour(&scene).await;
        let (mut worker, mut operator) = (scene.session().await, scene.session().await);
        assert!(scene.claim(&mut worker, 10).await.is_empty());
        if wrong {
            scene
                .run("update seriatim.group_setting set paused_until = now() + interval '30 s'")
                .await;
        } else {
            pause_until(&mut operator, 30).await;
        }
        assert!(scene.claim(&mut worker, 10).await.is_empty());
        assert_eq!(rests_until_the_end(&scene).await, !wrong);
        if !wrong {
            // A later end, and then none: the row finds that when it is due.
            pause_until(&mut operator, 7200).await;
            scene.lease("g", -1).await;
            assert!(scene.claim(&mut worker, 10).await.is_empty());
            assert!(rests_until_the_end(&scene).await);
            Client::default()
                .operator("test", None)
                .pause_group(&mut operator, Q, "g")
                .await
                .unwrap();
            scene.lease("g", -1).await;
            assert!(scene.claim(&mut worker, 10).await.is_empty() && rests(&scene).await);
            Client::default()
                .operator("test", None)
                .resume_group(&mut operator, Q, "g")
                .await
                .unwrap();
            assert_eq!(scene.drain().await, [job]);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_sooner_end_beside_a_claim_is_not_lost() {
    let scene = Scene::new().await;
    let job = paused_for_an_hour(&scene).await;
    let (mut worker, mut operator) = (scene.session().await, scene.session().await);
    // Between the heads and their write: the write reads the setting again, locked.
    begin(&mut worker).await;
    let turns = scene.lock_turns(&mut worker, 10).await;
    let heads = scene.read_heads(&mut worker, &turns).await;
    pause_until(&mut operator, 1800).await;
    scene.write(&mut worker, &heads).await;
    assert!(rests_until_the_end(&scene).await);
    // After the write: the change waits for the commit, and its flag wakes the row.
    scene.lease("g", -1).await;
    begin(&mut worker).await;
    let turns = scene.lock_turns(&mut worker, 10).await;
    let heads = scene.read_heads(&mut worker, &turns).await;
    scene.defer(&mut worker, &heads).await;
    let operator_pid = pid(&mut operator).await;
    let sooner = tokio::spawn(async move { pause_until(&mut operator, 60).await });
    scene.until_waits(operator_pid, "transactionid").await;
    commit(&mut worker).await;
    sooner.await.unwrap();
    assert!(scene.flagged(job).await && !rests_until_the_end(&scene).await);
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    assert!(rests_until_the_end(&scene).await && !scene.rescue("g").await);
    scene.end().await;
}

#[tokio::test]
async fn a_claim_of_a_paused_queue_says_when_the_pause_ends() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let job = scene.enqueue("g").await;
    scene.run("insert into seriatim.queue (name, paused_at) values ('q', now())").await;
    let due = "select coalesce(seriatim.due_in('q'), 1e9)::int8";
    for (until, seconds) in [("null", None), ("clock_timestamp() + interval '1 h'", Some(3600))] {
        scene.run(&format!("update seriatim.queue set paused_until = {until}")).await;
        let claimed = scene.claim_all(&mut worker, 10).await;
        assert!(claimed.jobs.is_empty() && !claimed.more);
        let near = |next: u64| seconds.is_some_and(|s| (s - 60..=s).contains(&next));
        assert!(claimed.next.map_or(seconds.is_none(), |next| near(next.as_secs() + 1)));
        let next = scene.number(due).await.unsigned_abs();
        assert!(near(next) || seconds.is_none() && next == 1_000_000_000, "{next}");
    }
    scene.run("update seriatim.queue set paused_until = clock_timestamp()").await;
    assert!(scene.number(due).await <= 0);
    assert_eq!(scene.drain().await, [job]);
    scene.end().await;
}

/// Wrong: what a list called ended is deleted by its name.
const FORGET_BY_NAME: &str =
    "delete from seriatim.group_setting where queue = 'q' and group_id = 'g'";

#[tokio::test]
async fn a_pause_set_again_while_ended_ones_are_deleted_is_not_lost() {
    let settings = "select count(*) from seriatim.group_setting where paused_until is null";
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let job = paused_for_an_hour(&scene).await;
        scene.run(PASS).await;
        let (mut operator, mut maintenance) = (scene.session().await, scene.session().await);
        begin(&mut operator).await;
        Client::default().operator("test", None).pause_group(&mut operator, Q, "g").await.unwrap();
        if wrong {
            commit(&mut operator).await;
            run(&mut maintenance, FORGET_BY_NAME).await;
            assert_eq!(scene.number(settings).await, 0, "the pause is lost");
        } else {
            // Its row is locked, and then paused.
            for _ in 0..2 {
                begin(&mut maintenance).await;
                scene.store.forget_pauses(&mut maintenance, ("", ""), 10).await.unwrap();
                commit(&mut maintenance).await;
                run(&mut operator, "commit").await;
            }
            assert_eq!(scene.number(settings).await, 1);
            assert!(scene.claim(&mut maintenance, 10).await.is_empty());
            Client::default()
                .operator("test", None)
                .resume_group(&mut operator, Q, "g")
                .await
                .unwrap();
        }
        assert_eq!(scene.number("select count(*) from seriatim.group_setting").await, 0);
        scene.run("update seriatim.job set flagged = true").await;
        assert_eq!(scene.drain().await, [job]);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_pause_that_waits_for_the_delete_of_an_ended_one_makes_a_new_row() {
    let scene = Scene::new().await;
    let job = paused_for_an_hour(&scene).await;
    scene.run(PASS).await;
    let (mut operator, mut maintenance) = (scene.session().await, scene.session().await);
    begin(&mut maintenance).await;
    scene.store.forget_pauses(&mut maintenance, ("", ""), 10).await.unwrap();
    let operator_pid = pid(&mut operator).await;
    let pause = tokio::spawn(async move {
        Client::default().operator("test", None).pause_group(&mut operator, Q, "g").await.unwrap();
        operator
    });
    scene.until_waits(operator_pid, "transactionid").await;
    commit(&mut maintenance).await;
    let mut operator = pause.await.unwrap();
    assert!(scene.claim(&mut maintenance, 10).await.is_empty(), "it is paused");
    Client::default().operator("test", None).resume_group(&mut operator, Q, "g").await.unwrap();
    assert_eq!(scene.drain().await, [job]);
    scene.end().await;
}
