//! Many groups and a deep one: each page answers, and a person finds a group among them.

use std::time::Instant;

use seriatim::{Client, NewJob};
use seriatim_web::Access;

use crate::browser::local;
use crate::chromium::{ENTER, browser};
use crate::size::size;
use crate::support::{ANN, Shop, get, serve, users};

/// Opens a shop with a queue `wide` of so many groups, and a deep one.
async fn wide_shop(groups: usize) -> Shop {
    let shop = Shop::open(2).await;
    let client = Client::default().notify(false);
    for chunk in (0..groups).collect::<Vec<_>>().chunks(5_000) {
        let jobs = chunk.iter().flat_map(|n| {
            let deep = NewJob::new("wide", &"fine").group("deep");
            [NewJob::new("wide", &"fine").group(format!("group {n:06}")), deep]
        });
        client.enqueue_many(shop.pool(), jobs).await.unwrap();
    }
    sqlx::query("vacuum analyze").execute(shop.pool()).await.unwrap();
    shop
}

/// `--nocapture` shows the times.
#[tokio::test(flavor = "multi_thread")]
async fn every_page_answers_with_many_groups() {
    let groups = size(5_000, 100_000);
    let shop = wide_shop(groups).await;
    let page = serve(shop.pool(), users()).await;
    for path in [
        "/",
        "/queue?name=wide",
        "/queue?name=wide&after=group%20001000",
        "/queue?name=wide&sort=wait",
        "/queue?name=wide&sort=depth",
        "/queue?name=wide&state=halted",
        "/queue?name=wide&find=group%20004",
        "/lane?queue=wide&group=deep",
        "/stopped",
        "/parked",
        "/failed",
        "/failed?queue=wide&error=none",
        "/find?q=group%20003",
        "/api/v1/queues",
    ] {
        let begin = Instant::now();
        let answer = get(page, path, ANN).await;
        // Each statement ends after 2 s, and a page that needs longer is an error.
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        println!("{groups} groups: {path} took {:?}", begin.elapsed());
    }
    shop.close().await;
}

/// From the queues to one group among many: by pages, by the filter, and by find.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_found_among_many_in_the_browser() {
    let Some(browser) = browser(false, 1280).await else { return };
    let groups = size(2_000, 100_000);
    let shop = wide_shop(groups).await;
    let page = serve(shop.pool(), local(Access::Operator)).await;
    browser.open(page, "/").await;
    browser.press("j").await;
    browser.press("j").await;
    browser.press(ENTER).await;
    browser.reads("h1", "Queue wide").await;
    // A count stops at its limit.
    let most = if groups > 10_000 { "10,000+ queued" } else { "4,000 queued" };
    browser.reads(".sum", most).await;
    // The longest waits come first; a link leads to all, by name.
    browser.see(".lane").await;
    browser.script("main.querySelector('a[href*=\"sort=name\"]').focus()").await;
    browser.press(ENTER).await;
    browser.reads(".lanes", "group 000000").await;
    let rows = "return main.querySelectorAll('.lane').length";
    assert_eq!(browser.script(rows).await, 25);
    browser.script("main.querySelector('a[rel=next]').focus()").await;
    browser.press(ENTER).await;
    // "deep" comes first, by its name.
    browser.reads(".lanes", "group 000024").await;
    assert_eq!(browser.script(rows).await, 25);
    browser.script("main.querySelector('input[name=find]').focus()").await;
    let last = format!("group {:06}", groups - 1);
    browser.press(&last[..10]).await;
    browser.press(ENTER).await;
    browser.reads(".lanes", &last[..10]).await;
    let others = "return [...main.querySelectorAll('.lane .name')] \
        .filter((at) => !at.textContent.startsWith(arguments[0])).length";
    let others = browser.client.execute(others, vec![last[..10].into()]).await.unwrap();
    assert_eq!(others, 0, "only those that begin so");
    browser.press("/").await;
    browser.press(&last).await;
    browser.press(ENTER).await;
    browser.reads("h1", "Find").await;
    browser.press("j").await;
    browser.press(ENTER).await;
    browser.reads("h1", &format!("Lane {last}")).await;
    browser.close().await;
    shop.close().await;
}
