//! Producers: they enqueue, in transactions or not, and write down what they were told.

use std::str::FromStr;
use std::time::Duration;

use serde_json::json;
use seriatim::admin::Cancelled;
use seriatim::{Client, Enqueued, NewJob};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection, PgPool};
use tokio::time::sleep;

use super::features::{self, batch};
use super::program::{End, Job, Part, Step};
use super::recorder::{Recorder, now};
use seriatim_history::event::{self, Event, Left, Name, Time};

pub const QUEUE: &str = "q";
/// How often a job is tried that says nothing else.
pub const ATTEMPTS: u32 = 4;

/// A session of the run's database, by whose name others find it.
pub async fn connect(url: &str, name: &str) -> PgConnection {
    let options = PgConnectOptions::from_str(url).unwrap().application_name(name);
    options.connect().await.unwrap()
}

pub struct Producer {
    pub url: String,
    pub pool: PgPool,
    pub number: usize,
    pub recorder: Recorder,
    /// The batches, by their numbers.
    batches: Vec<i64>,
    conn: Option<PgConnection>,
    enqueued: Vec<(i64, Name)>,
    count: usize,
}

/// A job that was sent, and what is known of it.
struct Sent {
    name: Name,
    job: Job,
    begin: Time,
    answer: Option<Enqueued>,
}

impl Producer {
    pub fn new(
        url: String,
        pool: PgPool,
        number: usize,
        recorder: Recorder,
        batches: Vec<i64>,
    ) -> Self {
        let enqueued = Vec::new();
        Self { url, pool, number, recorder, batches, conn: None, enqueued, count: 0 }
    }

