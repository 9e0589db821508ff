//! Jobs that move to another queue: by their ids, and by move tasks.

use serde_json::{Value, json};
use seriatim::OutOfAttempts;

use crate::support::{Cli, DONE, ERROR, NOTHING, REFUSED, USAGE, dead_letters};

#[tokio::test]
async fn jobs_of_a_mistyped_queue_are_moved() {
    let cli = Cli::new().await;
    let mut ids = Vec::new();
    for group in ["'; --", "\u{202e}evil", "'; --"] {
        let enqueued = cli.json(&["enqueue", "ordres", "--group", group]).await;
        ids.push(enqueued[0]["job"].to_string());
    }
    cli.ends(USAGE, &["job", "move", &ids[0]]).await;
    cli.ends(USAGE, &["job", "move", "--to", "orders"]).await;
    let moving = ["job", "move", &ids[0], &ids[1], &ids[2], "--to", "orders"];
    let refused = cli.ends(REFUSED, &moving).await;
    assert!(refused.err.contains("queue \"orders\": 3 jobs are moved"), "{}", refused.err);
    assert!(refused.err.contains("names queue \"orders\": is it mistyped?"), "{}", refused.err);
    // One job, and nobody names the queue.
    let one = cli.ends(REFUSED, &["job", "move", &ids[0], "--to", "orders"]).await;
    assert!(one.err.contains("is it mistyped?"), "{}", one.err);
    cli.enqueue("known").await;
    let dry = cli.json(&[&moving[..], &["--dry-run"]].concat()).await;
    assert_eq!((&dry[0]["groups"], &dry[0]["jobs"][2]["job"]), (&json!(2), &json!(3)));
    // The ids of new jobs would be other ones.
    assert_eq!(dry[0]["jobs"][2]["new_job"], json!(null));
    let one = ["job", "move", &ids[0], "--to", "orders", "--dry-run"];
    let one = cli.ends(DONE, &one).await.out;
    assert!(one.contains(&format!("job {} is moved, to the end", ids[0])), "{one}");
    assert!(!one.contains("its id is"), "{one}");
    // Each that cannot be moved is told.
    let some = ["job", "move", "4711", &ids[1], "--to", "orders", "--dry-run"];
    let some = cli.ends(ERROR, &some).await;
    assert!(some.out.contains("to the end of its group") && some.err.contains("job 4711 stays"));
    // The first of its group stays.
    let part = ["job", "move", &ids[2], "--to", "orders", "--reason", "mistyped"];
    let moved = cli.ends(DONE, &part).await;
    assert!(moved.out.contains("1 earlier job of its group stays"), "{}", moved.out);
    assert!(moved.out.contains("; its id is "), "{}", moved.out);
    let shown = cli.ends(DONE, &["job", "show", &ids[2]]).await;
    assert!(shown.out.contains("moved to queue \"orders\" as job"), "{}", shown.out);
    assert!(shown.out.contains("mistyped (to queue \"orders\")"), "{}", shown.out);
    let rest = ["job", "move", &ids[1], &ids[0], "--to", "orders", "--yes"];
    assert_eq!(cli.json(&rest).await[0]["jobs"][1]["job"], 2);
    let nothing = cli.ends(NOTHING, &moving).await;
    assert!(nothing.err.contains("no such job is queued"), "{}", nothing.err);
    cli.remove().await;
}

#[tokio::test]
async fn a_move_out_of_a_halt_or_a_pause_names_it_and_wants_a_yes() {
    let cli = Cli::new().await;
    let first = cli.enqueue("ann").await;
    cli.fail(OutOfAttempts::Halt).await;
    let behind = cli.enqueue("ann").await.to_string();
    let free = cli.enqueue("bob").await.to_string();
    cli.ends(DONE, &["enqueue", "mended"]).await;
    let halted = cli.ends(REFUSED, &["job", "move", &behind, "--to", "mended"]).await;
    let sentence = format!("group \"ann\" is halted by job {first}, and these would run");
    assert!(halted.err.contains(&sentence), "{}", halted.err);
    cli.ends(DONE, &["pause", "orders", "bob"]).await;
    let all = ["job", "move", &behind, &free, "--to", "mended", "--dry-run"];
    let all = cli.ends(DONE, &all).await;
    assert!(all.out.contains(&sentence), "{}", all.out);
    assert!(all.out.contains("group \"bob\" is paused, and these would run"), "{}", all.out);
    cli.ends(DONE, &["resume", "orders", "bob"]).await;
    cli.ends(DONE, &["pause", "orders"]).await;
    let paused = cli.ends(REFUSED, &["job", "move", &free, "--to", "mended"]).await;
    assert!(paused.err.contains("queue \"orders\" is paused, and these"), "{}", paused.err);
    cli.ends(DONE, &["resume", "orders"]).await;
    cli.ends(DONE, &["job", "move", &free, "--to", "mended"]).await;
    cli.ends(DONE, &["job", "move", &behind, "--to", "mended", "--yes"]).await;
    cli.remove().await;
}

