//! So many groups run at once for each limit key, over all processors and receivers, and a slot
//! that comes free is taken at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use seriatim::admin::{GroupFilter, GroupState, QueueSettings};
use seriatim::explain::Reason;
use seriatim::receive::Receive;
use seriatim::{Client, Hold, JobError, NewJob};
use sqlx::PgPool;
use tokio::time::Instant;

use crate::support::worker_process::{Settings, WorkerProcess};
use crate::support::{
    Log, by_hand, database, drained, eventually, handler, handler_with, job, nothing_remains,
    operator, queue, sample, serve, size, until_groups, until_jobs, value,
};

async fn limit(pool: &PgPool, per_key: impl Into<Option<u32>>) {
    let settings = QueueSettings::new("q").limit_per_key(per_key);
    Client::default().configure_queue(pool, settings).await.unwrap();
}

fn job_of(group: &str, key: &str, data: impl Into<Value>) -> NewJob {
    NewJob::new("q", &data.into()).group(group).limit_key(key)
}

/// How many handlers run for each key, and how many did at most.
#[derive(Default)]
struct Running(Mutex<HashMap<String, (usize, usize)>>);

impl Running {
    fn begin(&self, key: &str) {
        let mut keys = self.0.lock().unwrap();
        let (now, most) = keys.entry(key.to_owned()).or_default();
        *now += 1;
        *most = (*most).max(*now);
    }

    fn end(&self, key: &str) {
        self.0.lock().unwrap().get_mut(key).unwrap().0 -= 1;
    }

    fn most(&self, key: &str) -> usize {
        self.0.lock().unwrap().get(key).map_or(0, |(_, most)| *most)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_groups_of_a_key_run_as_its_limit_says() {
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_secs(30))]) {
        let database = database().await;
        let pool = database.pool();
        limit(pool, 2).await;
        let running = Arc::new(Running::default());
        let run = || {
            handler_with(Arc::clone(&running), async |running, job, key: Value| {
                let key = key.as_str().unwrap().to_owned();
                running.begin(&key);
                tokio::time::sleep(Duration::from_millis(5)).await;
                running.end(&key);
                if job.attempt() == 1 && job.id() % 7 == 0 {
                    return Err(JobError::retry_after("once", Duration::from_millis(20)));
                }
                Ok(Value::Null)
            })
        };
        let jobs = (0..size(120, 240)).map(|n| {
            let (group, key) = (format!("g{}", n % 24), format!("t{}", n % 3));
            job_of(&group, &key, key.as_str())
        });
        seriatim::enqueue_many(pool, jobs).await.unwrap();
        let free = NewJob::new("q", &"none").group("free");
        seriatim::enqueue(pool, free).await.unwrap();
        let options = || queue("q").hold(hold).concurrency(10);
        let mut processors = Vec::new();
        for _ in 0..3 {
            processors.push(serve(&database, 14, options(), run()).await);
        }
        drained(pool, "q").await;
        for key in ["t0", "t1", "t2"] {
            assert_eq!(running.most(key), 2, "{key}, {hold:?}");
        }
        let unordered = "select count(*) from (select last_started_at < lag(last_started_at) \
            over (partition by group_id order by id) as late from seriatim.job) o where late";
        assert_eq!(value::<i64>(pool, unordered).await, 0);
        for processor in processors {
            processor.shutdown(Duration::from_secs(5)).await;
        }
        nothing_remains(pool).await;
        database.remove().await.unwrap();
    }
}

