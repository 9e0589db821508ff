//! Hostile texts in every place that takes one: each is refused with words that help, and nothing
//! is written; or it goes through the whole life of a job unchanged. `SERIATIM_TEST_HOSTILE=1000`
//! tries more of them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use seriatim::admin::{Cancelled, QueueSettings};
use seriatim::receive::Receive;
use seriatim::testing::TestDatabase;
use seriatim::{
    Client, ControlError, Hold, Job, JobError, JobStatus, NewJob, OutOfAttempts, QueueOptions,
    Retention,
};
use sqlx::{PgPool, Row};

use crate::sql::migrate::TABLES;
use crate::support::{
    chain, database, enqueue, handler_with, job, job_when, jobs_where, operator, processor, queue,
    size, started, value,
};

mod texts;

use texts::{fits, kept};
pub use texts::{generate, text};

#[derive(Debug, Clone)]
struct Case {
    queue: String,
    group: String,
    name: String,
    reference: String,
    dedup: String,
    /// A reason, an error, a result.
    said: String,
    by_sql: bool,
}

impl Case {
    fn is_good(&self) -> bool {
        let names = [(&self.queue, 200), (&self.group, 400), (&self.name, 200)];
        let ids = [(&self.reference, 400), (&self.dedup, 128)];
        names.into_iter().chain(ids).all(|(text, limit)| fits(text, limit))
    }

    /// Enqueues a job of a kind. Returns an error in its words.
    async fn enqueue(&self, pool: &PgPool, kind: &str, dedup: bool) -> Result<i64, String> {
        let data = json!({ "kind": kind, "said": kept(&self.said) });
        let attempts: i32 = if kind == "by hand" { 2 } else { 1 };
        if self.by_sql {
            let enqueue = "select id from seriatim.enqueue($1, $2, $3, name => $4, reference => $5, dedup_id => $6, \
                           max_attempts => $7)";
            let enqueue =
                sqlx::query_scalar(enqueue).bind(&self.queue).bind(data).bind(&self.group);
            let enqueue = enqueue.bind(&self.name).bind(&self.reference);
            let enqueue = enqueue.bind(dedup.then_some(&self.dedup)).bind(attempts).fetch_one(pool);
            return enqueue.await.map_err(|error| chain(&error));
        }
        let mut new = NewJob::new(&self.queue, &data).group(&self.group).name(&self.name);
        new = new.reference(&self.reference).max_attempts(attempts.unsigned_abs());
        if dedup {
            new = new.dedup_id(&self.dedup);
        }
        let enqueued = seriatim::enqueue(pool, new).await;
        enqueued.map(seriatim::Enqueued::id).map_err(|error| chain(&error))
    }

    fn echo(&self) -> Value {
        json!([self.queue, self.group, self.name, self.reference])
    }

    fn check(&self, job: &Job) {
        let names = [&job.group, &job.name, &job.reference].map(|text| text.as_deref().unwrap());
        assert_eq!(names, [&*self.group, &*self.name, &*self.reference], "{self:?}");
        assert_eq!(job.queue, self.queue);
        assert_eq!(job.data["said"], kept(&self.said), "{self:?}");
    }
}

/// Different queues each, for one processor runs them all.
fn cases() -> Vec<Case> {
    let count = std::env::var("SERIATIM_TEST_HOSTILE");
    let count = count.map_or_else(|_| size(14, 32), |n| n.parse().unwrap());
    let texts = (text(200), text(400), text(200), text(400), text(128), text(300), any::<bool>());
    let mut cases: Vec<Case> = generate(&texts, count)
        .into_iter()
        .map(|(queue, group, name, reference, dedup, said, by_sql)| Case {
            queue,
            group,
            name,
            reference,
            dedup,
            said,
            by_sql,
        })
        .collect();
    let mut queues = HashSet::new();
    cases.retain(|case| queues.insert(case.queue.clone()));
    cases
}

async fn jobs_there(pool: &PgPool) -> i64 {
    jobs_where(pool, "true").await
}

