//! Explain: every reason why a job or a group is where it is, and who has it.

use std::time::Duration;

use serde_json::json;
use seriatim::explain::{GroupExplanation, JobExplanation, LockedRow, Reason};
use seriatim::testing::TestDatabase;
use seriatim::{Client, JobError, JobStatus, NewJob, OutOfAttempts, RetryPolicy, Running};
use sqlx::PgPool;
use tokio::time::Instant;

use crate::support::{
    Log, PATIENCE, UNSEEN, by_hand, database, ended, enqueue, handler_with, job_of, job_when,
    operator, queue, serve, until_jobs, value,
};

async fn explained(pool: &PgPool, job: i64) -> JobExplanation {
    Client::default().explain_job(pool, job).await.unwrap().expect("the job is there")
}

async fn group(pool: &PgPool, group: &str) -> GroupExplanation {
    Client::default().explain_group(pool, "q", group).await.unwrap()
}

/// Waits until a job's sentence has these words, and gives the explanation back.
async fn says(pool: &PgPool, job: i64, words: &[&str]) -> JobExplanation {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = explained(pool, job).await;
        let sentence = seen.to_string();
        if words.iter().all(|words| sentence.contains(words)) {
            return seen;
        }
        assert!(Instant::now() < deadline, "{words:?} not in: {sentence}");
        // The database has no event to wait for here.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Handlers sleep in the database (`"sleep"`), or fail (`"bad"`).
async fn start(database: &TestDatabase, then: OutOfAttempts, log: &Log) -> Running {
    let retry = RetryPolicy::new(2).base(Duration::from_hours(1)).cap(Duration::from_hours(1));
    serve(
        database,
        10,
        queue("q").out_of_attempts(then).retry(retry),
        handler_with(log.clone(), async |log, job, data| {
            let tx = job.tx().await?;
            log.add(data.to_string());
            match data.as_str() {
                Some("sleep") => {
                    sqlx::query("select pg_sleep(600) /* stuck here */").execute(tx).await?;
                }
                Some("bad") => return Err(JobError::fail("no such account")),
                Some("later") => return Err(JobError::retry("bank closed")),
                _ => {}
            }
            Ok(data)
        }),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_handler_is_found_with_its_session_and_its_query() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let running = start(&database, OutOfAttempts::Continue, &log).await;
    let new = job_of("q", "account-42", "sleep").max_attempts(5);
    let first = seriatim::enqueue(pool, new).await.unwrap().id();
    log.wait_for(1).await;
    let seen = says(
        pool,
        first,
        &["running (attempt 1 of 5, for ", " in processor ", "select pg_sleep(600)"],
    )
    .await;
    let Reason::Running { session, processor: Some(processor), .. } = &seen.reason else {
        panic!("{seen:?}");
    };
    let own = i32::try_from(std::process::id()).unwrap();
    assert_eq!(processor.pid, Some(own));
    let stuck: i32 = value(
        pool,
        "select pid from pg_stat_activity where query like 'select pg_sleep(600)%' and state = 'active' \
         and datname = current_database()",
    )
    .await;
    assert_eq!((session.pid, session.state.as_deref()), (stuck, Some("active")));
    assert!(session.query_start.is_some() && session.since.is_some());
    assert_eq!(seen.behind.count, 0);

    // An adopter shares the row: from then on a set of transactions is written there.
    let second = enqueue(pool, "q", "account-42", 2).await;
    let third = enqueue(pool, "q", "account-42", 3).await;
    until_jobs(pool, UNSEEN, 0).await;
    let waits = explained(pool, second).await;
    let start =
        format!("Job {second} waits behind job {first} of group \"account-42\", which is running");
    assert!(waits.to_string().starts_with(&start), "{waits}");
    assert!(
        waits.to_string().contains(&format!(
            ". 1 job waits behind job {second}. Abort job {first} if it hangs."
        )),
        "{waits}"
    );
    let Reason::Behind { head, why } = &waits.reason else { panic!("{waits:?}") };
    assert_eq!(*head, first);
    assert!(matches!(&**why, Reason::Running { session, .. } if session.pid == stuck), "{why:?}");
    assert_eq!(explained(pool, third).await.behind.count, 0);
    let whole = group(pool, "account-42").await;
    assert_eq!((whole.head, whole.behind.count), (Some(first), 2));
    assert!(whole.to_string().contains(" 2 jobs wait behind job "), "{whole}");

    // As a value.
    let value = serde_json::to_value(&waits).unwrap();
    assert_eq!(value["reason"]["reason"], "behind");
    assert_eq!(value["reason"]["why"]["session"]["pid"], stuck);

    // Without a group, its own row is what is locked.
    let ungrouped = seriatim::enqueue(pool, NewJob::new("q", "sleep")).await.unwrap().id();
    let ungrouped =
        says(pool, ungrouped, &["of queue \"q\" is running (attempt 1 of 2, for ", "stuck here"])
            .await;
    assert!(matches!(ungrouped.reason, Reason::Running { session, .. } if session.pid != stuck));
    running.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_delays_and_halts_are_told_with_their_reasons() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let _running = start(&database, OutOfAttempts::Halt, &log).await;
    assert_eq!(Client::default().explain_job(pool, 404).await.unwrap(), None);
    let empty = group(pool, "nobody").await;
    assert_eq!((empty.head, &empty.reason), (None, &Reason::Nothing));
    assert_eq!(empty.to_string(), "Group \"nobody\" of queue \"q\" has no unfinished job.");

    let done = enqueue(pool, "q", "done", 1).await;
    ended(pool, done).await;
    says(pool, done, &[" succeeded at "]).await;

    let bad = enqueue(pool, "q", "halted", "bad").await;
    job_when(pool, bad, |job| job.status == JobStatus::Failed).await;
    // The job that stopped its group is retried, or skipped.
    let stopped = format!("Job {bad} failed and stopped group \"halted\" at ");
    let decide = format!("Retry job {bad} when the cause is fixed, or skip it.");
    says(pool, bad, &[&stopped, ": no such account. ", &decide]).await;
    let after = enqueue(pool, "q", "halted", 2).await;
    says(pool, bad, &[&format!(" 1 job waits behind job {bad}. ")]).await;
    let words = format!("waits because job {bad} failed and stopped its group ");
    let halted = says(pool, after, &[&words, " s ago: no such account. "]).await;
    assert!(matches!(halted.reason, Reason::Halted { by: Some(by), .. } if by == bad));
    // The job that stops the group comes before the innocent one.
    let whole = group(pool, "halted").await;
    assert_eq!(whole.head, Some(after));
    let whole = whole.to_string();
    let stopped = format!("Job {bad} failed and stopped group \"halted\" of queue \"q\" ");
    assert!(whole.starts_with(&stopped), "{whole}");
    assert!(whole.contains(" s ago: no such account. "), "{whole}");
    assert!(whole.ends_with(&format!(" Job {after} waits behind it. {decide}")), "{whole}");
    let cancelled = enqueue(pool, "q", "halted", 3).await;
    Client::default().cancel(pool, cancelled).await.unwrap();
    ended(pool, cancelled).await;
    says(pool, cancelled, &[" was cancelled at "]).await;
    Client::default().cancel(pool, after).await.unwrap();
    // At once, unless a worker reads its row at this moment.
    ended(pool, after).await;
    let none = group(pool, "halted").await.to_string();
    assert!(none.starts_with(&stopped[..stopped.len() - 1]), "{none}");
    assert!(none.contains(" No unfinished job waits behind it. "), "{none}");

    let delayed = job_of("q", "delayed", 1).delay(Duration::from_hours(3));
    let delayed = seriatim::enqueue(pool, delayed).await.unwrap().id();
    says(pool, delayed, &["is delayed for 3.0 h, until "]).await;
    let retried = enqueue(pool, "q", "retried", "later").await;
    let behind = enqueue(pool, "q", "retried", 2).await;
    let words = ["waits for its retry in ", "(attempt 1 of 2 failed: bank closed)"];
    let seen = says(pool, retried, &words).await;
    assert!(matches!(seen.reason, Reason::NotDue { .. }));
    says(pool, behind, &[&format!("waits behind job {retried} of group"), words[1]]).await;
    let ungrouped = NewJob::new("q", &1).delay(Duration::from_mins(10));
    let ungrouped = seriatim::enqueue(pool, ungrouped).await.unwrap().id();
    says(pool, ungrouped, &["is delayed for 10 min"]).await;
}

#[tokio::test]
async fn what_waits_for_a_worker_is_told_apart() {
    let database = database().await;
    let pool = database.pool();
    let first = enqueue(pool, "q", "g", 1).await;
    let second = enqueue(pool, "q", "g", 2).await;
    let ungrouped: Vec<i64> = {
        let jobs = (0..3).map(|n| NewJob::new("q", &n));
        seriatim::enqueue_many(pool, jobs).await.unwrap().iter().map(|job| job.id()).collect()
    };
    // No worker is there.
    let seen = explained(pool, first).await;
    assert!(matches!(seen.reason, Reason::NotAdopted { .. }), "{seen}");
    assert!(seen.to_string().contains("no worker has adopted its group yet"), "{seen}");
    let seen = explained(pool, ungrouped[2]).await;
    assert!(
        seen.to_string().contains("no worker has taken it yet, and 2 are due before it"),
        "{seen}"
    );

    // Ready behind two others. A sleeper, a claimed one and one without jobs do not count.
    by_hand(
        pool,
        format!(
            "update seriatim.job set flagged = false where queue = 'q';
             insert into seriatim.queue_group (queue, group_id, ready_at, head_id, claim, job_id) values
             ('q', 'g', now() - interval '1 s', {first}, null, null), ('q', 'a', now() - interval '2 s', 1, null, null),
             ('q', 'b', now() - interval '1 h', 1, null, null), ('q', 'c', now() + interval '1 h', 1, null, null),
             ('q', 'd', now() - interval '1 h', 1, gen_random_uuid(), 1), ('p', 'e', now() - interval '1 h', 1, null, null),
             ('q', 'f', now() - interval '1 h', 1, null, null);
             insert into seriatim.job (queue, group_id, data) values ('q', 'a', 'null'), ('q', 'b', 'null')"
        ),
    )
    .await;
    let seen = explained(pool, first).await;
    assert!(
        matches!(&seen.reason, Reason::WaitsForTurn { before, .. } if before.count == 2),
        "{seen:?}"
    );
    assert_eq!(seen.behind.count, 1);
    says(pool, second, &[&format!("behind job {first} of group \"g\", which waits for its turn")])
        .await;

    by_hand(pool, "insert into seriatim.queue (name, in_flight_limit) values ('q', 1)").await;
    says(pool, first, &["reached its limit of jobs in flight (1 of 1)"]).await;
    by_hand(pool, "update seriatim.queue set in_flight_limit = 2").await;
    says(pool, first, &["waits for its turn"]).await;
    by_hand(
        pool,
        "insert into seriatim.group_setting (queue, group_id, paused_at, pause_reason) \
         values ('q', 'g', now(), 'audit')",
    )
    .await;
    says(pool, second, &["which waits because its group has been paused since ", "(audit)"]).await;
    by_hand(pool, "update seriatim.group_setting set paused_until = '2100-01-01'").await;
    let until = ["(audit), until 2100-01-01 00:00:00 UTC: it resumes by itself", "resume_group"];
    says(pool, second, &until).await;
    by_hand(pool, "update seriatim.queue set paused_at = now(), pause_reason = 'deploy'").await;
    says(pool, first, &["because its queue has been paused since ", "(deploy)"]).await;
    says(pool, ungrouped[0], &["because its queue has been paused since ", "(deploy)"]).await;
    by_hand(pool, "delete from seriatim.queue; delete from seriatim.group_setting").await;

    by_hand(pool, format!("update seriatim.job set expires_at = now() where id = {first}")).await;
    says(pool, first, &["expired at ", "ends without a run"]).await;
    by_hand(pool, "update seriatim.job set expires_at = null; delete from seriatim.queue_group")
        .await;
    says(pool, first, &["nothing would wake it"]).await;
    by_hand(
        pool,
        format!("update seriatim.job set status = 'parked', parked_with = 5 where id = {second}"),
    )
    .await;
    says(pool, second, &["is parked with job 5, which failed"]).await;
}

#[tokio::test]
async fn a_claim_without_a_session_and_a_suspected_one_are_told() {
    let database = database().await;
    let pool = database.pool();
    let first = enqueue(pool, "q", "g", 1).await;
    let ungrouped = seriatim::enqueue(pool, NewJob::new("q", &2)).await.unwrap().id();
    by_hand(
        pool,
        format!(
            "insert into seriatim.processor (id, node, host, pid, server_started_at) \
             values (7, 'web-1', 'a', 4711, now());
             update seriatim.job set flagged = false, attempts = 1;
             update seriatim.job set status = 'started', attempts = 2, last_started_at = now(), \
               claim = gen_random_uuid(), lease_until = now() + interval '1 min', claimed_by = 7 \
             where id = {ungrouped};
             insert into seriatim.queue_group (queue, group_id, ready_at, head_id, claim, job_id, claimed_by, started_at) \
             values ('q', 'g', now() + interval '1 min', {first}, gen_random_uuid(), {first}, 7, now())"
        ),
    )
    .await;
    let web = "by processor web-1 (host a, pid 4711); its lease ends at ";
    let seen = says(pool, first, &["is claimed (attempt 2, for ", web]).await;
    assert_eq!(json!(seen.reason)["processor"]["node"], "web-1");
    says(pool, ungrouped, &["of queue \"q\" is claimed (attempt 2, for ", web]).await;
    // A reader that has the row for a moment is no holder of a free one, nor is one that has ended.
    by_hand(pool, "select 1 from seriatim.queue_group for no key update").await;
    assert!(matches!(explained(pool, first).await.reason, Reason::Claimed { .. }));
    by_hand(
        pool,
        "update seriatim.queue_group set suspect = claim; \
         update seriatim.job set suspect = claim where claim is not null",
    )
    .await;
    for job in [first, ungrouped] {
        let seen =
            says(pool, job, &["(attempt 2)", "which seems lost; it can be taken over at "]).await;
        assert!(matches!(seen.reason, Reason::Suspected { .. }));
    }
    // A session that holds it is not lost, whatever was suspected.
    let mut hold = pool.begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar(
        "select pg_backend_pid() from seriatim.queue_group where group_id = 'g' for no key update",
    )
    .fetch_one(&mut *hold)
    .await
    .unwrap();
    let seen = says(pool, first, &["in processor web-1", "idle in transaction"]).await;
    assert!(matches!(seen.reason, Reason::Running { session, .. } if session.pid == pid));
    hold.rollback().await.unwrap();
}

#[tokio::test]
async fn a_long_line_is_counted_up_to_a_limit() {
    let database = database().await;
    let pool = database.pool();
    let first = enqueue(pool, "q", "g", 1).await;
    by_hand(
        pool,
        "insert into seriatim.job (queue, group_id, data) \
         select 'q', 'g', 'null' from generate_series(1, 10001)",
    )
    .await;
    let seen = explained(pool, first).await;
    assert_eq!((seen.behind.count, seen.behind.or_more), (10_000, true));
    assert!(seen.to_string().contains(" 10000 or more jobs wait behind job 1."), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_nobody_serves_and_a_worker_that_is_gone_are_told() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let lost = enqueue(pool, "postngs", "g", 1).await;
    let alone =
        "No living processor or receiver serves queue \"postngs\", and none lives at all. Start a ";
    says(pool, lost, &[alone]).await;
    assert_eq!(client.processors(pool).await.unwrap(), []);

    let log = Log::default();
    let running = start(&database, OutOfAttempts::Continue, &log).await;
    let typo = "serves queue \"postngs\" (is the name mistyped? served are \"q\")";
    let seen = says(pool, lost, &[typo]).await;
    assert_eq!(seen.unserved.unwrap().served, ["q"]);
    let named = client.explain_group(pool, "postngs", "g").await.unwrap().to_string();
    assert!(named.contains(typo), "{named}");
    let processors = client.processors(pool).await.unwrap();
    assert_eq!(processors.len(), 1);
    assert!(processors[0].alive && processors[0].queues.as_deref() == Some(&["q".to_owned()]));

    // Its row shows a lock that nobody has.
    let stuck = enqueue(pool, "q", "stuck", "sleep").await;
    log.wait_for(1).await;
    running.shutdown(Duration::ZERO).await;
    by_hand(
        pool,
        format!(
            "insert into seriatim.processor (id, node, host, pid, presence_key, server_started_at, queues) \
             values (8, 'web-2', 'b', 4712, 99, now(), '{{q}}');
             delete from seriatim.queue_group;
             update seriatim.job set flagged = false where id = {stuck};
             insert into seriatim.queue_group (queue, group_id, ready_at, head_id, claim, job_id, claimed_by, started_at) \
             values ('q', 'stuck', now() + interval '1 min', {stuck}, gen_random_uuid(), {stuck}, 8, now())"
        ),
    )
    .await;
    let gone = "by processor web-2 (host b, pid 4712), which is gone";
    let seen =
        says(pool, stuck, &[gone, ". No living processor or receiver serves queue \"q\""]).await;
    assert!(matches!(seen.reason, Reason::Claimed { .. }), "{seen}");
    assert!(!client.processors(pool).await.unwrap().iter().any(|processor| processor.alive));
}

/// A claim of a queue with a limit counts by a row, which an open transaction may have.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_has_the_row_of_a_limit_is_named() {
    let of_queue = "is due, but a transaction has had the row of its queue";
    let of_key = "is due, but a transaction has had its limit key";
    for (settings, kept, words, expected) in [
        (
            r#"{"in_flight_limit": 100}"#,
            "seriatim.pause('q', null, 'forgotten')",
            of_queue,
            LockedRow::Queue,
        ),
        (
            r#"{"rate": 100}"#,
            r#"seriatim.configure_queue('q', '{"rate": 50}')"#,
            of_queue,
            LockedRow::Queue,
        ),
        (
            r#"{"limit_per_key": 1}"#,
            "seriatim.lock_limit_key('q', 'k', 1)",
            of_key,
            LockedRow::LimitKey,
        ),
    ] {
        let database = database().await;
        let (pool, log) = (database.pool(), Log::default());
        by_hand(pool, format!("select seriatim.configure_queue('q', '{settings}')")).await;
        let mut open = pool.begin().await.unwrap();
        let kept = sqlx::AssertSqlSafe(format!("select {kept}"));
        sqlx::query(kept).execute(&mut *open).await.unwrap();
        let job =
            seriatim::enqueue(pool, job_of("q", "g", "sleep").limit_key("k")).await.unwrap().id();
        let running = start(&database, OutOfAttempts::Continue, &log).await;
        let seen = says(pool, job, &[words, "database session", "pg_terminate_backend"]).await;
        assert!(matches!(&seen.reason, Reason::Locked { row, .. } if *row == expected), "{seen}");
        open.rollback().await.unwrap();
        log.wait_for(1).await;
        running.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_holds_a_job_up_is_named_and_so_is_a_pending_cancel() {
    let database = database().await;
    let (pool, log, client) = (database.pool(), Log::default(), Client::default());
    let job = enqueue(pool, "q", "g", "sleep").await;
    let mut other = pool.begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar(
        "select pg_backend_pid() from seriatim.job where id = $1 for update /* forgotten */",
    )
    .bind(job)
    .fetch_one(&mut *other)
    .await
    .unwrap();
    let running = start(&database, OutOfAttempts::Continue, &log).await;
    let words = ["is due, but a transaction has had its row", "forgotten", "pg_terminate_backend"];
    let seen = says(pool, job, &words).await;
    assert!(matches!(&seen.reason, Reason::Locked { session, .. } if session.pid == pid), "{seen}");
    other.rollback().await.unwrap();

    log.wait_for(1).await;
    client.cancel(pool, job).await.unwrap();
    let words = [
        "is running (attempt 1 of 2, for ",
        "; its timeout ends it at ",
        ". A cancel is pending since ",
    ];
    let seen = says(pool, job, &words).await;
    assert!(seen.cancel_requested_at.is_some());
    running.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_waits_for_a_lock_names_the_session_that_has_it() {
    let database = database().await;
    let (pool, gate) = (database.pool(), Log::default());
    by_hand(pool, "create table account (id int); insert into account values (1)").await;
    let mut other = pool.begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid() from account for update")
        .fetch_one(&mut *other)
        .await
        .unwrap();
    let run = handler_with(gate.clone(), async |log, job, data| {
        let tx = job.tx().await?;
        log.add("begun");
        sqlx::query("update account set id = 2").execute(tx).await?;
        Ok(data)
    });
    let running = serve(&database, 10, queue("q"), run).await;
    let job = enqueue(pool, "q", "g", 1).await;
    gate.wait_for(1).await;
    let words = format!("which waits for a lock of database session {pid}");
    let seen = says(pool, job, &[&words, "End the transaction of database session "]).await;
    assert!(matches!(&seen.reason, Reason::Running { session, .. } if session.blocked_by == [pid]));
    other.rollback().await.unwrap();
    ended(pool, job).await;
    running.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_jobs_are_told_with_their_group() {
    let database = database().await;
    let (pool, log) = (database.pool(), Log::default());
    let bad = enqueue(pool, "q", "g", "bad").await;
    let behind = enqueue(pool, "q", "g", 2).await;
    let running = start(&database, OutOfAttempts::Park, &log).await;
    job_when(pool, behind, |job| job.status == JobStatus::Parked).await;
    let whole = group(pool, "g").await;
    assert_eq!(whole.parked.as_ref().map(|parked| parked.jobs.count), Some(1));
    let words = "has no unfinished job. 1 of its jobs are parked since ";
    let whole = whole.to_string();
    assert!(whole.contains(words) && whole.contains("redrive_parked"), "{whole}");
    says(pool, behind, &[&format!("is parked with job {bad}"), "discard_parked"]).await;
    running.shutdown(Duration::from_secs(5)).await;
}

/// A claim whose lease is over reads as what it is, until a worker takes it over.
#[tokio::test]
async fn a_lapsed_lease_that_nobody_takes_over_is_told() {
    let database = database().await;
    let pool = database.pool();
    let (job, alone) = (enqueue(pool, "q", "g", "a").await, enqueue(pool, "q", "h", "b").await);
    by_hand(
        pool,
        format!(
            "update seriatim.job set flagged = false;
             insert into seriatim.queue_group (queue, group_id, ready_at, head_id, claim, job_id, started_at) values \
             ('q', 'g', now() - interval '90 s', {job}, gen_random_uuid(), {job}, now()), \
             ('q', 'h', now() - interval '1 s', {alone}, gen_random_uuid(), {alone}, now())"
        ),
    )
    .await;
    let words = ["its lease ended 90 s ago, and no worker has taken it over", "Start a processor"];
    let seen = says(pool, job, &words).await;
    let Reason::Lapsed { seconds, .. } = seen.reason else { panic!("{seen}") };
    assert!((90.0..150.0).contains(&seconds), "{seconds}");
    // So it is if it was suspected by somebody who is gone, too.
    by_hand(pool, "update seriatim.queue_group set suspect = claim").await;
    assert!(matches!(explained(pool, job).await.reason, Reason::Lapsed { .. }));

    // A processor of another version may serve any queue.
    let any = "insert into seriatim.processor (id, node, presence_key, server_started_at) \
               values (9, 'any', null, pg_postmaster_start_time())";
    by_hand(pool, any).await;
    says(pool, alone, &["Wait: it is taken over within seconds."]).await;
    says(pool, job, &["See whether the processors of its queue live"]).await;
    operator().pause_queue(pool, "q").await.unwrap();
    says(pool, job, &["Call resume_queue to let a worker take it over."]).await;
}

/// The attempts before a retry do not count.
#[tokio::test]
async fn an_attempt_after_a_retry_is_told_with_those_that_count() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let new = NewJob::new("q", &"a").group("g").max_attempts(2);
    let id = client.enqueue(pool, new).await.unwrap().id();
    by_hand(
        pool,
        "update seriatim.job set status = 'failed', flagged = false, attempts = 2, finished_at = now()",
    )
    .await;
    operator().retry(pool, id).await.unwrap();
    by_hand(pool, "update seriatim.job set attempts = 3").await;
    let job = client.job(pool, id).await.unwrap().unwrap();
    assert_eq!(job.attempt().to_string(), "attempt 3, 1 of 2 that count");
    let group = client.group(pool, "q", "g").await.unwrap().unwrap();
    assert_eq!(group.attempt().to_string(), "attempt 3, 1 of 2 that count");
}

/// The job's own numbers: not those of the job that is next, nor a limit that is set later.
#[tokio::test]
async fn an_ended_job_has_the_attempts_that_it_had() {
    let database = database().await;
    let pool = database.pool();
    let ended = enqueue(pool, "q", "g", "a").await;
    by_hand(
        pool,
        "update seriatim.job set status = 'failed', flagged = false, attempts = 3, finished_at = now();
         select seriatim.configure_queue('q', '{\"max_attempts\": 2}')",
    )
    .await;
    enqueue(pool, "q", "g", "b").await;
    let told = "select concat_ws(' ', e.reason, e.attempt, e.attempts_forgiven, e.attempt_limit) \
                from seriatim.explain($1) e";
    let told: String = sqlx::query_scalar(told).bind(ended).fetch_one(pool).await.unwrap();
    assert_eq!(told, "ended 3 0");
}
