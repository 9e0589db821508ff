//! Jobs that are claimed for slots about to be free: what becomes of them if those are not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::Utc;
use serde_json::json;
use seriatim::testing::TestDatabase;
use seriatim::{Hold, NewJob, Running};
use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};
use tokio::time::Instant;

use crate::support::{
    Errors, Gate, PATIENCE, STARTED, database, drained, eventually, groups_where, handler_with,
    jobs_where, long, nothing_remains, processor, queue, sample, size, started,
};

const SLOTS: usize = 2;
/// Claims: a group's turn is one.
const CLAIMS: &str = "select count(distinct coalesce(group_id, id::text)) from seriatim.job \
    where seriatim.job_state(status, queue, group_id, id) = 'started'";
/// The attempts of a job that were begun: one of a group is counted when it has ended. A claim may
/// name jobs of its turn that have ended.
const BEGUN: &str = "attempts + (select count(c.started_at) \
    from seriatim.claim_of(queue, group_id, id) c where finished_at is null)";
const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_mins(1))];
/// With a turn of one job, and of some.
const KINDS: [(Hold, usize); 4] = [(HOLDS[0], 1), (HOLDS[0], 2), (HOLDS[1], 1), (HOLDS[1], 2)];

/// A worker whose handlers return at once, or are stuck until they may pass.
#[derive(Clone, Default)]
struct Bench {
    stuck: Arc<AtomicBool>,
    gate: Gate,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
    ran: Arc<Mutex<HashMap<i64, u32>>>,
    errors: Errors,
}

impl Bench {
    async fn start(&self, database: &TestDatabase, (hold, turn): (Hold, usize)) -> Running {
        let run = handler_with(self.clone(), async |bench: Self, job, data| {
            let running = bench.running.fetch_add(1, Ordering::SeqCst) + 1;
            bench.most.fetch_max(running, Ordering::SeqCst);
            *bench.ran.lock().unwrap().entry(job.id()).or_default() += 1;
            if bench.stuck.load(Ordering::SeqCst) || data == "sticks" {
                bench.held.fetch_add(1, Ordering::SeqCst);
                bench.gate.passed().await;
                bench.held.fetch_sub(1, Ordering::SeqCst);
            }
            bench.running.fetch_sub(1, Ordering::SeqCst);
            Ok(json!(null))
        });
        let builder = self.errors.of(processor(database, 6).await);
        let options = queue("q")
            .hold(hold)
            .concurrency(SLOTS)
            .time_slice(Duration::from_millis(turn as u64 - 1));
        started(builder.queue(options, run)).await
    }

    fn ran(&self) -> usize {
        self.ran.lock().unwrap().len()
    }

    /// Lets all slots be stuck, after some jobs more.
    async fn stick(&self) {
        let before = self.ran();
        until(|| self.ran() >= before + 30).await;
        self.stuck.store(true, Ordering::SeqCst);
        until(|| self.held.load(Ordering::SeqCst) == SLOTS).await;
    }

    fn unstick(&self) {
        self.stuck.store(false, Ordering::SeqCst);
        self.gate.pass(SLOTS);
    }

    /// How many claims wait while all slots are stuck: not those that have ended, which may not be
    /// recorded yet.
    async fn waiting(&self, pool: &PgPool) -> usize {
        let claims = format!(
            "select array_agg(id) from seriatim.job where {STARTED} group by coalesce(group_id, id::text)"
        );
        let claims: Vec<Vec<i64>> =
            sqlx::query_scalar(AssertSqlSafe(claims)).fetch_all(pool).await.unwrap();
        let ran = self.ran.lock().unwrap();
        claims.iter().filter(|jobs| !jobs.iter().any(|job| ran.contains_key(job))).count()
    }

