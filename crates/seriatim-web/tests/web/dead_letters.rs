//! Dead letters: their list, and redrive and discard by selection and by filter.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::QueueSettings;
use seriatim::{JobStatus, NewJob, OutOfAttempts, Processor, QueueOptions, RetryPolicy};

use crate::support::{ANN, Shop, VIC, Work, act, eventually, get, offers, serve, users};

/// A shop whose queue `letters` has `jobs`, each with group, data and name, that have failed.
async fn shop_with(jobs: &[(&str, &str, &str)]) -> (Shop, Vec<i64>) {
    let shop = Shop::open(0).await;
    let mut ids = Vec::new();
    for (group, data, name) in jobs {
        ids.push(shop.enqueue("letters", group, data, name).await);
    }
    work_off(&shop, jobs.len()).await;
    (shop, ids)
}

/// Runs the queue `letters` until `failed` jobs have failed and none is left.
pub(crate) async fn work_off(shop: &Shop, failed: usize) {
    let options = QueueOptions::new("letters")
        .retry(RetryPolicy::new(1))
        .out_of_attempts(OutOfAttempts::Continue);
    let running = Processor::builder(shop.pool().clone())
        .queue(options, Work { mended: shop.mended.clone() })
        .build()
        .unwrap()
        .start()
        .await
        .unwrap();
    eventually("all have ended", async || {
        let counts = shop.client.counts(shop.pool(), "letters").await.unwrap();
        counts.failed == failed as u64 && counts.unfinished() == 0
    })
    .await;
    running.shutdown(Duration::from_secs(5)).await;
}

