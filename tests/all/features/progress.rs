//! Progress and checkpoints: what a handler leaves for its next attempt, and for those who look.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::QueueSettings;
use seriatim::receive::{Receipt, Receive, ReceiveError};
use seriatim::{ActiveJob, Client, Hold, JobError, JobStatus, NewJob, ProgressError, RetryPolicy};
use sqlx::PgPool;

use crate::support::worker_process::{Settings, WorkerProcess, announced, heard};
use crate::support::{
    Gate, Log, Looks, PATIENCE, by_hand, database, drained, ended, enqueue, eventually, handler,
    handler_with, job, job_of, job_when, operator, processor, queue, sample, serve, size, started,
    value,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_secs(30))];
const ROWS: &str = "select count(*) from seriatim.job_progress";

async fn rows(pool: &PgPool) -> i64 {
    value(pool, ROWS).await
}

async fn kept(pool: &PgPool, id: i64) -> Option<Value> {
    let kept = sqlx::query_scalar("select checkpoint from seriatim.job_progress where job_id = $1");
    kept.bind(id).fetch_optional(pool).await.unwrap().flatten()
}

/// Notes each write of progress, with its time.
async fn note_writes(pool: &PgPool) {
    by_hand(
        pool,
        "create table public.written (at timestamptz, percent integer, checkpoint jsonb);
         create function public.note() returns trigger language plpgsql as $$ begin
           insert into public.written values (clock_timestamp(), new.percent, new.checkpoint);
           return null;
         end $$;
         create trigger note after insert or update on seriatim.job_progress
           for each row execute function public.note()",
    )
    .await;
}

async fn maintained(pool: &PgPool) {
    Client::default().run_maintenance(pool, queue("q")).await.unwrap();
}

