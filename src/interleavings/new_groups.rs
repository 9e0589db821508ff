//! Few new groups: a claim adopts them and starts their heads in one round trip.

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{
    begin, commit, enqueue, lock_job, number, pid, rollback, run,
};
use crate::interleavings::support::steps::succeeded;

/// A job with a lower id that is committed behind the read of the head comes next: its flag stays.
#[tokio::test]
async fn a_flag_behind_the_read_of_the_head_is_not_passed() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let mut late = scene.session().await;
        begin(&mut late).await;
        let low = enqueue(&mut late, &["g"]).await[0];
        let (high, higher) = (scene.enqueue("g").await, scene.enqueue("g").await);
        let mut worker = scene.session().await;
        run(&mut worker, "set application_name = 'worker'").await;
        scene.gate("worker", "insert", "queue_group").await;
        if wrong {
            // All flags of the group go, now that it has its row.
            scene.rewrite("start_turns", &[("array_agg(s.job + 1)", "array_agg(0::bigint)")]).await;
        }
        let stopped = pid(&mut worker).await;
        let comes_late = async {
            scene.until_waits(stopped, "advisory").await;
            commit(&mut late).await;
            scene.open_gate().await;
        };
        let (claimed, ()) = tokio::join!(scene.claim(&mut worker, 10), comes_late);
        assert_eq!(claimed.iter().map(|claim| claim.job).collect::<Vec<_>>(), [high]);
        assert_eq!(scene.flagged(low).await, !wrong);
        scene.run_job(&mut worker, &claimed[0]).await;
        if wrong {
            assert_eq!(scene.claim_one(&mut worker).await.job, higher);
        } else {
            assert_eq!(scene.drain().await, [low, higher]);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_claim_writes_no_job() {
    let scene = Scene::new().await;
    for group in ["a", "b", "c"] {
        scene.enqueue(group).await;
    }
    let mut worker = scene.session().await;
    begin(&mut worker).await;
    assert_eq!(scene.claim_all(&mut worker, 3).await.jobs.len(), 3);
    for (table, rows) in [("job", [0, 0]), ("queue_group", [3, 0])] {
        for (what, expected) in ["inserted", "updated"].into_iter().zip(rows) {
            let sql =
                format!("select pg_stat_get_xact_tuples_{what}('seriatim.{table}'::regclass)");
            assert_eq!(number(&mut worker, &sql).await, expected, "{table} {what}");
        }
    }
    commit(&mut worker).await;
    assert_eq!(scene.number("select count(*) from seriatim.job where flagged").await, 3);
    // The next claim writes no flag of a running job, because a hold would wait for the write.
    assert!(scene.claim(&mut worker, 3).await.is_empty());
    let flags = "select count(*) from seriatim.job where flagged";
    assert_eq!(scene.number(flags).await, 3);
    scene.end().await;
}

#[tokio::test]
async fn a_job_that_cannot_be_started_is_ready_for_the_next_claim() {
    let scene = Scene::new().await;
    let job = scene.enqueue("g").await;
    let other = scene.enqueue("h").await;
    let mut locker = scene.session().await;
    begin(&mut locker).await;
    lock_job(&mut locker, job, "update").await;
    let mut worker = scene.session().await;
    assert_eq!(scene.claim_one(&mut worker).await.job, other);
    let row = scene.row("g").await.unwrap();
    assert_eq!((row.job, row.head), (None, job));
    rollback(&mut locker).await;
    let claim = loop {
        // A claim that reads its head defers it for a moment.
        if let Some(claim) = scene.claim(&mut worker, 10).await.pop() {
            break claim;
        }
    };
    assert_eq!(claim.job, job);
    scene.run_job(&mut worker, &claim).await;
    assert!(!scene.rescue("g").await);
    scene.end().await;
}

#[tokio::test]
async fn groups_beyond_the_slots_are_ready_for_other_workers() {
    let scene = Scene::new().await;
    let jobs = [scene.enqueue("a").await, scene.enqueue("b").await, scene.enqueue("c").await];
    let mut worker = scene.session().await;
    let first = scene.claim(&mut worker, 2).await;
    assert_eq!(first.len(), 2);
    // The third was not adopted: no open transaction keeps it.
    assert_eq!(scene.number("select count(*) from seriatim.queue_group").await, 2);
    let last = scene.claim_one(&mut worker).await;
    let mut claimed = [first[0].job, first[1].job, last.job];
    claimed.sort_unstable();
    assert_eq!(claimed, jobs);
    scene.end().await;
}

/// The insert of an adopter that does not hold its group's lock.
const INSERT: &str = "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
    select queue, group_id, now(), id from seriatim.job j where flagged \
    and not exists (select from seriatim.queue_group g where g.group_id = j.group_id) \
    order by id desc limit 1";

#[tokio::test]
async fn the_groups_lock_alone_prevents_two_rows_of_a_group() {
    let receive = format!("select count(*) from seriatim.receive('{Q}')");
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let job = scene.enqueue("g").await;
        let mut first = scene.session().await;
        begin(&mut first).await;
        let claim = scene.claim_all(&mut first, 9).await;
        assert_eq!(claim.jobs[0].job, job);
        // The first claim is not committed when the others come, for a flag that it has not seen.
        let behind = scene.enqueue("g").await;
        let mut second = scene.session().await;
        if wrong {
            assert_eq!(run(&mut second, INSERT).await, 1);
        } else {
            assert!(scene.claim_all(&mut second, 9).await.jobs.is_empty());
            assert_eq!(number(&mut second, &receive).await, 0);
        }
        commit(&mut first).await;
        let begun = scene.claim_all(&mut second, 9).await;
        let rows = scene.number("select count(*) from seriatim.queue_group").await;
        if wrong {
            assert_eq!((begun.jobs[0].job, rows), (job, 2), "once more, while it runs");
        } else {
            assert_eq!((begun.jobs.len(), rows), (0, 1));
            scene.run_job(&mut first, &claim.jobs[0]).await;
            assert_eq!(scene.claim_one(&mut second).await.job, behind);
        }
        scene.end().await;
    }
}

