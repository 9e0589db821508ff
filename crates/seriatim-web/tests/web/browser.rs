//! The page in headless Chromium, driven by keys as a person would.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use seriatim::admin::NewMoveTask;
use seriatim::receive::Receive;
use seriatim::testing::Jobs;
use seriatim::{NewBatch, NewJob, OutOfAttempts, Processor, QueueOptions, RetryPolicy, Schedule};
use seriatim_web::{Access, Auth, Config, Identity};

use crate::chromium::{ENTER, browser};
use crate::glance::an_hour;
use crate::support::{LIMIT, Shop, Work, encode, eventually, request, serve};

pub(crate) fn local(access: Access) -> Config {
    Config::new().auth(Auth::Loopback(access))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_group_is_found_explained_and_retried_by_keys() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/stopped").await;
    browser.refresh_soon().await;
    browser.reads(".lane", "customer-17").await;
    browser.press("j").await;
    browser.reads(".lane.selected", "customer-17").await;
    browser.press("e").await;
    browser.reads(".lane.selected .why.whole", "the bank answered 402").await;
    browser.press("r").await;
    browser.reads("#ask-preview", "is queued again in its old place").await;
    shop.mended.store(true, Ordering::Relaxed);
    browser.press("the bank is back").await;
    browser.press(ENTER).await;
    browser.reads("#told", "is queued again").await;
    shop.drained("orders", "customer-17").await;
    // It refreshes by itself.
    browser.reads("main", "Nothing is stopped.").await;
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_is_opened_paused_and_resumed_by_keys() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/").await;
    browser.press("j").await;
    browser.press(ENTER).await;
    browser.see(".lanes").await;
    browser.press("j").await;
    browser.press(ENTER).await;
    browser.see(".timeline").await;
    for (verb, then) in [("no other begins, until it is resumed", "Resume"), ("goes on", "Pause")] {
        browser.press("p").await;
        browser.reads("#ask-preview", verb).await;
        browser.press("their audit").await;
        browser.press(ENTER).await;
        browser.reads("[data-whole] .acts", then).await;
    }
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn find_leads_to_a_job() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(1).await;
    let page = serve(shop.pool(), local(Access::Viewer)).await;
    browser.open(page, "/").await;
    browser.press("/").await;
    browser.press(&shop.poison.to_string()).await;
    browser.press(ENTER).await;
    browser.reads("h1", "Find").await;
    browser.press("j").await;
    browser.press(ENTER).await;
    browser.reads("h1", &format!("Job {}", shop.poison)).await;
    // A viewer's key does nothing.
    browser.press("r").await;
    assert_eq!(browser.script("return document.getElementById('ask').open").await, false);
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_run_no_script() {
    let Some(browser) = browser(false, 400).await else { return };
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    let attack = "<img src=x onerror=\"window.harmed=1\"><script>window.harmed=1</script>";
    shop.enqueue("orders", attack, &format!("poison {attack}"), attack).await;
    shop.enqueue("orders", &"wide".repeat(100), "poison", &"wide".repeat(100)).await;
    shop.halted("orders", attack).await;
    shop.halted("orders", &"wide".repeat(100)).await;
    let lane = format!("/lane?queue=orders&group={}", encode(attack));
    let wide = format!("/lane?queue=orders&group={}", encode(&"wide".repeat(100)));
    for path in ["/", "/stopped", "/queue?name=orders", &lane, &wide] {
        browser.open(page, path).await;
        let harmed = browser.script("return window.harmed ?? 0").await;
        assert_eq!(harmed, 0, "{path}");
        let wider = "return document.documentElement.scrollWidth - window.innerWidth";
        assert!(browser.script(wider).await.as_i64().unwrap() <= 0, "{path} scrolls sideways");
    }
    browser.press("r").await;
    browser.reads("#ask-preview", "is queued again").await;
    assert_eq!(browser.script("return window.harmed ?? 0").await, 0);
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_progress_of_a_running_job_is_seen_as_it_moves() {
    let Some(browser) = browser(false, 400).await else { return };
    let shop = Shop::open(0).await;
    let (client, pool) = (seriatim::Client::default(), shop.pool());
    let import = NewJob::new("imports", &1).group("acme");
    let id = seriatim::enqueue(pool, import).await.unwrap().id();
    let visible = Receive::new("imports").visibility(Duration::from_mins(10));
    let received = client.receive(pool, visible).await.unwrap();
    let receipt = &received[0].receipt;
    client.progress(pool, receipt, 40, "page 4 of 10 <b>").await.unwrap();
    client.checkpoint(pool, receipt, &"SECRET CURSOR").await.unwrap();
    let page = serve(pool, local(Access::Viewer)).await;
    for path in [format!("/job?id={id}"), "/lane?queue=imports&group=acme".to_owned()] {
        client.progress(pool, receipt, 40, "page 4 of 10 <b>").await.unwrap();
        browser.open(page, &path).await;
        browser.refresh_soon().await;
        browser.reads(".far", "40 %, page 4 of 10 <b>").await;
        browser.reads(".why", "s: 40 %, page 4 of 10 <b>)").await;
        // Nothing of the queues changes: the page moves by itself.
        client.progress(pool, receipt, 70, "page 7 of 10").await.unwrap();
        browser.reads(".far", "70 %, page 7 of 10").await;
        let value = "return document.querySelector('progress').value";
        assert_eq!(browser.script(value).await, 70);
        let text = browser.script("return document.body.textContent").await;
        assert!(!text.as_str().unwrap().contains("SECRET"), "{text}");
        let wider = "return document.documentElement.scrollWidth - window.innerWidth";
        assert!(browser.script(wider).await.as_i64().unwrap() <= 0, "{path} scrolls sideways");
    }
    client.ack(pool, receipt).await.unwrap();
    browser.open(page, &format!("/job?id={id}")).await;
    browser.reads("h1", "succeeded").await;
    assert_eq!(
        browser.script("return document.querySelector('.far')").await,
        serde_json::Value::Null
    );
    browser.close().await;
    shop.close().await;
}

/// A refresh takes neither the focus, nor the selection, nor what was opened.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_moves_nothing() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/queue?name=orders").await;
    browser.refresh_soon().await;
    browser.press("j").await;
    browser.press("e").await;
    browser.see(".lane.selected .why.whole").await;
    let listen = "document.getElementById('main').addEventListener('refreshed', \
                  () => { window.refreshed = 1; })";
    browser.script(listen).await;
    shop.enqueue("orders", "customer-17", "fine", "ship").await;
    eventually("the page refreshed", async || {
        browser.script("return window.refreshed ?? 0").await == 1
    })
    .await;
    browser.see(".lane.selected .why.whole").await;
    let focused = browser.script("return document.activeElement.textContent").await;
    assert_eq!(focused, "customer-17");
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_parked_and_redriven_by_keys_after_a_preview() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(3).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/stopped").await;
    browser.refresh_soon().await;
    browser.reads(".lane", "customer-17").await;
    browser.press("j").await;
    browser.press("a").await;
    browser.reads("#ask-preview", "those that wait behind it step aside").await;
    browser.press("the bank is down").await;
    browser.press(ENTER).await;
    browser.reads("#told", "step aside").await;
    eventually("the jobs are parked", async || {
        !shop.client.parked_groups(shop.pool(), "orders").await.unwrap().is_empty()
    })
    .await;
    // One that came later runs, and so overtakes.
    shop.enqueue("orders", "customer-17", "fine", "late").await;
    shop.drained("orders", "customer-17").await;
    shop.mended.store(true, Ordering::Relaxed);
    browser.open(page, "/parked").await;
    browser.refresh_soon().await;
    browser.reads(".lane", "customer-17").await;
    browser.press("j").await;
    browser.press("d").await;
    browser.reads("#ask-preview", "4 jobs of 1 group are queued again").await;
    browser.reads("#ask-preview", "1 later job has already begun").await;
    browser.press("the bank is back").await;
    browser.press(ENTER).await;
    browser.reads("#told", "in their original order").await;
    shop.drained("orders", "customer-17").await;
    browser.reads("main", "Nothing is parked.").await;
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_picked_and_redriven_by_keys() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(0).await;
    for group in ["a", "b", "c"] {
        shop.enqueue("orders", group, "poison", "charge").await;
        shop.halted("orders", group).await;
    }
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/failed").await;
    browser.refresh_soon().await;
    browser.see("tr[data-row]:nth-of-type(3)").await;
    for key in ["j", "v", "j", "j", "v", "d"] {
        browser.press(key).await;
    }
    browser.reads("#ask-preview", "2 jobs of 2 groups are queued again").await;
    browser.press("mended").await;
    shop.mended.store(true, Ordering::Relaxed);
    browser.press(ENTER).await;
    browser.reads("#told", "are queued again").await;
    shop.drained("orders", "b").await;
    // Picked jobs stay picked across a refresh.
    let boxes = "return document.querySelectorAll('input[name=pick]').length";
    eventually("two are left", async || browser.script(boxes).await == 2).await;
    browser.press("j").await;
    browser.press("v").await;
    browser.script("return refresh()").await;
    let picked = "return document.querySelectorAll('input[name=pick]:checked').length";
    assert_eq!(browser.script(picked).await, 1);
    // By the mouse: all that the filter has, given up.
    browser.script("document.querySelectorAll('[data-bulk] button')[3].click()").await;
    browser.reads("#ask-about", "All dead letters").await;
    browser.reads("#ask-preview", "2 dead letters are given up: they end as cancelled").await;
    browser.press("a typo").await;
    browser.press(ENTER).await;
    browser.reads("main", "No dead letter.").await;
    browser.close().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_taken_back_by_one_key() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = Shop::open(1).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/lane?queue=orders&group=customer-17").await;
    browser.refresh_soon().await;
    browser.press("p").await;
    browser.reads("#ask-preview", "no other begins, until it is resumed").await;
    browser.press("their audit").await;
    browser.press(ENTER).await;
    browser.reads("h1", "paused").await;
    for (preview, paused) in [("goes on", false), ("until it is resumed", true)] {
        browser.press("u").await;
        // It shows what it does, as any other action, and has a reason already.
        browser.reads("#ask-preview", preview).await;
        browser.press(ENTER).await;
        eventually("it is taken back", async || {
            let all = shop.client.paused_groups(shop.pool(), "orders").await.unwrap();
            all.len() == usize::from(paused)
        })
        .await;
        let open = "return document.getElementById('ask').open";
        eventually("the question is gone", async || browser.script(open).await == false).await;
    }
    let paused = shop.client.paused_groups(shop.pool(), "orders").await.unwrap();
    assert_eq!(paused[0].reason.as_deref(), Some("their audit"));
    browser.close().await;
    shop.close().await;
}

/// Neither a button nor a key changes anything for a viewer, on any page.
#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_sees_no_button() {
    let Some(browser) = browser(false, 1280).await else { return };
    let shop = shop_in_every_state().await;
    shop.enqueue("odrers", "customer-1", "fine", "ship").await;
    let page = serve(shop.pool(), local(Access::Viewer)).await;
    let before = shop.client.operations(shop.pool(), None, 100).await.unwrap();
    for (name, path) in pages(&shop) {
        browser.open(page, &path).await;
        let buttons = "return main.querySelectorAll('.act, input[name=pick]').length";
        assert_eq!(browser.script(buttons).await, 0, "{name}");
        browser.press("jrspadxuv").await;
        assert_eq!(browser.script("return document.getElementById('ask').open").await, false);
        let forced = "return fetch('api/v1/actions', { method: 'POST', \
            headers: { 'content-type': 'application/json', 'x-seriatim': '1' }, \
            body: JSON.stringify({ action: 'redrive_matching', matching: {}, reason: 'forced' }) }).then(answer => answer.status)";
        assert_eq!(browser.script(forced).await, 403, "{name}");
    }
    assert_eq!(shop.client.operations(shop.pool(), None, 100).await.unwrap(), before);
    browser.close().await;
    shop.close().await;
}

