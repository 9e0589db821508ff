//! A receive in a transaction that stays open: it keeps what it returned, and delays nothing else.

use std::time::Duration;

use serde_json::json;
use seriatim::testing::TestDatabase;
use sqlx::postgres::PgDatabaseError;
use sqlx::{PgPool, Postgres, Transaction};

use crate::support::{
    Log, Looks, PATIENCE, by_hand, database, ended, enqueue, eventually, handler, handler_with,
    operator, queue, serve, value,
};

/// Receives in `open`, which stays open, and returns the groups.
async fn receive(open: &mut Transaction<'_, Postgres>, n: i32) -> Vec<String> {
    let groups = "select coalesce(array_agg(coalesce(r.group_id, '-') order by r.group_id nulls last), '{}') \
                  from seriatim.receive('q', $1) r";
    sqlx::query_scalar(groups).bind(n).fetch_one(&mut **open).await.unwrap()
}

/// Returns the groups that a receive of its own transaction gets.
async fn received(pool: &PgPool, n: i32) -> Vec<String> {
    let mut own = pool.begin().await.unwrap();
    let groups = receive(&mut own, n).await;
    own.commit().await.unwrap();
    groups
}

/// Runs a statement that must not wait for a lock.
async fn at_once(pool: &PgPool, sql: &'static str) {
    let mut own = pool.begin().await.unwrap();
    sqlx::raw_sql("set local lock_timeout = '100ms'").execute(&mut *own).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut *own).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    own.commit().await.unwrap();
}

/// Returns how many rows of groups and jobs a transaction has locked, but for those of a group.
async fn locked_rows(pool: &PgPool, but_for: &str) -> i64 {
    let free = format!(
        "select (select count(*) from seriatim.queue_group where group_id <> '{but_for}') \
           + (select count(*) from seriatim.job where group_id is distinct from '{but_for}') \
           - (select count(*) from (select from seriatim.queue_group where group_id <> '{but_for}' \
               for no key update skip locked) f) \
           - (select count(*) from (select from seriatim.job \
               where group_id is distinct from '{but_for}' for no key update skip locked) f)"
    );
    value(pool, &free).await
}

