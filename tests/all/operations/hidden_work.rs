//! Lists and counts of operators beside 10,000 rows that no longer matter: each still shows the
//! work.

use std::time::Duration;

use chrono::{TimeDelta, Utc};
use seriatim::admin::{GroupFilter, GroupPage, GroupSort, GroupState, QueueOverview};
use seriatim::{Client, NewJob};
use sqlx::PgPool;

use crate::support::{by_hand, database, value};

/// One job of group `zz`, due for a minute, whose group no worker has adopted yet.
const DUE: &str = "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at)
    values ('q', 'zz', 'null', true, now() - interval '1 min', now() - interval '1 min');";

fn names(page: &GroupPage) -> Vec<&str> {
    page.groups.iter().map(|group| &*group.group).collect()
}

async fn listed(pool: &PgPool, filter: GroupFilter) -> GroupPage {
    Client::default().groups(pool, "q", &filter).await.unwrap()
}

async fn overview(pool: &PgPool) -> QueueOverview {
    let queues = Client::default().queues(pool).await.unwrap();
    queues.into_iter().find(|overview| overview.queue == "q").unwrap()
}

/// All lists show group `zz`, in this state, and no other one.
async fn only_zz(pool: &PgPool, state: GroupState) {
    let any = GroupFilter::default;
    let filters = [
        any(),
        any().sort(GroupSort::Wait),
        any().sort(GroupSort::Depth),
        any().state(state),
        any().state(state).sort(GroupSort::Depth),
        any().find("z"),
        any().find("z").sort(GroupSort::Wait),
    ];
    for filter in filters {
        let page = listed(pool, filter.clone()).await;
        assert_eq!(names(&page), ["zz"], "{filter:?}");
        assert_eq!((page.groups[0].state, page.or_more), (state, false), "{filter:?}");
    }
    let view =
        "select array_agg(group_id || ' ' || state) from seriatim.group_overview where queue = 'q'";
    assert_eq!(value::<Vec<String>>(pool, view).await, [format!("zz {}", state.as_str())]);
}

/// Work of the queue has been due for a minute, and nobody serves it.
fn due_for_a_minute(overview: &QueueOverview) {
    let due = overview.oldest_due.expect("a job is due");
    let age = Utc::now() - due;
    assert!(age > TimeDelta::seconds(50) && age < TimeDelta::minutes(10), "{age}");
    assert_eq!(overview.unserved_since(), Some(due));
}

#[tokio::test]
async fn flags_of_cancelled_jobs_hide_no_group() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at)
           select 'q', 'g' || i % 50, 'null', i <= 50, now(), now() from generate_series(1, 500) i;
         insert into seriatim.job (queue, group_id, data, flagged, status, finished_at)
           select 'q', 'm1', 'null', true, 'cancelled', now() from generate_series(1, 10000)",
    )
    .await;
    let any = || GroupFilter::default().limit(100);
    let filters = [
        any().sort(GroupSort::Depth),
        any().sort(GroupSort::Wait),
        any().state(GroupState::Ready),
        any(),
    ];
    for filter in filters {
        let page = listed(pool, filter.clone()).await;
        assert_eq!((page.groups.len(), page.or_more), (50, false), "{filter:?}");
        assert!(page.groups.iter().all(|group| group.depth.count == 10), "{filter:?}");
    }
    assert_eq!(overview(pool).await.groups.ready.count, 50);
}

