//! Unique keys: what an enqueue that finds a job with its key may say, and when.

use std::time::Duration;

use sqlx::{PgConnection, PgPool};

use crate::admin::{DedupScope, QueueSettings};
use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{Q, begin, commit, lock_job, pid, rollback, run};
use crate::interleavings::support::steps::retried;
use crate::{Client, Enqueued, NewJob, Unique};

/// Enqueues a job of the group `g` with a key.
async fn enqueue_with(conn: &mut PgConnection, data: i64, unique: Unique) -> Enqueued {
    let job = NewJob::new(Q, &data).group("g").unique(unique);
    Client::default().notify(false).enqueue(conn, job).await.unwrap()
}

async fn enqueue(conn: &mut PgConnection, unique: Unique) -> Enqueued {
    enqueue_with(conn, 1, unique).await
}

/// All that a job has its key until it starts.
fn until_start() -> [Unique; 3] {
    [Unique::until_start("k"), Unique::replace("k"), Unique::debounce("k")]
}

async fn data(scene: &Scene, job: i64) -> i64 {
    scene.number(&format!("select data::int8 from seriatim.job where id = {job}")).await
}

/// A duplicate's transaction may have written what the job is to see: the job begins after it.
#[tokio::test]
async fn a_job_begins_after_the_commit_of_its_duplicate() {
    let [keeps, replaces, debounces] = until_start();
    // A replacement locks the job in any case.
    for (wrong, unique) in
        [(true, keeps.clone()), (false, keeps), (false, replaces), (false, debounces)]
    {
        let scene = Scene::new().await;
        let (mut producer, mut worker) = (scene.session().await, scene.session().await);
        if wrong {
            // It looks at the job and does not lock it.
            scene.rewrite("lock_unbegun", &[("for no key update skip locked", "")]).await;
        }
        let first = enqueue(&mut producer, Unique::until_start("k")).await.id();
        begin(&mut producer).await;
        let again = enqueue(&mut producer, unique).await;
        assert_eq!(again, Enqueued::Duplicate { id: first });
        assert_eq!(scene.claim(&mut worker, 10).await.len(), usize::from(wrong));
        commit(&mut producer).await;
        if !wrong {
            assert_eq!(scene.drain().await, [first]);
        }
        scene.end().await;
    }
}

/// A claim that was committed just before the lock has begun the job: a new one is inserted.
#[tokio::test]
async fn a_claimed_job_has_lost_its_key() {
    for wrong in [true, false] {
        for unique in until_start() {
            let scene = Scene::new().await;
            let (mut producer, mut worker) = (scene.session().await, scene.session().await);
            if wrong {
                let asks = [("perform check_unclaimed(array[first_job]);", "")];
                scene.rewrite("claim_unique_key", &asks).await;
            }
            let first = enqueue(&mut producer, unique.clone()).await.id();
            let claim = scene.claim_one(&mut worker).await;
            begin(&mut producer).await;
            let again = enqueue_with(&mut producer, 2, unique.clone()).await;
            assert_eq!(again.is_duplicate(), wrong, "{unique:?}");
            if !wrong {
                // The lock is given back: the settle waits for nothing.
                scene.run_job(&mut worker, &claim).await;
                assert_eq!(scene.status(first).await, "succeeded");
            }
            commit(&mut producer).await;
            if !wrong {
                assert_eq!((data(&scene, first).await, data(&scene, again.id()).await), (1, 2));
                // The key is the second job's now.
                let third = enqueue(&mut producer, unique).await;
                assert_eq!(third, Enqueued::Duplicate { id: again.id() });
                assert_eq!(scene.drain().await, [again.id()]);
            }
            scene.end().await;
        }
    }
}

/// The claim has locked the job and is not committed.
#[tokio::test]
async fn a_job_that_is_being_claimed_counts_as_begun() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (mut producer, mut worker) = (scene.session().await, scene.session().await);
        if wrong {
            scene
                .rewrite("lock_unbegun", &[("for no key update skip locked", "for key share")])
                .await;
        }
        let first = enqueue(&mut producer, Unique::until_start("k")).await.id();
        begin(&mut worker).await;
        assert_eq!(scene.claim_all(&mut worker, 1).await.jobs.len(), 1);
        let again = enqueue(&mut producer, Unique::until_start("k")).await;
        commit(&mut worker).await;
        assert_eq!(again == Enqueued::Duplicate { id: first }, wrong);
        scene.end().await;
    }
}

