//! A job of a group is enqueued while the group's row is being deleted (P3).

use sqlx::PgConnection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{begin, commit, enqueue, number, pid, rollback, run};
use crate::interleavings::support::steps::{settle, succeeded};
use crate::store::Claim;

/// One job of group `g`, held by a session that is about to settle it.
async fn about_to_settle(scene: &Scene) -> (PgConnection, Claim) {
    let mut worker = scene.session().await;
    scene.enqueue("g").await;
    let claim = scene.claim_one(&mut worker).await;
    scene.hold(&mut worker, &claim).await;
    (worker, claim)
}

#[tokio::test]
async fn one_delete_that_locks_and_reads_strands_an_adopted_job() {
    let scene = Scene::new().await;
    let (mut worker, claim) = about_to_settle(&scene).await;
    run(
        &mut worker,
        "update seriatim.job set status = 'succeeded', flagged = false, finished_at = clock_timestamp() where seriatim.job_state(status, queue, group_id, id) = 'started'",
    )
    .await;
    let worker_pid = pid(&mut worker).await;
    scene.close_gate().await;
    // Wrong: the statement reads jobs with a snapshot that is older than its lock.
    let settle = tokio::spawn(async move {
        let deleted = run(
            &mut worker,
            "with moment as materialized (select pass_gate() as passed), \
             sole as materialized (select g.group_id from seriatim.queue_group g, moment where passed \
               for update of g skip locked) \
             delete from seriatim.queue_group where group_id in (select group_id from sole) and not exists \
               (select from seriatim.job where group_id = 'g' and status in ('queued', 'started'))",
        )
        .await;
        commit(&mut worker).await;
        deleted
    });
    scene.until_waits(worker_pid, "advisory").await;
    let late = scene.enqueue("g").await;
    let mut adopter = scene.session().await;
    assert_eq!(scene.adopt(&mut adopter).await, 1);
    commit(&mut adopter).await;
    scene.open_gate().await;
    assert_eq!(settle.await.unwrap(), 1, "the row of {claim:?} is deleted");
    assert!(scene.is_stranded(late).await);
    scene.end().await;
}

/// Stops the crate's settle of `g`'s last job in a trigger, adopts a job that came meanwhile, and
/// lets the settle continue.
async fn adopt_inside_settle(event: &str, table: &str, adopter_commits_first: bool) {
    let scene = Scene::new().await;
    let (mut worker, claim) = about_to_settle(&scene).await;
    run(&mut worker, "set local application_name = 'settler'").await;
    let worker_pid = pid(&mut worker).await;
    scene.gate("settler", event, table).await;
    let store = std::sync::Arc::clone(&scene.store);
    let settle = tokio::spawn(async move {
        let settled = settle(&store, &mut worker, &claim, &succeeded()).await;
        settled.unwrap();
        commit(&mut worker).await;
    });
    scene.until_waits(worker_pid, "advisory").await;
    let late = scene.enqueue("g").await;
    let mut adopter = scene.session().await;
    scene.adopt(&mut adopter).await;
    if adopter_commits_first {
        commit(&mut adopter).await;
        scene.open_gate().await;
        settle.await.unwrap();
    } else {
        scene.open_gate().await;
        // The settle does not wait for the adopter.
        settle.await.unwrap();
        commit(&mut adopter).await;
    }
    assert!(!scene.is_stranded(late).await);
    assert!(!scene.rescue("g").await);
    assert_eq!(scene.drain().await, [late]);
    scene.end().await;
}

#[tokio::test]
async fn a_job_adopted_before_settle_locks_alone_is_seen() {
    adopt_inside_settle("update", "job", true).await;
}

#[tokio::test]
async fn a_settle_leaves_a_group_that_an_adopter_shares() {
    adopt_inside_settle("update", "job", false).await;
}

#[tokio::test]
async fn a_job_that_comes_while_its_group_is_deleted_keeps_its_flag() {
    adopt_inside_settle("delete", "queue_group", true).await;
    adopt_inside_settle("delete", "queue_group", false).await;
}

