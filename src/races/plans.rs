//! What the hot path's statements read, at 100 k jobs (P7).
//!
//! Measured, not explained: the session's own counters of scans and of rows and index entries read, around the crate's
//! functions, in the sessions and transactions that they run in. Whatever plan a statement got counts.

use sqlx::{PgConnection, Row};

use super::scene::{KEEP, Q, Scene, begin, commit, enqueue, plans, rollback, run, succeeded};
use crate::store::HoldAnswer;

/// Scans of whole tables, and rows and index entries read.
#[derive(Debug, Clone, Copy)]
struct Reads {
    table_scans: i64,
    rows: i64,
}

async fn reads(conn: &mut PgConnection) -> Reads {
    let sql = "select coalesce(sum(pg_stat_get_xact_numscans(c.oid)) \
                 filter (where c.relname in ('job', 'queue_group')), 0)::int8, \
               sum(pg_stat_get_xact_tuples_returned(c.oid))::int8 \
               from pg_class c where c.relnamespace = 'seriatim'::regnamespace and c.relkind in ('r', 'i')";
    let row = sqlx::query(sql).fetch_one(conn).await.unwrap();
    Reads {
        table_scans: row.get(0),
        rows: row.get(1),
    }
}

/// What was read too much, step by step.
struct Meter {
    name: String,
    before: Reads,
    wrong: Vec<String>,
}

impl Meter {
    async fn new(conn: &mut PgConnection, name: String) -> Self {
        let before = reads(conn).await;
        Self {
            name,
            before,
            wrong: Vec::new(),
        }
    }

    async fn restart(&mut self, conn: &mut PgConnection) {
        self.before = reads(conn).await;
    }

    /// The step since the last look has read at most `most` rows and index entries, and scanned no table.
    async fn check(&mut self, conn: &mut PgConnection, step: &str, most: i64) {
        let now = reads(conn).await;
        let rows = now.rows - self.before.rows;
        let scans = now.table_scans - self.before.table_scans;
        if scans > 0 || rows > most {
            let what = format!(
                "{}: {step} scanned {scans} tables, read {rows} rows",
                self.name
            );
            self.wrong.push(what);
        }
        self.restart(conn).await;
    }
}

/// One round of everything, from a claim for `slots` to a settle. Rolls back what it can, so that rounds are alike.
async fn round(scene: &Scene, conn: &mut PgConnection, name: &str, mode: &str) -> Vec<String> {
    let store = &scene.store;
    let slots = 10;
    let set_mode = format!("set local plan_cache_mode = {mode}");
    begin(conn).await;
    run(conn, &set_mode).await;
    let mut meter = Meter::new(conn, format!("{name}, {mode}")).await;
    store.peek(conn, Q).await.unwrap();
    meter.check(conn, "peek", 20).await;
    let adopted = store.adopt(conn, Q).await.unwrap();
    // A page of 256 flags: the flag, its group's row and its update.
    meter.check(conn, "adopt", 256 * 6).await;
    let turns = store.take_turns(conn, Q, slots).await.unwrap();
    meter.check(conn, "take", 4 * slots).await;
    let looks = store.look(conn, Q, &turns, 3).await.unwrap();
    meter.check(conn, "look", 12 * slots).await;
    let plans = plans(&turns, &looks);
    let started = store.start(conn, Q, &plans).await.unwrap();
    meter.check(conn, "start", 8 * slots).await;
    store.defer(conn, Q, &plans).await.unwrap();
    meter.check(conn, "defer and retire", 8 * slots).await;
    assert!(adopted.groups < 2000);
    commit(conn).await;
    let Some(claim) = started.first() else {
        return meter.wrong;
    };
    for success in [true, false] {
        assert!(matches!(
            scene.try_hold(conn, claim).await,
            HoldAnswer::Held(_)
        ));
        rollback(conn).await;
        crate::store::begin_hold(conn, &crate::store::SessionLimits::default())
            .await
            .unwrap();
        run(conn, &set_mode).await;
        meter.restart(conn).await;
        store.hold(conn, Q, claim).await.unwrap();
        meter.check(conn, "hold", 20).await;
        store.cancel_requested(conn, claim.job).await.unwrap();
        meter.check(conn, "cancel_requested", 5).await;
        let outcome = if success {
            succeeded()
        } else {
            super::scene::retried(std::time::Duration::ZERO)
        };
        // As if nothing followed, so that it tries to retire.
        let settled = store.settle(conn, Q, claim, &outcome, KEEP, false).await;
        settled.unwrap();
        meter.check(conn, "settle", 30).await;
        rollback(conn).await;
    }
    run(conn, "begin").await;
    run(conn, &set_mode).await;
    meter.restart(conn).await;
    enqueue(conn, &["g1"]).await;
    meter.check(conn, "enqueue one", 10).await;
    let many: Vec<String> = (0..1000).map(|n| format!("g{n}")).collect();
    let many: Vec<crate::NewJob> = many
        .iter()
        .map(|group| crate::NewJob::new(Q, &1).group(group.as_str()))
        .collect();
    crate::enqueue_many(&mut *conn, many).await.unwrap();
    meter.check(conn, "enqueue 1000", 1000 * 3).await;
    let loose = (0..100).map(|_| crate::NewJob::new(Q, &1));
    crate::enqueue_many(&mut *conn, loose).await.unwrap();
    meter
        .check(conn, "enqueue 100 without a group", 100 * 3)
        .await;
    store.cancel(&mut *conn, claim.job + 1).await.unwrap();
    meter.check(conn, "cancel", 20).await;
    run(conn, "rollback").await;
    meter.wrong
}

