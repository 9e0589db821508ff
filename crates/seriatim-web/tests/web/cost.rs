//! The cost of the pages for the database, at a million jobs in 100,000 groups.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use seriatim::{Client, NewJob};
use seriatim_web::Access;
use sqlx::PgPool;
use tokio::time::sleep;

use crate::browser::local;
use crate::chromium::browser;
use crate::support::{ANN, Shop, act, encode, get, serve};

const GROUPS: usize = 100_000;
const JOBS: usize = 1_000_000;
/// How often each address is asked for.
const TIMES: u32 = 5;
/// The pages that are left open.
const OPENED: [&str; 6] = [
    "/",
    "/queue?name=wide",
    "/queue?name=wide&sort=wait",
    "/lane?queue=wide&group=group%20099999",
    "/stopped",
    "/failed",
];
/// How long a page is left open.
const OPEN: Duration = Duration::from_mins(1);

/// Returns the processor time of each database session of the page, as the kernel counts it.
async fn used(pool: &PgPool) -> HashMap<i32, Duration> {
    let sessions = "select pid from pg_stat_activity where application_name = 'seriatim-web'";
    let pids: Vec<i32> = sqlx::query_scalar(sessions).fetch_all(pool).await.unwrap();
    let of = |pid: i32| {
        let all = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
        all.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    };
    pids.into_iter().map(|pid| (pid, Duration::from_nanos(of(pid)))).collect()
}

/// Returns what the sessions have used since. One that has ended meanwhile was idle.
async fn used_since(pool: &PgPool, before: &HashMap<i32, Duration>) -> Duration {
    let since = |(pid, now): (i32, Duration)| {
        now.saturating_sub(before.get(&pid).copied().unwrap_or_default())
    };
    used(pool).await.into_iter().map(since).sum()
}

/// Asks for an address, each time anew; returns the mean cost and the longest time.
async fn cost(pool: &PgPool, page: SocketAddr, path: &str) -> (Duration, Duration) {
    let (mut cost, mut longest) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..TIMES {
        // Data read, or a page rendered, a moment ago would be shown again.
        sleep(Duration::from_millis(1_100)).await;
        let (before, begin) = (used(pool).await, Instant::now());
        let answer = get(page, path, ANN).await;
        longest = longest.max(begin.elapsed());
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        cost += used_since(pool, &before).await;
    }
    (cost / TIMES, longest)
}

/// Prints a table of what each page and read costs, and what one left open costs, which must be
/// less than 1 % of a core. On Linux, with the server on this machine:
/// `cargo test -p seriatim-web --release --test web cost -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement of several minutes"]
async fn what_each_page_costs_the_database() {
    let shop = Shop::open(2).await;
    let pool = shop.pool();
    let client = Client::default().notify(false);
    for chunk in (0..JOBS).collect::<Vec<_>>().chunks(10_000) {
        let job =
            |n: &usize| NewJob::new("wide", &"fine").group(format!("group {:06}", n % GROUPS));
        client.enqueue_many(pool, chunk.iter().map(job)).await.unwrap();
    }
    // Each 50th job has failed, and half of them have succeeded.
    for change in [
        "update seriatim.job set status = 'failed', attempts = 1, flagged = false, finished_at = now(),
           error = (select error from seriatim.job where id = $1)
         where queue = 'wide' and id % 50 = 0",
        "update seriatim.job set status = 'succeeded', attempts = 1, flagged = false, finished_at = now()
         where queue = 'wide' and status = 'queued' and id < (select max(id) / 2 from seriatim.job) and $1 > 0",
    ] {
        sqlx::query(change).bind(shop.poison).execute(pool).await.unwrap();
    }
    sqlx::query("vacuum analyze").execute(pool).await.unwrap();
    let page = serve(pool, local(Access::Operator)).await;
    let deep = format!("group={}", encode("group 099999"));
    println!("| address | database, ms of a core | answer, longest |\n|---|---|---|");
    for path in [
        "/".to_owned(),
        "/queue?name=wide".to_owned(),
        "/queue?name=wide&after=group%20050000".to_owned(),
        "/queue?name=wide&find=group%2005".to_owned(),
        "/queue?name=wide&sort=wait".to_owned(),
        "/queue?name=wide&sort=depth".to_owned(),
        "/queue?name=wide&state=ready".to_owned(),
        "/queue?name=wide&state=halted".to_owned(),
        format!("/lane?queue=wide&{deep}"),
        format!("/job?id={}", shop.poison),
        "/stopped".to_owned(),
        "/parked".to_owned(),
        "/failed".to_owned(),
        "/failed?queue=wide".to_owned(),
        "/failed?queue=wide&error=none+has+it".to_owned(),
        "/failed?error=none+has+it".to_owned(),
        "/schedules".to_owned(),
        "/batches".to_owned(),
        "/nodes".to_owned(),
        "/log".to_owned(),
        "/find?q=group+0999".to_owned(),
        "/find?q=none".to_owned(),
        "/api/v1/queues".to_owned(),
        "/api/v1/groups?queue=wide".to_owned(),
        format!("/api/v1/lane?queue=wide&{deep}"),
        format!("/api/v1/explain?queue=wide&{deep}"),
        format!("/api/v1/jobs/{}", shop.poison),
        "/api/v1/stopped".to_owned(),
        "/api/v1/failed?queue=wide".to_owned(),
    ] {
        let (cost, longest) = cost(pool, page, &path).await;
        println!("| `{path}` | {:.1} | {} ms |", cost.as_secs_f64() * 1e3, longest.as_millis());
    }

    for verb in ["redrive", "discard"] {
        let (before, begin) = (used(pool).await, Instant::now());
        let all = json!({"matching": {"queue": "wide"}, "dry_run": true});
        let preview = act(page, ANN, &format!("{verb}_matching"), &all).await;
        assert_eq!(preview.status, 200, "{}", preview.body);
        let cost = used_since(pool, &before).await.as_secs_f64() * 1e3;
        let (ms, jobs) = (begin.elapsed().as_millis(), &preview.json()["jobs"]);
        println!("| preview: {verb} of {jobs} dead letters by a filter | {cost:.0} | {ms} ms |");
    }

    println!("\n| left open for a minute | % of a core |\n|---|---|");
    for path in OPENED {
        let Some(browser) = browser(false, 1280).await else { return };
        browser.open(page, path).await;
        let before = used(pool).await;
        let begin = Instant::now();
        // Something changes all the time.
        while begin.elapsed() < OPEN {
            client.enqueue(pool, NewJob::new("wide", &"fine").group("group 000000")).await.unwrap();
            sleep(Duration::from_millis(200)).await;
        }
        let share =
            used_since(pool, &before).await.as_secs_f64() / begin.elapsed().as_secs_f64() * 100.0;
        println!("| `{path}` | {share:.2} |");
        browser.close().await;
        assert!(share < 1.0, "{path} costs {share:.2} % of a core");
    }
    shop.close().await;
}
