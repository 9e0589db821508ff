//! The contents of the pages and of the API.

use axum::Router;
use serde_json::json;
use seriatim::admin::QueueSettings;
use seriatim::receive::Receive;
use seriatim::testing::{Server, TestDatabase};
use seriatim::{Client, NewJob};
use seriatim_web::{Access, Auth, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::{
    ACTIONS, ANN, LIMIT, Shop, VIC, act, eventually, get, offers, request, serve, users,
};

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_what_stands_and_why() {
    let shop = Shop::open(12).await;
    let page = serve(shop.pool(), users()).await;
    let queues = get(page, "/", VIC).await.body;
    assert!(queues.contains("1 halted"), "{queues}");
    assert!(queues.contains("12 queued"), "{queues}");
    for path in ["/stopped", "/queue?name=orders", "/queue?name=orders&state=halted&sort=wait"] {
        let body = get(page, path, ANN).await.body;
        assert!(body.contains("the bank answered 402"), "{path}: {body}");
        assert!(body.contains("customer-17"), "{path}");
        assert!(body.contains("12 jobs wait"), "{path}");
        assert!(body.contains(&format!("[\"retry\",{{\"job\":{}}}]", shop.poison)), "{path}");
    }
    let none = get(page, "/queue?name=orders&state=paused", VIC).await.body;
    assert!(!none.contains("customer-17"));
    let lane = get(page, "/lane?queue=orders&group=customer-17", VIC).await.body;
    assert!(lane.contains("class=\"timeline\""));
    assert_eq!(lane.matches("<rect class=\"error\"").count(), 2, "two attempts failed");
    let job = get(page, &format!("/job?id={}", shop.poison), VIC).await.body;
    assert!(job.contains("charge card"), "{job}");
    assert!(job.contains("402 Payment Required"), "{job}");
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_waits_for_a_slot_of_its_limit_key_is_shown() {
    let shop = Shop::open(0).await;
    let (pool, page) = (shop.pool(), serve(shop.pool(), users()).await);
    let settings = QueueSettings::new("imports").limit_per_key(1);
    shop.client.configure_queue(pool, settings).await.unwrap();
    let mut jobs = Vec::new();
    for group in ["account-1", "account-2"] {
        let job = NewJob::new("imports", &1).group(group).limit_key("tenant-7");
        jobs.push(shop.client.enqueue(pool, job).await.unwrap().id());
    }
    let received = shop.client.receive(pool, Receive::new("imports").max(2)).await.unwrap();
    assert_eq!(received.len(), 1);
    let queues = get(page, "/", VIC).await.body;
    assert!(queues.contains("1 gated"), "{queues}");
    let gated = get(page, "/queue?name=imports&state=gated", VIC).await.body;
    assert!(gated.contains("account-2") && !gated.contains("account-1"), "{gated}");
    let job = get(page, &format!("/job?id={}", jobs[1]), VIC).await.body;
    assert!(job.contains("for a slot of limit key &#34;tenant-7&#34; (1 of 1 are taken)"), "{job}");
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_said() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    for (path, status) in [
        ("/job?id=99999", 404),
        ("/job?id=abc", 400),
        ("/job", 400),
        ("/queue?name=nothing", 404),
        ("/queue?name=orders&state=odd", 400),
        ("/queue?name=orders&sort=odd", 400),
        ("/lane?queue=orders&group=nothing", 200),
        ("/lane?queue=orders", 400),
        ("/nothing", 404),
        ("/api/v1/nothing", 404),
        ("/api/v1/jobs/99999", 404),
        ("/api/v1/explain", 400),
    ] {
        let answer = get(page, path, VIC).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        if path.starts_with("/api") {
            assert!(answer.json()["error"].is_string(), "{path}");
        }
    }
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_says_the_same() {
    let shop = Shop::open(2).await;
    let page = serve(shop.pool(), users()).await;
    let queues = get(page, "/api/v1/queues", VIC).await.json();
    assert_eq!(queues[0]["queue"], "orders");
    let groups = get(page, "/api/v1/groups?queue=orders&limit=5", VIC).await.json();
    assert_eq!(groups["groups"][0]["state"], "halted");
    let lane = get(page, "/api/v1/lane?queue=orders&group=customer-17", VIC).await.json();
    assert_eq!(lane["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(lane["halted_by"]["id"], shop.poison);
    let stopped = get(page, "/api/v1/stopped", VIC).await.json();
    assert_eq!(stopped["groups"][0]["group"], "customer-17");
    let explain = format!("/api/v1/explain?job={}", shop.poison);
    assert!(get(page, &explain, VIC).await.json()["sentence"].as_str().unwrap().contains("402"));
    let explain = "/api/v1/explain?queue=orders&group=customer-17";
    assert_eq!(get(page, explain, VIC).await.json()["explanation"]["reason"]["reason"], "halted");
    let found = get(page, "/api/v1/find?q=customer", VIC).await.json();
    assert_eq!(found["groups"][0]["group"], "customer-17");
    let found = get(page, &format!("/api/v1/find?q={}", shop.poison), VIC).await.json();
    assert_eq!(found["jobs"][0]["id"], shop.poison);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_groups_follow_each_other() {
    let shop = Shop::open(0).await;
    for n in 0..60 {
        shop.enqueue("mail", &format!("to {n:02}"), "fine", "letter").await;
    }
    let page = serve(shop.pool(), users()).await;
    let mut path = String::from("/queue?name=mail&sort=name");
    let mut seen = 0;
    for _ in 0..5 {
        let body = get(page, &path, VIC).await.body;
        seen += body.matches("<li class=\"lane").count();
        let Some((_, rest)) = body.split_once("rel=\"next\" href=\"") else { break };
        let next = rest.split('"').next().unwrap();
        path = format!("/{}", next.replace("&#38;", "&").replace("&amp;", "&"));
    }
    assert_eq!(seen, 60);
    shop.close().await;
}

/// With and without the slash behind the path that the page is mounted under.
#[tokio::test(flavor = "multi_thread")]
async fn it_works_under_any_path() {
    let shop = Shop::open(0).await;
    let config = Config::new().access(|_| Access::Viewer);
    let app: Router =
        Router::new().nest_service("/ops/jobs", seriatim_web::router(shop.pool().clone(), config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    for (path, stylesheet, queue) in [
        ("/ops/jobs", "href=\"jobs/assets/", "href=\"jobs/queue?name=orders"),
        ("/ops/jobs/", "href=\"assets/", "href=\"queue?name=orders"),
    ] {
        let answer = get(address, path, "").await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.body.contains(stylesheet), "{path}: {}", answer.body);
        assert!(answer.body.contains(queue), "{path}: {}", answer.body);
    }
    let body = get(address, "/ops/jobs/queue?name=orders", "").await.body;
    let style = body.split_once("href=\"assets/").unwrap().1.split('"').next().unwrap();
    let style = get(address, &format!("/ops/jobs/assets/{style}"), "").await;
    assert_eq!(style.status, 200);
    assert!(style.head.contains("immutable"), "{}", style.head);
    shop.close().await;
}

/// A viewer hears a beat when there is no news, at once that the database is away, and that it is
/// back.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_beats_and_says_that_the_database_is_away() {
    let server = Server::start().await.unwrap();
    let db = TestDatabase::create_on(&server).await.unwrap();
    Client::default().migrate(db.pool()).await.unwrap();
    let page = serve(db.pool(), Config::new().auth(Auth::Loopback(Access::Operator))).await;
    let mut stream = TcpStream::connect(page).await.unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut heard = String::new();
    let mut hear = async |until: &str| {
        let mut bytes = [0; 1024];
        heard.clear();
        while !heard.contains(until) {
            let read = timeout(LIMIT, stream.read(&mut bytes)).await.unwrap().unwrap();
            assert!(read > 0, "the stream ended: {heard}");
            heard.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    };
    hear("event: beat").await;
    server.stop_immediately().await.unwrap();
    hear("event: away").await;
    server.start_again().await.unwrap();
    hear("event: changed").await;
}

/// A viewer hears of a change at once if it was made through the page.
#[tokio::test(flavor = "multi_thread")]
async fn changes_are_announced() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), Config::new().auth(Auth::Loopback(Access::Operator))).await;
    let mut stream = TcpStream::connect(page).await.unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut heard = String::new();
    let mut hear = async |until: &str| {
        let mut bytes = [0; 1024];
        while !heard.contains(until) {
            let read = timeout(LIMIT, stream.read(&mut bytes)).await.unwrap().unwrap();
            assert!(read > 0, "the stream ended: {heard}");
            heard.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    };
    hear("text/event-stream").await;
    let pause = json!({"queue": "orders", "reason": "a test"});
    assert_eq!(act(page, "", "pause", &pause).await.status, 200);
    hear("event: changed").await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_shows_what_was_collected() {
    let shop = Shop::open(12).await;
    let page = serve(shop.pool(), users()).await;
    assert_eq!(get(page, "/metrics", "").await.status, 401);
    let scrape = get(page, "/metrics", VIC).await;
    assert!(scrape.head.contains("text/plain; version=0.0.4"), "{}", scrape.head);
    for line in [
        "seriatim_queue_groups{queue=\"orders\",state=\"halted\"} 1\n",
        "seriatim_queue_jobs{queue=\"orders\",state=\"queued\"} 12\n",
    ] {
        assert!(scrape.body.contains(line), "{}", scrape.body);
    }
    // An application shows what its own processors did as well.
    let own = users().process_metrics(|| String::from("own_total 7\n"));
    let scrape = get(serve(shop.pool(), own).await, "/metrics", VIC).await;
    assert!(scrape.body.contains("\nown_total 7\n"), "{}", scrape.body);
    // Nobody collects where nothing may be written.
    let read_only = serve(shop.pool(), users().read_only(true)).await;
    assert!(get(read_only, "/metrics", VIC).await.body.contains("seriatim_collect_age_seconds"));
    shop.close().await;
}

/// Due work without a living processor, and claims whose processor is gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_serves_is_marked() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let queues = async || get(page, "/api/v1/queues", VIC).await.json();
    assert_eq!(queues().await[0]["served"], true);
    shop.enqueue("odrers", "customer-1", "fine", "ship").await;
    // The overview is of a moment ago.
    eventually("the queue is there", async || queues().await.as_array().unwrap().len() == 2).await;
    assert_eq!(
        (&queues().await[0]["queue"], &queues().await[0]["served"]),
        (&json!("odrers"), &json!(false))
    );
    let unserved = ">unserved<";
    assert_eq!(get(page, "/", VIC).await.body.matches(unserved).count(), 1);
    let body = get(page, "/queue?name=odrers", VIC).await.body;
    assert!(body.contains("No living processor or receiver serves this queue"), "{body}");
    assert!(!get(page, "/queue?name=orders", VIC).await.body.contains(unserved));
    let lane = get(page, "/lane?queue=odrers&group=customer-1", VIC).await.body;
    assert!(
        lane.contains(unserved) && lane.contains("No living processor or receiver serves"),
        "{lane}"
    );
    let lane = "/api/v1/lane?queue=odrers&group=customer-1";
    assert!(get(page, lane, VIC).await.json()["queue_unserved_since"].is_string());
    let body = get(page, "/stopped", VIC).await.body;
    assert!(body.contains(unserved) && body.contains("queue?name=odrers"), "{body}");
    let stopped = get(page, "/api/v1/stopped", VIC).await.json();
    assert_eq!(stopped["unserved"][0]["queue"], "odrers");
    assert_eq!(stopped["orphaned"], json!([]));

    let gone =
        "insert into seriatim.processor (id, node, host, pid, presence_key, server_started_at)
        values (4711, 'n7', 'h7', 4711, 99, now())";
    sqlx::query(gone).execute(shop.pool()).await.unwrap();
    let claim = "insert into seriatim.queue_group (queue, group_id, job_id, claim, claimed_by, ready_at, head_id)
        select queue, group_id, id, gen_random_uuid(), 4711, 'infinity', id from seriatim.job where queue = 'odrers'";
    sqlx::query(claim).execute(shop.pool()).await.unwrap();
    let stopped = get(page, "/api/v1/stopped", VIC).await.json();
    assert_eq!(stopped["orphaned"][0]["node"], "n7", "{stopped}");
    eventually("the page shows it", async || {
        let body = get(page, "/stopped", ANN).await.body;
        body.contains(">orphaned<") && body.contains("release_node")
    })
    .await;
    shop.close().await;
}

/// A group that is halted and paused shows both, and is listed once.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_beside_a_halt_is_shown() {
    let shop = Shop::open(1).await;
    let page = serve(shop.pool(), users()).await;
    let pause = json!({"queue": "orders", "group": "customer-17", "reason": "their audit"});
    assert_eq!(act(page, ANN, "pause", &pause).await.status, 200);
    let until =
        "update seriatim.queue_group set halt_until = now() + interval '2 h', halt_then = 'park'";
    sqlx::query(until).execute(shop.pool()).await.unwrap();
    for path in ["/stopped", "/queue?name=orders", "/queue?name=orders&state=paused"] {
        let body = get(page, path, ANN).await.body;
        assert_eq!(body.matches("<li class=\"lane").count(), 1, "{path}: {body}");
        assert!(body.contains(">halted</span> <span class=\"state paused\""), "{path}: {body}");
        for text in ["The halt ends by itself", "then it is parked", "their audit"] {
            assert!(body.contains(text), "{path} has no {text}: {body}");
        }
        assert!(offers(&body, "resume"), "{path}: {body}");
    }
    let lane = get(page, "/lane?queue=orders&group=customer-17", ANN).await.body;
    for text in ["The halt ends by itself", "their audit", "\"resume\"", "\"retry\""] {
        assert!(lane.contains(text), "{text}: {lane}");
    }
    shop.close().await;
}

/// A group and a queue that rest say which job asked for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_rest_is_shown_with_its_job() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let job = shop.enqueue("partner", "customer-5", "fine", "ship").await;
    let what = seriatim::receive::Receive::new("partner");
    let receipt = shop.client.receive(shop.pool(), what).await.unwrap().remove(0).receipt;
    let until = chrono::Utc::now() + std::time::Duration::from_hours(1);
    shop.client.rest_group(shop.pool(), &receipt, until, "429 <from> Stripe").await.unwrap();
    shop.client.rest_queue(shop.pool(), &receipt, until, "503 <for> all").await.unwrap();
    shop.client.nack(shop.pool(), &receipt, std::time::Duration::ZERO).await.unwrap();
    let link = format!("<a href=\"job?id={job}\">Job {job}</a> asked for a rest");
    for path in ["/stopped", "/queue?name=partner", "/lane?queue=partner&group=customer-5"] {
        let body = get(page, path, ANN).await.body;
        for text in [&*link, "429 &#60;from&#62; Stripe", "It ends by itself"] {
            assert!(body.contains(text), "{path} has no {text}: {body}");
        }
        assert!(offers(&body, "resume"), "{path}: {body}");
    }
    let stopped = get(page, "/stopped", ANN).await.body;
    let queue = format!("Job {job} asked for a rest. 503 &#60;for&#62; all It ends by itself in ");
    assert!(stopped.contains(&queue), "{stopped}");
    shop.close().await;
}

/// Addresses that no link leads to.
#[tokio::test(flavor = "multi_thread")]
async fn odd_addresses_are_refused_with_a_sentence() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let beyond = "9223372036854775808";
    let long = "x".repeat(20_000);
    for (path, status) in [
        ("/queue?name=a%00b", 400),
        ("/queue?name=orders&find=%00", 400),
        ("/lane?queue=orders&group=%00", 400),
        ("/find?q=%00", 400),
        ("/failed?error=%00", 400),
        ("/parked?queue=%00", 400),
        ("/a%00b", 400),
        ("/api/v1/groups?queue=%00", 400),
        ("/api/v1/jobs/%00", 400),
        (&format!("/job?id={beyond}"), 400),
        (&format!("/api/v1/jobs/{beyond}"), 400),
        (&format!("/api/v1/explain?job={beyond}"), 400),
        (&format!("/log?before={beyond}"), 400),
        (&format!("/failed?after={beyond}"), 400),
        (&format!("/find?q={beyond}"), 200),
        ("/find?q=-9223372036854775808", 200),
        ("/job?id=-1", 404),
        ("/failed?after=abc", 400),
        ("/failed?within=year", 400),
        ("/queue?name=orders&limit=-1", 400),
        ("/queue?name=orders&limit=99999999999", 400),
        ("/queue?name=orders&name=orders", 400),
        ("/queue?name=%ff%fe", 404),
        (&format!("/queue?name={long}"), 404),
        (&format!("/queue?name=orders&find={long}"), 200),
        (&format!("/lane?queue=orders&group={long}"), 200),
        (&format!("/failed?queue=orders&error={long}"), 200),
        (&format!("/find?q={long}"), 200),
    ] {
        let answer = get(page, path, ANN).await;
        let name = &path[..path.len().min(60)];
        assert_eq!(answer.status, status, "{name}: {}", answer.body);
        if path.starts_with("/api") {
            assert!(answer.json()["error"].is_string(), "{name}: {}", answer.body);
        } else {
            assert!(answer.body.contains("<main"), "{name}: {}", answer.body);
        }
    }
    shop.close().await;
}

/// The API speaks JSON also where it refuses.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_refuses_in_json() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let closed = serve(shop.pool(), Config::new()).await;
    for (to, method, path, user, status) in [
        (page, "GET", "/api/v1/queues", "", 401),
        (page, "GET", "/api/v1/queues", "Basic bm8=", 401),
        (closed, "GET", "/api/v1/queues", ANN, 403),
        (page, "POST", ACTIONS, VIC, 403),
        (page, "GET", "/api/v1/nothing", ANN, 404),
        (page, "GET", "/api/v2/queues", ANN, 404),
        (page, "DELETE", "/api/v1/queues", ANN, 405),
        (page, "GET", ACTIONS, ANN, 405),
        (page, "POST", "/api/v1/failed", ANN, 405),
    ] {
        let headers = [("authorization", user), ("content-type", "application/json")];
        let body = json!({"action": "pause", "queue": "orders"}).to_string();
        let answer = request(to, method, path, &headers, &body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        assert!(answer.json()["error"].is_string(), "{method} {path}: {}", answer.body);
        assert!(answer.head.contains("content-type: application/json"), "{path}: {}", answer.head);
    }
    let answer = request(page, "POST", "/stopped", &[("authorization", ANN)], "").await;
    assert_eq!(answer.status, 405);
    assert!(answer.body.contains("<main"), "{}", answer.body);
    shop.close().await;
}
