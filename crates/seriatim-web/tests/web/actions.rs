//! Actions: their preview, their effect, and when they are refused.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use seriatim::receive::{Receive, ReceiveError};
use seriatim::{JobStatus, NewJob};
use sqlx::postgres::PgPoolOptions;

use crate::support::{ACTIONS, ANN, ROOT, Shop, act, eventually, get, offers, post, serve, users};

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_changes_nothing() {
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), users()).await;
    let skip = json!({"job": shop.poison, "dry_run": true});
    let preview = act(page, ANN, "skip", &skip).await;
    assert_eq!(preview.status, 200, "{}", preview.body);
    let preview = preview.json();
    assert_eq!(preview["dry_run"], true);
    let message = preview["message"].as_str().unwrap();
    assert!(message.starts_with("Job 1 is given up"), "{message}");
    let halted = shop.client.halted_groups(shop.pool(), "orders").await.unwrap();
    assert_eq!(halted.len(), 1);
    let purge = json!({"queue": "orders", "group": "customer-17", "dry_run": true});
    let preview = act(page, ROOT, "purge", &purge).await.json();
    assert!(preview["message"].as_str().unwrap().contains("3 unfinished jobs"), "{preview}");
    let jobs = shop.client.group_jobs(shop.pool(), "orders", "customer-17", 9).await.unwrap();
    assert_eq!(jobs.len(), 3);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_lets_the_lane_run_on() {
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), users()).await;
    shop.mended.store(true, Ordering::Relaxed);
    let retry = |reason: &str| json!({"job": shop.poison, "reason": reason});
    let refused = act(page, ANN, "retry", &retry("  ")).await;
    assert_eq!(refused.status, 400, "a reason is needed");
    let done = act(page, ANN, "retry", &retry("the bank is back")).await;
    assert_eq!(done.status, 200, "{}", done.body);
    assert_eq!(done.json()["overtaken"], 0);
    shop.drained("orders", "customer-17").await;
    let again = act(page, ANN, "retry", &retry("twice")).await;
    assert_eq!(again.status, 409);
    assert!(again.json()["error"].as_str().unwrap().contains("succeeded"), "{}", again.body);
    shop.close().await;
}

