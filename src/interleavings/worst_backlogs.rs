//! One claim finds the job of an idle group behind the worst that the tables may have (P8), and an
//! open transaction delays only groups that it has touched (P3).

use std::time::Duration;

use sqlx::{PgConnection, Row};

use crate::admin::{QueueSettings, Rate};
use crate::interleavings::support::scene::Scene;
use crate::interleavings::support::session::Q;
use crate::interleavings::support::session::{begin, commit, enqueue, number, rollback, run};
use crate::interleavings::support::size::size;
use crate::interleavings::support::steps::OPTIONS;
use crate::job::disposition::Disposition;
use crate::store::{ClaimBounds, ClaimOptions, ScanStart};
use crate::{Client, NewJob};

/// Flagged jobs of a backlog, as single enqueues leave them: more than a receive can read.
fn flags() -> u32 {
    size(8_000, 20_000)
}

/// A queue without limits, and one with a limit per key, a rate and a spacing that no claim
/// reaches. By default one of them, at random.
async fn scenes() -> Vec<Scene> {
    let (both, with_limits) = (size(false, true), fastrand::bool());
    println!("both queues: {both}, or the one with limits: {with_limits}");
    let mut scenes = Vec::new();
    if both || with_limits {
        scenes.push(limited().await);
    }
    if both || !with_limits {
        scenes.push(Scene::new().await);
    }
    scenes
}

async fn limited() -> Scene {
    let limited = Scene::new().await;
    let settings = QueueSettings::new(Q)
        .limit_per_key(1_000_000)
        .rate(Rate::per_second(100_000).burst(100_000))
        .group_spacing(Duration::from_millis(1));
    let mut conn = limited.session().await;
    Client::default().operator("test", None).configure_queue(&mut conn, settings).await.unwrap();
    limited.run("alter table seriatim.job alter limit_key set default 'key'").await;
    limited
}

async fn backlog(scene: &Scene, groups: u32) {
    let sql = format!(
        "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) \
         select '{Q}', 'g' || n % {groups}, '1', true, now() - interval '1 s', now() - interval '1 s' \
         from generate_series(1, {}) n",
        flags()
    );
    scene.run(&sql).await;
}

/// Random, or it would be stored in less.
fn random_bytes() -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    fastrand::Rng::new().fill(&mut bytes);
    bytes
}

async fn receive_one(conn: &mut PgConnection) -> Option<(i64, String)> {
    let receive =
        format!("select id, receipt from seriatim.receive('{Q}', visibility => '10 min')");
    let row = sqlx::query(sqlx::AssertSqlSafe(receive)).fetch_optional(conn).await.unwrap();
    row.map(|row| (row.get(0), row.get(1)))
}

/// One claim of four slots, and receives of either order, each bring the job of an idle group.
async fn is_found(scene: &Scene) {
    let mut conn = scene.session().await;
    let received = scene.enqueue("idle").await;
    assert_eq!(receive_one(&mut conn).await.map(|(id, _)| id), Some(received), "by a receiver");
    let received = scene.enqueue("idle as well").await;
    let together = format!(
        "select count(*) filter (where id = {received}) from seriatim.receive('{Q}', 10, together => true)"
    );
    assert_eq!(number(&mut conn, &together).await, 1, "by a receiver of whole groups");
    let claimed = scene.enqueue("idle too").await;
    let claim = scene.claim_all(&mut conn, 4).await;
    assert!(claim.jobs.iter().any(|claim| claim.job == claimed), "by a worker: {claim:?}");
}

#[tokio::test]
async fn flags_of_a_busy_group_hide_no_idle_one() {
    for scene in scenes().await {
        scene.enqueue("g0").await;
        let mut receiver = scene.session().await;
        assert!(receive_one(&mut receiver).await.is_some());
        backlog(&scene, 1).await;
        is_found(&scene).await;
        // A claim that filled its page with them has cleared some.
        assert!(
            scene.number("select count(*) from seriatim.job where flagged").await < flags().into()
        );
        scene.end().await;
    }
}

