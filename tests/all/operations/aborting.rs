//! Abort: the run of a job ends, its handler is dropped, and its worker goes on.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use seriatim::receive::{Receive, ReceiveError};
use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Client, ControlError, FailureKind, Hold, Job, JobStatus, NewJob, RetryPolicy,
};

use crate::support::{
    Log, PATIENCE, database, ended, enqueue, eventually, handler, handler_with, job, job_when,
    nothing_remains_for_the_next, operator, queue, sample, serve, size,
};

/// Says when a handler's future is dropped.
struct Dropped(Arc<Log>, i64);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.add(format!("{} dropped", self.1));
    }
}

/// Jobs hang in their first attempt if their data is true; in a transaction if `in_tx`.
async fn hang(database: &TestDatabase, hold: Hold, in_tx: bool) {
    let (pool, log) = (database.pool(), Arc::new(Log::default()));
    let ann = Client::default().operator("ann", "it hangs");
    let run = handler_with((Arc::clone(&log), in_tx), async |(log, in_tx), job, data| {
        let hangs = data == true && job.attempt() == 1;
        if hangs && in_tx {
            sqlx::query("select 1").execute(job.tx().await?).await?;
        }
        log.add(format!("{} attempt {}", job.id(), job.attempt()));
        if hangs {
            let _dropped = Dropped(Arc::clone(&log), job.id());
            std::future::pending::<()>().await;
        }
        Ok(data)
    });
    let options = queue("q").hold(hold).retry(RetryPolicy::new(2)).no_timeout();
    let running = serve(database, 10, options, run).await;
    let ungrouped = seriatim::enqueue(pool, NewJob::new("q", &true)).await.unwrap().id();
    let grouped = enqueue(pool, "q", "g", true).await;
    let behind = enqueue(pool, "q", "g", false).await;
    let last = NewJob::new("q", &true).group("last").max_attempts(1);
    let last = seriatim::enqueue(pool, last).await.unwrap().id();
    for hung in [ungrouped, grouped, last] {
        let begun = format!("{hung} attempt 1");
        log.wait(&begun, |entries| entries.contains(&begun)).await;
        job_when(pool, hung, |job| job.status == JobStatus::Started).await;
        ann.abort(pool, hung).await.unwrap();
        let dropped = format!("{hung} dropped");
        log.wait(&dropped, |entries| entries.contains(&dropped)).await;
    }
    for again in [ungrouped, grouped, behind] {
        let done = tokio::time::timeout(PATIENCE, ended(pool, again)).await.unwrap();
        assert_eq!(done.status, JobStatus::Succeeded);
        assert_eq!(done.attempts, if again == behind { 1 } else { 2 });
    }
    let failed = ended(pool, last).await;
    assert_eq!(failed.status, JobStatus::Failed, "it had one attempt");
    let failure = failed.error.clone().unwrap();
    assert_eq!(
        (failure.kind, &*failure.message),
        (FailureKind::Aborted, "aborted by ann: it hangs")
    );
    for aborted in [job(pool, ungrouped).await, job(pool, grouped).await, failed] {
        assert_eq!(aborted_once(&aborted), "aborted by ann: it hangs");
    }
    let entries = log.entries();
    let at = |entry: String| entries.iter().position(|other| *other == entry).unwrap();
    assert!(at(format!("{grouped} dropped")) < at(format!("{grouped} attempt 2")), "{entries:?}");
    assert!(at(format!("{grouped} attempt 2")) < at(format!("{behind} attempt 1")));
    let refused = ann.abort(pool, grouped).await.unwrap_err();
    assert!(matches!(refused, ControlError::WrongStatus { .. }), "{refused}");
    let operations = ann.client().operations(pool, None, 10).await.unwrap();
    assert_eq!(operations.iter().filter(|done| done.action == "abort").count(), 3);
    running.shutdown(Duration::from_secs(5)).await;
    nothing_remains_for_the_next(pool).await;
}