async fn write(job: &mut ActiveJob) -> Result<(), JobError> {
    let insert = sqlx::query("insert into public.effect values ($1, $2)").bind(job.id());
    let insert = insert.bind(i32::try_from(job.attempt()).unwrap());
    insert.execute(job.tx().await?).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_kept_over_a_failed_attempt() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        by_hand(pool, "create table public.effect (job bigint, attempt integer)").await;
        // A turn of several jobs, and jobs without a group.
        let mut ids = Vec::new();
        for writes in [false, true, false, true] {
            ids.push(enqueue(pool, "q", "g", writes).await);
            let alone = NewJob::new("q", &writes);
            ids.push(seriatim::enqueue(pool, alone).await.unwrap().id());
        }
        let run = handler(async |job, data| {
            let last = job.last_checkpoint::<(i64, u32)>().await?;
            if data == true {
                write(job).await?;
            }
            job.progress(50, "half of it")?;
            job.checkpoint(&(job.id(), job.attempt())).await?;
            assert_eq!(job.last_checkpoint().await?, Some((job.id(), job.attempt())));
            if job.attempt() < 3 {
                return Err(JobError::retry("again"));
            }
            Ok(json!(last))
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        for id in &ids {
            let job = ended(pool, *id).await;
            assert_eq!(job.status, JobStatus::Succeeded, "{hold:?} {job:?}");
            assert_eq!(job.result, Some(json!([id, 2])), "{hold:?}");
            assert!(job.progress.is_none() && job.checkpoint_at.is_none(), "{job:?}");
        }
        // The writes of failed attempts are gone: the checkpoint alone is kept.
        let written = "select array_agg(distinct attempt) from public.effect";
        assert_eq!(value::<Vec<i32>>(pool, written).await, [3], "{hold:?}");
        eventually(pool, ROWS, 0_i64).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_kept_over_a_killed_worker() {
    for lease in sample([None, Some(Duration::from_secs(30))]) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        let settings = Settings { lease, ..Settings::new(database.url(), &["q"]) };
        let doomed = WorkerProcess::start("doomed", &settings, &log);
        let id = enqueue(pool, "q", "g", "checkpoint, then hang").await;
        heard(&log, |said| said == "doomed: checkpoint kept").await;
        let seen = job_when(pool, id, |job| job.progress.is_some()).await;
        assert_eq!(seen.progress.unwrap().to_string(), "40 %, page 4 of 10");
        let other = WorkerProcess::start("other", &settings, &log);
        other.is_ready(&log).await;
        doomed.kill().await;
        let job = ended(pool, id).await;
        assert_eq!((job.attempts, job.result), (2, Some(json!(1))), "{lease:?}");
        eventually(pool, ROWS, 0_i64).await;
        other.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_before_the_delete_leaves_nothing_to_see() {
    for lease in sample([None, Some(Duration::from_secs(30))]) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        by_hand(pool, "create table public.go_on ()").await;
        let settings = Settings { lease, ..Settings::new(database.url(), &["q"]) };
        let worker = WorkerProcess::start("worker", &settings, &log);
        let id = enqueue(pool, "q", "g", "checkpoint, then wait").await;
        heard(&log, |said| said == "worker: waits").await;
        assert!(job(pool, id).await.checkpoint_at.is_some());
        // The delete waits for this lock.
        let mut lock = pool.begin().await.unwrap();
        let share = "lock table seriatim.job_progress in share mode";
        sqlx::query(share).execute(&mut *lock).await.unwrap();
        by_hand(pool, "drop table public.go_on").await;
        assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
        worker.kill().await;
        lock.rollback().await.unwrap();
        assert_eq!(rows(pool).await, 1, "{lease:?}");
        let seen = job(pool, id).await;
        assert!(seen.progress.is_none() && seen.checkpoint_at.is_none(), "{seen:?}");
        maintained(pool).await;
        assert_eq!(rows(pool).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_worker_keeps_no_checkpoint_when_it_wakes_up() {
    for lease in sample([None, Some(Duration::from_secs(2))]) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        by_hand(pool, "create table public.go_on ()").await;
        note_writes(pool).await;
        let settings = Settings { lease, ..Settings::new(database.url(), &["q"]) };
        let stale = WorkerProcess::start("stale", &settings, &log);
        let id = enqueue(pool, "q", "g", "wait, then checkpoint").await;
        let held = announced(&log, "g", 1).await;
        heard(&log, |said| said == "stale: waits").await;
        // A session's locks keep its claim, and under a lease also the presence of its process.
        let mut sessions = vec![held.pid];
        if lease.is_some() {
            let present = "select count(*) from seriatim.processor where presence_key is not null";
            eventually(pool, present, 1_i64).await;
            let presence =
                "select presence_pid from seriatim.processor where presence_key is not null";
            sessions.push(value(pool, presence).await);
        }
        stale.signal("STOP").await;
        let other = WorkerProcess::start("other", &settings, &log);
        other.is_ready(&log).await;
        for pid in sessions {
            by_hand(pool, format!("select pg_terminate_backend({pid})")).await;
        }
        assert_eq!(ended(pool, id).await.result, Some(Value::Null), "{lease:?}");
        by_hand(pool, "drop table public.go_on").await;
        stale.signal("CONT").await;
        heard(&log, |said| said.starts_with("stale: error: Settle")).await;
        let written = "select array_agg(checkpoint) from public.written";
        assert_eq!(value::<Vec<Value>>(pool, written).await, [json!(2)], "{lease:?}");
        eventually(pool, ROWS, 0_i64).await;
        other.end().await;
        stale.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_written_once_a_second_at_most() {
    for hold in sample(HOLDS) {
        let (database, calls) = (database().await, Arc::new(AtomicU32::new(0)));
        let pool = database.pool();
        note_writes(pool).await;
        let id = enqueue(pool, "q", "g", 1).await;
        let with = (pool.clone(), Arc::clone(&calls));
        let run = handler_with(with, async |(pool, calls), job, _| {
            // A write may come late, and the next one is a second after it was begun.
            by_hand(
                &pool,
                "create table if not exists public.begun as select clock_timestamp() as at",
            )
            .await;
            // Until the third write.
            while value::<i64>(&pool, "select count(*) from public.written").await < 3 {
                let call = calls.fetch_add(1, Ordering::Relaxed);
                job.progress((call % 100).try_into().unwrap(), "on its way")?;
                job.checkpoint(&call).await?;
            }
            Ok(Value::Null)
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        assert_eq!(ended(pool, id).await.status, JobStatus::Succeeded);
        let calls = calls.load(Ordering::Relaxed);
        assert!(calls > 20, "{calls} calls");
        assert_eq!(value::<i64>(pool, "select count(*) from public.written").await, 3);
        let after = "select array_agg(extract(epoch from w.at - b.at)::float8 order by w.at) \
                     from public.written w, public.begun b";
        let after: Vec<f64> = value(pool, after).await;
        // A write begins a second after the write before it began.
        assert!(after[1] > 0.9 && after[2] > 1.8, "{hold:?}: writes after {after:?} s");
        // Each write has what was reported until then.
        let last = "select max(checkpoint::text::integer) from public.written";
        assert!(value::<i32>(pool, last).await > 10);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_values_before_a_failure_are_kept() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        note_writes(pool).await;
        let ends = ["error", "panic", "timeout", "snooze", "again", "tx"];
        let jobs = ends.map(|end| {
            job_of("q", end, end).timeout(Duration::from_secs(if end == "timeout" {
                1
            } else {
                60
            }))
        });
        seriatim::enqueue_many(pool, jobs).await.unwrap();
        let run = handler(async |job, end| {
            if job.attempt() > 1 {
                return Ok(json!(job.last_checkpoint::<u32>().await?));
            }
            job.checkpoint(&1).await?;
            // These come too soon for a write.
            job.progress(7, "the last")?;
            job.checkpoint(&2).await?;
            match end.as_str().unwrap() {
                "error" => Err(JobError::retry("no")),
                "panic" => panic!("on purpose"),
                "snooze" => Err(JobError::snooze(Duration::ZERO)),
                "timeout" => std::future::pending().await,
                "tx" => {
                    sqlx::query("select 1 / 0").execute(job.tx().await?).await?;
                    unreachable!();
                }
                _ => {
                    job.again_after(Duration::ZERO);
                    Ok(Value::Null)
                }
            }
        });
        let options = queue("q").hold(hold).concurrency(6);
        let _running = serve(&database, 10, options, run).await;
        drained(pool, "q").await;
        let results =
            "select array_agg(distinct result) from seriatim.job where status = 'succeeded'";
        assert_eq!(value::<Vec<Value>>(pool, results).await, [json!(2)], "{hold:?}");
        let noted = "select count(*) from public.written where checkpoint = '2' and percent = 7";
        assert_eq!(value::<i64>(pool, noted).await, 6);
        eventually(pool, ROWS, 0_i64).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_keeps_the_last_checkpoint() {
    for hold in sample(HOLDS) {
        let (database, log) = (database().await, Log::default());
        let pool = database.pool();
        let id = enqueue(pool, "q", "g", 1).await;
        let run = handler_with(log.clone(), async |log, job, _| {
            job.checkpoint(&1).await?;
            job.checkpoint(&2).await?;
            log.add("kept");
            job.cancelled().await;
            Err(JobError::retry("the end"))
        });
        let running = serve(&database, 10, queue("q").hold(hold), run).await;
        log.wait_for(1).await;
        running.shutdown(Duration::ZERO).await;
        let seen = job(pool, id).await;
        assert_eq!((seen.status, seen.attempt().counted), (JobStatus::Queued, 0), "{hold:?}");
        assert_eq!(kept(pool, id).await, Some(json!(2)));
        assert!(seen.checkpoint_at.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_refused_with_a_reason() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let id = enqueue(database.pool(), "q", "g", 1).await;
        let run = handler(async |job, _| {
            let told = job.progress(101, "").unwrap_err().to_string();
            assert!(told.contains("101 %, it must be from 0 to 100"), "{told}");
            let large = "x".repeat(64 * 1024);
            let told = job.checkpoint(&large).await.unwrap_err().to_string();
            assert!(told.contains("65538 bytes, at most 65536"), "{told}");
            let told = job.checkpoint("a\0b").await.unwrap_err();
            assert!(matches!(told, ProgressError::Serialize { .. }), "{told:?}");
            let deep = (0..200).fold(Value::Null, |inner, _| json!([inner]));
            let told = job.checkpoint(&deep).await.unwrap_err();
            assert!(matches!(told, ProgressError::Serialize { .. }), "{told:?}");
            assert_eq!(job.last_checkpoint::<Value>().await?, None);
            job.progress(100, &"ü\0".repeat(1000))?;
            job.checkpoint("a word").await?;
            let told = job.last_checkpoint::<u32>().await.unwrap_err();
            assert!(matches!(told, ProgressError::Decode { .. }), "{told:?}");
            assert!(!told.to_string().contains("a word"), "{told}");
            Err::<Value, _>(JobError::fail("enough"))
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        let job = ended(database.pool(), id).await;
        assert_eq!(job.error.unwrap().message, "enough", "{hold:?}");
        assert_eq!(job.progress.unwrap().message, "ü\u{fffd}".repeat(200));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_refuses_fails_checkpoints_and_no_job() {
    for hold in sample(HOLDS) {
        let (database, gate) = (database().await, Gate::default());
        let (pool, log) = (database.pool(), Log::default());
        by_hand(
            pool,
            "create function public.refuse() returns trigger language plpgsql as $$ begin
               raise exception 'no more of this';
             end $$;
             create trigger refuse before insert or update on seriatim.job_progress
               for each row execute function public.refuse()",
        )
        .await;
        let reports = enqueue(pool, "q", "a", "progress").await;
        let keeps = enqueue(pool, "q", "b", "checkpoint").await;
        let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, what| {
            job.progress(10, "begun")?;
            if what == "checkpoint" {
                let told = job.checkpoint(&5).await.unwrap_err();
                assert!(matches!(told, ProgressError::Database(_)), "{told:?}");
                assert_eq!(job.last_checkpoint::<u32>().await?, Some(5));
                log.add("refused");
                gate.passed().await;
            }
            Ok(json!("done"))
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        assert_eq!(ended(pool, reports).await.status, JobStatus::Succeeded, "{hold:?}");
        log.wait_for(1).await;
        by_hand(pool, "drop trigger refuse on seriatim.job_progress").await;
        // It stays in memory, and is tried again.
        job_when(pool, keeps, |job| job.checkpoint_at.is_some()).await;
        assert_eq!(kept(pool, keeps).await, Some(json!(5)));
        gate.pass(1);
        assert_eq!(ended(pool, keeps).await.status, JobStatus::Succeeded, "{hold:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_keeps_its_checkpoint() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let id = enqueue(pool, "q", "g", 1).await;
        let run = handler(async |job, _| {
            if job.attempt() == 1 {
                assert!(futures::poll!(Box::pin(job.checkpoint(&3))).is_pending());
                return Err(JobError::retry("again"));
            }
            Ok(json!(job.last_checkpoint::<u32>().await?))
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        assert_eq!(ended(pool, id).await.result, Some(json!(3)), "{hold:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_sees_how_far_a_job_is() {
    for hold in sample(HOLDS) {
        let (database, gate) = (database().await, Gate::default());
        let (client, pool) = (Client::default(), database.pool());
        let first = enqueue(pool, "q", "g", 1).await;
        let second = enqueue(pool, "q", "g", 2).await;
        let run = handler_with(gate.clone(), async |gate, job, _| {
            if job.attempt() == 1 {
                job.progress(40, "page 4\nof 10")?;
            }
            gate.passed().await;
            if job.attempt() == 1 { Err(JobError::retry("no")) } else { Ok(Value::Null) }
        });
        let _running = serve(&database, 10, queue("q").hold(hold), run).await;
        let seen = job_when(pool, first, |job| job.progress.is_some()).await;
        assert_eq!(seen.progress.unwrap().to_string(), "40 %, page 4 of 10");
        let words = "s: 40 %, page 4 of 10)";
        let said = client.explain_job(pool, first).await.unwrap().unwrap().to_string();
        assert!(said.contains(words), "{hold:?} {said}");
        let said = client.explain_job(pool, second).await.unwrap().unwrap().to_string();
        assert!(
            said.contains(&format!("waits behind job {first}")) && said.contains(words),
            "{said}"
        );
        let said = client.explain_group(pool, "q", "g").await.unwrap().to_string();
        assert!(said.contains(words), "{said}");
        let listed = client.group_jobs(pool, "q", "g", 10).await.unwrap();
        assert_eq!(listed[0].progress.as_ref().unwrap().percent, 40);
        assert!(listed[1].progress.is_none());
        gate.pass(1);
        // The second attempt has not reported: what the first one did is shown as such alone.
        job_when(pool, first, |job| job.attempts == 2).await;
        let said = client.explain_job(pool, first).await.unwrap().unwrap().to_string();
        assert!(!said.contains("40 %"), "{said}");
        let seen = job(pool, first).await;
        assert!(seen.progress.unwrap().at < seen.last_started_at.unwrap());
        gate.pass(3);
        drained(pool, "q").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_is_kept_while_its_job_can_run_again() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let (operator, pool) = (operator(), database.pool());
        let settings = QueueSettings::new("moves").dead_letter_queue(Some("dead".to_owned()));
        operator.configure_queue(pool, settings).await.unwrap();
        let run = || {
            handler(async |job, _| {
                let last = job.last_checkpoint::<u32>().await?.unwrap_or(0);
                job.checkpoint(&(last + 1)).await?;
                if last < 1 { Err(JobError::fail("no")) } else { Ok(json!(last)) }
            })
        };
        let builder = processor(&database, 10).await;
        let builder = builder.queue(queue("q").hold(hold), run());
        let _running = started(builder.queue(queue("moves").hold(hold), run())).await;

        // A dead letter that is retried.
        let id = enqueue(pool, "q", "g", 1).await;
        assert_eq!(ended(pool, id).await.status, JobStatus::Failed);
        maintained(pool).await;
        assert_eq!(kept(pool, id).await, Some(json!(1)), "{hold:?}");
        operator.retry(pool, id).await.unwrap();
        assert_eq!(job_when(pool, id, |job| job.result.is_some()).await.result, Some(json!(1)));
        eventually(pool, ROWS, 0_i64).await;

        // One that waits in a dead-letter queue, and is redriven from there.
        let id = enqueue(pool, "moves", "g", 1).await;
        let seen = job_when(pool, id, |job| job.queue == "dead").await;
        assert!(seen.checkpoint_at.is_some());
        // A commit is seen before its locks are gone, and a locked job is left out.
        let mut looks = Looks::new(PATIENCE);
        while operator.redrive(pool, "moves", 10).await.unwrap().jobs == 0 {
            assert!(!looks.are_over(), "it is not redriven");
            looks.pause().await;
        }
        assert_eq!(job_when(pool, id, |job| job.result.is_some()).await.result, Some(json!(1)));
        eventually(pool, ROWS, 0_i64).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_goes_with_its_job() {
    let database = database().await;
    let (client, operator, pool) = (Client::default(), operator(), database.pool());
    let mut ids = Vec::new();
    for group in ["cancelled", "purged", "moved", "pruned"] {
        let id = enqueue(pool, "q", group, 1).await;
        let received = client.receive(pool, Receive::new("q").group(group)).await.unwrap();
        client.checkpoint(pool, &received[0].receipt, &group).await.unwrap();
        client.nack(pool, &received[0].receipt, Duration::ZERO).await.unwrap();
        assert!(job(pool, id).await.checkpoint_at.is_some());
        ids.push(id);
    }
    operator.cancel(pool, ids[0]).await.unwrap();
    operator.purge_group(pool, "q", "purged").await.unwrap();
    let moved = operator.move_jobs(pool, &[ids[2]], "other").await.unwrap();
    operator.skip(pool, ids[3]).await.unwrap();
    maintained(pool).await;
    // Each could be retried by hand. A moved job is a new one, whose attempts begin anew.
    assert_eq!(rows(pool).await, 4);
    let new = job(pool, moved.jobs[0].new_job).await;
    assert!(new.checkpoint_at.is_none());
    let received = client.receive(pool, Receive::new("other")).await.unwrap();
    assert_eq!(received[0].checkpoint, None);
    // Their retention is over, but that of one.
    by_hand(
        pool,
        format!(
            "update seriatim.job set finished_at = '2000-01-01', flagged = false
             where finished_at is not null and id <> {}",
            ids[0]
        ),
    )
    .await;
    maintained(pool).await;
    assert_eq!(kept(pool, ids[0]).await, Some(json!("cancelled")));
    assert_eq!(rows(pool).await, 1);
    operator.retry(pool, ids[0]).await.unwrap();
    let received = client.receive(pool, Receive::new("q").group("cancelled")).await.unwrap();
    assert_eq!(received[0].checkpoint, Some(json!("cancelled")));
}

async fn report(pool: &PgPool, call: &str, receipt: &Receipt) -> Result<String, sqlx::Error> {
    let call = format!("select seriatim.{call}").replace("receipt", &format!("'{receipt}'"));
    sqlx::query_scalar(sqlx::AssertSqlSafe(call)).fetch_one(pool).await
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_report_by_receipt() {
    let database = database().await;
    let (client, pool) = (Client::default(), database.pool());
    let grouped = enqueue(pool, "q", "g", 1).await;
    let alone = seriatim::enqueue(pool, NewJob::new("q", &1)).await.unwrap().id();
    let received = client.receive(pool, Receive::new("q").max(10)).await.unwrap();
    assert_eq!(received.len(), 2);
    for job in &received {
        assert_eq!(job.checkpoint, None);
        let receipt = &job.receipt;
        assert_eq!(report(pool, "progress(receipt, 40, 'page 4')", receipt).await.unwrap(), "done");
        assert_eq!(report(pool, "checkpoint(receipt, '[4]')", receipt).await.unwrap(), "done");
        let seen = Client::default().job(pool, job.id).await.unwrap().unwrap();
        assert_eq!(seen.progress.unwrap().to_string(), "40 %, page 4");
        let said = client.explain_job(pool, job.id).await.unwrap().unwrap().to_string();
        assert!(said.contains("s: 40 %, page 4)"), "{said}");
        // Either leaves the other as it is.
        client.progress(pool, receipt, 50, "").await.unwrap();
        assert_eq!(kept(pool, job.id).await, Some(json!([4])));
        client.checkpoint(pool, receipt, &5).await.unwrap();
        let seen = Client::default().job(pool, job.id).await.unwrap().unwrap();
        assert_eq!(seen.progress.unwrap().percent, 50);
        for (call, told) in [
            ("progress(receipt, 101)", "101 %, it must be from 0 to 100"),
            ("progress(receipt, -1)", "-1 %"),
            ("progress(receipt, null)", "null %"),
            ("checkpoint(receipt, null)", "the checkpoint is null"),
            ("checkpoint(receipt, to_jsonb(repeat('x', 70000)))", "at most 65536 are allowed"),
            ("progress('no', 1)", "not a receipt"),
        ] {
            let error = report(pool, call, receipt).await.unwrap_err().to_string();
            assert!(error.contains(told), "{call}: {error}");
        }
        let large = client.checkpoint(pool, receipt, &"x".repeat(70_000)).await.unwrap_err();
        assert!(matches!(large, ReceiveError::Refused { .. }), "{large:?}");
        client.nack(pool, receipt, Duration::ZERO).await.unwrap();
        assert_eq!(report(pool, "progress(receipt, 1)", receipt).await.unwrap(), "stale");
        let stale = client.checkpoint(pool, receipt, &9).await.unwrap_err();
        assert!(matches!(stale, ReceiveError::Stale { .. }), "{stale:?}");
    }
    let again = client.receive(pool, Receive::new("q").max(10)).await.unwrap();
    assert_eq!(
        again.iter().map(|job| job.checkpoint.clone()).collect::<Vec<_>>(),
        vec![Some(json!(5)); 2]
    );
    for job in &again {
        client.nack(pool, &job.receipt, Duration::ZERO).await.unwrap();
    }
    // A handler goes on where a receiver stopped.
    let run = handler(async |job, _| Ok(json!(job.last_checkpoint::<u32>().await?)));
    let _running = serve(&database, 10, queue("q"), run).await;
    for id in [grouped, alone] {
        assert_eq!(ended(pool, id).await.result, Some(json!(5)));
    }
    eventually(pool, ROWS, 0_i64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receivers_report_commits_with_its_transaction() {
    let database = database().await;
    let (client, pool) = (Client::default(), database.pool());
    let id = enqueue(pool, "q", "g", 1).await;
    let received = client.receive(pool, Receive::new("q")).await.unwrap();
    let receipt = &received[0].receipt;
    let mut tx = pool.begin().await.unwrap();
    client.checkpoint(&mut *tx, receipt, &1).await.unwrap();
    // Its rows are locked until the commit.
    let busy = client.progress(pool, receipt, 1, "").await.unwrap_err();
    assert!(matches!(busy, ReceiveError::Busy { .. }), "{busy:?}");
    tx.rollback().await.unwrap();
    assert_eq!(rows(pool).await, 0);
    let mut tx = pool.begin().await.unwrap();
    client.checkpoint(&mut *tx, receipt, &2).await.unwrap();
    client.ack(&mut *tx, receipt).await.unwrap();
    tx.commit().await.unwrap();
    let seen = job(pool, id).await;
    assert_eq!((seen.status, seen.checkpoint_at), (JobStatus::Succeeded, None));
    maintained(pool).await;
    assert_eq!(rows(pool).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_report_nothing_never_touch_the_table() {
    for hold in sample(HOLDS) {
        let (database, failed) = (database().await, Arc::new(AtomicU32::new(0)));
        let (client, pool) = (Client::default(), database.pool());
        for n in 0..20 {
            enqueue(pool, "q", &format!("g{}", n % 4), n).await;
            seriatim::enqueue(pool, NewJob::new("q", &n)).await.unwrap();
            enqueue(pool, "received", "g", n).await;
        }
        while let [job] = &*client.receive(pool, Receive::new("received")).await.unwrap() {
            client.ack(pool, &job.receipt).await.unwrap();
        }
        let run = handler_with(failed, async |failed, _, _| {
            if failed.fetch_add(1, Ordering::Relaxed) == 3 {
                return Err(JobError::retry("no"));
            }
            Ok(Value::Null)
        });
        let builder = processor(&database, 10).await.maintenance_interval(None);
        let retry = RetryPolicy::new(3).base(Duration::from_millis(1));
        let running = started(builder.queue(queue("q").retry(retry).hold(hold), run)).await;
        drained(pool, "q").await;
        running.shutdown(Duration::from_secs(5)).await;
        // A session's figures are there when it has ended.
        let claims = "select n_tup_ins from pg_stat_user_tables where relname = 'queue_group'";
        eventually(pool, claims, 5_i64).await;
        let touched = "select coalesce(seq_scan, 0) + coalesce(idx_scan, 0) + n_tup_ins + n_tup_del
            from pg_stat_user_tables where relname = 'job_progress'";
        assert_eq!(value::<i64>(pool, touched).await, 0, "{hold:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_that_keep_checkpoints_leave_nothing() {
    for hold in sample(HOLDS) {
        let database = database().await;
        let pool = database.pool();
        let jobs = (0..size(120, 300)).map(|n| job_of("q", &format!("g{}", n % 20), n));
        seriatim::enqueue_many(pool, jobs).await.unwrap();
        let run = handler(async |job, data| {
            job.progress(50, "")?;
            job.checkpoint(&data).await?;
            if job.attempt() == 1 && data.as_u64().unwrap() % 7 == 0 {
                return Err(JobError::retry("no"));
            }
            Ok(data)
        });
        let _running = serve(&database, 10, queue("q").concurrency(8).hold(hold), run).await;
        drained(pool, "q").await;
        eventually(pool, ROWS, 0_i64).await;
    }
}
