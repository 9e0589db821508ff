//! Producers that go on through faults: each enqueue is acknowledged, refused, or without an
//! answer, and is written down so.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use seriatim::NewJob;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};
use tokio::time::{sleep, timeout};

use super::worker::Does;
use crate::faults::random_histories::features;
use crate::faults::random_histories::program::Limits;
use crate::faults::random_histories::recorder::{Recorder, now};
use seriatim_history::event::{Enqueued, Event, Name, Time};

pub const QUEUE: &str = "q";
/// So many that no job runs out of them by a fault.
pub const ATTEMPTS: u32 = 10_000;

/// The jobs that are enqueued, and how fast.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub groups: usize,
    pub batch: usize,
    pub pause: Duration,
    /// One job in this many does something slow or risky.
    pub odd: usize,
    /// Some of the odd jobs deadlock or fail to serialize.
    pub risky: bool,
    /// One in this many of the other jobs writes an effect; the rest are only seen.
    pub writes: usize,
    /// No more is enqueued while so many jobs wait.
    pub backlog: usize,
    /// Whether the queue has a limit per key and perhaps the others, and some jobs have limit
    /// keys, are in batches, put themselves off, rest or report how far they are.
    pub features: bool,
    /// Whether operators change limits and more, receivers are beside the workers, and these are
    /// of two programs.
    pub mixed: bool,
}

/// So many groups of each limit key run at once. Rate and spacing do not bind.
pub const LIMITS: Limits =
    Limits { per_key: Some(2), rate: Some((5_000, 1_000)), spacing: Some(1) };
/// How many enqueues a batch is open for.
const JOINED: usize = 4;

/// One group in four has a limit key: one that five have, or some more.
fn limit_key(group: usize, groups: usize) -> Option<String> {
    group.is_multiple_of(4).then(|| format!("k{}", group / 4 % (1 + groups / 50)))
}

/// A batch that is not sealed.
struct Open {
    id: i64,
    name: Name,
    left: usize,
}

/// The state that those share who disturb a round.
#[derive(Debug, Default)]
pub struct Shared {
    pub stop: AtomicBool,
    pub unfinished: AtomicUsize,
    /// Groups of jobs that open receives had and gave back, from when to when.
    pub had: Mutex<Vec<(String, Time, Time)>>,
}

impl Shared {
    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

pub struct Producer {
    pub url: String,
    pub name: String,
    pub load: Load,
    pub recorder: Recorder,
    pub shared: Arc<Shared>,
    conn: Option<PgConnection>,
    open: Option<Open>,
    count: usize,
}

struct Sent {
    name: String,
    group: String,
    limit_key: Option<String>,
    batch: Option<Name>,
    begin: i64,
    place: Option<i64>,
}

/// How a batch is enqueued.
const WAYS: [(&str, &str); 10] = {
    let alone = ("", "");
    let whole = ("begin", "commit");
    let strict = ("begin isolation level serializable", "commit");
    let back = ("begin", "rollback");
    [alone, alone, alone, alone, alone, alone, whole, whole, strict, back]
};

impl Producer {
    pub fn new(
        url: String,
        name: String,
        load: Load,
        recorder: Recorder,
        shared: Arc<Shared>,
    ) -> Self {
        Self { url, name, load, recorder, shared, conn: None, open: None, count: 0 }
    }