/// Every page, each with something to show.
pub(crate) fn pages(shop: &Shop) -> Vec<(&'static str, String)> {
    vec![
        ("queues", String::from("/")),
        ("queue", String::from("/queue?name=orders")),
        ("queue-moves", String::from("/queue?name=mail")),
        ("queue-unserved", String::from("/queue?name=odrers")),
        ("lane", String::from("/lane?queue=orders&group=customer-17")),
        ("lane-running", String::from("/lane?queue=orders&group=customer-7")),
        ("job", format!("/job?id={}", shop.poison)),
        ("stopped", String::from("/stopped")),
        ("parked", String::from("/parked")),
        ("failed", String::from("/failed")),
        ("schedules", String::from("/schedules")),
        ("batches", String::from("/batches")),
        ("nodes", String::from("/nodes")),
        ("log", String::from("/log")),
        ("find", String::from("/find?q=customer-1")),
    ]
}

/// Opens a richer shop, in which each state can be seen.
pub(crate) async fn shop_in_every_state() -> Shop {
    let shop = Shop::open(9).await;
    let pool = shop.pool();
    let client = &shop.client;
    for data in ["fine", "fine", "nap", "fine", "flaky", "fine", "nap"] {
        shop.enqueue("orders", "customer-7", data, "ship").await;
    }
    shop.drained("orders", "customer-7").await;
    // Group names of a real shop, in the states that they are in.
    client
        .operator("bob", "their audit, until Friday")
        .pause_group(pool, "orders", "customer-42")
        .await
        .unwrap();
    for _ in 0..4 {
        shop.enqueue("orders", "customer-42", "fine", "ship").await;
    }
    let nightly = Schedule::every("close the day", Duration::from_hours(24));
    let nightly = nightly.job(NewJob::new("orders", &"fine").group("customer-42"));
    let mut conn = pool.acquire().await.unwrap();
    client.operator("ann", None).set_schedule(&mut conn, nightly).await.unwrap();
    drop(conn);
    let summary = NewBatch::new("march", NewJob::new("reports", &"fine").group("totals"));
    let batch = client.open_batch(pool, summary).await.unwrap();
    let part = NewJob::new("orders", &"fine").group("customer-42").batch(batch);
    client.enqueue(pool, part).await.unwrap();
    for n in [101, 102, 103] {
        let job = NewJob::new("orders", &"fine").group(format!("customer-{n}")).name("remind");
        client.enqueue(pool, job.delay(Duration::from_mins(n))).await.unwrap();
    }
    shop.enqueue("orders", "customer-7", "slow", "export").await;
    let behind = || NewJob::new("orders", &"fine").group("customer-7").name("ship");
    client.enqueue_many(pool, std::iter::repeat_with(behind).take(140)).await.unwrap();
    shop.enqueue("orders", "سلة \u{202e}مشتريات", "slow", "import").await;
    shop.enqueue("orders", "客户 88", "fine", "ship").await;
    shop.enqueue("orders", "customer-9", "fine", "ship").await;
    // Before the processor starts: only jobs that wait behind the failed one are parked.
    shop.enqueue("webhooks", "https://shop.example/hook", "poison", "post").await;
    for _ in 0..5 {
        shop.enqueue("webhooks", "https://shop.example/hook", "fine", "post").await;
    }
    let webhooks = QueueOptions::new("webhooks")
        .retry(RetryPolicy::new(1))
        .out_of_attempts(OutOfAttempts::Park);
    let work = Work { mended: std::sync::Arc::default() };
    let parks = Processor::builder(pool.clone())
        .queue(webhooks, work)
        .build()
        .unwrap()
        .start()
        .await
        .unwrap();
    eventually("jobs are parked", async || {
        !client.parked_groups(pool, "webhooks").await.unwrap().is_empty()
    })
    .await;
    Jobs::new(pool).wait_until_idle("webhooks", LIMIT).await.unwrap();
    parks.shutdown(Duration::from_secs(5)).await;
    for n in 0..3 {
        shop.enqueue("mail", &format!("to-{n}"), "fine", "letter").await;
    }
    let mut tx = pool.begin().await.unwrap();
    let task = client
        .operator("test", None)
        .start_move_task(&mut *tx, &NewMoveTask::new("mail").to("post").per_second(5))
        .await
        .unwrap();
    client.operator("test", None).cancel_move_task(&mut *tx, task).await.unwrap();
    tx.commit().await.unwrap();
    client.operator("ann", "the provider is down").pause_queue(pool, "mail").await.unwrap();
    shop.enqueue("reports", "nightly", "fine", "report").await;
    client.receive(pool, Receive::new("reports")).await.unwrap();
    shop
}