#[tokio::test]
async fn rows_of_drained_groups_hide_no_group_that_is_ready() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        "insert into seriatim.queue_group (queue, group_id, ready_at, head_id)
           select 'q', 'a' || i, now() - interval '1 h', 1 from generate_series(1, 10000) i;
         insert into seriatim.queue_group (queue, group_id, ready_at, head_id)
           values ('q', 'zz', now() - interval '1 min', 1);
         insert into seriatim.job (queue, group_id, data) values ('q', 'zz', 'null')",
    )
    .await;
    only_zz(pool, GroupState::Ready).await;
    let overview = overview(pool).await;
    assert_eq!((overview.groups.ready.count, overview.jobs.queued.count), (1, 1));
    due_for_a_minute(&overview);
    let since = "select count(*) from seriatim.queue_overview(1) where oldest_due is not null";
    assert_eq!(value::<i64>(pool, since).await, 1, "whatever the counts are bounded by");
    let before = "select before from seriatim.explain_group('q', 'zz')";
    assert_eq!(value::<i64>(pool, before).await, 0);
    let metrics = "select seriatim.collect_metrics()";
    assert!(value::<bool>(pool, metrics).await);
    let numbers =
        "select numbers ->> 'deepest_group' || ' ' || (numbers ->> 'oldest_job_s' is not null)
        from seriatim.queue_metrics where queue = 'q'";
    assert_eq!(value::<String>(pool, numbers).await, "1 true");
}

#[tokio::test]
async fn rows_of_drained_groups_hide_no_group_that_sleeps() {
    for (state, columns, values) in [
        (GroupState::Delayed, "", ""),
        (GroupState::Gated, ", gated_by, gated_at", ", 'key', now()"),
    ] {
        let db = database().await;
        let pool = db.pool();
        let delay = if state == GroupState::Delayed { "2 h" } else { "0 h" };
        by_hand(
            pool,
            format!(
                "insert into seriatim.queue_group (queue, group_id, ready_at, head_id{columns})
                   select 'q', 'a' || i, now() + interval '1 h', 1{values} from generate_series(1, 10000) i;
                 insert into seriatim.queue_group (queue, group_id, ready_at, head_id{columns})
                   values ('q', 'zz', now() + interval '2 h', 1{values});
                 insert into seriatim.job (queue, group_id, data, run_at, turn_at)
                   values ('q', 'zz', 'null', now() + interval '{delay}', now() + interval '{delay}')"
            ),
        )
        .await;
        only_zz(pool, state).await;
        let groups = overview(pool).await.groups;
        let expected = if state == GroupState::Delayed { (1, 0) } else { (0, 1) };
        assert_eq!((groups.delayed.count, groups.gated.count), expected);
    }
}

#[tokio::test]
async fn flags_of_one_group_hide_no_other() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        format!(
            "insert into seriatim.queue_group (queue, group_id, ready_at, head_id, halted_at, halt_job_id)
               values ('q', 'a', 'infinity', 1, now() - interval '2 h', 1);
             insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at)
               select 'q', 'a', 'null', true, now() - interval '1 h', now() - interval '1 h'
               from generate_series(1, 10000);
             {DUE}"
        ),
    )
    .await;
    let any = GroupFilter::default;
    assert_eq!(names(&listed(pool, any().state(GroupState::Ready)).await), ["zz"]);
    assert_eq!(names(&listed(pool, any().sort(GroupSort::Wait)).await), ["a", "zz"]);
    assert_eq!(names(&listed(pool, any().sort(GroupSort::Depth)).await), ["a", "zz"]);
    let overview = overview(pool).await;
    assert_eq!((overview.groups.ready.count, overview.groups.halted.count), (1, 1));
    due_for_a_minute(&overview);
}

/// Only the first job of an enqueue has a flag, and keeps it when it is cancelled.
#[tokio::test]
async fn jobs_behind_a_cancelled_head_are_seen() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let jobs = (0..10).map(|n| NewJob::new("q", &n).group("zz"));
    let jobs = client.enqueue_many(pool, jobs).await.unwrap();
    client.cancel(pool, jobs[0].id()).await.unwrap();
    by_hand(
        pool,
        "update seriatim.job set run_at = now() - interval '1 min', turn_at = now() - interval '1 min';
         insert into seriatim.job (queue, group_id, data, flagged, status, finished_at)
           select 'q', 'a' || i, 'null', true, 'cancelled', now() from generate_series(1, 10000) i",
    )
    .await;
    only_zz(pool, GroupState::Ready).await;
    let overview = overview(pool).await;
    assert_eq!((overview.groups.ready.count, overview.jobs.queued.count), (1, 9));
    due_for_a_minute(&overview);
}

