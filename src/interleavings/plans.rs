//! Reads of the hot path's statements, at 100 k jobs (P7).
//!
//! Measured, not explained: the session's own counters of scans and of rows and index entries read.
//! They surround the crate's functions, in the sessions and transactions that these run in. So
//! every plan counts that a statement got.

use std::ops::Range;

use sqlx::PgConnection;

use crate::NewJob;
use crate::interleavings::support::meter::Meter;
use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{
    begin, begin_hold, commit, enqueue, number, rollback, run,
};
use crate::interleavings::support::shapes::{NEVER, SHAPES, VACUUMED, WHILE_EMPTY, WITH_ONE_GROUP};
use crate::interleavings::support::size::size;
use crate::interleavings::support::steps::{KEEP, OPTIONS, adopt, retried, succeeded};
use crate::store::{
    AfterSettle, ClaimBounds, ClaimOptions, HeartbeatQuery, HoldAnswer, ScanStart, Store,
    Succeeded, UnrecordedSuccess,
};

/// A queue without a backlog.
const BESIDE: &str = "beside";

/// The steps of a claim before it takes turns, and the queries of a heartbeat. Returns the number
/// of groups made ready.
async fn before_the_turns(scene: &Scene, conn: &mut PgConnection, meter: &mut Meter) -> usize {
    let store = &scene.store;
    let adopted = adopt(conn, 128).await;
    // 300 flags, and those that were cleared by the rounds before: the flag, its group's row and
    // its update.
    meter.check(conn, "adopt", [600 + 300 * 12, 300 * 40]).await;
    run(conn, "select seriatim.age_priorities('q', clock_timestamp(), 256)").await;
    meter.check(conn, "priority aging", [40 * 8, 40 * 20]).await;
    let room = number(conn, "select in_flight from seriatim.queue_room('q')").await;
    assert!((900..=1000).contains(&room), "{room}");
    meter.check(conn, "room", [150, 200]).await;
    let server = store.server_since(conn).await.unwrap();
    let asks = HeartbeatQuery {
        queues: &[BESIDE],
        maintenance: true,
        ..HeartbeatQuery::new(7, 1, false, server)
    };
    run(conn, &store.heartbeat_sql(asks)).await;
    // Eight flags at most, and the rows of their groups.
    meter.check(conn, "heartbeat", [20, 120]).await;
    // Past the flags and rows of the round before, like a peek.
    run(conn, &store.heartbeat_sql(HeartbeatQuery { queues: &[Q], ..asks })).await;
    meter.check(conn, "poll of a queue", [600, 600]).await;
    let lapsed = "select seriatim.lock_turns(('q', null, false, null, 3, 0.5, false, null, 1, true)::seriatim.claim_terms, \
         'lapsed', 10, '-infinity', clock_timestamp())";
    run(conn, lapsed).await;
    // Behind the rows that the adoptions of all rounds have left, more or less of them marked as
    // dead (an insert marks them only in a unique index).
    meter.check(conn, "take lapsed", [500, 500]).await;
    adopted
}

