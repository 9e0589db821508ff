//! No record, claim or hold is harmed by settings that a handler leaves in its session or its
//! transaction.

use futures::future::join_all;
use serde_json::json;
use seriatim::{Client, ControlError, FailureKind, Hold, JobError, JobStatus, RetryPolicy};
use sqlx::AssertSqlSafe;

use super::{HOLD, database, queue};
use crate::support::{
    Errors, by_hand, ended, enqueue, handler, job_when, processor, size, started, value,
};

/// Limits are longer than what is quick, and shorter than a record and a claim of a slow server.
const LEFT: [&str; 27] = [
    "set local role pg_read_all_stats",
    "set role pg_read_all_stats",
    "set session authorization pg_read_all_stats",
    "set local session authorization pg_read_all_stats",
    "set local statement_timeout = '20ms'",
    "set statement_timeout = '20ms'",
    "set local lock_timeout = '1ms'",
    "set lock_timeout = '1ms'",
    "set local search_path = nowhere",
    "set search_path = pg_temp, public",
    "set row_security = off",
    "set default_transaction_read_only = on",
    "set default_transaction_isolation = serializable",
    "set default_transaction_deferrable = on",
    "set synchronous_commit = off",
    "set client_encoding = LATIN1",
    "set standard_conforming_strings = off",
    "set datestyle = 'German'; set timezone = 'Asia/Tokyo'; set intervalstyle = iso_8601",
    "set bytea_output = escape; set extra_float_digits = -15",
    "set enable_indexscan = off; set plan_cache_mode = force_custom_plan",
    "set constraints all deferred",
    "deallocate all",
    "reset all",
    "select pg_try_advisory_lock(1)",
    "listen left_behind",
    "create temp table if not exists job (id int); create temp table if not exists queue_group (id int)",
    "set transaction read only",
];

/// Claims and records take 30 ms.
const SLOW: &str = "
    create function public.slow() returns trigger language plpgsql as $$ begin
      perform pg_catalog.pg_sleep(0.03);
      return coalesce(new, old);
    end $$;
    create trigger slow before update or delete on seriatim.job for each row execute function public.slow();
    create trigger slow before insert or update on seriatim.queue_group
      for each row execute function public.slow();";

