//! Successes in a turn that a lease keeps: quick ones are recorded together, slow ones one by one.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::json;
use seriatim::testing::{Server, TestDatabase};
use seriatim::{Hold, JobStatus, QueueOptions};

use crate::support::{
    AwakeInstant, Errors, Gate, Log, by_hand, database, drained, ended, enqueue, handler,
    handler_with, job, job_of, job_when, nothing_remains, processor, queue, serve, started, value,
};

/// One slot, with turns as long as a group has jobs.
fn long() -> QueueOptions {
    queue("q")
        .concurrency(1)
        .time_slice(Duration::from_secs(50))
        .hold(Hold::Lease(Duration::from_mins(10)))
}

/// The jobs of a turn that a lease keeps, by how they were recorded: the transactions, in order.
async fn recorded_by(pool: &sqlx::PgPool) -> Vec<i64> {
    let sql = "select array_agg(xmin::text::int8 order by id) from seriatim.job";
    let transactions: Vec<i64> = value(pool, sql).await;
    let mut numbers: Vec<i64> = Vec::new();
    let mut seen: Vec<i64> = Vec::new();
    for transaction in transactions {
        let known = seen.iter().position(|one| *one == transaction).unwrap_or_else(|| {
            seen.push(transaction);
            seen.len() - 1
        });
        numbers.push(i64::try_from(known).unwrap());
    }
    numbers
}

#[tokio::test(flavor = "multi_thread")]
async fn quick_successes_are_recorded_together() {
    let database = database().await;
    let pool = database.pool();
    let jobs = (0..100).map(|n| job_of("q", "g", n));
    seriatim::enqueue_many(pool, jobs).await.unwrap();
    let run = handler(async |_, _| Ok(json!(null)));
    let options = long();
    let _running = serve(&database, 4, options, run).await;
    drained(pool, "q").await;
    let transactions = recorded_by(pool).await.into_iter().max().unwrap() + 1;
    // Two turns. On a slow machine one may take longer than the time for which a success may wait.
    assert!(transactions <= 20, "100 jobs were recorded by {transactions} transactions");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_job_is_recorded_at_once_and_quick_ones_meanwhile() {
    let database = database().await;
    let pool = database.pool();
    // Quick, slow, quick: what comes before the slow one is recorded during it, and it before what
    // follows.
    let jobs = ["quick", "slow", "quick"].map(|data| job_of("q", "g", data));
    let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let (log, gate) = (Log::default(), Gate::default());
    let (seen, wait, look) = (log.clone(), gate.clone(), pool.clone());
    let run = handler_with((seen, wait, look), async |(seen, wait, look), _, data| {
        let done = "select count(*) from seriatim.job where status = 'succeeded'";
        let done: i64 = sqlx::query_scalar(done).fetch_one(&look).await.unwrap();
        seen.add(format!("{data} {done}"));
        if data == "slow" {
            wait.passed().await;
        }
        Ok(json!(null))
    });
    let _running = serve(&database, 4, long(), run).await;
    log.wait_for(2).await;
    ended(pool, ids[0].id()).await;
    assert_eq!(job(pool, ids[1].id()).await.status, JobStatus::Started);
    // Longer than a success may wait.
    tokio::time::sleep(Duration::from_millis(40)).await;
    gate.pass(1);
    drained(pool, "q").await;
    assert_eq!(log.entries()[2], "\"quick\" 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_a_transaction_is_recorded_with_those_before_it() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, "create table effect (n int8)").await;
    let jobs = (0..9).map(|n| job_of("q", "g", n));
    seriatim::enqueue_many(pool, jobs).await.unwrap();
    let log = Log::default();
    let run = handler_with(log.clone(), async |log, job, data| {
        log.add(data.to_string());
        let n = data.as_i64().unwrap_or_default();
        if n % 2 == 1 {
            let insert = sqlx::query("insert into effect values ($1)").bind(n);
            insert.execute(job.tx().await?).await?;
        }
        Ok(json!(null))
    });
    let errors = Errors::default();
    let builder = errors.of(processor(&database, 4).await);
    let options = long();
    let running = started(builder.queue(options, run)).await;
    drained(pool, "q").await;
    let expected: Vec<String> = (0..9).map(|n| n.to_string()).collect();
    assert_eq!(log.entries(), expected);
    assert_eq!(value::<i64>(pool, "select count(*) from effect").await, 4);
    assert_eq!(value::<i64>(pool, "select max(attempts)::int8 from seriatim.job").await, 1);
    nothing_remains(pool).await;
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(errors.but_slow_checks(), [""; 0]);
}

/// A host's own constraint refuses the result of one job of several that are recorded together.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_success_fails_and_those_behind_run_again() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "alter table seriatim.job add constraint no_two check (result is distinct from '2')",
    )
    .await;
    let jobs = (0..5).map(|n| job_of("q", "g", n));
    let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let (log, attempts) = (Log::default(), Log::default());
    let run = handler_with((log.clone(), attempts.clone()), async |(log, attempts), job, data| {
        log.add(data.to_string());
        let attempt = job.attempt();
        attempts.add(format!("{data} {attempt}"));
        Ok(if attempt == 1 { data } else { json!(null) })
    });
    let options = long();
    let running = serve(&database, 4, options, run).await;
    drained(pool, "q").await;
    running.shutdown(Duration::from_secs(5)).await;
    let refused = job_when(pool, ids[2].id(), |job| job.status == JobStatus::Succeeded).await;
    assert!(refused.attempts >= 2, "{refused:?}");
    let attempts = attempts.entries();
    let numbers: HashSet<&String> = attempts.iter().collect();
    assert_eq!(numbers.len(), attempts.len(), "no number comes twice: {attempts:?}");
    // However often some ran again: never one before another had succeeded that is before it.
    let entries = log.entries();
    let last = |n: &str| entries.iter().rposition(|entry| entry == n).unwrap();
    assert!((0..4).all(|n| last(&n.to_string()) < last(&(n + 1).to_string())), "{entries:?}");
    for id in &ids {
        assert_eq!(job(pool, id.id()).await.status, JobStatus::Succeeded);
    }
    nothing_remains(pool).await;
}

