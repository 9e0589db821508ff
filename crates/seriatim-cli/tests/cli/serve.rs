//! `seriatim serve`: the page, SQS clients, and their keys.

use std::process::Stdio;

use serde_json::{Value, json};
use seriatim::JobStatus;
use tokio::process::Command;

use crate::support::{Cli, DONE, NOTHING, REFUSED, Served, USAGE, get};

#[tokio::test]
async fn the_page_is_served_to_those_who_prove_who_they_are() {
    let cli = Cli::new().await;
    cli.enqueue("ann").await;
    let mut serve = cli.command(&["serve", "--listen", "127.0.0.1:0", "--json"]);
    let mut serve = Served::start(serve.env("SERIATIM_SECRET", "secret")).await;
    assert_eq!(serve.told["generated_secret"], Value::Null);
    let address = serve.text("url");
    let closed = get(address, "").await;
    assert!(closed.starts_with("HTTP/1.1 401"), "{closed}");
    // operator:secret
    let page = get(address, "Authorization: Basic b3BlcmF0b3I6c2VjcmV0\r\n").await;
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("orders"), "{page}");
    serve.child.kill().await.unwrap();

    let open = ["serve", "--listen", "0.0.0.0:0", "--auth", "none"];
    cli.ends(USAGE, &open).await;
    cli.remove().await;
}

#[tokio::test]
async fn sqs_is_served_on_a_private_server() {
    let mut sqs = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    sqs.args(["serve", "sqs", "--embedded", "--listen", "127.0.0.1:0", "--json"]);
    let sqs = Served::start(&mut sqs).await;
    let endpoint = sqs.text("endpoint");
    let made = get(&format!("{endpoint}?Action=CreateQueue&QueueName=q"), "").await;
    assert!(made.contains("<QueueUrl>http://localhost"), "{made}");
    sqs.interrupt().await;
}

/// Clients in containers reach no loopback address: they have a key, or anyone is answered.
#[tokio::test]
async fn sqs_is_served_to_other_machines() {
    let cli = Cli::new().await;
    let open = ["serve", "sqs", "--embedded", "--listen", "0.0.0.0:0"];
    assert!(cli.ends(USAGE, &open).await.err.contains("or add --anyone"));
    cli.ends(USAGE, &["serve", "sqs", "--anyone"]).await;
    for (key, is_signed) in [("test:secret", true), ("", false)] {
        let mut sqs = Command::new(env!("CARGO_BIN_EXE_seriatim"));
        sqs.args(open).args(["--json", "--metrics"]);
        if is_signed {
            sqs.env("SERIATIM_SQS_KEY", key)
        } else {
            sqs.arg("--anyone")
        };
        let sqs = Served::start(&mut sqs).await;
        let endpoint = sqs.text("endpoint");
        let made = get(&format!("{endpoint}?Action=CreateQueue&QueueName=q"), "").await;
        let code = if is_signed { "MissingAuthenticationToken" } else { "ok" };
        assert_eq!(made.contains(code), is_signed, "{made}");
        let metrics = get(&format!("{endpoint}metrics"), "").await;
        let count = format!("code=\"{code}\"}} 1");
        assert!(metrics.contains("seriatim_sqs_requests_total{"), "{metrics}");
        assert!(metrics.contains(&count), "{metrics}");
        sqs.interrupt().await;
    }
    cli.remove().await;
}

/// A line for each request that is refused, at a level that the environment sets.
#[tokio::test]
async fn requests_of_sqs_clients_that_are_refused_are_in_the_log() {
    let cli = Cli::new().await;
    let made = cli.ends(DONE, &["sqs", "key", "add", "--json"]).await.json().remove(0);
    let key = made["access_key"].as_str().unwrap();
    for (level, is_told) in [("", false), ("info", true)] {
        let mut sqs = cli.command(&["serve", "sqs", "--listen", "127.0.0.1:0", "--json"]);
        let mut sqs = Served::start(sqs.env("RUST_LOG", level).stderr(Stdio::piped())).await;
        let endpoint = sqs.text("endpoint");
        let healthy = get(&format!("{endpoint}health"), "").await;
        assert!(healthy.starts_with("HTTP/1.1 200"), "{healthy}");
        let now = chrono::Utc::now().format("%Y%m%dT%H%M%SZ").to_string();
        let signed = format!(
            "X-Amz-Date: {now}\r\nAuthorization: AWS4-HMAC-SHA256 Credential={key}/{}/us-east-1/sqs/aws4_request, \
             SignedHeaders=host;x-amz-date, Signature=00\r\n",
            &now[..8]
        );
        let refused = get(&format!("{endpoint}?Action=ListQueues"), &signed).await;
        assert!(refused.contains("SignatureDoesNotMatch"), "{refused}");
        let refused = get(&format!("{endpoint}?Action=ListQueues"), "Authorization: odd\r\n").await;
        assert!(refused.contains("IncompleteSignature"), "{refused}");
        sqs.child.start_kill().unwrap();
        let log = String::from_utf8(sqs.child.wait_with_output().await.unwrap().stderr).unwrap();
        let line = log.lines().find(|line| line.contains("SignatureDoesNotMatch")).unwrap();
        assert!(line.contains("WARN") && line.contains(key), "{line}");
        assert_eq!(log.contains("IncompleteSignature"), is_told, "{log}");
    }
    cli.remove().await;
}

