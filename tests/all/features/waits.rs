//! How long jobs wait, and for what: their lane, or a slot. Times are set by SQL, so that a slow
//! machine changes little.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use seriatim::receive::Receive;
use seriatim::testing::TestDatabase;
use seriatim::{ActiveJob, Client, Hold, JobError, NewJob, OutOfAttempts, QueueOptions};
use sqlx::PgPool;

use crate::support::{
    STARTED, by_hand, database, drained, ended, enqueue, handler_with, operator, processor, queue,
    sample, started, until_groups, until_jobs, value,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_mins(1))];
/// More than a busy machine takes for a test.
const SLACK: f64 = 20.0;
/// Maximum difference between the server's clock and the process's, in seconds.
const CLOCKS: f64 = 10.0;

/// The waits of an attempt in seconds, and when it began by the server's clock.
#[derive(Debug, Clone)]
struct Seen {
    data: Value,
    lane: f64,
    slot: f64,
}

#[derive(Clone)]
struct Witness {
    pool: PgPool,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Witness {
    fn new(pool: &PgPool) -> Self {
        Self { pool: pool.clone(), seen: Arc::default() }
    }

    /// Notes the waits of an attempt. Their sum is from when it was due until it began.
    async fn see(&self, job: &ActiveJob, data: Value, due: DateTime<Utc>) {
        let now: DateTime<Utc> = value(&self.pool, "select clock_timestamp()").await;
        let (lane, slot) = (job.lane_wait().as_secs_f64(), job.slot_wait().as_secs_f64());
        let whole = (now - due).as_seconds_f64();
        assert!((lane + slot - whole).abs() < CLOCKS, "{lane} + {slot} is not {whole}: {data}");
        self.seen.lock().unwrap().push(Seen { data, lane, slot });
    }

    /// Checks the waits of the attempts with this data: about `lane` and `slot` seconds.
    fn expect(&self, data: &Value, lane: f64, slot: f64) {
        let seen = self.seen.lock().unwrap();
        let of = seen.iter().rfind(|seen| seen.data == *data);
        let Seen { lane: in_lane, slot: for_slot, .. } = of.unwrap_or_else(|| panic!("no {data}"));
        let near = |got: f64, want: f64| (want - CLOCKS..want + SLACK).contains(&got);
        assert!(near(*in_lane, lane), "lane: {in_lane} s, not {lane}: {data} of {seen:?}");
        assert!(near(*for_slot, slot), "slot: {for_slot} s, not {slot}: {data} of {seen:?}");
    }
}

async fn run(database: &TestDatabase, options: QueueOptions) -> Witness {
    let pool = database.pool();
    let witness = Witness::new(pool);
    let name = options.name().to_owned();
    let handler = handler_with(witness.clone(), async |witness: Witness, job, data| {
        let due = job.created_at().max(job.run_at());
        witness.see(job, data.clone(), due).await;
        if data == json!("fails") && job.attempt() == 1 {
            return Err(JobError::retry("not yet"));
        }
        Ok(json!(null))
    });
    let running = processor(database, 10).await.queue(options, handler).build().unwrap();
    let running = running.start().await.unwrap();
    drained(pool, &name).await;
    running.shutdown(Duration::from_secs(5)).await;
    witness
}

/// Lets the queued jobs of which a condition holds be enqueued so many minutes earlier.
async fn age(pool: &PgPool, minutes: u32, condition: &str) {
    let by = format!("interval '{minutes} min'");
    let sql = format!(
        "update seriatim.job set created_at = created_at - {by}, run_at = run_at - {by}, \
         turn_at = turn_at - {by} where {condition}"
    );
    by_hand(pool, sql).await;
}

#[tokio::test]
async fn jobs_of_a_long_lane_wait_for_the_lane_and_its_head_for_a_slot() {
    for hold in sample(HOLDS) {
        // By the default, claimed again, followers of one turn.
        for slice in [None, Some(Duration::ZERO), Some(Duration::from_secs(50))] {
            let database = database().await;
            let pool = database.pool();
            for n in 0..4 {
                enqueue(pool, "q", "long", n).await;
            }
            age(pool, 10, "true").await;
            let mut options = queue("q").hold(hold);
            if let Some(slice) = slice {
                options = options.time_slice(slice);
            }
            let witness = run(&database, options).await;
            witness.expect(&json!(0), 0.0, 600.0);
            for n in 1..4 {
                witness.expect(&json!(n), 600.0, 0.0);
            }
        }
    }
}

#[tokio::test]
async fn heads_of_many_groups_and_jobs_without_one_wait_for_slots() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        for n in 0..5 {
            enqueue(pool, "q", &format!("g{n}"), n).await;
        }
        for n in 5..10 {
            seriatim::enqueue(pool, NewJob::new("q", &n)).await.unwrap();
        }
        age(pool, 10, "true").await;
        let witness = run(&database, queue("q").hold(hold).concurrency(1)).await;
        (0..10).for_each(|n| witness.expect(&json!(n), 0.0, 600.0));
    }
}

#[tokio::test]
async fn the_aging_of_a_priority_is_no_wait() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let of = |data: &str, group: &str| NewJob::new("q", &data).group(group).priority(9);
        for (data, group) in [("head", "a"), ("behind", "a")] {
            seriatim::enqueue(pool, of(data, group)).await.unwrap();
        }
        seriatim::enqueue(pool, NewJob::new("q", &"alone").priority(9)).await.unwrap();
        age(pool, 10, "true").await;
        let witness = run(&database, queue("q").hold(hold).time_slice(Duration::ZERO)).await;
        witness.expect(&json!("head"), 0.0, 600.0);
        witness.expect(&json!("alone"), 0.0, 600.0);
        witness.expect(&json!("behind"), 600.0, 0.0);
    }
}

