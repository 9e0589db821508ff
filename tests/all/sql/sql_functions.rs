//! The functions for other languages: one list of cases, run through SQL text and through the
//! library's calls.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use serde_json::{Value, json};
use seriatim::receive::{Receive, ReceiveError};
use seriatim::{Client, NewBatch, NewJob, Unique};
use sqlx::{AssertSqlSafe, PgPool, Row};

use crate::support::{by_hand, database, eventually, jobs_where, value};

mod cases;

use cases::CASES;

/// Who runs the steps.
#[derive(Clone, Copy, PartialEq)]
enum Through {
    Sql,
    Library,
    /// Now the one, now the other.
    Both,
}

struct Run<'a> {
    through: Through,
    steps: usize,
    pool: &'a PgPool,
    queue: String,
    /// Job ids by letter.
    jobs: HashMap<String, i64>,
    /// By letter and attempt.
    receipts: HashMap<String, String>,
    last: String,
}

/// `key=value` among the words of a step.
fn option<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn literal(text: Option<&str>) -> String {
    text.map_or(String::from("null"), |text| format!("'{text}'"))
}

impl Run<'_> {
    fn by_library(&self) -> bool {
        match self.through {
            Through::Sql => false,
            Through::Library => true,
            Through::Both => self.steps.is_multiple_of(2),
        }
    }

    /// Returns the outcome of a step.
    async fn step(&mut self, step: &str) -> String {
        self.steps += 1;
        let sql = step.replace("{q}", &self.queue);
        let (word, rest) = sql.split_once(' ').unwrap_or((&sql, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        match word {
            "sql" => by_hand(self.pool, rest).await,
            "see" => return value(self.pool, format!("select ({rest})::text")).await,
            "lapse" => {
                for (table, column, which) in [
                    ("queue_group", "ready_at", "ready_at < 'infinity'"),
                    ("job", "lease_until", "group_id is null and status = 'started'"),
                ] {
                    let aged = format!(
                        "update seriatim.{table} set {column} = clock_timestamp() - interval '1 s' where queue = '{}' and {which}",
                        self.queue
                    );
                    by_hand(self.pool, aged).await;
                }
            }
            "enqueue" => return self.enqueue(words[0], &words[1..]).await,
            "receive" => return self.receive(words[0].parse().unwrap(), &words[1..]).await,
            "ack" | "nack" | "extend" => {
                let receipt = self.receipts[words[0]].clone();
                let seconds = words.get(1).map_or(0, |seconds| seconds.parse().unwrap());
                return if self.by_library() {
                    self.answer(word, &receipt, seconds).await
                } else {
                    self.answer_in_sql(word, &receipt, seconds).await
                };
            }
            "ack_many" | "nack_many" | "extend_many" => {
                let receipts: Vec<String> =
                    words.iter().map(|name| self.receipts[*name].clone()).collect();
                return if self.by_library() {
                    self.answers(word, &receipts).await
                } else {
                    self.answers_in_sql(word, &receipts).await
                };
            }
            other => panic!("{other} is no step"),
        }
        String::new()
    }

    async fn enqueue(&mut self, letter: &str, options: &[&str]) -> String {
        let of = |key| option(options, key);
        let (id, duplicate) = if self.by_library() {
            self.enqueue_by_library(letter, options).await
        } else {
            let seconds = |key| of(key).map_or("null".into(), |s| format!("interval '{s} s'"));
            let sql = format!(
                "select * from seriatim.enqueue('{}', '\"{letter}\"', group_id => {}, delay => {}, priority => {}, \
                 expires_at => now() + {}, max_attempts => {}, dedup_id => {}, unique_key => {}, \
                 unique_mode => '{}', unique_scope => '{}')",
                self.queue,
                literal(of("group")),
                seconds("delay"),
                of("priority").unwrap_or("0"),
                seconds("expires"),
                of("max").unwrap_or("null"),
                literal(of("dedup")),
                literal(of("unique")),
                of("mode").unwrap_or("until_start"),
                of("scope").unwrap_or("queue"),
            );
            let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(self.pool).await.unwrap();
            (row.get(0), row.get(1))
        };
        if duplicate {
            let first = self.jobs.iter().find(|(_, known)| **known == id).unwrap();
            return format!("as {}", first.0);
        }
        self.jobs.insert(letter.to_owned(), id);
        String::from("new")
    }

    async fn enqueue_by_library(&self, letter: &str, options: &[&str]) -> (i64, bool) {
        let mut job = NewJob::new(&self.queue, letter);
        if let Some(group) = option(options, "group") {
            job = job.group(group);
        }
        if let Some(seconds) = option(options, "delay") {
            job = job.delay(Duration::from_secs(seconds.parse().unwrap()));
        }
        if let Some(most) = option(options, "max") {
            job = job.max_attempts(most.parse().unwrap());
        }
        if let Some(priority) = option(options, "priority") {
            job = job.priority(priority.parse().unwrap());
        }
        if let Some(seconds) = option(options, "expires") {
            job = job.expires_at(Utc::now() + TimeDelta::seconds(seconds.parse().unwrap()));
        }
        if let Some(id) = option(options, "dedup") {
            job = job.dedup_id(id);
        }
        if let Some(key) = option(options, "unique") {
            let unique = match option(options, "mode") {
                None => Unique::until_start(key),
                Some("until_end") => Unique::until_end(key),
                Some("replace") => Unique::replace(key),
                Some("debounce") => Unique::debounce(key),
                Some(mode) => panic!("{mode} is no mode"),
            };
            let in_group = option(options, "scope") == Some("group");
            job = job.unique(if in_group { unique.in_group() } else { unique });
        }
        let enqueued = seriatim::enqueue(self.pool, job).await.unwrap();
        (enqueued.id(), enqueued.is_duplicate())
    }

    async fn receive(&mut self, most: u32, options: &[&str]) -> String {
        let of = |key| option(options, key);
        let visibility: u64 = of("visibility").unwrap_or("30").parse().unwrap();
        let received: Result<Vec<(String, Value, i64)>, String> = if self.by_library() {
            let mut what =
                Receive::new(&self.queue).max(most).visibility(Duration::from_secs(visibility));
            if let Some(group) = of("group") {
                what = what.group(group);
            }
            if let Some(id) = of("id") {
                what = what.attempt_id(id);
            }
            what = what.together(options.contains(&"together"));
            let jobs = Client::default().receive(self.pool, what).await;
            let row = |job: seriatim::receive::Received| {
                (job.receipt.to_string(), job.data, i64::from(job.attempt))
            };
            jobs.map(|jobs| jobs.into_iter().map(row).collect()).map_err(refused)
        } else {
            let sql = format!(
                "select receipt, data, attempt::int8 from seriatim.receive('{}', {most}, '{visibility} s', {}, attempt_id => {}, together => {})",
                self.queue,
                literal(of("group")),
                literal(of("id")),
                options.contains(&"together"),
            );
            let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(self.pool).await;
            rows.map(|rows| rows.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect())
                .map_err(said)
        };
        let received = match received {
            Ok(received) => received,
            Err(message) => return format!("error: {message}"),
        };
        let mut names = Vec::new();
        let mut receipts = Vec::new();
        for (receipt, data, attempt) in received {
            let name = format!("{}.{attempt}", data.as_str().unwrap());
            receipts.push(receipt.clone());
            self.receipts.insert(name.clone(), receipt);
            names.push(name);
        }
        let all = receipts.join(" ");
        let same = !all.is_empty() && all == self.last;
        if !all.is_empty() {
            self.last = all;
        }
        if same { String::from("same") } else { names.join(" ") }
    }

    async fn answer_in_sql(&self, word: &str, receipt: &str, seconds: u64) -> String {
        let sql = match word {
            "ack" => format!("select seriatim.ack('{receipt}', '1')"),
            "nack" if seconds == 0 => format!("select seriatim.nack('{receipt}', '0')"),
            _ => format!("select seriatim.{word}('{receipt}', '{seconds} s')"),
        };
        let answer = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(self.pool).await;
        answer.unwrap_or_else(|error| format!("error: {}", said(error)))
    }

    async fn answers_in_sql(&self, word: &str, receipts: &[String]) -> String {
        let time = match word {
            "extend_many" => ", '9 s'",
            "nack_many" => ", '0'",
            _ => "",
        };
        let sql = format!(
            "select string_agg(answer, ' ') from seriatim.{word}('{{{}}}'{time})",
            receipts.join(",")
        );
        value(self.pool, sql).await
    }

    async fn answers(&self, word: &str, receipts: &[String]) -> String {
        let receipts: Vec<_> = receipts.iter().map(|text| text.parse().unwrap()).collect();
        let client = Client::default();
        let answers = match word {
            "ack_many" => client.ack_many(self.pool, &receipts).await,
            "nack_many" => client.nack_many(self.pool, &receipts, Duration::ZERO).await,
            _ => client.extend_many(self.pool, &receipts, Duration::from_secs(9)).await,
        };
        let words = answers.unwrap().into_iter().map(|answer| match answer {
            Ok(()) => "done",
            Err(ReceiveError::Stale { .. }) => "stale",
            Err(error) => panic!("{error}"),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    async fn answer(&self, word: &str, receipt: &str, seconds: u64) -> String {
        let (client, receipt) = (Client::default(), receipt.parse().unwrap());
        let time = Duration::from_secs(seconds);
        let answer = match word {
            "ack" => client.ack_with(self.pool, &receipt, &1).await,
            "nack" => client.nack(self.pool, &receipt, time).await,
            _ => client.extend(self.pool, &receipt, time).await,
        };
        match answer {
            Ok(()) => String::from("done"),
            Err(ReceiveError::Stale { job }) => {
                assert_eq!(job, receipt.job());
                String::from("stale")
            }
            Err(error) => format!("error: {}", refused(error)),
        }
    }
}

fn said(error: sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(e) if e.code().as_deref() == Some("22023") => e.message().to_owned(),
        other => panic!("{other}"),
    }
}

fn refused(error: ReceiveError) -> String {
    match error {
        ReceiveError::Refused { message, hint } => {
            assert!(!hint.is_empty());
            message
        }
        other => panic!("{other:?}"),
    }
}

async fn run_the_cases(through: Through) {
    let database = database().await;
    // A suspicion from before the server's start is none.
    let is_old = "select clock_timestamp() > seriatim.server_since() + interval '3 s'";
    eventually(database.pool(), is_old, true).await;
    for (at, (name, steps)) in CASES.iter().enumerate() {
        let mut run = Run {
            through,
            steps: 0,
            pool: database.pool(),
            queue: format!("q{at}"),
            jobs: HashMap::new(),
            receipts: HashMap::new(),
            last: String::new(),
        };
        for (line, step) in steps.lines().enumerate() {
            let step = step.trim();
            let (what, expected) = match step.rsplit_once(" ->") {
                Some((what, expected)) => (what, Some(expected.trim())),
                None => (step, None),
            };
            let came = run.step(what).await;
            let as_expected = expected.is_none_or(|expected| {
                came == expected
                    || expected
                        .strip_prefix("error: ")
                        .is_some_and(|said| came.starts_with("error: ") && came.contains(said))
            });
            assert!(as_expected, "{name}\nline {}: {step}\ncame: {came}", line + 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cases_hold_in_sql() {
    run_the_cases(Through::Sql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cases_hold_through_both_in_turns() {
    run_the_cases(Through::Both).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cases_hold_through_the_library() {
    run_the_cases(Through::Library).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_refuses_what_no_job_can_be() {
    let database = database().await;
    for (arguments, message) in [
        ("null, '1'", "the queue is null"),
        ("'', '1'", "the queue is empty"),
        ("repeat('x', 201), '1'", "the queue has 201 characters, at most 200"),
        ("e'a\\nb', '1'", "the queue has a control character"),
        ("'q', '1', ''", "the group is empty"),
        ("'q', '1', repeat('x', 401)", "the group has 401 characters"),
        ("'q', null", "a job has data or a payload"),
        ("'q', '1', payload => 'x'", "a job has data or a payload"),
        ("'q', '1', content_type => 'text/plain'", "a content type only with a payload"),
        ("'q', '1', priority => 10", "the priority is 10"),
        ("'q', '1', max_attempts => 0", "max_attempts is 0"),
        ("'q', '1', delay => '-1 s'", "it must be from 0 to 100 years"),
        ("'q', '1', delay => '1 s', run_at => now()", "both delay and run_at"),
        ("'q', '1', run_at => 'infinity'", "run_at is infinity"),
        ("'q', '1', dedup_id => repeat('x', 129)", "the deduplication id has 129 characters"),
        ("'q', '1', unique_key => ''", "the unique key is empty"),
        (
            "'q', '1', unique_key => 'x', unique_mode => 'keep'",
            "the unique mode is keep, it must be",
        ),
        ("'q', '1', unique_key => 'x', unique_mode => null", "the unique mode is null"),
        (
            "'q', '1', unique_key => 'x', unique_scope => 'all'",
            "the unique scope is all, it must be",
        ),
        ("'q', '1', unique_key => 'x', unique_scope => 'group'", "the job has no group"),
        ("'q', '1', unique_key => 'x', dedup_id => 'y'", "a unique key and a deduplication id"),
    ] {
        let sql = format!("select * from seriatim.enqueue({arguments})");
        let error = sqlx::query(AssertSqlSafe(sql)).execute(database.pool()).await.unwrap_err();
        let text = said(error);
        assert!(text.contains(message), "{arguments}: {text}");
    }
    let too_far = format!("{}.00000000-0000-0000-0000-000000000000", 1_u64 << 63);
    for receipt in ["", "1", "1.2", "x.00000000-0000-0000-0000-000000000000", &too_far] {
        for call in ["ack(", "nack(", "extend(visibility => '1 s', receipt => "] {
            let sql = format!("select seriatim.{call}'{receipt}')");
            let error = sqlx::query(AssertSqlSafe(sql)).execute(database.pool()).await.unwrap_err();
            assert!(said(error).contains("not a receipt"));
        }
    }
    let jobs: i64 = jobs_where(database.pool(), "true").await;
    assert_eq!(jobs, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_enqueue_may_be_called_at_other_isolation_levels() {
    let database = database().await;
    for level in ["repeatable read", "serializable"] {
        let mut tx = database.pool().begin().await.unwrap();
        let set = format!("set transaction isolation level {level}");
        sqlx::query(AssertSqlSafe(set)).execute(&mut *tx).await.unwrap();
        for group in ["null", "'g'"] {
            let sql =
                format!("select * from seriatim.enqueue('q', '1', {group}, dedup_id => {group})");
            sqlx::query(AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
        }
        let error = Client::default().receive(&mut *tx, Receive::new("q")).await.unwrap_err();
        assert!(error.to_string().contains("receive needs READ COMMITTED"), "{error}");
        tx.rollback().await.unwrap();
        for (call, what) in [
            ("select seriatim.run_move_tasks()", "run_move_tasks needs"),
            ("select seriatim.abort(1)", "abort needs"),
            ("select seriatim.purge('q', everything => true)", "a purge of everything needs"),
        ] {
            let sql = format!("begin isolation level {level}; {call}");
            let mut conn = database.connect().await.unwrap();
            let error = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.unwrap_err();
            assert!(error.to_string().contains(what), "{call}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_enqueues_whatever_its_session_looks_like() {
    let database = database().await;
    by_hand(
        database.pool(),
        "create table orders (id int primary key, customer text);
         create function order_placed() returns trigger language plpgsql as $$ begin
           perform seriatim.enqueue('orders', to_jsonb(new), new.customer); return null; end $$;
         create trigger placed after insert on orders for each row execute function order_placed();",
    )
    .await;
    let mut conn = database.connect().await.unwrap();
    // A temporary table stands before others of its name, unless the functions see to it.
    for sql in
        ["create temporary table job (id int)", "insert into orders values (1, 'ann'), (2, 'ann')"]
    {
        sqlx::query(sql).execute(&mut conn).await.unwrap();
    }
    let received = Client::default().receive(&mut conn, Receive::new("orders").max(2)).await;
    let received = received.unwrap();
    // Without a group, the read of what waits reads that table too.
    seriatim::enqueue(&mut conn, NewJob::new("mails", &1)).await.unwrap();
    let orders: Vec<_> = received.iter().map(|job| job.data.clone()).collect();
    assert_eq!(orders, [1, 2].map(|id| json!({"id": id, "customer": "ann"})));
    assert!(received.iter().all(|job| job.group.as_deref() == Some("ann")));
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_as_they_were_given() {
    let database = database().await;
    let sql = "select id from seriatim.enqueue('q', null, payload => '\\x00ff', content_type => 'image/png', \
               name => 'thumbnail', reference => 'r-1')";
    let id: i64 = value(database.pool(), sql).await;
    let mut received = Client::default().receive(database.pool(), Receive::new("q")).await.unwrap();
    let job = received.remove(0);
    assert_eq!((job.id, job.receipt.job(), job.data), (id, id, Value::Null));
    assert_eq!(job.payload.as_deref(), Some(&[0, 255][..]));
    assert_eq!(job.content_type.as_deref(), Some("image/png"));
    assert_eq!(job.name.as_deref(), Some("thumbnail"));
    assert_eq!(job.reference.as_deref(), Some("r-1"));
    assert!(job.visible_until > job.enqueued_at);
    assert_eq!(job.key, format!("{id}-{}", job.enqueued_at.timestamp_micros()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_receipt_hurts_no_other() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, "select seriatim.enqueue('q', '1', 'g', attributes => '{\"a\": {}}')").await;
    let job = Client::default().receive(pool, Receive::new("q")).await.unwrap().remove(0);
    assert_eq!(job.attributes, Some(json!({"a": {}})));
    let odd = ["", "x", "99999999999999999999.3f0c1d9e-52a6-4a35-9c1b-0123456789ab"];
    let unknown = "999.3f0c1d9e-52a6-4a35-9c1b-0123456789ab";
    let receipts: Vec<Option<String>> = odd
        .into_iter()
        .chain([unknown])
        .map(|text| Some(text.to_owned()))
        .chain([None, Some(job.receipt.to_string())])
        .collect();
    let sql = "select array_agg(answer) from seriatim.ack_many($1)";
    let answers: Vec<String> =
        sqlx::query_scalar(sql).bind(&receipts).fetch_one(pool).await.unwrap();
    assert_eq!(answers, ["invalid", "invalid", "invalid", "stale", "invalid", "done"]);
    let none: i64 = value(pool, "select count(*) from seriatim.nack_many('{}')").await;
    assert_eq!(none, 0);
    // Released, an attempt is not held against its job, also behind another one.
    by_hand(pool, "select seriatim.enqueue('q', '1', 'h'), seriatim.enqueue('q', '2', 'h')").await;
    let jobs = Client::default().receive(pool, Receive::new("q").max(2)).await.unwrap();
    let receipts: Vec<String> = jobs.iter().map(|job| job.receipt.to_string()).collect();
    for expected in ["done", "stale"] {
        let sql = "select array_agg(answer) from seriatim.release_many($1)";
        let answers: Vec<String> =
            sqlx::query_scalar(sql).bind(&receipts).fetch_one(pool).await.unwrap();
        assert_eq!(answers, [expected; 2]);
    }
    let counted = "select array_agg(attempts - attempts_forgiven order by id) from seriatim.job \
         where seriatim.job_state(status, queue, group_id, id) = 'queued'";
    assert_eq!(value::<Vec<i32>>(pool, counted).await, [0, 0]);
    let many = "select count(*) from seriatim.ack_many(array_fill(''::text, array[1001]))";
    let error = sqlx::query(many).fetch_one(pool).await.unwrap_err();
    assert!(error.to_string().contains("at most 1000"), "{error}");
    let attributes = "select seriatim.enqueue('q', '1', attributes => '[]')";
    let error = sqlx::query(attributes).fetch_one(pool).await.unwrap_err();
    assert!(error.to_string().contains("no object"), "{error}");
}

/// A row of `job` without the columns that differ from enqueue to enqueue.
const AS_ENQUEUED: &str = "select to_jsonb(j) - '{id,created_at,turn_at,run_at,expires_at}'::text[] \
    || jsonb_build_object('due', round(extract(epoch from j.run_at - j.created_at)), \
      'expires', round(extract(epoch from j.expires_at - j.created_at))) from seriatim.job j order by j.id";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_as_json_is_the_job_that_the_library_enqueues() {
    let database = database().await;
    let pool = database.pool();
    let batch = Client::default().open_batch(pool, NewBatch::new("b", NewJob::new("q", &1))).await;
    let batch = batch.unwrap();
    let full = |job: NewJob| {
        let hour = Duration::from_hours(1);
        let job = job.group("g \u{1f600}").limit_key("k").name("n").reference("r").priority(7);
        let job = job
            .delay(hour)
            .time_to_live(2 * hour)
            .timeout(hour)
            .lease(Duration::from_millis(1_500));
        job.max_attempts(2).header("h", "\"x\"").batch(batch)
    };
    let at = Utc::now() + TimeDelta::days(3);
    let jobs = || {
        [
            full(
                NewJob::new("q", &json!({"a": [1, "\u{e9}", null]}))
                    .unique(Unique::until_end("u").in_group()),
            ),
            full(NewJob::bytes("q", "text/x", [0, 255, 10]).dedup_id("d")),
            NewJob::new("q", &json!(null)).run_at(at).expires_at(at + TimeDelta::days(1)),
            NewJob::new("q", &"same").dedup_by_content(),
            NewJob::new("q", &"same").dedup_by_content(),
        ]
    };
    let clear =
        "delete from seriatim.job; delete from seriatim.dedup; delete from seriatim.unique_key";
    let enqueued = seriatim::enqueue_many(pool, jobs()).await.unwrap();
    let by_library: Vec<Value> = sqlx::query_scalar(AS_ENQUEUED).fetch_all(pool).await.unwrap();
    sqlx::raw_sql(clear).execute(pool).await.unwrap();
    let by_json = "select id, duplicate from seriatim.enqueue_jobs($1::text::jsonb)";
    let json = serde_json::to_string(&jobs()).unwrap();
    let rows = sqlx::query(by_json).bind(json).fetch_all(pool).await.unwrap();
    assert_eq!(sqlx::query_scalar::<_, Value>(AS_ENQUEUED).fetch_all(pool).await.unwrap().len(), 4);
    let as_json: Vec<Value> = sqlx::query_scalar(AS_ENQUEUED).fetch_all(pool).await.unwrap();
    for (library, json) in by_library.iter().zip(&as_json) {
        // One statement flags the first job of a group, and `enqueue_jobs` each.
        let same = |job: &Value| {
            let mut job = job.clone();
            job["flagged"] = json!(null);
            job
        };
        assert_eq!(same(library), same(json));
    }
    let duplicates: Vec<bool> = rows.iter().map(|row| row.get(1)).collect();
    assert_eq!(duplicates, enqueued.iter().map(|job| job.is_duplicate()).collect::<Vec<_>>());
    assert!(serde_json::to_string(&NewJob::new("", &1)).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_jobs_of_a_call_are_enqueued_or_none() {
    let database = database().await;
    for (jobs, message) in [
        ("null", "the jobs must be an array or an object, and are null"),
        ("'7'", "the jobs must be an array or an object, and are number"),
        (
            "'[{\"queue\": \"q\", \"data\": 1}, 7]'",
            "job 2 of the call cannot be enqueued: a job must be an object",
        ),
        ("'{\"queue\": \"q\", \"data\": 1, \"grup\": 1}'", "it has \"grup\", which no job takes"),
        ("'{\"data\": 1}'", "job 1 of the call cannot be enqueued: the queue is null"),
        ("'[{\"queue\": \"q\", \"data\": 1}, {\"queue\": \"q\"}]'", "a job has data or a payload"),
        ("'{\"queue\": \"q\", \"data\": 1, \"lease_ms\": 1}'", "the lease is 00:00:00.001"),
        ("'{\"queue\": \"q\", \"data\": 1, \"timeout_ms\": 0}'", "the timeout is 00:00:00"),
        ("'{\"queue\": \"q\", \"data\": 1, \"batch\": 99}'", "batch"),
        (
            "'{\"queue\": \"q\", \"data\": 1, \"run_at\": \"2027-01-01T00:00:00\"}'",
            "run_at or expires_at has no offset from UTC",
        ),
        ("'{\"queue\": \"q\", \"data\": 1, \"expires_at\": \"tomorrow\"}'", "has no offset"),
        ("'{\"queue\": \"q\", \"data\": 1, \"time_to_live\": -5}'", "time_to_live is -5 s"),
        (
            "'{\"queue\": \"q\", \"data\": 1, \"time_to_live\": 5, \"expires_at\": \"2099-01-01T00:00:00Z\"}'",
            "both time_to_live and expires_at",
        ),
    ] {
        let sql = format!("select * from seriatim.enqueue_jobs({jobs})");
        let error = sqlx::query(AssertSqlSafe(sql)).execute(database.pool()).await.unwrap_err();
        let text = said(error);
        assert!(text.contains(message), "{jobs}: {text}");
    }
    assert_eq!(jobs_where(database.pool(), "true").await, 0);
    // A serializer may write null for what a job does not have.
    let nulls = "select count(*) from seriatim.enqueue_jobs('[{\"queue\": \"q\", \"data\": null, \"payload\": \"00\", \
                 \"headers\": null, \"attributes\": null, \"delay\": null, \"unique_mode\": null}]')";
    assert_eq!(value::<i64>(database.pool(), nulls).await, 1);
    let none = "select count(*) from seriatim.enqueue_jobs('[]')";
    assert_eq!(value::<i64>(database.pool(), none).await, 0);
}
