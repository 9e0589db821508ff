//! The page at a glance: charts of the last hour, lanes as a picture, what an empty page teaches,
//! what it says while the database is away; and its size.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use seriatim::admin::QueueSettings;
use seriatim::receive::Receive;
use seriatim::testing::{Server, TestDatabase};
use seriatim::{Client, NewJob};
use seriatim_web::Access;
use sqlx::{AssertSqlSafe, PgPool};

use crate::browser::local;
use crate::chromium::browser;
use crate::size::{long, size};
use crate::support::{Shop, eventually, get, serve};

/// A page, with its stylesheet and its script, has so many bytes at most.
const MOST_BYTES: usize = 60_000;

/// Opens a shop whose queue `orders` is busy: lanes that are halted and paused, that run, and that
/// wait; and an hour of jobs that ended.
pub(crate) async fn busy_shop() -> Shop {
    let mut shop = Shop::open(9).await;
    let (pool, client) = (shop.db.pool().clone(), Client::default());
    for (group, data) in [("customer-31", "poison"), ("customer-31", "fine")] {
        shop.enqueue("orders", group, data, "charge card").await;
    }
    shop.halted("orders", "customer-31").await;
    shop.running.take().unwrap().shutdown(Duration::from_secs(5)).await;
    let bob = client.operator("bob", "their audit, until Friday");
    bob.pause_group(&pool, "orders", "customer-42").await.unwrap();
    for n in 0..60_u32 {
        for _ in 0..=n % 4 {
            shop.enqueue("orders", &format!("customer-{n}"), "fine", "ship").await;
        }
    }
    let visible = || Receive::new("orders").visibility(Duration::from_mins(30));
    for _ in 0..6 {
        assert_eq!(client.receive(&pool, visible()).await.unwrap().len(), 1);
    }
    client.configure_queue(&pool, QueueSettings::new("orders").in_flight_limit(6)).await.unwrap();
    // As if it had gone on for a while.
    for change in [
        "update seriatim.queue_group set halted_at = now() - interval '47 min' where group_id = 'customer-17'",
        "update seriatim.queue_group set halted_at = now() - interval '6 min' where group_id = 'customer-31'",
        "update seriatim.group_setting set paused_at = now() - interval '26 h'",
        "update seriatim.queue_group set started_at = now() - (job_id % 7) * interval '9 s' where job_id is not null",
        "update seriatim.job set run_at = now() - (id % 40) * interval '13 s' where status = 'queued'",
        "update seriatim.job set run_at = now() + interval '20 min', turn_at = now() + interval '20 min'
           where status = 'queued' and group_id in ('customer-58', 'customer-59')",
    ] {
        sqlx::query(change).execute(&pool).await.unwrap();
    }
    an_hour(&pool, "orders", 40).await;
    shop
}

/// Makes a queue whose jobs ended over the last hour, some of them as failed, and has it counted.
pub(crate) async fn an_hour(pool: &PgPool, queue: &str, most: u32) {
    let ended = "insert into seriatim.job (queue, group_id, status, finished_at, last_started_at, run_at, data)
        select $1, 'customer-' || n, 
          (case when m between 44 and 49 and n % 9 = 0 then 'failed' else 'succeeded' end)::seriatim.job_status,
          t.at, t.at - interval '50 ms',
          t.at - interval '50 ms' - (m % 13 + n % 20 + 1) * (case when m between 43 and 52 then 150 else 12 end)
            * interval '1 ms', '1'
        from generate_series(1, 60) m
        cross join lateral generate_series(1, ($2 * (1.2 + sin(m / 7.0)) / 2)::integer) n
        cross join lateral (
          select date_trunc('minute', now()) - m * interval '1 min' + n * interval '0.9 s' as at) t";
    sqlx::query(ended).bind(queue).bind(i32::try_from(most).unwrap()).execute(pool).await.unwrap();
    for _ in 0..12 {
        let again = "update seriatim.queue_metrics set collected_at = '-infinity'";
        sqlx::query(again).execute(pool).await.unwrap();
        Client::default().collect_metrics(pool, Duration::from_secs(15)).await.unwrap();
    }
}

