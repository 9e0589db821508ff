//! The start of a processor: what it checks, what it says, and its health while it runs.

use std::str::FromStr;
use std::time::Duration;

use serde_json::json;
use seriatim::testing::{Server, TestDatabase};
use seriatim::{Hold, NewJob, Processor, ProcessorBuilder, StartError};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::time::Instant;

use crate::support::logged::Logged;
use crate::support::standby::standby_of;
use crate::support::{
    Errors, FnHandler, Gate, Log, PATIENCE, by_hand, database, enqueue, handler, handler_with,
    held_up, operator, processor, queue, size, started, until_ready,
};

fn nothing() -> FnHandler {
    handler(async |_, _| Ok(json!(null)))
}

async fn refused(builder: ProcessorBuilder) -> StartError {
    let started = builder.queue(queue("q"), nothing()).build().unwrap().start().await;
    started.expect_err("the start must be refused")
}

#[tokio::test]
async fn a_start_on_a_database_that_cannot_be_reached_is_refused() {
    let pool = PgPoolOptions::new().connect_lazy("postgres://nobody@127.0.0.1:1/nowhere").unwrap();
    let error = refused(Processor::builder(pool)).await;
    assert!(matches!(error, StartError::Database(_)), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("did not reach the database"), "{text}");
    assert!(text.contains("refused"), "the reason is in the first line: {text}");
}

#[tokio::test]
async fn a_start_says_that_the_schema_is_missing_or_old() {
    let database = database().await;
    by_hand(database.pool(), "update seriatim.migration set version = version - 1").await;
    let error = refused(processor(&database, 10).await).await;
    assert!(matches!(error, StartError::OldSchema { found: 0, .. }), "{error:?}");
    assert!(error.to_string().contains("call migrate()"), "{error}");
    by_hand(database.pool(), "drop schema seriatim cascade").await;
    let error = refused(processor(&database, 10).await).await;
    assert!(matches!(error, StartError::NotMigrated { .. }), "{error:?}");
    for words in ["\"seriatim\"", "call migrate()", "seriatim migrate"] {
        assert!(error.to_string().contains(words), "{words} in {error}");
    }
}

