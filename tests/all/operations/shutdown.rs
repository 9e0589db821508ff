//! Ending a processor: running jobs end or are given back, and the report says which.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::testing::TestDatabase;
use seriatim::{ActiveJob, FailureKind, JobError, JobStatus, NewJob, Processor, Running};
use sqlx::PgPool;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio_util::sync::CancellationToken;

use crate::support::{
    AwakeInstant, Errors, Log, PATIENCE, by_hand, database, drained, ended, enqueue, eventually,
    handler, handler_with, job, job_of, long, nothing_remains, processor, queue, started,
};

#[derive(Clone, Default)]
struct Bench {
    log: Log,
    go: CancellationToken,
    unblock: Arc<AtomicBool>,
    errors: Errors,
}

impl Bench {
    async fn act(self, job: &mut ActiveJob, data: Value) -> Result<Value, JobError> {
        let what = data.as_str().unwrap_or_default();
        println!("{what} begins");
        self.log.add(format!("{what} {}", job.attempt()));
        match (what, job.attempt()) {
            ("waits", _) => self.go.cancelled().await,
            ("quick", _) | ("stubborn" | "in a query" | "polite", 2) => {}
            ("stubborn", _) => std::future::pending().await,
            ("in a query", _) => {
                sqlx::query("select pg_sleep(600)").execute(job.tx().await?).await?;
            }
            ("polite", _) => {
                job.cancelled().await;
                Err(JobError::retry("told to stop"))?;
            }
            ("finishes when told", _) => job.cancelled().await,
            _ => {
                // Its future can neither return nor be dropped. `block_in_place`, so that the
                // tests' own tasks that happen to be queued on this thread go on.
                tokio::task::block_in_place(|| {
                    while !self.unblock.load(Ordering::Relaxed) {
                        // It blocks its thread on purpose: nothing can be awaited.
                        std::thread::sleep(Duration::from_millis(5));
                    }
                });
            }
        }
        Ok(data)
    }

    async fn start(&self, database: &TestDatabase) -> Running {
        let builder = self.errors.of(processor(database, 10).await);
        started(builder.queue(
            queue("q"),
            handler_with(self.clone(), async |bench, job, data| bench.act(job, data).await),
        ))
        .await
    }
}

/// The runtime's end waits for a blocked thread, also when the test has failed.
struct Unblock(Bench);

impl Drop for Unblock {
    fn drop(&mut self) {
        self.0.unblock.store(true, Ordering::Relaxed);
    }
}

/// A job that no worker claims, and those that were claimed before: a claim that is on its way when
/// a processor is told to stop may still bring some, which run or go back.
async fn not_claimed(pool: &PgPool) -> (i64, Vec<i64>) {
    let mut claimed = Vec::new();
    while claimed.len() < 20 {
        let id = put(pool, &format!("late {}", claimed.len()), "quick").await;
        // A worker that still claims comes within its poll of 50 ms.
        tokio::time::sleep(Duration::from_millis(250)).await;
        if job(pool, id).await.status == JobStatus::Queued {
            return (id, claimed);
        }
        claimed.push(id);
    }
    panic!("it claims on and on");
}

/// How many of these jobs have run.
async fn have_run(pool: &PgPool, jobs: &[i64]) -> u64 {
    let mut ran = 0;
    for id in jobs {
        ran += u64::from(job(pool, *id).await.status == JobStatus::Succeeded);
    }
    ran
}