/// The id of the newest move task.
async fn newest(cli: &Cli) -> Value {
    cli.json(&["move-task", "list"]).await[0]["id"].clone()
}

#[tokio::test]
async fn a_move_task_is_started_carried_on_listed_and_cancelled() {
    let cli = Cli::new().await;
    dead_letters(&cli).await;
    let start = ["move-task", "start", "dead"];
    let preview = cli.ends(DONE, &[&start[..], &["--dry-run"]].concat()).await;
    let words = "3 jobs of queue \"dead\" move back to the queue in which each failed";
    assert!(preview.out.contains(words), "{}", preview.out);
    let preview = cli.json(&[&start[..], &["--dry-run"]].concat()).await;
    assert_eq!((&preview[0]["id"], &preview[0]["from_queue"]), (&Value::Null, &json!("dead")));
    cli.ends(NOTHING, &["move-task", "list"]).await;
    let asked = cli.ends(REFUSED, &start).await;
    assert!(asked.err.contains(&format!("({words}")), "{}", asked.err);
    let slow = [&start[..], &["--per-second", "1", "--yes"]].concat();
    let started = cli.ends(DONE, &slow).await;
    assert!(started.out.contains("1 a second at most"), "{}", started.out);
    assert!(started.out.contains(&format!("done: task {}", newest(&cli).await)), "{}", started.out);
    assert!(started.err.contains("or `seriatim move-task run`"), "{}", started.err);
    let twice = cli.ends(REFUSED, &slow).await;
    assert!(twice.err.contains("cancel it by `seriatim move-task cancel TASK`"), "{}", twice.err);
    let task = cli.json(&["move-task", "list", "dead"]).await[0].clone();
    assert_eq!((&task["status"], &task["to_queue"]), (&json!("running"), &Value::Null));
    let id = task["id"].to_string();
    // The time is set, as this machine may take any: a move makes up for two seconds at most.
    for (last_moved, moves) in [("1 hour", 0), ("-1 hour", 2)] {
        let set = format!(
            "update seriatim.move_task set moved_at = clock_timestamp() + interval '{last_moved}'"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(set)).execute(cli.database.pool()).await.unwrap();
        let dry = cli.json(&["move-task", "run", "--dry-run"]).await;
        assert_eq!(dry[0]["jobs"], moves, "{dry:?}");
    }
    cli.ends(DONE, &["move-task", "cancel", &id]).await;
    cli.ends(NOTHING, &["move-task", "cancel", &id]).await;

    // Somewhere else, and a queue that nobody names is doubted.
    let elsewhere = ["move-task", "start", "dead", "--to", "elswhere"];
    let doubted = cli.ends(REFUSED, &elsewhere).await;
    assert!(doubted.err.contains("is it mistyped?"), "{}", doubted.err);
    cli.ends(USAGE, &["move-task", "start", "dead", "--to", "dead"]).await;
    cli.ends(USAGE, &["move-task", "start", "dead", "--per-second", "0"]).await;
    cli.ends(USAGE, &["move-task", "start", "dead", "--limit", "0"]).await;
    let nobody = cli.ends(NOTHING, &["move-task", "start", "dead", "--group", "nobody"]).await;
    assert!(nobody.err.contains("waits in group \"nobody\" of queue \"dead\""), "{}", nobody.err);
    let two = cli.ends(DONE, &["move-task", "start", "dead", "--limit", "2", "--dry-run"]).await;
    assert!(two.out.contains("2 jobs of queue \"dead\" move back"), "{}", two.out);
    cli.ends(DONE, &[&start[..], &["--yes"]].concat()).await;
    assert_eq!(cli.json(&["move-task", "run"]).await[0]["jobs"], 3);
    let listed = cli.ends(DONE, &["move-task", "list"]).await;
    assert!(listed.out.contains("completed") && listed.out.contains("(back)"), "{}", listed.out);
    assert_eq!(cli.json(&["job", "list", "orders", "--status", "queued"]).await.len(), 3);
    cli.ends(NOTHING, &start).await;
    cli.remove().await;
}
