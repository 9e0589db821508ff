//! Every command of an operator, on every state of a job and between every two steps of a claim.
//!
//! No table says what each pair does. Each is judged by what must hold for all: no job runs after
//! its end or twice, groups keep their order, a command's answer is what happened, whatever is left
//! runs once the queue is let go on, and batches count the ends of their jobs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::{Instant, sleep};

use crate::interleavings::support::scene::{PATIENCE, Scene};
use crate::interleavings::support::session::{Q, begin, begin_hold, commit, rollback, run};
use crate::interleavings::support::size::size;
use crate::interleavings::support::steps::{OPTIONS, bounds, settle, succeeded};
use crate::store::{Claim, ClaimOptions, HoldAnswer, transaction};

/// The commands. `$job` stands for a job, `$queue` for its queue, `$home` for the queue that its
/// dead letters come from, and `$away` for another one.
const VERBS: [&str; 35] = [
    "cancel($job)",
    "retry($job)",
    "skip($job)",
    "run_now($job)",
    "abort($job)",
    "redrive($home)",
    "redrive($home, $group)",
    "redrive_jobs(array[$job])",
    "discard_jobs(array[$job])",
    "move_jobs(array[$job], $away)",
    "purge($queue)",
    "purge($queue, $group)",
    "purge($queue, everything => true)",
    "purge($queue, $group, everything => true)",
    "park($queue, $group)",
    "redrive_parked($queue, $group)",
    "redrive_parked($queue, $group, $job)",
    "discard_parked($queue, $group)",
    "discard_parked($queue, $group, $job)",
    "unhalt($queue, $group)",
    "pause($queue)",
    "pause($queue, $group)",
    "resume($queue)",
    "resume($queue, $group)",
    "set_group_policy($queue, $group, 'park')",
    "configure_queue($queue, '{\"in_flight_limit\": 1}')",
    "configure_queue($queue, '{\"limit_per_key\": null}')",
    "set_key_limit($queue, 't', 0)",
    "set_key_limit($queue, 't', 2)",
    "configure_queue($queue, '{\"dead_letter_queue\": null, \"max_attempts\": 5, \"rate\": 100}')",
    "start_move_task($queue, $away)",
    "start_move_task($queue)",
    "seal_batch($batch)",
    "abandon_batch($batch)",
    "release_node($node)",
];

/// Declares the states of a job, and the list of them.
macro_rules! states {
    ($($state:ident)+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum State { $($state),+ }
        use State::*;
        const STATES: &[State] = &[$($state),+];
    };
}

states! {
    Queued Ungrouped Behind Delayed WaitsForRetry ByTransaction ByLease ByReceiver InOpenReceive
    Lapsed Succeeded Failed Halting BehindHalt Cancelled Moved ParkedWith Parked QueuePaused
    GroupPaused Gated AtLimit OfBatch StartedOfBatch EndedOfBatch DeadLetter DiscardedDeadLetter
    Expired
}

/// A job as it is seen: its state, its queue, whether it is due.
type Seen = BTreeMap<i64, (String, String, bool)>;

async fn ask(conn: &mut PgConnection, sql: &str) -> Result<Value, sqlx::Error> {
    let sql = format!("select coalesce(jsonb_agg(to_jsonb(x)), '[]') from seriatim.{sql} x");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await
}