/// One round of everything, from a claim for `slots` to a settle. Rolls back, so that rounds are
/// alike.
async fn round(scene: &Scene, conn: &mut PgConnection, name: &str, mode: &str) -> Vec<String> {
    let store = &scene.store;
    let slots = 10;
    let set_mode = format!("set local plan_cache_mode = {mode}");
    // Some have just slept, and get their priority aging; thousands sleep on.
    scene
        .run(
            "update seriatim.queue_group set aging_priority = 1 \
             where group_id <> 'g1' and claim is null and ready_at <= now() and head_id % 300 = 1",
        )
        .await;
    begin(conn).await;
    run(conn, &set_mode).await;
    let mut meter = Meter::new(conn, format!("{name}, {mode}")).await;
    let adopted = before_the_turns(scene, conn, &mut meter).await;
    let turns = scene.lock_turns(conn, slots).await;
    meter.check(conn, "lock turns", [32 * slots, 200]).await;
    let heads = scene.read_heads(conn, &turns).await;
    meter.check(conn, "read heads", [16 * slots + 300, 50 * slots]).await;
    let started = scene.start(conn, &heads, None).await;
    meter.check(conn, "start", [24 * slots, 60 * slots]).await;
    scene.defer(conn, &heads).await;
    meter.check(conn, "defer and retire", [8 * slots + 400, 500]).await;
    assert!(adopted < 2000);
    commit(conn).await;
    let Some(claim) = started.first() else {
        return meter.wrong;
    };
    for success in [true, false] {
        assert!(matches!(scene.try_hold(conn, claim).await, HoldAnswer::Held(_)));
        rollback(conn).await;
        begin_hold(conn).await;
        run(conn, &set_mode).await;
        meter.restart(conn).await;
        store.hold(conn, claim).await.unwrap();
        meter.check(conn, "hold", [20, 150]).await;
        store.at_failure(conn, claim.job).await.unwrap();
        meter.check(conn, "failure policy", [5, 30]).await;
        let outcome = if success { succeeded() } else { retried(std::time::Duration::ZERO) };
        if success {
            let done = [UnrecordedSuccess {
                job: claim.job,
                result: "null".into(),
                began: None,
                ended: None,
            }];
            run(conn, "savepoint recorded").await;
            store.record_earlier(conn, Q, claim, &done, KEEP).await.unwrap();
            meter.check(conn, "record", [20, 100]).await;
            run(conn, "rollback to recorded").await;
            let success = || Succeeded { claim, earlier: &[], result: "null" };
            meter.restart(conn).await;
            let settled = store
                .quick_settle(
                    conn,
                    claim,
                    "null",
                    true,
                    !claim.followers.is_empty(),
                    AfterSettle::Nothing,
                )
                .await;
            assert!(settled.unwrap().ended);
            meter.check(conn, "settle of a success", [100, 200]).await;
            run(conn, "rollback to recorded").await;
            meter.restart(conn).await;
            store.settle_many(conn, &[success()], true).await.unwrap();
            // Behind the rows that the two settles before have left.
            meter.check(conn, "settle of many", [100, 250]).await;
            run(conn, "rollback to recorded").await;
        }
        let settled = store.settle(conn, claim, &outcome, KEEP).await;
        settled.unwrap();
        meter.check(conn, "settle", [60, 200]).await;
        rollback(conn).await;
    }
    run(conn, "begin").await;
    run(conn, &set_mode).await;
    meter.restart(conn).await;
    for group in [Some("g1"), None] {
        let mut job = NewJob::new(Q, &1);
        if let Some(group) = group {
            job = job.group(group);
        }
        crate::enqueue(&mut *conn, job).await.unwrap();
        meter.check(conn, "enqueue", [40, 150]).await;
    }
    run(conn, "rollback").await;
    receive_and_answer(conn, &set_mode, &mut meter).await;
    round_trips(store, conn, &set_mode, &mut meter).await;
    meter.wrong
}

/// Undoes the claims of the round before.
const REQUEUED: [&str; 2] = [
    "update seriatim.job set status = 'queued', attempts = 0 \
     where id = any(array(select job_id from seriatim.queue_group where claim is not null))",
    "update seriatim.queue_group set claim = null, job_id = null, batch = null, started_at = null, \
     ready_at = now() where claim is not null",
];

/// Pauses each group that is claimed for several jobs: a settle releases those.
const PAUSE: &str = "insert into seriatim.group_setting (queue, group_id, paused_at) \
    select queue, group_id, now() from seriatim.queue_group where batch is not null on conflict do nothing";

/// Makes the next statements be planned behind a hold alone, and not behind the claim of the same
/// transaction.
const PLANNED_IN_A_HOLD: [&str; 5] = [
    "savepoint held",
    "discard plans",
    "set local enable_sort = on",
    "set local enable_mergejoin = on",
    "set local enable_hashjoin = on",
];

/// Reads of a worker's round trips: a claim, and a hold and a settle of one of its jobs.
async fn round_trips(store: &Store, conn: &mut PgConnection, set_mode: &str, meter: &mut Meter) {
    // New groups of a queue beside the full one.
    run(conn, "begin").await;
    for group in ["a", "b", "c"] {
        crate::enqueue(&mut *conn, NewJob::new(BESIDE, &1).group(group)).await.unwrap();
    }
    run(conn, set_mode).await;
    meter.restart(conn).await;
    let claimed = store
        .claim(conn, BESIDE, ClaimBounds::new(10, 0, false, ScanStart::default()), OPTIONS)
        .await
        .unwrap();
    assert_eq!(claimed.jobs.len(), 3);
    meter.check(conn, "claim of new groups", [60, 400]).await;
    run(conn, "rollback").await;
    let ways = [(true, 1), (false, 1), (false, 10)];
    for (ungrouped_first, jobs_per_turn) in ways.into_iter().step_by(size(2, 1)) {
        let options = ClaimOptions { jobs_per_turn, ..OPTIONS };
        run(conn, "begin").await;
        run(conn, "update seriatim.queue set in_flight_limit = null").await;
        for what in REQUEUED {
            run(conn, what).await;
        }
        run(conn, set_mode).await;
        meter.restart(conn).await;
        let claimed = store
            .claim(conn, Q, ClaimBounds::new(10, 0, ungrouped_first, ScanStart::default()), options)
            .await
            .unwrap();
        let behind: usize = claimed.jobs.iter().map(|claim| claim.followers.len()).sum();
        let deep =
            ["one deep group", "10 k groups"].iter().any(|name| meter.name.starts_with(name));
        assert!(behind > 0 || !deep || jobs_per_turn == 1, "{}", meter.name);
        // A page of 64 flags, and ten jobs, behind the rows that the rounds before have left.
        let limit = [1500 + 64 * 12 + 10 * 40, 4000];
        let behind = i64::try_from(behind).unwrap();
        meter.check(conn, "claim", [limit[0] + behind * 10, limit[1] + behind * 40]).await;
        let unstarted: Vec<_> = claimed.jobs.iter().skip(2).collect();
        assert_eq!(store.release(conn, Q, &unstarted).await.unwrap().len(), unstarted.len());
        meter.check(conn, "release", [300 + behind * 10, 1000 + behind * 20]).await;
        for claim in claimed.jobs.iter().take(size(1, 2)) {
            let held = store.begin_and_hold(conn, claim, None).await.unwrap();
            assert!(matches!(held, HoldAnswer::Held(_)));
            meter.check(conn, "quick hold", [20, 150]).await;
            let behind = i64::try_from(claim.followers.len()).unwrap();
            if behind > 0 {
                run(conn, PAUSE).await;
                meter.restart(conn).await;
            }
            // Planned behind a hold alone, and not behind a claim, as here.
            for sql in PLANNED_IN_A_HOLD {
                run(conn, sql).await;
            }
            meter.restart(conn).await;
            let settled = store
                .quick_settle(
                    conn,
                    claim,
                    "null",
                    true,
                    !claim.followers.is_empty(),
                    AfterSettle::Nothing,
                )
                .await;
            assert!(settled.unwrap().ended);
            meter.check(conn, "quick settle", [60 + 10 * behind, 200 + 15 * behind]).await;
        }
        run(conn, "rollback").await;
    }
}

