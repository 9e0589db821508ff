//! `--json`: the rule of docs/guide/command-line.md, over all commands.

use serde_json::{Value, json};
use seriatim::JobStatus;

use crate::support::{Cli, DONE, ERROR, NOTHING};

/// Fields have one case, and no time is a pair of numbers.
fn sound(value: &Value, args: &[&str]) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                assert!(field.chars().all(plain), "{args:?}: {field}");
                assert!(!["secs", "nanos"].contains(&&**field), "{args:?}: {value}");
                sound(value, args);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| sound(value, args)),
        _ => {}
    }
}

/// The rule of docs/guide/command-line.md, over all commands.
#[tokio::test]
async fn json_of_a_list_is_an_object_a_line_with_the_librarys_names() {
    let cli = Cli::new().await;
    let first = &*cli.enqueue("ann").await.to_string();
    cli.enqueue("dan").await;
    cli.ends(DONE, &["move-task", "start", "orders", "--to", "other", "--yes"]).await;
    let lists: [&[&str]; 13] = [
        &["move-task", "list"],
        &["queues"],
        &["groups", "orders"],
        &["lane", "orders", "ann"],
        &["explain", first],
        &["job", "show", first],
        &["job", "show", first, "--data"],
        &["job", "list", "orders"],
        &["configure", "orders"],
        &["doctor"],
        &["metrics"],
        &["receive", "orders", "--group", "dan"],
        &["migrate", "--check"],
    ];
    for args in lists {
        let lines = cli.json(args).await;
        assert!(!lines.is_empty() && lines.iter().all(Value::is_object), "{args:?}: {lines:?}");
        lines.iter().filter(|_| args[0] != "metrics").for_each(|line| sound(line, args));
    }
    // The names are those of the library.
    let shown = cli.json(&["job", "show", first, "--data"]).await;
    let job = cli.client.job(cli.database.pool(), first.parse().unwrap()).await.unwrap().unwrap();
    for (field, value) in serde_json::to_value(job).unwrap().as_object().unwrap() {
        assert_eq!(&shown[0][field], value, "{field}");
    }
    cli.remove().await;
}

#[tokio::test]
async fn json_of_a_change_names_the_action_and_says_whether_it_was_a_dry_run() {
    let cli = Cli::new().await;
    let mut ids = Vec::new();
    for group in ["ann", "ann", "bob", "cid", "dan"] {
        ids.push(cli.enqueue(group).await.to_string());
    }
    let [first, third, fourth] = [0, 2, 3].map(|n| ids[n].as_str());
    let changes: [&[&str]; 21] = [
        &["pause", "orders"],
        &["resume", "orders"],
        &["pause", "orders", "ann"],
        &["resume", "orders", "ann"],
        &["configure", "orders", "--delay", "0"],
        &["enqueue", "orders"],
        &["job", "run-now", first],
        &["job", "cancel", third],
        &["job", "retry", third],
        &["job", "skip", third],
        &["redrive", "orders"],
        &["move-task", "start", "orders", "--to", "moved"],
        &["move-task", "cancel", "2"],
        &["job", "move", fourth, "--to", "other"],
        &["job", "skip", third, fourth],
        &["discard", "orders"],
        &["purge", "orders", "ann"],
        &["purge", "other"],
        &["purge", "orders", "--everything"],
        &["purge", "orders", "--everything"],
        &["migrate"],
    ];
    for args in changes {
        for dry_run in [true, false] {
            let flags: &[&str] = if dry_run { &["--yes", "--dry-run"] } else { &["--yes"] };
            // Job 4 was moved, and is cancelled: of two jobs one is changed.
            let code = if args.len() == 4 && args[1] == "skip" { ERROR } else { DONE };
            let ran = cli.ends(code, &[&["--json"], args, flags].concat()).await;
            let lines = ran.json();
            assert!(!lines.is_empty(), "{args:?}: {}", ran.err);
            for line in lines {
                assert!(line["action"].is_string(), "{args:?}: {line}");
                assert_eq!(line["dry_run"], dry_run, "{args:?}: {line}");
                sound(&line, args);
            }
        }
    }
    assert!(cli.json(&["log"]).await.len() > 5);
    assert_eq!(cli.status(2).await, JobStatus::Cancelled);
    cli.remove().await;
}

#[tokio::test]
async fn json_of_nothing_is_no_line_and_an_error() {
    let cli = Cli::new().await;
    cli.enqueue("ann").await;
    // Without a result there is no line of output, but an error with its exit code.
    let empty: [&[&str]; 20] = [
        &["dead-letters", "none"],
        &["move-task", "list"],
        &["move-task", "start", "none"],
        &["move-task", "cancel", "4711"],
        &["move-task", "run"],
        &["groups", "none"],
        &["lane", "none", "none"],
        &["explain", "4711"],
        &["job", "show", "4711"],
        &["job", "list", "none"],
        &["job", "retry", "4711", "4712"],
        &["job", "move", "4711", "--to", "other"],
        &["parked", "list", "orders"],
        &["parked", "redrive", "orders", "ann"],
        &["park", "orders", "none"],
        &["unhalt", "orders", "none"],
        &["redrive", "none"],
        &["purge", "none"],
        &["receive", "none"],
        &["nodes"],
    ];
    for args in empty {
        let nothing = cli.ends(NOTHING, &[&["--json", "--yes"], args].concat()).await;
        assert!(nothing.out.is_empty(), "{args:?}: {}", nothing.out);
        for line in nothing.err.lines() {
            let error: Value = serde_json::from_str(line).unwrap();
            assert!(error["error"].is_string(), "{args:?}: {error}");
            assert_eq!(error["code"], NOTHING, "{args:?}: {error}");
        }
        assert!(!nothing.err.is_empty(), "{args:?}");
    }
    let several = cli.ends(NOTHING, &["--json", "--yes", "job", "retry", "4711", "4712"]).await;
    let jobs: Vec<Value> =
        several.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&jobs[0]["job"], &jobs[1]["job"]), (&json!(4711), &json!(4712)));
    cli.remove().await;
}
