//! The page over several servers: each at a glance, one that is away as well, and the page of each.

use std::time::{Duration, Instant};

use seriatim::shards::{ShardId, Shards};
use seriatim::testing::TestDatabase;
use seriatim::{Client, NewJob};
use seriatim_web::{Access, Config};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;

use crate::browser::local;
use crate::chromium::browser;
use crate::support::{ANN, Answer, VIC, get, post, request, users};

fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

/// Two databases with a queue each, and a third server that nobody is at.
struct Three {
    databases: [TestDatabase; 2],
    jobs: [i64; 2],
    shards: Shards,
}

impl Three {
    async fn new() -> Self {
        let databases =
            [TestDatabase::create().await.unwrap(), TestDatabase::create().await.unwrap()];
        let mut jobs = [0; 2];
        for (database, (number, job)) in databases.iter().zip((0..).zip(&mut jobs)) {
            let client = Client::default();
            client.migrate_shard(database.pool(), shard(number)).await.unwrap();
            let new = NewJob::new("orders", &1).group(format!("customer-{number}"));
            *job = client.enqueue(database.pool(), new).await.unwrap().id();
        }
        let away = "postgres://nobody:secret@127.0.0.1:1/none";
        let away = PgPoolOptions::new().connect_lazy(away).unwrap();
        let pools: [PgPool; 2] = [databases[0].pool().clone(), databases[1].pool().clone()];
        let [first, second] = pools;
        let servers = [(shard(0), first), (shard(1), second), (shard(2), away)];
        Self { databases, jobs, shards: Shards::new(servers).unwrap() }
    }

    async fn serve(&self, config: Config) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shards = self.shards.clone();
        tokio::spawn(async move { seriatim_web::serve_over(listener, &shards, config).await });
        address
    }
}

