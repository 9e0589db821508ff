//! Arguments that cannot be used.

use serde_json::Value;

use crate::support::{Cli, DONE, ERROR, NOTHING, USAGE, ran};

#[tokio::test]
async fn usage_is_code_2_and_a_missing_database_code_1() {
    let cli = Cli::new().await;
    for args in [&["frobnicate"][..], &["groups"], &["job", "show", "x"], &["nack", "1.2"]] {
        cli.ends(USAGE, args).await;
    }
    let retry = cli.ends(USAGE, &["retry", "127"]).await.err;
    assert!(retry.contains("'job retry'") && !retry.contains("rest"), "{retry}");
    let several = cli.ends(USAGE, &["list"]).await.err;
    assert!(several.contains("'job list'") && several.contains("'schedule list'"), "{several}");
    let unknown = cli.ends(NOTHING, &["groups", "ordrs"]).await.err;
    assert!(unknown.contains("names queue \"ordrs\": is it mistyped?"), "{unknown}");
    let none = ran(cli.command(&["queues"]).env_remove("DATABASE_URL").output().await.unwrap());
    assert_eq!(none.code, USAGE, "{}", none.err);
    let away = "postgres://nobody@127.0.0.1:1/none";
    let away = ran(cli.command(&["queues"]).env("DATABASE_URL", away).output().await.unwrap());
    assert_eq!(away.code, ERROR, "{}", away.err);
    for shell in ["bash", "zsh", "fish"] {
        assert!(cli.ends(DONE, &["completions", shell]).await.out.contains("seriatim"));
    }
    cli.remove().await;
}

#[tokio::test]
async fn wrong_values_are_told_their_forms() {
    let cli = Cli::new().await;
    for limit in ["-1", "0", "1001"] {
        let wrong = cli.ends(USAGE, &["job", "list", "orders", "--limit", limit]).await;
        assert!(wrong.err.contains("1..=1000") && !wrong.err.contains("tip"), "{}", wrong.err);
    }
    let wrong = cli.ends(USAGE, &["job", "list", "orders", "--since", "yesterday"]).await;
    for form in ["2026-11-24T03:00:00Z", "a day in UTC as 2026-11-24", "2h"] {
        assert!(wrong.err.contains(form), "{}", wrong.err);
    }
    let wrong = cli.ends(USAGE, &["--json", "job", "list", "orders", "--limit", "-1"]).await;
    let error: Value = serde_json::from_str(wrong.err.trim()).unwrap();
    assert_eq!(error["code"], USAGE);
    // Names of queues that cannot be are no queues without jobs.
    for wrong in [
        &["dead-letters", ""][..],
        &["discard", ""],
        &["groups", ""],
        &["lane", "", "ann"],
        &["job", "list", ""],
    ] {
        let wrong = cli.ends(USAGE, wrong).await;
        assert!(wrong.err.contains("<QUEUE>"), "{}", wrong.err);
    }
    let itself = cli.ends(USAGE, &["configure", "other", "--dead-letter-queue", "other"]).await;
    let words = "cannot be its own dead-letter queue: name another one, or `default` for none";
    assert!(itself.err.contains(words), "{}", itself.err);
    // A value that the database refuses is a usage error as well.
    cli.ends(DONE, &["configure", "other", "--dead-letter-queue", "dead"]).await;
    let both = cli.ends(USAGE, &["configure", "other", "--out-of-attempts", "park"]).await;
    assert!(
        both.err.contains("cannot both have") && !both.err.contains("SQLSTATE"),
        "{}",
        both.err
    );
    // A group may have such a name.
    cli.enqueue("-1").await;
    cli.ends(DONE, &["lane", "orders", "-1"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn the_primary_among_several_hosts_is_asked() {
    let cli = Cli::new().await;
    let own = cli.database.url();
    let asked = async |url: String| {
        let mut command = cli.command(&["queues", "--json"]);
        ran(command.env("DATABASE_URL", url).output().await.unwrap())
    };
    // Nobody answers at the first one.
    let url = own.replacen('@', "@127.0.0.1:1,", 1) + "&target_session_attrs=read-write";
    let found = asked(url).await;
    assert_eq!(found.code, asked(own.clone()).await.code, "{}", found.err);
    let standby = asked(own.clone() + "&target_session_attrs=standby").await;
    assert_eq!(standby.code, USAGE);
    assert!(standby.err.contains("write read-write, or leave it out"), "{}", standby.err);
    cli.remove().await;
}