/// A worker that ends a job claims the next one itself, whoever gated that.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_slot_is_taken_at_once() {
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_secs(30))]) {
        let database = database().await;
        let pool = database.pool();
        limit(pool, 1).await;
        let log = Arc::new(Mutex::new(Vec::new()));
        let run = || {
            handler_with(Arc::clone(&log), async |log, _, _: Value| {
                let began = Instant::now();
                tokio::time::sleep(Duration::from_millis(20)).await;
                log.lock().unwrap().push((began, Instant::now()));
                Ok(Value::Null)
            })
        };
        let options = || queue("q").hold(hold).concurrency(4);
        let first = serve(&database, 8, options(), run()).await;
        let second = serve(&database, 8, options(), run()).await;
        let jobs = size(40, 150);
        for n in 0..jobs {
            seriatim::enqueue(pool, job_of(&format!("g{n}"), "t", n)).await.unwrap();
        }
        drained(pool, "q").await;
        let log = log.lock().unwrap().clone();
        assert_eq!(log.len(), jobs);
        let mut gaps: Vec<_> =
            log.windows(2).map(|pair| pair[1].0.saturating_duration_since(pair[0].1)).collect();
        gaps.sort_unstable();
        let (half, most) = (gaps[gaps.len() / 2], gaps[gaps.len() * 95 / 100]);
        println!("{hold:?}: a slot is free for {half:.2?}, and for {most:.2?} in 1 of 20 cases");
        // 10 ms on a quiet machine; a poll would be half a second.
        assert!(half < Duration::from_millis(300), "{gaps:?}");
        first.shutdown(Duration::from_secs(5)).await;
        second.shutdown(Duration::from_secs(5)).await;
        database.remove().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_holds_over_processes_that_are_killed() {
    let database = database().await;
    let pool = database.pool();
    limit(pool, 2).await;
    let jobs = (0..size(300, 1_500))
        .map(|n| job_of(&format!("g{}", n % 60), &format!("t{}", n % 4), "ok"));
    seriatim::enqueue_many(pool, jobs).await.unwrap();
    let log = Log::default();
    let start = |n: u32| {
        let mut settings = Settings::new(database.url(), &["q"]);
        settings.lease = (n % 2 == 1).then_some(Duration::from_secs(2));
        WorkerProcess::start(format!("worker {n}"), &settings, &log)
    };
    let mut workers: Vec<_> = (0..4).map(start).collect();
    for worker in &workers {
        worker.is_ready(&log).await;
    }
    let over = "select count(*) from (select 1 from seriatim.queue_group \
        where job_id is not null and started_at is not null group by limit_key having count(*) > 2) o";
    let left = "select count(*) from seriatim.job where status < 'succeeded'";
    let (mut killed, mut next) = (0, Instant::now() + Duration::from_millis(500));
    while value::<i64>(pool, left).await > 0 {
        assert_eq!(value::<i64>(pool, over).await, 0, "more than two groups of a key run");
        if Instant::now() >= next && killed < size(2, 6) {
            workers.remove(0).kill().await;
            killed += 1;
            let worker = start(3 + killed);
            worker.is_ready(&log).await;
            workers.push(worker);
            next = Instant::now() + Duration::from_millis(500);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for worker in workers {
        worker.kill().await;
    }
    let gated = "select count(*) from seriatim.queue_group where gated_by is not null";
    assert_eq!(value::<i64>(pool, gated).await, 0);
    database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gated_group_is_explained_listed_and_counted() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::default();
    limit(pool, 1).await;
    let running = client.enqueue(pool, job_of("a", "tenant-7", 1)).await.unwrap().id();
    let received = client.receive(pool, Receive::new("q")).await.unwrap();
    assert_eq!(received[0].id, running);
    let waits = client.enqueue(pool, job_of("b", "tenant-7", 1)).await.unwrap().id();
    let behind = client.enqueue(pool, job_of("c", "tenant-7", 1)).await.unwrap().id();
    assert!(client.receive(pool, Receive::new("q").max(10)).await.unwrap().is_empty());
    let why = client.explain_job(pool, behind).await.unwrap().unwrap();
    let Reason::AtKeyLimit { key, taken, limit, before, .. } = &why.reason else { panic!("{why}") };
    assert_eq!((key.as_str(), *taken, *limit, before.count), ("tenant-7", 1, Some(1), 1));
    let said = why.to_string();
    assert!(
        said.contains(
            "for a slot of limit key \"tenant-7\" (1 of 1 are taken), and 1 group waits before it"
        ),
        "{said}"
    );
    assert!(said.contains("raise the queue's limit_per_key"), "{said}");
    assert_eq!(job(pool, waits).await.limit_key.as_deref(), Some("tenant-7"));
    let filter = GroupFilter::default().state(GroupState::Gated);
    let listed = client.groups(pool, "q", &filter).await.unwrap().groups;
    let names: Vec<_> = listed.iter().map(|group| group.group.as_str()).collect();
    assert_eq!(names, ["b", "c"]);
    let overview = client.queues(pool).await.unwrap();
    let groups = &overview[0].groups;
    let counts = [groups.gated, groups.ready, groups.delayed, groups.running].map(|n| n.count);
    assert_eq!((counts, overview[0].limit_per_key), ([2, 0, 0, 1], Some(1)));
    // A receiver that waits is told of the slot.
    let mut listener = sqlx::postgres::PgListener::connect_with(pool).await.unwrap();
    listener.listen("seriatim.wake").await.unwrap();
    client.ack(pool, &received[0].receipt).await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(10), listener.recv()).await;
    assert_eq!(woken.unwrap().unwrap().payload(), "q");
    assert!(value::<f64>(pool, "select seriatim.due_in('q')").await <= 0.0);
    let next = client.receive(pool, Receive::new("q").max(10)).await.unwrap();
    assert_eq!(next.iter().map(|job| job.id).collect::<Vec<_>>(), [waits]);
    database.remove().await.unwrap();
}

/// An operator can do with a gated group what can be done with one that waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_gated_group_can_be_cancelled_purged_parked_paused_and_moved() {
    for what in ["cancel", "purge", "park", "pause", "move", "skip"] {
        let database = database().await;
        let pool = database.pool();
        let client = Client::default();
        limit(pool, 1).await;
        client.enqueue(pool, job_of("a", "t", 1)).await.unwrap();
        let received = client.receive(pool, Receive::new("q")).await.unwrap();
        let waits = client.enqueue(pool, job_of("b", "t", 1)).await.unwrap().id();
        let behind = client.enqueue(pool, job_of("c", "t", 1)).await.unwrap().id();
        assert!(client.receive(pool, Receive::new("q").max(10)).await.unwrap().is_empty());
        until_groups(pool, "gated_by is not null", 2).await;
        let sql = match what {
            "cancel" => format!("select seriatim.cancel({waits})"),
            "purge" => String::from("select seriatim.purge('q', 'b')"),
            "park" => String::from("select seriatim.park('q', 'b')"),
            "pause" => String::from("select seriatim.pause('q', 'b')"),
            "move" => format!("select seriatim.move_jobs(array[{waits}], 'other')"),
            _ => format!("select seriatim.skip({waits})"),
        };
        by_hand(pool, sql).await;
        client.ack(pool, &received[0].receipt).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let got = loop {
            let got = client.receive(pool, Receive::new("q")).await.unwrap();
            if let Some(job) = got.first() {
                break job.id;
            }
            assert!(Instant::now() < deadline, "{what}: the group behind is never served");
        };
        assert_eq!(got, behind, "{what}");
        database.remove().await.unwrap();
    }
}

/// Jobs that are made without a limit have no slot, and a queue that loses its limit forgets none.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_comes_and_goes_while_jobs_run() {
    let database = database().await;
    let pool = database.pool();
    let running = serve(
        &database,
        12,
        queue("q").concurrency(8),
        handler(async |_, _| {
            tokio::time::sleep(Duration::from_millis(3)).await;
            Ok(Value::Null)
        }),
    )
    .await;
    for n in 0..size(120_u32, 1_000) {
        if n % 20 == 0 {
            limit(pool, [Some(1), None, Some(3)][n as usize / 20 % 3]).await;
        }
        if n % 15 == 0 {
            let of_key = [Some(2), Some(0), None][n as usize / 15 % 3];
            operator().set_key_limit(pool, "q", "t", of_key).await.unwrap();
        }
        let new = job_of(&format!("g{}", n % 40), "t", n);
        seriatim::enqueue(pool, new).await.unwrap();
    }
    operator().set_key_limit(pool, "q", "t", None).await.unwrap();
    drained(pool, "q").await;
    eventually(pool, "select count(*) from seriatim.queue_group where gated_by is not null", 0_i64)
        .await;
    until_jobs(pool, "status < 'succeeded'", 0).await;
    running.shutdown(Duration::from_secs(5)).await;
    database.remove().await.unwrap();
}