#[tokio::test]
async fn a_priority_counts_before_its_group_is_in_line() {
    for receives in [true, false] {
        for scene in scenes().await {
            backlog(&scene, flags()).await;
            let mut conn = scene.session().await;
            let urgent = NewJob::new(Q, &1).group("urgent").priority(9);
            let urgent = crate::enqueue(&mut conn, urgent).await.unwrap().id();
            let first = if receives {
                receive_one(&mut conn).await.unwrap().0
            } else {
                scene.claim_all(&mut conn, 1).await.jobs[0].job
            };
            assert_eq!(first, urgent, "by a receiver: {receives}");
            scene.end().await;
        }
    }
}

#[tokio::test]
async fn heads_that_are_locked_hide_no_idle_group() {
    for in_line in [true, false] {
        for scene in scenes().await {
            backlog(&scene, 100).await;
            if in_line {
                scene
                    .run(
                        "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
                         select queue, group_id, min(turn_at), min(id) from seriatim.job group by 1, 2",
                    )
                    .await;
            }
            let mut locker = scene.session().await;
            begin(&mut locker).await;
            run(&mut locker, "select from seriatim.job for update").await;
            is_found(&scene).await;
            // The worker has put off the groups that were in line, and reads each of them again
            // later. If none was in line, it has put only a few there: each claim reads the flags
            // of the rest.
            let later = "select count(*) from seriatim.queue_group where rechecks > 0";
            let later = scene.number(later).await;
            assert!(if in_line { later == 100 } else { (1..10).contains(&later) }, "{later}");
            rollback(&mut locker).await;
            if !in_line {
                let mut worker = scene.session().await;
                assert_eq!(scene.claim_all(&mut worker, 8).await.jobs.len(), 8);
            }
            scene.end().await;
        }
    }
}

#[tokio::test]
async fn flags_of_paused_groups_hide_no_idle_one() {
    for scene in scenes().await {
        backlog(&scene, 100).await;
        scene
            .run("insert into seriatim.group_setting (queue, group_id, paused_at) select distinct queue, group_id, now() from seriatim.job")
            .await;
        is_found(&scene).await;
        // A further enqueue wakes none of them.
        scene.enqueue("g1").await;
        let mut worker = scene.session().await;
        assert!(scene.claim_all(&mut worker, 4).await.jobs.is_empty());
        let woken = "select count(*) from seriatim.queue_group where group_id like 'g%' and ready_at < 'infinity'";
        assert_eq!(scene.number(woken).await, 0);
        Client::default().operator("test", None).resume_group(&mut worker, Q, "g1").await.unwrap();
        assert_eq!(scene.claim_all(&mut worker, 4).await.jobs.len(), 1);
        scene.end().await;
    }
}

#[tokio::test]
async fn flags_of_sleeping_groups_hide_no_idle_one() {
    // The turn of a delayed job with a priority comes before its time.
    for (priority, turn_in) in [(0, "1 h"), (9, "-1 min")] {
        for scene in scenes().await {
            scene
                .run(&format!(
                    "insert into seriatim.job (queue, group_id, data, flagged, priority, run_at, turn_at) \
                     select 'q', 'g' || n, '1', true, {priority}, now() + interval '1 h', now() + interval '{turn_in}' \
                     from generate_series(0, 99) n"
                ))
                .await;
            backlog(&scene, 100).await;
            is_found(&scene).await;
            scene.enqueue("g1").await;
            let mut worker = scene.session().await;
            assert!(scene.claim_all(&mut worker, 4).await.jobs.is_empty());
            let woken = "select count(*) from seriatim.queue_group where group_id like 'g%' and ready_at <= now()";
            assert_eq!(scene.number(woken).await, 0, "a job behind the head wakes no sleeper");
            scene.end().await;
        }
    }
}

