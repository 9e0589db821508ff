//! JSON is passed on as text: `serde_json` would round its numbers.

use serde_json::value::RawValue;
use seriatim::receive::Receive;

use crate::support::{Cli, DONE, Served, USAGE, get};

/// Numbers that an `f64` does not hold, or spells otherwise.
fn awkward(random: &mut fastrand::Rng) -> String {
    let mut digits = |n: usize| (0..n).map(|_| random.digit(10)).collect::<String>();
    let (long, fraction) = (digits(22), digits(24));
    let fixed = "12345678901234567890123, 1234567890123456.78, 1.10, 100.000, 0.1, -0.0, 1e400, -2.50E-3, \
                 18446744073709551616, 9007199254740993";
    format!(
        "{{\"n\": [{fixed}, 1{long}, -0.{fraction}, 3{long}.{fraction}, {{\"e\": 7.{fraction}e{}}}], \"s\": \"1.10 \\\"\"}}",
        random.i16(-90..90)
    )
}

#[tokio::test]
async fn numbers_keep_their_digits_through_every_door() {
    let cli = Cli::new().await;
    let pool = cli.database.pool();
    let seed = fastrand::u64(..);
    let given = &*awkward(&mut fastrand::Rng::with_seed(seed));
    println!("seed {seed}: {given}");
    let kept: String = sqlx::query_scalar("select $1::text::jsonb::text")
        .bind(given)
        .fetch_one(pool)
        .await
        .unwrap();
    let kept = &*kept;
    assert!(kept.contains("12345678901234567890123, 1234567890123456.78, 1.10, 100.000, "));
    let stored = async |job: i64| {
        let stored =
            sqlx::query_scalar::<_, String>("select data::text from seriatim.job where id = $1");
        assert_eq!(stored.bind(job).fetch_one(pool).await.unwrap(), kept);
    };
    let field = async |name: &str, args: &[&str]| {
        let out = cli.ends(DONE, &[&["--json"], args].concat()).await.out;
        assert!(out.contains(&format!("\"{name}\":{kept}")), "{args:?}: {out}");
        serde_json::from_str::<std::collections::BTreeMap<String, Box<RawValue>>>(
            out.lines().last().unwrap(),
        )
        .unwrap()
    };

    let open = ["batch", "open", "b", "--queue", "ends", "--data", given, "--yes"];
    let batch = cli.json(&open).await[0]["batch"].to_string();
    let enqueue = ["enqueue", "q", "--group", "g", "--data", given, "--batch", &batch];
    let job = cli.json(&enqueue).await[0]["job"].as_i64().unwrap();
    stored(job).await;
    cli.ends(DONE, &["batch", "seal", &batch]).await;
    let id = &*job.to_string();
    let moved = cli.json(&["job", "move", id, "--to", "other", "--yes"]).await;
    let job = moved[0]["jobs"][0]["new_job"].as_i64().unwrap();
    stored(job).await;
    let id = &*job.to_string();
    field("data", &["job", "show", id, "--data"]).await;
    let shown = cli.ends(DONE, &["job", "show", id, "--data"]).await.out;
    assert!(shown.contains(kept), "{shown}");
    assert_eq!(cli.client.job(pool, job).await.unwrap().unwrap().data_text(), kept);

    let received = cli.client.receive(pool, Receive::new("other")).await.unwrap().remove(0);
    assert_eq!(received.data_text(), kept);
    assert_eq!(received.decode::<Box<RawValue>>().unwrap().get(), kept);
    let receipt = &*received.receipt.to_string();
    cli.ends(DONE, &["progress", receipt, "1", "--checkpoint", given]).await;
    cli.ends(DONE, &["nack", receipt, "--delay", "0s"]).await;
    let fields = field("data", &["receive", "other"]).await;
    assert_eq!(fields["checkpoint"].get(), kept);
    let receipt: String = serde_json::from_str(fields["receipt"].get()).unwrap();
    cli.ends(DONE, &["ack", &receipt, "--result", given]).await;
    field("result", &["job", "show", id, "--data"]).await;
    assert_eq!(cli.client.job(pool, job).await.unwrap().unwrap().result_text(), Some(kept));
    let ended = cli.client.batch_jobs(pool, batch.parse().unwrap(), None).await.unwrap();
    assert_eq!(ended[0].result_text(), Some(kept));

    cli.client.end_batches(pool).await.unwrap();
    let follow_up = "select id from seriatim.job where queue = 'ends'";
    stored(sqlx::query_scalar(follow_up).fetch_one(pool).await.unwrap()).await;
    let every =
        ["schedule", "set", "s", "--every", "1d", "--queue", "fired", "--data", given, "--yes"];
    cli.ends(DONE, &every).await;
    let fired = cli.json(&["schedule", "fire", "s"]).await[0]["job"].as_i64().unwrap();
    stored(fired).await;

    let page = ["serve", "--listen", "127.0.0.1:0", "--auth", "none", "--show-data", "--json"];
    let page = Served::start(&mut cli.command(&page)).await;
    let url = page.text("url").trim_end_matches('/');
    let shown = get(&format!("{url}/api/v1/jobs/{id}"), "").await;
    for name in ["data", "result"] {
        assert!(shown.contains(&format!("\"{name}\":{kept}")), "{shown}");
    }
    let shown = get(&format!("{url}/job?id={id}"), "").await;
    let numbers = kept
        .split(['[', ']', '{', '}', ',', ' '])
        .filter(|n| n.starts_with(|c: char| c == '-' || c.is_ascii_digit()));
    for number in numbers {
        assert!(shown.contains(&format!(" {number}")), "{number}: {shown}");
    }
    page.interrupt().await;
    let sqs = ["serve", "sqs", "--anonymous", "--listen", "127.0.0.1:0", "--json"];
    let sqs = Served::start(&mut cli.command(&sqs)).await;
    let ask = async |query: &str| get(&format!("{}?{query}", sqs.text("endpoint")), "").await;
    ask("Action=CreateQueue&QueueName=fired").await;
    let received = ask("Action=ReceiveMessage&QueueUrl=fired").await.replace("&quot;", "\"");
    assert!(received.contains(kept), "{received}");
    sqs.interrupt().await;
    cli.remove().await;
}

/// The command line refuses what `jsonb` cannot hold.
#[tokio::test]
async fn json_that_no_job_can_have_is_refused() {
    let cli = Cli::new().await;
    for (data, words) in [
        ("01", "is no JSON"),
        ("[1.]", "is no JSON"),
        ("1 2", "is no JSON"),
        ("", "is no JSON"),
        (r#""\u0000""#, "NUL"),
        (r#""\ud800""#, "PostgreSQL cannot hold an argument"),
        ("1e200000", "PostgreSQL cannot hold an argument"),
    ] {
        let refused = cli.ends(USAGE, &["enqueue", "q", "--data", data]).await.err;
        assert!(refused.contains(words), "{data}: {refused}");
    }
    cli.remove().await;
}