/// The rows of groups that sleep until their heads are due age when those are.
#[tokio::test]
async fn a_delayed_job_waits_from_when_it_is_due() {
    let database = database().await;
    let pool = database.pool();
    for priority in [0, 9] {
        let job = NewJob::new("q", &priority).group(format!("g{priority}")).priority(priority);
        seriatim::enqueue(pool, job.delay(Duration::from_hours(1))).await.unwrap();
    }
    age(pool, 59, "true").await;
    let handler = handler_with((), async |(), _, _| Ok(json!(null)));
    let running = processor(&database, 5).await.queue(queue("q"), handler).build().unwrap();
    let running = running.start().await.unwrap();
    // The worker reads the heads, and lets their groups sleep.
    by_hand(pool, "update seriatim.job set turn_at = now() where flagged").await;
    until_groups(pool, "ready_at > now()", 2).await;
    running.shutdown(Duration::from_secs(5)).await;
    let by = "interval '4 min'";
    by_hand(pool, format!("update seriatim.queue_group set ready_at = ready_at - {by}")).await;
    by_hand(
        pool,
        format!("update seriatim.job set run_at = run_at - {by}, turn_at = turn_at - {by}"),
    )
    .await;
    let witness = run(&database, queue("q")).await;
    witness.expect(&json!(0), 0.0, 180.0);
    witness.expect(&json!(9), 0.0, 180.0);
}

#[tokio::test]
async fn a_retried_job_waits_from_when_it_is_due_again() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        enqueue(pool, "q", "a", "fails").await;
        enqueue(pool, "q", "a", "behind").await;
        age(pool, 10, "true").await;
        let witness = run(&database, queue("q").hold(hold)).await;
        // The second attempt.
        witness.expect(&json!("fails"), 0.0, 0.0);
        witness.expect(&json!("behind"), 600.0, 0.0);
        assert!(witness.seen.lock().unwrap()[0].slot > 590.0);
    }
}

#[tokio::test]
async fn a_halt_is_a_wait_for_the_lane() {
    let database = database().await;
    let pool = database.pool();
    let dead = enqueue(pool, "q", "a", "dead").await;
    enqueue(pool, "q", "a", "behind").await;
    age(pool, 10, "true").await;
    let options = || queue("q").out_of_attempts(OutOfAttempts::Halt);
    let handler = handler_with((), async |(), _, _| Err(JobError::fail("no")));
    let running = processor(&database, 5).await.queue(options(), handler).build().unwrap();
    let running = running.start().await.unwrap();
    ended(pool, dead).await;
    until_groups(pool, "halted_at is not null", 1).await;
    running.shutdown(Duration::from_secs(5)).await;
    operator().unhalt_group(pool, "q", "a").await.unwrap();
    run(&database, options()).await.expect(&json!("behind"), 600.0, 0.0);
}

/// A claim cannot see when a pause ended: the group has been ready since its head was due.
#[tokio::test]
async fn a_pause_is_a_wait_for_a_slot() {
    let database = database().await;
    let pool = database.pool();
    operator().pause_group(pool, "q", "a").await.unwrap();
    enqueue(pool, "q", "a", "paused").await;
    age(pool, 10, "true").await;
    let idle = handler_with((), async |(), _, _| Ok(json!(null)));
    let running = processor(&database, 5).await.queue(queue("q"), idle).build().unwrap();
    let running = running.start().await.unwrap();
    until_groups(pool, "ready_at = 'infinity'", 1).await;
    running.shutdown(Duration::from_secs(5)).await;
    operator().resume_group(pool, "q", "a").await.unwrap();
    run(&database, queue("q")).await.expect(&json!("paused"), 0.0, 600.0);
}

/// A group that rests until its pause ends is ready then, and not before.
#[tokio::test]
async fn a_groups_pause_that_ends_by_itself_is_a_wait_for_the_lane() {
    let database = database().await;
    let pool = database.pool();
    let end = value::<DateTime<Utc>>(pool, "select clock_timestamp() + interval '3 s'").await;
    operator().pause_group_until(pool, "q", "a", end).await.unwrap();
    enqueue(pool, "q", "a", "paused").await;
    run(&database, queue("q")).await.expect(&json!("paused"), 3.0, 0.0);
}

/// The attempt of a lost claim waits since that could be taken over.
#[tokio::test]
async fn a_take_over_waits_since_it_could_be() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let (pool, client) = (database.pool(), Client::default());
        enqueue(pool, "q", "a", "grouped").await;
        seriatim::enqueue(pool, NewJob::new("q", &"alone")).await.unwrap();
        age(pool, 10, "true").await;
        let lost = Receive::new("q").max(2).visibility(Duration::ZERO);
        assert_eq!(client.receive(pool, lost).await.unwrap().len(), 2);
        until_jobs(pool, STARTED, 2).await;
        let witness = Witness::new(pool);
        let handler = handler_with(witness.clone(), async |witness: Witness, job, data| {
            let whole = job.lane_wait() + job.slot_wait();
            let (lane, slot) = (job.lane_wait().as_secs_f64(), job.slot_wait().as_secs_f64());
            assert!(whole < Duration::from_mins(1), "{whole:?}");
            witness.seen.lock().unwrap().push(Seen { data, lane, slot });
            Ok(json!(null))
        });
        let running = processor(&database, 10).await.queue(queue("q").hold(hold), handler);
        let running = started(running).await;
        drained(pool, "q").await;
        running.shutdown(Duration::from_secs(5)).await;
        witness.expect(&json!("grouped"), 0.0, 0.0);
        witness.expect(&json!("alone"), 0.0, 0.0);
    }
}
