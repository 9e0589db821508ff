//! Queues and groups at a glance.

use std::time::Duration;

use chrono::Utc;
use serde_json::{Value, json};
use seriatim::admin::{GroupFilter, GroupSort, GroupState};
use seriatim::receive::Receive;
use seriatim::{AfterHalt, Client, JobError, NewJob, OutOfAttempts, Processor, RetryPolicy};

use crate::support::{
    Log, by_hand, database, drained, enqueue, eventually, handler_with, operator, queue, started,
};

fn names(page: &seriatim::admin::GroupPage) -> Vec<&str> {
    page.groups.iter().map(|group| &*group.group).collect()
}

/// A group in each state, and what lists say of it.
#[tokio::test(flavor = "multi_thread")]
async fn groups_are_listed_by_state() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let fails = handler_with((), async |(), _, data: Value| {
        if data == json!("poison") { Err(JobError::fail("no such card")) } else { Ok(json!(null)) }
    });
    let options = queue("q").out_of_attempts(OutOfAttempts::Halt);
    let running = started(Processor::builder(pool.clone()).queue(options, fails)).await;
    let halted_by = enqueue(pool, "q", "halted", "poison").await;
    let behind = enqueue(pool, "q", "halted", "innocent").await;
    eventually(
        pool,
        "select count(*) from seriatim.queue_group where halted_at is not null",
        1_i64,
    )
    .await;
    running.shutdown(Duration::from_secs(5)).await;

    client.operator("test", "their audit").pause_group(pool, "q", "paused").await.unwrap();
    enqueue(pool, "q", "paused", "a").await;
    enqueue(pool, "q", "run", "a").await;
    let received = client.receive(pool, Receive::new("q").group("run")).await.unwrap();
    assert_eq!(received.len(), 1);
    let later = NewJob::new("q", &"a").group("rest").delay(Duration::from_mins(5));
    client.enqueue(pool, later).await.unwrap();
    // No worker has adopted it.
    let ready = enqueue(pool, "q", "ready", "a").await;
    enqueue(pool, "q", "ready", "b").await;

    let page = client.groups(pool, "q", &GroupFilter::default()).await.unwrap();
    let states: Vec<_> = page.groups.iter().map(|group| (&*group.group, group.state)).collect();
    assert_eq!(
        states,
        [
            ("halted", GroupState::Halted),
            ("paused", GroupState::Paused),
            ("ready", GroupState::Ready),
            ("rest", GroupState::Delayed),
            ("run", GroupState::Running),
        ]
    );
    assert_eq!((page.next.as_deref(), page.or_more), (None, false));
    for (name, state) in states {
        let page = client.groups(pool, "q", &GroupFilter::default().state(state)).await.unwrap();
        assert_eq!(names(&page), [name], "{state:?}");
        let one = client.group(pool, "q", name).await.unwrap().unwrap();
        assert_eq!((one.state, &one), (state, &page.groups[0]));
    }
    let halted = &page.groups[0];
    assert_eq!(
        (halted.halted_by, halted.head, halted.depth.count),
        (Some(halted_by), Some(behind), 1)
    );
    assert!(halted.reason.as_deref().unwrap().contains("no such card"), "{halted:?}");
    assert_eq!(page.groups[1].reason.as_deref(), Some("their audit"));
    assert_eq!((page.groups[2].head, page.groups[2].depth.count), (Some(ready), 2));
    assert!(page.groups[3].due_at > Some(Utc::now()));
    assert_eq!(client.group(pool, "q", "none").await.unwrap(), None);

    let overview = client.queues(pool).await.unwrap();
    assert_eq!(overview.len(), 1);
    let q = &overview[0];
    let groups =
        [q.groups.ready, q.groups.running, q.groups.delayed, q.groups.halted, q.groups.paused];
    assert_eq!(groups.map(|count| count.count), [1, 1, 1, 1, 1]);
    assert_eq!([q.jobs.started, q.jobs.delayed, q.jobs.failed].map(|count| count.count), [1, 1, 1]);
    assert_eq!(q.jobs.queued.count, 4);
    assert!(q.oldest_due.is_some_and(|at| at <= Utc::now()));
    // Adopted, it rests until the end of its pause, and counts as paused alone.
    by_hand(
        pool,
        "update seriatim.group_setting set paused_until = now() + interval '1 h'; \
         insert into seriatim.queue_group (queue, group_id, ready_at, head_id) \
         values ('q', 'paused', now() + interval '1 h', 0)",
    )
    .await;
    let groups = client.queues(pool).await.unwrap()[0].groups;
    assert_eq!([groups.ready, groups.delayed, groups.paused].map(|count| count.count), [1, 1, 1]);
    let paused = client.group(pool, "q", "paused").await.unwrap().unwrap();
    assert!(paused.state == GroupState::Paused && paused.paused_until > Some(Utc::now()));
    client.operator("test", "closed").pause_queue(pool, "other").await.unwrap();
    let overview = client.queues(pool).await.unwrap();
    let paused = overview[0].paused.as_ref().unwrap();
    assert_eq!(paused.until, None);
    assert_eq!((&*overview[0].queue, paused.reason.as_deref()), ("other", Some("closed")));

    // Both its halt and its pause are told, and it is listed under both.
    client.operator("test", "and closed").pause_group(pool, "q", "halted").await.unwrap();
    let both = client.group(pool, "q", "halted").await.unwrap().unwrap();
    assert_eq!((both.state, both.halted_by), (GroupState::Halted, Some(halted_by)));
    assert!(both.reason.as_deref().unwrap().contains("no such card"), "{both:?}");
    assert!(both.paused_at.is_some() && both.stopped_at < both.paused_at, "{both:?}");
    assert_eq!(both.pause_reason.as_deref(), Some("and closed"));
    assert_eq!((both.halted_until, both.then), (None, None));
    let paused = GroupFilter::default().state(GroupState::Paused);
    let page = client.groups(pool, "q", &paused).await.unwrap();
    assert_eq!(names(&page), ["halted", "paused"]);
}