/// Each of `LEFT`, by a handler that succeeds and by one that fails. In a newcomer's run each hold
/// has one half of them.
fn all_left() -> Vec<(&'static str, bool)> {
    let mut all = Vec::new();
    for (at, left) in LEFT.into_iter().enumerate() {
        for fails in [false, true] {
            let half = at.is_multiple_of(2) == fails;
            if size(half == (HOLD == Hold::Transaction), true) {
                all.push((left, fails));
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_what_a_handler_leaves_in_its_session_harms_no_job() {
    // Side by side, each in a database of its own: most of their time is the sleeps of triggers.
    let all = all_left();
    join_all(all.chunks(all.len().div_ceil(2)).map(harms_no_job)).await;
}

async fn harms_no_job(all: &[(&str, bool)]) {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, SLOW).await;
    let errors = Errors::default();
    let run = handler(async |job, data| {
        let fails = data["fails"] == true;
        if let Some(left) = data["left"].as_str() {
            sqlx::raw_sql(AssertSqlSafe(left.to_owned())).execute(job.tx().await?).await?;
        } else if data["writes"] == true {
            sqlx::raw_sql("select count(*) from pg_class").execute(job.tx().await?).await?;
        }
        if fails { Err(JobError::fail("as asked")) } else { Ok(data) }
    });
    // One slot, so that each connection comes again and again.
    let options = queue("q").concurrency(1).retry(RetryPolicy::new(1)).hold(HOLD);
    let builder = processor(&database, 2).await.queue(options, run);
    let running = started(errors.of(builder)).await;
    for (left, fails) in all {
        let leaves = json!({ "left": left, "fails": fails });
        let (plain, writes) = (json!({}), json!({ "writes": true }));
        let broken = json!({ "writes": true, "fails": true });
        let jobs = [leaves, plain, writes, broken];
        let mut ids = Vec::new();
        for data in &jobs {
            ids.push(enqueue(pool, "q", left, data.clone()).await);
        }
        for (id, data) in ids.into_iter().zip(&jobs) {
            let job = ended(pool, id).await;
            let error = job.error.as_ref().map(|error| (error.kind, &*error.message));
            let (status, expected) = if data["fails"] == true {
                (JobStatus::Failed, Some((FailureKind::Permanent, "as asked")))
            } else {
                (JobStatus::Succeeded, None)
            };
            let found = (job.status, error, job.attempts);
            assert_eq!(found, (status, expected, 1), "{left}: {data}");
        }
    }
    let mut errors = errors.but_slow_checks();
    // On a busy machine 20 ms may be over before the library's own `set` is read: the server calls
    // that a request, and the next claim is soon. One that is over later it calls a timeout.
    errors.retain(|error| !error.contains("due to user request"));
    assert_eq!(errors, Vec::<String>::new());
    drop(running);
}

#[tokio::test]
async fn p4_a_deferred_constraint_is_checked_as_the_handlers_role() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "create table public.who (role text);
         create table public.deferred (id int);
         grant all on public.who, public.deferred to pg_read_all_stats;
         create function public.note() returns trigger language plpgsql as $$ begin
           insert into public.who values (current_user);
           return null;
         end $$;
         create constraint trigger note after insert on public.deferred deferrable initially deferred
           for each row execute function public.note()",
    )
    .await;
    let run = handler(async |job, data| {
        let sql = "set local role pg_read_all_stats; insert into public.deferred values (1)";
        sqlx::raw_sql(sql).execute(job.tx().await?).await?;
        Ok(data)
    });
    let builder = processor(&database, 4).await.queue(queue("q").hold(HOLD), run);
    let _running = started(builder).await;
    let id = enqueue(pool, "q", "g", 1).await;
    assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
    let roles: String = value(pool, "select string_agg(role, ' ') from public.who").await;
    assert_eq!(roles, "pg_read_all_stats");
}

#[tokio::test]
async fn p4_a_swallowed_error_fails_the_attempt_in_words() {
    let database = database().await;
    let pool = database.pool();
    let run = handler(async |job, data| {
        drop(sqlx::query("select 1 / 0").execute(job.tx().await?).await);
        Ok(data)
    });
    let options = queue("q").retry(RetryPolicy::new(1)).hold(HOLD);
    let _running = started(processor(&database, 4).await.queue(options, run)).await;
    let id = enqueue(pool, "q", "g", 1).await;
    let error = ended(pool, id).await.error.unwrap();
    assert_eq!(error.kind, FailureKind::Commit);
    let words = "a statement of the handler failed, and the handler returned Ok";
    assert!(error.message.starts_with(words), "{}", error.message);
}

#[tokio::test]
async fn p4_a_handler_cannot_abort_its_own_job_in_its_transaction() {
    let database = database().await;
    let pool = database.pool();
    let run = handler(async |job, data| {
        let id = job.id();
        if job.attempt() == 1 {
            match Client::default().operator("me", None).abort(job.tx().await?, id).await {
                Err(ControlError::Database(error)) => return Err(error.into()),
                other => panic!("{other:?}"),
            }
        }
        Ok(data)
    });
    let builder = processor(&database, 4).await.queue(queue("q").hold(HOLD), run);
    let running = started(builder).await;
    let ungrouped = seriatim::NewJob::new("q", &1);
    let jobs =
        [enqueue(pool, "q", "g", 1).await, seriatim::enqueue(pool, ungrouped).await.unwrap().id()];
    for id in jobs {
        let job = job_when(pool, id, |job| job.status == JobStatus::Succeeded).await;
        assert_eq!(job.attempts, 2);
        let error = job.history[0].message.as_deref().unwrap();
        assert!(error.contains("is held by this transaction"), "{error}");
    }
    let report = running.shutdown(std::time::Duration::from_secs(5)).await;
    assert_eq!(report.lost, 0);
}
