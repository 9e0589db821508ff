//! Queues that no Rust processor serves are maintained, in each way that the guides name.

use std::path::Path;

use sqlx::AssertSqlSafe;
use tokio::time::{Instant, sleep};

use crate::support::{Cli, DONE, ERROR, PATIENCE, Served, USAGE};

/// The guides whose programs may all be in other languages.
const GUIDES: [&str; 4] = ["graphile-worker", "oban", "pgmq", "river"];

/// A job past its retention, and a group whose halt should have ended, in a queue made by SQL.
const BEHIND: &str = "
    insert into seriatim.job (queue, group_id, data, status, finished_at)
    values ('sql', 'old', '1', 'succeeded', now() - interval '25 hours');
    select seriatim.configure_queue('sql',
      '{\"max_attempts\": 1, \"out_of_attempts\": \"halt\", \"halt_for\": \"1 ms\", \"halt_then\": \"continue\"}');
    select seriatim.enqueue('sql', '1', 'halts'), seriatim.enqueue('sql', '2', 'halts');
    select seriatim.nack(r.receipt, error => 'failed') from seriatim.receive('sql') r";

async fn run(cli: &Cli, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(cli.database.pool()).await.unwrap();
}

/// Whether the job is gone and the group runs its next job.
async fn is_maintained(cli: &Cli) -> bool {
    let left = "select not exists (select from seriatim.job where group_id = 'old') \
         and not exists (select from seriatim.queue_group where halted_at is not null)";
    sqlx::query_scalar(left).fetch_one(cli.database.pool()).await.unwrap()
}

async fn until_maintained(cli: &Cli, way: &str) {
    let until = Instant::now() + PATIENCE;
    while !is_maintained(cli).await {
        assert!(Instant::now() < until, "{way} does not maintain the queue");
        sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// The ways that a guide names in its sentence on maintenance.
fn ways(guide: &str) -> Vec<String> {
    let path = format!("{}/../../docs/guide/moving-from-{guide}.md", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(Path::new(&path)).unwrap();
    let (_, said) = text.split_once("needs [maintenance]").expect(guide);
    let said = said.split("\n\n").next().unwrap();
    said.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[tokio::test]
async fn sql_queues_are_maintained_as_the_moving_guides_say() {
    let named = ways(GUIDES[0]);
    for guide in GUIDES {
        assert_eq!(ways(guide), named, "{guide}");
    }
    for way in
        ["seriatim maintain", "seriatim serve", "seriatim serve sqs", "select seriatim.maintain()"]
    {
        assert!(named.iter().any(|named| named == way), "{way} is not in {named:?}");
    }
    for way in named {
        let cli = Cli::new().await;
        run(&cli, BEHIND).await;
        let arguments = match &*way {
            "seriatim maintain" => vec!["--json", "maintain"],
            "seriatim serve" => {
                vec!["--json", "serve", "--auth", "none", "--listen", "127.0.0.1:0"]
            }
            "seriatim serve sqs" => {
                vec!["--json", "serve", "sqs", "--anonymous", "--listen", "127.0.0.1:0"]
            }
            sql => {
                // A timer calls it again: a call ends after a quarter of a second, with more to do.
                let deadline = Instant::now() + PATIENCE;
                while !is_maintained(&cli).await {
                    assert!(Instant::now() < deadline, "{sql}");
                    run(&cli, sql).await;
                }
                cli.remove().await;
                continue;
            }
        };
        let served = Served::start(&mut cli.command(&arguments)).await;
        until_maintained(&cli, &way).await;
        served.interrupt().await;
        cli.remove().await;
    }
}

#[tokio::test]
async fn maintain_once_says_what_it_did_in_each_schema() {
    let cli = Cli::new().await;
    run(&cli, BEHIND).await;
    cli.ends(DONE, &["--schema", "billing", "migrate"]).await;
    run(&cli, &BEHIND.replace("seriatim.", "billing.")).await;
    let done = cli.ends(DONE, &["maintain", "seriatim", "billing", "--once"]).await;
    for schema in ["seriatim", "billing"] {
        let line =
            format!("schema \"{schema}\": 1 job deleted after their retention, 1 halt ended\n");
        assert!(done.out.contains(&line), "{}", done.out);
    }
    assert_eq!(cli.ends(DONE, &["maintain", "--once"]).await.out, "", "there is nothing more");
    let refused = cli.ends(USAGE, &["--dry-run", "maintain"]).await;
    assert!(refused.err.contains("no dry run"), "{}", refused.err);
    cli.ends(ERROR, &["maintain", "nowhere", "--once"]).await;
    cli.remove().await;
}

#[tokio::test]
async fn maintain_fires_schedules_with_cron_expressions() {
    let cli = Cli::new().await;
    let set = [
        "schedule",
        "set",
        "s",
        "--cron",
        "* * * * *",
        "--zone",
        "UTC",
        "--queue",
        "sql",
        "--data",
        "1",
        "--yes",
    ];
    cli.ends(DONE, &set).await;
    run(
        &cli,
        "update seriatim.schedule set counts_from = now() - interval '1 hour', \
         next_fire = date_trunc('minute', now()) - interval '1 min'",
    )
    .await;
    let done = cli.ends(DONE, &["maintain", "--once"]).await;
    assert!(done.out.contains("1 job made by schedules"), "{}", done.out);
    cli.remove().await;
}

#[tokio::test]
async fn doctor_names_queues_that_nobody_maintains() {
    let cli = Cli::new().await;
    run(
        &cli,
        "insert into seriatim.job (queue, group_id, data, status, finished_at)
         values ('sql', 'old', '1', 'succeeded', now() - interval '25 hours');
         select seriatim.enqueue('waits', '1', 'g', run_at => now() + interval '1 day')",
    )
    .await;
    let found = cli.ends(ERROR, &["doctor"]).await;
    let problem = "PROBLEM  maintenance: no process maintains queue \"sql\": ended jobs stay past";
    assert!(found.out.contains(problem), "{}", found.out);
    assert!(
        found.out.contains("note     maintenance: no process maintains queue \"waits\""),
        "{}",
        found.out
    );
    assert!(
        found.out.contains("-> seriatim maintain # or, by pg_cron: select seriatim.maintain();"),
        "{}",
        found.out
    );
    cli.ends(DONE, &["maintain", "--once"]).await;
    let fine = cli.ends(DONE, &["doctor"]).await;
    assert!(fine.out.contains("ok       maintenance: "), "{}", fine.out);
    cli.remove().await;
}