/// A claim of several rounds reads the flags of a paused group in each, and gives it its row at the
/// end.
#[tokio::test]
async fn a_group_that_rests_gets_one_row_however_often_a_claim_has_read_its_flags() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        for group in ["a", "b", "c", "rests"] {
            scene.enqueue(group).await;
        }
        scene.run("select seriatim.pause('q', 'rests')").await;
        // None of the others can start, so the claim goes on.
        let mut other = scene.session().await;
        begin(&mut other).await;
        run(&mut other, "select from seriatim.job where group_id <> 'rests' for update").await;
        if wrong {
            scene.rewrite("lock_new_groups", &[("select distinct f.name", "select f.name")]).await;
        }
        let mut worker = scene.session().await;
        assert!(scene.claim(&mut worker, 1).await.is_empty());
        let rows = "select count(*) from seriatim.queue_group where group_id = 'rests'";
        let rows = scene.number(rows).await;
        assert_eq!(rows > 1, wrong, "{rows} rows");
        if wrong {
            // Two claims have the group at once.
            rollback(&mut other).await;
            scene.run("select seriatim.resume('q', 'rests')").await;
            scene.run("update seriatim.queue_group set ready_at = now()").await;
            let claimed = scene.claim_all(&mut worker, 9).await.jobs;
            let claims = claimed.iter().filter(|claim| claim.group.as_deref() == Some("rests"));
            assert_eq!(claims.count(), 2, "{claimed:?}");
        }
        scene.end().await;
    }
}

/// An adopter that tries the lock with an older snapshot, and gets it after the commit of another
/// one, must look again before it inserts.
#[tokio::test]
async fn an_adopter_looks_again_behind_its_groups_lock() {
    let scene = Scene::new().await;
    let job = scene.enqueue("g").await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    run(&mut worker, "set application_name = 'worker'").await;
    // The slower one stands between its read of the flags and the lock of the group.
    scene.gate("worker", "insert", "queue_group").await;
    let stopped = pid(&mut worker).await;
    let overtaken = async {
        scene.until_waits(stopped, "advisory").await;
        // It has the group's lock: the other one leaves the group alone.
        assert!(scene.claim(&mut other, 10).await.is_empty());
        scene.open_gate().await;
    };
    let (claimed, ()) = tokio::join!(scene.claim(&mut worker, 10), overtaken);
    assert_eq!(claimed.iter().map(|claim| claim.job).collect::<Vec<_>>(), [job]);
    assert_eq!(scene.number("select count(*) from seriatim.queue_group").await, 1);
    scene.end().await;
}

/// The first flag of a new group stays until its job's end. A claim that read it just before that
/// finds the group's row free, and due later than the flag.
#[tokio::test]
async fn a_flag_that_went_with_its_job_moves_no_group_up_the_line() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (first, second) = (scene.enqueue("g").await, scene.enqueue("g").await);
        let an_hour_ago = "run_at = now() - interval '1 h', turn_at = now() - interval '1 h'";
        scene.run(&format!("update seriatim.job set {an_hour_ago}")).await;
        let mut worker = scene.session().await;
        let claim = scene.claim_one(&mut worker).await;
        assert!(claim.job == first && scene.flagged(first).await);
        scene.hold(&mut worker, &claim).await;
        scene.close_gate().await;
        let read = "exit when page is null;";
        let with_gate = format!("{read} perform public.pass_gate();");
        let mut replace = vec![(read, with_gate.as_str())];
        if wrong {
            replace.push(("array[c.id]) and coalesce(j.flagged, false)", "array[c.id])"));
        }
        scene.rewrite("adopt", &replace).await;
        let claiming = scene.claim_at_gate().await;
        scene.settle(&mut worker, &claim, &succeeded()).await;
        commit(&mut worker).await;
        scene.open_gate().await;
        claiming.await.unwrap();
        // Wrong: it is before all that waited for less than an hour, and so has the slot.
        assert_eq!(scene.is_claimed(second).await, wrong);
        if !wrong {
            let since = "select count(*) from seriatim.queue_group where ready_at > now() - interval '1 min'";
            assert_eq!(scene.number(since).await, 1, "since the end of the first job");
            assert_eq!(scene.drain().await, [second]);
        }
        scene.end().await;
    }
}
