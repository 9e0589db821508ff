//! Batches, from the command line.

use crate::support::{Cli, DONE, ERROR, NOTHING, REFUSED, USAGE};

#[tokio::test]
async fn a_batch_is_opened_joined_sealed_shown_and_abandoned() {
    let cli = Cli::new().await;
    cli.ends(NOTHING, &["batch", "list"]).await;
    let open = ["batch", "open", "march", "--queue", "totals", "--group", "totals"];
    let asked = cli.ends(REFUSED, &open).await.err;
    assert!(asked.contains("is it mistyped?"), "{asked}");
    let dry = cli.json(&[&open[..], &["--dry-run"]].concat()).await;
    assert!(dry[0]["batch"].is_null(), "{dry:?}");
    let opened = cli.json(&[&open[..], &["--yes"]].concat()).await;
    let batch = opened[0]["batch"].as_i64().unwrap().to_string();
    let enqueue = ["enqueue", "statements", "--group", "account-41", "--batch", &batch];
    let job = cli.json(&enqueue).await[0]["job"].as_i64().unwrap().to_string();
    let shown = cli.ends(DONE, &["batch", "show", &batch]).await;
    assert!(shown.out.contains("is open since"), "{}", shown.out);
    assert!(shown.err.contains(&format!("`seriatim batch seal {batch}` does that")));
    cli.ends(DONE, &["batch", "seal", &batch]).await;
    cli.ends(REFUSED, &["batch", "seal", &batch]).await;
    let late = cli.ends(REFUSED, &enqueue).await.err;
    assert!(late.contains("is sealed, so no job can join it"), "{late}");
    let explained = cli.ends(DONE, &["explain", &job]).await.out;
    assert!(explained.contains(&format!("It is of batch {batch}.")), "{explained}");

    cli.ends(DONE, &["job", "cancel", &job]).await;
    assert_eq!(cli.client.end_batches(cli.database.pool()).await.unwrap(), 0);
    let failed = cli.ends(DONE, &["batch", "show", &batch]).await;
    assert!(failed.out.contains("1 job did not succeed"), "{}", failed.out);
    assert!(failed.out.contains("cancelled"), "{}", failed.out);
    let json = cli.json(&["batch", "show", &batch]).await;
    assert_eq!((&json[0]["state"], &json[1]["status"]), (&"failed".into(), &"cancelled".into()));
    let doctor = cli.ends(ERROR, &["doctor"]).await.out;
    assert!(doctor.contains("batches: Batch"), "{doctor}");
    let metrics = cli.ends(DONE, &["metrics"]).await.out;
    assert!(metrics.contains("seriatim_failed_batches 1"), "{metrics}");
    cli.ends(DONE, &["batch", "abandon", &batch, "--reason", "it was withdrawn"]).await;
    cli.ends(REFUSED, &["batch", "abandon", &batch]).await;
    cli.ends(NOTHING, &["batch", "list"]).await;
    let all = cli.json(&["batch", "list", "--all"]).await;
    assert_eq!(all[0]["state"], "abandoned");
    let log = cli.ends(DONE, &["log"]).await.out;
    assert!(log.contains("abandon_batch") && log.contains("withdrawn"), "{log}");
    for command in ["show", "seal", "abandon"] {
        cli.ends(NOTHING, &["batch", command, "99"]).await;
    }
    cli.ends(NOTHING, &["enqueue", "statements", "--batch", "99"]).await;
    cli.ends(USAGE, &["batch", "open", "", "--queue", "totals", "--yes"]).await;
    cli.remove().await;
}