#[tokio::test]
async fn failed_jobs_without_parked_ones_hide_no_parked_group() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        "insert into seriatim.job (id, queue, group_id, data, status, finished_at, error, parked_with)
           select i, 'q', 'a' || i, 'null', 'failed', now(), '{}', i from generate_series(1, 10000) i;
         insert into seriatim.job (id, queue, group_id, data, status, finished_at, error, parked_with)
           values (20000, 'q', 'zz', 'null', 'failed', now(), '{}', 20000);
         insert into seriatim.job (id, queue, group_id, data, status, parked_with)
           values (20001, 'q', 'zz', 'null', 'parked', 20000)",
    )
    .await;
    only_zz(pool, GroupState::Parked).await;
    assert_eq!(overview(pool).await.groups.parked.count, 1);
}

#[tokio::test]
async fn claims_that_lapsed_hide_no_running_group() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        "insert into seriatim.job (id, queue, group_id, data) values (1, 'q', 'zz', 'null');
         insert into seriatim.queue_group (queue, group_id, ready_at, head_id, job_id, claim, claimed_by)
           select 'q', 'a' || i, now() - interval '1 h', 1, 1, gen_random_uuid(), 1
           from generate_series(1, 10000) i;
         insert into seriatim.queue_group (queue, group_id, ready_at, head_id, job_id, claim, claimed_by)
           values ('q', 'zz', now() + interval '1 h', 1, 1, gen_random_uuid(), 2)",
    )
    .await;
    let running = GroupFilter::default().state(GroupState::Running);
    assert_eq!(names(&listed(pool, running).await), ["zz"]);
    let overview = overview(pool).await;
    assert_eq!((overview.groups.running.count, overview.groups.lapsed.count), (1, 10_000));
    assert_eq!(overview.lapsed.count, 10_000);
}

#[tokio::test]
async fn paused_groups_hide_no_ready_group() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        format!(
            "insert into seriatim.group_setting (queue, group_id, paused_at)
               select 'q', 'a' || i, now() from generate_series(1, 10000) i;
             insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at)
               select 'q', 'a' || i, 'null', true, now() - interval '1 h', now() - interval '1 h'
               from generate_series(1, 10000) i;
             {DUE}"
        ),
    )
    .await;
    let ready = GroupFilter::default().state(GroupState::Ready);
    assert_eq!(names(&listed(pool, ready).await), ["zz"]);
    let overview = overview(pool).await;
    assert_eq!((overview.groups.ready.count, overview.groups.paused.count), (1, 10_000));
    due_for_a_minute(&overview);
}

#[tokio::test]
async fn jobs_that_are_not_due_hide_none_that_is() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        format!(
            "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at)
               select 'q', 'a' || i, 'null', true, now() + interval '1 h', now() + interval '1 h'
               from generate_series(1, 10001) i;
             {DUE}"
        ),
    )
    .await;
    let jobs = overview(pool).await.jobs;
    assert_eq!((jobs.queued.count, jobs.delayed.or_more), (1, true));
}

/// The first jobs of a long backlog may all be claimed.
#[tokio::test]
async fn claimed_jobs_make_no_long_backlog_short() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        "insert into seriatim.job (id, queue, group_id, data)
           select i, 'q', 'g' || lpad(i::text, 5, '0'), 'null' from generate_series(1, 20000) i;
         insert into seriatim.queue_group (queue, group_id, ready_at, head_id, job_id, claim, claimed_by)
           select 'q', 'g' || lpad(i::text, 5, '0'), now() + interval '1 h', i, i, gen_random_uuid(), 1
           from generate_series(1, 500) i",
    )
    .await;
    let jobs = overview(pool).await.jobs;
    assert_eq!((jobs.started.count, jobs.queued.or_more), (500, true));
}

