//! Schedules: listed, paused, resumed and fired by hand.

use std::time::Duration;

use serde_json::json;
use seriatim::{NewJob, Schedule};
use seriatim_web::Access;

use crate::browser::local;
use crate::chromium::{ENTER, browser};
use crate::support::{ACTIONS, ANN, Shop, VIC, act, get, post, serve, users};

async fn set(shop: &Shop, name: &str) {
    let job = NewJob::new("reports", &"fine").group("customer-7");
    let schedule = Schedule::every(name, Duration::from_hours(24)).job(job);
    let mut conn = shop.pool().acquire().await.unwrap();
    shop.client.operator("ann", None).set_schedule(&mut conn, schedule).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_listed_paused_taken_back_and_fired() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let seen = get(page, "/schedules", VIC).await.body;
    assert!(seen.contains("There is no schedule."), "{seen}");
    set(&shop, "close <the> day").await;

    let listed = get(page, "/api/v1/schedules", VIC).await.json();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["queue"]),
        (&json!("close <the> day"), &json!("reports"))
    );
    let seen = get(page, "/schedules", ANN).await.body;
    for words in [
        "close &#60;the&#62; day",
        "queue?name=reports",
        "lane?queue=reports",
        "in 4 d",
        "Make a job now",
        "Pause",
    ] {
        assert!(seen.contains(words), "{words}: {seen}");
    }
    let seen = get(page, "/schedules", VIC).await.body;
    assert!(!seen.contains("Make a job now"), "a viewer changes nothing: {seen}");

    let of = |more: serde_json::Value| {
        let mut body = json!({"schedule": "close <the> day"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let (dry, real) = (of(json!({"dry_run": true})), of(json!({"reason": "month's end"})));
    assert_eq!(act(page, VIC, "pause_schedule", &real).await.status, 403);
    let made = act(page, ANN, "fire_schedule", &dry).await.json();
    let words = "has made a job; its times stay as they are.";
    assert!(made["message"].as_str().unwrap().ends_with(words), "{made}");
    let counts = async || shop.client.counts(shop.pool(), "reports").await.unwrap().queued;
    assert_eq!(counts().await, 0, "a preview makes none");
    let made = act(page, ANN, "fire_schedule", &real).await.json();
    let job = get(page, "/api/v1/schedules", VIC).await.json()[0]["last_job"].clone();
    assert!(made["message"].as_str().unwrap().contains(&format!("has made job {job};")), "{made}");
    assert_eq!(counts().await, 1);

    let paused = act(page, ANN, "pause_schedule", &real).await.json();
    assert!(paused["message"].as_str().unwrap().contains("until it is resumed"), "{paused}");
    let seen = get(page, "/schedules", ANN).await.body;
    assert!(seen.contains("Resume") && seen.contains("month&#39;s end"), "{seen}");
    let back = post(page, ACTIONS, ANN, &paused["undo"]["body"]).await;
    assert_eq!(back.status, 200, "{}", back.body);
    let twice = act(page, ANN, "resume_schedule", &real).await;
    assert_eq!(twice.status, 409, "{}", twice.body);
    let mut unknown = real.clone();
    unknown["schedule"] = json!("nightly");
    for action in ["pause_schedule", "fire_schedule"] {
        assert_eq!(act(page, ANN, action, &unknown).await.status, 404, "{action}");
    }
    let removed = act(page, ANN, "remove_schedule", &dry).await;
    assert_eq!(removed.status, 200, "{}", removed.body);
    let list = async || get(page, "/api/v1/schedules", VIC).await.json().as_array().unwrap().len();
    let before = list().await;
    assert_eq!(act(page, ANN, "remove_schedule", &real).await.status, 200);
    assert_eq!(list().await, before - 1);
    assert_eq!(act(page, ANN, "remove_schedule", &real).await.status, 404);
    let log = get(page, "/api/v1/operations", ANN).await.json();
    let actions: Vec<&str> =
        log.as_array().unwrap().iter().map(|one| one["action"].as_str().unwrap()).collect();
    let expected = ["remove_schedule", "resume_schedule", "pause_schedule", "fire_schedule"];
    assert_eq!(actions[..4], expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_made_and_changed() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let seen = get(page, "/schedules", ANN).await.body;
    assert!(seen.contains("Set schedule"), "{seen}");
    let seen = get(page, "/schedules", VIC).await.body;
    assert!(!seen.contains("Set schedule"), "a viewer changes nothing: {seen}");
    let nightly = |more: serde_json::Value| {
        let mut body = json!({"schedule": "nightly", "queue": "reports", "reason": "wanted"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let cron = json!({"cron": "0 3 * * *", "zone": "Europe/Berlin"});
    assert_eq!(act(page, VIC, "set_schedule", &nightly(cron.clone())).await.status, 403);
    for (mistake, words) in [
        (json!({}), "one of the three"),
        (json!({"cron": "0 3 * * *"}), "one of the three"),
        (json!({"every": 5, "at": "2030-01-01T00:00:00Z"}), "one of the three"),
        (json!({"cron": "at three", "zone": "UTC"}), "is no cron expression"),
        (json!({"cron": "0 3 * * *", "zone": "Berlin"}), "there is no time zone"),
        (json!({"at": "tomorrow"}), "is no time such as"),
        (json!({"every": 0}), "must be"),
        (json!({"every": 60, "data": "{"}), "is no JSON"),
        (json!({"every": 60, "missed": "all:0"}), "must be"),
        (json!({"every": 60, "missed": "last:1"}), "is no policy of missed times"),
        (json!({"every": 60, "overlap": "never"}), "`never`"),
        (json!({"every": 60, "color": "red"}), "color"),
        (json!({"every": 60, "group": "a\u{0}"}), "control character"),
        (json!({"every": 60, "queue": ""}), "empty"),
        (json!({"every": 60, "schedule": "a\u{0}"}), "control character"),
    ] {
        let refused = act(page, ANN, "set_schedule", &nightly(mistake)).await;
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.body.contains(words), "{words}: {}", refused.body);
    }
    let list = async || get(page, "/api/v1/schedules", VIC).await.json();
    let preview = json!({"dry_run": true, "every": 60});
    let preview = act(page, ANN, "set_schedule", &nightly(preview)).await.json();
    let message = preview["message"].as_str().unwrap();
    assert!(message.contains("every 1 min") && message.contains("is it mistyped?"), "{message}");
    assert_eq!(list().await, json!([]), "a preview makes none");

    let made = act(page, ANN, "set_schedule", &nightly(cron)).await.json();
    assert!(made["message"].as_str().unwrap().contains("Europe/Berlin; next at "), "{made}");
    let back = post(page, ACTIONS, ANN, &made["undo"]["body"]).await;
    assert_eq!((back.status, list().await), (200, json!([])), "{}", back.body);

    let full = json!({
        "every": 3600, "group": "customer-7", "job_name": "report", "data": "{\"of\": 7}",
        "missed": "all:10", "overlap": "skip",
    });
    act(page, ANN, "set_schedule", &nightly(full)).await;
    let once = json!({"at": "2090-01-01T00:00:00+01:00", "group": "customer-8"});
    let changed = act(page, ANN, "set_schedule", &nightly(once)).await.json();
    assert_eq!(changed["undo"], json!(null), "the job of before is not known");
    let message = changed["message"].as_str().unwrap();
    assert!(message.contains("It replaces the one that was there (every 1 h)"), "{message}");
    let stored = list().await;
    assert_eq!((&stored[0]["group"], &stored[1]), (&json!("customer-8"), &json!(null)));
    let fire = json!({"schedule": "nightly", "reason": "now"});
    assert_eq!(act(page, ANN, "fire_schedule", &fire).await.status, 200);
    let log = get(page, "/api/v1/operations", ANN).await.json();
    assert_eq!(log[1]["action"], "set_schedule", "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_set_and_taken_back_in_the_browser() {
    let Some(browser) = browser(false, 400).await else { return };
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/schedules").await;
    browser.refresh_soon().await;
    browser.script("document.querySelector('details').open = true").await;
    let press = "document.querySelector('[data-fields] .act').click()";
    let field = |name: &str| format!("document.querySelector('[data-fields] [name={name}]')");
    browser.script(&format!("{}.focus()", field("schedule"))).await;
    browser.press("nightly").await;
    // Its queue is missing.
    browser.script(press).await;
    assert_eq!(browser.script("return document.getElementById('ask').open").await, false);
    for (name, text) in [("cron", "0 3 * * *"), ("zone", "Europe/Berlin"), ("queue", "reports")] {
        browser.script(&format!("{}.focus()", field(name))).await;
        browser.press(text).await;
    }
    browser
        .script(&format!("{}.value = 'skip'; document.activeElement.blur()", field("overlap")))
        .await;
    // A refresh keeps what was typed, and what is open.
    browser.script("return refresh()").await;
    assert_eq!(browser.script("return document.querySelector('details').open").await, true);
    browser.script(press).await;
    browser.reads("#ask-preview", "in Europe/Berlin; next at ").await;
    browser.press("as agreed").await;
    browser.press(ENTER).await;
    browser.reads("#told", "is set").await;
    browser.reads("#main table", "skip").await;
    let wider = "return document.documentElement.scrollWidth - window.innerWidth";
    assert!(browser.script(wider).await.as_i64().unwrap() <= 0, "it scrolls sideways");
    browser.press("u").await;
    browser.reads("#ask-preview", "is removed").await;
    browser.press(ENTER).await;
    browser.reads("#main", "There is no schedule.").await;
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_schedules_come_in_pages() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    for n in 0..101 {
        set(&shop, &format!("s{n:03}")).await;
    }
    let first = get(page, "/schedules", VIC).await.body;
    assert!(first.contains("schedules?after=s099") && !first.contains("s100"), "{first}");
    let second = get(page, "/schedules?after=s099", VIC).await.body;
    assert!(second.contains("s100") && !second.contains("s099<"), "{second}");
}
