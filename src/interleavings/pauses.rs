//! A group that is resumed goes on, whatever a claim saw of its pause (P3).

use std::time::Duration;

use crate::Client;
use crate::interleavings::support::scene::{
    Q, Scene, TERMS, begin, commit, pid, plans, retried, run, succeeded,
};
use crate::job::group_plan::Plan;

/// What a resume without its own care would be: the pause ends, and nothing is flagged.
const FORGET: &str = "update seriatim.group_setting set paused_at = null";

async fn paused(scene: &Scene) -> i64 {
    let mut me = scene.session().await;
    let job = scene.enqueue("g").await;
    Client::default().pause_group(&mut me, Q, "g", None).await.unwrap();
    let mut adopter = scene.session().await;
    scene.adopt(&mut adopter).await;
    commit(&mut adopter).await;
    job
}

/// The group's row says that nobody looks at it.
async fn rests(scene: &Scene) -> bool {
    let sql = "select count(*) from seriatim.queue_group where ready_at = 'infinity'";
    scene.id(sql).await == 1
}

#[tokio::test]
async fn a_resume_between_a_claims_look_and_its_write_is_not_lost() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let job = paused(&scene).await;
        let (mut worker, mut operator) = (scene.session().await, scene.session().await);
        begin(&mut worker).await;
        let turns = scene.store.take_turns(&mut worker, Q, 10).await.unwrap();
        let looks = scene.store.read_heads(&mut worker, Q, &turns, TERMS).await.unwrap();
        assert_eq!(plans(&turns, &looks)[0].plan, Plan::Pause { head: job });
        if wrong {
            run(&mut operator, FORGET).await;
            run(&mut worker, "update seriatim.queue_group set ready_at = 'infinity'").await;
            commit(&mut worker).await;
            assert!(rests(&scene).await && !scene.flagged(job).await);
            assert!(scene.claim(&mut worker, 10).await.is_empty());
            // Only the sweep would find it.
            assert!(scene.rescue("g").await);
        } else {
            Client::default().unpause_group(&mut operator, Q, "g").await.unwrap();
            assert!(scene.flagged(job).await, "its row is free for whoever resumes");
            assert!(scene.write(&mut worker, &turns, &looks).await.is_empty());
            assert!(!rests(&scene).await);
            assert!(!scene.rescue("g").await);
        }
        assert_eq!(scene.drain().await, [job]);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_resume_that_comes_after_the_write_waits_for_its_commit_and_wakes_the_group() {
    let scene = Scene::new().await;
    let job = paused(&scene).await;
    let (mut worker, mut operator) = (scene.session().await, scene.session().await);
    begin(&mut worker).await;
    let turns = scene.store.take_turns(&mut worker, Q, 10).await.unwrap();
    let looks = scene.store.read_heads(&mut worker, Q, &turns, TERMS).await.unwrap();
    let plans = plans(&turns, &looks);
    scene.store.defer(&mut worker, Q, &plans).await.unwrap();
    let operator_pid = pid(&mut operator).await;
    let resume = tokio::spawn(async move {
        Client::default().unpause_group(&mut operator, Q, "g").await.unwrap();
    });
    scene.until_waits(operator_pid, "transactionid").await;
    commit(&mut worker).await;
    resume.await.unwrap();
    assert!(rests(&scene).await && scene.flagged(job).await);
    assert_eq!(scene.drain().await, [job]);
    scene.end().await;
}

/// The job ran when the resume began, and so could not be flagged by what the resume saw then.
#[tokio::test]
async fn a_resume_sees_the_job_that_was_settled_while_it_waited() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (mut worker, mut claimer) = (scene.session().await, scene.session().await);
        let mut operator = scene.session().await;
        let job = scene.enqueue("g").await;
        let claim = scene.claim_one(&mut worker).await;
        Client::default().pause_group(&mut operator, Q, "g", None).await.unwrap();
        let held = scene.hold(&mut worker, &claim).await;
        // Somebody has the setting, so that the resume waits before it has changed anything.
        let mut other = scene.session().await;
        begin(&mut other).await;
        run(&mut other, "select 1 from seriatim.group_setting for share").await;
        let operator_pid = pid(&mut operator).await;
        let resume = tokio::spawn(async move {
            if wrong {
                let at_once = "with resumed as (update seriatim.group_setting set paused_at = null \
                    returning group_id) update seriatim.job set flagged = true from resumed \
                    where job.group_id = resumed.group_id and status = 'queued'";
                run(&mut operator, at_once).await;
            } else {
                Client::default().unpause_group(&mut operator, Q, "g").await.unwrap();
            }
        });
        scene.until_waits(operator_pid, "transactionid").await;
        scene.settle(&mut worker, &claim, &held, &retried(Duration::ZERO)).await;
        commit(&mut worker).await;
        assert!(scene.claim(&mut claimer, 10).await.is_empty());
        assert!(rests(&scene).await);
        commit(&mut other).await;
        resume.await.unwrap();
        assert_eq!(scene.flagged(job).await, !wrong);
        assert_eq!(scene.rescue("g").await, wrong);
        assert_eq!(scene.drain().await, [job]);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_job_that_was_claimed_before_a_pause_is_taken_over_and_ended_under_it() {
    let scene = Scene::new().await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let (first, second) = (scene.enqueue("g").await, scene.enqueue("g").await);
    scene.claim_one(&mut worker).await;
    Client::default().pause_group(&mut worker, Q, "g", None).await.unwrap();
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
    let go = crate::job::group_plan::Disposition::Run;
    let over = crate::store::Claim {
        job: first,
        behind: Vec::new(),
        group: Some("g".into()),
        token,
        go,
        may_wait: None,
    };
    let held = scene.hold(&mut other, &over).await;
    scene.settle(&mut other, &over, &held, &succeeded()).await;
    commit(&mut other).await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    assert!(rests(&scene).await && !scene.rescue("g").await);
    Client::default().unpause_group(&mut other, Q, "g").await.unwrap();
    assert_eq!(scene.drain().await, [second]);
    scene.end().await;
}
