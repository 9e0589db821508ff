//! Operators, while everything else runs: they change limits and rates, pause, cancel, retry,
//! redrive and move.

use std::sync::Arc;
use std::time::{Duration, Instant};

use seriatim::admin::{QueueSettings, Rate};
use seriatim::{Client, ControlError};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::time::sleep;

use super::produce::{ATTEMPTS, Load, QUEUE, Shared};
use crate::faults::random_histories::features::NAME;
use crate::faults::random_histories::produce::cancel;
use crate::faults::random_histories::recorder::{Recorder, now};
use crate::support::{PATIENCE, operator};
use seriatim_history::event::{Counted, Enqueued, Event, Left, Name, Time};

/// The queue that jobs are moved to, and back from.
const ASIDE: &str = "aside";

pub struct Operator {
    pub pool: PgPool,
    pub recorder: Recorder,
    pub shared: Arc<Shared>,
    pub load: Load,
    /// The slots of all workers.
    pub slots: usize,
    /// The highest id of the rounds before.
    pub since: i64,
    pub rng: fastrand::Rng,
}

/// A job that was moved, as it is now.
type Moved = (i64, String, Option<String>, Option<String>);

impl Operator {
    /// Sets what the round begins with.
    pub async fn begins(&self) {
        self.limit_per_key(Some(2)).await;
        self.limit_in_flight(None).await;
        self.rate(None).await;
    }

    /// Does something several times a second, until it is told to stop.
    pub async fn run(mut self) {
        while !self.shared.stops() {
            self.act().await;
            sleep(Duration::from_millis(self.rng.u64(20..400))).await;
        }
        self.resume(None).await;
        self.spacing(None).await;
    }

    async fn act(&mut self) {
        let (slots, backlog) = (u32::try_from(self.slots).unwrap(), self.load.backlog);
        match self.rng.u8(..18) {
            0..3 => {
                let limit = self.rng.u32(1..4);
                let limit = (self.rng.u8(..8) > 0).then_some(limit);
                self.limit_per_key(limit).await;
            }
            3..5 => {
                let limit = self.rng.u32(slots / 4..slots + 2).max(1);
                let limit = self.rng.bool().then_some(limit);
                self.limit_in_flight(limit).await;
            }
            5..7 => {
                // All that waits may start within some seconds.
                let starts = self.rng.usize(backlog / 8..backlog / 2).max(1);
                let rate = (u32::try_from(starts).unwrap(), self.rng.u32(1..60));
                let rate = self.rng.bool().then_some(rate);
                self.rate(rate).await;
            }
            7 => {
                let ms = self.rng.u64(1..8);
                let ms = self.rng.bool().then_some(ms);
                self.spacing(ms).await;
            }
            8 => {
                let _ = operator().pause_queue(&self.pool, QUEUE).await;
                sleep(Duration::from_millis(self.rng.u64(10..400))).await;
                self.resume(None).await;
            }
            9..11 => {
                let group = format!("g{}", self.rng.usize(..self.load.groups));
                let _ = operator().pause_group(&self.pool, QUEUE, &group).await;
                sleep(Duration::from_millis(self.rng.u64(10..600))).await;
                self.resume(Some(&group)).await;
            }
            11..13 => {
                if let Some((id, job)) = self.one_of("finished_at is null").await {
                    cancel(&self.pool, &self.recorder, id, job).await;
                }
            }
            13..15 => self.retry().await,
            15 => drop(self.redrive().await),
            _ => drop(self.move_some().await),
        }
    }

    /// Ends the pause of the queue, or of a group.
    async fn resume(&self, group: Option<&str>) {
        let begun = Instant::now();
        loop {
            let done = match group {
                Some(group) => operator().resume_group(&self.pool, QUEUE, group).await.map(drop),
                None => operator().resume_queue(&self.pool, QUEUE).await.map(drop),
            };
            // Otherwise it is not paused.
            let Err(error @ ControlError::Database(_)) = done else { return };
            again(begun, error).await;
        }
    }

    /// Returns from when to when the settings may have come.
    async fn configure(&self, settings: QueueSettings) -> (Time, Time) {
        let (begin, clock) = (now(), Instant::now());
        while let Err(error) = Client::default().configure_queue(&self.pool, settings.clone()).await
        {
            again(clock, error).await;
        }
        (begin, now())
    }

    async fn limit_per_key(&self, limit: Option<u32>) {
        let (begin, end) = self.configure(QueueSettings::new(QUEUE).limit_per_key(limit)).await;
        self.note_limit(Counted::Key, limit, begin, end);
    }

    async fn limit_in_flight(&self, limit: Option<u32>) {
        let (begin, end) = self.configure(QueueSettings::new(QUEUE).in_flight_limit(limit)).await;
        self.note_limit(Counted::Queue, limit, begin, end);
    }

    fn note_limit(&self, of: Counted, limit: Option<u32>, begin: Time, end: Time) {
        let queue = QUEUE.to_owned();
        self.recorder.note(&Event::Limit { queue, of, limit, begin, end });
    }

    async fn rate(&self, rate: Option<(u32, u32)>) {
        let its = rate.map(|(starts, burst)| Rate::per_second(starts).burst(burst));
        let (begin, end) = self.configure(QueueSettings::new(QUEUE).rate(its)).await;
        let (starts, burst) = (rate.map(|(starts, _)| starts), rate.map_or(1, |(_, burst)| burst));
        let (queue, per) = (QUEUE.to_owned(), 1_000_000);
        self.recorder.note(&Event::Rate { queue, starts, per, burst, begin, end });
    }

