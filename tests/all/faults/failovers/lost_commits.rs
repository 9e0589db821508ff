//! A standby takes over that lacks the primary's newest commits: replication is asynchronous.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use seriatim::primary::Follow;
use seriatim::{Hold, JobStatus, Processor};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use super::work::Work;
use crate::support::standby::Pair;
use crate::support::{
    AwakeInstant, Errors, Gate, Log, by_hand, ended, enqueue, eventually, handler_with, long,
    queue, sample, size, until_caught_up, value, witness,
};

const HOLDS: [Hold; 2] = [Hold::Transaction, Hold::Lease(Duration::from_mins(10))];

/// A primary that waits for no standby.
async fn pair() -> Option<Pair> {
    let pair = Pair::new().await?;
    by_hand(pair.old(), "alter system reset synchronous_standby_names").await;
    by_hand(pair.old(), "select pg_reload_conf()").await;
    let names = "select current_setting('synchronous_standby_names')";
    eventually(pair.old(), names, String::new()).await;
    Some(pair)
}

/// All commits so far are on the standby, and none after them.
async fn cut_off(pair: &Pair) {
    until_caught_up(pair.old()).await;
    let standby = PgPool::connect(&pair.standby_url()).await.unwrap();
    by_hand(&standby, "alter system set primary_conninfo = ''").await;
    by_hand(&standby, "select pg_reload_conf()").await;
    eventually(pair.old(), "select count(*) from pg_stat_replication", 0_i64).await;
}

async fn followed(pair: &Pair) -> PgPool {
    let follow = Follow::url(&pair.database.url()).unwrap();
    let follow = follow.host(pair.standby_url().parse().unwrap());
    follow.connect(PgPoolOptions::new().max_connections(8)).await.unwrap()
}

/// The primary ends, and the standby takes its place.
async fn fail_over(pair: &Pair) -> PgPool {
    pair.server.stop_immediately().await.unwrap();
    pair.standby.promote().await.unwrap();
    PgPoolOptions::new().max_connections(5).connect(&pair.standby_url()).await.unwrap()
}

/// The promoted server knows nothing of the claim, and the job waits there. Two handlers may run at
/// once then (P2), until the first one's process has seen it. One effect is kept (P4).
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_whose_claim_is_lost_is_dropped_soon_and_its_job_has_one_effect() {
    if !long() {
        return;
    }
    for hold in sample(HOLDS) {
        let Some(pair) = pair().await else { return };
        let (log, gate, errors) = (Log::default(), Gate::default(), Errors::default());
        by_hand(pair.old(), "create table public.effect (job bigint)").await;
        let pool = followed(&pair).await;
        let job = enqueue(pair.old(), "q", "g", 1).await;
        cut_off(&pair).await;
        let run = handler_with((log.clone(), gate.clone()), async |(log, gate), job, _: Value| {
            log.add("begins");
            let _ended = Ended(log.clone());
            let insert = sqlx::query("insert into public.effect values ($1)").bind(job.id());
            insert.execute(job.tx().await?).await?;
            gate.passed().await;
            Ok(json!(null))
        });
        let builder = errors.of(Processor::builder(pool.clone()));
        let builder = builder.queue(queue("q").hold(hold), run);
        let running = builder.build().unwrap().start_when_ready();
        log.wait_for(1).await;

        let new = fail_over(&pair).await;
        log.wait("it runs again", |said| count(said, "begins") == 2).await;
        let again = AwakeInstant::now();
        log.wait("the first handler is dropped", |said| count(said, "ends") == 1).await;
        println!("{hold:?}: it is dropped {:.2?} after the job runs again", again.elapsed());
        assert!(again.elapsed() < Duration::from_secs(3), "{:?}", again.elapsed());
        gate.pass(1);
        assert_eq!(ended(&new, job).await.status, JobStatus::Succeeded);
        assert_eq!(
            value::<Vec<i64>>(&new, "select array_agg(job) from public.effect").await,
            [job]
        );
        running.shutdown(Duration::from_secs(5)).await;
    }
}

/// The process has settled the job, and the promoted server has its claim. No other process would
/// suspect it: this one lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_end_is_lost_does_not_stand_for_its_lease() {
    if !long() {
        return;
    }
    let Some(pair) = pair().await else { return };
    let (log, gate, errors) = (Log::default(), Gate::default(), Errors::default());
    let pool = followed(&pair).await;
    let run = handler_with((log.clone(), gate.clone()), async |(log, gate), _, data: Value| {
        log.add(data.to_string());
        gate.passed().await;
        Ok(json!(null))
    });
    let builder = errors.of(Processor::builder(pool.clone()));
    let builder = builder.queue(queue("q").hold(HOLDS[1]), run);
    let running = builder.build().unwrap().start_when_ready();
    let first = enqueue(pair.old(), "q", "g", 1).await;
    let second = enqueue(pair.old(), "q", "g", 2).await;
    log.wait_for(1).await;
    cut_off(&pair).await;
    gate.pass(2);
    assert_eq!(ended(pair.old(), second).await.status, JobStatus::Succeeded);

    let new = fail_over(&pair).await;
    gate.pass(2);
    let promoted = Instant::now();
    for id in [first, second] {
        assert_eq!(ended(&new, id).await.status, JobStatus::Succeeded);
    }
    println!("both have ended {:.1?} after the promotion", promoted.elapsed());
    assert_eq!(log.entries(), ["1", "2", "1", "2"]);
    running.shutdown(Duration::from_secs(5)).await;
}

fn count(said: &[String], what: &str) -> usize {
    said.iter().filter(|said| *said == what).count()
}

/// Says when a handler has ended or was dropped.
struct Ended(Log);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.add("ends");
    }
}

/// Jobs that are lost give their ids to other ones, and never their keys.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_commits_are_lost_and_all_others_keep_the_promises() {
    let Some(pair) = pair().await else { return };
    witness::prepare(pair.old()).await;
    let hosts = [pair.database.url(), pair.standby_url()].map(|url| url.parse().unwrap());
    let work = Work::begin(&hosts).await;
    Work::goes_on(pair.old(), size(30, 200)).await;
    cut_off(&pair).await;
    // A sequence is written ahead by 32 ids, which no commit loses.
    Work::goes_on(pair.old(), size(160, 200)).await;
    let new = fail_over(&pair).await;
    Work::goes_on(&new, size(60, 200)).await;
    let lost = work.ends_with_losses(&new).await;
    println!("{lost} acknowledged jobs were lost");
    assert!(lost > 32, "{lost}");
}
