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
    let words = "queue \"orders\": 2 jobs of 1 group are queued again, in their original order";
    assert!(asked.err.contains(words), "{}", asked.err);
    assert!(asked.err.contains("2 of them go from a dead-letter queue"), "{}", asked.err);
    cli.ends(DONE, &["discard", "orders", "--limit", "1"]).await;
    assert_eq!(cli.status(ids[0]).await, JobStatus::Cancelled);
    cli.ends(DONE, &["redrive", "orders"]).await;
    let back = cli.json(&["job", "list", "orders", "--status", "queued"]).await;
    assert_eq!(back.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [ids[2], ids[1]]);
    cli.remove().await;
}

#[tokio::test]
async fn a_dead_letter_in_a_queue_of_its_own_is_named_with_what_ends_it() {
    let cli = Cli::new().await;
    let [first, of_bob, last] = dead_letters(&cli).await.map(|id| id.to_string());
    let explained = cli.ends(DONE, &["explain", &last]).await.out;
    assert!(
        explained.contains("is a dead letter of queue \"orders\", and has waited"),
        "{explained}"
    );
    let advice = format!(
        "Run `seriatim job redrive {last}` when the cause is fixed, or `seriatim job discard {last}`."
    );
    assert!(explained.contains(&advice) && !explained.contains("serves"), "{explained}");
    let lane = cli.ends(DONE, &["lane", "dead", "ann"]).await.out;
    assert!(lane.contains(&format!("`seriatim job redrive {first}`")), "{lane}");
    let queues = cli.ends(DONE, &["queues"]).await.out;
    assert!(queues.contains("dead letters of \"orders\" wait in it"), "{queues}");
    assert!(!queues.contains("no living processor"), "{queues}");
    for verb in ["retry", "skip"] {
        let refused = cli.ends(REFUSED, &["job", verb, &first]).await.err;
        let words = format!(
            "job {first} is a dead letter of queue \"orders\" and waits in its dead-letter queue"
        );
        assert!(refused.contains(&words), "{refused}");
        assert!(
            refused.contains(&format!("`seriatim job redrive {first}` to run it")),
            "{refused}"
        );
    }
    // The command that the advice names works.
    let redriven = cli.ends(DONE, &["job", "redrive", &first]).await.out;
    assert!(redriven.contains("1 job of 1 group is queued again in its old place; "));
    cli.ends(DONE, &["job", "discard", &of_bob, "--dry-run"]).await;
    let discarded = cli.ends(DONE, &["job", "discard", &of_bob, &first]).await.out;
    let words =
        "1 dead letter is given up: it ends as cancelled, and a halt by it ends; 1 job stays:";
    assert!(discarded.contains(words), "{discarded}");
    for verb in ["redrive", "discard"] {
        let none = cli.ends(NOTHING, &["job", verb, &of_bob]).await.err;
        assert!(none.contains("none of them is a dead letter that is free"), "{none}");
    }
    assert_eq!(cli.status(of_bob.parse().unwrap()).await, JobStatus::Cancelled);

    // Given up, it can be brought back to where it waited.
    let retried = cli.ends(DONE, &["job", "retry", &of_bob]).await.out;
    let words = format!(
        "job {of_bob} is a dead letter of queue \"orders\" again, and waits in its dead-letter \
         queue until it is redriven (`seriatim job redrive {of_bob}`)"
    );
    assert!(retried.contains(&words), "{retried}");
    let redriven = cli.ends(DONE, &["job", "redrive", &of_bob]).await.out;
    assert!(redriven.contains("it goes from a dead-letter queue back"), "{redriven}");
    cli.remove().await;
}

#[tokio::test]
async fn a_preview_of_a_discard_says_what_would_be() {
    let cli = Cli::new().await;
    dead_letters(&cli).await;
    let all = cli.ends(DONE, &["discard", "orders", "--dry-run"]).await.out;
    let words = "nothing is changed: queue \"orders\": 3 dead letters are given up: they end as \
                 cancelled, and halts by them end; a retry brings one back\n";
    assert!(all.ends_with(words), "{all}");
    let one = cli.ends(DONE, &["discard", "orders", "--group", "bob", "--dry-run"]).await.out;
    assert!(one.contains("queue \"orders\": 1 dead letter is given up: it ends as"), "{one}");
    assert_eq!(cli.json(&["dead-letters", "orders"]).await.len(), 3);
    cli.remove().await;
}