#[tokio::test]
async fn dead_letters_hide_no_other_work() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at, moved_from)
           select 'q', 'a' || i, 'null', true, now() - interval '1 min', now() - interval '1 min', 'orders'
           from generate_series(1, 10000) i",
    )
    .await;
    let dead_letters = overview(pool).await;
    assert_eq!(dead_letters.dead_letters_of, ["orders"]);
    assert_eq!(dead_letters.unserved_since(), None);
    by_hand(pool, DUE).await;
    let overview = overview(pool).await;
    assert!(overview.dead_letters_of.is_empty());
    due_for_a_minute(&overview);
}

#[tokio::test]
async fn queues_whose_jobs_have_ended_hide_no_other() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        format!(
            "insert into seriatim.job (queue, data, status, finished_at)
               select 'a' || i, 'null', 'succeeded', now() from generate_series(1, 10000) i;
             {DUE}"
        ),
    )
    .await;
    let queues = Client::default().queues(pool).await.unwrap();
    assert_eq!(queues.len(), 1000);
    assert_eq!(queues.iter().filter(|queue| queue.groups.ready.count > 0).count(), 1);
}

/// 5,000 jobs of one group among 20,000 groups that have waited longer: the first, the last, and
/// every fifth one.
#[tokio::test]
async fn a_group_that_runs_away_is_the_deepest() {
    let others = "insert into seriatim.job (queue, group_id, data, flagged, turn_at)
        select 'q', 'g' || i, 'null', true, now() - interval '1 h' from generate_series(1, 20000) i;";
    let runaway = "insert into seriatim.job (queue, group_id, data, flagged)
        select 'q', 'zz-runaway', 'null', i = 1 from generate_series(1, 5000) i;";
    let every_fifth = "insert into seriatim.job (queue, group_id, data, flagged, turn_at)
        select 'q', case when i % 5 = 0 then 'zz-runaway' else 'g' || i end, 'null', true,
          now() - case when i % 5 > 0 then interval '1 h' else '0' end
        from generate_series(1, 25000) i;";
    // Another queue is busier, and has a history.
    let history = "insert into seriatim.job (queue, data, status, finished_at)
        select 'busy', 'null', 'succeeded', now() from generate_series(1, 20000);";
    for (place, jobs) in [
        ("first", format!("{history}{runaway}{others}")),
        ("last", format!("{history}{others}{runaway}")),
        ("every fifth", format!("{every_fifth}{history}")),
    ] {
        let db = database().await;
        let pool = db.pool();
        by_hand(pool, jobs).await;
        let deepest = GroupFilter::default().sort(GroupSort::Depth).limit(1);
        let page = listed(pool, deepest.clone()).await;
        assert_eq!((names(&page), page.or_more), (vec!["zz-runaway"], true), "{place}");
        let page = listed(pool, deepest.state(GroupState::Ready)).await;
        assert_eq!(names(&page), ["zz-runaway"], "{place}");
        Client::default().collect_metrics(pool, Duration::from_secs(1)).await.unwrap();
        let metrics = Client::default().metrics(pool).await.unwrap();
        assert_eq!(metrics.queues["q"].deepest_group, Some(5000), "{place}");
    }
}

/// Dead letters of other queues fill no count of failures.
#[tokio::test]
async fn dead_letters_of_others_hide_no_failure_of_a_minute() {
    let db = database().await;
    let pool = db.pool();
    by_hand(
        pool,
        "insert into seriatim.queue (name, dead_letter_queue) values ('q', 'dead');
         insert into seriatim.queue_metrics (queue, collected_at, numbers) values ('q', now(), '{}');
         insert into seriatim.job (queue, group_id, data, moved_from)
           select 'dead', 'a' || i, 'null', 'other' from generate_series(1, 10001) i;
         insert into seriatim.job (queue, group_id, data, moved_from, run_at, turn_at)
           select 'dead', 'zz', 'null', 'q', minute, minute
           from date_trunc('minute', now() - interval '2 min') minute",
    )
    .await;
    value::<i32>(pool, "select seriatim.collect_minutes()").await;
    let failed = "select sum(failed)::bigint from seriatim.queue_minute where queue = 'q'";
    assert_eq!(value::<i64>(pool, failed).await, 1);
}