/// Groups that a receive meets and does not return: delayed, paused, claimed by a receiver whose
/// visibility has ended, behind an expired job, drained; and jobs without a group.
async fn many_kinds(database: &TestDatabase) -> i64 {
    let pool = database.pool();
    enqueue(pool, "q", "lapsed", 1).await;
    assert_eq!(received(pool, 1).await, ["lapsed"]);
    for group in ["retried", "drained"] {
        enqueue(pool, "q", group, 1).await;
        assert_eq!(received(pool, 1).await, [group]);
    }
    enqueue(pool, "q", "paused", 1).await;
    operator().pause_group(pool, "q", "paused").await.unwrap();
    enqueue(pool, "q", "expired", 1).await;
    by_hand(
        pool,
        "update seriatim.queue_group set claim = null, job_id = null, started_at = null \
           where group_id in ('retried', 'drained'); \
         update seriatim.job set run_at = now() + interval '1 h' where group_id = 'retried'; \
         update seriatim.job set status = 'cancelled', finished_at = now() where group_id = 'drained'; \
         update seriatim.job set expires_at = now() where group_id = 'expired'; \
         insert into seriatim.queue_group (queue, group_id, head_id, ready_at) \
           select queue, group_id, id, now() from seriatim.job where group_id = 'paused'; \
         update seriatim.queue_group set ready_at = now() - interval '1 min'; \
         insert into seriatim.job (queue, data, expires_at) values ('q', '1', now()); \
         insert into seriatim.job (queue, data, priority, run_at, turn_at) \
           values ('q', '1', 3, now(), now())",
    )
    .await;
    enqueue(pool, "q", "wanted", 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_receive_locks_only_what_it_returned() {
    let database = database().await;
    let pool = database.pool();
    many_kinds(&database).await;
    let before: Vec<String> = rows(pool).await;
    let mut open = pool.begin().await.unwrap();
    let groups = receive(&mut open, 1).await;
    assert_eq!(groups.len(), 1);
    let kept = if groups[0] == "-" { "" } else { "wanted" };
    assert_eq!(locked_rows(pool, kept).await, i64::from(groups[0] == "-"), "{groups:?}");
    // Asked again, in the same transaction, the rest of what may start.
    let more = receive(&mut open, 10).await;
    assert_eq!(groups.len() + more.len(), 2, "{groups:?} {more:?}");
    assert_eq!(locked_rows(pool, "wanted").await, 1, "the job without a group");
    open.rollback().await.unwrap();
    assert_eq!(rows(pool).await, before, "nothing was written");
}

/// All that a receive may write, as text.
async fn rows(pool: &PgPool) -> Vec<String> {
    let all = "select array_agg(r order by r) from (\
                 select g::text as r from seriatim.queue_group g \
                 union all select j::text from seriatim.job j) r";
    value(pool, all).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_receive_met_is_dealt_with_at_its_commit() {
    let database = database().await;
    let pool = database.pool();
    many_kinds(&database).await;
    assert_eq!(received(pool, 10).await, ["wanted", "-"]);
    let states = "select array_agg(j.group_id || ' ' || case \
          when g.suspect is not null then 'suspected' when g.ready_at > now() then 'put off' \
          when g.group_id is null then 'retired' end || ' ' || j.status order by j.group_id) \
        from seriatim.job j left join seriatim.queue_group g using (queue, group_id) \
        where j.group_id not in ('wanted', 'expired')";
    assert_eq!(
        value::<Vec<String>>(pool, states).await,
        [
            "drained retired cancelled",
            "lapsed suspected queued",
            "paused put off queued",
            "retried put off queued"
        ]
    );
    let ended = "select count(*) from seriatim.job where status = 'failed' and error::text like '%expired%'";
    assert_eq!(value::<i64>(pool, ended).await, 2);
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.upkeep_due").await, 0);
    eventually(pool, "select count(*) from seriatim.receive('q', group_id => 'lapsed')", 1_i64)
        .await;
}

/// Another transaction has the second of two jobs whose visibility has ended: they are not received
/// again until it ends, and other groups go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_locked_job_of_a_lapsed_batch_delays_its_group_alone() {
    let database = database().await;
    let pool = database.pool();
    let first = enqueue(pool, "q", "lapsed", 1).await;
    let second = enqueue(pool, "q", "lapsed", 2).await;
    by_hand(
        pool,
        "select seriatim.configure_queue('q', '{\"strict_visibility\": true}'); \
         select seriatim.receive('q', 2, visibility => '0 s')",
    )
    .await;
    let mut open = pool.begin().await.unwrap();
    let lock = sqlx::query("select from seriatim.job where id = $1 for update").bind(second);
    lock.execute(&mut *open).await.unwrap();
    enqueue(pool, "q", "other", 1).await;
    assert_eq!(received(pool, 10).await, ["other"]);
    let counted = "select max(attempts)::int8 from seriatim.job";
    assert_eq!(value::<i64>(pool, counted).await, 0);
    open.rollback().await.unwrap();
    let again = "select coalesce(min(id), 0) from seriatim.receive('q')";
    eventually(pool, again, first).await;
    assert_eq!(value::<i64>(pool, counted).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_does_not_fail_by_its_upkeep() {
    let database = database().await;
    let pool = database.pool();
    many_kinds(&database).await;
    by_hand(
        pool,
        "create or replace function seriatim.upkeep(of_queue text, until_at timestamptz) returns void language plpgsql as \
           'begin raise exception ''no''; end'",
    )
    .await;
    assert_eq!(received(pool, 10).await, ["wanted", "-"]);
    let claimed =
        "select count(*) from seriatim.queue_group where group_id = 'wanted' and claim is not null";
    assert_eq!(value::<i64>(pool, claimed).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_receive_defers_its_upkeep_whatever_is_set() {
    let database = database().await;
    let pool = database.pool();
    many_kinds(&database).await;
    let mut open = pool.begin().await.unwrap();
    sqlx::raw_sql("set constraints all immediate").execute(&mut *open).await.unwrap();
    assert_eq!(receive(&mut open, 10).await, ["wanted", "-"]);
    assert_eq!(locked_rows(pool, "wanted").await, 1, "the job without a group");
    sqlx::raw_sql("set transaction read only").execute(&mut *open).await.unwrap();
    open.commit().await.unwrap();
    // The row that is left keeps no later upkeep from being done.
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.upkeep_due").await, 1);
    assert!(received(pool, 10).await.is_empty());
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.upkeep_due").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queues_lapsed_job_is_not_kept_by_an_open_receive() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, "select seriatim.enqueue('q', '1')").await;
    by_hand(pool, "select seriatim.receive('q', 1, '0 s')").await;
    by_hand(pool, "select seriatim.pause('q')").await;
    let mut open = pool.begin().await.unwrap();
    assert!(receive(&mut open, 1).await.is_empty());
    assert_eq!(locked_rows(pool, "").await, 0);
    open.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_that_become_due_are_served_beside_an_open_receive() {
    let database = database().await;
    let pool = database.pool();
    enqueue(pool, "q", "s", 1).await;
    by_hand(pool, "select seriatim.enqueue('q', '1', 'd', '3 s')").await;
    by_hand(pool, "select seriatim.pause('q', 'p'); select seriatim.enqueue('q', '1', 'p')").await;
    // Rows for both, which a receive puts off.
    by_hand(
        pool,
        "insert into seriatim.queue_group (queue, group_id, head_id, ready_at) \
         select queue, group_id, id, now() from seriatim.job where group_id in ('d', 'p')",
    )
    .await;
    let mut open = pool.begin().await.unwrap();
    assert_eq!(receive(&mut open, 10).await, ["s"]);
    at_once(pool, "select seriatim.resume('q', 'p')").await;
    at_once(pool, "select seriatim.pause('q', 's')").await;
    at_once(pool, "select seriatim.pause('q'); select seriatim.resume('q')").await;
    // The group that was paused is due, and the other one soon is.
    let mut looks = Looks::new(PATIENCE);
    let mut served = 0;
    while served < 2 {
        served += value::<i64>(pool, "select count(*) from seriatim.receive('q', 10)").await;
        assert!(!looks.are_over(), "{served} of 2 groups are served");
        looks.pause().await;
    }
    open.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_workers_groups_move_on_beside_an_open_receive() {
    let database = database().await;
    let pool = database.pool();
    let groups = ["a", "b", "c", "d"];
    for group in groups {
        enqueue(pool, "q", group, 1).await;
    }
    // The claims of a worker that died: they lapsed, and nobody suspects them yet.
    assert_eq!(received(pool, 10).await, groups);
    by_hand(
        pool,
        "update seriatim.queue_group set ready_at = clock_timestamp(), claimed_by = 12345",
    )
    .await;
    let mut open = pool.begin().await.unwrap();
    assert!(receive(&mut open, 10).await.is_empty());
    let ran = Log::default();
    let running = serve(
        &database,
        10,
        queue("q"),
        handler_with(ran.clone(), async |ran, _, _| {
            ran.add("ran");
            Ok(json!(1))
        }),
    )
    .await;
    ran.wait_for(4).await;
    open.rollback().await.unwrap();
    running.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_queue_is_not_kept_by_an_open_receive() {
    for limit in [
        "in_flight_limit\": 2",
        "rate\": {\"starts\": 100, \"per\": \"1 s\"}",
        "limit_per_key\": 1",
    ] {
        let database = database().await;
        let pool = database.pool();
        let settings = if limit.starts_with("rate") {
            String::from(
                "update seriatim.queue set rate = 100, rate_per_ms = 1000, rate_burst = 10, rate_next_at = now()",
            )
        } else {
            format!("select seriatim.configure_queue('q', '{{\"{limit}}}')")
        };
        by_hand(pool, "select seriatim.configure_queue('q', '{}')").await;
        by_hand(pool, settings).await;
        for group in ["a", "b"] {
            by_hand(
                pool,
                format!("select seriatim.enqueue('q', '1', '{group}', limit_key => 'k')"),
            )
            .await;
        }
        // A transaction that has written cannot be the receive's own.
        let mut open = pool.begin().await.unwrap();
        let work = sqlx::query("create temporary table work (n integer)");
        work.execute(&mut *open).await.unwrap();
        let refused =
            sqlx::query("select seriatim.receive('q')").execute(&mut *open).await.unwrap_err();
        let refused = refused.as_database_error().unwrap().downcast_ref::<PgDatabaseError>();
        assert_eq!(refused.code(), "25001", "{limit}: {refused:?}");
        assert!(refused.hint().unwrap_or_default().contains("autocommit"), "{refused:?}");
        open.rollback().await.unwrap();
        // One that has not may be left open: the server ends it.
        let mut open = pool.begin().await.unwrap();
        assert_eq!(receive(&mut open, 1).await.len(), 1, "{limit}");
        let ran = enqueue(pool, "q", "c", 1).await;
        let running = serve(&database, 10, queue("q"), handler(async |_, _| Ok(json!(1)))).await;
        ended(pool, ran).await;
        eventually(pool, "select count(*) from seriatim.job where status = 'succeeded'", 3_i64)
            .await;
        let closed = open.rollback().await.unwrap_err();
        assert!(closed.to_string().contains("idle-in-transaction"), "{limit}: {closed}");
        running.shutdown(Duration::from_secs(10)).await;
    }
}
