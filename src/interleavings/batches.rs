//! Ends of a batch's jobs, joins, seals and looks, step by step: one follow-up, and none too early.

use sqlx::error::DatabaseError;
use sqlx::{Connection, PgConnection};

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{Q, begin, commit, number, pid, rollback, run};
use crate::interleavings::support::steps::succeeded;
use crate::store::Claim;
use crate::{BatchEnd, Client, EnqueueError, Enqueued, NewBatch, NewJob};

/// Looks at what is due; returns how many follow-ups it enqueued.
const LOOK: &str = "select count(*) from seriatim.end_batches() e where e.state = 'ended'";
const FOLLOW_UPS: &str = "select count(*) from seriatim.job where queue = 'after'";

async fn opened(conn: &mut PgConnection) -> i64 {
    let batch = NewBatch::new("b", NewJob::new("after", &1)).when(BatchEnd::AllEnded);
    Client::default().open_batch(conn, batch).await.unwrap()
}

async fn join(conn: &mut PgConnection, batch: i64, group: &str) -> Result<i64, EnqueueError> {
    let job = NewJob::new(Q, &1).group(group).batch(batch);
    Client::default().enqueue(conn, job).await.map(Enqueued::id)
}

async fn seal(conn: &mut PgConnection, batch: i64) -> bool {
    Client::default().seal_batch(conn, batch).await.unwrap()
}

/// A sealed batch of jobs of these groups; and a claim of each, in a session of its own.
async fn claimed(scene: &Scene, groups: &[&str]) -> Vec<(PgConnection, Claim)> {
    let mut producer = scene.session().await;
    let batch = opened(&mut producer).await;
    for group in groups {
        join(&mut producer, batch, group).await.unwrap();
    }
    seal(&mut producer, batch).await;
    assert_eq!(number(&mut producer, LOOK).await, 0);
    let mut sessions = Vec::new();
    for claim in scene.claim(&mut producer, groups.len()).await {
        sessions.push((scene.session().await, claim));
    }
    sessions
}

#[tokio::test]
async fn the_last_two_that_end_at_once_start_one_follow_up() {
    let scene = Scene::new().await;
    let mut workers = claimed(&scene, &["a", "b"]).await;
    for (worker, claim) in &mut workers {
        scene.hold(worker, claim).await;
        scene.settle(worker, claim, &succeeded()).await;
    }
    // Neither sees the end of the other one.
    assert_eq!(scene.number(LOOK).await, 0);
    for (index, (worker, _)) in workers.iter_mut().enumerate() {
        commit(worker).await;
        assert_eq!(scene.number(LOOK).await, i64::from(index == 1));
    }
    assert_eq!((scene.number(LOOK).await, scene.number(FOLLOW_UPS).await), (0, 1));
    scene.end().await;
}

#[tokio::test]
async fn an_end_that_is_lost_before_its_commit_is_none() {
    let scene = Scene::new().await;
    let mut workers = claimed(&scene, &["a"]).await;
    let (mut worker, claim) = workers.remove(0);
    scene.hold(&mut worker, &claim).await;
    scene.settle(&mut worker, &claim, &succeeded()).await;
    let gone = pid(&mut worker).await;
    // As a worker that is killed.
    drop(worker);
    scene.until_gone(gone).await;
    assert_eq!(scene.number(LOOK).await, 0);
    assert_eq!(scene.number("select count(*) from seriatim.batch_end").await, 0);
    let mut next = scene.session().await;
    scene.run_job(&mut next, &claim).await;
    assert_eq!(scene.number(LOOK).await, 1);
    scene.end().await;
}

#[tokio::test]
async fn two_that_look_at_once_enqueue_one_follow_up() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        if wrong {
            // Wrong: the batch is read by a snapshot, and not locked.
            let lock = "order by b.id for update skip locked";
            scene.rewrite("end_batches", &[(lock, "order by b.id")]).await;
        }
        let mut one = scene.session().await;
        let batch = opened(&mut one).await;
        seal(&mut one, batch).await;
        begin(&mut one).await;
        assert_eq!(number(&mut one, LOOK).await, 1);
        scene.run(&format!("insert into seriatim.batch_due values ({batch})")).await;
        let mut two = scene.session().await;
        if wrong {
            let waiting = pid(&mut two).await;
            run(&mut two, "alter function seriatim.end_batches set lock_timeout = '9s'").await;
            run(&mut two, "alter function seriatim.end_batch set lock_timeout = '9s'").await;
            let looking = tokio::spawn(async move { number(&mut two, LOOK).await });
            scene.until_waits(waiting, "transactionid").await;
            commit(&mut one).await;
            assert_eq!(looking.await.unwrap(), 1);
            assert_eq!(scene.number(FOLLOW_UPS).await, 2);
        } else {
            assert_eq!(number(&mut two, LOOK).await, 0, "it waits for nobody");
            commit(&mut one).await;
            assert_eq!(number(&mut two, LOOK).await, 0);
            assert_eq!(scene.number(FOLLOW_UPS).await, 1);
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_look_that_could_not_lock_the_batch_is_repeated() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        if wrong {
            // Wrong: what is due is forgotten with the look.
            scene.rewrite("end_batches", &[("b.id <> all (locked)", "false")]).await;
        }
        let mut workers = claimed(&scene, &["a"]).await;
        let (mut worker, claim) = workers.remove(0);
        // A look from before the end, which still has the batch's row.
        let mut one = scene.session().await;
        begin(&mut one).await;
        run(&mut one, "select from seriatim.batch for update").await;
        scene.run_job(&mut worker, &claim).await;
        assert_eq!(scene.number(LOOK).await, 0);
        rollback(&mut one).await;
        assert_eq!(scene.number(LOOK).await, i64::from(!wrong));
        scene.end().await;
    }
}