async fn ids(page: std::net::SocketAddr, query: &str) -> Vec<i64> {
    let answer = get(page, &format!("/api/v1/failed?{query}"), VIC).await;
    assert_eq!(answer.status, 200, "{query}: {}", answer.body);
    let jobs = answer.json()["jobs"].as_array().unwrap().clone();
    jobs.iter().map(|job| job["id"].as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_filtered_and_paged() {
    let jobs = [
        ("a", "poison Card Expired", "charge"),
        ("a", "poison timeout", "charge"),
        ("b", "poison card expired", "refund"),
    ];
    let (shop, all) = shop_with(&jobs).await;
    let page = serve(shop.pool(), users()).await;
    // The one that halts its group is a dead letter, too.
    let every = [vec![shop.poison], all.clone()].concat();
    for (query, found) in [
        ("", &every[..]),
        ("queue=letters", &all[..]),
        ("queue=letters&group=a", &all[..2]),
        ("queue=letters&name=refund", &all[2..]),
        ("error=CARD+expired", &[all[0], all[2]]),
        ("within=hour", &every[..]),
        ("queue=none", &[]),
        ("queue=letters&limit=2", &all[..2]),
        (&format!("limit=2&after={}", all[0]), &all[1..]),
    ] {
        assert_eq!(ids(page, query).await, found, "{query}");
    }
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_age_of_dead_letters_is_that_of_their_failure() {
    let (shop, all) = shop_with(&[("a", "poison", "x"), ("a", "poison", "y")]).await;
    let old = "update seriatim.job set finished_at = now() - interval '3 days' where id = $1";
    sqlx::query(old).bind(all[0]).execute(shop.pool()).await.unwrap();
    let page = serve(shop.pool(), users()).await;
    assert_eq!(ids(page, "queue=letters&within=day").await, all[1..]);
    assert_eq!(ids(page, "queue=letters&within=week").await, all);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_dead_letters_follow_each_other() {
    let shop = Shop::open(0).await;
    for n in 0..120 {
        shop.enqueue("letters", &format!("g {}", n % 7), "poison", "a & b").await;
    }
    work_off(&shop, 120).await;
    let page = serve(shop.pool(), users()).await;
    let mut path = String::from("/failed?queue=letters&name=a+%26+b");
    let mut seen = 0;
    for _ in 0..5 {
        let body = get(page, &path, VIC).await.body;
        seen += body.matches("<tr data-row>").count();
        let Some((_, rest)) = body.split_once("rel=\"next\" href=\"") else { break };
        let next = rest.split('"').next().unwrap();
        path = format!("/{}", next.replace("&#38;", "&").replace("&amp;", "&"));
    }
    assert_eq!(seen, 120);
    shop.close().await;
}

/// Dead letters of a group run in their original order, however they were named. The preview
/// reports how many later jobs have run before them.
#[tokio::test(flavor = "multi_thread")]
async fn picked_ones_are_redriven_in_order() {
    let jobs = [("a", "poison", "1"), ("a", "poison", "2"), ("b", "poison", "3")];
    let (shop, all) = shop_with(&jobs).await;
    let later = shop.enqueue("letters", "a", "fine", "4").await;
    work_off(&shop, 3).await;
    let page = serve(shop.pool(), users()).await;
    let two = json!({"ids": [all[1], all[0]], "dry_run": true});
    let preview = act(page, ANN, "redrive_jobs", &two).await;
    assert_eq!(preview.status, 200, "{}", preview.body);
    let preview = preview.json();
    assert_eq!((&preview["jobs"], &preview["overtaken"]), (&json!(2), &json!(1)), "{preview}");
    assert!(preview["message"].as_str().unwrap().contains("1 later job has"), "{preview}");
    assert_eq!(ids(page, "queue=letters").await, all, "a preview changes nothing");

    shop.mended.store(true, Ordering::Relaxed);
    let two = json!({"ids": [all[1], all[0]], "reason": "mended"});
    let redriven = act(page, ANN, "redrive_jobs", &two).await.json();
    assert_eq!((&redriven["jobs"], &redriven["overtaken"]), (&json!(2), &json!(1)));
    assert_eq!(ids(page, "queue=letters").await, all[2..]);
    work_off(&shop, 1).await;
    let began = async |id| {
        let job = shop.client.job(shop.pool(), id).await.unwrap().unwrap();
        assert_eq!(job.status, JobStatus::Succeeded);
        job.last_started_at.unwrap()
    };
    assert!(began(all[0]).await < began(all[1]).await);
    assert!(began(later).await < began(all[0]).await);
    let log = get(page, "/api/v1/operations", ANN).await.json();
    assert_eq!((&log[0]["action"], &log[0]["reason"]), (&json!("redrive"), &json!("mended")));
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_redrives_and_discards_more_than_a_chunk() {
    let shop = Shop::open(0).await;
    let jobs = (0..2_300).map(|n| {
        NewJob::new("letters", &"poison").group(format!("g{}", n % 40)).name(["a", "b"][n % 2])
    });
    shop.client.enqueue_many(shop.pool(), jobs).await.unwrap();
    let fail = "update seriatim.job set status = 'failed', finished_at = now(), flagged = false,
        attempts = 1, error = (select error from seriatim.job where id = $1)
        where queue = 'letters'";
    sqlx::query(fail).bind(shop.poison).execute(shop.pool()).await.unwrap();
    let page = serve(shop.pool(), users()).await;
    let a = json!({"queue": "letters", "name": "a"});
    assert_eq!(ids(page, "queue=letters&limit=500").await.len(), 500);

    // As a program does it: again from `next` on, with the sums so far, until there is none.
    let all_of = async |action: &str, matching: Value, dry_run: bool| {
        let (mut after, mut so_far) = (None, json!({}));
        loop {
            let mut body = json!({"matching": matching, "reason": "mended", "dry_run": dry_run});
            body["so_far"] = so_far;
            body["matching"]["after"] = json!(after);
            let done = act(page, ANN, action, &body).await;
            assert_eq!(done.status, 200, "{}", done.body);
            let done = done.json();
            so_far = json!({"jobs": done["jobs"]});
            after = done["next"].as_i64();
            if after.is_none() {
                let said = done["message"].as_str().unwrap();
                assert!(said.contains(&format!("{} ", done["jobs"])), "{said}");
                return done["jobs"].as_u64().unwrap();
            }
        }
    };
    assert_eq!(all_of("redrive_matching", a.clone(), true).await, 1_150);
    assert_eq!(all_of("redrive_matching", a.clone(), false).await, 1_150);
    assert!(ids(page, "queue=letters&name=a").await.is_empty());
    assert_eq!(all_of("discard_matching", json!({"queue": "letters"}), false).await, 1_150);
    assert!(ids(page, "queue=letters").await.is_empty());
    let counts = shop.client.counts(shop.pool(), "letters").await.unwrap();
    assert_eq!((counts.queued, counts.cancelled), (1_150, 1_150));
    let again = json!({"matching": a, "reason": "twice"});
    assert_eq!(act(page, ANN, "redrive_matching", &again).await.status, 409);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_in_a_dead_letter_queue_are_listed_where_they_failed_and_come_back() {
    let shop = Shop::open(0).await;
    let settings = QueueSettings::new("letters").dead_letter_queue(String::from("aside"));
    shop.client.configure_queue(shop.pool(), settings).await.unwrap();
    let mut all = Vec::new();
    for group in ["a", "b", "a"] {
        all.push(shop.enqueue("letters", group, "poison", "x").await);
    }
    work_off(&shop, 0).await;
    let page = serve(shop.pool(), users()).await;
    assert_eq!(ids(page, "").await, [vec![shop.poison], all.clone()].concat());
    assert_eq!(ids(page, "queue=letters&within=hour").await, all);
    assert_eq!(ids(page, "queue=letters&limit=2").await, all[..2]);
    assert!(ids(page, "queue=aside").await.is_empty());
    for (path, words) in [
        ("/failed", "waits in <a href=\"queue?name=aside\">"),
        ("/queue?name=letters", "<a href=\"failed?queue=letters\">dead letters</a> go to"),
        ("/queue?name=aside", "<a href=\"failed?queue=letters\">Dead letters</a> of"),
        (&format!("/job?id={}", all[0]), "<a href=\"failed?queue=letters\">"),
        (&format!("/job?id={}", all[0]), "is a dead letter of queue"),
    ] {
        let body = get(page, path, VIC).await.body;
        assert!(body.contains(words), "{path}: {body}");
    }
    assert!(!get(page, "/queue?name=aside", VIC).await.body.contains(">unserved<"));
    let job = format!("/job?id={}", all[0]);
    for path in [&*job, "/queue?name=aside", "/lane?queue=aside&group=a"] {
        let body = get(page, path, ANN).await.body;
        for (action, offered) in [("redrive_jobs", true), ("discard_jobs", true), ("skip", false)] {
            assert_eq!(offers(&body, action), offered, "{action} on {path}: {body}");
        }
    }
    let skip = json!({"job": all[0], "reason": "x"});
    assert_eq!(act(page, ANN, "skip", &skip).await.status, 409);
    let mut redrive = json!({"matching": {"queue": "letters", "group": "a"}, "dry_run": true});
    let back = "2 of them go from a dead-letter queue back to the queue in which they failed";
    for (dry_run, left) in [(true, 3), (false, 1)] {
        redrive["dry_run"] = json!(dry_run);
        redrive["reason"] = json!("mended");
        let redriven = act(page, ANN, "redrive_matching", &redrive).await;
        let said = redriven.json();
        assert_eq!((&said["jobs"], &said["moved_back"]), (&json!(2), &json!(2)), "{said}");
        assert!(said["message"].as_str().unwrap().contains(back), "{said}");
        assert_eq!(ids(page, "queue=letters").await.len(), left);
    }
    assert_eq!(ids(page, "queue=letters").await, [all[1]]);
    let counts = shop.client.counts(shop.pool(), "letters").await.unwrap();
    assert_eq!(counts.queued, 2);
    // The API of a whole queue says so too.
    let redrive = json!({"queue": "letters", "reason": "mended"});
    let said = act(page, ANN, "redrive", &redrive).await.json();
    assert!(
        said["message"].as_str().unwrap().contains("it goes from a dead-letter queue back"),
        "{said}"
    );
    let parked = json!({"ids": [shop.poison], "dry_run": true});
    let said = act(page, ANN, "redrive_jobs", &parked).await.json();
    assert_eq!(said.get("moved_back"), None, "it failed where it is: {said}");
    shop.close().await;
}

/// Discarding a job that halted its group lets the group go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_discard_ends_a_halt() {
    let shop = Shop::open(2).await;
    let page = serve(shop.pool(), users()).await;
    let one = json!({"ids": [shop.poison], "reason": "a typo"});
    let discarded = act(page, ANN, "discard_jobs", &one).await;
    assert_eq!(discarded.json()["jobs"], 1, "{}", discarded.body);
    shop.drained("orders", "customer-17").await;
    let job = shop.client.job(shop.pool(), shop.poison).await.unwrap().unwrap();
    assert_eq!(job.status, JobStatus::Cancelled);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_named_in_one_way() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let (named, matching) = ("redrive_jobs", "redrive_matching");
    for (action, body, status) in [
        (named, json!({"reason": "x"}), 400),
        (named, json!({"ids": [], "reason": "x"}), 400),
        (named, json!({"ids": vec![1; 501], "reason": "x"}), 400),
        (named, json!({"ids": [1], "matching": {}, "reason": "x"}), 400),
        (named, json!({"ids": [1.5], "reason": "x"}), 400),
        (named, json!({"ids": ["1e400"], "reason": "x"}), 400),
        (matching, json!({"reason": "x"}), 400),
        (matching, json!({"matching": {"within": "year"}, "reason": "x"}), 400),
        (matching, json!({"matching": {"error": "\0"}, "reason": "x"}), 400),
        (matching, json!({"matching": {}, "reason": " "}), 400),
        (named, json!({"ids": [i64::MAX], "reason": "x"}), 409),
    ] {
        let answer = act(page, ANN, action, &body).await;
        assert_eq!(answer.status, status, "{action} {body}: {}", answer.body);
        assert!(answer.json()["error"].is_string());
    }
    let one = json!({"ids": [shop.poison], "reason": "x"});
    assert_eq!(act(page, VIC, named, &one).await.status, 403);
    let body = get(page, "/failed", VIC).await.body;
    assert!(body.contains(&format!("job?id={}", shop.poison)), "{body}");
    assert!(
        !body.contains("<button type=\"button\" class=\"act") && !body.contains("name=\"pick\"")
    );
    assert!(get(page, "/failed", ANN).await.body.contains("name=\"pick\""));
    shop.close().await;
}
