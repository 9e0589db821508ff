//! Receivers beside the workers, through faults. Some receive and commit at once; others keep the
//! transaction of their receive open, and commit it or roll it back.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use seriatim::Client;
use seriatim::receive::{Receive, ReceiveError, Received};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::time::{Instant, sleep, timeout};

use super::produce::{QUEUE, Shared};
use super::worker::{Data, Does};
use crate::faults::random_histories::recorder::{Recorder, now};
use crate::faults::random_histories::worker::name_of;
use seriatim_history::event::{Ended, Event, Name, Said, Time};

/// How a receiver receives.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    AtOnce,
    Open,
}

/// A received job is this receiver's alone for so long, plus a grace.
const VISIBILITY: Duration = Duration::from_secs(6);
/// A job that has not begun by then is left to lapse.
const BEGIN_WITHIN: Duration = Duration::from_secs(2);
/// How long one job is worked on at most: it ends within its visibility.
const WORK: Duration = Duration::from_secs(2);
/// How long a receive is open at most.
const OPEN_MS: u64 = 3_000;
/// A queue with a limit refuses a receive in a transaction that has written.
const NOT_ALONE: &str = "25001";

pub struct Receiver {
    url: String,
    recorder: Recorder,
    shared: Arc<Shared>,
    most: u32,
    rng: fastrand::Rng,
    /// Commits without an answer: the effect that shows it, and what has happened then.
    open_ends: Vec<(String, Vec<Event>)>,
}

impl Receiver {
    /// Receives up to `most` jobs at once.
    pub fn new(
        url: String,
        recorder: Recorder,
        shared: Arc<Shared>,
        most: u32,
        rng: fastrand::Rng,
    ) -> Self {
        Self { url, recorder, shared, most, rng, open_ends: Vec::new() }
    }

