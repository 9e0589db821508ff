//! A receiver beside the workers: it receives jobs, and settles them in transactions of its own.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::json;
use seriatim::receive::{Receive, ReceiveError, Received};
use seriatim::{Client, NewJob};
use sqlx::PgPool;
use tokio::time::sleep;

use super::produce::{ATTEMPTS, QUEUE, group};
use super::program::{Receives, Rest, Then, Turn};
use super::recorder::{Recorder, Run, now};
use super::worker::Data;
use seriatim_history::event::{Ended, Enqueued, Event, Name, Of, Said, Time};

/// A received job is this receiver's alone for this long, plus a grace.
const VISIBILITY: Duration = Duration::from_secs(1);
/// A job that has not begun by then is left to lapse, so that no job is worked on for longer than
/// its visibility.
const BEGIN_WITHIN: Duration = Duration::from_millis(500);

pub struct Receiver {
    pub pool: PgPool,
    pub recorder: Recorder,
}

impl Receiver {
    pub async fn run(&self, receives: Option<Receives>) -> std::convert::Infallible {
        let Some(Receives { limit, every }) = receives else {
            return std::future::pending().await;
        };
        loop {
            let what = Receive::new(QUEUE).max(limit).visibility(VISIBILITY);
            let jobs = Client::default().receive(&self.pool, what).await.unwrap();
            self.work(jobs).await;
            sleep(Duration::from_millis(every)).await;
        }
    }

    /// One after the other, as they came. Behind one that fails, its group's others go back, or
    /// lapse with it.
    async fn work(&self, received: Vec<Received>) {
        let begun = Instant::now();
        let mut failed = HashMap::new();
        for job in received {
            let tried = now();
            let broken = job.group.as_ref().and_then(|group| failed.get(group));
            if broken.is_some() || begun.elapsed() > BEGIN_WITHIN {
                // Another may begin it before the answer to the nack of the failed one is here.
                let since = broken.copied().unwrap_or(tried);
                self.recorder.fault(format!("job {} was received and not begun", job.id), since);
            } else if self.attempt(&job).await {
                continue;
            }
            if let Some(group) = job.group {
                failed.entry(group).or_insert(tried);
            }
        }
    }

    /// Whether it succeeded.
    async fn attempt(&self, job: &Received) -> bool {
        let data: Data = job.decode().unwrap();
        let name = data.name_of(job.id);
        let run = self.recorder.start(&name, job.attempt);
        let plain = Turn::plain();
        let turn = data.plan.get(job.attempt as usize - 1).unwrap_or(&plain);
        self.perform(job, &name, turn, run).await
    }

    async fn perform(&self, job: &Received, name: &str, turn: &Turn, mut run: Run) -> bool {
        let mut tx = self.pool.begin().await.unwrap();
        for n in 0..turn.writes.0 + turn.writes.1 {
            let insert = sqlx::query("insert into public.effect (key) values ($1)");
            insert.bind(run.writes(n)).execute(&mut *tx).await.unwrap();
        }
        if let Some(number) = turn.follower {
            self.follow(&mut tx, name, job.attempt, number).await;
        }
        let client = Client::default();
        self.report(job, turn).await;
        sleep(Duration::from_millis(turn.ms)).await;
        match turn.then {
            Then::Succeed => {
                run.ends(Ended::Succeeded);
                let begin = now();
                let said = client.ack(&mut *tx, &job.receipt).await;
                if said.is_err() {
                    tx.rollback().await.unwrap();
                    return self.settled(name, job.attempt, begin, &said);
                }
                let done = tx.commit().await.map_err(ReceiveError::Database);
                self.settled(name, job.attempt, begin, &done)
            }
            Then::Retry | Then::Fail | Then::RetryAt(_) | Then::UntilTold => {
                tx.rollback().await.unwrap();
                run.ends(Ended::Retry);
                let delay = match turn.then {
                    Then::RetryAt(ms) => Duration::from_millis(ms),
                    _ => Duration::ZERO,
                };
                let begin = now();
                let said = client.nack(&self.pool, &job.receipt, delay).await;
                self.settled(name, job.attempt, begin, &said);
                false
            }
            Then::Snooze(ms) | Then::Again(ms) => {
                tx.rollback().await.unwrap();
                run.ends(Ended::Snoozed);
                let (begin, delay) = (now(), Duration::from_millis(ms));
                let said = client.snooze(&self.pool, &job.receipt, delay, 100).await;
                self.settled(name, job.attempt, begin, &said);
                false
            }
            // As if its process had ended.
            Then::Panic | Then::Hang => {
                tx.rollback().await.unwrap();
                run.ends(Ended::Dropped);
                false
            }
        }
    }

    /// Lets rest what is to, and reports. A claim that was taken over may do neither.
    async fn report(&self, job: &Received, turn: &Turn) {
        let (client, receipt) = (Client::default(), &job.receipt);
        let until = |ms| chrono::Utc::now() + Duration::from_millis(ms);
        let rests = match turn.rest {
            Some(Rest::Queue(ms)) => {
                client.rest_queue(&self.pool, receipt, until(ms), "as planned").await
            }
            Some(Rest::Group(ms)) if job.group.is_some() => {
                client.rest_group(&self.pool, receipt, until(ms), "as planned").await
            }
            Some(Rest::Group(_)) | None => Ok(false),
        };
        let reports = if turn.reports {
            let reported = client.progress(&self.pool, receipt, 50, "half").await;
            reported.and(client.checkpoint(&self.pool, receipt, &job.attempt).await)
        } else {
            Ok(())
        };
        for refused in [rests.err(), reports.err()].into_iter().flatten() {
            assert!(matches!(refused, ReceiveError::Stale { .. }), "{refused:?}");
        }
    }

    /// Writes down what a settle was told. Returns whether it was done.
    fn settled(
        &self,
        name: &str,
        attempt: u32,
        begin: Time,
        said: &Result<(), ReceiveError>,
    ) -> bool {
        let answer = match said {
            Ok(()) => Said::Done,
            Err(ReceiveError::Stale { .. }) => Said::Stale,
            Err(_) => Said::Unknown,
        };
        let (job, end) = (Name::from(name), Some(now()));
        self.recorder.note(&Event::Settle { job, attempt, begin, end, answer });
        answer == Said::Done
    }

    async fn follow(&self, tx: &mut sqlx::PgConnection, parent: &str, attempt: u32, number: u8) {
        let name = format!("{parent}+{attempt}");
        let new = NewJob::new(QUEUE, &json!({ "name": name, "plan": [] })).group(group(number).0);
        let begin = now();
        let place = seriatim::enqueue(tx, new).await.unwrap().id();
        self.recorder.note(&Event::Enqueue {
            job: Name(name),
            queue: QUEUE.to_owned(),
            group: Some(group(number)),
            process: Some(self.recorder.process()),
            begin,
            end: None,
            outcome: Enqueued::With,
            with: Some(Of { job: parent.into(), attempt }),
            place: Some(place),
            max_attempts: Some(ATTEMPTS),
            run_at: None,
            limit_key: None,
            batch: None,
        });
    }
}