/// A quick settle looks for a next job as it writes the success. The delete looks again.
#[tokio::test]
async fn a_job_that_comes_between_a_quick_settles_look_and_its_delete_is_not_stranded() {
    for wrong in [false, true] {
        let scene = Scene::new().await;
        let job = scene.enqueue("g").await;
        let mut worker = scene.session().await;
        let claim = scene.claim_one(&mut worker).await;
        scene.close_gate().await;
        let stops = "perform pass_gate(); drained := array(";
        scene.rewrite("settle_success", &[("drained := array(", stops)]).await;
        if wrong {
            // The delete trusts the look of before.
            scene.rewrite("retire", &[("and (select", "and true or false and (select")]).await;
        }
        let settle = format!(
            "select case when (seriatim.hold_job({job}, '{0}', true)).pid is not null then \
               (seriatim.settle_success({job}, '{0}', null, true, false, 0) = 'drained')::integer::int8 end",
            claim.token
        );
        let settling = scene.at_gate(settle).await;
        let late = scene.enqueue("g").await;
        let mut adopter = scene.session().await;
        scene.adopt(&mut adopter).await;
        commit(&mut adopter).await;
        scene.open_gate().await;
        assert_eq!(settling.await.unwrap().0, i64::from(wrong));
        assert_eq!(scene.is_stranded(late).await, wrong);
        if !wrong {
            assert_eq!(scene.drain().await, [late]);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_row_that_is_seen_is_no_proof_that_it_stays() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (mut worker, claim) = about_to_settle(&scene).await;
        scene.settle(&mut worker, &claim, &succeeded()).await;
        // The row is deleted, but that is not committed yet.
        let late = scene.enqueue("g").await;
        let mut adopter = scene.session().await;
        if wrong {
            begin(&mut adopter).await;
            run(
                &mut adopter,
                "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
                 select 'q', 'g', now(), 1 where not exists \
                   (select from seriatim.queue_group where group_id = 'g')",
            )
            .await;
            run(&mut adopter, "update seriatim.job set flagged = false where id = (select max(id) from seriatim.job)").await;
        } else {
            assert_eq!(scene.adopt(&mut adopter).await, 0);
        }
        commit(&mut adopter).await;
        commit(&mut worker).await;
        assert_eq!(scene.is_stranded(late).await, wrong);
        if !wrong {
            assert!(scene.flagged(late).await);
            assert_eq!(scene.drain().await, [late]);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_deletion_of_a_group_that_is_rolled_back_strands_nothing() {
    let scene = Scene::new().await;
    let (mut worker, claim) = about_to_settle(&scene).await;
    scene.settle(&mut worker, &claim, &succeeded()).await;
    let late = scene.enqueue("g").await;
    let mut other = scene.session().await;
    assert!(scene.claim(&mut other, 10).await.is_empty());
    rollback(&mut worker).await;
    // The first job is still claimed, and runs again by the same token.
    assert_eq!(scene.row("g").await.unwrap().job, Some(claim.job));
    scene.run_job(&mut worker, &claim).await;
    assert_eq!(scene.drain().await, [late]);
    scene.end().await;
}

#[tokio::test]
async fn a_handlers_enqueue_keeps_its_group_and_revives_another() {
    let scene = Scene::new().await;
    let (mut worker, claim) = about_to_settle(&scene).await;
    // Into its own group, into one that is being retired, and into one that was.
    let mut other = scene.session().await;
    scene.enqueue("h").await;
    let of_h = scene.claim_one(&mut other).await;
    scene.hold(&mut other, &of_h).await;
    scene.settle(&mut other, &of_h, &succeeded()).await;
    let ids = enqueue(&mut worker, &["g", "h"]).await;
    commit(&mut other).await;
    assert_eq!(scene.row("h").await, None);
    let later = enqueue(&mut worker, &["h"]).await[0];
    scene.settle(&mut worker, &claim, &succeeded()).await;
    commit(&mut worker).await;
    assert!(scene.row("g").await.unwrap().job.is_none());
    let mut ran = scene.drain().await;
    assert!(ran.iter().position(|id| *id == ids[1]) < ran.iter().position(|id| *id == later));
    ran.sort_unstable();
    assert_eq!(ran, [ids[0], ids[1], later]);
    scene.end().await;
}

/// A drained group's row is put off for 20 ms. A claim may begin before that is over, and adopt
/// behind it.
#[tokio::test]
async fn a_row_that_falls_due_during_a_claim_is_woken_by_its_flag() {
    let scene = Scene::new().await;
    let mut session = scene.session().await;
    scene
        .run(&format!(
            "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
             values ('{Q}', 'g', now() - interval '1 ms', 1)"
        ))
        .await;
    scene.enqueue("g").await;
    scene.run("update seriatim.job set run_at = now() - interval '1 s', turn_at = now() - interval '1 s'").await;
    for (claim_began, adopted) in [("g.ready_at", 0), ("g.ready_at - interval '1 us'", 1)] {
        let adopt = format!(
            "select cardinality(a.turns)::int8 from seriatim.queue_group g, seriatim.adopt( \
             ('{Q}', null, true, null, 3, 0.5, false, null, 1, true)::seriatim.claim_terms, \
             ('-infinity', 0, {claim_began}, false, null)::seriatim.flag_range, 10, {claim_began}, 'infinity') a"
        );
        begin(&mut session).await;
        assert_eq!(number(&mut session, &adopt).await, adopted, "{claim_began}");
        rollback(&mut session).await;
    }
    scene.end().await;
}