    /// Enqueues jobs until some were prefetched while all slots are stuck. On a machine under load
    /// jobs take long, and it may need several tries.
    async fn prefetches(&self, pool: &PgPool) {
        let deadline = Instant::now() + PATIENCE * 2;
        loop {
            enqueue(pool, 300, |job| job).await;
            self.stick().await;
            for _ in 0..10 {
                if self.waiting(pool).await > 0 {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "nothing was prefetched");
            self.unstick();
        }
    }
}

async fn until(done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain");
        // Several counters, of which none has an event.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Every second job is of a group, of two jobs each.
async fn enqueue(pool: &PgPool, jobs: usize, like: impl Fn(NewJob) -> NewJob) {
    let jobs = (0..jobs).map(|n| {
        let job = like(NewJob::new("q", &n));
        if n % 2 == 0 { job } else { job.group(format!("g{}", n / 4)) }
    });
    seriatim::enqueue_many(pool, jobs).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_whose_slots_stay_taken_run_elsewhere_as_new() {
    for kind in sample(KINDS) {
        let database = database().await;
        let pool = database.pool();
        let stuck = Bench::default();
        let first = stuck.start(&database, kind).await;
        stuck.prefetches(pool).await;
        let other = Bench::default();
        let second = other.start(&database, kind).await;
        // All but the two, and what is behind those.
        let left = "select count(*) from seriatim.job j where j.finished_at is null and not exists (select \
        from seriatim.job s where seriatim.job_state(s.status, s.queue, s.group_id, s.id) = 'started' and (s.id = j.id or s.group_id = j.group_id))";
        eventually(pool, left, 0_i64).await;
        eventually(pool, CLAIMS, 2_i64).await;
        eventually(pool, left, 0_i64).await;
        assert_eq!(stuck.held.load(Ordering::SeqCst), SLOTS);
        assert_eq!(
            jobs_where(
                pool,
                &format!(
                    "history <> '[]' or {BEGUN} <> \
                     (seriatim.job_state(status, queue, group_id, id) <> 'queued')::integer"
                )
            )
            .await,
            0
        );
        stuck.unstick();
        drained(pool, "q").await;
        for bench in [&stuck, &other] {
            assert!(bench.most.load(Ordering::SeqCst) <= SLOTS);
            assert!(bench.ran.lock().unwrap().values().all(|times| *times == 1));
        }
        let jobs: i64 = jobs_where(pool, "true").await;
        assert_eq!(i64::try_from(stuck.ran() + other.ran()).unwrap(), jobs);
        nothing_remains(pool).await;
        first.shutdown(Duration::from_secs(5)).await;
        second.shutdown(Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_leaves_jobs_that_were_not_begun_as_they_were() {
    for kind in sample(KINDS) {
        let database = database().await;
        let pool = database.pool();
        let bench = Bench::default();
        let running = bench.start(&database, kind).await;
        bench.prefetches(pool).await;
        let ended = tokio::spawn(async move { running.shutdown(PATIENCE).await });
        eventually(pool, CLAIMS, 2_i64).await;
        bench.unstick();
        let report = ended.await.unwrap();
        assert_eq!((report.released, report.lost), (0, 0), "{report:?}");
        assert_eq!(
            jobs_where(
                pool,
                "finished_at is null and (status <> 'queued' \
        or attempts <> 0 or last_started_at is not null or history <> '[]' or claim is not null)"
            )
            .await,
            0
        );
        assert_eq!(groups_where(pool, "claim is not null").await, 0);
        assert!(jobs_where(pool, "finished_at is null").await > 0);
    }
}

/// Jobs that wait under a long lease, and cannot be given back while their rows are locked; after
/// the first failure.
async fn locked(pool: &PgPool, bench: &Bench) -> Transaction<'static, Postgres> {
    let deadline = Instant::now() + PATIENCE;
    let locks = loop {
        bench.prefetches(pool).await;
        let mut locks = pool.begin().await.unwrap();
        for rows in [
            "select from seriatim.queue_group where claim is not null for update",
            "select from seriatim.job where group_id is null and status = 'started' for update",
        ] {
            sqlx::query(rows).execute(&mut *locks).await.unwrap();
        }
        if bench.waiting(pool).await > 0 {
            break locks;
        }
        locks.rollback().await.unwrap();
        assert!(Instant::now() < deadline, "all went back before they could be locked");
        bench.unstick();
    };
    until(|| !bench.errors.named("Hold").is_empty()).await;
    assert!(bench.waiting(pool).await > 0);
    locks
}

const LONG: (Hold, usize) = (Hold::Lease(Duration::from_mins(10)), 1);

/// Their leases stand for as long as their process lives: they must not stay with it.
#[tokio::test(flavor = "multi_thread")]
async fn leased_jobs_that_cannot_be_given_back_go_back_later() {
    let database = database().await;
    let pool = database.pool();
    let bench = Bench::default();
    let _running = bench.start(&database, LONG).await;
    let locks = locked(pool, &bench).await;
    locks.rollback().await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while bench.waiting(pool).await > 0 {
        assert!(Instant::now() < deadline, "they stay claimed");
    }
    assert_eq!(
        jobs_where(
            pool,
            &format!("not {STARTED} and finished_at is null and ({BEGUN}, history) <> (0, '[]')")
        )
        .await,
        0
    );
    bench.unstick();
    drained(pool, "q").await;
    assert!(bench.ran.lock().unwrap().values().all(|times| *times == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn leased_jobs_not_given_back_by_a_stop_are_taken_over() {
    // A worker tries for 3 s to give them back, and a take-over waits for its grace.
    if !long() {
        return;
    }
    let database = database().await;
    let pool = database.pool();
    let bench = Bench::default();
    let running = bench.start(&database, LONG).await;
    let locks = locked(pool, &bench).await;
    running.shutdown(Duration::from_millis(100)).await;
    assert!(jobs_where(pool, STARTED).await > 0);
    locks.rollback().await.unwrap();
    let _running = Bench::default().start(&database, LONG).await;
    drained(pool, "q").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_is_prefetched_that_has_one_attempt_or_expires() {
    let kinds: [fn(NewJob) -> NewJob; 2] =
        [|job| job.max_attempts(1), |job| job.expires_at(Utc::now() + Duration::from_hours(1))];
    let [once, expiring] = kinds;
    for (like, hold) in
        sample([(once, HOLDS[0]), (once, HOLDS[1]), (expiring, HOLDS[0]), (expiring, HOLDS[1])])
    {
        let database = database().await;
        let pool = database.pool();
        let bench = Bench::default();
        let running = bench.start(&database, (hold, 1)).await;
        for _ in 0..size(2, 4) {
            enqueue(pool, 300, like).await;
            bench.stick().await;
            for _ in 0..5 {
                assert_eq!(bench.waiting(pool).await, 0);
            }
            bench.unstick();
        }
        drained(pool, "q").await;
        // The settings of a job behind others are only known when it is claimed.
        enqueue(pool, 60, |job| job).await;
        let sticky = (0..30).map(|_| like(NewJob::new("q", "sticks")));
        seriatim::enqueue_many(pool, sticky).await.unwrap();
        until(|| bench.held.load(Ordering::SeqCst) == SLOTS).await;
        eventually(pool, CLAIMS, 2_i64).await;
        assert_eq!(
            jobs_where(
                pool,
                &format!(
                    "not {STARTED} and finished_at is null and {BEGUN} <> 0 or history <> '[]'"
                )
            )
            .await,
            0
        );
        bench.gate.pass(30);
        drained(pool, "q").await;
        assert_eq!(jobs_where(pool, "status <> 'succeeded'").await, 0);
        running.shutdown(Duration::from_secs(5)).await;
    }
}

/// Lets each hold of a handler do this as well, when it has the locks.
async fn after_each_hold(pool: &PgPool, then: &str) {
    let hold = format!(
        "alter function seriatim.hold_job(bigint, uuid, boolean) rename to hold_job_of_its_own; \
         create function seriatim.hold_job(of_job bigint, with_token uuid, for_handler boolean, \
           out pid integer, out suspected boolean, out cancel_requested boolean, out lost boolean) \
         language plpgsql as $$ begin \
           select h.* into pid, suspected, cancel_requested, lost \
           from seriatim.hold_job_of_its_own(of_job, with_token, for_handler) h; \
           {then}; \
         end $$"
    );
    sqlx::raw_sql(AssertSqlSafe(hold)).execute(pool).await.unwrap();
}

/// Ways to make the hold of a prefetched job fail, in the message that has settled another turn.
const FAILING_HOLDS: [&str; 2] = [
    "raise exception 'no lock' using errcode = '55P03'",
    "perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(10)",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_fails_behind_a_settle_costs_no_attempt() {
    // The hold of another group's turn, and of the next job of the same turn.
    let [refused, killed] = FAILING_HOLDS;
    for (failing, turn) in sample([(refused, 1), (killed, 2), (refused, 2), (killed, 1)]) {
        let database = database().await;
        let pool = database.pool();
        let then = format!(
            "if current_query() like '%settle_success%' and nextval('public.failed') <= 3 then {failing}; end if"
        );
        sqlx::query("create sequence public.failed").execute(pool).await.unwrap();
        after_each_hold(pool, &then).await;
        let bench = Bench::default();
        let running = bench.start(&database, (Hold::Transaction, turn)).await;
        let failed = "select last_value >= 3 and is_called from public.failed";
        let deadline = Instant::now() + PATIENCE;
        while !sqlx::query_scalar::<_, bool>(failed).fetch_one(pool).await.unwrap() {
            assert!(Instant::now() < deadline, "no hold came behind a settle");
            enqueue(pool, 300, |job| job).await;
            drained(pool, "q").await;
        }
        drained(pool, "q").await;
        assert_eq!(jobs_where(pool, "attempts <> 1 or history <> '[]'").await, 0, "{failing}");
        assert!(bench.ran.lock().unwrap().values().all(|times| *times == 1));
        assert_eq!(bench.errors.named("Settle"), [""; 0], "{failing}");
        nothing_remains(pool).await;
        running.shutdown(Duration::from_secs(5)).await;
    }
}

/// An answer proves that its session lived when the message was sent. If it comes late, the job is
/// asked for again, and its handler begins with a proof that is fresh.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_answer_came_late_behind_a_settle_is_made_again() {
    for turn in sample([1, 2]) {
        let database = database().await;
        let pool = database.pool();
        let sequences = "create sequence public.behind; create sequence public.late_job; \
             create sequence public.again";
        sqlx::raw_sql(sequences).execute(pool).await.unwrap();
        let then = "if current_query() like '%settle_success%' then \
               if pid is not null and nextval('public.behind') = 1 then \
                 perform setval('public.late_job', of_job), pg_sleep(0.8); \
               end if; \
             elsif of_job = (select last_value from public.late_job where is_called) then \
               perform nextval('public.again'); \
             end if";
        after_each_hold(pool, then).await;
        let bench = Bench::default();
        let running = bench.start(&database, (Hold::Transaction, turn)).await;
        let again = "select is_called from public.again";
        let deadline = Instant::now() + PATIENCE;
        while !sqlx::query_scalar::<_, bool>(again).fetch_one(pool).await.unwrap() {
            assert!(Instant::now() < deadline, "no late hold was made again");
            enqueue(pool, 300, |job| job).await;
            drained(pool, "q").await;
        }
        assert_eq!(jobs_where(pool, "attempts <> 1 or history <> '[]'").await, 0);
        assert!(bench.ran.lock().unwrap().values().all(|times| *times == 1));
        nothing_remains(pool).await;
        running.shutdown(Duration::from_secs(5)).await;
    }
}