/// The end of a halt is told with what happens then.
#[tokio::test(flavor = "multi_thread")]
async fn a_halt_that_ends_by_itself_says_so() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let fails =
        handler_with((), async |(), _, _: Value| Err::<Value, _>(JobError::fail("no such card")));
    let deadline = Duration::from_hours(1);
    let halts = OutOfAttempts::HaltFor { deadline, then: AfterHalt::Continue };
    let running =
        started(Processor::builder(pool.clone()).queue(queue("q").out_of_attempts(halts), fails))
            .await;
    enqueue(pool, "q", "g", "poison").await;
    eventually(
        pool,
        "select count(*) from seriatim.queue_group where halted_at is not null",
        1_i64,
    )
    .await;
    running.shutdown(Duration::from_secs(5)).await;
    let group = client.group(pool, "q", "g").await.unwrap().unwrap();
    assert_eq!(group.then, Some(AfterHalt::Continue));
    // Each is of its own moment.
    let lasts = group.halted_until.unwrap() - group.stopped_at.unwrap();
    assert!((lasts.as_seconds_f64() - deadline.as_secs_f64()).abs() < 5.0, "{group:?}");
}

/// Due work that no living processor or receiver serves is told; a pause is another matter.
#[tokio::test(flavor = "multi_thread")]
async fn queues_say_whether_they_are_served() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let runs = || handler_with((), async |(), _, _: Value| Ok::<_, JobError>(json!(null)));
    enqueue(pool, "q", "g", "a").await;
    let first = async || client.queues(pool).await.unwrap().remove(0);
    let q = first().await;
    assert_eq!((q.served, q.unserved_since()), (false, q.oldest_due));
    assert!(q.oldest_due.is_some());
    let other = Processor::builder(pool.clone()).queue(queue("other"), runs()).build().unwrap();
    let other = other.start().await.unwrap();
    let alive = "select count(*) from seriatim.processors() where alive";
    eventually(pool, alive, 1_i64).await;
    assert!(!first().await.served, "another queue's processor does not serve it");
    operator().pause_queue(pool, "q").await.unwrap();
    let q = first().await;
    assert_eq!((q.served, q.unserved_since()), (false, None));
    let serves = Processor::builder(pool.clone()).queue(queue("q"), runs()).build().unwrap();
    let serves = serves.start().await.unwrap();
    eventually(pool, alive, 2_i64).await;
    assert!(first().await.served);
    serves.shutdown(Duration::from_secs(5)).await;
    assert!(!first().await.served, "it has gone");
    other.shutdown(Duration::from_secs(5)).await;
}