/// Both find no job: without a lock of the key both would insert one.
#[tokio::test]
async fn two_enqueues_with_one_key_come_one_after_the_other() {
    for commits in [true, false] {
        let scene = Scene::new().await;
        let (mut one, mut two) = (scene.session().await, scene.session().await);
        begin(&mut one).await;
        let first = enqueue(&mut one, Unique::until_start("k")).await;
        assert!(!first.is_duplicate());
        let other = enqueue(&mut two, Unique::until_start("other")).await;
        assert!(!other.is_duplicate(), "another key waits for nothing");
        let waits = pid(&mut two).await;
        let end = async {
            scene.until_waits(waits, "transactionid").await;
            if commits { commit(&mut one).await } else { rollback(&mut one).await }
        };
        let (second, ()) = tokio::join!(enqueue(&mut two, Unique::until_start("k")), end);
        assert_eq!(second.is_duplicate(), commits);
        assert_eq!(second.id() == first.id(), commits);
        scene.end().await;
    }
}

/// A job that runs, or waits for a retry, has a key that counts until its end.
#[tokio::test]
async fn a_key_until_the_end_outlives_attempts() {
    let scene = Scene::new().await;
    let (mut producer, mut worker) = (scene.session().await, scene.session().await);
    let unique = || Unique::until_end("k");
    let first = enqueue(&mut producer, unique()).await.id();
    let duplicate = Enqueued::Duplicate { id: first };
    let claim = scene.claim_one(&mut worker).await;
    let mut hold = scene.session().await;
    scene.hold(&mut hold, &claim).await;
    // The hold has the job's row: the enqueue does not wait for it.
    assert_eq!(enqueue(&mut producer, unique()).await, duplicate);
    // A key that counts until the start is another one.
    let other = enqueue(&mut producer, Unique::until_start("k")).await;
    assert!(!other.is_duplicate());
    scene.settle(&mut hold, &claim, &retried(Duration::ZERO)).await;
    commit(&mut hold).await;
    assert_eq!(scene.status(first).await, "queued");
    assert_eq!(enqueue(&mut producer, unique()).await, duplicate);
    assert_eq!(scene.drain().await, [first, other.id()]);
    assert!(!enqueue(&mut producer, unique()).await.is_duplicate());
    scene.end().await;
}

/// A replacement is of the job that waits, and of no other; it keeps the job's place.
#[tokio::test]
async fn a_replaced_job_keeps_its_place() {
    let scene = Scene::new().await;
    let mut producer = scene.session().await;
    let first = enqueue_with(&mut producer, 1, Unique::replace("k")).await.id();
    let second = scene.enqueue("g").await;
    let again = enqueue_with(&mut producer, 2, Unique::replace("k")).await;
    assert_eq!(again, Enqueued::Duplicate { id: first });
    assert_eq!(data(&scene, first).await, 2);
    let replaced = "select replaced::int8 from seriatim.job order by id limit 1";
    assert_eq!(scene.number(replaced).await, 1);
    // A replacement that is rolled back replaces nothing.
    begin(&mut producer).await;
    enqueue_with(&mut producer, 3, Unique::replace("k")).await;
    rollback(&mut producer).await;
    assert_eq!((data(&scene, first).await, scene.number(replaced).await), (2, 1));
    assert_eq!(scene.drain().await, [first, second]);
    scene.end().await;
}