/// A client has the id of its message, and an operator asks about it.
#[tokio::test]
async fn a_job_is_explained_by_the_id_of_its_message() {
    let cli = Cli::new().await;
    let mut sqs =
        cli.command(&["serve", "sqs", "--anonymous", "--listen", "127.0.0.1:0", "--json"]);
    let sqs = Served::start(&mut sqs).await;
    let ask = async |query: &str| get(&format!("{}?{query}", sqs.text("endpoint")), "").await;
    ask("Action=CreateQueue&QueueName=q").await;
    let mut ids = Vec::new();
    for body in ["a", "b"] {
        let sent = ask(&format!("Action=SendMessage&QueueUrl=q&MessageBody={body}")).await;
        let id = sent.split("<MessageId>").nth(1).unwrap().split('<').next().unwrap();
        ids.push(id.to_owned());
    }
    let received = ask("Action=ReceiveMessage&QueueUrl=q").await;
    let is_first = received.contains(&ids[0]);
    for (place, id) in ids.iter().enumerate() {
        let job: i64 = cli.json(&["explain", id]).await[0]["job"].as_i64().unwrap();
        let explained = cli.ends(DONE, &["explain", id]).await.out;
        assert!(explained.starts_with(&format!("Job {job} ")), "{explained}");
        let is_received = (place == 0) == is_first;
        let status = cli.status(job).await;
        assert_eq!(status == JobStatus::Started, is_received, "{explained}");
    }
    // The number of a job that is there, and the time of none.
    let other = ids[0].replacen("000", "001", 1);
    let none = cli.ends(NOTHING, &["explain", &other]).await;
    assert!(none.err.contains(&other), "{}", none.err);
    for odd in ["f81d4fae-7dec-41d0-a765-00a0c91e6bf6", "q", ""] {
        let refused = cli.ends(USAGE, &["explain", odd]).await;
        assert!(refused.err.contains("that of a message"), "{}", refused.err);
    }
    sqs.interrupt().await;
    cli.remove().await;
}

/// Each change of a client has a line, unless the environment sets other levels.
#[tokio::test]
async fn changes_that_sqs_clients_make_are_in_the_log() {
    let cli = Cli::new().await;
    let arn = "arn:aws:sqs:us-east-1:000000000000:";
    let policy = format!("{{\"deadLetterTargetArn\":\"{arn}q\",\"maxReceiveCount\":3}}");
    let policy = policy.replace('"', "%22").replace('{', "%7B").replace('}', "%7D");
    let policy = format!("Attribute.1.Value={policy}");
    // So many that the task does not end by itself.
    let body = |n: u32| {
        let entry = format!("SendMessageBatchRequestEntry.{n}");
        format!("&{entry}.Id={n}&{entry}.MessageBody=secret")
    };
    let bodies: String = (1..=5).map(body).collect();
    for (level, are_told) in [("", true), ("error", false)] {
        let args = ["serve", "sqs", "--anonymous", "--listen", "127.0.0.1:0", "--json"];
        let mut sqs = cli.command(&args);
        let mut sqs = Served::start(sqs.env("RUST_LOG", level).stderr(Stdio::piped())).await;
        let (mut ids, mut task) = (Vec::new(), String::new());
        for asked in [
            "Action=CreateQueue&QueueName=q",
            &format!("Action=SendMessageBatch&QueueUrl=q{bodies}"),
            "Action=ReceiveMessage&QueueUrl=q",
            "Action=CreateQueue&QueueName=no%20queue",
            &format!("Action=CreateQueue&QueueName=r&Attribute.1.Name=RedrivePolicy&{policy}"),
            &format!(
                "Action=StartMessageMoveTask&SourceArn={arn}q&DestinationArn={arn}r\
                 &MaxNumberOfMessagesPerSecond=1"
            ),
            "Action=CancelMessageMoveTask&TaskHandle=",
            "Action=DeleteQueue&QueueUrl=q",
        ] {
            let asked =
                if asked.ends_with('=') { asked.to_owned() + &task } else { asked.to_owned() };
            let answer = get(&format!("{}?{asked}", sqs.text("endpoint")), "").await;
            let of = |field: &str| answer.split(field).nth(1).unwrap_or_default().to_owned();
            ids.push(of("<RequestId>")[..36].to_owned());
            task = of("<TaskHandle>").split('<').next().unwrap().replace('=', "%3D");
        }
        sqs.child.start_kill().unwrap();
        let log = String::from_utf8(sqs.child.wait_with_output().await.unwrap().stderr).unwrap();
        let audited: Vec<&str> =
            log.lines().filter(|line| line.contains("seriatim_sqs::audit")).collect();
        assert!(!log.contains("secret"), "{log}");
        if !are_told {
            assert!(audited.is_empty(), "{log}");
            continue;
        }
        let expected = [
            (0, "operation=\"CreateQueue\" queue=\"q\""),
            (4, "operation=\"CreateQueue\" queue=\"r\""),
            (5, "operation=\"StartMessageMoveTask\" queue=\"q\" destination=\"r\""),
            (6, "operation=\"CancelMessageMoveTask\" queue=\"q\""),
            (7, "operation=\"DeleteQueue\" queue=\"q\""),
        ];
        assert_eq!(audited.len(), expected.len(), "{log}");
        for (line, (place, words)) in audited.into_iter().zip(expected) {
            assert!(line.contains(&ids[place]) && line.contains(words), "{line}");
        }
    }
    cli.remove().await;
}