async fn put(pool: &PgPool, group: &str, data: &str) -> i64 {
    let job = job_of("q", group, data).max_attempts(1);
    seriatim::enqueue(pool, job).await.unwrap().id()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_running_jobs_and_claims_no_more() {
    let database = database().await;
    let (pool, bench) = (database.pool(), Bench::default());
    let running = bench.start(&database).await;
    let early = put(pool, "e", "quick").await;
    ended(pool, early).await;
    let waits = [put(pool, "g", "waits").await, put(pool, "h", "waits").await];
    bench.log.wait_for(3).await;
    let behind = put(pool, "g", "quick").await;
    let mut shutdown = Box::pin(running.shutdown(Duration::from_mins(1)));
    assert!(futures::poll!(&mut shutdown).is_pending());
    let shutdown = tokio::spawn(shutdown);
    let (late, claimed) = not_claimed(pool).await;
    assert!(!shutdown.is_finished());
    bench.go.cancel();
    let report = shutdown.await.unwrap();
    let in_time = have_run(pool, &claimed).await;
    assert_eq!(
        (report.finished, report.released, report.lost),
        (2 + in_time, 0, 0),
        "those that ran when it began"
    );
    assert_eq!(report.still_running, 0);
    for id in waits {
        assert_eq!(job(pool, id).await.status, JobStatus::Succeeded);
    }
    for id in [behind, late] {
        assert_eq!(job(pool, id).await.status, JobStatus::Queued);
    }
    let sessions = "select count(*) from pg_stat_activity where datname = current_database() \
                    and query ilike 'listen %'";
    eventually(pool, sessions, 0_i64).await;

    let running = bench.start(&database).await;
    drained(pool, "q").await;
    nothing_remains(pool).await;
    let report = running.shutdown(Duration::from_secs(5)).await;
    // The last job may still be on its way out.
    assert_eq!((report.released, report.lost, report.still_running), (0, 0, 0));
    assert_eq!(bench.errors.but_slow_checks(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_gives_jobs_back_without_holding_it_against_them() {
    let database = database().await;
    let (pool, bench) = (database.pool(), Bench::default());
    let running = bench.start(&database).await;
    let acts = ["stubborn", "in a query", "finishes when told"];
    let mut ids = Vec::new();
    for act in acts {
        ids.push(put(pool, act, act).await);
    }
    let ungrouped = NewJob::new("q", "stubborn").max_attempts(1);
    ids.push(seriatim::enqueue(pool, ungrouped).await.unwrap().id());
    bench.log.wait_for(4).await;
    let behind = put(pool, "stubborn", "quick").await;

    let begun = AwakeInstant::now();
    let report = running.shutdown(Duration::from_millis(100)).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{report:?}");
    assert_eq!((report.finished, report.released), (1, 3), "{report:?}");
    assert_eq!((report.lost, report.still_running), (0, 0), "{report:?}");
    assert_eq!(job(pool, ids[2]).await.status, JobStatus::Succeeded);
    for (n, id) in ids.iter().enumerate().filter(|(n, _)| *n != 2) {
        let job = job(pool, *id).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Queued, 1), "{n}");
        assert_eq!(job.history[0].kind, FailureKind::Released);
        assert_eq!(job.error, None);
    }
    // Their only attempt is still theirs, and they are still before what is behind them.
    let running = bench.start(&database).await;
    for (n, id) in ids.iter().enumerate().filter(|(n, _)| *n != 2) {
        let job = ended(pool, *id).await;
        assert_eq!((job.status, job.attempts), (JobStatus::Succeeded, 2), "{n}");
    }
    let next = ended(pool, behind).await;
    assert!(next.last_started_at >= job(pool, ids[0]).await.finished_at);
    nothing_remains(pool).await;
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(bench.errors.but_slow_checks(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_in_answer_to_the_deadline_is_no_failure() {
    let database = database().await;
    let (pool, bench) = (database.pool(), Bench::default());
    let running = bench.start(&database).await;
    let id = put(pool, "g", "polite").await;
    bench.log.wait_for(1).await;
    let report = running.shutdown(Duration::from_millis(50)).await;
    assert_eq!((report.finished, report.released), (0, 1), "{report:?}");
    let released = job(pool, id).await;
    assert_eq!(released.history[0].kind, FailureKind::Released);
    assert_eq!(released.error, None);
    let running = bench.start(&database).await;
    let job = ended(pool, id).await;
    assert_eq!((job.status, job.attempts), (JobStatus::Succeeded, 2));
    running.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_that_block_their_threads_count_as_still_running() {
    // A shutdown waits for 5 s before it says so.
    if !long() {
        return;
    }
    let database = database().await;
    let (pool, bench) = (database.pool(), Bench::default());
    let unblock = Unblock(bench.clone());
    let running = bench.start(&database).await;
    let waits = put(pool, "waits", "waits").await;
    let stubborn = put(pool, "stubborn", "stubborn").await;
    bench.log.wait_for(2).await;
    let blocked = [put(pool, "a", "blocks").await, put(pool, "b", "blocks").await];
    bench.log.wait_for(4).await;
    bench.go.cancel();
    ended(pool, waits).await;
    let report = running.shutdown(Duration::from_millis(100)).await;
    let said = bench.errors.0.entries();
    assert_eq!(report.still_running, 2, "{report:?} {said:?}");
    // On a machine with much else to do its hold may have been lost before.
    let its_hold = format!(" of job {stubborn} ");
    let lost = bench.errors.named("HoldLost").iter().any(|said| said.contains(&its_hold));
    assert_eq!(report.released, u64::from(!lost), "{report:?} {said:?}");
    if !lost {
        assert_eq!(job(pool, stubborn).await.status, JobStatus::Queued);
    }
    for id in blocked {
        assert_eq!(job(pool, id).await.status, JobStatus::Started);
    }
    drop(unblock);
    // They come to an end after all. No reader is left for a report.
    for id in blocked {
        let ended = crate::support::job_when(pool, id, |job| job.status != JobStatus::Started);
        ended.await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_running_claims_no_more_and_lets_its_jobs_end() {
    let database = database().await;
    let (pool, bench) = (database.pool(), Bench::default());
    let running = bench.start(&database).await;
    let waits = put(pool, "g", "waits").await;
    bench.log.wait_for(1).await;
    drop(running);
    let (late, _) = not_claimed(pool).await;
    bench.go.cancel();
    assert_eq!(ended(pool, waits).await.status, JobStatus::Succeeded);
    assert_eq!(job(pool, late).await.status, JobStatus::Queued);
    // Its sessions go too, once the last job has ended.
    let listening = "select count(*) from pg_stat_activity where datname = current_database() \
                     and query ilike 'listen %'";
    eventually(pool, listening, 0_i64).await;
}

/// The environment variable with the database that [`child`] works on.
const DATABASE: &str = "SERIATIM_TEST_SHUTDOWN";

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_told_to_end_gives_its_jobs_back() {
    for (signal, done) in [("TERM", 0), ("INT", 1)] {
        let database = database().await;
        let pool = database.pool();
        let id = put(pool, "g", "stubborn").await;
        let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args(["operations::shutdown::child", "--exact", "--ignored", "--nocapture"])
            .env(DATABASE, database.url())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // A job that is claimed may not have begun.
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while !said.contains("stubborn begins") {
            let read = tokio::time::timeout(PATIENCE, output.read_line(&mut said)).await;
            assert_ne!(read.expect("it begins").unwrap(), 0, "{said}");
        }
        let sent = std::process::Command::new("sh")
            .args(["-c", "kill -s \"$1\" \"$2\"", "sh", signal])
            .arg(child.id().unwrap().to_string())
            .status();
        assert!(sent.unwrap().success());
        let ends = async { (output.read_to_string(&mut said).await, child.wait().await) };
        let (read, status) = tokio::time::timeout(PATIENCE, ends).await.expect("it ends");
        read.unwrap();
        assert!(status.unwrap().success(), "{done} {said}");
        assert!(said.contains("released: 1"), "{said}");
        assert_eq!(job(pool, id).await.status, JobStatus::Queued);
        let listening = "select count(*) from pg_stat_activity where query ilike 'listen %' \
                         and datname = current_database()";
        // The server notices a moment after the process's end that its sessions are gone.
        crate::support::eventually(pool, listening, 0_i64).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, in a process of its own"]
async fn child() {
    let pool = PgPool::connect(&std::env::var(DATABASE).unwrap()).await.unwrap();
    let signal = tokio::spawn(seriatim::shutdown_signal());
    // The signal may come as soon as the job has started. Its handler is set by then.
    tokio::task::yield_now().await;
    let bench = Bench::default();
    let running = started(seriatim::Processor::builder(pool).queue(
        queue("q"),
        handler_with(bench, async |bench, job, data| bench.clone().act(job, data).await),
    ))
    .await;
    signal.await.unwrap().unwrap();
    let report = running.shutdown(Duration::from_millis(100)).await;
    println!("\n{report:?} {}", json!(null));
}

/// A panic in the hook is the application's. The processor goes on.
#[tokio::test]
async fn a_hook_that_panics_stops_nothing() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, "alter schema seriatim rename to away").await;
    let (said, says) = tokio::sync::mpsc::unbounded_channel();
    let mut says = says;
    let running = processor(&database, 4)
        .await
        .queue(queue("q").concurrency(2), handler(async |_, _| Ok(json!(1))))
        .on_error(move |error| {
            let _ = said.send(error.to_string());
            panic!("the hook panics");
        })
        .build()
        .unwrap()
        .start_when_ready();
    says.recv().await.unwrap();
    by_hand(pool, "alter schema away rename to seriatim").await;
    let id = enqueue(pool, "q", "g", 1).await;
    assert_eq!(ended(pool, id).await.status, seriatim::JobStatus::Succeeded);
    let _ = running.shutdown(std::time::Duration::from_secs(5)).await;
}

/// The monitor has a thread of its own, which must not outlive the runtime.
#[test]
fn no_session_outlives_the_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outer = runtime();
    let database = outer.block_on(database());
    let inner = runtime();
    inner.block_on(async {
        let pool = database.pool_with(sqlx::postgres::PgPoolOptions::new()).await.unwrap();
        enqueue(&pool, "q", "g", 1).await;
        let running =
            started(seriatim::Processor::builder(pool).queue(
                queue("q").concurrency(2),
                handler(async |_, _| std::future::pending().await),
            ))
            .await;
        // The monitor's session begins with the first job.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        drop(running);
    });
    drop(inner);
    outer.block_on(eventually(
        database.pool(),
        // But for those of the pool that asks, by what they ask: the monitor reads sessions, too.
        "select coalesce(string_agg(query, '; '), '') from pg_stat_activity where datname = current_database()
         and backend_type = 'client backend' and query not like '%string_agg(query%'",
        String::new(),
    ));
}

#[test]
fn a_runtime_that_ends_at_once_leaves_no_thread_behind() {
    let held = Arc::new(());
    let left = Arc::downgrade(&held);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let running = runtime.block_on(async {
        let pool = PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap();
        Processor::builder(pool)
            .queue(queue("q"), handler(async |_, data| Ok(data)))
            .on_error(move |_| _ = &held)
            .build()
            .unwrap()
            .start_when_ready()
    });
    // They are dropped before any task began. The processor's own thread drops what it has, too.
    drop(runtime);
    drop(running);
    let begun = std::time::Instant::now();
    while left.strong_count() > 0 {
        assert!(begun.elapsed() < PATIENCE, "the monitor's thread waits for what has ended");
        // A thread that ends has no event to wait for.
        std::thread::sleep(Duration::from_millis(10));
    }
}