/// Refused with words, and nothing is there; or three jobs, of which the first is there once.
async fn enqueue_all(pool: &PgPool, case: &Case) -> Option<[i64; 3]> {
    let before = jobs_there(pool).await;
    let first = case.enqueue(pool, "echo", true).await;
    if !case.is_good() {
        let words = first.expect_err("it has a bad name");
        let helps = ["is empty", "at most", "control character", "0x00"];
        assert!(helps.iter().any(|help| words.contains(help)), "{case:?}: {words}");
        assert_eq!(jobs_there(pool).await, before, "{case:?}");
        return None;
    }
    let ids = [
        first.unwrap(),
        case.enqueue(pool, "fail", false).await.unwrap(),
        case.enqueue(pool, "panic", false).await.unwrap(),
    ];
    assert_eq!(case.enqueue(pool, "echo", true).await, Ok(ids[0]), "a duplicate");
    assert_eq!(jobs_there(pool).await, before + 3);
    Some(ids)
}

async fn look_and_ask(pool: &PgPool, case: &Case, ids: [i64; 3]) {
    let client = Client::default();
    let Case { queue, group, reference, said, .. } = case;
    case.check(&job(pool, ids[0]).await);
    let found = client.jobs_by_reference(pool, queue, reference, 10).await.unwrap();
    assert_eq!(found.iter().rev().map(|job| job.id).collect::<Vec<_>>(), ids);
    for job in &found {
        case.check(job);
    }
    assert_eq!(client.group_jobs(pool, queue, group, 10).await.unwrap().len(), 3);
    assert_eq!(client.counts(pool, queue).await.unwrap().queued, 3);
    client.configure_queue(pool, QueueSettings::new(queue)).await.unwrap();
    operator().set_group_policy(pool, queue, group, Some(OutOfAttempts::Continue)).await.unwrap();

    for of_group in [true, false] {
        let paused = if of_group {
            client.operator("test", said.as_str()).pause_group(pool, queue, group).await
        } else {
            client.operator("test", said.as_str()).pause_queue(pool, queue).await
        };
        if said.contains('\0') {
            assert!(matches!(paused, Err(ControlError::Name(_))), "{paused:?}");
            continue;
        }
        paused.unwrap();
        let why = client.explain_job(pool, ids[0]).await.unwrap().unwrap().to_string();
        assert!(why.contains("paused"), "{why}");
        client.explain_group(pool, queue, group).await.unwrap();
        let reason = if of_group {
            let seen = client.paused_groups(pool, queue).await.unwrap().remove(0);
            operator().resume_group(pool, queue, group).await.unwrap();
            assert_eq!(&seen.group, group);
            seen.reason
        } else {
            let seen = client.paused_queue(pool, queue).await.unwrap().unwrap();
            operator().resume_queue(pool, queue).await.unwrap();
            seen.reason
        };
        assert_eq!(reason.as_deref(), Some(&**said));
    }
    let fourth = case.enqueue(pool, "echo", false).await.unwrap();
    assert_eq!(client.cancel(pool, fourth).await.unwrap(), Cancelled::Now);
    operator().release_node(pool, &kept(said)).await.unwrap();
}

/// Received, given back with an error, received again and acked with a result, by SQL or by the
/// library.
async fn by_hand(pool: &PgPool, case: &Case) {
    let client = Client::default();
    let Case { queue, group, said, .. } = case;
    let id = case.enqueue(pool, "by hand", false).await.unwrap();
    if case.by_sql {
        let said = kept(said);
        for call in [
            "select seriatim.nack(receipt, '0', error => $3) from seriatim.receive($1, 1, group_id => $2)",
            "select seriatim.ack(receipt, to_jsonb($3)) from seriatim.receive($1, 1, group_id => $2)",
        ] {
            let call = sqlx::query(call).bind(queue).bind(group).bind(&said);
            assert_eq!(call.fetch_one(pool).await.unwrap().get::<String, _>(0), "done");
        }
    } else {
        let receive = || Receive::new(queue).group(group).attempt_id(format!("{id}{}", kept(said)));
        let bad = receive().attempt_id("a\0");
        assert!(chain(&client.receive(pool, bad).await.unwrap_err()).contains("NUL"));
        let attempt_id_fits = fits(&format!("{id}{}", kept(said)), 128);
        let received = client.receive(pool, receive()).await;
        assert_eq!(received.is_ok(), attempt_id_fits, "{received:?}");
        let receive = || Receive::new(queue).group(group);
        let received = match received {
            Ok(mut received) => received.remove(0),
            Err(_) => client.receive(pool, receive()).await.unwrap().remove(0),
        };
        assert_eq!(
            (&received.group, &received.data["said"]),
            (&Some(group.clone()), &json!(kept(said)))
        );
        client.nack_with(pool, &received.receipt, Duration::ZERO, said).await.unwrap();
        let again = client.receive(pool, receive()).await.unwrap().remove(0);
        let refused = client.ack_with(pool, &again.receipt, "\0").await.unwrap_err();
        assert!(chain(&refused).contains("NUL"), "{refused}");
        client.ack_with(pool, &again.receipt, &kept(said)).await.unwrap();
    }
    let job = job(pool, id).await;
    assert_eq!((job.status, job.result), (JobStatus::Succeeded, Some(json!(kept(said)))));
    assert_eq!(job.history[0].message.as_deref(), Some(&*kept(said)), "{case:?}");
}