async fn told(conn: &mut PgConnection, sql: &str) -> Value {
    ask(conn, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The jobs that one command meets.
struct Cell {
    name: String,
    queue: String,
    /// Where its dead letters come from.
    home: String,
    group: String,
    batch: i64,
    aborted: bool,
    node: String,
    subject: i64,
    /// How often each content has succeeded.
    succeeded: BTreeMap<i64, u32>,
    mistakes: Vec<String>,
}

impl Cell {
    fn new(name: String, number: usize) -> Self {
        Self {
            name,
            queue: format!("q{number}"),
            home: format!("q{number}"),
            group: format!("g{number}"),
            batch: 0,
            aborted: false,
            node: format!("n{number}"),
            subject: 0,
            succeeded: BTreeMap::new(),
            mistakes: Vec::new(),
        }
    }

    fn dead(&self) -> String {
        format!("{}-dead", self.queue)
    }

    fn away(&self) -> String {
        format!("{}-away", self.queue)
    }

    /// Its queues, as a list of literals.
    fn queues(&self) -> String {
        let after = format!("{}-after", self.queue);
        let queues = [self.queue.clone(), self.home.clone(), self.dead(), self.away(), after];
        queues.map(|queue| format!("'{queue}'")).join(",")
    }

    fn wrong(&mut self, what: impl Into<String>) {
        self.mistakes.push(what.into());
    }

    /// Enqueues a job; its content is a number that only this one has.
    async fn enqueue(&self, conn: &mut PgConnection, more: &str) -> i64 {
        let sql = format!(
            "select id from seriatim.enqueue('{}', to_jsonb(nextval('content')) {more})",
            self.queue
        );
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await.unwrap()
    }

    async fn in_group(&self, conn: &mut PgConnection, group: &str, more: &str) -> i64 {
        self.enqueue(conn, &format!(", '{group}' {more}")).await
    }

    async fn configure(&self, conn: &mut PgConnection, settings: &str) {
        run(conn, &format!("select seriatim.configure_queue('{}', '{settings}')", self.queue))
            .await;
    }

    /// Receives the one job that is due, and returns its receipt.
    async fn receive(&self, conn: &mut PgConnection) -> String {
        let received = told(conn, &format!("receive('{}', 1, interval '1 h')", self.queue)).await;
        received[0]["receipt"].as_str().unwrap_or_else(|| panic!("{}", self.name)).to_owned()
    }

    async fn fail(&self, conn: &mut PgConnection) {
        let receipt = self.receive(conn).await;
        run(conn, &format!("select seriatim.nack('{receipt}', interval '1 h', 'failed')")).await;
    }

    async fn seen(&self, conn: &mut PgConnection) -> Seen {
        let queues = self.queues();
        let sql = format!(
            "select id, seriatim.job_state(status, queue, group_id, id)::text, queue, run_at <= clock_timestamp() \
             from seriatim.job where queue in ({queues})"
        );
        let rows: Vec<(i64, String, String, bool)> =
            sqlx::query_as(AssertSqlSafe(sql)).fetch_all(conn).await.unwrap();
        rows.into_iter().map(|(id, state, queue, due)| (id, (state, queue, due))).collect()
    }

    /// Acks what was received, and looks whether it was its turn.
    async fn run_received(&mut self, conn: &mut PgConnection, received: &Value) -> usize {
        let jobs = received.as_array().unwrap();
        let ids: Vec<i64> = jobs.iter().map(|job| job["id"].as_i64().unwrap()).collect();
        let passed = "select l.id from seriatim.job j join seriatim.job l \
             on l.queue = j.queue and l.group_id = j.group_id and l.id < j.id \
             where j.id = any ($1) and l.id <> all ($1) and l.status in ('queued', 'started')";
        let passed: Vec<i64> =
            sqlx::query_scalar(passed).bind(&ids).fetch_all(&mut *conn).await.unwrap();
        if !passed.is_empty() {
            self.wrong(format!("{ids:?} were received before {passed:?}"));
        }
        for job in jobs {
            let receipt = job["receipt"].as_str().unwrap();
            let answer = told(conn, &format!("ack('{receipt}')")).await;
            if answer[0] == "done" {
                *self.succeeded.entry(job["data"].as_i64().unwrap()).or_default() += 1;
            }
        }
        jobs.len()
    }

    fn fill(&self, verb: &str, queue: &str) -> String {
        let quoted = |text: &str| format!("'{text}'");
        verb.replace("$job", &format!("{}::bigint", self.subject))
            .replace("$queue", &quoted(queue))
            .replace("$home", &quoted(&self.home))
            .replace("$away", &quoted(&self.away()))
            .replace("$group", &quoted(&self.group))
            .replace("$batch", &self.batch.to_string())
            .replace("$node", &quoted(&self.node))
    }

    /// Gives the command; returns whether it had to wait for an open transaction, and did nothing.
    async fn command(&mut self, conn: &mut PgConnection, verb: &str) -> bool {
        let before = self.seen(conn).await;
        let queue =
            before.get(&self.subject).map_or_else(|| self.queue.clone(), |job| job.1.clone());
        let sql = self.fill(verb, &queue);
        let answer = match ask(conn, &sql).await {
            Ok(answer) => answer[0].clone(),
            // There is no such task, batch or dead letter.
            Err(sqlx::Error::Database(error)) => {
                match error.code().as_deref() {
                    Some("55P03") => return true,
                    Some("22023" | "55000" | "23505") => {}
                    code => self.wrong(format!("{code:?}: {error}")),
                }
                if self.seen(conn).await != before {
                    self.wrong("it was refused, and yet changed something");
                }
                return false;
            }
            Err(error) => panic!("{sql}: {error}"),
        };
        if verb.starts_with("start_move_task") {
            told(conn, "run_move_tasks()").await;
        }
        self.aborted = answer["done"] == true;
        let after = self.seen(conn).await;
        self.check_answer(verb, &answer, &before, &after);
        if answer["requested"] == true {
            let asked =
                format!("select from seriatim.cancel_request where job_id = {}", self.subject);
            if run(conn, &asked).await != 1 {
                self.wrong("a cancel was requested, and there is no request");
            }
        }
        false
    }

    /// A command that is done has done what it says, and one that is not done has changed nothing.
    fn check_answer(&mut self, verb: &str, answer: &Value, before: &Seen, after: &Seen) {
        let name = verb.split_once('(').unwrap().0;
        let states = |id: &i64, seen: &Seen| seen.get(id).map(|job| job.0.clone());
        let changed: BTreeSet<i64> = before
            .keys()
            .chain(after.keys())
            .filter(|id| {
                before.get(id).map(|job| (&job.0, &job.1))
                    != after.get(id).map(|job| (&job.0, &job.1))
            })
            .copied()
            .collect();
        let (said, away) = (answer.clone(), self.away());
        let subject = self.subject;
        let number = |value: &Value| usize::try_from(value.as_i64().unwrap_or_default()).unwrap();
        let mut wrong =
            |what: &str| self.mistakes.push(format!("{what}: {said} {before:?} {after:?}"));
        let became =
            |state: &str| changed.iter().all(|id| states(id, after).as_deref() == Some(state));
        match name {
            "cancel" | "retry" | "skip" | "run_now" | "abort" => {
                let then = states(&subject, after);
                let due = after.get(&subject).is_some_and(|job| job.2);
                let did = match name {
                    "cancel" => then.as_deref() == Some("cancelled"),
                    "skip" => then.as_deref() == Some("failed"),
                    "retry" => then.as_deref() == Some("queued"),
                    "run_now" => then.as_deref() == Some("queued") && due,
                    // Its claim is gone: it is taken over a grace later.
                    _ => true,
                };
                if answer["done"] == true && !did {
                    wrong("it is done, and was not done");
                }
                if answer["done"] != true && !changed.is_empty() {
                    wrong("it is not done, and changed something");
                }
                if changed.iter().any(|id| *id != subject) {
                    wrong("it changed other jobs");
                }
            }
            "redrive" | "redrive_jobs" | "redrive_parked" => {
                if number(&answer["jobs"]) != changed.len() || !became("queued") {
                    wrong("it queued others");
                }
            }
            "discard_jobs" | "discard_parked" => {
                if number(answer) != changed.len() || !became("cancelled") {
                    wrong("it discarded others");
                }
            }
            "purge" => {
                let all = verb.contains("everything");
                if !became("cancelled")
                    || number(answer) < changed.len()
                    || number(answer) > changed.len() && !all
                {
                    wrong("it purged others");
                }
            }
            "move_jobs" => {
                let ids = |key: &str| -> BTreeSet<i64> {
                    answer[key].as_array().unwrap().iter().filter_map(Value::as_i64).collect()
                };
                let (old, new) = (ids("jobs"), ids("new_jobs"));
                let there =
                    |id: &i64| after.get(id).is_some_and(|job| job.0 == "queued" && job.1 == away);
                let moved = old.iter().all(|id| states(id, after).as_deref() == Some("cancelled"));
                if old.len() != new.len()
                    || !moved
                    || !new.iter().all(there)
                    || changed.len() != 2 * old.len()
                {
                    wrong("it moved others");
                }
            }
            "park" => {
                let parked = answer["job"].as_i64();
                if parked.is_some_and(|job| states(&job, after).as_deref() != Some("failed"))
                    || parked.is_none() && !changed.is_empty()
                {
                    wrong("it parked others");
                }
            }
            "start_move_task" => {}
            _ => {
                if !changed.is_empty() {
                    wrong("it changed jobs");
                }
            }
        }
    }

    /// Receives and runs what there is in these of its queues. Returns how many jobs there were.
    async fn drain(&mut self, conn: &mut PgConnection, queues: &[String]) -> usize {
        let mut ran = 0;
        let own = self.queues();
        for queue in queues.iter().filter(|queue| own.contains(&format!("'{queue}'"))) {
            loop {
                let receive = format!("receive('{queue}', 10, interval '1 h')");
                let received = told(conn, &receive).await;
                let jobs = self.run_received(conn, &received).await;
                ran += jobs;
                if jobs == 0 {
                    break;
                }
            }
        }
        ran
    }

    async fn open_batch(&mut self, conn: &mut PgConnection) {
        let open = format!(
            "select seriatim.open_batch('b', '{}-after', null, jsonb_build_object('data', nextval('content')))",
            self.queue
        );
        self.batch = sqlx::query_scalar(AssertSqlSafe(open)).fetch_one(conn).await.unwrap();
    }

    /// Notes that a job has succeeded.
    async fn ran(&mut self, conn: &mut PgConnection, job: i64) {
        let content = format!("select (data#>>'{{}}')::bigint from seriatim.job where id = {job}");
        let content = sqlx::query_scalar(AssertSqlSafe(content)).fetch_one(conn).await.unwrap();
        *self.succeeded.entry(content).or_default() += 1;
    }

    /// Lets those go on who were at work when the command was given. Another receiver gets a job of
    /// their group only if their claim is gone.
    async fn goes_on(&mut self, scene: &Scene, conn: &mut PgConnection, going: Other, verb: &str) {
        if matches!(going, Other::Nothing) {
            return;
        }
        let receive = format!("receive('{}', 10, interval '1 h')", self.queue);
        let taken = told(conn, &receive).await;
        let succeeds = match going {
            Other::Nothing => None,
            Other::Worker(worker) => {
                let job = worker.claim.job;
                worker.succeeds(scene).await.then_some(job)
            }
            Other::Receiver(receipt, open) => {
                let ack = format!("ack('{receipt}')");
                let answer = match open {
                    // An abort ends its session.
                    Some(mut open) => match ask(&mut open, &ack).await {
                        Ok(answer) if run_if_open(&mut open, "commit").await => answer,
                        _ => Value::Null,
                    },
                    None => told(conn, &ack).await,
                };
                let job = receipt.split('.').next().unwrap().parse().unwrap();
                (answer[0] == "done").then_some(job)
            }
        };
        if let Some(job) = succeeds {
            self.ran(conn, job).await;
            let group = format!("select group_id from seriatim.job where id = {job}");
            let group: Option<String> =
                sqlx::query_scalar(AssertSqlSafe(group)).fetch_one(&mut *conn).await.unwrap();
            if taken
                .as_array()
                .unwrap()
                .iter()
                .any(|job| job["group_id"].as_str() == group.as_deref())
            {
                self.wrong("a job of its group was received beside it");
            }
            if job == self.subject && self.aborted && verb.starts_with("abort") {
                self.wrong("it succeeded behind its abort");
            }
        }
        self.run_received(conn, &taken).await;
    }

    /// Looks at what has become of the jobs.
    async fn judge(&mut self, conn: &mut PgConnection) {
        let queues = self.queues();
        let ended = format!(
            "select (data#>>'{{}}')::bigint, count(*) filter (where status = 'succeeded') \
             from seriatim.job where queue in ({queues}) group by 1"
        );
        let ended: Vec<(i64, i64)> =
            sqlx::query_as(AssertSqlSafe(ended)).fetch_all(&mut *conn).await.unwrap();
        for (content, rows) in ended {
            let times = self.succeeded.get(&content).copied().unwrap_or_default();
            if times > 1 || i64::from(times) != rows {
                self.wrong(format!(
                    "{content} ran {times} times, and {rows} of its jobs have succeeded"
                ));
            }
        }
        if self.batch != 0 {
            let differ = format!(
                "select count(*) from seriatim.job j full join seriatim.batch_end e \
                   on e.job_id = j.id and e.batch_id = j.batch_id \
                 where coalesce(j.batch_id, e.batch_id) = {0} and j.status is distinct from e.status",
                self.batch
            );
            let differ: i64 =
                sqlx::query_scalar(AssertSqlSafe(differ)).fetch_one(&mut *conn).await.unwrap();
            if differ != 0 {
                self.wrong("the batch has other ends than its jobs");
            }
            let batch = told(conn, &format!("batches({})", self.batch)).await[0].clone();
            let follow_ups =
                format!("select from seriatim.job where queue = '{}-after'", self.queue);
            let follow_ups = run(conn, &follow_ups).await;
            let (state, all) = (batch["state"].clone(), batch["unsuccessful"] == 0);
            let expected = u64::from(state == "ended");
            if batch["unfinished"] != 0
                || follow_ups != expected
                || state == "ending"
                || state == "open"
                || (state == "failed") == all
            {
                self.wrong(format!("{follow_ups} follow-ups of the batch {batch}"));
            }
        }
    }
}

/// A worker that has claimed a job.
struct Worker {
    conn: PgConnection,
    claim: Claim,
    holds: bool,
}

impl Worker {
    /// Claims the one job that is due, and holds it if that is by transaction.
    async fn new(scene: &Scene, cell: &Cell, number: i64, holds: bool) -> Self {
        let mut conn = scene.session().await;
        let node = format!(
            "insert into seriatim.processor (id, node, presence_key, server_started_at) \
             values ({number}, '{}', {number}, '2000-01-01') on conflict do nothing",
            cell.node
        );
        run(&mut conn, &node).await;
        let options = ClaimOptions {
            processor: Some(number),
            lease: std::time::Duration::from_hours(1),
            ..OPTIONS
        };
        let claimed = scene.store.claim(&mut conn, &cell.queue, bounds(1), options).await.unwrap();
        let claim = claimed.jobs.into_iter().next().unwrap();
        if holds {
            begin_hold(&mut conn).await;
            let held = scene.store.hold(&mut conn, &claim).await.unwrap();
            assert!(matches!(held, HoldAnswer::Held(_)), "{}", cell.name);
        }
        Self { conn, claim, holds }
    }

    /// Ends the job as succeeded, if the claim is its own still. Returns whether it did.
    async fn succeeds(mut self, scene: &Scene) -> bool {
        if !self.holds {
            begin_hold(&mut self.conn).await;
            let held = scene.store.hold(&mut self.conn, &self.claim).await.unwrap();
            if !matches!(held, HoldAnswer::Held(_)) {
                return false;
            }
        }
        let settled = settle(&scene.store, &mut self.conn, &self.claim, &succeeded()).await;
        // An abort has ended its session.
        let done = settled.is_ok() && transaction::commit(&mut self.conn).await.is_ok();
        drop(self.conn.close().await);
        done
    }
}

async fn run_if_open(conn: &mut PgConnection, sql: &str) -> bool {
    sqlx::query(AssertSqlSafe(sql.to_owned())).execute(conn).await.is_ok()
}

/// A worker or receiver that is at work while the command is given.
enum Other {
    Nothing,
    Worker(Box<Worker>),
    /// A receiver, with the receipt; in a transaction that is open.
    Receiver(String, Option<PgConnection>),
}

impl State {
    /// Brings a job into this state.
    #[allow(clippy::too_many_lines, reason = "a line or two for each state")]
    async fn make(
        self,
        scene: &Scene,
        cell: &mut Cell,
        conn: &mut PgConnection,
        number: i64,
    ) -> Other {
        let group = cell.group.clone();
        let other = format!("{group}-other");
        let mut more = String::new();
        match self {
            Delayed => more.push_str(", '1 h'"),
            WaitsForRetry => cell.configure(conn, r#"{"max_attempts": 5}"#).await,
            Failed => {
                cell.configure(conn, r#"{"max_attempts": 1, "out_of_attempts": "continue"}"#).await;
            }
            Halting | BehindHalt => {
                cell.configure(conn, r#"{"max_attempts": 1, "out_of_attempts": "halt"}"#).await;
            }
            Gated => {
                more.push_str(", limit_key => 'k'");
                cell.configure(conn, r#"{"limit_per_key": 1}"#).await;
            }
            AtLimit => cell.configure(conn, r#"{"in_flight_limit": 1}"#).await,
            DeadLetter | DiscardedDeadLetter => {
                let settings =
                    format!(r#"{{"max_attempts": 1, "dead_letter_queue": "{}"}}"#, cell.dead());
                cell.configure(conn, &settings).await;
            }
            OfBatch | StartedOfBatch | EndedOfBatch => {
                cell.open_batch(conn).await;
                more = format!(", batch => {}", cell.batch);
            }
            Expired => more.push_str(", expires_at => clock_timestamp() + interval '1 ms'"),
            _ => {}
        }
        let taken = match self {
            // Another group has the slot.
            Gated | AtLimit => {
                cell.in_group(conn, &other, &more).await;
                Some(cell.receive(conn).await)
            }
            _ => None,
        };
        let first = match self {
            Ungrouped => cell.enqueue(conn, &more).await,
            _ => cell.in_group(conn, &group, &more).await,
        };
        if matches!(self, ByTransaction | ByLease | ByReceiver | InOpenReceive | Lapsed) {
            cell.subject = first;
        }
        let mut going = Other::Nothing;
        match self {
            WaitsForRetry | Failed | Halting | BehindHalt | DeadLetter | DiscardedDeadLetter => {
                cell.fail(conn).await;
            }
            ByTransaction | ByLease => {
                going = Other::Worker(Box::new(
                    Worker::new(scene, cell, number, self == ByTransaction).await,
                ));
            }
            ByReceiver | StartedOfBatch => going = Other::Receiver(cell.receive(conn).await, None),
            Lapsed => {
                let receipt = cell.receive(conn).await;
                let over = format!(
                    "update seriatim.queue_group set ready_at = clock_timestamp() - interval '10 s' where queue = '{}'",
                    cell.queue
                );
                run(conn, &over).await;
                going = Other::Receiver(receipt, None);
            }
            InOpenReceive => {
                let mut open = scene.session().await;
                run(&mut open, "begin").await;
                going = Other::Receiver(cell.receive(&mut open).await, Some(open));
            }
            Succeeded | EndedOfBatch => {
                let received = told(conn, &format!("receive('{}')", cell.queue)).await;
                cell.run_received(conn, &received).await;
            }
            Cancelled => drop(told(conn, &format!("cancel({first})")).await),
            Moved => drop(
                told(conn, &format!("move_jobs(array[{first}]::bigint[], '{}')", cell.away()))
                    .await,
            ),
            _ => {}
        }
        // A job of its group comes next, and one of another group.
        let behind = match self {
            Ungrouped => cell.enqueue(conn, &more).await,
            _ => cell.in_group(conn, &group, &more).await,
        };
        cell.in_group(conn, &other, &more).await;
        match self {
            ParkedWith | Parked => {
                drop(told(conn, &format!("park('{}', '{group}')", cell.queue)).await);
            }
            QueuePaused => drop(told(conn, &format!("pause('{}')", cell.queue)).await),
            GroupPaused => drop(told(conn, &format!("pause('{}', '{group}')", cell.queue)).await),
            DiscardedDeadLetter => {
                drop(told(conn, &format!("discard_jobs(array[{first}::bigint])")).await);
            }
            Expired => {
                let over = format!(
                    "update seriatim.job set expires_at = clock_timestamp() - interval '1 s' where queue = '{}'",
                    cell.queue
                );
                run(conn, &over).await;
            }
            Gated | AtLimit => {
                let none = told(conn, &format!("receive('{}', 10)", cell.queue)).await;
                assert_eq!(none, Value::Array(Vec::new()), "{}", cell.name);
            }
            _ => {}
        }
        cell.subject = if matches!(self, Behind | BehindHalt | Parked) { behind } else { first };
        match taken {
            Some(receipt) => Other::Receiver(receipt, None),
            None => going,
        }
    }
}

/// Lets all go on that an operator may have stopped.
const LET_GO: [&str; 4] = [
    "select seriatim.resume(name) from seriatim.queue where paused_at is not null",
    "select seriatim.resume(queue, group_id) from seriatim.group_setting where paused_at is not null",
    "select seriatim.unhalt(queue, group_id) from seriatim.queue_group where halted_at is not null",
    "select seriatim.seal_batch(id) from seriatim.batch where sealed_at is null and ended_at is null",
];

/// Runs all cells to their end, and returns what was wrong.
async fn ends(conn: &mut PgConnection, cells: &mut [Cell]) -> Vec<String> {
    for sql in LET_GO {
        run(conn, sql).await;
    }
    let begun = Instant::now();
    loop {
        run(
            conn,
            "select seriatim.run_now(id) from seriatim.job where status = 'queued' and run_at > clock_timestamp()",
        )
        .await;
        let ended = told(conn, "end_batches()").await;
        let left = "select distinct queue from seriatim.job where status in ('queued', 'started')";
        let left: Vec<String> = sqlx::query_scalar(left).fetch_all(&mut *conn).await.unwrap();
        if left.is_empty() && ended == Value::Array(Vec::new()) {
            break;
        }
        let mut ran = 0;
        for cell in &mut *cells {
            ran += cell.drain(conn, &left).await;
        }
        if begun.elapsed() > PATIENCE && ran == 0 {
            for cell in &mut *cells {
                let seen = cell.seen(conn).await;
                if seen.values().any(|job| ["queued", "started"].contains(&&*job.0)) {
                    cell.wrong(format!("it is stranded: {seen:?}"));
                }
            }
            break;
        }
        if ran == 0 {
            // A claim is taken over a grace after it was suspected.
            sleep(std::time::Duration::from_millis(50)).await;
        }
    }
    let mut wrong = Vec::new();
    for cell in cells {
        cell.judge(conn).await;
        wrong.extend(cell.mistakes.iter().map(|mistake| format!("{}: {mistake}", cell.name)));
    }
    wrong
}

/// All, or by default each 17th from a random one on: in many runs each command meets each state.
fn some_of<T>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let every = size(17, 1);
    all.into_iter().skip(fastrand::usize(..every)).step_by(every).collect()
}

/// Gives commands in states, and returns what was wrong.
async fn in_states(scene: &Scene, pairs: Vec<(State, &str)>) -> Vec<String> {
    let mut conn = scene.session().await;
    run(&mut conn, "create sequence if not exists content").await;
    run(&mut conn, "set lock_timeout = '100ms'").await;
    let mut cells = Vec::new();
    for (state, verb) in pairs {
        let number = cells.len();
        let mut cell = Cell::new(format!("{verb} of {state:?}"), number);
        let number = i64::try_from(number).unwrap() + 1;
        let going = state.make(scene, &mut cell, &mut conn, number).await;
        if cell.command(&mut conn, verb).await {
            cell.wrong("it waited for a lock");
        }
        cell.goes_on(scene, &mut conn, going, verb).await;
        cells.push(cell);
    }
    let wrong = ends(&mut conn, &mut cells).await;
    conn.close().await.unwrap();
    wrong
}

#[tokio::test]
async fn every_command_is_right_in_every_state_of_a_job() {
    let scene = Scene::new().await;
    let all = STATES.iter().flat_map(|state| VERBS.map(|verb| (*state, verb)));
    let wrong = in_states(&scene, some_of(all)).await;
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    // Wrong: a job that was moved is queued again.
    scene.rewrite("retry", &[("or moved_as is not null", "")]).await;
    scene.run("delete from seriatim.job").await;
    let wrong = in_states(&scene, vec![(Moved, "retry($job)")]).await;
    assert!(wrong.iter().any(|mistake| mistake.contains("ran 2 times")), "{wrong:?}");
    scene.end().await;
}

/// A job that a worker claims, step by step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claimed {
    Plain,
    WithKey,
    InBatch,
    AsDeadLetter,
}

/// The place of a command among the steps of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Adopted,
    Locked,
    Read,
    Started,
    Claimed,
    Held,
    Settled,
}

/// A worker's session, which gives the command behind one of its steps.
struct Script<'a> {
    scene: &'a Scene,
    worker: PgConnection,
    operator: PgConnection,
    at: Step,
    verb: &'static str,
    /// The command waited for the worker's transaction.
    waited: bool,
}

impl Script<'_> {
    async fn passes(&mut self, cell: &mut Cell, step: Step) {
        if step == self.at {
            self.waited = cell.command(&mut self.operator, self.verb).await;
        }
    }

    /// Makes and runs a cell.
    async fn run(&mut self, kind: Claimed, cell: &mut Cell) -> Vec<String> {
        let mut more = String::new();
        match kind {
            Claimed::Plain => {}
            Claimed::WithKey => {
                more.push_str(", limit_key => 'k'");
                cell.configure(&mut self.operator, r#"{"limit_per_key": 1}"#).await;
            }
            Claimed::InBatch => {
                cell.open_batch(&mut self.operator).await;
                more = format!(", batch => {}", cell.batch);
            }
            Claimed::AsDeadLetter => {
                cell.home = String::from("home");
                let settings =
                    r#"select seriatim.configure_queue('home', '{"dead_letter_queue": "q"}')"#;
                run(&mut self.operator, settings).await;
            }
        }
        let (group, other) = (cell.group.clone(), format!("{}-other", cell.group));
        cell.subject = cell.in_group(&mut self.operator, &group, &more).await;
        cell.in_group(&mut self.operator, &group, &more).await;
        cell.in_group(&mut self.operator, &other, &more).await;
        if kind == Claimed::AsDeadLetter {
            run(&mut self.operator, "update seriatim.job set moved_from = 'home'").await;
        }
        self.scene.adopt(&mut self.worker).await;
        self.passes(cell, Step::Adopted).await;
        commit(&mut self.worker).await;
        begin(&mut self.worker).await;
        let turns = self.scene.lock_turns(&mut self.worker, 10).await;
        self.passes(cell, Step::Locked).await;
        let heads = self.scene.read_heads(&mut self.worker, &turns).await;
        self.passes(cell, Step::Read).await;
        let claims = self.scene.start(&mut self.worker, &heads, None).await;
        self.passes(cell, Step::Started).await;
        self.scene.defer(&mut self.worker, &heads).await;
        commit(&mut self.worker).await;
        self.passes(cell, Step::Claimed).await;
        for claim in claims {
            let subjects = claim.group.as_ref() == Some(&group);
            if !run_if_open(&mut self.worker, "select").await {
                self.worker = self.scene.session().await;
            }
            let HoldAnswer::Held(_) = self.scene.try_hold(&mut self.worker, &claim).await else {
                rollback(&mut self.worker).await;
                continue;
            };
            if subjects {
                self.passes(cell, Step::Held).await;
            }
            let store = &self.scene.store;
            let settled = settle(store, &mut self.worker, &claim, &succeeded()).await;
            if subjects {
                self.passes(cell, Step::Settled).await;
            }
            if settled.is_ok() && transaction::commit(&mut self.worker).await.is_ok() {
                cell.ran(&mut self.operator, claim.job).await;
            } else {
                self.worker = self.scene.session().await;
            }
        }
        if self.waited {
            let waits = ["pause", "resume", "configure", "set_group", "unhalt", "seal", "abandon"];
            if !waits.iter().any(|waits| self.verb.starts_with(waits)) {
                cell.wrong("it waited for the worker");
            }
            if cell.command(&mut self.operator, self.verb).await {
                cell.wrong("it waited for nobody");
            }
        }
        ends(&mut self.operator, std::slice::from_mut(cell)).await
    }
}

#[tokio::test]
async fn every_command_is_right_between_the_steps_of_a_claim() {
    use Step::{Adopted, Held, Locked, Read, Settled, Started};
    let scene = Scene::new().await;
    scene.run("create sequence content").await;
    let (worker, operator) = (scene.session().await, scene.session().await);
    let mut script =
        Script { scene: &scene, worker, operator, at: Adopted, verb: VERBS[0], waited: false };
    run(&mut script.operator, "set lock_timeout = '100ms'").await;
    let mut wrong = Vec::new();
    let kinds = [Claimed::Plain, Claimed::WithKey, Claimed::InBatch, Claimed::AsDeadLetter];
    let steps = [Adopted, Locked, Read, Started, Step::Claimed, Held, Settled];
    let pairs = kinds.iter().flat_map(|kind| steps.map(|step| (*kind, step)));
    let all = pairs.flat_map(|(kind, at)| VERBS.map(|verb| (kind, at, verb)));
    for (number, (kind, at, verb)) in some_of(all).into_iter().enumerate() {
        let mut cell = Cell::new(format!("{verb} of {kind:?} behind {at:?}"), number);
        (cell.queue, cell.home) = (Q.to_owned(), Q.to_owned());
        (script.at, script.verb, script.waited) = (at, verb, false);
        wrong.extend(script.run(kind, &mut cell).await);
        scene.clear().await;
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    let Script { worker, operator, .. } = script;
    worker.close().await.unwrap();
    operator.close().await.unwrap();
    scene.end().await;
}
