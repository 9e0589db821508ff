//! Move tasks on the page of a queue: listed, started and cancelled.

use serde_json::{Value, json};
use seriatim::admin::QueueSettings;
use seriatim_web::Access;

use crate::browser::local;
use crate::chromium::{ENTER, browser};
use crate::dead_letters::work_off;
use crate::support::{ACTIONS, ANN, Shop, VIC, act, eventually, get, post, request, serve, users};

const START: &str = "start_move_task";
const CANCEL: &str = "cancel_move_task";

/// A shop with jobs in the queue `letters`, which nobody serves.
async fn shop_with(jobs: usize) -> Shop {
    let shop = Shop::open(0).await;
    for n in 0..jobs {
        shop.enqueue("letters", &format!("g{}", n % 3), "fine", "x").await;
    }
    shop
}

async fn tasks(page: std::net::SocketAddr, queue: &str) -> Value {
    get(page, &format!("/api/v1/move-tasks?queue={queue}"), VIC).await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_previewed_started_listed_and_cancelled() {
    let shop = shop_with(60).await;
    let page = serve(shop.pool(), users()).await;
    let preview = json!({"queue": "letters", "to": "elsewhere", "per_second": 1, "dry_run": true});
    let said = act(page, ANN, START, &preview).await;
    assert_eq!(said.status, 200, "{}", said.body);
    let said = said.json();
    for words in [
        "60 jobs of queue \"letters\" move to queue \"elsewhere\", 1 a second at most",
        "what has moved stays moved",
        "No job, setting or living processor names queue \"elsewhere\"",
    ] {
        assert!(said["message"].as_str().unwrap().contains(words), "{said}");
    }
    assert_eq!((&said["jobs"], said.get("undo")), (&json!(60), None));
    assert_eq!(tasks(page, "letters").await, json!([]), "a preview changes nothing");

    let mut start = json!({"queue": "letters", "to": "elsewhere", "per_second": 1});
    assert_eq!(act(page, ANN, START, &start).await.status, 400, "a reason is needed");
    start["reason"] = json!("another worker");
    let started = act(page, ANN, START, &start).await.json();
    let task = tasks(page, "letters").await[0].clone();
    assert_eq!((&task["status"], &task["per_second"]), (&json!("running"), &json!(1)));
    let twice = act(page, ANN, START, &start).await;
    assert_eq!(twice.status, 409, "{}", twice.body);
    let seen = get(page, "/queue?name=letters", ANN).await.body;
    for words in
        ["1 a second", "of 60", "state running", "queue?name=elsewhere", "Cancel move task"]
    {
        assert!(seen.contains(words), "{words}: {seen}");
    }
    assert!(!seen.contains("Start move task"), "one runs: {seen}");

    // The answer has the request that takes it back, and so has that to it.
    let take_back = async |undo: &Value| {
        let answer = post(page, ACTIONS, ANN, &undo["body"]).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let cancelled = take_back(&started["undo"]).await;
    assert!(cancelled["message"].as_str().unwrap().contains("stay where they are"), "{cancelled}");
    assert_eq!(tasks(page, "letters").await[0]["status"], "cancelled");
    let again = json!({"task": task["id"], "reason": "twice"});
    assert_eq!(act(page, ANN, CANCEL, &again).await.status, 409);
    take_back(&cancelled["undo"]).await;
    let all = tasks(page, "letters").await;
    assert_eq!((&all[0]["status"], &all[0]["per_second"]), (&json!("running"), &json!(1)));
    let log = get(page, "/api/v1/operations", ANN).await.json();
    let actions: Vec<&str> =
        log.as_array().unwrap().iter().map(|one| one["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["start_move_task", "cancel_move_task", "start_move_task"]);
    assert_eq!((&log[2]["actor"], &log[2]["reason"]), (&json!("ann"), &json!("another worker")));
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_move_back_to_where_they_failed() {
    let shop = Shop::open(0).await;
    let settings = QueueSettings::new("letters").dead_letter_queue(String::from("aside"));
    shop.client.configure_queue(shop.pool(), settings).await.unwrap();
    for _ in 0..3 {
        shop.enqueue("letters", "a", "poison", "x").await;
    }
    work_off(&shop, 0).await;
    let page = serve(shop.pool(), users()).await;
    let back = json!({"queue": "aside", "reason": "mended"});
    let started = act(page, ANN, START, &back).await;
    assert_eq!(started.status, 200, "{}", started.body);
    let message = started.json()["message"].clone();
    let words = "3 jobs of queue \"aside\" move back to the queue in which each failed";
    assert!(message.as_str().unwrap().contains(words), "{message}");
    // The shop's processor carries it on.
    eventually("the task ends", async || tasks(page, "aside").await[0]["status"] == "completed")
        .await;
    let counts = shop.client.counts(shop.pool(), "letters").await.unwrap();
    assert_eq!(counts.queued, 3);
    // It is on the page of the queue whose dead letters these are.
    eventually("the page shows it", async || {
        let seen = get(page, "/queue?name=letters", VIC).await.body;
        seen.contains("back where each failed") && seen.contains("3 of 3")
    })
    .await;
    let none = act(page, ANN, START, &json!({"queue": "letters", "dry_run": true})).await;
    assert_eq!(none.status, 409);
    assert!(none.body.contains("No dead letter of another queue"), "{}", none.body);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_needs_the_page_the_role_and_sense() {
    let shop = shop_with(3).await;
    let page = serve(shop.pool(), users()).await;
    let start = json!({"queue": "letters", "to": "elsewhere", "reason": "x"});
    for (action, body, status) in [
        (START, json!({"queue": "letters", "to": "letters", "reason": "x"}), 400),
        (START, json!({"queue": "letters", "to": "a\0", "reason": "x"}), 400),
        (START, json!({"queue": "letters", "to": "e", "per_second": 0, "reason": "x"}), 400),
        (START, json!({"queue": "letters", "to": "e", "per_second": -1, "reason": "x"}), 400),
        (
            START,
            json!({"queue": "letters", "to": "e", "per_second": 4_294_967_295u32, "reason": "x"}),
            400,
        ),
        (START, json!({"to": "elsewhere", "reason": "x"}), 400),
        (START, json!({"queue": "none", "to": "elsewhere", "reason": "x"}), 409),
        (CANCEL, json!({"queue": "letters", "reason": "x"}), 400),
        (CANCEL, json!({"task": 9, "reason": "x"}), 404),
    ] {
        let answer = act(page, ANN, action, &body).await;
        assert_eq!(answer.status, status, "{action} {body}: {}", answer.body);
    }
    assert_eq!(act(page, VIC, START, &start).await.status, 403);
    let foreign = [
        ("authorization", ANN),
        ("content-type", "application/json"),
        ("sec-fetch-site", "cross-site"),
        ("x-seriatim", "1"),
    ];
    let mut body = start.clone();
    body["action"] = json!(START);
    assert_eq!(request(page, "POST", ACTIONS, &foreign, &body.to_string()).await.status, 403);
    let still = serve(shop.pool(), users().read_only(true)).await;
    assert_eq!(act(still, ANN, START, &start).await.status, 403);
    for (page, user, may) in [(page, ANN, true), (page, VIC, false), (still, ANN, false)] {
        let seen = get(page, "/queue?name=letters", user).await.body;
        assert_eq!(seen.contains("Start move task"), may);
        assert_eq!(seen.contains("name=\"per_second\""), may);
    }
    assert_eq!(tasks(page, "letters").await, json!([]));
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_started_and_taken_back_in_the_browser() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = shop_with(60).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/queue?name=letters").await;
    browser.refresh_soon().await;
    let rate = "document.querySelector('[data-fields] [name=per_second]')";
    let press = "document.querySelector('[data-fields] .act').click()";
    browser.script("document.querySelector('[data-fields] [name=to]').focus()").await;
    browser.press("else").await;
    browser.script(&format!("{rate}.focus()")).await;
    // A number that is none is no missing one.
    browser.press("0").await;
    browser.script(press).await;
    assert_eq!(browser.script("return document.getElementById('ask').open").await, false);
    browser.script(&format!("{rate}.value = '1'; {rate}.blur()")).await;
    // A refresh keeps what was typed.
    browser.script("return refresh()").await;
    browser.script(press).await;
    browser.reads("#ask-preview", "60 jobs of queue \"letters\" move to queue \"else\", 1 a").await;
    browser.press("another worker").await;
    browser.press(ENTER).await;
    browser.reads("#told", "move to queue").await;
    browser.reads("#main section table", "running").await;
    browser.press("u").await;
    browser.reads("#ask-preview", "stay where they are").await;
    browser.press(ENTER).await;
    browser.reads("#main section table", "cancelled").await;
    browser.see("[data-fields]").await;
    browser.close().await;
    shop.close().await;
}