/// Writes what the browser shows into the folder that the environment names, for people to look at.
async fn picture(browser: &crate::chromium::Browser, name: &str) {
    let Some(folder) = std::env::var_os("SERIATIM_PICTURES").map(PathBuf::from) else { return };
    let picture = browser.client.screenshot().await.unwrap();
    std::fs::write(folder.join(format!("page-{name}.png")), picture).unwrap();
}

/// Returns the looks that a page may have. A plain run has the narrow one, if it takes no pictures.
fn looks() -> impl Iterator<Item = (&'static str, bool, u32)> {
    let all = [("light", false, 1280), ("dark", true, 1280), ("telephone", false, 360)];
    let pictures = std::env::var_os("SERIATIM_PICTURES").is_some();
    all.into_iter().skip(if pictures { 0 } else { size(2, 0) })
}

/// Returns the bytes of an address with the stylesheet and the script that it names.
async fn bytes_of(page: SocketAddr, path: &str) -> usize {
    let html = get(page, path, "").await;
    assert_eq!(html.status, 200, "{path}: {}", html.body);
    let mut bytes = html.body.len();
    for mark in ["<link rel=\"stylesheet\" href=\"", "<script src=\""] {
        let asset = html.body.split_once(mark).unwrap().1.split('"').next().unwrap();
        bytes += get(page, &format!("/{asset}"), "").await.body.len();
    }
    println!("{path}: {bytes} bytes, {} of them HTML", html.body.len());
    bytes
}

/// No framework, and no more than a person waits for: a queue with more lanes than its page shows.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_page_is_small() {
    let shop = busy_shop().await;
    let page = serve(shop.pool(), local(Access::Admin)).await;
    for path in ["/queue?name=orders", "/"] {
        let bytes = bytes_of(page, path).await;
        assert!(bytes < MOST_BYTES, "{path} has {bytes} bytes");
    }
    shop.close().await;
}

/// Who stands comes first, then who waits, who runs, and who is not due; each with its words.
#[tokio::test(flavor = "multi_thread")]
async fn the_lanes_of_a_busy_queue_are_a_picture() {
    let shop = busy_shop().await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    for (look, dark, width) in looks() {
        let Some(browser) = browser(dark, width).await else { return };
        browser.open(page, "/").await;
        browser.reads(".spark", "failed").await;
        picture(&browser, &format!("glance-{look}")).await;
        browser.open(page, "/queue?name=orders").await;
        browser.reads(".hour", "in the last hour").await;
        let states = "return [...main.querySelectorAll('.lane')] \
            .map((lane) => lane.querySelector('.state').textContent)";
        let states = browser.script(states).await;
        let states: Vec<_> =
            states.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
        assert_eq!(states[..3], ["paused", "halted", "halted"], "{states:?}");
        let order = ["paused", "halted", "ready", "running", "delayed"];
        let places = states.iter().map(|state| order.iter().position(|it| it == state).unwrap());
        assert!(places.is_sorted_by(|a, b| a <= b), "{states:?}");
        assert_eq!(states.len(), 24);
        assert_eq!(states.iter().filter(|state| **state == "running").count(), 5, "{states:?}");
        // Each lane has its bar, and says the same in words.
        let bars = "return main.querySelectorAll('.lane .track path:not(.next)').length";
        assert!(browser.script(bars).await.as_u64().unwrap() >= 22);
        browser.reads(".lane:nth-of-type(2)", "their audit").await;
        browser.reads(".lane:nth-of-type(3)", "the bank answered 402").await;
        browser.reads(".lane:nth-of-type(3)", "stopped 4").await;
        browser.reads(".axis", "now").await;
        let wider = "return document.documentElement.scrollWidth - window.innerWidth";
        assert!(browser.script(wider).await.as_i64().unwrap() <= 0, "{look} scrolls sideways");
        picture(&browser, &format!("busy-{look}")).await;
        // A lane that runs is a line, until it is looked at.
        let hidden =
            "return [...main.querySelectorAll('.calm .more')].every((at) => !at.checkVisibility())";
        assert_eq!(browser.script(hidden).await, true);
        browser.press(&"j".repeat(23)).await;
        browser.reads(".calm.selected .more", "Pause").await;
        picture(&browser, &format!("busy-selected-{look}")).await;
        browser.press("p").await;
        browser.reads("#ask-preview", "no other begins").await;
        browser.close().await;
    }
    shop.close().await;
}

