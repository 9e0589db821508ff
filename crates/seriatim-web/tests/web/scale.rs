//! Many groups and a deep one: what each page costs.

use std::time::Instant;

use seriatim::{Client, NewJob};

use crate::support::{ANN, Shop, get, serve, users};

/// With `SERIATIM_TEST_SIZE=ci` there are 100,000 groups and 200,000 jobs; `--nocapture` shows the
/// times.
#[tokio::test(flavor = "multi_thread")]
async fn every_page_answers_with_many_groups() {
    let groups = match std::env::var("SERIATIM_TEST_SIZE").as_deref() {
        Ok("ci") => 100_000,
        _ => 5_000,
    };
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