/// Reads of the functions for other languages: a receive, and the answers about its jobs.
async fn receive_and_answer(conn: &mut PgConnection, set_mode: &str, meter: &mut Meter) {
    run(conn, "begin").await;
    run(conn, set_mode).await;
    meter.restart(conn).await;
    let receive = "select receipt from seriatim.receive('q', 10, together => true)";
    run(conn, receive).await;
    meter.check(conn, "receive of whole groups", [600 * 12 + 1000, 5000]).await;
    run(conn, "rollback").await;
    run(conn, "begin").await;
    run(conn, set_mode).await;
    meter.restart(conn).await;
    let receive = "select receipt from seriatim.receive('q', 10)";
    let receipts: Vec<String> = sqlx::query_scalar(receive).fetch_all(&mut *conn).await.unwrap();
    // Sixteen pages of flags may be adopted, of which there are two; ten jobs.
    meter.check(conn, "receive", [600 * 12 + 1000, 5000]).await;
    for (n, receipt) in receipts.iter().enumerate() {
        let (name, more) = [("extend", ", '60 s'"), ("nack", ""), ("ack", "")][n % 3];
        run(conn, &format!("select seriatim.{name}('{receipt}'{more})")).await;
        meter.check(conn, name, [150, 300]).await;
    }
    run(conn, "rollback").await;
}

/// A thousand jobs in one statement. Its dead rows stay.
async fn batch(scene: &Scene, conn: &mut PgConnection, name: &str, mode: &str) -> Vec<String> {
    for groups in [true, false] {
        run(conn, "begin").await;
        run(conn, &format!("set local plan_cache_mode = {mode}")).await;
        let mut meter = Meter::new(conn, format!("{name}, {mode}")).await;
        let jobs = (0..1000).map(|n| {
            let job = NewJob::new(Q, &1);
            if groups { job.group(format!("g{n}")) } else { job }
        });
        let client = crate::Client::default();
        client.enqueue_many(&mut *conn, jobs).await.unwrap();
        // In its caller's session: a table of one page may be read as a whole for each job.
        meter.tolerate_small_scans(scene, conn).await;
        meter.check(conn, "enqueue of 1000", [1000 * 4, 20000]).await;
        run(conn, "rollback").await;
        if !meter.wrong.is_empty() {
            return meter.wrong;
        }
    }
    Vec::new()
}

