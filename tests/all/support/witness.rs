//! A handler that leaves traces outside and inside of its job's transaction, and what the traces
//! say afterwards.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use seriatim::receive::Received;
use seriatim::{ActiveJob, JobError, NewJob};
use sqlx::{PgConnection, PgPool};

use crate::support::{PATIENCE, by_hand, jobs_where, value};

/// A job of the witness.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    pub producer: u32,
    /// The producer's own count.
    pub n: u32,
    /// How long the handler takes.
    pub ms: u64,
}

/// For how long a job puts itself off.
const PUT_OFF: Duration = Duration::from_millis(1);

/// The tables that the witness writes to.
pub async fn prepare(pool: &PgPool) {
    by_hand(
        pool,
        "create table public.counter (place text primary key, value bigint not null);
         create table public.increment (place text, seen bigint, producer int, n int, job bigint, attempt int);
         create table public.effect (pos bigint generated always as identity, place text, producer int, n int, job bigint);",
    )
    .await;
}

pub fn job(queue: &str, group: Option<&str>, step: &Step) -> NewJob {
    let job = NewJob::new(queue, step);
    match group {
        Some(group) => job.group(group),
        None => job,
    }
}

/// Writes an effect inside of the job's transaction, and outside of it reads, waits and writes a
/// counter: two that run at the same time read the same value, and one increment is lost. Every
/// other one works before it has a transaction: what is lost then, under a lease, no row lock could
/// have kept. Some put themselves off once, with their effect or without it, which is rolled back
/// then. Some report how far they are.
pub async fn take_step(
    job: &mut ActiveJob,
    outside: &PgPool,
    data: Value,
) -> Result<Value, JobError> {
    let step: Step = serde_json::from_value(data).map_err(JobError::fail)?;
    let place = format!("{}/{}", job.queue(), job.group().unwrap_or("-"));
    let (producer, n) = (i32::try_from(step.producer).unwrap(), i32::try_from(step.n).unwrap());
    let seen: Option<i64> = sqlx::query_scalar("select value from public.counter where place = $1")
        .bind(&place)
        .fetch_optional(outside)
        .await?;
    let seen = seen.unwrap_or(0);
    let id = job.id();
    let first = job.snoozes() == 0;
    match n % 16 {
        3 if first => {
            write_effect(job, &place, producer, n).await?;
            return Err(JobError::snooze(PUT_OFF));
        }
        7 if first => {
            write_effect(job, &place, producer, n).await?;
            job.again_after(PUT_OFF);
            return Ok(json!(seen));
        }
        11 => job.progress(50, "half of it").map_err(JobError::fail)?,
        12 => job.checkpoint(&n).await?,
        _ => {}
    }
    // The work: the time in which another handler of the group could get in between.
    let work = tokio::time::sleep(Duration::from_millis(step.ms));
    let (before, after) = if n % 2 == 0 { (Some(work), None) } else { (None, Some(work)) };
    if let Some(work) = before {
        work.await;
    }
    // The other one has written it when it put itself off.
    if n % 16 != 7 {
        write_effect(job, &place, producer, n).await?;
    }
    if let Some(work) = after {
        work.await;
    }
    sqlx::query(
        "with counted as (insert into public.counter values ($1, $2 + 1)
             on conflict (place) do update set value = excluded.value)
         insert into public.increment values ($1, $2, $3, $4, $5, $6)",
    )
    .bind(&place)
    .bind(seen)
    .bind(producer)
    .bind(n)
    .bind(id)
    .bind(i32::try_from(job.attempt()).unwrap())
    .execute(outside)
    .await?;
    Ok(json!(seen))
}

/// Writes the effect of a received job, whose receiver acks it in the same transaction.
pub async fn write_received(
    tx: &mut PgConnection,
    queue: &str,
    job: &Received,
) -> Result<(), sqlx::Error> {
    let step: Step = job.decode().unwrap();
    let place = format!("{queue}/{}", job.group.as_deref().unwrap_or("-"));
    let (producer, n) = (i32::try_from(step.producer).unwrap(), i32::try_from(step.n).unwrap());
    insert_effect(tx, &place, (producer, n), job.receipt.job()).await
}

async fn write_effect(
    job: &mut ActiveJob,
    place: &str,
    producer: i32,
    n: i32,
) -> Result<(), JobError> {
    let id = job.id();
    Ok(insert_effect(job.tx().await?, place, (producer, n), id).await?)
}

async fn insert_effect(
    tx: &mut PgConnection,
    place: &str,
    (producer, n): (i32, i32),
    job: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query("insert into public.effect (place, producer, n, job) values ($1, $2, $3, $4)")
        .bind(place)
        .bind(producer)
        .bind(n)
        .bind(job)
        .execute(tx)
        .await?;
    Ok(())
}

/// Waits until so many jobs have had their effect.
pub async fn effects_are_there(pool: &PgPool, count: i64) {
    goes_on_until(pool, "select count(*) from public.effect", |n| n >= count).await;
}

/// Waits until no job is unfinished.
pub async fn all_have_ended(pool: &PgPool) {
    let unfinished = "select count(*) from seriatim.job where status in ('queued', 'started')";
    goes_on_until(pool, unfinished, |n| n == 0).await;
}