    async fn spacing(&self, ms: Option<u64>) {
        let spacing = ms.map(Duration::from_millis);
        self.configure(QueueSettings::new(QUEUE).group_spacing(spacing)).await;
    }

    /// A number among the ids of the round.
    async fn some_id(&mut self) -> Option<i64> {
        let newest: Result<Option<i64>, _> =
            sqlx::query_scalar("select max(id) from seriatim.job").fetch_one(&self.pool).await;
        let newest = newest.ok().flatten().filter(|id| *id > self.since)?;
        Some(self.rng.i64(self.since..newest))
    }

    async fn one_of(&mut self, which: &str) -> Option<(i64, Name)> {
        let from = self.some_id().await?;
        let sql = format!(
            "select id, {NAME} from seriatim.job where id > $1 and queue = '{QUEUE}' and {which} \
             order by id limit 1"
        );
        let job: Result<Option<(i64, String)>, _> =
            sqlx::query_as(AssertSqlSafe(sql)).bind(from).fetch_optional(&self.pool).await;
        job.ok().flatten().map(|(id, name)| (id, Name(name)))
    }

    async fn retry(&mut self) {
        let which = "status in ('failed', 'cancelled') and error->>'moved_to' is null";
        let Some((id, job)) = self.one_of(which).await else { return };
        let begin = now();
        let end = match operator().retry(&self.pool, id).await {
            Ok(_) => Some(now()),
            // There was no answer.
            Err(ControlError::Database(_)) => None,
            // Another may have been quicker.
            Err(_) => return,
        };
        self.recorder.note(&Event::Return { job, begin, end });
    }

    async fn redrive(&mut self) -> Result<(), ControlError> {
        let (begin, most) = (now(), self.rng.i64(1..20));
        let mut tx = self.pool.begin().await?;
        // The dead letters of earlier rounds have been judged.
        let failed = sqlx::query_scalar(
            "select id from seriatim.job where id > $1 and status = 'failed' order by id limit $2",
        );
        let failed: Vec<i64> = failed.bind(self.since).bind(most).fetch_all(&mut *tx).await?;
        operator().redrive_jobs(&mut *tx, &failed).await?;
        let sql = format!(
            "select {NAME} from seriatim.job
             where id > $1 and xmin = pg_current_xact_id()::xid and status = 'queued'"
        );
        let jobs = sqlx::query_scalar(AssertSqlSafe(sql)).bind(self.since);
        let jobs: Vec<String> = jobs.fetch_all(&mut *tx).await?;
        let end = tx.commit().await.is_ok().then(now);
        for job in jobs {
            self.recorder.note(&Event::Return { job: Name(job), begin, end });
        }
        Ok(())
    }

    /// Moves some jobs to another queue and back, to the end of their groups, under new names.
    async fn move_some(&mut self) -> Result<(), ControlError> {
        let Some(from) = self.some_id().await else { return Ok(()) };
        let begin = now();
        let mut tx = self.pool.begin().await?;
        let ids: Vec<i64> = sqlx::query_scalar(
            "select id from seriatim.job where id > $1 and queue = $2 and status = 'queued'
             and data->'made' is null and batch_id is null order by id limit 3",
        )
        .bind(from)
        .bind(QUEUE)
        .fetch_all(&mut *tx)
        .await?;
        let away = operator().move_jobs(&mut *tx, &ids, ASIDE).await?.jobs;
        let there: Vec<i64> = away.iter().map(|moved| moved.new_job).collect();
        let back = operator().move_jobs(&mut *tx, &there, QUEUE).await?.jobs;
        let back: Vec<i64> = back.iter().map(|moved| moved.new_job).collect();
        let jobs: Vec<Moved> = sqlx::query_as(
            "update seriatim.job set data = data || jsonb_build_object('name', data->>'name' || '~')
             where id = any ($1) returning id, data->>'name', group_id, limit_key",
        )
        .bind(&back)
        .fetch_all(&mut *tx)
        .await?;
        let end = tx.commit().await.is_ok().then(now);
        for (id, name, group, limit_key) in jobs {
            let old = Name(name[..name.len() - 1].to_owned());
            self.recorder.note(&Event::Leave { job: old, left: Left::Cancelled, begin, end });
            self.recorder.note(&Event::Enqueue {
                job: Name(name),
                queue: QUEUE.to_owned(),
                group: group.map(Name),
                process: None,
                begin,
                end,
                outcome: if end.is_some() { Enqueued::Committed } else { Enqueued::Unknown },
                with: None,
                place: Some(id),
                max_attempts: Some(ATTEMPTS),
                run_at: None,
                limit_key: limit_key.map(Name),
                batch: None,
            });
        }
        for moved in away {
            let again = operator().retry(&self.pool, moved.job).await;
            assert!(again.is_err() || end.is_none(), "job {} was moved, and retried", moved.job);
        }
        Ok(())
    }
}

/// Before what must be done is tried once more: the server may be away.
async fn again(begun: Instant, error: impl std::fmt::Debug) {
    assert!(begun.elapsed() < PATIENCE, "{error:?}");
    sleep(Duration::from_millis(50)).await;
}