/// A receiver is known by its receives: those of the last five minutes, and jobs that it still has.
#[tokio::test(flavor = "multi_thread")]
async fn receivers_serve_the_queues_that_they_ask() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    for group in ["a", "b"] {
        enqueue(pool, "q", group, "x").await;
    }
    let served = async || client.queues(pool).await.unwrap().remove(0).served;
    let explained = async || client.explain_group(pool, "q", "b").await.unwrap().unserved;
    assert!(!served().await && explained().await.is_some());
    // Two receives in open transactions do not wait for each other.
    let (mut one, mut other) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    let take = Receive::new("q").visibility(Duration::from_mins(5));
    let first = client.receive(&mut *one, take.clone()).await.unwrap().remove(0);
    let second = client.receive(&mut *other, take.clone()).await.unwrap().remove(0);
    one.commit().await.unwrap();
    other.commit().await.unwrap();
    assert!(served().await);
    by_hand(pool, "update seriatim.receiver set asked_at = now() - interval '301 s'").await;
    assert!(served().await, "it has jobs");
    for receipt in [first.receipt, second.receipt] {
        client.nack(pool, &receipt, Duration::ZERO).await.unwrap();
    }
    assert!(!served().await && explained().await.is_some(), "it has gone");
    client.receive(pool, take).await.unwrap();
    by_hand(pool, "update seriatim.queue_group set ready_at = now() where job_id is not null")
        .await;
    assert!(served().await && explained().await.is_none(), "it asked");
    by_hand(pool, "update seriatim.receiver set asked_at = now() - interval '290 s'").await;
    assert!(served().await && explained().await.is_none(), "it polls every few minutes");
    by_hand(pool, "update seriatim.receiver set asked_at = now() - interval '301 s'").await;
    assert!(!served().await && explained().await.is_some(), "its claim is over");
}

/// Each look at a lane whose head is locked moves its place in the line; the next look is ahead.
#[tokio::test]
async fn a_lane_whose_head_is_locked_waits_since_the_head_is_due() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let head = enqueue(pool, "q", "locked", "a").await;
    by_hand(
        pool,
        format!(
            "update seriatim.job set flagged = false, run_at = now() - interval '1 h';
             insert into seriatim.queue_group (queue, group_id, ready_at, head_id, rechecks) \
             values ('q', 'locked', now() + interval '1 s', {head}, 6)"
        ),
    )
    .await;
    let long_ago = Utc::now() - chrono::Duration::minutes(59);
    let queues = client.queues(pool).await.unwrap();
    assert!(queues[0].oldest_due.is_some_and(|due| due < long_ago), "{queues:?}");
    assert_eq!([queues[0].groups.ready.count, queues[0].groups.delayed.count], [1, 0]);
    for filter in [
        GroupFilter::default().sort(GroupSort::Wait),
        GroupFilter::default().state(GroupState::Ready),
    ] {
        let page = client.groups(pool, "q", &filter).await.unwrap();
        assert_eq!(names(&page), ["locked"]);
        assert!(page.groups[0].blocked && page.groups[0].due_at < Some(long_ago), "{page:?}");
    }
    by_hand(pool, "update seriatim.queue_group set rechecks = 1").await;
    assert!(!client.group(pool, "q", "locked").await.unwrap().unwrap().blocked);
}

/// The row of a queue that says nothing any more is gone.
#[tokio::test]
async fn a_mistyped_queue_is_not_listed_after_its_pause() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    operator().pause_queue(pool, "ordres").await.unwrap();
    assert_eq!(client.queues(pool).await.unwrap().len(), 1);
    operator().resume_queue(pool, "ordres").await.unwrap();
    assert_eq!(client.queues(pool).await.unwrap(), []);
    let settings = seriatim::admin::QueueSettings::new("slow").in_flight_limit(Some(1));
    client.configure_queue(pool, settings).await.unwrap();
    operator().pause_queue(pool, "slow").await.unwrap();
    operator().resume_queue(pool, "slow").await.unwrap();
    assert_eq!(client.queues(pool).await.unwrap()[0].in_flight_limit, Some(1));
}

/// Pages through more groups than fit on one, whatever their names are.
#[tokio::test]
async fn groups_are_paged_by_name() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let odd = ["%", "'", "\"><script>", "\u{202e}right to left", "🦀", "a b", "\\", "{group}"];
    let mut all: Vec<String> = (0..40).map(|n| format!("customer-{n:02}")).collect();
    all.extend(odd.map(String::from));
    let jobs =
        all.iter().flat_map(|group| [0, 1].map(|n| NewJob::new("q", &n).group(group.as_str())));
    client.enqueue_many(pool, jobs).await.unwrap();

    let (mut seen, mut after) = (Vec::new(), None::<String>);
    loop {
        let mut filter = GroupFilter::default().limit(7);
        if let Some(after) = after.take() {
            filter = filter.after(after);
        }
        let page = client.groups(pool, "q", &filter).await.unwrap();
        assert!(page.groups.len() <= 7 && page.groups.iter().all(|group| group.depth.count == 2));
        seen.extend(page.groups.into_iter().map(|group| group.group));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    seen.sort();
    all.sort();
    assert_eq!(seen, all);

    let found = client.groups(pool, "q", &GroupFilter::default().find("customer-1")).await.unwrap();
    assert_eq!(found.groups.len(), 10);
    let found =
        client.groups(pool, "q", &GroupFilter::default().find("customer-17")).await.unwrap();
    assert_eq!(names(&found), ["customer-17"]);
    let found = client.groups(pool, "q", &GroupFilter::default().find("\"><s")).await.unwrap();
    assert_eq!(names(&found), ["\"><script>"]);
    let found = client.groups(pool, "q", &GroupFilter::default().find("dealer")).await.unwrap();
    assert!(found.groups.is_empty());
}

