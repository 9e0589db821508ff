//! A process whose processor makes no progress ends itself and says why; one that is merely busy
//! goes on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::json;
use seriatim::JobStatus;
use seriatim::observe::{Activity, BackgroundError, Stall, Watchdog};
use seriatim::testing::{Server, TestDatabase};
use tokio::process::Command;
use tokio::sync::oneshot;

use crate::support::worker_process::{Settings, WorkerProcess, announced, heard};
use crate::support::{
    Gate, Log, PATIENCE, by_hand, database, drained, ended, enqueue, handler, handler_with,
    operator, processor, queue, serve, size, started,
};

/// A worker with a watchdog, and so many threads for its tasks.
async fn watched(
    database: &TestDatabase,
    limit: Duration,
    threads: u32,
    log: &Log,
) -> WorkerProcess {
    let settings = Settings { watchdog: Some(limit), ..Settings::new(database.url(), &["q"]) };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("TOKIO_WORKER_THREADS", threads.to_string());
    let worker = WorkerProcess::start_as("worker", command, &settings, log);
    worker.is_ready(log).await;
    worker
}

/// Runs the jobs that a worker left. Returns how many of them it had begun.
async fn run_elsewhere(database: &TestDatabase, jobs: &[i64]) -> usize {
    let mut begun = 0;
    let run = handler(async |job, _| Ok(json!(job.attempt())));
    let running = serve(database, 4, queue("q"), run).await;
    for id in jobs {
        let job = ended(database.pool(), *id).await;
        assert_eq!(job.status, JobStatus::Succeeded, "{job:?}");
        begun += usize::from(job.attempts == 2);
    }
    running.shutdown(Duration::from_secs(5)).await;
    begun
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_block_the_runtime_end_their_process() {
    let database = database().await;
    let log = Log::default();
    let mut worker = watched(&database, Duration::from_secs(2), 2, &log).await;
    let mut jobs = Vec::new();
    for group in ["a", "b", "c", "d"] {
        jobs.push(enqueue(database.pool(), "q", group, "block").await);
    }
    assert_eq!(worker.ended().await, Some(Watchdog::EXIT_CODE));
    let logged = heard(&log, |said| said.starts_with("worker: log: ")).await;
    println!("{logged}");
    assert!(logged.contains("ERROR"), "{logged}");
    assert!(logged.contains("the watchdog ends this process: the runtime has polled no task"));
    heard(&log, |said| said.starts_with("worker: error: Stalled(Runtime {")).await;
    assert!(run_elsewhere(&database, &jobs).await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_that_a_blocking_handler_holds_up_ends_the_process() {
    let database = database().await;
    let log = Log::default();
    let worker = watched(&database, Duration::from_mins(10), 4, &log).await;
    let job = enqueue(database.pool(), "q", "a", "block").await;
    announced(&log, "a", 1).await;
    assert_eq!(worker.end_with().await, Some(Watchdog::EXIT_CODE));
    let logged = heard(&log, |said| said.starts_with("worker: log: ")).await;
    println!("{logged}");
    let reason = "the shutdown has not ended 1s after its deadline of 100ms (running handlers: 1)";
    assert!(logged.contains(reason), "{logged}");
    assert_eq!(run_elsewhere(&database, &[job]).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_frozen_goes_on() {
    let database = database().await;
    let log = Log::default();
    let worker = watched(&database, Duration::from_secs(2), 2, &log).await;
    for group in size(&["a"][..], &["a", "b"][..]) {
        worker.signal("STOP").await;
        // Longer than the watchdog waits.
        tokio::time::sleep(Duration::from_secs(3)).await;
        worker.signal("CONT").await;
        enqueue(database.pool(), "q", group, "go").await;
        announced(&log, group, 1).await;
    }
    drained(database.pool(), "q").await;
    worker.end().await;
}

/// Takes down what a watchdog says instead of ending the tests, and tells when it is no more.
fn kept(limit: Duration) -> (Watchdog, Arc<Mutex<Vec<Stall>>>, oneshot::Receiver<()>) {
    let stalls = Arc::<Mutex<Vec<Stall>>>::default();
    let (lives, gone) = oneshot::channel();
    let watchdog = Watchdog::new(limit).end_with({
        let stalls = Arc::clone(&stalls);
        move |stall| {
            let _ = &lives;
            stalls.lock().unwrap().push(stall.clone());
        }
    });
    (watchdog, stalls, gone)
}

#[tokio::test(flavor = "multi_thread")]
async fn long_handlers_a_pause_and_a_server_that_is_away_are_no_stall() {
    let server = Server::start().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let pool = database.pool();
    let (watchdog, stalls, gone) = kept(Duration::from_secs(2));
    let (log, gate) = (Log::default(), Gate::default());
    let run = {
        handler_with((log.clone(), gate.clone()), async |(log, gate), job, _| {
            log.add(job.queue());
            gate.passed().await;
            Ok(json!(null))
        })
    };
    let idle = handler(async |_, _| Ok(json!(null)));
    let builder = processor(&database, 8).await.queue(queue("q"), run).queue(queue("idle"), idle);
    let running = started(builder.watchdog(watchdog)).await;
    operator().pause_queue(pool, "idle").await.unwrap();
    for group in ["a", "b", "c", "d", "e"] {
        enqueue(pool, "q", group, 1).await;
    }
    enqueue(pool, "idle", "g", 1).await;
    log.wait_for(4).await;
    // All slots are full for longer than the watchdog waits, then there is no server for as long. A
    // short run has both at once.
    tokio::time::sleep(Duration::from_secs(size(0, 3))).await;
    server.stop_immediately().await.unwrap();
    tokio::time::sleep(Duration::from_secs(size(3, 4))).await;
    server.start_again().await.unwrap();
    gate.pass(1_000);
    drained(pool, "q").await;
    assert_eq!(*stalls.lock().unwrap(), []);
    let report = running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(report.still_running, 0);
    // Dropped with the watchdog.
    tokio::time::timeout(PATIENCE, gone).await.expect("it ends with its processor").unwrap_err();
    assert_eq!(*stalls.lock().unwrap(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_loop_that_is_blocked_alone_is_named() {
    let database = database().await;
    let pool = database.pool();
    let (watchdog, stalls, gone) = kept(Duration::from_secs(2));
    let (go_on, waits) = mpsc::channel::<()>();
    let (waits, blocked) = (Mutex::new(waits), AtomicBool::new(false));
    let said = Log::default();
    let log = said.clone();
    let run = handler(async |_, _| Ok(json!(null)));
    let running = started(
        processor(&database, 8)
            .await
            .queue(queue("q"), run)
            .on_error(move |error| match error {
                // Called by the loop itself.
                BackgroundError::NotMigrated { .. } if !blocked.swap(true, Ordering::SeqCst) => {
                    let _ = waits.lock().unwrap().recv();
                }
                BackgroundError::Stalled(stall) => log.add(stall.to_string()),
                _ => {}
            })
            .watchdog(watchdog),
    )
    .await;
    // The thread that is blocked may be the one that was to wait for timers. A task from outside
    // wakes another one.
    let (runtime, over) = (tokio::runtime::Handle::current(), Arc::new(AtomicBool::new(false)));
    let waker = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            while !over.load(Ordering::SeqCst) {
                runtime.spawn(async {});
                // Often enough for the loops to be polled in time.
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    by_hand(pool, "alter schema seriatim rename to away").await;
    let reasons = said.wait_for(1).await;
    println!("{reasons:?}");
    tokio::time::timeout(PATIENCE, gone).await.expect("it has said it").unwrap_err();
    over.store(true, Ordering::SeqCst);
    waker.join().unwrap();
    drop(go_on);
    let stalls = stalls.lock().unwrap().clone();
    assert!(
        matches!(&stalls[..], [Stall::Loop { queue, doing: Activity::Claiming, .. }] if queue == "q"),
        "{stalls:?}"
    );
    by_hand(pool, "alter schema away rename to seriatim").await;
    running.shutdown(Duration::from_secs(5)).await;
}