/// Each of the cases echoes, fails, panics; and echoes when it is run again.
async fn run(database: &TestDatabase, hold: Hold, cases: &[(Case, [i64; 3])]) {
    let pool = database.pool();
    let said: HashMap<String, String> =
        cases.iter().map(|(case, _)| (case.queue.clone(), case.said.clone())).collect();
    let mut running = processor(database, 20).await.slots(4).node(&cases[0].0.queue);
    for (n, (case, _)) in cases.iter().enumerate() {
        let run = handler_with(said.clone(), async |said, job, data| {
            let said = said[job.queue()].clone();
            let echo = json!([job.queue(), job.group(), job.name(), job.reference()]);
            match data["kind"].as_str().filter(|_| job.attempt() == 1) {
                Some("fail") => Err(JobError::fail(said)),
                Some("panic") => panic!("{said}"),
                _ => Ok(echo),
            }
        });
        running = running.queue(
            queue(&case.queue)
                .concurrency(1)
                .hold(hold)
                .time_slice(Duration::from_secs(n as u64 % 2)),
            run,
        );
    }
    let _running = started(running).await;
    for (case, [echoed, failed, panicked]) in cases {
        let done = job_when(pool, *echoed, |job| job.status.is_final()).await;
        case.check(&done);
        assert_eq!((done.status, done.result), (JobStatus::Succeeded, Some(case.echo())));
        for id in [*failed, *panicked] {
            let dead = job_when(pool, id, |job| job.status.is_final()).await;
            case.check(&dead);
            assert_eq!(dead.error.unwrap().message, kept(&case.said), "{case:?}");
        }
        let redriven = operator().redrive(pool, &case.queue, 10).await.unwrap();
        assert_eq!(redriven.jobs, 2);
        for id in [*failed, *panicked] {
            let done = job_when(pool, id, |job| job.status == JobStatus::Succeeded).await;
            assert_eq!(done.result, Some(case.echo()));
        }
    }
}

async fn live(hold: Hold) {
    let database = database().await;
    let pool = database.pool();
    let stranger = enqueue(pool, "stranger", "g", "untouched").await;
    let mut accepted = Vec::new();
    for case in cases() {
        if let Some(ids) = enqueue_all(pool, &case).await {
            look_and_ask(pool, &case, ids).await;
            accepted.push((case, ids));
        }
    }
    assert!(accepted.len() > size(2, 5), "only {} are good", accepted.len());

    for some in accepted.chunks(12) {
        run(&database, hold, some).await;
    }
    for (case, _) in &accepted {
        by_hand(pool, case).await;
        // Three that ran, one that was cancelled, one that was received.
        let now = Retention::For(Duration::ZERO);
        let over = QueueOptions::new(&case.queue).keep_succeeded(now).keep_cancelled(now);
        assert_eq!(Client::default().run_maintenance(pool, over).await.unwrap(), 5, "{case:?}");
    }
    nothing_else_happened(&database, stranger).await;
}

/// Every table is there, and nothing but the stranger's job.
pub async fn nothing_else_happened(database: &TestDatabase, stranger: i64) {
    let pool = database.pool();
    let tables = "select count(*) from pg_class where relnamespace = 'seriatim'::regnamespace and relkind = 'r'";
    assert_eq!(usize::try_from(value::<i64>(pool, tables).await), Ok(TABLES.len()));
    assert_eq!(jobs_there(pool).await, 1);
    let stranger = job(pool, stranger).await;
    assert_eq!((stranger.data, stranger.attempts), (json!("untouched"), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_texts_go_through_a_jobs_life_under_a_transaction() {
    live(Hold::Transaction).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_texts_go_through_a_jobs_life_under_a_lease() {
    live(Hold::Lease(Duration::from_mins(10))).await;
}