/// The statement that an empty page shows makes the queue, which then appears by itself.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_page_teaches_the_first_job() {
    let db = TestDatabase::create().await.unwrap();
    Client::default().migrate(db.pool()).await.unwrap();
    let page = serve(db.pool(), local(Access::Operator)).await;
    for (look, dark, width) in looks() {
        let Some(browser) = browser(dark, width).await else { return };
        browser.open(page, "/").await;
        browser.reads("main", "There is no queue yet").await;
        let wider = "return document.documentElement.scrollWidth - window.innerWidth";
        assert!(browser.script(wider).await.as_i64().unwrap() <= 0, "{look} scrolls sideways");
        picture(&browser, &format!("empty-{look}")).await;
        if look == "telephone" {
            let sql = "return main.querySelectorAll('pre')[1].textContent";
            let sql = browser.script(sql).await.as_str().unwrap().to_owned();
            browser.refresh_soon().await;
            sqlx::query(AssertSqlSafe(sql)).execute(db.pool()).await.unwrap();
            browser.reads(".queues", "orders").await;
            browser.open(page, "/queue?name=orders").await;
            browser.reads("main", "nobody counts").await;
            picture(&browser, "uncounted-telephone").await;
        }
        browser.close().await;
    }
    db.remove().await.unwrap();
}

/// A page that is open stays, says that the database is away, and comes back; so does one that is
/// opened meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_whose_database_is_away_comes_back_by_itself() {
    if !long() {
        return;
    }
    let server = Server::start().await.unwrap();
    let db = TestDatabase::create_on(&server).await.unwrap();
    let client = Client::default();
    client.migrate(db.pool()).await.unwrap();
    client.enqueue(db.pool(), NewJob::new("orders", &"x").group("customer-17")).await.unwrap();
    let page = serve(db.pool(), local(Access::Operator)).await;
    let Some(open) = browser(false, 1280).await else { return };
    open.open(page, "/queue?name=orders").await;
    open.refresh_soon().await;
    server.stop_immediately().await.unwrap();
    open.reads("#away", "The database does not answer.").await;
    open.reads("#as-of", "as of").await;
    open.reads(".lanes", "customer-17").await;
    picture(&open, "away-light").await;
    let Some(new) = browser(true, 360).await else { return };
    new.client.goto(&format!("http://localhost:{}/queue?name=orders", page.port())).await.unwrap();
    new.reads("main", "The database does not answer.").await;
    picture(&new, "away-new-telephone").await;
    server.start_again().await.unwrap();
    new.reads(".lanes", "customer-17").await;
    let hidden = "return document.getElementById('away').hidden";
    eventually("the page is back", async || open.script(hidden).await == true).await;
    client.enqueue(db.pool(), NewJob::new("orders", &"x").group("customer-18")).await.unwrap();
    open.reads(".lanes", "customer-18").await;
    // A frozen server closes nothing, and answers nothing.
    let frozen = "source.close(); window.fetch = () => new Promise(() => {}); heardAt = 0";
    open.script(frozen).await;
    open.reads("#away", "has said nothing for 15 s").await;
    for browser in [open, new] {
        browser.close().await;
    }
}