/// A group sleeps until its job is due. One whose time comes nearer is woken.
#[tokio::test]
async fn a_debounced_job_has_the_last_time() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (mut producer, mut worker) = (scene.session().await, scene.session().await);
        if wrong {
            let wakes = [("j.group_id is not null and least", "false and least")];
            scene.rewrite("claim_unique_key", &wakes).await;
        }
        let job = |delay| NewJob::new(Q, &1).group("g").unique(Unique::debounce("k")).delay(delay);
        let (hour, client) = (Duration::from_hours(1), Client::default());
        // One statement, so the second job has no flag.
        let jobs = [NewJob::new(Q, &1).group("g"), job(hour)];
        let ids = client.enqueue_many(&mut producer, jobs).await.unwrap();
        let claim = scene.claim_one(&mut worker).await;
        scene.run_job(&mut worker, &claim).await;
        assert!(scene.claim(&mut worker, 1).await.is_empty());
        assert!(!scene.row("g").await.unwrap().due, "the group sleeps");
        // Later, and then at once.
        client.enqueue(&mut producer, job(2 * hour)).await.unwrap();
        let due = "select count(*) from seriatim.job where run_at > now() + interval '90 min'";
        assert_eq!(scene.number(due).await, 1);
        assert!(scene.claim(&mut worker, 1).await.is_empty());
        client.enqueue(&mut producer, job(Duration::ZERO)).await.unwrap();
        let claims = scene.claim(&mut worker, 1).await;
        assert_eq!(claims.len(), usize::from(!wrong));
        assert!(claims.iter().all(|claim| claim.job == ids[1].id()));
        scene.end().await;
    }
}

#[tokio::test]
async fn a_sweep_deletes_keys_of_ended_jobs_alone() {
    let scene = Scene::new().await;
    let mut producer = scene.session().await;
    let unique = || Unique::until_start("k");
    let first = enqueue(&mut producer, unique()).await.id();
    assert_eq!(scene.drain().await, [first]);
    let sweep = async || {
        scene.run("update seriatim.unique_key set look_at = now()").await;
        scene.run("select seriatim.forget_unique_keys(10)").await;
        scene.number("select count(*) from seriatim.unique_key").await
    };
    // The row names an ended job, and an open transaction gives it another one.
    scene.run("update seriatim.unique_key set look_at = now()").await;
    begin(&mut producer).await;
    let second = enqueue(&mut producer, unique()).await.id();
    scene.run("select seriatim.forget_unique_keys(10)").await;
    commit(&mut producer).await;
    assert_eq!(enqueue(&mut producer, unique()).await, Enqueued::Duplicate { id: second });
    assert_eq!(sweep().await, 1, "its job waits");
    assert_eq!(enqueue(&mut producer, unique()).await, Enqueued::Duplicate { id: second });
    assert_eq!(scene.drain().await, [second]);
    assert_eq!(sweep().await, 0);
    scene.end().await;
}

/// Maintenance carries out a cancel that met a lock, also if an enqueue comes meanwhile.
#[tokio::test]
async fn a_job_whose_cancel_was_requested_takes_no_work_over() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (mut producer, mut other) = (scene.session().await, scene.session().await);
        if wrong {
            let asks = "exists (select from cancel_request r where r.job_id = j.id) as cancelled";
            scene.rewrite("claim_unique_key", &[(asks, "false as cancelled")]).await;
        }
        for unique in [Unique::until_start("c"), Unique::replace("d"), Unique::until_end("c")] {
            let first = enqueue(&mut producer, unique.clone()).await.id();
            begin(&mut other).await;
            lock_job(&mut other, first, "no key update").await;
            scene.cancel(first).await;
            rollback(&mut other).await;
            assert_eq!(enqueue(&mut producer, unique).await.is_duplicate(), wrong);
            scene.clear().await;
        }
        scene.end().await;
    }
}

