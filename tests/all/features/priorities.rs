//! Priorities: between groups, and between jobs without one; never inside a group, and never for
//! ever.

use std::time::Duration;

use serde_json::Value;
use seriatim::testing::{Jobs, TestDatabase};
use seriatim::{JobError, NewJob, QueueOptions, RetryPolicy, Running};

use crate::support::{
    Gate, Log, by_hand, database, drained, ended, eventually, handler_with, job_of,
    nothing_remains, queue, serve, until_jobs,
};

/// One slot, whose handler waits at the gate. A first job keeps it busy.
struct Bench {
    database: TestDatabase,
    log: Log,
    gate: Gate,
    running: Running,
}

impl Bench {
    async fn new(options: QueueOptions) -> Self {
        let database = database().await;
        let (log, gate) = (Log::default(), Gate::default());
        let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, data| {
            let name = format!("{} {data}", job.group().unwrap_or("-"));
            log.add(name);
            gate.passed().await;
            Ok(Value::Null)
        });
        let running = serve(&database, 3, options.concurrency(1), run).await;
        seriatim::enqueue(database.pool(), job_of("q", "first", 0)).await.unwrap();
        log.wait_for(1).await;
        Self { database, log, gate, running }
    }

    /// Enqueues jobs, each with its priority.
    async fn enqueue(&self, jobs: Vec<(NewJob, i16)>) {
        let mut tx = self.database.pool().begin().await.unwrap();
        for (job, priority) in jobs {
            let id = seriatim::enqueue(&mut *tx, job).await.unwrap().id();
            sqlx::query("update seriatim.job set priority = $1 where id = $2")
                .bind(priority)
                .bind(id)
                .execute(&mut *tx)
                .await
                .unwrap();
        }
        tx.commit().await.unwrap();
    }

    /// Lets everything run. Returns what ran behind the first job, in order.
    async fn ran(self) -> Vec<String> {
        self.gate.pass(1000);
        drained(self.database.pool(), "q").await;
        nothing_remains(self.database.pool()).await;
        self.running.shutdown(Duration::from_secs(5)).await;
        self.database.remove().await.unwrap();
        self.log.entries().split_off(1)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_waiting_group_with_the_highest_priority_goes_next() {
    let bench = Bench::new(queue("q")).await;
    let jobs = [("low", 0), ("high", 9), ("middle", 4)];
    bench.enqueue(jobs.map(|(group, priority)| (job_of("q", group, 1), priority)).into()).await;
    bench.enqueue(jobs.map(|(group, priority)| (job_of("q", group, 2), priority)).into()).await;
    // A high one stays ahead when its turn is passed on.
    let order = ["high 1", "high 2", "middle 1", "middle 2", "low 1", "low 2"];
    assert_eq!(bench.ran().await, order);
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_group_the_order_is_that_of_the_ids() {
    let bench = Bench::new(queue("q")).await;
    let jobs = [0, 9, 4, 8].map(|priority| (job_of("q", "g", priority), priority));
    bench.enqueue(jobs.into()).await;
    bench.enqueue(vec![(job_of("q", "other", 1), 3)]).await;
    // The group has the priority of the job that is next in it.
    let ran = bench.ran().await;
    assert_eq!(ran, ["other 1", "g 0", "g 9", "g 4", "g 8"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_waited_90_s_longer_goes_before_any_priority() {
    for (waited, first) in [(80, "new 1"), (100, "old 1")] {
        let bench = Bench::new(queue("q")).await;
        bench.enqueue(vec![(job_of("q", "old", 1), 0), (job_of("q", "new", 1), 9)]).await;
        let pool = bench.database.pool();
        // As a claim would have made them ready, one of them a while ago.
        by_hand(
            pool,
            format!(
                "insert into seriatim.queue_group (queue, group_id, head_id, ready_at) \
                 select queue, group_id, id, now() - make_interval(secs => \
                   case when group_id = 'old' then {waited} else 90 end) \
                 from seriatim.job where group_id in ('old', 'new'); \
                 update seriatim.job set flagged = false where group_id in ('old', 'new')"
            ),
        )
        .await;
        assert_eq!(bench.ran().await[0], first, "after {waited} s");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_without_a_group_have_priorities_too() {
    let bench = Bench::new(queue("q")).await;
    let jobs = [("low", 0), ("high", 9), ("middle", 4)];
    bench.enqueue(jobs.map(|(name, priority)| (NewJob::new("q", &name), priority)).into()).await;
    assert_eq!(bench.ran().await, ["- \"high\"", "- \"middle\"", "- \"low\""]);
}

/// Sleepers become due in an order against their priorities, and something else is due before them.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_delayed_gets_its_priority_aging_when_it_is_due() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let sleepers = || {
        let later = Duration::from_hours(1);
        let groups = ["low", "high"].map(|group| job_of("q", group, 1).delay(later));
        let ungrouped = ["low", "high"].map(|name| NewJob::new("q", &name).delay(later));
        groups.into_iter().chain(ungrouped)
    };
    seriatim::enqueue_many(pool, sleepers()).await.unwrap();
    by_hand(
        pool,
        "update seriatim.job set priority = 5 where group_id = 'high' or data = '\"high\"'",
    )
    .await;
    let client = seriatim::Client::default();
    let run = || {
        handler_with(log.clone(), async |log, job, data| {
            log.add(format!("{} {data}", job.group().unwrap_or("-")));
            Ok(Value::Null)
        })
    };
    // Not due: whatever their priority, none of them runs before what is.
    let probe = seriatim::enqueue(pool, job_of("q", "probe", 1)).await.unwrap();
    let running = serve(&database, 6, queue("q"), run()).await;
    ended(pool, probe.id()).await;
    assert_eq!(log.entries(), ["probe 1"]);
    running.shutdown(Duration::from_secs(5)).await;

    // The hour goes by. The low ones were due a little earlier.
    by_hand(
        pool,
        "update seriatim.job set run_at = t, turn_at = t from \
           (select id, now() - make_interval(secs => case when priority = 0 then 9 else 1 end) t \
            from seriatim.job) due where due.id = job.id",
    )
    .await;
    let ran = Jobs::new(pool).drain(queue("q").concurrency(1), run()).await.unwrap();
    assert_eq!(ran, 4);
    let entries = &log.entries()[1..];
    let of = |group: bool| {
        let mut entries = entries.to_vec();
        entries.retain(|entry| entry.starts_with('-') != group);
        entries
    };
    assert_eq!(of(true), ["high 1", "low 1"]);
    assert_eq!(of(false), ["- \"high\"", "- \"low\""]);
    assert_eq!(client.counts(pool, "q").await.unwrap().unfinished(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_retry_keeps_its_priority_and_is_not_early() {
    let database = database().await;
    let pool = database.pool();
    let log = Log::default();
    let jobs = [job_of("q", "high", 1), NewJob::new("q", &1)];
    seriatim::enqueue_many(pool, jobs).await.unwrap();
    by_hand(pool, "update seriatim.job set priority = 9").await;
    let run = handler_with(log.clone(), async |log, job, _| {
        log.add(format!("{} {}", job.group().unwrap_or("-"), job.attempt()));
        Err(JobError::retry("not yet"))
    });
    // Less than a priority aging of 90 s, and far more than this test takes.
    let minute = Duration::from_mins(1);
    let retry = RetryPolicy::new(9).base(minute).cap(minute).jitter(0.0);
    let options = queue("q").retry(retry);
    let _running = serve(&database, 6, options, run).await;
    eventually(
        pool,
        "select sum(aging_priority) from seriatim.queue_group where ready_at > now()",
        Some(9_i64),
    )
    .await;
    until_jobs(
        pool,
        "turn_at = run_at and run_at > now() \
         and group_id is null and attempts = 1",
        1,
    )
    .await;
    // Others are served meanwhile.
    let before = log.entries().len();
    assert_eq!(before, 2, "{:?}", log.entries());
    by_hand(
        pool,
        "update seriatim.job set max_attempts = 2, run_at = now(), turn_at = now(); \
                   update seriatim.queue_group set ready_at = now()",
    )
    .await;
    drained(pool, "q").await;
    let mut ran = log.entries().split_off(before);
    ran.sort();
    assert_eq!(ran, ["- 2", "high 2"]);
    nothing_remains(pool).await;
}