/// Returns the message of a job's one record, which is that of its aborted first attempt.
fn aborted_once(job: &Job) -> &str {
    let [record] = &*job.history else { panic!("{:?}", job.history) };
    assert_eq!((record.attempt, record.kind), (1, FailureKind::Aborted));
    assert!(record.started_at.is_some_and(|begun| begun <= record.finished_at));
    record.message.as_deref().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_a_transaction_holds_is_aborted() {
    let database = database().await;
    hang(&database, Hold::Transaction, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_a_lease_holds_is_aborted() {
    let database = database().await;
    hang(&database, Hold::Lease(Duration::from_mins(10)), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_job_with_a_transaction_is_aborted() {
    let database = database().await;
    hang(&database, Hold::Lease(Duration::from_mins(10)), true).await;
}

/// Its handler gets the error of the query at once, and may not be recorded before the abort.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_a_query_is_aborted() {
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_mins(10))]) {
        let database = database().await;
        let pool = database.pool();
        let run = handler(async |job: &mut ActiveJob, _| {
            let sleep = "select pg_sleep(600)";
            sqlx::query(sleep).execute(job.tx().await?).await?;
            Ok(json!(null))
        });
        let options = queue("q").hold(hold).retry(RetryPolicy::new(1)).no_timeout();
        let running = serve(&database, 24, options, run).await;
        for group in 0..size(3, 10) {
            let id = enqueue(pool, "q", &group.to_string(), 1).await;
            let asleep = "select count(*) from pg_stat_activity \
                          where datname = current_database() and wait_event = 'PgSleep'";
            eventually(pool, asleep, 1_i64).await;
            Client::default().operator("ann", "it hangs").abort(pool, id).await.unwrap();
            let failed = ended(pool, id).await;
            assert_eq!(aborted_once(&failed), "aborted by ann: it hangs");
        }
        running.shutdown(Duration::from_secs(5)).await;
        nothing_remains_for_the_next(pool).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_is_not_heeded_and_then_an_abort_leave_one_record() {
    let database = database().await;
    let (pool, log) = (database.pool(), Arc::new(Log::default()));
    let run = handler_with(Arc::clone(&log), async |log, job, _| {
        log.add(format!("{} begins", job.id()));
        std::future::pending::<()>().await;
        Ok(json!(null))
    });
    let options = queue("q").hold(Hold::Lease(Duration::from_mins(10))).no_timeout();
    let running = serve(&database, 10, options, run).await;
    let id = enqueue(pool, "q", "g", 1).await;
    let begun = format!("{id} begins");
    log.wait(&begun, |entries| entries.contains(&begun)).await;
    operator().cancel(pool, id).await.unwrap();
    Client::default().operator("ann", None).abort(pool, id).await.unwrap();
    let done = ended(pool, id).await;
    assert_eq!((done.status, aborted_once(&done)), (JobStatus::Cancelled, "aborted by ann"));
    running.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_received_job_is_aborted_and_its_receipt_is_stale() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let id = enqueue(pool, "q", "g", 1).await;
    let what = || Receive::new("q").visibility(Duration::from_hours(1));
    let received = client.receive(pool, what()).await.unwrap().remove(0);
    operator().abort(pool, id).await.unwrap();
    let stale = client.ack(pool, &received.receipt).await.unwrap_err();
    assert!(matches!(stale, ReceiveError::Stale { .. }), "{stale}");
    assert!(client.receive(pool, what()).await.unwrap().is_empty(), "a grace has to pass");
    let again = async {
        loop {
            if let Some(again) = client.receive(pool, what()).await.unwrap().pop() {
                break again;
            }
            // A receive answers at once.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let again = tokio::time::timeout(PATIENCE, again).await.unwrap();
    assert_eq!((again.id, again.attempt), (id, 2));
    client.ack(pool, &again.receipt).await.unwrap();
    assert_eq!(aborted_once(&job(pool, id).await), "aborted by test");
    nothing_remains_for_the_next(pool).await;
}