    /// Enqueues until it is told to stop.
    pub async fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            if self.shared.unfinished.load(Ordering::Relaxed) < self.load.backlog {
                let (begin, end) = WAYS[fastrand::usize(..WAYS.len())];
                // A refused or lost batch shows here; a session in an unknown state is not used
                // again.
                if timeout(Duration::from_secs(5), self.batch(begin, end)).await != Ok(true) {
                    self.conn = None;
                    sleep(Duration::from_millis(50)).await;
                }
            }
            // How fast it enqueues.
            sleep(self.load.pause).await;
        }
    }

    async fn batch(&mut self, begin: &'static str, end: &'static str) -> bool {
        if self.conn.is_none() {
            let options = PgConnectOptions::from_str(&self.url).unwrap();
            self.conn = options.application_name("producer").connect().await.ok();
        }
        let Some(mut conn) = self.conn.take() else { return false };
        if self.load.features && !self.turn_batch(&mut conn).await {
            return false;
        }
        let mut sent = Vec::new();
        let whole = begin.is_empty() || say(&mut conn, begin).await;
        if !whole {
            return false;
        }
        if !self.send(&mut conn, &mut sent).await {
            // In a transaction nothing was committed, and no answer said so.
            if !begin.is_empty() {
                self.note(&sent, Enqueued::RolledBack);
            }
            return false;
        }
        if end == "rollback" {
            self.note(&sent, Enqueued::RolledBack);
        }
        if !end.is_empty() && !say(&mut conn, end).await {
            return false;
        }
        if end != "rollback" {
            self.note(&sent, Enqueued::Committed);
        }
        self.conn = Some(conn);
        true
    }

    /// Opens a batch, or seals it behind some enqueues. Returns whether there was an answer.
    async fn turn_batch(&mut self, conn: &mut PgConnection) -> bool {
        match &mut self.open {
            Some(open) if open.left > 0 => {
                open.left -= 1;
                true
            }
            Some(_) => {
                let Some(open) = self.open.take() else { return true };
                features::seal(&mut *conn, &self.recorder, &open.name, open.id).await
            }
            None => {
                let name = Name(format!("{}-b{}", self.name, self.count));
                let group = format!("g{}", fastrand::usize(..self.load.groups));
                let id = features::open(&mut *conn, &self.recorder, &name, &group, false).await;
                self.open = id.map(|id| Open { id, name, left: JOINED });
                id.is_some()
            }
        }
    }

    /// One statement. Whether it had an answer.
    async fn send(&mut self, conn: &mut PgConnection, sent: &mut Vec<Sent>) -> bool {
        let begin = now();
        let mut new = Vec::new();
        for _ in 0..self.load.batch {
            let name = format!("{}-{}", self.name, self.count);
            let number = fastrand::usize(..self.load.groups);
            let group = format!("g{number}");
            self.count += 1;
            let data = json!({ "name": name, "does": self.does() });
            let mut job = NewJob::new(QUEUE, &data).group(&group).max_attempts(ATTEMPTS);
            let limit_key = limit_key(number, self.load.groups).filter(|_| self.load.features);
            if let Some(key) = &limit_key {
                job = job.limit_key(key);
            }
            let batch = self.open.as_ref().filter(|_| fastrand::bool());
            if let Some(open) = batch {
                job = job.batch(open.id);
            }
            new.push(job);
            let batch = batch.map(|open| open.name.clone());
            sent.push(Sent { name, group, limit_key, batch, begin, place: None });
        }
        // For the case that there is no answer.
        self.note(sent, Enqueued::Unknown);
        match seriatim::enqueue_many(conn, new).await {
            Ok(answers) => {
                for (sent, answer) in sent.iter_mut().zip(answers) {
                    sent.place = Some(answer.id());
                }
                true
            }
            Err(_) => false,
        }
    }

    fn does(&self) -> Does {
        if self.load.odd == 0 || fastrand::usize(..self.load.odd) > 0 {
            let writes = fastrand::usize(..self.load.writes) == 0;
            return if writes { Does::Nothing } else { Does::BeSeen };
        }
        let most = match self.load {
            Load { mixed: true, .. } => 16,
            Load { features: true, .. } => 13,
            _ => 8,
        };
        match fastrand::u8(..most) {
            0 | 1 if self.load.risky => Does::Count,
            2 | 3 if self.load.risky => {
                let a = fastrand::u8(1..5);
                Does::Lock(a, a % 4 + 1)
            }
            8 | 9 => Does::Snooze(fastrand::u32(1..4)),
            10 => Does::Again(fastrand::u32(1..4)),
            11 => Does::Rest(fastrand::u64(1..100)),
            12 => Does::Report,
            13 | 14 => Does::BeNew,
            15 => Does::Fail,
            _ => Does::Sleep(fastrand::u64(1..80)),
        }
    }

    fn note(&self, sent: &[Sent], outcome: Enqueued) {
        let end = (outcome != Enqueued::Unknown).then(now);
        let event = |one: &Sent| Event::Enqueue {
            job: Name(one.name.clone()),
            queue: QUEUE.to_owned(),
            group: Some(Name(one.group.clone())),
            process: Some(self.recorder.process()),
            begin: one.begin,
            end,
            outcome,
            with: None,
            place: one.place,
            max_attempts: Some(ATTEMPTS),
            run_at: None,
            limit_key: one.limit_key.clone().map(Name),
            batch: one.batch.clone(),
        };
        self.recorder.note_all(&sent.iter().map(event).collect::<Vec<_>>());
    }

    /// A transaction that enqueues and then does not end for a while.
    pub async fn endless(mut self, time: Duration, end: &'static str) {
        let options = PgConnectOptions::from_str(&self.url).unwrap();
        let mut conn = options.application_name("endless").connect().await.unwrap();
        let mut sent = Vec::new();
        let begun = say(&mut conn, "begin").await && self.send(&mut conn, &mut sent).await;
        // It is what the fault is.
        sleep(time).await;
        if begun && end == "rollback" {
            self.note(&sent, Enqueued::RolledBack);
        }
        if begun && say(&mut conn, end).await && end == "commit" {
            self.note(&sent, Enqueued::Committed);
        }
    }
}

/// Says a word of transactions. Returns whether the database did.
async fn say(conn: &mut PgConnection, word: &'static str) -> bool {
    sqlx::raw_sql(word).execute(conn).await.is_ok()
}