/// What 100 k jobs look like: how to insert them, and the groups' rows.
const SHAPES: [(&str, &str); 4] = [
    (
        "one deep group",
        "insert into seriatim.job (queue, group_id, data, flagged) select 'q', 'g1', '1', n = 1 \
         from generate_series(1, 100000) n",
    ),
    (
        "10 k groups",
        "insert into seriatim.job (queue, group_id, data, flagged) select 'q', 'g' || n % 10000, '1', n <= 10000 \
         from generate_series(1, 100000) n",
    ),
    (
        "history and few jobs",
        "insert into seriatim.job (queue, group_id, data, flagged, status, attempts, finished_at) \
         select 'q', 'g' || n % 1000, '1', n > 99000, case when n > 99000 then 'queued' else 'succeeded' end::seriatim.job_status, \
         0, case when n > 99000 then null else now() end from generate_series(1, 100000) n",
    ),
    (
        "no groups, and a few",
        "insert into seriatim.job (queue, group_id, data, flagged) select 'q', case when n > 99000 then 'g' || n end, '1', n > 99000 \
         from generate_series(1, 100000) n",
    ),
];

/// Lines up the groups: what claims would have done by and by.
async fn line_up(scene: &Scene) {
    let mut conn = scene.session().await;
    begin(&mut conn).await;
    assert!(scene.store.peek(&mut conn, Q).await.unwrap().adopter);
    while scene.store.adopt(&mut conn, Q).await.unwrap().more {}
    commit(&mut conn).await;
}

async fn check(shape: usize, analysed_while_empty: bool) {
    let (name, insert) = SHAPES[shape];
    let scene = Scene::new().await;
    for table in ["job", "queue_group"] {
        scene
            .run(&format!(
                "alter table seriatim.{table} set (autovacuum_enabled = off)"
            ))
            .await;
    }
    if analysed_while_empty {
        scene.run("analyze").await;
    }
    // Sessions whose statements were planned, for good, while the tables were as good as empty.
    let mut old = scene.session().await;
    for _ in 0..8 {
        scene.enqueue("g1").await;
        round(&scene, &mut old, "warm-up", "auto").await;
        scene.run("delete from seriatim.queue_group").await;
        scene.run("delete from seriatim.job").await;
    }
    scene.run(insert).await;
    let half = "begin; ";
    let _ = half;
    let mut wrong = round(&scene, &mut old, name, "auto").await;
    line_up(&scene).await;
    wrong.extend(round(&scene, &mut old, name, "auto").await);
    let mut new = scene.session().await;
    for mode in ["force_generic_plan", "force_custom_plan"] {
        wrong.extend(round(&scene, &mut new, name, mode).await);
    }
    scene.run("vacuum (analyze) seriatim.job").await;
    scene.run("vacuum (analyze) seriatim.queue_group").await;
    for mode in ["force_generic_plan", "force_custom_plan"] {
        wrong.extend(round(&scene, &mut new, &format!("{name}, analysed"), mode).await);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    scene.end().await;
}

#[tokio::test]
async fn one_deep_group_costs_a_claim_no_more_than_a_short_one() {
    check(0, false).await;
    check(0, true).await;
}

#[tokio::test]
async fn ten_thousand_groups_cost_a_claim_no_more_than_ten() {
    check(1, false).await;
    check(1, true).await;
}

#[tokio::test]
async fn history_costs_the_hot_path_nothing() {
    check(2, false).await;
    check(2, true).await;
}

#[tokio::test]
async fn a_backlog_without_groups_costs_ordered_groups_nothing() {
    check(3, false).await;
    check(3, true).await;
}