/// Python's psycopg opens a transaction by itself, and leaves it open.
#[tokio::test]
async fn an_open_receive_keeps_only_the_group_it_received() {
    let scene = Scene::new().await;
    let mut jobs = Vec::new();
    for group in ["a", "b", "c"] {
        jobs.push(scene.enqueue(group).await);
    }
    let mut open = scene.session().await;
    begin(&mut open).await;
    assert_eq!(receive_one(&mut open).await.map(|(id, _)| id), Some(jobs[0]));
    let (mut worker, mut other) = (scene.session().await, scene.session().await);
    assert_eq!(receive_one(&mut other).await.map(|(id, _)| id), Some(jobs[1]));
    assert_eq!(scene.claim_one(&mut worker).await.job, jobs[2]);
    // New ones too, and behind a job of its own group.
    scene.enqueue("a").await;
    let new = scene.enqueue("new").await;
    assert_eq!(scene.claim_one(&mut worker).await.job, new);
    rollback(&mut open).await;
    assert_eq!(receive_one(&mut other).await.map(|(id, _)| id), Some(jobs[0]));
    scene.end().await;
}

/// A receive of whole groups as well: it locks no group that it takes nothing of.
#[tokio::test]
async fn an_open_receive_of_whole_groups_keeps_only_those() {
    let scene = Scene::new().await;
    let mut locker = scene.session().await;
    // Rows, and groups that are idle still.
    enqueue(&mut locker, &["locked", "a", "a", "a"]).await;
    scene.adopt(&mut locker).await;
    commit(&mut locker).await;
    enqueue(&mut locker, &["b", "b", "c", "c", "d", "e"]).await;
    begin(&mut locker).await;
    run(&mut locker, "select from seriatim.queue_group where group_id = 'locked' for update").await;
    let mut open = scene.session().await;
    begin(&mut open).await;
    let groups =
        format!("select array_agg(group_id) from seriatim.receive('{Q}', 5, together => true)");
    let groups: Vec<String> =
        sqlx::query_scalar(sqlx::AssertSqlSafe(groups)).fetch_one(&mut open).await.unwrap();
    // The locked one was counted, so a second head is taken with the rest.
    assert_eq!(groups, ["a", "a", "a", "b", "c"]);
    let mut other = scene.session().await;
    let mut claims = scene.claim(&mut other, 10).await;
    claims.sort_by_key(|claim| claim.job);
    let claimed: Vec<_> = claims.iter().map(|claim| claim.group.as_deref().unwrap()).collect();
    assert_eq!(claimed, ["d", "e"], "neither less, nor more");
    rollback(&mut locker).await;
    rollback(&mut open).await;
    scene.end().await;
}

