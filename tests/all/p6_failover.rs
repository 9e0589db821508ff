//! P6: what a dead worker, a dead session or a dead server held moves on, fast and by itself.

use std::time::{Duration, Instant};

use crate::support::{Log, database, enqueue, eventually, nothing_remains, value};
use crate::worker_process::{Settings, WorkerProcess, announced};

/// What DESIGN promises for a worker or a session that is killed.
const PROMISED: Duration = Duration::from_secs(3);

/// The middle one: a single figure may be spoiled by whatever else the machine does.
fn median(mut figures: Vec<Duration>) -> Duration {
    figures.sort();
    figures[figures.len() / 2]
}

fn promised(what: &str, figures: Vec<Duration>) {
    println!("{what}: {figures:.2?}");
    let median = median(figures);
    assert!(median <= PROMISED, "{what} took {median:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_groups_move_on_within_three_seconds() {
    let database = database().await;
    let pool = database.pool();
    let settings = Settings::new(database.url(), &["q"]);
    let log = Log::default();
    let mut doomed = WorkerProcess::start("worker 0", &settings, &log);
    doomed.is_ready(&log).await;
    let (mut idle, mut busy, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..3 {
        let [hangs, queries, new] =
            ["hangs", "queries", "new"].map(|what| format!("{what} {round}").replace(' ', "_"));
        enqueue(pool, "q", &hangs, "hang").await;
        enqueue(pool, "q", &queries, "query").await;
        let held = [
            announced(&log, &hangs, 1).await,
            announced(&log, &queries, 1).await,
        ];
        // The leases of the claims run out while the locks hold.
        eventually(
            pool,
            "select bool_and(ready_at < clock_timestamp()) from seriatim.queue_group",
            true,
        )
        .await;
        eventually(
            pool,
            "select count(*) from pg_stat_activity where wait_event = 'PgSleep'",
            1_i64,
        )
        .await;
        enqueue(pool, "q", &new, "hang").await;
        // This one's lease has not run out.
        announced(&log, &new, 1).await;
        let next = WorkerProcess::start(format!("worker {}", round + 1), &settings, &log);
        next.is_ready(&log).await;

        let killed = Instant::now();
        assert!(held.iter().all(|held| held.worker == doomed.name()));
        doomed.kill().await;
        tokio::join!(
            async {
                announced(&log, &hangs, 2).await;
                idle.push(killed.elapsed());
            },
            async {
                announced(&log, &queries, 2).await;
                busy.push(killed.elapsed());
            },
            async {
                announced(&log, &new, 2).await;
                fresh.push(killed.elapsed());
            },
        );
        doomed = next;
    }
    promised("worker killed, handler between queries", idle);
    promised("worker killed, handler in a query", busy);
    promised("worker killed soon after its claim", fresh);
    nothing_remains(pool).await;
    let lost: i64 = value(
        pool,
        "select count(*) from seriatim.job where attempts <> 2 or status <> 'succeeded'",
    )
    .await;
    assert_eq!(lost, 0);
    doomed.end().await;
    database.remove().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_sessions_group_moves_on_within_three_seconds() {
    let database = database().await;
    let pool = database.pool();
    let settings = Settings::new(database.url(), &["q"]);
    let log = Log::default();
    let worker = WorkerProcess::start("worker", &settings, &log);
    let (mut idle, mut busy) = (Vec::new(), Vec::new());
    for round in 0..3 {
        for (act, figures) in [("hang", &mut idle), ("query", &mut busy)] {
            let group = format!("{act}_{round}");
            enqueue(pool, "q", &group, act).await;
            let held = announced(&log, &group, 1).await;
            if act == "query" {
                eventually(
                    pool,
                    "select count(*) from pg_stat_activity where wait_event = 'PgSleep'",
                    1_i64,
                )
                .await;
            }
            let killed = Instant::now();
            let pid = held.pid;
            assert!(value::<bool>(pool, format!("select pg_terminate_backend({pid})")).await);
            announced(&log, &group, 2).await;
            figures.push(killed.elapsed());
        }
    }
    promised("session terminated, handler between queries", idle);
    promised("session terminated, handler in a query", busy);
    nothing_remains(pool).await;
    worker.end().await;
    database.remove().await.unwrap();
}
