//! The texts of errors: the reason in the first line, with its SQLSTATE, and what to do.

use std::time::Duration;

use serde_json::json;
use seriatim::admin::QueueSettings;
use seriatim::observe::BackgroundError;
use seriatim::receive::ReceiveError;
use seriatim::{
    BuildMistake, Client, ConfigureError, ControlError, EnqueueError, MigrateError, NameError,
    NewJob, StartError,
};
use sqlx::postgres::PgPoolOptions;

use crate::support::{database, ended, enqueue, handler, processor, queue};

fn closed() -> sqlx::Error {
    sqlx::Error::PoolClosed
}

/// A reason that each error below must show in its first line.
const REASON: &str = "closed";

/// Every error with a cause of its own, as a caller sees it.
fn with_causes() -> Vec<Box<dyn std::error::Error>> {
    let (queue, schema) = (|| String::from("q"), || String::from("s"));
    let io = || std::io::Error::other(REASON);
    let json = || serde::ser::Error::custom(REASON);
    let migrate = || MigrateError::Database { schema: schema(), step: None, source: closed() };
    vec![
        Box::new(migrate()),
        Box::new(StartError::Database(closed())),
        Box::new(StartError::UnusableSchema(migrate())),
        Box::new(StartError::StatementPooler(closed())),
        Box::new(ControlError::Database(closed())),
        Box::new(ConfigureError::Database(closed())),
        Box::new(ReceiveError::Database(closed())),
        Box::new(ReceiveError::Serialize { job: 7, source: json() }),
        Box::new(EnqueueError::Database(closed())),
        Box::new(EnqueueError::Serialize { index: None, source: json().into() }),
        Box::new(BackgroundError::Connection { queue: queue(), source: closed() }),
        Box::new(BackgroundError::Claim { queue: queue(), source: closed() }),
        Box::new(BackgroundError::NotMigrated {
            queue: queue(),
            schema: schema(),
            source: closed(),
        }),
        Box::new(BackgroundError::UnusableSchema(migrate())),
        Box::new(BackgroundError::Hold { queue: queue(), job: 7, source: Some(closed()) }),
        Box::new(BackgroundError::Settle { queue: queue(), job: 7, source: Some(closed()) }),
        Box::new(BackgroundError::SessionMonitor(closed())),
        Box::new(BackgroundError::Presence(closed())),
        Box::new(BackgroundError::NoMonitor(io())),
        Box::new(BackgroundError::Listener(closed())),
        Box::new(BackgroundError::StatementPooler(closed())),
        Box::new(BackgroundError::Maintenance(closed())),
        Box::new(BackgroundError::NoWatchdog(io())),
    ]
}

#[test]
fn each_error_says_its_reason_once_in_one_line() {
    for error in with_causes() {
        let text = error.to_string();
        assert_eq!(text.matches(REASON).count(), 1, "{text}");
        assert!(!text.contains('\n'), "{text}");
        assert!(error.source().is_some(), "code can tell it apart: {text}");
    }
}

#[test]
fn other_errors_say_what_to_do() {
    let (queue, group) = (|| String::from("q"), || String::from("g"));
    let name = || NameError::Empty { field: "group" };
    let texts: [(String, &str); 15] = [
        (EnqueueError::Name { index: None, source: name() }.to_string(), "the job cannot be"),
        (EnqueueError::Name { index: Some(3), source: name() }.to_string(), "job 3 of the call"),
        (
            EnqueueError::DataTooLarge { index: None, size: 2, limit: 1 }.to_string(),
            "raise the limit",
        ),
        (EnqueueError::DataHasNul { index: None }.to_string(), "remove or encode it"),
        (EnqueueError::DataTooDeep { index: None, depth: 200, limit: 127 }.to_string(), "flatten"),
        (ControlError::NoSuchJob { id: 7 }.to_string(), "retention"),
        (ControlError::Busy { id: 7 }.to_string(), "try again"),
        (ControlError::Parked { id: 7 }.to_string(), "redrive_parked"),
        (BuildMistake::NoQueue.to_string(), "call queue("),
        (StartError::ReadOnly.to_string(), "start_when_ready()"),
        (StartError::NoAnswer { limit: Duration::from_secs(15) }.to_string(), "within 15s"),
        (
            ControlError::NotPaused { queue: queue(), group: Some(group()) }.to_string(),
            "unhalt_group",
        ),
        (BackgroundError::HoldLost { queue: queue(), job: 7 }.to_string(), "job 7"),
        (
            BackgroundError::Hold { queue: queue(), job: 7, source: None }.to_string(),
            "another worker has its claim",
        ),
        (ControlError::NotHalted { queue: queue(), group: group() }.to_string(), "resume_group"),
    ];
    for (text, words) in texts {
        assert!(text.contains(words), "{words} in {text}");
    }
}

#[tokio::test]
async fn what_the_database_refuses_has_its_sqlstate_and_did_reach_it() {
    let database = database().await;
    let pool = database.pool();
    let client = Client::new("nowhere").unwrap();
    let enqueue = client.enqueue(pool, NewJob::new("q", &1)).await.unwrap_err().to_string();
    let control = client.cancel(pool, 1).await.unwrap_err().to_string();
    let receive =
        client.receive(pool, seriatim::receive::Receive::new("q")).await.unwrap_err().to_string();
    let settings = QueueSettings::new("q").in_flight_limit(1);
    let configure = client.configure_queue(pool, settings).await.unwrap_err().to_string();
    for text in [enqueue, control, receive, configure] {
        for words in ["the database refused", "does not exist", "SQLSTATE", "Call migrate()"] {
            assert!(text.contains(words), "{words} in {text}");
        }
        assert!(!text.contains("at line"), "{text}");
    }
    let gone = PgPoolOptions::new().acquire_timeout(Duration::from_millis(100));
    let gone = gone.connect_lazy("postgres://nobody@127.0.0.1:1/nowhere").unwrap();
    let text = Client::default().cancel(&gone, 1).await.unwrap_err().to_string();
    assert!(text.contains("did not reach the database"), "{text}");
}

#[tokio::test]
async fn a_handlers_database_error_has_its_sqlstate_and_no_line_of_the_server() {
    let database = database().await;
    let pool = database.pool();
    let run = handler(async |job, _| {
        sqlx::query("select * from no_such_table").execute(job.tx().await?).await?;
        Ok(json!(null))
    });
    let options = queue("q").retry(seriatim::RetryPolicy::new(1));
    let running = processor(&database, 10).await.queue(options, run).build().unwrap();
    let _running = running.start().await.unwrap();
    let id = enqueue(pool, "q", "g", 1).await;
    let failure = ended(pool, id).await.error.unwrap();
    assert!(
        failure.message.contains("\"no_such_table\" does not exist (SQLSTATE 42P01)"),
        "{failure:?}"
    );
    assert!(!format!("{failure:?}").contains("at line"), "{failure:?}");
}