/// There a snapshot may hide a claim, so such a transaction is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_works_where_repeatable_read_is_the_default() {
    let shop = Shop::open(0).await;
    let options = shop.pool().connect_options().as_ref().clone();
    let options = options.options([("default_transaction_isolation", "repeatable read")]);
    let page = serve(&PgPoolOptions::new().connect_lazy_with(options), users()).await;
    shop.mended.store(true, Ordering::Relaxed);
    let retry = |reason: &str| json!({"job": shop.poison, "reason": reason});
    let done = act(page, ANN, "retry", &retry("the bank is back")).await;
    assert_eq!(done.status, 200, "{}", done.body);
    shop.drained("orders", "customer-17").await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_and_its_end() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let group = json!({"queue": "orders", "group": "customer-5", "reason": "their audit"});
    assert_eq!(act(page, ANN, "pause", &group).await.status, 200);
    let job = shop.enqueue("orders", "customer-5", "fine", "ship").await;
    let stopped = get(page, "/stopped", ANN).await.body;
    assert!(stopped.contains("their audit"), "{stopped}");
    assert!(offers(&stopped, "resume"), "{stopped}");
    let lane = get(page, "/lane?queue=orders&group=customer-5", ANN).await.body;
    assert!(offers(&lane, "resume") && !offers(&lane, "pause"), "{lane}");
    assert_eq!(act(page, ANN, "resume", &group).await.status, 200);
    shop.drained("orders", "customer-5").await;
    let job = shop.client.job(shop.pool(), job).await.unwrap().unwrap();
    assert_eq!(job.status, JobStatus::Succeeded);
    assert_eq!(act(page, ANN, "resume", &group).await.status, 409);

    let queue = json!({"queue": "orders", "reason": "the bank is down"});
    assert_eq!(act(page, ANN, "pause", &queue).await.status, 200);
    assert!(get(page, "/stopped", ANN).await.body.contains("the bank is down"));
    assert_eq!(act(page, ANN, "resume", &queue).await.status, 200);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_make_no_sense_are_refused() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    for (action, body, status) in [
        ("unhalt", json!({"queue": "orders", "reason": "x"}), 400),
        ("pause", json!({"queue": "a", "group": "b\0", "reason": "x"}), 400),
        ("pause", json!({"queue": "a", "group": "b", "reason": "x\0"}), 400),
        ("pause", json!({"queue": "a", "odd": 1}), 400),
        ("release_node", json!({"node": "a\0", "reason": "x"}), 400),
        ("retry", json!({"job": 9_223_372_036_854_775_808_u64, "reason": "x"}), 400),
        ("redrive_parked", json!({"queue": "a", "group": "b", "job": 1e30, "reason": "x"}), 400),
        ("pause", json!({"queue": "a".repeat(9_000), "group": "b", "reason": "x"}), 400),
        ("pause", json!({"queue": "a", "group": "b", "reason": "x".repeat(1_001)}), 400),
        ("dance", json!({"queue": "a", "group": "b", "reason": "x"}), 400),
        ("retry", json!({"job": 1_000_000, "reason": "x"}), 404),
        ("retry", json!({"job": "one", "reason": "x"}), 400),
        ("retry", json!({"job": 1, "queue": "a", "reason": "x"}), 400),
        ("redrive_parked", json!({"queue": "a", "group": "b", "reason": "x"}), 409),
    ] {
        let answer = act(page, ANN, action, &body).await;
        assert_eq!(answer.status, status, "{action} {body}: {}", answer.body);
        assert!(answer.json()["error"].is_string());
    }
    let nothing = post(page, ACTIONS, ANN, &json!({"reason": "x"})).await;
    assert_eq!(nothing.status, 400, "an action is needed");
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_everything_is_an_admins_and_says_what_it_ends() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let job = |n: i32| NewJob::new("letters", &n).dedup_id(format!("id {n}"));
    for n in 0..3 {
        shop.client.enqueue(shop.pool(), job(n)).await.unwrap();
    }
    let received = shop.client.receive(shop.pool(), Receive::new("letters")).await.unwrap();
    let mut everything = json!({"queue": "letters", "reason": "a test", "dry_run": true});
    assert_eq!(act(page, ANN, "purge_everything", &everything).await.status, 403);
    for (user, may) in [(ANN, false), (ROOT, true)] {
        let seen = get(page, "/queue?name=letters", user).await.body;
        assert_eq!(seen.contains("purge_everything"), may);
    }
    let preview = act(page, ROOT, "purge_everything", &everything).await.json();
    for words in ["2 queued, 0 delayed, 1 in flight", "deduplication ids are forgotten", "undone"] {
        assert!(preview["message"].as_str().unwrap().contains(words), "{preview}");
    }
    assert_eq!(shop.client.counts(shop.pool(), "letters").await.unwrap().unfinished(), 3);

    everything["dry_run"] = json!(false);
    let purged = act(page, ROOT, "purge_everything", &everything).await.json();
    assert_eq!(purged["jobs"], 3, "{purged}");
    assert!(purged["message"].as_str().unwrap().contains("3 deduplication ids"), "{purged}");
    let stale = shop.client.ack(shop.pool(), &received[0].receipt).await;
    assert!(matches!(stale, Err(ReceiveError::Stale { .. })), "{stale:?}");
    assert!(!shop.client.enqueue(shop.pool(), job(0)).await.unwrap().is_duplicate());
    let log = get(page, "/api/v1/operations", ANN).await.json();
    assert_eq!((&log[0]["action"], &log[0]["actor"]), (&json!("purge"), &json!("root")));
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_is_in_the_log() {
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), users()).await;
    let group = json!({"queue": "orders", "group": "customer-5", "reason": "their audit"});
    let mut preview = group.clone();
    preview["dry_run"] = json!(true);
    assert_eq!(act(page, ANN, "pause", &preview).await.status, 200);
    assert_eq!(get(page, "/api/v1/operations", ANN).await.json(), json!([]));

    assert_eq!(act(page, ANN, "pause", &group).await.status, 200);
    let skip = json!({"job": shop.poison, "reason": "a <b>typo</b>"});
    assert_eq!(act(page, ROOT, "skip", &skip).await.status, 200);
    let log = get(page, "/api/v1/operations", ANN).await.json();
    assert_eq!(log[0]["actor"], "root");
    assert_eq!(log[0]["action"], "skip");
    assert_eq!(log[0]["reason"], "a <b>typo</b>");
    assert_eq!(log[1]["actor"], "ann");
    assert_eq!(log[1]["group"], "customer-5");
    let body = get(page, "/log", ANN).await.body;
    assert!(body.contains("their audit"), "{body}");
    assert!(!body.contains("<b>typo"), "{body}");
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_parked_and_redriven() {
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), users()).await;
    let group = json!({"queue": "orders", "group": "customer-17", "reason": "later"});
    let parks = act(page, ANN, "park", &group).await;
    assert_eq!(parks.status, 200, "{}", parks.body);
    eventually("the jobs are parked", async || {
        get(page, "/parked", ANN).await.body.contains("redrive_parked")
    })
    .await;
    shop.mended.store(true, Ordering::Relaxed);
    let redriven = act(page, ANN, "redrive_parked", &group).await;
    assert_eq!(redriven.json()["jobs"], 4, "{}", redriven.body);
    shop.drained("orders", "customer-17").await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_aborted_and_a_delay_ended() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let job = NewJob::new("orders", &"slow").group("g").delay(Duration::from_hours(1));
    let job = shop.client.enqueue(shop.pool(), job).await.unwrap().id();
    let body = get(page, &format!("/job?id={job}"), ANN).await.body;
    assert!(body.contains("run_now") && !body.contains("abort"), "{body}");
    let preview = act(page, ANN, "abort", &json!({"job": job, "dry_run": true})).await;
    assert_eq!(preview.status, 409, "it does not run: {}", preview.body);
    assert_eq!(act(page, ANN, "run_now", &json!({"job": job, "reason": "now"})).await.status, 200);
    let attempts = async |attempts| {
        eventually("the attempt runs", async || {
            let job = shop.client.job(shop.pool(), job).await.unwrap().unwrap();
            job.status == JobStatus::Started && job.attempts == attempts
        })
        .await;
    };
    attempts(1).await;
    let preview = act(page, ANN, "abort", &json!({"job": job, "dry_run": true})).await;
    assert_eq!(preview.status, 200, "{}", preview.body);
    attempts(1).await;
    let aborted = act(page, ANN, "abort", &json!({"job": job, "reason": "it hangs"})).await;
    assert_eq!(aborted.status, 200, "{}", aborted.body);
    attempts(2).await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_say_what_they_serve() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let nodes = get(page, "/api/v1/nodes", ANN).await.json();
    assert_eq!(nodes[0]["alive"], true, "{nodes}");
    assert_eq!(nodes[0]["queues"], json!(["orders"]));
    let settings = "select seriatim.configure_queue('orders', '{\"max_attempts\": 77}')";
    sqlx::query(settings).execute(shop.pool()).await.unwrap();
    let body = get(page, "/nodes", ANN).await.body;
    assert!(body.contains(">alive<"), "{body}");
    assert!(!body.contains("release_node"), "it lives");
    assert!(body.contains("settings say 77 and count"), "{body}");
    let release = json!({"node": "gone", "reason": "its rack burned"});
    assert_eq!(act(page, ANN, "release_node", &release).await.status, 200);
    shop.close().await;
}

