//! Queues that share the slots of a processor, by their weights.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use seriatim::testing::TestDatabase;
use seriatim::{Hold, ProcessorBuilder, QueueOptions, Running};
use sqlx::PgPool;

use crate::support::{
    FnHandler, Gate, Log, database, drained, enqueue, handler_with, job_of, processor, queue, size,
    started,
};

/// The handlers of these tests: they log their start, and wait at a gate if there is one.
#[derive(Clone, Default)]
struct Bench {
    starts: Log,
    at_once: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    gate: Option<Gate>,
}

impl Bench {
    fn handler(&self, queue: &'static str) -> FnHandler {
        handler_with((self.clone(), queue), async |(bench, queue), _, _| {
            let at_once = bench.at_once.fetch_add(1, Ordering::SeqCst) + 1;
            bench.most.fetch_max(at_once, Ordering::SeqCst);
            bench.starts.add(queue);
            if let Some(gate) = &bench.gate {
                gate.passed().await;
            }
            bench.at_once.fetch_sub(1, Ordering::SeqCst);
            Ok(json!(null))
        })
    }

    /// A processor of queues with these options, whose pool has a connection for each slot, and for
    /// claims of leases.
    async fn start(
        &self,
        database: &TestDatabase,
        slots: usize,
        queues: Vec<(&'static str, QueueOptions)>,
    ) -> Running {
        started(self.builder(database, slots, queues).await).await
    }

    async fn builder(
        &self,
        database: &TestDatabase,
        slots: usize,
        queues: Vec<(&'static str, QueueOptions)>,
    ) -> ProcessorBuilder {
        let leased = |(_, options): &&(_, QueueOptions)| format!("{options:?}").contains("Lease(");
        let connections = slots + queues.iter().filter(leased).count();
        let builder = processor(database, u32::try_from(connections).unwrap()).await;
        queues.into_iter().fold(builder.slots(slots), |builder, (name, options)| {
            builder.queue(options, self.handler(name))
        })
    }
}

/// Jobs of so many groups.
async fn fill(pool: &PgPool, queue: &str, jobs: usize, groups: usize) {
    let jobs = (0..jobs).map(|n| job_of(queue, &format!("{}", n % groups), n));
    seriatim::enqueue_many(pool, jobs).await.unwrap();
}

fn count(starts: &[String], queue: &str) -> usize {
    starts.iter().filter(|start| *start == queue).count()
}

/// The widest that the shares of two queues drift apart over any span of these starts.
fn drift(starts: &[String], (a, weight_a): (&str, u32), (b, weight_b): (&str, u32)) -> f64 {
    let (mut at, mut low, mut high) = (0.0_f64, 0.0_f64, 0.0_f64);
    for start in starts {
        if start == a {
            at += 1.0 / f64::from(weight_a);
        } else if start == b {
            at -= 1.0 / f64::from(weight_b);
        }
        (low, high) = (low.min(at), high.max(at));
    }
    high - low
}

/// Checks the bound that `ProcessorBuilder::slots` states, for each two queues and every span of
/// the starts.
fn shared_by_weight(starts: &[String], slots: u32, queues: &[(&str, u32)]) -> Result<(), String> {
    for (place, a) in queues.iter().enumerate() {
        for b in &queues[place + 1..] {
            let drift = drift(starts, *a, *b);
            let bound = f64::from(1 + slots) * (1.0 / f64::from(a.1) + 1.0 / f64::from(b.1));
            println!(
                "{} starts of {} (weight {}) beside {} of {} ({}): drift {drift:.2}, bound {bound:.2}",
                count(starts, a.0),
                a.0,
                a.1,
                count(starts, b.0),
                b.0,
                b.1
            );
            if drift > bound {
                return Err(format!("{a:?} and {b:?} drift apart by {drift:.2}, over {bound:.2}"));
            }
        }
    }
    Ok(())
}

/// Tries three times: a queue whose claim a late machine holds up has nothing to start meanwhile.
async fn once_of_three(round: impl AsyncFn() -> Result<(), String>) {
    let mut failed = Vec::new();
    while let Err(why) = round().await {
        failed.push(why);
        assert!(failed.len() < 3, "{failed:?}");
    }
}

/// Not before all groups are ready do claims find all work there is.
const WARM_UP: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn two_queues_with_deep_backlogs_start_jobs_by_their_weights() {
    once_of_three(two_queues).await;
}

async fn two_queues() -> Result<(), String> {
    let database = database().await;
    let pool = database.pool();
    let counted = size(400, 1_000);
    // Three quarters of all starts are heavy, and neither queue runs empty.
    fill(pool, "heavy", (WARM_UP + counted) * 3 / 4 + 75, 100).await;
    fill(pool, "light", (WARM_UP + counted) / 4 + 125, 100).await;
    let bench = Bench::default();
    let queues = vec![("heavy", queue("heavy").weight(3)), ("light", queue("light"))];
    let _running = bench.start(&database, 4, queues).await;
    let starts = bench.starts.wait_for(WARM_UP + counted).await;
    let starts = &starts[WARM_UP..WARM_UP + counted];
    shared_by_weight(starts, 4, &[("heavy", 3), ("light", 1)])?;
    let (heavy, part) = (count(starts, "heavy"), counted * 3 / 4);
    assert!(heavy.abs_diff(part) <= 10, "{heavy} of {counted} starts, not three quarters");
    assert!(bench.most.load(Ordering::SeqCst) <= 4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_of_both_holds_share_and_an_idle_one_leaves_its_part() {
    once_of_three(queues_of_both_holds).await;
}

async fn queues_of_both_holds() -> Result<(), String> {
    let database = database().await;
    let pool = database.pool();
    // Five of eight starts are of the first one, so that its last is far from those that count.
    let (jobs, before, after) = size((200, 150, 150), (300, 300, 300));
    fill(pool, "a", jobs, 90).await;
    fill(pool, "b", 2 * jobs, 90).await;
    fill(pool, "c", 2 * jobs, 90).await;
    let bench = Bench::default();
    let leased = queue("b").weight(2).hold(Hold::Lease(Duration::from_secs(30)));
    let queues = vec![("a", queue("a").weight(5)), ("b", leased), ("c", queue("c").weight(1))];
    let _running = bench.start(&database, 3, queues).await;
    bench.starts.wait("the first queue is done", |starts| count(starts, "a") == jobs).await;
    let done = bench.starts.entries().iter().rposition(|start| start == "a").unwrap();
    let starts = bench.starts.wait_for(done + after).await;
    // Its last few jobs are those of groups that were not ready at the begin. They come one by one.
    shared_by_weight(&starts[WARM_UP..WARM_UP + before], 3, &[("a", 5), ("b", 2), ("c", 1)])?;
    shared_by_weight(&starts[done + 10..done + after], 3, &[("b", 2), ("c", 1)])?;
    assert!(bench.most.load(Ordering::SeqCst) <= 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_alone_with_work_has_all_slots() {
    let database = database().await;
    fill(database.pool(), "light", 20, 20).await;
    let bench = Bench { gate: Some(Gate::default()), ..Bench::default() };
    let queues =
        vec![("heavy", queue("heavy").weight(100)), ("light", queue("light").concurrency(10))];
    let _running = bench.start(&database, 3, queues).await;
    bench.starts.wait_for(3).await;
    // The queue has room left, but the processor has none. A heavy job waits for a slot too.
    enqueue(database.pool(), "heavy", "g", 1).await;
    bench.gate.as_ref().unwrap().pass(1);
    let starts = bench.starts.wait_for(4).await;
    assert_eq!(starts[..3], ["light"; 3]);
    bench.gate.as_ref().unwrap().pass(20);
    drained(database.pool(), "light").await;
    drained(database.pool(), "heavy").await;
    assert_eq!(bench.most.load(Ordering::SeqCst), 3);
}

/// No poll helps: a worker that waits for a slot is woken when one frees.
#[tokio::test(flavor = "multi_thread")]
async fn one_slot_serves_three_queues_that_wait_for_it() {
    let database = database().await;
    let pool = database.pool();
    for name in ["a", "b", "c"] {
        fill(pool, name, 200, 1).await;
    }
    let bench = Bench { gate: Some(Gate::default()), ..Bench::default() };
    let queues = ["a", "b", "c"].map(|name| (name, queue(name).concurrency(1).weight(1))).to_vec();
    let builder = bench.builder(&database, 1, queues).await;
    let _running = started(builder.poll_interval(Duration::from_hours(1))).await;
    // Until all three want the slot.
    let gate = bench.gate.as_ref().unwrap();
    let mut begun = 1;
    while !["a", "b", "c"].iter().all(|queue| count(&bench.starts.entries(), queue) > 0) {
        bench.starts.wait_for(begun).await;
        gate.pass(1);
        begun += 1;
    }
    gate.pass(100);
    let starts = bench.starts.wait_for(begun + 80).await;
    assert_eq!(bench.most.load(Ordering::SeqCst), 1);
    // Each has one group, so that none has a due job while its own one runs.
    shared_by_weight(&starts[begun..begun + 80], 1, &[("a", 1), ("b", 1), ("c", 1)]).unwrap();
}

/// A queue of one group, or with one slot of its own, has nothing to claim at the moment when its
/// job ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_serial_queue_has_its_share_of_one_slot() {
    let database = database().await;
    let pool = database.pool();
    fill(pool, "heavy", 300, 1).await;
    fill(pool, "light", 300, 50).await;
    let bench = Bench::default();
    let queues =
        vec![("heavy", queue("heavy").concurrency(1).weight(4)), ("light", queue("light"))];
    let _running = bench.start(&database, 1, queues).await;
    let starts = bench.starts.wait_for(250).await;
    // Not the bound of `shared_by_weight`: that is for queues that always have something to claim.
    // On a busy machine a settle may take longer than the slot is kept.
    let heavy = count(&starts[50..250], "heavy");
    assert!((145..=170).contains(&heavy), "{heavy} of 200, 160 are its share, half without it");
}

/// The slots of a database that is away for a while come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_fails_gives_its_slots_back() {
    let database = database().await;
    let pool = database.pool();
    crate::support::by_hand(pool, "alter schema seriatim rename to away").await;
    let bench = Bench::default();
    let errors = crate::support::Errors::default();
    let queues = ["a", "b"].map(|name| (name, queue(name))).to_vec();
    let builder = errors.of(bench.builder(&database, 1, queues).await);
    let _running =
        builder.maintenance_interval(None).presence(false).build().unwrap().start_when_ready();
    let both = |entries: &[String]| {
        ["\"a\"", "\"b\""].iter().all(|name| entries.iter().any(|entry| entry.contains(name)))
    };
    errors.0.wait("claims of both failed", both).await;
    crate::support::by_hand(pool, "alter schema away rename to seriatim").await;
    for name in ["a", "b"] {
        fill(pool, name, 10, 5).await;
    }
    drained(pool, "a").await;
    drained(pool, "b").await;
    assert_eq!(bench.most.load(Ordering::SeqCst), 1);
}