fn location(answer: &Answer) -> &str {
    answer.head.lines().find_map(|line| line.strip_prefix("location: ")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_is_shown_and_one_that_is_away_is_named() {
    let three = Three::new().await;
    let at = three.serve(users()).await;
    assert_eq!(request(at, "GET", "/", &[], "").await.status, 401);
    assert_eq!(request(at, "GET", "/shard/1/", &[], "").await.status, 401);
    assert_eq!(request(at, "GET", "/api/v1/servers", &[], "").await.status, 401);
    let begun = Instant::now();
    let front = get(at, "/", VIC).await;
    assert_eq!(front.status, 200);
    assert!(begun.elapsed() < Duration::from_secs(10));
    for part in ["shard/0/", "shard/1/", "shard/2/", "no answer", "1 queued", "1 ready"] {
        assert!(front.body.contains(part), "{part}: {}", front.body);
    }
    assert!(!front.body.contains("secret"), "{}", front.body);
    assert_eq!(request(at, "GET", "/metrics", &[], "").await.status, 401);
    // Side by side: each waits for the one that is away.
    let (metrics, list, (ready, ready_at), (away, away_at)) = tokio::join!(
        get(at, "/metrics", VIC),
        get(at, "/api/v1/servers", VIC),
        async { (request(at, "GET", "/readyz", &[], "").await, Instant::now()) },
        async { (get(at, "/shard/2/", VIC).await, Instant::now()) },
    );
    let metrics = metrics.body;
    for line in
        ["seriatim_server_answers{shard=\"2\"} 0", "seriatim_live_processors{shard=\"1\"} 0"]
    {
        assert!(metrics.lines().any(|of| of == line), "{line}: {metrics}");
    }
    let list = list.json();
    assert_eq!(list[1]["shard"], 1);
    assert_eq!(list[1]["queues"][0]["queue"], "orders");
    assert!(list[2]["error"].is_string() && list[0].get("error").is_none(), "{list}");
    // No server took the place of another one; one is away, so it looks again soon.
    assert!(list[0].get("took_over").is_none() && !front.body.contains("took over"), "{list}");
    assert!(front.body.contains("http-equiv=\"refresh\" content=\"3\""), "{}", front.body);
    assert_eq!((ready.status, away.status), (200, 503));
    assert!(ready_at < away_at, "one server that answers is enough");
    assert_eq!(get(at, "/shard/9/", VIC).await.status, 404);

    // The page of one, at its own address.
    let page = get(at, "/shard/1/", VIC).await;
    assert!(page.body.contains("<b>shard 1</b>") && page.body.contains("../../"), "{}", page.body);
    let lane = get(at, "/shard/1/lane?queue=orders&group=customer-1", VIC).await;
    assert_eq!(lane.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_found_on_its_server_and_changed_there() {
    let three = Three::new().await;
    let at = three.serve(users()).await;
    let [_, job] = three.jobs;
    // Side by side: some wait for the server that is away.
    let by_id = format!("/find?q={job}");
    let (found, group, front) =
        tokio::join!(get(at, &by_id, VIC), get(at, "/find?q=customer-1", VIC), get(at, "/", VIC));
    assert_eq!((found.status, location(&found)), (303, &*format!("shard/1/find?q={job}")));
    let links = ["<a href=\"shard/1/find?q=customer%2D1\">1 found", "0 found", "no answer"];
    assert!(links.iter().all(|link| group.body.contains(link)), "{}", group.body);
    // A list of results stays as it is read; the front page refreshes.
    assert!(!group.body.contains("http-equiv"), "{}", group.body);
    assert!(front.body.contains("http-equiv=\"refresh\""));

    let cancel = serde_json::json!({
        "action": "cancel", "job": job, "reason": "by mistake", "dry_run": false,
    });
    let refused = post(at, "/shard/1/api/v1/actions", VIC, &cancel).await;
    assert_eq!(refused.status, 403);
    let done = post(at, "/shard/1/api/v1/actions", ANN, &cancel).await;
    assert_eq!(done.status, 200, "{}", done.body);
    let status = Client::default().job(three.databases[1].pool(), job).await.unwrap().unwrap();
    assert_eq!(status.status, seriatim::JobStatus::Cancelled);
}

/// A pool is led elsewhere when its primary has moved.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_follows_where_its_pool_is_led() {
    let [first, next] =
        [TestDatabase::create().await.unwrap(), TestDatabase::create().await.unwrap()];
    let new = NewJob::new("orders", &1).group("customer-1");
    let job = seriatim::enqueue(next.pool(), new).await.unwrap().id();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(seriatim_web::serve(listener, first.pool().clone(), users()));
    assert_eq!(get(at, &format!("/job?id={job}"), VIC).await.status, 404);
    first.pool().set_connect_options(next.pool().connect_options().as_ref().clone());
    assert_eq!(get(at, &format!("/api/v1/jobs/{job}"), VIC).await.status, 200);
    let cancel = serde_json::json!({
        "action": "cancel", "job": job, "reason": "by mistake", "dry_run": false,
    });
    let done = post(at, "/api/v1/actions", ANN, &cancel).await;
    assert_eq!(done.status, 200, "{}", done.body);
    let status = Client::default().job(next.pool(), job).await.unwrap().unwrap();
    assert_eq!(status.status, seriatim::JobStatus::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_goes_from_the_servers_to_a_lane_and_back() {
    let Some(browser) = browser(false, 400).await else { return };
    let three = Three::new().await;
    let at = three.serve(local(Access::Operator)).await;
    browser.open(at, "/").await;
    browser.reads("#main", "no answer").await;
    let wider = "return document.documentElement.scrollWidth - window.innerWidth";
    assert!(browser.script(wider).await.as_i64().unwrap() <= 0, "it scrolls sideways");
    browser.script("document.querySelector('a[href=\"shard/1/\"]').click()").await;
    browser.reads("header", "shard 1").await;
    browser.reads("#main", "orders").await;
    browser.script("document.querySelector('#main a[data-open]').click()").await;
    browser.reads("#main", "customer-1").await;
    browser.script("document.querySelector('header nav a[href$=\"../../\"]').click()").await;
    browser.reads("h1", "Servers").await;
    browser.close().await;
}