#[tokio::test]
async fn a_look_that_is_lost_before_its_commit_is_repeated() {
    let scene = Scene::new().await;
    let mut one = scene.session().await;
    let batch = opened(&mut one).await;
    seal(&mut one, batch).await;
    begin(&mut one).await;
    assert_eq!(number(&mut one, LOOK).await, 1);
    let gone = pid(&mut one).await;
    drop(one);
    scene.until_gone(gone).await;
    assert_eq!((scene.number(LOOK).await, scene.number(LOOK).await), (1, 0));
    assert_eq!(scene.number(FOLLOW_UPS).await, 1);
    scene.end().await;
}

#[tokio::test]
async fn a_join_that_is_open_keeps_a_sealed_batch_from_its_end() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        if wrong {
            // Wrong: neither the lock nor the update is kept off by a join.
            scene.run("drop index seriatim.batch_key").await;
            let lock = "order by b.id for update skip locked";
            let weak = "order by b.id for no key update skip locked";
            scene.rewrite("end_batches", &[(lock, weak)]).await;
        }
        let (mut one, mut two) = (scene.session().await, scene.session().await);
        let batch = opened(&mut one).await;
        for joins in [&mut one, &mut two] {
            begin(joins).await;
            join(joins, batch, "g").await.unwrap();
        }
        let mut sealer = scene.session().await;
        assert!(seal(&mut sealer, batch).await, "it waits for no join");
        assert_eq!(scene.number(LOOK).await, i64::from(wrong));
        rollback(&mut two).await;
        assert_eq!(scene.number(LOOK).await, 0);
        commit(&mut one).await;
        assert_eq!(scene.number(LOOK).await, 0);
        let unfinished = "select unfinished from seriatim.batches()";
        assert_eq!(scene.number(unfinished).await, 1, "wrong: of a batch that has ended");
        assert_eq!(scene.number(FOLLOW_UPS).await, i64::from(wrong));
        scene.end().await;
    }
}

#[tokio::test]
async fn a_join_beside_a_seal_waits_for_nothing_and_is_before_it_or_refused() {
    let scene = Scene::new().await;
    let (mut sealer, mut joins) = (scene.session().await, scene.session().await);
    let batch = opened(&mut sealer).await;
    begin(&mut sealer).await;
    assert!(seal(&mut sealer, batch).await);
    // The seal has not committed: this join is before it.
    begin(&mut joins).await;
    join(&mut joins, batch, "g").await.unwrap();
    commit(&mut sealer).await;
    // The same transaction, behind the commit.
    run(&mut joins, "savepoint before").await;
    let late = join(&mut joins, batch, "g").await;
    assert!(matches!(late, Err(EnqueueError::BatchSealed { .. })), "{late:?}");
    run(&mut joins, "rollback to before").await;
    assert_eq!(scene.number(LOOK).await, 0);
    commit(&mut joins).await;
    assert_eq!(scene.number(LOOK).await, 0);
    scene.run("select seriatim.purge('q')").await;
    assert_eq!(scene.number(LOOK).await, 1);
    joins.close().await.unwrap();
    scene.end().await;
}

#[tokio::test]
async fn a_join_whose_snapshot_is_older_than_the_end_is_refused() {
    for (wrong, ends) in [(false, false), (false, true), (true, true)] {
        let scene = Scene::new().await;
        if wrong {
            // Wrong: the end is an update of no key.
            scene.run("drop index seriatim.batch_key").await;
        }
        let mut joins = scene.session().await;
        let batch = opened(&mut joins).await;
        run(&mut joins, "begin isolation level repeatable read").await;
        number(&mut joins, FOLLOW_UPS).await;
        scene.run(&format!("select seriatim.seal_batch({batch})")).await;
        if ends {
            assert_eq!(scene.number(LOOK).await, 1);
        }
        let joined = join(&mut joins, batch, "g").await;
        match joined {
            Ok(_) => {
                // Before the seal, as this transaction sees it.
                assert_eq!(scene.number(LOOK).await, 0);
                run(&mut joins, "commit").await;
                let unfinished = "select unfinished from seriatim.batches()";
                assert_eq!(scene.number(unfinished).await, 1);
                assert_eq!(ends, wrong, "of a batch that has ended");
            }
            Err(EnqueueError::Database(late)) => {
                let code = late.as_database_error().and_then(DatabaseError::code);
                assert_eq!((ends, wrong, code.as_deref()), (true, false, Some("40001")), "{late}");
                run(&mut joins, "rollback").await;
            }
            Err(other) => panic!("{other}"),
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_join_that_meets_the_end_just_before_its_lock_is_refused() {
    let scene = Scene::new().await;
    let mut joins = scene.session().await;
    let batch = opened(&mut joins).await;
    seal(&mut joins, batch).await;
    // The look has ended the batch, and holds its row: the join reads the open batch, and waits.
    scene.run("update seriatim.batch set sealed_at = null").await;
    let mut looks = scene.session().await;
    begin(&mut looks).await;
    run(&mut looks, "update seriatim.batch set sealed_at = now(), ended_at = now(), follow_up = 1")
        .await;
    let waiting = pid(&mut joins).await;
    let joining = tokio::spawn(async move { join(&mut joins, batch, "g").await });
    scene.until_waits(waiting, "transactionid").await;
    commit(&mut looks).await;
    let late = joining.await.unwrap();
    assert!(matches!(late, Err(EnqueueError::BatchSealed { .. })), "{late:?}");
    scene.end().await;
}
