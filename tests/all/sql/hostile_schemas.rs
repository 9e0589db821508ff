//! Hostile names of schemas: refused with words, or all of the library works there.

use serde_json::json;
use seriatim::receive::Receive;
use seriatim::testing::Jobs;
use seriatim::{Client, NewJob};

use crate::features::hostile::{generate, nothing_else_happened, text};
use crate::support::{chain, database, enqueue, handler, queue, size};

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_schema_name_works_or_is_refused_with_words() {
    let database = database().await;
    let pool = database.pool();
    let stranger = enqueue(pool, "stranger", "g", "untouched").await;
    // A newcomer's run has the first ones.
    let fixed = [
        "a\"b'c",
        "?1 $1 %s {}",
        "$f$ $",
        "{schem",
        "UPPER lower",
        "\\",
        ";--/*",
        "a.b",
        " ",
        "\u{202e}ü",
        "🦀🦀🦀",
    ];
    let good = ["ü".repeat(25), "x".repeat(50)].into_iter().chain(fixed.map(str::to_owned));
    let schemas = good.take(size(5, 13)).map(|name| (name, true)).chain(
        [
            "",
            "a\0b",
            "a\nb",
            "pg_jobs",
            "information_schema",
            "$user",
            "a$$b",
            "{schema}",
            "{go}",
            &"ü".repeat(26),
            &"x".repeat(63),
        ]
        .map(|name| (name.to_owned(), false)),
    );
    let mut schemas: Vec<(String, Option<bool>)> =
        schemas.map(|(name, good)| (name, Some(good))).collect();
    schemas.extend(generate(&text(50), size(1, 6)).into_iter().map(|name| (name, None)));
    for (schema, good) in schemas {
        let client = match Client::new(&schema) {
            Ok(client) => client,
            Err(error) => {
                assert_ne!(good, Some(true), "{schema:?}: {error}");
                let words = error.to_string();
                let helps = ["empty", "bytes", "control", "choose another"];
                assert!(helps.iter().any(|help| words.contains(help)), "{schema:?}: {words}");
                continue;
            }
        };
        assert_ne!(good, Some(false), "{schema:?}");
        client.migrate(pool).await.unwrap_or_else(|error| panic!("{schema:?}: {}", chain(&error)));
        client.operator("test", None).pause_group(pool, "q", "g").await.unwrap();
        client.operator("test", None).resume_group(pool, "q", "g").await.unwrap();
        let id = client.enqueue(pool, NewJob::new("q", &1).group("g")).await.unwrap().id();
        let run = handler(async |_, data| Ok(data));
        assert_eq!(Jobs::of(pool, &client).drain(queue("q"), run).await.unwrap(), 1, "{schema:?}");
        let done = client.job(pool, id).await.unwrap().unwrap();
        assert_eq!(done.result, Some(json!(1)));
        client.enqueue(pool, NewJob::new("q", &2).group("g")).await.unwrap();
        let received = client.receive(pool, Receive::new("q")).await.unwrap();
        client.ack(pool, &received[0].receipt).await.unwrap();
        assert!(client.explain_job(pool, id).await.unwrap().is_some());
    }
    nothing_else_happened(&database, stranger).await;
}
