//! Batches: listed, and given up.

use serde_json::json;
use seriatim::{NewBatch, NewJob};

use crate::support::{ANN, Shop, VIC, act, get, serve, users};

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_listed_and_abandoned() {
    let shop = Shop::open(0).await;
    let (pool, client) = (shop.pool(), &shop.client);
    let page = serve(pool, users()).await;
    let seen = get(page, "/batches", VIC).await.body;
    assert!(seen.contains("There is no batch that has not ended."), "{seen}");
    let follow_up = NewJob::new("totals", &1).group("totals");
    let batch = NewBatch::new("close <the> month", follow_up);
    let batch = client.open_batch(pool, batch).await.unwrap();
    let job = NewJob::new("statements", &1).group("account-41").batch(batch);
    let job = client.enqueue(pool, job).await.unwrap().id();

    let listed = get(page, "/api/v1/batches", VIC).await.json();
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&json!(batch), &json!("open")));
    let seen = get(page, "/batches", ANN).await.body;
    for words in
        ["close &#60;the&#62; month", "Seal it, or it never ends", "queue?name=totals", "Abandon"]
    {
        assert!(seen.contains(words), "{words}: {seen}");
    }
    let seen = get(page, "/batches", VIC).await.body;
    assert!(!seen.contains("data-action"), "a viewer changes nothing: {seen}");
    let seen = get(page, &format!("/job?id={job}"), VIC).await.body;
    assert!(seen.contains(&format!("It is of batch {batch}.")), "{seen}");

    let dry = json!({"batch": batch, "dry_run": true});
    let real = json!({"batch": batch, "reason": "it was withdrawn"});
    assert_eq!(act(page, VIC, "abandon_batch", &real).await.status, 403);
    let told = act(page, ANN, "abandon_batch", &dry).await.json();
    assert!(told["message"].as_str().unwrap().contains("no follow-up comes"), "{told}");
    assert_eq!(act(page, ANN, "abandon_batch", &real).await.status, 200);
    assert_eq!(act(page, ANN, "abandon_batch", &real).await.status, 409);
    let unknown = json!({"batch": batch + 1, "reason": "none"});
    assert_eq!(act(page, ANN, "abandon_batch", &unknown).await.status, 404);
    let seen = get(page, "/batches", ANN).await.body;
    assert!(seen.contains("There is no batch that has not ended."), "{seen}");
    let all = get(page, "/batches?all=true", ANN).await.body;
    assert!(all.contains("abandoned"), "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_batches_come_in_pages() {
    let shop = Shop::open(0).await;
    let page = serve(shop.pool(), users()).await;
    let open = "select seriatim.open_batch('b' || n || '.', 'totals', null, '{\"data\": 1}') \
                from generate_series(1, 101) n";
    sqlx::raw_sql(open).execute(shop.pool()).await.unwrap();
    let first = get(page, "/batches", VIC).await.body;
    assert!(first.contains("batches?before=2\"") && !first.contains(">b1.<"), "{first}");
    let second = get(page, "/batches?before=2", VIC).await.body;
    assert!(second.contains(">b1.<") && !second.contains(">b2.<"), "{second}");
}
