//! Headers travel with a job, beside its data.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use seriatim::receive::Receive;
use seriatim::{Client, Hold, NewJob};

use crate::support::{Log, database, handler_with, processor, queue, serve, sample};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn with_headers(n: u32) -> NewJob {
    let job = NewJob::new("q", &n).group("g").header("traceparent", "another");
    job.header("traceparent", PARENT).header("tenant", format!("\"{n}\" ü\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_see_the_headers_of_each_job() {
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_secs(30))]) {
        let database = database().await;
        let (pool, client, log) = (database.pool(), Client::default(), Log::default());
        // One by one, in a batch, by SQL, and none.
        client.enqueue(pool, with_headers(0)).await.unwrap();
        client.enqueue_many(pool, [with_headers(1), NewJob::new("q", &2).group("g")]).await.unwrap();
        sqlx::query("select seriatim.enqueue('q', '3', 'g', headers => '{\"tenant\": \"sql\"}')")
            .execute(pool)
            .await
            .unwrap();
        let run = handler_with(log.clone(), async |log, job, data| {
            log.add(serde_json::to_string(job.headers()).unwrap_or_default());
            Ok(data)
        });
        let running = serve(&database, 10, queue("q").hold(hold), run).await;
        let seen = log.wait_for(4).await;
        let headers = |n: u32| json!({"traceparent": PARENT, "tenant": format!("\"{n}\" ü\n")});
        let expected = [headers(0), headers(1), json!({}), json!({"tenant": "sql"})];
        assert_eq!(seen, expected.map(|headers| headers.to_string_sorted()));
        running.shutdown(Duration::from_secs(5)).await;
    }
}

trait Sorted {
    fn to_string_sorted(&self) -> String;
}

impl Sorted for serde_json::Value {
    fn to_string_sorted(&self) -> String {
        let sorted: BTreeMap<String, String> = serde_json::from_value(self.clone()).unwrap();
        serde_json::to_string(&sorted).unwrap()
    }
}

#[tokio::test]
async fn receivers_and_lists_show_headers() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let id = client.enqueue(pool, with_headers(0)).await.unwrap().id();
    let received = client.receive(pool, Receive::new("q")).await.unwrap();
    assert_eq!(received[0].headers["traceparent"], PARENT);
    assert_eq!(client.job(pool, id).await.unwrap().unwrap().headers, received[0].headers);
}

#[tokio::test]
async fn headers_that_cannot_be_stored_are_refused() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    for job in [
        NewJob::new("q", &1).header("long", "x".repeat(4_096)),
        NewJob::new("q", &1).header("", "x"),
        NewJob::new("q", &1).header("nul", "\0"),
    ] {
        client.enqueue(pool, job).await.unwrap_err();
    }
    let long = format!("{{\"long\": \"{}\"}}", "x".repeat(4_096));
    for (headers, says) in [
        ("[1]", "no object of strings"),
        ("{\"n\": 1}", "no object of strings"),
        (&*long, "at most 4096 are allowed"),
    ] {
        let refused = sqlx::query("select seriatim.enqueue('q', '3', headers => $1::text::jsonb)")
            .bind(headers)
            .execute(pool)
            .await
            .unwrap_err();
        assert!(refused.to_string().contains(says), "{refused}");
    }
    assert_eq!(client.counts(pool, "q").await.unwrap().unfinished(), 0);
}