/// The chain of versions that such a transaction leaves, if it deletes the last one, makes a share
/// lock wait.
#[tokio::test]
async fn an_open_ack_and_receive_hold_up_no_other_group() {
    for receive_first in [true, false] {
        let scene = Scene::new().await;
        scene.enqueue("g").await;
        scene.enqueue("other").await;
        let mut open = scene.session().await;
        let (_, receipt) = receive_one(&mut open).await.unwrap();
        begin(&mut open).await;
        if receive_first {
            assert!(receive_one(&mut open).await.is_some());
        }
        let extend = format!("select seriatim.extend('{receipt}', '1 min')");
        run(&mut open, &extend).await;
        run(&mut open, &format!("select seriatim.ack('{receipt}')")).await;
        if !receive_first {
            assert!(receive_one(&mut open).await.is_some());
        }
        // Flags of its groups, and more than a claim leaves as they are.
        for _ in 0..40 {
            scene.enqueue("g").await;
        }
        let new = scene.enqueue("new").await;
        let mut worker = scene.session().await;
        assert_eq!(scene.claim_one(&mut worker).await.job, new);
        assert!(scene.claim_all(&mut worker, 4).await.jobs.is_empty(), "and reports no error");
        commit(&mut open).await;
        assert_eq!(scene.claim_one(&mut worker).await.group.as_deref(), Some("g"));
        assert!(!scene.rescue("g").await);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_claim_brings_a_bounded_number_of_bytes() {
    let mut scene = Scene::new().await;
    scene.jobs_per_turn = 20;
    let mut worker = scene.session().await;
    let pairs = size(5, 10);
    for n in 0..pairs {
        let bytes = random_bytes();
        let groups = (0..2).map(|_| {
            NewJob::bytes(Q, "application/octet-stream", bytes.clone()).group(format!("g{}", n % 5))
        });
        crate::enqueue_many(&mut worker, groups).await.unwrap();
    }
    let mut brought = Vec::new();
    while brought.len() < 2 * pairs {
        let claims = scene.claim(&mut worker, 16).await;
        let jobs: usize = claims.iter().map(|claim| 1 + claim.followers.len()).sum();
        assert!((1..=5).contains(&jobs), "{jobs} jobs of 1 MiB");
        for claim in claims {
            scene.run_job(&mut worker, &claim).await;
            brought.push(claim.job);
        }
        assert!(brought.len() <= 2 * pairs);
    }
    let received = format!("select count(*) from seriatim.receive('{Q}', 10)");
    for _ in 0..size(7, 10) {
        let job = NewJob::bytes(Q, "application/octet-stream", random_bytes());
        crate::enqueue(&mut worker, job.group("h")).await.unwrap();
    }
    let received = number(&mut worker, &received).await;
    assert!((1..=5).contains(&received), "{received} jobs of 1 MiB");
    scene.end().await;
}

#[tokio::test]
async fn a_job_both_expired_and_out_of_attempts_has_expired() {
    let scene = Scene::new().await;
    for group in ["by a worker", "by a receiver"] {
        scene.enqueue(group).await;
    }
    scene.run("update seriatim.job set attempts = 3, max_attempts = 3, expires_at = now()").await;
    scene
        .run("insert into seriatim.group_setting (queue, group_id, out_of_attempts) select queue, group_id, 'halt' from seriatim.job")
        .await;
    let mut conn = scene.session().await;
    let claim = scene.claim(&mut conn, 1).await.remove(0);
    assert!(matches!(claim.disposition, Disposition::Expired(_)), "{claim:?}");
    assert!(receive_one(&mut conn).await.is_none());
    let ended = "select count(*) from seriatim.job where error->>'kind' = 'expired'";
    assert_eq!(scene.number(ended).await, 1);
    let halted = "select count(*) from seriatim.queue_group where halted_at is not null";
    assert_eq!(scene.number(halted).await, 0);
    scene.end().await;
}

/// One transaction may leave any number of flags with one time: a claim must not read the first of
/// them again and again.
#[tokio::test]
async fn flags_of_one_time_hide_no_idle_group() {
    let groups = size(20_000, 100_000);
    let scene = Scene::new().await;
    let flags = format!(
        "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) \
         select '{Q}', 'g' || n, '1', true, now() - interval '1 s', now() - interval '1 s' \
         from generate_series(1, {groups}) n"
    );
    scene.run(&flags).await;
    scene
        .run(
            "insert into seriatim.queue_group (queue, group_id, ready_at, head_id, claim, job_id) \
             select queue, group_id, now() + interval '1 h', id, gen_random_uuid(), id from seriatim.job",
        )
        .await;
    scene.run("analyze").await;
    let idle = scene.enqueue("idle").await;
    let mut worker = scene.session().await;
    for _ in 0..8 {
        let claim = scene.claim_all(&mut worker, 4).await;
        if claim.jobs.iter().any(|claim| claim.job == idle) {
            scene.end().await;
            return;
        }
    }
    panic!("eight claims have not found it");
}

/// Flags of distinct groups that cannot start, all of one time. In the middle is one that can.
async fn stuck(scene: &Scene, groups: u32, why: &str) -> i64 {
    let flags = format!(
        "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) \
         select '{Q}', case n when {groups} / 2 then 'middle' else 'g' || n end, '1', true, \
           now() - interval '5 s', now() - interval '5 s' from generate_series(1, {groups}) n"
    );
    scene.run(&flags).await;
    if !why.is_empty() {
        scene.run(why).await;
    }
    scene.run("analyze").await;
    scene.number("select id from seriatim.job where group_id = 'middle'").await
}

const PAUSED: &str = "insert into seriatim.group_setting (queue, group_id, paused_at) \
    select distinct queue, group_id, now() from seriatim.job where group_id <> 'middle'";

/// One claim finds what has just come in behind any number of groups that cannot start, a few
/// receives as well; the next ones go on between them, and come to what was there before.
#[tokio::test]
async fn groups_that_cannot_start_hide_none_behind_nor_between_them() {
    let groups = size(20_000, 30_000);
    // No claim is taken over meanwhile.
    let options = ClaimOptions { lease: Duration::from_mins(10), ..OPTIONS };
    for receives in [false, true] {
        for scene in scenes().await {
            let middle = stuck(&scene, groups, PAUSED).await;
            let mut conn = scene.session().await;
            let idle = scene.enqueue("idle").await;
            let mut found = Vec::new();
            let mut from = ScanStart::default();
            for _ in 0..400 {
                let before = found.len();
                if receives {
                    found.extend(receive_one(&mut conn).await.map(|(id, _)| id));
                } else {
                    let bounds = ClaimBounds::new(4, 0, false, from);
                    let claim = scene.store.claim(&mut conn, Q, bounds, options).await.unwrap();
                    found.extend(claim.jobs.iter().map(|claim| claim.job));
                    from = claim.found_at;
                }
                assert!(before > 0 || found.first() == Some(&idle), "the first one: {found:?}");
                if found.contains(&middle) {
                    break;
                }
            }
            assert_eq!(found, [idle, middle], "by a receiver: {receives}");
            scene.end().await;
        }
    }
}

/// Its transaction may stay open: what it has locked is what it took.
#[tokio::test]
async fn a_receive_from_the_end_of_the_line_keeps_no_other_group() {
    let scene = Scene::new().await;
    stuck(&scene, 20_000, PAUSED).await;
    for n in 0..5 {
        scene.enqueue(&format!("idle {n}")).await;
    }
    let mut open = scene.session().await;
    begin(&mut open).await;
    let receive = format!("select count(*) from seriatim.receive('{Q}', 2)");
    assert_eq!(number(&mut open, &receive).await, 2);
    let mut other = scene.session().await;
    assert_eq!(scene.claim_all(&mut other, 4).await.jobs.len(), 3);
    let free = "select count(*) from (select from seriatim.job where group_id like 'g%' for update skip locked) j";
    assert_eq!(scene.number(free).await, 19_999);
    rollback(&mut open).await;
    scene.end().await;
}

/// A pass over flags that call for nothing gives those groups rows, without a turn of theirs.
#[tokio::test]
async fn claims_tidy_the_flags_of_groups_that_cannot_start() {
    for receivers_alone in [false, true] {
        let scene = Scene::new().await;
        stuck(&scene, 5_000, PAUSED).await;
        let mut conn = scene.session().await;
        let flags = "select count(*) from seriatim.job where flagged and group_id <> 'middle'";
        let (mut before, mut few) = (0, false);
        // Each round is bounded in time.
        for _ in 0..2_000 {
            if receivers_alone {
                receive_one(&mut conn).await;
                // As maintenance does, of any processor, and the SQS server.
                run(&mut conn, "select from seriatim.tidy()").await;
            } else {
                scene.claim_all(&mut conn, 4).await;
            }
            let notes = scene.number("select count(*) from seriatim.flag_scan").await;
            few = before > 0 && notes == 0;
            if few || scene.number(flags).await == 0 {
                break;
            }
            before = notes;
        }
        // Nobody tidies what a receive can read in its time: it deletes the note of them.
        let left = scene.number(flags).await;
        assert!(left == 0 || few && left < 4_999, "{left} flags");
        let resting = "select count(*) from seriatim.queue_group where ready_at = 'infinity'";
        assert_eq!(scene.number(resting).await, 4_999 - left);
        // Each starts when its pause ends.
        Client::default().operator("test", None).resume_group(&mut conn, Q, "g7").await.unwrap();
        let claim = scene.claim_all(&mut conn, 4).await;
        assert!(claim.jobs.iter().any(|claim| claim.group.as_deref() == Some("g7")));
        assert!(!scene.rescue("g8").await);
        scene.end().await;
    }
}

#[tokio::test]
async fn a_claim_that_bytes_have_ended_says_more() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    let all = size(8, 12);
    for n in 0..all {
        let job = NewJob::bytes(Q, "application/octet-stream", random_bytes());
        let job = if n % 2 == 0 { job } else { job.group(format!("g{n}")) };
        crate::enqueue(&mut worker, job).await.unwrap();
    }
    let mut brought = 0;
    while brought < all {
        let claim = scene.claim_all(&mut worker, 16).await;
        let jobs = claim.jobs.len();
        assert!((1..=5).contains(&jobs), "{jobs} jobs of 1 MiB, of both kinds");
        brought += jobs;
        assert!(
            claim.more || brought == all,
            "slots are free, and {brought} of {all} were brought"
        );
    }
    scene.end().await;
}

/// The last aging of a claim may move jobs before what it has read.
#[tokio::test]
async fn more_priorities_than_a_page_are_aged_before_the_read() {
    let scene = Scene::new().await;
    let delayed = |group: &str, jobs: u32, priority: u8, seconds: u8| {
        format!(
            "insert into seriatim.job (queue, group_id, data, flagged, priority, run_at, turn_at) \
             select '{Q}', '{group}' || n, '1', true, {priority}, now() - interval '{seconds} s', \
             now() - interval '{seconds} s' from generate_series(1, {jobs}) n"
        )
    };
    scene.run(&delayed("low", 256, 1, 2)).await;
    scene.run(&delayed("high", 10, 9, 1)).await;
    let mut worker = scene.session().await;
    let claim = scene.claim_all(&mut worker, 500).await;
    assert!(claim.more || claim.jobs.len() == 266, "{} jobs, and no more", claim.jobs.len());
    scene.end().await;
}

/// The priorities of delayed jobs, and leases that ran out, are seen to by each claim.
#[tokio::test]
async fn an_open_receive_keeps_no_more_than_it_may_take() {
    for named in [true, false] {
        let scene = Scene::new().await;
        let mut worker = scene.session().await;
        for _ in 0..10 {
            crate::enqueue(&mut worker, NewJob::new(Q, &1)).await.unwrap();
        }
        assert_eq!(scene.claim_all(&mut worker, 10).await.jobs.len(), 10);
        scene
            .run("update seriatim.job set lease_until = now() - interval '1 h', suspect = claim")
            .await;
        // One of them is still to be suspected.
        scene.run("update seriatim.job set suspect = null where id = 1").await;
        scene
            .run(
                "insert into seriatim.job (queue, group_id, data, flagged, priority, run_at, turn_at) \
                 select 'q', 'g' || n, '1', true, 1, now() - interval '1 s', now() - interval '1 s' \
                 from generate_series(1, 10) n",
            )
            .await;
        let mut open = scene.session().await;
        begin(&mut open).await;
        let group = if named { "'g1'" } else { "null" };
        let receive = format!("select count(*) from seriatim.receive('{Q}', 1, '30 s', {group})");
        assert_eq!(number(&mut open, &receive).await, 1);
        let claim = scene.claim_all(&mut worker, 100).await;
        // One job of 20 is received, and one waits for its grace. Without a name, another may have
        // been aged.
        let least = if named { 18 } else { 17 };
        assert!(claim.jobs.len() >= least, "named: {named}: {} jobs", claim.jobs.len());
        rollback(&mut open).await;
        scene.end().await;
    }
}

/// The flag of one is before the rows of the others.
#[tokio::test]
async fn a_receive_takes_all_heads_before_it_takes_followers() {
    let scene = Scene::new().await;
    let mut worker = scene.session().await;
    for n in 0..9 {
        scene.enqueue(&format!("g{n}")).await;
    }
    scene.adopt(&mut worker).await;
    commit(&mut worker).await;
    // As they are behind their first turns.
    scene.run("update seriatim.job set flagged = false").await;
    scene
        .run("update seriatim.queue_group set ready_at = ready_at - head_id * interval '1 ms'")
        .await;
    scene
        .run(
            "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) \
             select 'q', 'late', '1', n = 1, now() - interval '1 h', now() - interval '1 h' \
             from generate_series(1, 20) n",
        )
        .await;
    let groups = format!("select count(distinct group_id) from seriatim.receive('{Q}', 10)");
    assert_eq!(number(&mut worker, &groups).await, 10);
    scene.end().await;
}