#[tokio::test]
async fn a_start_names_the_rights_that_the_role_lacks() {
    let database = database().await;
    let pool = database.pool();
    let role = format!("{}_none", database.name());
    by_hand(pool, format!("create role {role} login")).await;
    let as_role = |database: &TestDatabase| {
        let options = PgConnectOptions::from_str(&database.url()).unwrap().username(&role);
        Processor::builder(PgPoolOptions::new().max_connections(5).connect_lazy_with(options))
    };
    let error = refused(as_role(&database)).await;
    let StartError::MissingRights { missing, .. } = &error else { panic!("{error:?}") };
    for right in ["usage on schema", "delete on table job", "execute on function claim_jobs"] {
        // Functions are everybody's until docs/roles.sql has run.
        if !right.starts_with("execute") {
            assert!(missing.iter().any(|missing| missing == right), "{right} in {missing:?}");
        }
    }
    for words in [&*role, "docs/roles.sql", "grant seriatim_worker to"] {
        assert!(error.to_string().contains(words), "{words} in {error}");
    }
    by_hand(pool, "revoke all on all functions in schema seriatim from public").await;
    let all = format!(
        "grant usage on schema seriatim to {role};
         grant select, insert, update, delete on all tables in schema seriatim to {role}"
    );
    by_hand(pool, all).await;
    let error = refused(as_role(&database)).await;
    let StartError::MissingRights { missing, .. } = &error else { panic!("{error:?}") };
    assert!(missing.iter().all(|right| right.starts_with("execute on function")), "{missing:?}");
    by_hand(pool, format!("grant execute on all functions in schema seriatim to {role}")).await;
    let processor = as_role(&database).queue(queue("q"), nothing()).build().unwrap();
    processor.start().await.unwrap().shutdown(Duration::from_secs(5)).await;
    by_hand(pool, format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_standby_is_refused() {
    let server = Server::start().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let Some(standby) = standby_of(&server).await else { return };
    let pool = PgPoolOptions::new().connect_lazy(&standby.url_of(database.name())).unwrap();
    let error = refused(Processor::builder(pool)).await;
    assert!(matches!(error, StartError::ReadOnly), "{error:?}");
}

#[tokio::test]
async fn start_and_stop_are_one_line_each_and_a_drop_is_told() {
    let database = database().await;
    let logged = Logged::default();
    let _guard = logged.start();
    let lease = Hold::Lease(Duration::from_secs(30));
    let running = started(
        processor(&database, 10)
            .await
            .queue(queue("mails"), nothing())
            .queue(queue("films").hold(lease), nothing()),
    )
    .await;
    let text = logged.text();
    assert_eq!(text.lines().count(), 1, "{text}");
    for words in [
        "the processor has started",
        "mails (4 slots, transaction), films (4 slots, lease)",
        "schema=\"seriatim\"",
        "server=",
        "wake_ups=true",
        "INFO",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    running.shutdown(Duration::from_secs(5)).await;
    let text = logged.text();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("ran when the shutdown began: finished=0"), "{text}");

    let build = async || processor(&database, 10).await.queue(queue("q"), nothing()).build();
    let _ = build().await.unwrap().start_when_ready();
    assert!(logged.text().contains("a Running was dropped"), "{}", logged.text());
    drop(build().await.unwrap());
    let unstarted = || logged.text().matches("dropped before it was started").count();
    assert_eq!(unstarted(), 1, "{}", logged.text());
    let used = build().await.unwrap();
    assert_eq!(used.drain().await.unwrap(), 0);
    drop(used);
    assert_eq!(unstarted(), 1, "{}", logged.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn health_says_whether_it_claims_and_what_is_busy() {
    let database = database().await;
    let (log, go) = (Log::default(), std::sync::Arc::new(tokio::sync::Notify::new()));
    let run = handler_with((log.clone(), go.clone()), async |(log, go), _, _| {
        log.add("begun");
        go.notified().await;
        Ok(json!(null))
    });
    let running = processor(&database, 10).await.queue(queue("q"), run).build().unwrap();
    let running = running.start().await.unwrap();
    until_ready(&running, true).await;
    enqueue(database.pool(), "q", "g", 1).await;
    log.wait_for(1).await;
    let health = running.health();
    let [q] = &health.queues[..] else { panic!("{health:?}") };
    assert_eq!((&*q.queue, q.hold, q.slots, q.busy, q.free), ("q", "transaction", 4, 1, 3));
    assert_eq!((health.presence, health.running, health.reasons.len()), (Some(true), 1, 0));
    assert!(q.due_lag.is_some() && q.last_claim_age.is_some(), "{q:?}");
    let text = serde_json::to_value(&health).unwrap();
    assert!(text["queues"][0]["last_claim_age"].is_f64(), "{text}");
    go.notify_one();
    // The tables go away: claims fail, and it says so.
    by_hand(database.pool(), "alter table seriatim.queue_group rename to gone").await;
    until_ready(&running, false).await;
    let health = running.health();
    assert!(health.reasons.iter().any(|reason| reason.contains("failed")), "{health:?}");
    by_hand(database.pool(), "alter table seriatim.gone rename to queue_group").await;
    until_ready(&running, true).await;
    let probe = running.health_probe();
    assert!(probe.is_ready());
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(probe.health().reasons, ["the processor is stopping"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_waits_is_ready_once_there_is_a_schema() {
    let database = database().await;
    by_hand(database.pool(), "drop schema seriatim cascade").await;
    let running = processor(&database, 10).await.queue(queue("q"), nothing()).build().unwrap();
    let running = running.start_when_ready();
    assert!(!running.is_ready());
    seriatim::migrate(database.pool()).await.unwrap();
    until_ready(&running, true).await;
    running.shutdown(Duration::from_secs(5)).await;
}

/// Its pool tries to connect until its time is over, and then says that it gave no connection.
#[tokio::test]
async fn a_database_that_is_down_is_named_as_such_and_so_is_its_return() {
    let server = Server::builder().setting("max_connections", "60").start().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let logged = Logged::default();
    let _guard = logged.start();
    server.stop_immediately().await.unwrap();
    let pool = PgPoolOptions::new().max_connections(10).acquire_timeout(Duration::from_secs(2));
    let builder = Processor::builder(pool.connect_lazy(&database.url()).unwrap());
    let running = builder.queue(queue("q"), nothing()).build().unwrap().start_when_ready();
    until_logged(&logged, "queue \"q\" got no connection").await;
    let text = logged.text();
    for words in ["are in use", "the processor has started", "can be reached again"] {
        assert!(!text.contains(words), "{words} in {text}");
    }
    server.start_again().await.unwrap();
    until_logged(&logged, "the database can be reached again").await;
    until_logged(&logged, "the processor has started").await;
    assert!(logged.text().contains("server=\""), "{}", logged.text());
    running.shutdown(Duration::from_secs(5)).await;
}

/// Waits until the log has these words.
async fn until_logged(logged: &Logged, words: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !logged.text().contains(words) {
        assert!(Instant::now() < deadline, "{words} in {}", logged.text());
        // A log is read, and has no event to wait for.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_cause_that_lasts_is_one_line_and_the_hook_gets_each() {
    let database = database().await;
    by_hand(database.pool(), "drop schema seriatim cascade").await;
    let logged = Logged::default();
    let _guard = logged.start();
    let errors = Errors::default();
    let builder = errors.of(processor(&database, 10).await).queue(queue("q"), nothing());
    let running = builder.build().unwrap().start_when_ready();
    let claims =
        |said: &[String]| said.iter().filter(|said| said.starts_with("NotMigrated")).count();
    errors.0.wait("claims fail again and again", |said| claims(said) >= size(2, 4)).await;
    running.shutdown(Duration::from_secs(5)).await;
    let text = logged.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("has no tables")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert_eq!(lines[0].matches("does not exist").count(), 1, "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_nobody_serves_is_named_once() {
    let database = database().await;
    let pool = database.pool();
    let before = chrono::Utc::now() - Duration::from_hours(1);
    // The second of q stays due while the first is held up.
    for (queue, group) in [("q", "g"), ("q", "h"), ("postngs", "g"), ("paused", "g")] {
        let job = NewJob::new(queue, &1).group(group).run_at(before);
        seriatim::enqueue(pool, job).await.unwrap();
    }
    operator().pause_queue(pool, "paused").await.unwrap();
    // The processor's own row comes later than the first look.
    let mut held = pool.begin().await.unwrap();
    sqlx::query("lock table seriatim.processor in share mode").execute(&mut *held).await.unwrap();
    let errors = Errors::default();
    let builder = errors.of(processor(&database, 10).await);
    let builder = builder.maintenance_interval(Duration::from_millis(20));
    let gate = Gate::default();
    let held_up = held_up(&Log::default(), &gate);
    let builder = builder.queue(queue("q").concurrency(1), held_up);
    let running = started(builder).await;
    // On a busy machine the processor's row may wait for the lock for too long, which is said, too.
    let names_it =
        |said: &String| said.contains("no processor or receiver serves queue \"postngs\"");
    errors.0.wait("the queue is named", |said| said.iter().any(names_it)).await;
    held.rollback().await.unwrap();
    gate.pass(2);
    running.shutdown(Duration::from_secs(5)).await;
    let mut said = errors.but_slow_checks();
    said.retain(|said| !(said.starts_with("Presence") && said.contains("lock timeout")));
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(names_it(&said[0]), "{said:?}");
}