async fn check(shapes: Range<usize>, statistics: &[&str]) {
    let mut wrong = Vec::new();
    for (name, insert) in &SHAPES[shapes] {
        wrong.extend(read_too_much(name, insert, statistics).await);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The ways in which a new session makes its plans: once for any values, or again for the values of
/// each call. CI tries both before and after the tables are analysed. A plain run tries the first
/// one afterwards.
const MODES: &[&str] = &["force_generic_plan", "force_custom_plan"];

async fn read_too_much(name: &str, insert: &str, statistics: &[&str]) -> Vec<String> {
    let scene = Scene::new().await;
    for table in ["job", "queue_group"] {
        let off = format!("alter table seriatim.{table} set (autovacuum_enabled = off)");
        scene.run(&off).await;
    }
    for statement in statistics {
        scene.run(statement).await;
    }
    scene.run("insert into seriatim.queue (name, in_flight_limit) values ('q', 1000)").await;
    // Sessions whose statements were planned, for good, while the tables were as good as empty.
    let mut old = scene.session().await;
    let mut pinned = scene.session().await;
    for _ in 0..size(1, 8) {
        let sessions = [(&mut old, "auto"), (&mut pinned, "force_generic_plan")];
        // In one call the first session makes no plan that it keeps.
        for (conn, mode) in sessions.into_iter().skip(size(1, 0)) {
            enqueue(conn, &["w1", "w1", "w1", "w2", "w2", "w3"]).await;
            round(&scene, conn, "warm-up", mode).await;
            scene.run("delete from seriatim.queue_group").await;
            scene.run("delete from seriatim.job").await;
        }
    }
    scene.run(insert).await;
    scene
        .run(
            "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
             select queue, group_id, now(), min(id) from seriatim.job \
             where group_id is not null and status = 'queued' and run_at <= now() group by 1, 2",
        )
        .await;
    scene
        .run(
            "update seriatim.queue_group set aging_priority = 1, ready_at = now() + interval '1 hour' \
             where group_id <> 'g1' and head_id % 2 = 0",
        )
        .await;
    let mut wrong = round(&scene, &mut old, name, "auto").await;
    let planned_before = format!("{name}, planned before");
    wrong.extend(round(&scene, &mut pinned, &planned_before, "force_generic_plan").await);
    let mut new = scene.session().await;
    for mode in size(&MODES[..0], MODES) {
        wrong.extend(round(&scene, &mut new, name, mode).await);
    }
    wrong.extend(batch(&scene, &mut old, name, "auto").await);
    for mode in size(&MODES[..1], MODES) {
        for table in ["job", "queue_group"] {
            let vacuum = format!("vacuum (analyze, index_cleanup on) seriatim.{table}");
            scene.run(&vacuum).await;
        }
        let name = format!("{name}, analysed");
        wrong.extend(round(&scene, &mut new, &name, mode).await);
        wrong.extend(batch(&scene, &mut new, &name, mode).await);
    }
    scene.end().await;
    wrong
}

#[tokio::test]
async fn one_deep_group_costs_a_claim_no_more_than_a_short_one() {
    check(0..1, NEVER).await;
}

#[tokio::test]
async fn ten_thousand_groups_cost_a_claim_no_more_than_ten() {
    check(1..2, NEVER).await;
}

#[tokio::test]
async fn history_costs_the_hot_path_nothing() {
    check(2..3, NEVER).await;
}

#[tokio::test]
async fn a_backlog_without_groups_costs_ordered_groups_nothing() {
    check(3..4, NEVER).await;
}

#[tokio::test]
async fn delayed_groups_cost_a_claim_nothing() {
    check(4..5, NEVER).await;
}

/// The groups of many, where a plan for empty tables costs the most; all shapes in CI.
fn some_shapes() -> Range<usize> {
    size(1..2, 0..SHAPES.len())
}

#[tokio::test]
async fn statistics_of_empty_tables_cost_nothing_later() {
    check(some_shapes(), WHILE_EMPTY).await;
}

#[tokio::test]
async fn a_vacuum_of_empty_tables_costs_nothing_later() {
    check(some_shapes(), VACUUMED).await;
}

#[tokio::test]
async fn a_vacuum_of_tables_with_one_group_costs_nothing_later() {
    check(some_shapes(), WITH_ONE_GROUP).await;
}

/// Takes one job from its claim to its end. Returns for how many statements the session made a
/// plan.
async fn plans_for_one_job(scene: &Scene, conn: &mut PgConnection, group: &str) -> i64 {
    let before = number(conn, PLANS).await;
    scene.enqueue(group).await;
    let claim = scene.claim_one(conn).await;
    let held = scene.store.begin_and_hold(conn, &claim, None).await.unwrap();
    assert!(matches!(held, HoldAnswer::Held(_)));
    let settled = scene.store.quick_settle(conn, &claim, "null", false, false, AfterSettle::Commit);
    assert!(settled.await.unwrap().ended);
    number(conn, PLANS).await - before
}

const PLANS: &str = "select count(*) from pg_backend_memory_contexts \
    where name = 'CachedPlan' and ident like '% from %'";

#[tokio::test]
async fn a_prepared_session_makes_next_to_no_plans_for_its_first_job() {
    let scene = Scene::new().await;
    let (mut cold, mut warm) = (scene.session().await, scene.session().await);
    scene.store.warm_up(&mut warm).await.unwrap();
    let cold = plans_for_one_job(&scene, &mut cold, "a").await;
    let warm = plans_for_one_job(&scene, &mut warm, "b").await;
    assert!(cold >= 15 && warm <= 5, "{warm} and {cold}");
    scene.end().await;
}