/// A job that expires before its duplicate would, ends without a run.
#[tokio::test]
async fn a_job_gets_the_later_expiry_of_its_duplicate() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let (mut producer, mut worker) = (scene.session().await, scene.session().await);
        if wrong {
            let extends = [("elsif was.expires_sooner then", "elsif false then")];
            scene.rewrite("claim_unique_key", &extends).await;
        }
        let client = Client::default();
        let hour = Duration::from_hours(1);
        for unique in [Unique::until_start("e"), Unique::until_end("e")] {
            let with =
                |time| NewJob::new(Q, &1).group("g").unique(unique.clone()).time_to_live(time);
            let first = client.enqueue(&mut producer, with(2 * hour)).await.unwrap().id();
            let hours = format!(
                "select round(extract(epoch from expires_at - now()) / 3600)::int8 from seriatim.job where id = {first}"
            );
            for (time, after) in [(hour, 2), (5 * hour, if wrong { 2 } else { 5 })] {
                let again = client.enqueue(&mut producer, with(time)).await.unwrap();
                assert_eq!(again, Enqueued::Duplicate { id: first });
                assert_eq!(scene.number(&hours).await, after, "{unique:?}");
            }
            let again = enqueue(&mut producer, unique.clone()).await;
            assert_eq!(again, Enqueued::Duplicate { id: first });
            let never = format!(
                "select count(*) from seriatim.job where id = {first} and expires_at is null"
            );
            assert_eq!(scene.number(&never).await == 1, !wrong);
            scene.clear().await;
        }
        // One that runs has begun in time, however long it takes.
        if !wrong {
            let unique = || Unique::until_end("r");
            let first = enqueue(&mut producer, unique()).await.id();
            let claim = scene.claim_one(&mut worker).await;
            assert_eq!(claim.job, first);
            scene.run("update seriatim.job set expires_at = now() - interval '1 s'").await;
            assert_eq!(enqueue(&mut producer, unique()).await, Enqueued::Duplicate { id: first });
            let hold = "select 1 from seriatim.job for update";
            begin(&mut worker).await;
            run(&mut worker, hold).await;
            assert_eq!(enqueue(&mut producer, unique()).await, Enqueued::Duplicate { id: first });
            rollback(&mut worker).await;
        }
        scene.end().await;
    }
}

/// Producers that come one after the other, each with a lock of the job, leave it to no claim.
#[tokio::test]
async fn a_job_with_many_duplicates_is_left_to_the_next_claim() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        let mut producer = scene.session().await;
        if wrong {
            scene.rewrite("claim_unique_key", &[("had >= 256", "false")]).await;
        }
        let unique = || Unique::until_start("k");
        let first = enqueue(&mut producer, unique()).await.id();
        scene.run("update seriatim.unique_key set duplicates = 254").await;
        assert_eq!(enqueue(&mut producer, unique()).await, Enqueued::Duplicate { id: first });
        let next = enqueue(&mut producer, unique()).await;
        assert_eq!(next.is_duplicate(), wrong);
        assert_eq!(enqueue(&mut producer, unique()).await, Enqueued::Duplicate { id: next.id() });
        // In its own transaction a job is in no claim's way.
        begin(&mut producer).await;
        let own = enqueue(&mut producer, Unique::replace("own")).await.id();
        for _ in 0..300 {
            let again = enqueue(&mut producer, Unique::replace("own")).await;
            assert_eq!(again, Enqueued::Duplicate { id: own });
        }
        commit(&mut producer).await;
        scene.end().await;
    }
}

/// Each needs the other's key.
#[tokio::test]
async fn statements_with_the_same_keys_take_them_in_one_order() {
    let scene = Scene::new().await;
    let pool: &PgPool = scene.db.pool();
    // In the scope of the queue the groups do not count.
    let keys = |order: &[i64]| -> Vec<NewJob> {
        let key = |n: i64| match n {
            5 => Unique::until_end(n.to_string()).in_group(),
            _ => Unique::until_end(n.to_string()),
        };
        let group = |n: i64| if n == 5 { 5 } else { n * order[0] };
        let job = |n: &i64| NewJob::new(Q, n).group(format!("g{}", group(*n))).unique(key(*n));
        order.iter().map(job).collect()
    };
    let client = Client::default();
    let settings = QueueSettings::new(Q).dedup_scope(DedupScope::Group);
    client.configure_queue(pool, settings).await.unwrap();
    let mut new = 0;
    for _ in 0..20 {
        let (up, down) = tokio::join!(
            client.enqueue_many(pool, keys(&[1, 2, 3, 4, 5])),
            client.enqueue_many(pool, keys(&[5, 4, 3, 2, 1])),
        );
        new +=
            [up.unwrap(), down.unwrap()].concat().iter().filter(|job| !job.is_duplicate()).count();
        scene.drain().await;
    }
    assert!(new >= 20 * 5, "{new}");
    scene.end().await;
}