/// Takes the pictures of the guide. Run it with `SERIATIM_PICTURES=docs/guide/images`.
#[tokio::test(flavor = "multi_thread")]
async fn pictures_of_every_page() {
    let Some(folder) = std::env::var_os("SERIATIM_PICTURES").map(PathBuf::from) else { return };
    let shop = shop_in_every_state().await;
    let ann = shop.client.operator("ann", "the bank answers again");
    ann.run_now(shop.pool(), shop.enqueue("mail", "to-9", "fine", "letter").await).await.unwrap();
    let config = Config::new()
        .show_data(true)
        .access(|_| Identity { name: String::from("ann"), access: Access::Operator });
    let page = serve(shop.pool(), config).await;
    shop.enqueue("odrers", "customer-1", "fine", "ship").await;
    an_hour(shop.pool(), "orders", 40).await;
    let pages = pages(&shop);
    for (theme, dark) in [("light", false), ("dark", true)] {
        let Some(browser) = browser(dark, 1280).await else { return };
        for (name, path) in &pages {
            browser.open(page, path).await;
            if !["lane", "lane-running", "job"].contains(name) {
                browser.press("j").await;
            }
            let picture = browser.client.screenshot().await.unwrap();
            std::fs::write(folder.join(format!("page-{name}-{theme}.png")), picture).unwrap();
        }
        browser.open(page, "/queue?name=orders&state=halted").await;
        browser.press("r").await;
        browser.reads("#ask-preview", "is queued again").await;
        let picture = browser.client.screenshot().await.unwrap();
        std::fs::write(folder.join(format!("page-retry-{theme}.png")), picture).unwrap();
        browser.close().await;
    }
    let Some(browser) = browser(false, 500).await else { return };
    for (name, path) in
        [("queues", "/"), ("stopped", "/stopped"), ("failed", "/failed"), ("lane", &pages[3].1)]
    {
        browser.open(page, path).await;
        let picture = browser.client.screenshot().await.unwrap();
        std::fs::write(folder.join(format!("page-{name}-telephone.png")), picture).unwrap();
    }
    browser.close().await;
    assert_eq!(request(page, "GET", "/healthz", &[], "").await.status, 200);
    shop.close().await;
}