#[tokio::test]
async fn keys_of_sqs_clients_are_added_listed_and_removed() {
    let cli = Cli::new().await;
    let made = cli.ends(DONE, &["sqs", "key", "add", "--json"]).await.json().remove(0);
    let key = made["access_key"].as_str().unwrap();
    assert!(made["secret"].as_str().unwrap().len() >= 32);
    let listed = cli.ends(DONE, &["sqs", "key", "list", "--json"]).await;
    assert_eq!(
        (&listed.json()[0]["access_key"], &listed.json()[0]["role"]),
        (&json!(key), &json!(null))
    );
    assert!(!listed.out.contains(made["secret"].as_str().unwrap()));
    assert!(cli.ends(DONE, &["sqs", "key", "list"]).await.out.contains("the server's role"));
    cli.ends(REFUSED, &["sqs", "key", "add", "--role", "no such role"]).await;
    let odd = cli.ends(USAGE, &["sqs", "key", "add", "--queues", "orders*,a b"]).await;
    assert!(odd.err.contains("\"a b\" is no pattern"), "{}", odd.err);
    cli.ends(USAGE, &["sqs", "key", "add", "--queues", ""]).await;
    let why = ["--reason", "a trial", "--actor", "bob"];
    let some = ["sqs", "key", "add", "--queues", "orders*,mail", "--json"];
    let some = cli.ends(DONE, &[&some[..], &why[..]].concat()).await.json().remove(0);
    let some = some["access_key"].as_str().unwrap();
    cli.ends(NOTHING, &["sqs", "key", "enable", some]).await;
    cli.ends(DONE, &["sqs", "key", "disable", some]).await;
    cli.ends(NOTHING, &["sqs", "key", "disable", some]).await;
    let listed = cli.ends(DONE, &["sqs", "key", "list"]).await.out;
    let listed = listed.lines().find(|line| line.starts_with(some)).unwrap().to_owned();
    assert!(listed.contains("for the queues orders*,mail, disabled since 20"), "{listed}");
    let listed = cli.json(&["sqs", "key", "list"]).await.remove(1);
    assert_eq!(listed["queues"], json!(["orders*", "mail"]));
    assert!(listed["disabled_at"].is_string(), "{listed}");
    cli.ends(DONE, &["sqs", "key", "enable", some]).await;
    for act in ["disable", "enable"] {
        cli.ends(REFUSED, &["--read-only", "sqs", "key", act, some]).await;
        cli.ends(USAGE, &["--dry-run", "sqs", "key", act, some]).await;
    }
    let done = cli.json(&["log"]).await;
    let done: Vec<_> = done.iter().map(|of| (&of["action"], &of["actor"], &of["reason"])).collect();
    let (ann, none) = (json!("ann"), Value::Null);
    let acts = ["enable_sqs_key", "disable_sqs_key", "add_sqs_key"].map(Value::from);
    let (bob, trial) = (json!("bob"), json!("a trial"));
    let expected = [
        (&acts[0], &ann, &none),
        (&acts[1], &ann, &none),
        (&acts[2], &bob, &trial),
        (&acts[2], &ann, &none),
    ];
    assert_eq!(done, expected);
    let shown = cli.ends(DONE, &["log"]).await.out;
    assert!(shown.contains(&format!("{some}, queues orders*,mail")), "{shown}");
    cli.ends(REFUSED, &["--read-only", "sqs", "key", "remove", key]).await;
    cli.ends(DONE, &["sqs", "key", "remove", key]).await;
    cli.ends(NOTHING, &["sqs", "key", "remove", key]).await;
    let open = ["serve", "sqs", "--anonymous", "--listen", "0.0.0.0:0"];
    assert!(cli.ends(USAGE, &open).await.err.contains("loopback"));
    for (option, odd, advice) in [
        ("--account", "12", "must be 12 digits"),
        ("--public-url", "sqs.example.com", "such as https://sqs.example.com"),
        ("--public-url", "https://sqs.example.com/?a=b", "without a user, a query"),
    ] {
        // Before anything is started.
        for more in ["--embedded", "--anonymous"] {
            let refused = cli.ends(USAGE, &["serve", "sqs", more, option, odd]).await;
            assert!(refused.err.contains(advice), "{}", refused.err);
        }
    }
    cli.remove().await;
}
