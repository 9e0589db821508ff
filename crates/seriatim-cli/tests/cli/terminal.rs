//! Output on a terminal: hostile names, and a narrow terminal.

use seriatim::OutOfAttempts;

use crate::support::{Cli, DONE, ran};

#[tokio::test]
async fn hostile_names_break_no_table() {
    let cli = Cli::new().await;
    let long = "x".repeat(400);
    let names =
        ["\u{202e}evil", "a\u{2066}b", "'\"; drop table job; --", "שלום", "👩‍👩‍👧", &long, "-x"];
    let mut ids = Vec::new();
    for name in names {
        ids.push(cli.enqueue(name).await.to_string());
    }
    cli.fail(OutOfAttempts::Halt).await;
    for name in names {
        cli.enqueue(name).await;
    }
    let plain = cli.ends(DONE, &["groups", "orders"]).await;
    assert_eq!(plain.out.lines().count(), 1 + names.len(), "{}", plain.out);
    assert!(plain.out.contains(&long), "without a terminal nothing is cut");
    assert!(plain.out.contains("closed\\n\\u{1b}[31m"), "{}", plain.out);
    assert!(plain.out.contains("a\\u{2066}b"), "{}", plain.out);

    let args: [&[&str]; 3] = [&["groups", "orders"], &["job", "list", "orders"], &["queues"]];
    for args in args {
        let narrow = ran(cli.command(args).env("COLUMNS", "60").output().await.unwrap());
        assert_eq!(narrow.code, DONE, "{}", narrow.err);
        let safe = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
        assert!(narrow.out.chars().all(safe), "{:?}", narrow.out);
        for line in narrow.out.lines() {
            assert!(line.chars().count() <= 64, "{line:?}");
        }
        if args[0] == "groups" {
            assert!(narrow.out.contains('…') && !narrow.out.contains(&long), "{}", narrow.out);
        }
    }
    for (name, id) in names.iter().zip(&ids) {
        let group = ["lane", "orders", "--", name];
        let lane = cli.ends(DONE, &group).await;
        assert!(!lane.out.contains(['\u{1b}', '\u{202e}']), "{}", lane.out);
        assert!(cli.ends(DONE, &["job", "show", id]).await.out.contains("the bank is closed"));
    }
    let groups = cli.json(&["groups", "orders"]).await;
    for name in names {
        assert!(groups.iter().any(|group| group["group"] == name), "{name:?}");
    }
    cli.remove().await;
}

#[tokio::test]
async fn ids_are_whole_on_the_narrowest_terminal() {
    let cli = Cli::new().await;
    let highest = "alter sequence seriatim.job_id_seq restart with 9000000000000000001";
    sqlx::raw_sql(highest).execute(cli.database.pool()).await.unwrap();
    let job = cli.enqueue("a customer with a long name").await.to_string();
    cli.enqueue("a customer with a long name").await;
    cli.fail(OutOfAttempts::Halt).await;
    let receipt = {
        cli.enqueue("bob").await;
        let received = cli.json(&["receive", "orders", "--group", "bob"]).await;
        received[0]["receipt"].as_str().unwrap().to_owned()
    };
    let lists: [&[&str]; 5] = [
        &["groups", "orders", "--state", "halted"],
        &["job", "list", "orders", "--status", "failed"],
        &["lane", "orders", "a customer with a long name"],
        &["job", "show", &job],
        &["queues"],
    ];
    for args in lists {
        for columns in ["20", "40", "60", "100"] {
            let shown = ran(cli.command(args).env("COLUMNS", columns).output().await.unwrap());
            assert_eq!(shown.code, DONE, "{}", shown.err);
            if args[0] == "queues" {
                assert!(shown.out.contains("orders"), "{}", shown.out);
            } else {
                assert!(shown.out.contains("900000000000000000"), "{}", shown.out);
            }
            // A broken id would leave its rest at the begin of a line.
            for line in shown.out.lines().map(str::trim) {
                assert!(!line.starts_with("00000"), "{args:?} at {columns}: {}", shown.out);
            }
        }
    }
    cli.ends(DONE, &["nack", &receipt, "--delay", "0"]).await;
    let received = ran(cli
        .command(&["receive", "orders", "--group", "bob"])
        .env("COLUMNS", "40")
        .output()
        .await
        .unwrap());
    let whole = received
        .out
        .split_whitespace()
        .any(|word| word.parse::<seriatim::receive::Receipt>().is_ok());
    assert!(whole, "{}", received.out);
    cli.remove().await;
}
