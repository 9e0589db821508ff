//! The limit of a queue's jobs in flight holds exactly, and after crashes.

use sqlx::PgConnection;

use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::{
    begin, commit, enqueue, enqueue_ungrouped, number, run,
};

/// How many more jobs may begin; -1 if another transaction has the queue's row.
const ROOM: &str = "select case when busy then -1 else in_flight end from seriatim.queue_room('q')";

async fn limited(limit: i32) -> Scene {
    let scene = Scene::new().await;
    scene
        .run(&format!("insert into seriatim.queue (name, in_flight_limit) values ('q', {limit})"))
        .await;
    scene
}

async fn in_flight(scene: &Scene) -> i64 {
    scene.number("select count(*) from seriatim.job where seriatim.job_state(status, queue, group_id, id) = 'started'").await
}

/// Two claims that have begun, and two groups that are due.
async fn two_claims(scene: &Scene) -> (PgConnection, PgConnection) {
    let (mut one, mut other) = (scene.session().await, scene.session().await);
    scene.enqueue("a").await;
    scene.enqueue("b").await;
    scene.adopt(&mut one).await;
    commit(&mut one).await;
    begin(&mut one).await;
    begin(&mut other).await;
    (one, other)
}

/// The rest of a claim: starts a due job.
async fn start_one(scene: &Scene, conn: &mut PgConnection) {
    let turns = scene.lock_turns(conn, 1).await;
    let heads = scene.read_heads(conn, &turns).await;
    assert_eq!(scene.write(conn, &heads).await.len(), 1);
}