    pub async fn run(mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Enqueue(jobs) => {
                    let sent = self.send(jobs).await;
                    if sent.iter().all(|sent| sent.answer.is_some()) {
                        self.all(&sent, event::Enqueued::Committed);
                    } else {
                        self.conn = None;
                    }
                }
                Step::Transaction(parts, end) => self.transaction(parts, *end).await,
                Step::Wait(ms) => sleep(Duration::from_millis(*ms)).await,
                Step::Seal(number) => {
                    if let Some(id) = self.batches.get(*number) {
                        let name = features::batch(*number);
                        assert!(features::seal(&self.pool, &self.recorder, &name, *id).await);
                    }
                }
                Step::Cancel(back) => {
                    let at = self.enqueued.len().checked_sub(1 + back);
                    if let Some((id, name)) = at.map(|at| self.enqueued[at].clone()) {
                        cancel(&self.pool, &self.recorder, id, name).await;
                    }
                }
            }
        }
    }

    async fn conn(&mut self) -> &mut PgConnection {
        if self.conn.is_none() {
            self.conn = Some(connect(&self.url, "producer").await);
        }
        self.conn.as_mut().unwrap()
    }

    /// Says a word of transactions. Returns whether the database did.
    async fn say(&mut self, word: &'static str) -> bool {
        sqlx::raw_sql(word).execute(self.conn().await).await.is_ok()
    }

    /// One statement. Without answers, it failed.
    async fn send(&mut self, jobs: &[Job]) -> Vec<Sent> {
        let begin = now();
        let mut sent = Vec::new();
        for job in jobs {
            let name = Name(format!("p{}-{}", self.number, self.count));
            self.count += 1;
            let batch = job.batch.filter(|&number| number < self.batches.len());
            let job = Job { batch, ..job.clone() };
            sent.push(Sent { name, job, begin, answer: None });
        }
        // For the case that there is no answer.
        self.all(&sent, event::Enqueued::Unknown);
        let new: Vec<NewJob> =
            sent.iter().map(|sent| self.new_job(&sent.name, &sent.job)).collect();
        if let Ok(answers) = seriatim::enqueue_many(self.conn().await, new).await {
            for (sent, answer) in sent.iter_mut().zip(answers) {
                sent.answer = Some(answer);
            }
        }
        sent
    }

    async fn transaction(&mut self, parts: &[Part], end: End) {
        if !self.say("begin").await {
            self.conn = None;
            return;
        }
        let mut sent = Vec::new();
        let mut whole = true;
        for part in parts {
            match part {
                Part::Wait(ms) => sleep(Duration::from_millis(*ms)).await,
                Part::Enqueue(jobs) => sent.extend(self.send(jobs).await),
                Part::Savepoint(jobs, back) => {
                    whole &= self.say("savepoint s").await;
                    let inside = self.send(jobs).await;
                    if *back {
                        whole &= self.say("rollback to savepoint s").await;
                        self.all(&inside, event::Enqueued::RolledBack);
                    } else {
                        sent.extend(inside);
                    }
                }
            }
            whole &= sent.iter().all(|sent| sent.answer.is_some());
            if !whole {
                break;
            }
        }
        if !whole || end == End::Rollback {
            self.say("rollback").await;
            self.all(&sent, event::Enqueued::RolledBack);
            self.conn = None;
            return;
        }
        let torn = match end {
            End::Torn(us) => self.tear(us).await,
            End::Commit | End::Rollback => None,
        };
        if self.say("commit").await {
            self.all(&sent, event::Enqueued::Committed);
        } else {
            // Not known: they were noted so.
            self.conn = None;
        }
        if let Some(torn) = torn {
            torn.await.unwrap();
            self.conn = None;
        }
    }

    /// Terminates the producer's own session, in a moment.
    async fn tear(&mut self, us: u64) -> Option<tokio::task::JoinHandle<()>> {
        let pid = sqlx::query_scalar("select pg_backend_pid()").fetch_one(self.conn().await).await;
        let (pid, pool): (i32, _) = (pid.ok()?, self.pool.clone());
        Some(tokio::spawn(async move {
            sleep(Duration::from_micros(us)).await;
            let end = sqlx::query("select pg_terminate_backend($1)").bind(pid);
            end.execute(&pool).await.unwrap();
        }))
    }

    /// Writes down what came of jobs, and remembers those that are there.
    fn all(&mut self, sent: &[Sent], outcome: event::Enqueued) {
        let end = (outcome != event::Enqueued::Unknown).then(now);
        for one in sent {
            let mut its = outcome;
            let mut place = None;
            match one.answer {
                Some(answer) if answer.is_duplicate() => its = event::Enqueued::Duplicate,
                Some(answer) => place = Some(answer.id()),
                None => {}
            }
            if its == event::Enqueued::Committed {
                self.enqueued.extend(place.map(|id| (id, one.name.clone())));
            }
            self.recorder.note(&Event::Enqueue {
                job: one.name.clone(),
                queue: QUEUE.to_owned(),
                group: one.job.group.map(group),
                process: Some(self.recorder.process()),
                begin: one.begin,
                end,
                outcome: its,
                with: None,
                place,
                max_attempts: Some(one.job.attempts.unwrap_or(ATTEMPTS)),
                run_at: None,
                limit_key: one.job.limit_key.map(limit_key),
                batch: one.job.batch.map(batch),
            });
        }
    }

    fn new_job(&self, name: &Name, job: &Job) -> NewJob {
        let new = new_job(name, job);
        match job.batch {
            Some(number) => new.batch(self.batches[number]),
            None => new,
        }
    }
}

pub fn group(number: u8) -> Name {
    Name(format!("g{number}"))
}

fn limit_key(number: u8) -> Name {
    Name(format!("k{number}"))
}

fn new_job(name: &Name, job: &Job) -> NewJob {
    let data = json!({ "name": name.0, "plan": job.plan, "timeout": job.timeout });
    let mut new = NewJob::new(QUEUE, &data);
    let ms = Duration::from_millis;
    if let Some(number) = job.group {
        new = new.group(group(number).0);
    }
    if job.delay > 0 {
        new = new.delay(ms(job.delay));
    }
    if let Some(time) = job.expires {
        new = new.time_to_live(ms(time));
    }
    if let Some(id) = job.dedup {
        new = new.dedup_id(id.to_string());
    }
    if let Some(attempts) = job.attempts {
        new = new.max_attempts(attempts);
    }
    if let Some(limit) = job.timeout {
        new = new.timeout(ms(limit));
    }
    if let Some(number) = job.limit_key {
        new = new.limit_key(limit_key(number).0);
    }
    new.priority(job.priority)
}

/// Cancels a job, and writes down what that may have done.
pub async fn cancel(pool: &PgPool, recorder: &Recorder, id: i64, job: Name) {
    let begin = now();
    let end = match Client::default().cancel(pool, id).await {
        Ok(Cancelled::Now) => Some(now()),
        // It was asked for, or there was no answer.
        Ok(_) | Err(seriatim::ControlError::Database(_)) => None,
        Err(_) => return,
    };
    recorder.note(&Event::Leave { job, left: Left::Cancelled, begin, end });
}
