//! Dead letters in a queue of their own.

use seriatim::JobStatus;

use crate::support::{Cli, DONE, NOTHING, REFUSED, dead_letters};

#[tokio::test]
async fn dead_letters_in_a_queue_of_their_own_are_found_and_come_back() {
    let cli = Cli::new().await;
    let ids = dead_letters(&cli).await;
    let listed = cli.ends(DONE, &["dead-letters", "orders"]).await;
    assert!(listed.out.contains("dead") && listed.out.contains("the bank"), "{}", listed.out);
    let listed = cli.json(&["dead-letters", "orders", "--group", "ann"]).await;
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0]["dead_letter_queue"], "dead");
    let shown = cli.ends(DONE, &["job", "show", &ids[0].to_string()]).await;
    assert!(shown.out.contains("failed in    orders"), "{}", shown.out);

    // Who names the queue in which they wait is told what brings them back.
    for command in ["dead-letters", "redrive", "discard"] {
        let none = cli.ends(NOTHING, &[command, "dead"]).await;
        let advice = "those of queue \"orders\" wait in it: `seriatim redrive orders` or \
                      `seriatim move-task start dead`";
        assert!(none.err.contains(advice), "{}", none.err);
    }
    let some = ["redrive", "orders", "--group", "bob"];
    assert_eq!(cli.json(&some).await[0]["moved_back"], 1);
    let asked = cli.ends(REFUSED, &["redrive", "orders"]).await;
    let words =
        "2 jobs of 1 group of queue \"orders\" queued again, in their order; 2 of them from";
    assert!(asked.err.contains(words), "{}", asked.err);
    cli.ends(DONE, &["discard", "orders", "--limit", "1"]).await;
    assert_eq!(cli.status(ids[0]).await, JobStatus::Cancelled);
    cli.ends(DONE, &["redrive", "orders"]).await;
    let back = cli.json(&["job", "list", "orders", "--status", "queued"]).await;
    assert_eq!(back.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [ids[2], ids[1]]);
    cli.remove().await;
}