/// The longest wait and the greatest depth come first.
#[tokio::test]
async fn groups_are_sorted_by_wait_and_by_depth() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    for (group, jobs) in [("b", 3), ("a", 1), ("c", 2)] {
        for n in 0..jobs {
            client.enqueue(pool, NewJob::new("q", &n).group(group)).await.unwrap();
        }
    }
    for (sort, order) in [(GroupSort::Wait, ["b", "a", "c"]), (GroupSort::Depth, ["b", "c", "a"])] {
        let page = client.groups(pool, "q", &GroupFilter::default().sort(sort)).await.unwrap();
        assert_eq!(names(&page), order);
        let page =
            client.groups(pool, "q", &GroupFilter::default().sort(sort).limit(2)).await.unwrap();
        assert_eq!((names(&page).len(), page.next.as_deref(), page.or_more), (2, None, true));
    }
}

/// Parked jobs are seen, though nothing of their group is unfinished.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_with_parked_jobs_alone_is_listed() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    let log = Log::default();
    let fails = handler_with(log.clone(), async |log, _, _: Value| {
        log.add(String::from("ran"));
        Err(JobError::retry("not now"))
    });
    for n in 0..3 {
        client.enqueue(pool, NewJob::new("q", &n).group("g")).await.unwrap();
    }
    let retry = RetryPolicy::new(1);
    let options = queue("q").retry(retry).out_of_attempts(OutOfAttempts::Park);
    let running = started(Processor::builder(pool.clone()).queue(options, fails)).await;
    log.wait_for(1).await;
    drained(pool, "q").await;
    running.shutdown(Duration::from_secs(5)).await;
    let page = client.groups(pool, "q", &GroupFilter::default()).await.unwrap();
    assert_eq!((names(&page), page.groups[0].state), (vec!["g"], GroupState::Parked));
    assert!(page.groups[0].parked.count >= 2, "{page:?}");
    let parked = GroupFilter::default().state(GroupState::Parked);
    assert_eq!(names(&client.groups(pool, "q", &parked).await.unwrap()), ["g"]);
    assert_eq!(client.queues(pool).await.unwrap()[0].groups.parked.count, 1);
}

/// A worker or a receiver that is gone is not taken for one that is busy.
#[tokio::test]
async fn a_claim_that_lapsed_is_none_that_runs() {
    let db = database().await;
    let (pool, client) = (db.pool(), Client::default());
    for group in ["lost", "busy"] {
        enqueue(pool, "q", group, "a").await;
    }
    client.enqueue(pool, NewJob::new("q", &"a")).await.unwrap();
    assert_eq!(client.receive(pool, Receive::new("q").max(3)).await.unwrap().len(), 3);
    let q = async || client.queues(pool).await.unwrap().remove(0);
    let of = q().await;
    assert_eq!((of.groups.running.count, of.lapsed.count, of.lapsed_since), (2, 0, None));
    by_hand(
        pool,
        "update seriatim.queue_group set ready_at = now() - interval '90 s';
         update seriatim.job set lease_until = now() - interval '60 s' where group_id is null",
    )
    .await;
    // A session holds one of them, whatever its lease is.
    let mut hold = pool.begin().await.unwrap();
    sqlx::query("select 1 from seriatim.queue_group where group_id = 'busy' for no key update")
        .execute(&mut *hold)
        .await
        .unwrap();
    let of = q().await;
    assert_eq!([of.groups.running, of.groups.lapsed, of.lapsed].map(|n| n.count), [1, 1, 2]);
    assert_eq!(of.jobs.started.count, 3);
    assert!(of.lapsed_since.is_some_and(|at| Utc::now() - at > chrono::TimeDelta::seconds(85)));
    for (group, state) in [("lost", GroupState::Lapsed), ("busy", GroupState::Running)] {
        let filter = GroupFilter::default().state(state);
        assert_eq!(names(&client.groups(pool, "q", &filter).await.unwrap()), [group]);
        let one = client.group(pool, "q", group).await.unwrap().unwrap();
        assert_eq!((one.state, one.stopped_at.is_some()), (state, state == GroupState::Lapsed));
    }
    hold.rollback().await.unwrap();
    assert_eq!(q().await.groups.lapsed.count, 2);
}