    /// Receives until it is told to stop.
    pub async fn run(mut self, way: Way) {
        let mut conn = None;
        while !self.shared.stops() {
            let Some(mut its) = self.connection(conn.take()).await else {
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            let answered = match way {
                Way::AtOnce => self.at_once(&mut its).await,
                Way::Open => self.open(&mut its).await,
            };
            if answered {
                conn = Some(its);
            }
            // Workers are to have most of the jobs.
            sleep(Duration::from_millis(self.rng.u64(10..150))).await;
        }
        let begun = Instant::now();
        while !self.open_ends.is_empty() {
            assert!(begun.elapsed() < crate::support::PATIENCE, "{:?}", self.open_ends);
            if let Some(mut conn) = self.connection(conn.take()).await {
                self.look(&mut conn).await;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn connection(&self, kept: Option<PgConnection>) -> Option<PgConnection> {
        if kept.is_some() {
            return kept;
        }
        let options = PgConnectOptions::from_str(&self.url).unwrap();
        options.application_name("receiver").connect().await.ok()
    }

    fn what(&mut self) -> Receive {
        Receive::new(QUEUE).max(self.rng.u32(1..=self.most)).visibility(VISIBILITY)
    }

    /// Returns whether the session can be used again.
    async fn at_once(&mut self, conn: &mut PgConnection) -> bool {
        let (begin, clock) = (now(), Instant::now());
        let what = self.what();
        let jobs = match timeout(WORK, Client::default().receive(&mut *conn, what)).await {
            Ok(Ok(jobs)) => jobs,
            Ok(Err(ReceiveError::Refused { message, hint })) => panic!("{message} ({hint})"),
            _ => {
                self.recorder.fault("a receive had no answer", begin);
                return false;
            }
        };
        let mut failed: HashMap<String, Time> = HashMap::new();
        let mut answered = true;
        for job in jobs {
            let (tried, group) = (now(), job.group.clone().unwrap_or_default());
            let broken = failed.get(&group).copied();
            if broken.is_some() || clock.elapsed() > BEGIN_WITHIN || !answered {
                let what = format!("job {} was received and not begun", job.id);
                self.recorder.fault(what, broken.unwrap_or(tried));
                failed.entry(group).or_insert(tried);
                continue;
            }
            let done = timeout(WORK, self.work(conn, &job)).await;
            answered = matches!(done, Ok(Ok(_)));
            if !matches!(done, Ok(Ok(true))) {
                failed.insert(group, tried);
            }
        }
        answered
    }

    /// Returns whether the job is done, if there was an answer.
    async fn work(
        &mut self,
        conn: &mut PgConnection,
        job: &Received,
    ) -> Result<bool, ReceiveError> {
        let (name, does) = of(job);
        let mut run = self.recorder.start(&name, job.attempt);
        let fails = self.rng.u8(..10) == 0;
        let mut tx = conn.begin().await.map_err(ReceiveError::Database)?;
        if !matches!(does, Does::BeSeen) {
            write(&mut tx, &run.writes(0)).await?;
        }
        sleep(Duration::from_millis(self.rng.u64(..30))).await;
        if fails {
            tx.rollback().await.map_err(ReceiveError::Database)?;
            run.ends(Ended::Retry);
            let begin = now();
            let said = Client::default().nack(&mut *conn, &job.receipt, Duration::ZERO).await;
            self.settled(&name, job.attempt, begin, &said);
            return answer(said).map(|()| false);
        }
        run.ends(Ended::Succeeded);
        let begin = now();
        let said = match Client::default().ack(&mut *tx, &job.receipt).await {
            Ok(()) => tx.commit().await.map_err(ReceiveError::Database),
            Err(error) => {
                let _ = tx.rollback().await;
                Err(error)
            }
        };
        self.settled(&name, job.attempt, begin, &said);
        let done = said.is_ok();
        answer(said).map(|()| done)
    }

    /// Writes down what a settle was told.
    fn settled(&self, name: &str, attempt: u32, begin: Time, said: &Result<(), ReceiveError>) {
        let answer = match said {
            Ok(()) => Said::Done,
            Err(ReceiveError::Stale { .. }) => Said::Stale,
            Err(_) => Said::Unknown,
        };
        let (job, end) = (Name::from(name), Some(now()));
        self.recorder.note(&Event::Settle { job, attempt, begin, end, answer });
    }

    /// Returns whether the session can be used again.
    async fn open(&mut self, conn: &mut PgConnection) -> bool {
        self.look(conn).await;
        let patience = WORK + Duration::from_millis(OPEN_MS);
        matches!(timeout(patience, self.open_one(conn)).await, Ok(Ok(())))
    }

    async fn open_one(&mut self, conn: &mut PgConnection) -> Result<(), ReceiveError> {
        let mut tx = conn.begin().await.map_err(ReceiveError::Database)?;
        let has_written = self.rng.u8(..4) == 0;
        if has_written {
            let writes = sqlx::query("select pg_current_xact_id()").execute(&mut *tx);
            writes.await.map_err(ReceiveError::Database)?;
        }
        let jobs = match Client::default().receive(&mut *tx, self.what()).await {
            Ok(jobs) => jobs,
            // It has a limit now.
            Err(error) if has_written && is_not_alone(&error) => {
                return tx.rollback().await.map_err(ReceiveError::Database);
            }
            Err(error) => return Err(error),
        };
        let got = now();
        let until = Instant::now() + Duration::from_millis(self.rng.u64(..OPEN_MS));
        while Instant::now() < until && !self.shared.stops() {
            sleep(Duration::from_millis(20)).await;
        }
        if self.rng.bool() {
            let to = now();
            tx.rollback().await.map_err(ReceiveError::Database)?;
            let groups = jobs.into_iter().filter_map(|job| job.group);
            self.shared.had.lock().unwrap().extend(groups.map(|group| (group, got, to)));
            return Ok(());
        }
        let (mut events, mut begin, mut last) = (Vec::new(), got, String::new());
        for job in &jobs {
            let ((name, _), attempt) = (of(job), job.attempt);
            last = format!("{name}/{attempt}/open");
            write(&mut tx, &last).await?;
            let settle = now();
            Client::default().ack(&mut *tx, &job.receipt).await?;
            let (job, process, at) = (Name(name), self.recorder.process(), now());
            events.extend([
                Event::Start { job: job.clone(), attempt, process: process.clone(), at: begin },
                Event::Effect { job: job.clone(), attempt, key: Name(last.clone()), at: begin },
                Event::Settle {
                    job: job.clone(),
                    attempt,
                    begin: settle,
                    end: None,
                    answer: Said::Unknown,
                },
                Event::End { job, attempt, process, at, outcome: Ended::Succeeded },
            ]);
            begin = at;
        }
        if events.is_empty() {
            return tx.rollback().await.map_err(ReceiveError::Database);
        }
        // For the case that there is no answer.
        self.open_ends.push((last, events));
        tx.commit().await.map_err(ReceiveError::Database)?;
        let events = self.open_ends.pop().map(|(_, events)| events);
        self.recorder.note_all(events.iter().flatten());
        Ok(())
    }

    /// Finds out what became of commits that had no answer.
    async fn look(&mut self, conn: &mut PgConnection) {
        while let Some((key, events)) = self.open_ends.last() {
            let there =
                sqlx::query_scalar("select exists (select from public.effect where key = $1)");
            match there.bind(key).fetch_one(&mut *conn).await {
                Ok(true) => self.recorder.note_all(events),
                Ok(false) => {}
                Err(_) => return,
            }
            self.open_ends.pop();
        }
    }
}

/// Its name in the history, and what it is to do.
fn of(job: &Received) -> (String, Does) {
    let data: Data = job.decode().unwrap();
    (name_of(&data.name, data.made, job.id), data.does)
}

async fn write(conn: &mut PgConnection, key: &str) -> Result<(), ReceiveError> {
    let insert = sqlx::query("insert into public.effect (key) values ($1)").bind(key);
    insert.execute(conn).await.map(|_| ()).map_err(ReceiveError::Database)
}

/// A receipt that is stale is an answer.
fn answer(said: Result<(), ReceiveError>) -> Result<(), ReceiveError> {
    match said {
        Err(ReceiveError::Stale { .. } | ReceiveError::Busy { .. }) => Ok(()),
        said => said,
    }
}

fn is_not_alone(error: &ReceiveError) -> bool {
    match error {
        ReceiveError::Database(error) => {
            let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
            code.as_deref() == Some(NOT_ALONE)
        }
        _ => false,
    }
}