/// Claims, processors, the first unfinished jobs and the sessions, for a message.
const STUCK: &str = "select concat_ws(E'\\n',
    'now ' || clock_timestamp(),
    (select string_agg(g::text, E'\\n') from (select * from seriatim.queue_group limit 12) g),
    (select string_agg(p::text, E'\\n') from seriatim.processor p),
    (select string_agg(j::text, E'\\n') from (
        select id, queue, group_id, status, flagged, attempts, run_at, turn_at, claim, lease_until, suspect
        from seriatim.job where status in ('queued', 'started') order by id limit 12) j),
    (select string_agg(a::text, E'\\n') from (
        select pid, application_name, state, wait_event, xact_start, left(query, 60)
        from pg_stat_activity where datname = current_database()) a))";

/// Waits for a count, as long as it changes: on a machine under load thousands of jobs take their
/// time.
async fn goes_on_until(pool: &PgPool, count: &'static str, done: impl Fn(i64) -> bool) {
    let (mut last, mut changed) = (-1, Instant::now());
    loop {
        let now: i64 = value(pool, count).await;
        if done(now) {
            return;
        }
        if now != last {
            (last, changed) = (now, Instant::now());
        }
        if changed.elapsed() >= PATIENCE {
            let stuck: String = value(pool, STUCK).await;
            panic!("it stays at {now}: {count}\n{stuck}");
        }
        // The database has no event to wait for here.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The violations of promises. Empty is good.
#[derive(Debug, Default, PartialEq)]
pub struct Findings {
    /// P2: values that two handlers saw, or that were overwritten, by place.
    pub lost_increments: Vec<String>,
    /// P1: jobs of one producer that ran before an earlier one of theirs in the same place.
    pub out_of_order: Vec<String>,
    /// P3: jobs that have not succeeded.
    pub unfinished: i64,
    /// P4: succeeded jobs without exactly one effect, and effects of jobs that have not succeeded.
    pub not_once: Vec<String>,
}

/// Checks the traces. `expected` jobs must be there.
pub async fn findings(pool: &PgPool, expected: usize) -> Findings {
    let lost = "select coalesce(array_agg(what), '{}') from (
            select place || ' saw ' || seen || ' ' || count(*) || ' times' as what
            from public.increment group by place, seen having count(*) > 1
            union all
            select place || ' counts ' || value || ' of ' || made
            from public.counter join (select place, count(*) as made from public.increment group by place) i using (place)
            where value <> made) findings";
    let disorder = "select coalesce(array_agg(what), '{}') from (
            select place || ' ran ' || n || ' of ' || producer || ' after ' || before as what
            from (select place, producer, n, lag(n) over (partition by place, producer order by seen, n) as before
                  from public.increment) i where n < before
            union all
            select place || ' committed ' || n || ' of ' || producer || ' after ' || before
            from (select place, producer, n, lag(n) over (partition by place, producer order by pos) as before
                  from public.effect) e where n < before) findings";
    let not_once = "select coalesce(array_agg(what), '{}') from (
            select 'job ' || id || ' is ' || status || ' with ' || count(e.job) || ' effects' as what
            from seriatim.job left join public.effect e on e.job = id
            group by id having (count(e.job) = 1) <> (status = 'succeeded') or count(e.job) > 1
            union all
            select 'effect of no job ' || e.job from public.effect e where not exists (
                select from seriatim.job where id = e.job)) findings";
    let succeeded: i64 = jobs_where(pool, "status = 'succeeded'").await;
    Findings {
        lost_increments: value(pool, lost).await,
        out_of_order: value(pool, disorder).await,
        unfinished: i64::try_from(expected).unwrap() - succeeded,
        not_once: value(pool, not_once).await,
    }
}

/// Who is in a handler, as this process sees it.
#[derive(Debug, Clone, Default)]
pub struct Inside {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    inside: HashMap<String, i64>,
    overlaps: Vec<String>,
    most: usize,
}

/// In a handler until dropped.
#[derive(Debug)]
pub struct Entered {
    state: Arc<Mutex<State>>,
    place: String,
    job: i64,
}

impl Inside {
    pub fn enter(&self, job: &ActiveJob) -> Entered {
        let place = format!("{}/{}", job.queue(), job.group().unwrap_or("-"));
        let mut state = self.state.lock().unwrap();
        if let Some(other) = state.inside.insert(place.clone(), job.id()) {
            let overlap = format!("{place}: {} beside {other}", job.id());
            state.overlaps.push(overlap);
        }
        state.most = state.most.max(state.inside.len());
        Entered { state: Arc::clone(&self.state), place, job: job.id() }
    }

    pub fn overlaps(&self) -> Vec<String> {
        self.state.lock().unwrap().overlaps.clone()
    }

    /// How many groups were in handlers at the same moment, at most.
    pub fn most(&self) -> usize {
        self.state.lock().unwrap().most
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap();
        if state.inside.get(&self.place) == Some(&self.job) {
            state.inside.remove(&self.place);
        }
    }
}