#[tokio::test]
async fn claims_that_count_side_by_side_exceed_the_limit() {
    for wrong in [true, false] {
        let scene = limited(1).await;
        let (mut one, mut other) = two_claims(&scene).await;
        let count = "select count(*) from seriatim.queue_group where job_id is not null";
        if wrong {
            for conn in [&mut one, &mut other] {
                assert_eq!(number(conn, count).await, 0);
            }
            start_one(&scene, &mut one).await;
            start_one(&scene, &mut other).await;
            assert_eq!(in_flight(&scene).await, 2);
        } else {
            // A statement of the other transaction came before: its snapshot must not be used
            // again.
            assert_eq!(number(&mut other, count).await, 0);
            assert_eq!(number(&mut one, ROOM).await, 1);
            assert_eq!(number(&mut other, ROOM).await, -1, "busy");
            start_one(&scene, &mut one).await;
            assert_eq!(number(&mut other, ROOM).await, 0);
            commit(&mut other).await;
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_limit_counts_all_claims_and_changes_with_the_next_one() {
    let scene = limited(3).await;
    let mut worker = scene.session().await;
    for group in ["a", "b", "c"] {
        scene.enqueue(group).await;
    }
    for _ in 0..3 {
        enqueue_ungrouped(&mut worker).await;
    }
    assert_eq!(scene.claim(&mut worker, 10).await.len(), 3);
    let claimed = scene.claim_all(&mut worker, 10).await;
    assert!(claimed.jobs.is_empty() && !claimed.more, "it would claim again and again");
    // Several jobs that were received together are so many in flight.
    scene
        .run("update seriatim.queue_group set batch = array[job_id, -1, -2] where group_id = 'a'")
        .await;
    scene.run("update seriatim.queue set in_flight_limit = 6").await;
    assert_eq!(scene.claim(&mut worker, 10).await.len(), 1);
    scene.run("update seriatim.queue set in_flight_limit = 1").await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    scene.run("update seriatim.queue set in_flight_limit = null").await;
    assert_eq!(scene.claim(&mut worker, 10).await.len(), 2);
    assert_eq!(in_flight(&scene).await, 6);
    scene.end().await;
}

#[tokio::test]
async fn a_take_over_passes_a_reached_limit_and_adds_nothing() {
    let scene = limited(2).await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let job = scene.enqueue("g").await;
    let ungrouped = enqueue_ungrouped(&mut worker).await;
    assert_eq!(scene.claim(&mut worker, 10).await.len(), 2);
    // Their worker died. Meanwhile the limit was lowered, and another group has waited for long.
    scene.run("update seriatim.queue set in_flight_limit = 1").await;
    let waiting = scene.enqueue("waiting").await;
    scene.adopt(&mut other).await;
    commit(&mut other).await;
    scene.lease("waiting", -1000).await;
    let mut over = Vec::new();
    for _ in 0..2 {
        scene.lease("g", -1).await;
        scene.run("update seriatim.job set lease_until = now() where claim is not null").await;
        over = scene.claim(&mut other, 10).await;
    }
    let mut jobs: Vec<i64> = over.iter().map(|over| over.job).collect();
    jobs.sort_unstable();
    assert_eq!(jobs, [job, ungrouped]);
    assert_eq!(in_flight(&scene).await, 2);
    for over in &over {
        scene.run_job(&mut worker, over).await;
    }
    assert_eq!(scene.drain().await, [waiting]);
    scene.end().await;
}

#[tokio::test]
async fn a_claim_that_waits_for_the_queues_row_is_none() {
    let scene = limited(2).await;
    let (mut worker, mut operator) = (scene.session().await, scene.session().await);
    let job = scene.enqueue("g").await;
    begin(&mut operator).await;
    run(&mut operator, "update seriatim.queue set in_flight_limit = 1").await;
    assert!(scene.claim(&mut worker, 10).await.is_empty());
    commit(&mut operator).await;
    assert_eq!(scene.drain().await, [job]);
    scene.end().await;
}

/// A queue with a rate of one start in `ms`, `burst` at once.
async fn paced(ms: i32, burst: i32) -> Scene {
    let scene = Scene::new().await;
    let insert = "insert into seriatim.queue (name, rate, rate_per_ms, rate_burst) values";
    scene.run(&format!("{insert} ('q', 1, {ms}, {burst})")).await;
    scene
}

/// How many starts the rate leaves; -1 if another transaction has the queue's row.
const STARTS: &str = "select case when busy then -1 else starts end from seriatim.queue_room('q')";

#[tokio::test]
async fn claims_side_by_side_share_the_starts_of_a_rate() {
    for wrong in [true, false] {
        let scene = paced(3_600_000, 1).await;
        let (mut one, mut other) = two_claims(&scene).await;
        if wrong {
            // Without the lock both see the one start that is left.
            let left = "select starts from seriatim.queue q, seriatim.rate_room(q.rate, \
                        q.rate_per_ms, q.rate_burst, q.rate_next_at, clock_timestamp())";
            for conn in [&mut one, &mut other] {
                assert_eq!(number(conn, left).await, 1);
            }
            start_one(&scene, &mut one).await;
            start_one(&scene, &mut other).await;
            assert_eq!(in_flight(&scene).await, 2);
        } else {
            assert_eq!(number(&mut one, STARTS).await, 1);
            assert_eq!(number(&mut other, STARTS).await, -1, "busy");
            start_one(&scene, &mut one).await;
            run(&mut one, "select seriatim.count_starts('q', 1)").await;
            commit(&mut one).await;
            assert_eq!(number(&mut other, STARTS).await, 0);
            commit(&mut other).await;
        }
        scene.end().await;
    }
}

#[tokio::test]
async fn a_claim_takes_as_many_as_the_rate_allows_and_says_when_the_next_may_start() {
    let scene = paced(3_600_000, 3).await;
    let mut worker = scene.session().await;
    for group in ["a", "b", "c", "d"] {
        scene.enqueue(group).await;
    }
    let first = scene.claim_all(&mut worker, 10).await;
    assert!(first.limited == Some(true) && first.jobs.len() == 3);
    for _ in 0..2 {
        let none = scene.claim_all(&mut worker, 10).await;
        assert!(none.limited == Some(true) && none.jobs.is_empty() && !none.more);
        let next = none.next.unwrap().as_secs();
        assert!((3_590..=3_600).contains(&next), "{next} s");
    }
    // A transaction that goes back takes its starts with it.
    scene.run("update seriatim.queue set rate_next_at = now() - interval '1 d'").await;
    begin(&mut worker).await;
    assert_eq!(number(&mut worker, STARTS).await, 3);
    run(&mut worker, "select seriatim.count_starts('q', 3)").await;
    assert_eq!(number(&mut worker, STARTS).await, 0);
    run(&mut worker, "rollback").await;
    assert_eq!(number(&mut worker, STARTS).await, 3);
    scene.end().await;
}

#[tokio::test]
async fn a_take_over_is_a_start_too() {
    let scene = paced(3_600_000, 1).await;
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    let job = scene.enqueue("g").await;
    assert_eq!(scene.claim(&mut worker, 10).await.len(), 1);
    for free in [false, true] {
        if free {
            scene.run("update seriatim.queue set rate_next_at = null").await;
        }
        let mut over = Vec::new();
        for _ in 0..2 {
            scene.lease("g", -1).await;
            over = scene.claim(&mut other, 10).await;
        }
        let taken: Vec<i64> = over.iter().map(|over| over.job).collect();
        assert_eq!(taken, if free { vec![job] } else { vec![] });
    }
    assert_eq!(number(&mut other, STARTS).await, 0);
    scene.end().await;
}

#[tokio::test]
async fn starts_that_come_late_keep_the_rate() {
    let scene = Scene::new().await;
    // (rate, ms, burst, when the next is due against now in ms) and how many may start, and in how
    // many ms one may, if none.
    for (rate, ms, burst, due, starts, wait) in [
        (10, 1000, 1, "null", 1, None),
        (10, 1000, 1, "-1", 1, None),
        (10, 1000, 1, "-99000", 1, None),
        (10, 1000, 1, "1", 0, Some(1)),
        (10, 1000, 3, "1", 2, None),
        (10, 1000, 3, "-1000", 3, None),
        (10, 1000, 3, "199", 1, None),
        (10, 1000, 3, "201", 0, Some(1)),
        (1, 60_000, 1, "59000", 0, Some(59_000)),
    ] {
        let now = "'2026-01-01 00:00:00Z'::timestamptz";
        let at = format!("{now} + {due} * interval '1 ms'");
        let room = format!("from seriatim.rate_room({rate}, {ms}, {burst}, {at}, {now})");
        let case = format!("{rate} in {ms} ms, {burst} at once, next in {due} ms");
        assert_eq!(scene.number(&format!("select starts {room}")).await, starts, "{case}");
        if let Some(wait) = wait {
            let free = format!("select round(extract(epoch from free_at - {now}) * 1000)::bigint");
            assert_eq!(scene.number(&format!("{free} {room}")).await, wait, "{case}");
        }
    }
    // The next is due an interval behind the last one's time, and not behind its start.
    scene
        .run(
            "insert into seriatim.queue (name, rate, rate_per_ms, rate_burst, rate_next_at) \
             values ('q', 1, 3600000, 1, now() - interval '10 min')",
        )
        .await;
    scene.run("select seriatim.count_starts('q', 1)").await;
    let due = "select round(extract(epoch from rate_next_at - now()) / 60)::bigint \
               from seriatim.queue";
    assert_eq!(scene.number(due).await, 50);
    scene.run("update seriatim.queue set rate_next_at = now() - interval '2 h'").await;
    scene.run("select seriatim.count_starts('q', 1)").await;
    assert_eq!(scene.number(due).await, 60, "an idle queue saves nothing up");
    scene.end().await;
}

#[tokio::test]
async fn a_drained_group_remembers_its_last_start() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        if wrong {
            let spacing = [("and coalesce(g.spaced_until <= clock_timestamp(), true))", ")")];
            scene.rewrite("pass_turns", &spacing).await;
        }
        scene
            .run("insert into seriatim.queue (name, group_spacing_ms) values ('q', 3600000)")
            .await;
        let mut worker = scene.session().await;
        scene.enqueue("g").await;
        let first = scene.claim_one(&mut worker).await;
        scene.run_job(&mut worker, &first).await;
        let second = scene.enqueue("g").await;
        let again = scene.claim(&mut worker, 10).await;
        assert_eq!(again.len(), usize::from(wrong), "it starts at once without its row");
        if !wrong {
            let other = scene.enqueue("other").await;
            let next = scene.claim_one(&mut worker).await;
            assert_eq!(next.job, other, "others are not held up");
            // The group goes on when its time has come, and its row goes when nothing is left.
            let over = "update seriatim.queue_group set ready_at = now(), spaced_until = now() \
                        where group_id = 'g'";
            scene.run(over).await;
            let due = scene.claim_one(&mut worker).await;
            assert_eq!(due.job, second);
            scene.run_job(&mut worker, &due).await;
            assert!(scene.row("g").await.is_some());
            scene.run(over).await;
            assert!(scene.claim(&mut worker, 10).await.is_empty());
            assert!(scene.row("g").await.is_none());
        }
        scene.end().await;
    }
}

/// A look at each of thousands of spaced groups would hold up others (P8).
#[tokio::test]
async fn a_flag_wakes_no_group_that_is_spaced() {
    for wrong in [true, false] {
        let scene = Scene::new().await;
        if wrong {
            let wakes = [("g.ready_at <= g.spaced_until then", "false then")];
            scene.rewrite("read_calls", &wakes).await;
        }
        scene
            .run("insert into seriatim.queue (name, group_spacing_ms) values ('q', 3600000)")
            .await;
        let mut worker = scene.session().await;
        let jobs = enqueue(&mut worker, &["g", "g"]).await;
        let first = scene.claim_one(&mut worker).await;
        scene.run_job(&mut worker, &first).await;
        let second = jobs[1];
        scene.run(&format!("update seriatim.job set flagged = true where id = {second}")).await;
        scene.run(&format!("update seriatim.queue_group set head_id = {second}")).await;
        let version = "select xmin::text::int8 from seriatim.queue_group";
        let before = scene.number(version).await;
        assert!(scene.claim(&mut worker, 10).await.is_empty());
        assert_eq!(scene.number(version).await != before, wrong, "its row is written");
        assert!(!scene.flagged(second).await, "its flag is in no claim's way");
        // Whatever happens to its head, the next job starts when the time has come.
        assert!(scene.cancel(second).await);
        let next = scene.enqueue("g").await;
        assert!(scene.claim(&mut worker, 10).await.is_empty());
        let over = "update seriatim.queue_group set ready_at = now(), spaced_until = now()";
        scene.run(over).await;
        assert_eq!(scene.claim_one(&mut worker).await.job, next);
        scene.end().await;
    }
}

/// A receive notes how far it has read flags, if it has read any.
#[tokio::test]
async fn a_receive_of_a_queue_that_starts_nothing_leaves_the_note_of_another() {
    let scene = Scene::new().await;
    scene.run("insert into seriatim.queue (name, in_flight_limit) values ('q', 1)").await;
    scene
        .run(
            "insert into seriatim.flag_scan (queue, flags_at, flags_id, unread, read_ms, again_at, noted_at) \
             values ('q', now() - interval '1 s', 0, true, 1, now() + interval '1 min', now())",
        )
        .await;
    scene.run("select seriatim.pause('q')").await;
    let received = scene.number("select count(*) from seriatim.receive('q')").await;
    let noted = scene.number("select count(*) from seriatim.flag_scan where unread").await;
    assert_eq!((received, noted), (0, 1));
    scene.end().await;
}