/// The first success is being recorded when the second, which the database refuses, is to be
/// recorded with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_success_behind_one_being_recorded_runs_again() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "alter table seriatim.job add constraint no_two check (result is distinct from '2');
         create function slow() returns trigger language plpgsql as $$ begin
           if new.status = 'succeeded' and new.data = '1' then perform pg_sleep(0.5); end if;
           return new; end $$;
         create trigger slow before update on seriatim.job for each row execute function slow()",
    )
    .await;
    let jobs = (1..3).map(|n| job_of("q", "g", n));
    let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let log = Log::default();
    let run = handler_with(log.clone(), async |log, _, data| {
        log.add(data.to_string());
        let again = log.entries().len() > 2;
        if data == 2 {
            // Ends while the first is being recorded: that begins after 20 ms, and takes 500.
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        Ok(if again { json!(null) } else { data })
    });
    let _running = serve(&database, 4, long(), run).await;
    drained(pool, "q").await;
    assert_eq!(log.entries(), ["1", "2", "2"]);
    for id in &ids {
        assert_eq!(job(pool, id.id()).await.status, JobStatus::Succeeded);
    }
    nothing_remains(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_success_stops_no_job_with_a_transaction_behind() {
    let database = database().await;
    let pool = database.pool();
    by_hand(
        pool,
        "create table effect (n int8);
         alter table seriatim.job add constraint no_one check (result is distinct from '1')",
    )
    .await;
    let jobs = (0..4).map(|n| job_of("q", "g", n));
    let ids = seriatim::enqueue_many(pool, jobs).await.unwrap();
    let log = Log::default();
    let run = handler_with(log.clone(), async |log, job, data| {
        log.add(data.to_string());
        let attempt = job.attempt();
        if data == 2 {
            sqlx::query("insert into effect values (2)").execute(job.tx().await?).await?;
        }
        Ok(if attempt == 1 { data } else { json!(null) })
    });
    let errors = Errors::default();
    let builder = errors.of(processor(&database, 4).await);
    let options = long();
    let running = started(builder.queue(options, run)).await;
    let since = AwakeInstant::now();
    drained(pool, "q").await;
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    running.shutdown(Duration::from_secs(5)).await;
    for id in &ids {
        assert_eq!(job(pool, id.id()).await.status, JobStatus::Succeeded);
    }
    let refused = job(pool, ids[1].id()).await;
    assert_eq!(refused.attempts, 2, "{refused:?}");
    assert_eq!(value::<i64>(pool, "select count(*) from effect").await, 1);
    assert!(errors.named("Settle").is_empty(), "{:?}", errors.0.entries());
    let entries = log.entries();
    let last = |n: &str| entries.iter().rposition(|entry| entry == n).unwrap();
    assert!((0..3).all(|n| last(&n.to_string()) < last(&(n + 1).to_string())), "{entries:?}");
    nothing_remains(pool).await;
}

/// More turns than the settler takes at once have successes to record, in groups that their
/// handlers' transactions hold.
#[tokio::test(flavor = "multi_thread")]
async fn what_transactions_hold_up_does_not_hold_up_other_groups() {
    const TURNS: u32 = 110;
    let server = Server::start().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let pool = database.pool();
    let (log, gate) = (Log::default(), Gate::default());
    let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, data| {
        if data == 1 {
            job.tx().await?;
            log.add("holds");
            gate.passed().await;
        }
        Ok(json!(null))
    });
    let options = long().concurrency(120);
    let running = processor(&database, TURNS + 3).await;
    let _running = started(running.queue(options, run)).await;
    let jobs = (0..TURNS).flat_map(|n| [0, 1].map(|data| job_of("q", &format!("g{n}"), data)));
    seriatim::enqueue_many(pool, jobs).await.unwrap();
    let turns = usize::try_from(TURNS).unwrap();
    log.wait_for(turns).await;
    // Longer than a success may wait for others.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let other = enqueue(pool, "q", "other", 2).await;
    let since = AwakeInstant::now();
    ended(pool, other).await;
    assert!(since.elapsed() < Duration::from_secs(5));
    gate.pass(turns);
    drained(pool, "q").await;
    nothing_remains(pool).await;
}

/// Once the handler has its locks no other transaction can record anything in the group, for as
/// long as its transaction is open.
#[tokio::test(flavor = "multi_thread")]
async fn successes_are_recorded_before_a_handler_gets_a_transaction() {
    let database = database().await;
    let pool = database.pool();
    let ids = seriatim::enqueue_many(pool, (0..3).map(|n| job_of("q", "g", n))).await.unwrap();
    let (log, look) = (Log::default(), pool.clone());
    let run = handler_with((log.clone(), look), async |(log, look), job, data| {
        if data == 2 {
            job.tx().await?;
            let sql = "select array_agg(seriatim.job_state(status, queue, group_id, id)::text order by id) from seriatim.job";
            let statuses: Vec<String> = sqlx::query_scalar(sql).fetch_one(&look).await?;
            log.add(statuses.join(" "));
        }
        Ok(json!(null))
    });
    let _running = serve(&database, 4, long(), run).await;
    ended(pool, ids[2].id()).await;
    assert_eq!(log.entries(), ["succeeded succeeded started"]);
}
