//! What the pages and the API show.

use axum::Router;
use serde_json::json;
use seriatim_web::{Access, Auth, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::{ANN, LIMIT, Shop, VIC, get, post, serve, users};

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
        assert!(body.contains("6 more"), "{path}");
        assert!(body.contains(&format!("api/v1/jobs/{}/retry", shop.poison)), "{path}");
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
    let mut path = String::from("/queue?name=mail");
    let mut seen = 0;
    for _ in 0..5 {
        let body = get(page, &path, VIC).await.body;
        seen += body.matches("<li class=\"lane\"").count();
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
    assert_eq!(post(page, "/api/v1/queues/pause", "", &pause).await.status, 200);
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
