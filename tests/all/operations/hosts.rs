//! A host's own settings do not disturb the jobs: the library's sessions say what they need.

use std::str::FromStr;
use std::time::Duration;

use serde_json::json;
use seriatim::receive::Receive;
use seriatim::{Client, JobStatus, Processor};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor, PgPool};

use crate::support::{
    Errors, Log, by_hand, chain, database, ended, eventually, handler, handler_with, job_of,
    nothing_remains, operator, queue, started, value,
};

/// Runs jobs of a second on sessions with these settings: nothing fails, nothing is lost, nothing
/// is reported. If the machine is too busy for a check of the holds, an attempt may be lost with
/// its session, and the check is reported. Without indexes it often is: then the jobs end all the
/// same.
async fn jobs_run_with(settings: &'static [(&'static str, &'static str)], producer_too: bool) {
    let database = database().await;
    by_hand(
        database.pool(),
        "create schema evil;
         create table evil.job (); create table evil.queue_group (); create table evil.migration ();
         create table evil.cancel_request (); create type evil.job_status as enum ('odd');
         create function evil.now() returns timestamptz language sql as $$ select 'infinity'::timestamptz $$",
    )
    .await;
    let options = PgConnectOptions::from_str(&database.url()).unwrap();
    // On the connection's start, and once more for what the driver sets itself.
    let odd = PgPoolOptions::new()
        .max_connections(10)
        .after_connect(move |conn, _| {
            Box::pin(async move {
                for (name, setting) in settings {
                    let set = sqlx::query("select set_config($1, $2, false)");
                    conn.execute(set.bind(name).bind(setting)).await?;
                }
                Ok(())
            })
        })
        .connect_lazy_with(options.options(settings.iter().copied()));
    let errors = Errors::default();
    let slow = settings.contains(&("enable_indexscan", "off"));
    let pace = if slow { 10 } else { 1 };
    let builder = Processor::builder(odd.clone())
        .poll_interval(Duration::from_millis(50) * pace)
        .maintenance_interval(Duration::from_millis(200) * pace);
    let running = started(errors.of(builder).queue(
        queue("q"),
        handler(async |job, data| {
            if job.attempt() == 1 && data == json!("fails") {
                sqlx::query("select no_such_column").execute(job.tx().await?).await?;
            }
            // The second is what the host's limits are below: once in a query, once between
            // two.
            sqlx::query("select pg_sleep(0.5)").execute(job.tx().await?).await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
            let level: String =
                sqlx::query_scalar("show transaction_isolation").fetch_one(job.tx().await?).await?;
            Ok(json!(level))
        }),
    ))
    .await;
    let producer: &PgPool = if producer_too { &odd } else { database.pool() };
    let mut ids = Vec::new();
    for data in ["a", "b", "fails"] {
        let job = job_of("q", data, data);
        ids.push(seriatim::enqueue(producer, job).await.unwrap().id());
    }
    let ungrouped = seriatim::NewJob::new("q", "ungrouped");
    ids.push(seriatim::enqueue(producer, ungrouped).await.unwrap().id());
    let gone = job_of("q", "later", 1).delay(Duration::from_hours(1));
    let gone = seriatim::enqueue(producer, gone).await.unwrap().id();
    Client::default().cancel(producer, gone).await.unwrap();
    for id in ids {
        let job = ended(database.pool(), id).await;
        assert_eq!(job.result, Some(json!("read committed")), "{job:?}");
        let looked = Client::default().job(&odd, id).await.unwrap().unwrap();
        assert_eq!(looked, job, "it looks the same from a host's session");
        if !slow && errors.0.entries() == errors.but_slow_checks() {
            assert_eq!(job.history.len(), usize::from(job.data == json!("fails")), "{job:?}");
        }
    }
    assert_eq!(ended(database.pool(), gone).await.status, JobStatus::Cancelled);
    let new = Client::new("new").unwrap();
    for client in [Client::default(), new] {
        // A busy machine may leave the session idle between two steps for longer than the host's
        // limit.
        while let Err(error) = client.migrate(&odd).await {
            assert!(chain(&error).contains("idle-session timeout"), "{error}");
        }
    }
    let tables = async |schema: &str| -> i64 {
        let sql = format!(
            "select count(*) from information_schema.tables \
             where table_schema = '{schema}' and table_type = 'BASE TABLE'"
        );
        value(database.pool(), sql).await
    };
    assert_eq!(tables("new").await, tables("seriatim").await);
    nothing_remains(database.pool()).await;
    let limited = settings.iter().any(|(name, _)| name.ends_with("timeout"));
    if limited {
        // An idle while, in which the host's limits on idle sessions pass.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let listens = "select coalesce(bool_and(backend_start < now() - interval '450 ms'), false) \
                   from pg_stat_activity where query ilike 'listen %' and datname = current_database()";
    assert!(
        slow || value::<bool>(database.pool(), listens).await,
        "the session of the wake-ups was there all the while"
    );
    running.shutdown(Duration::from_secs(5)).await;
    // On a busy machine a claim or a round of maintenance may meet a limit of the host, if it has
    // one: the next one goes on.
    let cancelled = |said: &String| {
        let by_limit = said.contains("57014") || said.contains("57P05");
        limited && (said.contains("could not claim") || said.starts_with("Maintenance")) && by_limit
    };
    let mut errors = errors.but_slow_checks();
    errors.retain(|said| !cancelled(said) && !slow);
    assert_eq!(errors, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeatable_read_is_the_default() {
    jobs_run_with(&[("default_transaction_isolation", "repeatable read")], true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn serializable_and_deferrable_are_the_default() {
    jobs_run_with(
        &[
            ("default_transaction_isolation", "serializable"),
            ("default_transaction_deferrable", "on"),
        ],
        true,
    )
    .await;
}

#[tokio::test]
async fn a_pool_at_read_committed_calls_every_verb_whatever_the_default() {
    let database = database().await;
    let default = "alter database {name} set default_transaction_isolation = serializable";
    by_hand(database.pool(), default.replace("{name}", database.name())).await;
    let url = PgConnectOptions::from_str(&database.url()).unwrap();
    let named = url.clone().options([("default_transaction_isolation", "read committed")]);
    let (client, ann) = (Client::default(), operator());
    for (options, refused) in [(url, true), (named, false)] {
        let pool = &PgPoolOptions::new().connect_with(options).await.unwrap();
        let mut ids = Vec::new();
        for group in ["a", "b", "c", "d"] {
            ids.push(client.enqueue(pool, job_of("q", group, 1)).await.unwrap().id());
        }
        let error = match client.receive(pool, Receive::new("q").group("d")).await {
            Err(error) => Some(chain(&error)),
            Ok(received) => client.ack(pool, &received[0].receipt).await.err().map(|e| chain(&e)),
        };
        let answers = [
            error,
            ann.run_now(pool, ids[0]).await.err().map(|error| chain(&error)),
            ann.skip(pool, ids[0]).await.err().map(|error| chain(&error)),
            ann.redrive_jobs(pool, &ids[..1]).await.err().map(|error| chain(&error)),
            ann.move_jobs(pool, &ids[1..2], "other").await.err().map(|error| chain(&error)),
            client.run_move_tasks(pool).await.err().map(|error| chain(&error)),
            ann.abort(pool, ids[2]).await.err().map(|error| chain(&error)),
        ];
        let of_level = |answer: &Option<String>| {
            answer.as_ref().is_some_and(|error| error.contains("needs READ COMMITTED"))
        };
        assert!(answers.iter().all(|answer| of_level(answer) == refused), "{answers:?}");
        ann.purge(pool, "q").await.expect("it begins its own transactions");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_is_the_default() {
    jobs_run_with(&[("default_transaction_read_only", "on")], false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_are_short() {
    jobs_run_with(
        &[
            ("statement_timeout", "300ms"),
            ("lock_timeout", "100ms"),
            ("idle_in_transaction_session_timeout", "300ms"),
        ],
        false,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_sessions_are_ended() {
    jobs_run_with(&[("idle_session_timeout", "300ms")], false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_search_path_leads_elsewhere() {
    jobs_run_with(&[("search_path", "evil, public")], true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_search_path_is_empty_and_commits_do_not_wait() {
    jobs_run_with(&[("search_path", ""), ("synchronous_commit", "off")], true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_and_numbers_are_written_oddly() {
    jobs_run_with(
        &[
            ("TimeZone", "Asia/Kathmandu"),
            ("DateStyle", "SQL, DMY"),
            ("IntervalStyle", "iso_8601"),
            ("extra_float_digits", "0"),
            ("bytea_output", "escape"),
            ("standard_conforming_strings", "off"),
            ("quote_all_identifiers", "on"),
        ],
        true,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_use_no_index() {
    jobs_run_with(&[("enable_indexscan", "off")], true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publication_of_all_tables_refuses_no_write() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, "create publication everything for all tables").await;
    // A row of a table without a key and without an identity can be neither changed nor deleted.
    let refusing: Vec<String> = value(
        pool,
        "select coalesce(array_agg(c.relname::text), '{}') from pg_class c
         where c.relnamespace = 'seriatim'::regnamespace and c.relkind = 'r' and c.relreplident = 'd'
             and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)",
    )
    .await;
    assert_eq!(refusing, [""; 0]);
    let errors = Errors::default();
    let builder = Processor::builder(pool.clone()).maintenance_interval(Duration::from_millis(200));
    let begun = Log::default();
    let told = handler_with(begun.clone(), async |log, job, _| {
        log.add("begun");
        job.cancelled().await;
        Ok(json!("told"))
    });
    let running = started(errors.of(builder).queue(queue("q"), told)).await;
    let job = seriatim::enqueue(pool, job_of("q", "g", "1")).await.unwrap().id();
    begun.wait_for(1).await;
    Client::default().cancel(pool, job).await.unwrap();
    assert_eq!(ended(pool, job).await.result, Some(json!("told")));
    eventually(pool, "select count(*) from seriatim.cancel_request", 0_i64).await;
    nothing_remains(pool).await;
    for _ in 0..2 {
        let received: i64 = value(pool, "select count(*) from seriatim.receive('r')").await;
        assert_eq!(received, 0);
    }
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(errors.but_slow_checks(), [""; 0]);
}