/// One key has more slots than the others, or none, in a queue with a limit per key and without.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_a_limit_of_its_own() {
    for of_queue in [Some(1), None] {
        let database = database().await;
        let pool = database.pool();
        let client = Client::default();
        if of_queue.is_some() {
            limit(pool, of_queue).await;
        }
        operator().set_key_limit(pool, "q", "large", 3).await.unwrap();
        operator().set_key_limit(pool, "q", "paused", 0).await.unwrap();
        let limits = client.key_limits(pool, "q").await.unwrap();
        let limits: Vec<_> = limits.iter().map(|own| (own.key.as_str(), own.limit)).collect();
        assert_eq!(limits, [("large", 3), ("paused", 0)]);
        assert_eq!(client.queue_settings(pool, "q").await.unwrap().limit_per_key, of_queue);
        let running = Arc::new(Running::default());
        let run = || {
            handler_with(Arc::clone(&running), async |running, _, key: Value| {
                let key = key.as_str().unwrap().to_owned();
                running.begin(&key);
                tokio::time::sleep(Duration::from_millis(30)).await;
                running.end(&key);
                Ok(Value::Null)
            })
        };
        let first = serve(&database, 14, queue("q").concurrency(8), run()).await;
        let second = serve(&database, 14, queue("q").concurrency(8), run()).await;
        let jobs = (0..size(90, 240)).map(|n| {
            let key = ["large", "paused", "other"][usize::try_from(n).unwrap() % 3];
            job_of(&format!("g{}", n % 24), key, key)
        });
        seriatim::enqueue_many(pool, jobs).await.unwrap();
        until_jobs(pool, "limit_key <> 'paused' and status < 'succeeded'", 0).await;
        assert_eq!((running.most("large"), running.most("paused")), (3, 0));
        if of_queue.is_some() {
            assert_eq!(running.most("other"), 1);
        }
        // A receive by name starts none either.
        let group = value::<String>(pool, "select min(group_id) from seriatim.queue_group").await;
        let named = Receive::new("q").group(group);
        assert!(client.receive(pool, named).await.unwrap().is_empty());
        let gated = "select min(id) from seriatim.job where limit_key = 'paused' and group_id = \
            (select min(group_id) from seriatim.queue_group where gated_by is not null)";
        let why = client.explain_job(pool, value(pool, gated).await).await.unwrap().unwrap();
        let Reason::AtKeyLimit { limit, .. } = &why.reason else { panic!("{why}") };
        assert_eq!(*limit, Some(0));
        let said = why.to_string();
        assert!(said.contains("because limit key \"paused\" is paused by its limit 0"), "{said}");
        assert!(said.contains("Call set_key_limit to let groups with this key start"), "{said}");
        operator().set_key_limit(pool, "q", "paused", None).await.unwrap();
        drained(pool, "q").await;
        first.shutdown(Duration::from_secs(5)).await;
        second.shutdown(Duration::from_secs(5)).await;
        nothing_remains(pool).await;
        database.remove().await.unwrap();
    }
}