/// The answer to a pause has the request that takes it back, and so has that to its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_and_its_end_can_be_taken_back() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let of_group = json!({"queue": "orders", "group": "customer-5", "reason": "their audit"});
    let of_queue = json!({"queue": "orders", "reason": "their audit"});
    for body in [of_group, of_queue] {
        let mut preview = body.clone();
        preview["dry_run"] = json!(true);
        let preview = act(page, ANN, "pause", &preview).await.json();
        assert_eq!(preview.get("undo"), None, "nothing was done: {preview}");
        let paused = act(page, ANN, "pause", &body).await.json();
        assert_eq!(paused["undo"]["label"], "Resume", "{paused}");
        let take_back = async |undo: &serde_json::Value| {
            let answer = post(page, ACTIONS, ANN, &undo["body"]).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            answer.json()["undo"].clone()
        };
        let again = take_back(&paused["undo"]).await;
        assert!(!get(page, "/api/v1/stopped", ANN).await.body.contains("their audit"));
        // The reason of the pause comes back with it.
        assert_eq!(
            (&again["label"], &again["body"]["reason"]),
            (&json!("Pause"), &json!("their audit"))
        );
        let resume = take_back(&again).await;
        assert!(get(page, "/api/v1/stopped", ANN).await.body.contains("their audit"));
        take_back(&resume).await;
    }
    shop.close().await;
}

/// A pause that ends by itself says so, and comes back with its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_may_have_an_end() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let until = "2099-01-02T03:04:05Z";
    let of_group =
        json!({"queue": "orders", "group": "customer-17", "reason": "x", "until": until});
    let of_queue = json!({"queue": "orders", "reason": "x", "until": until});
    for body in [of_group, of_queue] {
        let mut subject = body.clone();
        subject.as_object_mut().unwrap().remove("until");
        let paused = act(page, ANN, "pause", &body).await;
        assert_eq!(paused.status, 200, "{}", paused.body);
        let message = paused.json()["message"].clone();
        assert!(message.as_str().unwrap().contains("until 2099-01-02 03:04:05 UTC"), "{message}");
        for path in ["/stopped", "/queue?name=orders"] {
            let body = get(page, path, ANN).await.body;
            assert!(body.contains("nds by itself"), "{path}: {body}");
        }
        let resumed = act(page, ANN, "resume", &subject).await.json();
        assert_eq!(resumed["undo"]["body"]["until"], until, "{resumed}");
        let again = act(page, ANN, "pause", &resumed["undo"]["body"]).await;
        assert_eq!(again.status, 200, "{}", again.body);
        assert_eq!(act(page, ANN, "resume", &subject).await.status, 200);
    }
    for until in ["2001-01-01T00:00:00Z", "tomorrow"] {
        let over = json!({"queue": "orders", "reason": "x", "until": until});
        assert_eq!(act(page, ANN, "pause", &over).await.status, 400, "{until}");
    }
    shop.close().await;
}
