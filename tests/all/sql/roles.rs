//! The roles of `docs/roles.sql`: each can do its work, and nothing else.

use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::admin::{DedupScope, FailedFilter, GroupFilter, QueueSettings, Rate};
use seriatim::explain::Reason;
use seriatim::receive::Receive;
use seriatim::testing::{Jobs, TestDatabase};
use seriatim::{
    Client, ControlError, Hold, JobError, JobStatus, NewBatch, NewJob, OutOfAttempts, Processor,
    Retention, Schedule, Unique,
};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};

use crate::support::{
    Errors, PATIENCE, by_hand, chain, database, ended, enqueue, eventually, handler, job_of,
    job_when, jobs_where, operator, queue, sample, started, until_jobs, value,
};

const SQL: &str = include_str!("../../../docs/roles.sql");

const ROLES: [&str; 4] = ["producer", "worker", "observer", "operator"];

/// The roles, under names of this database's own: roles are the server's.
struct Roles<'a> {
    database: &'a TestDatabase,
    producer: PgPool,
    worker: PgPool,
    observer: PgPool,
    operator: PgPool,
}

impl<'a> Roles<'a> {
    async fn create(database: &'a TestDatabase) -> Self {
        let pool = database.pool();
        let sql = Self::named(database, SQL);
        by_hand(pool, &sql).await;
        by_hand(pool, &sql).await; // and again, as after a migration
        let login = |role: &str| {
            let user = Self::named(database, &format!("seriatim_{role}"));
            let login = format!("create role {user}_login login in role {user}");
            (login, format!("{user}_login"))
        };
        let mut pools = Vec::new();
        for role in ROLES {
            let (create, user) = login(role);
            by_hand(pool, create).await;
            let options = PgConnectOptions::from_str(&database.url()).unwrap().username(&user);
            pools.push(PgPoolOptions::new().max_connections(10).connect_lazy_with(options));
        }
        let [producer, worker, observer, operator] = pools.try_into().unwrap();
        Self { database, producer, worker, observer, operator }
    }

    fn named(database: &TestDatabase, sql: &str) -> String {
        ROLES.iter().fold(sql.to_owned(), |sql, role| {
            sql.replace(&format!("seriatim_{role}"), &format!("{}_{role}", database.name()))
        })
    }

    async fn remove(self) {
        // The operator is a member of the worker's, and that of the producer's.
        for (pool, role) in
            [self.producer, self.worker, self.observer, self.operator].into_iter().zip(ROLES)
        {
            pool.close().await;
            let role = Self::named(self.database, &format!("seriatim_{role}"));
            let drop = format!("drop role {role}_login; drop owned by {role}; drop role {role}");
            by_hand(self.database.pool(), drop).await;
        }
    }
}

/// Refused for want of a right.
async fn may_not(pool: &PgPool, statements: &[&str]) {
    for sql in statements {
        let refused = sqlx::raw_sql(AssertSqlSafe((*sql).to_owned())).execute(pool).await;
        let error = refused.expect_err(sql);
        let code = error.as_database_error().and_then(|error| error.code().map(String::from));
        assert_eq!(code.as_deref(), Some("42501"), "{sql}: {error}");
    }
}

fn is_denied(error: &dyn std::error::Error) {
    let words = chain(error);
    assert!(words.contains("permission denied"), "{words}");
}

/// Statements that none of the roles may run.
const OWNERS: [&str; 9] = [
    "create table seriatim.mine ()",
    "drop table seriatim.job",
    "truncate seriatim.job",
    "alter table seriatim.job add column mine int",
    "create or replace function seriatim.enqueue() returns int language sql as 'select 1'",
    "update seriatim.migration set version = 99",
    "update seriatim.operation set actor = 'another'",
    "delete from seriatim.operation",
    "select setval('seriatim.job_id_seq', 1)",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_may_only_enqueue() {
    let database = database().await;
    let (pool, client) = (database.pool(), Client::default());
    let by_group = QueueSettings::new("q").dedup_scope(DedupScope::Group);
    client.configure_queue(pool, by_group.delay(Duration::from_millis(1))).await.unwrap();
    let roles = Roles::create(&database).await;
    let producer = &roles.producer;
    client.migrate(producer).await.unwrap();

    // All that a job can have, in a transaction too, with a ready group and without one.
    let full = || {
        let job = job_of("q", "g", 1).name("n").reference("r").dedup_id("d").priority(3);
        let hour = Duration::from_hours(1);
        job.time_to_live(hour).timeout(hour).lease(hour).max_attempts(2)
    };
    let jobs =
        [full(), full(), NewJob::bytes("q", "x", [1]), NewJob::new("q", &1).dedup_by_content()];
    let enqueued = client.enqueue_many(producer, jobs).await.unwrap();
    assert_eq!(enqueued.iter().filter(|job| job.is_duplicate()).count(), 1);
    let mut tx = producer.begin().await.unwrap();
    client.enqueue(&mut *tx, job_of("other", "g", 1)).await.unwrap();
    tx.commit().await.unwrap();
    client.clone().notify(false).enqueue(producer, full().delay(Duration::ZERO)).await.unwrap();
    for sql in [
        "select seriatim.enqueue('q', '1', 'g')",
        "select seriatim.enqueue('q', '1', 'g', dedup_id => 'd2', reference => 'r', priority => 1, max_attempts => 1)",
        "select seriatim.enqueue('q', '1', 'g', dedup_id => 'd2')",
        "select seriatim.enqueue('q', '1', 'g', unique_key => 'k', unique_mode => 'replace')",
        "select seriatim.enqueue('q', '2', 'g', unique_key => 'k', unique_mode => 'replace')",
        "select seriatim.enqueue('q', '3', 'g', unique_key => 'k', unique_mode => 'replace')",
        "select seriatim.enqueue('ungrouped', null, payload => 'x', content_type => 'y', expires_at => now() + interval '1 h')",
    ] {
        sqlx::query(sql).execute(producer).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let unique = NewJob::new("q", &4).group("g").unique(Unique::replace("k"));
    assert!(client.enqueue(producer, unique).await.unwrap().is_duplicate());
    assert_eq!(jobs_where(pool, "true").await, 8);
    assert_eq!(jobs_where(pool, "data = '4' and replaced = 3").await, 1);
    // Not a job without the key, whatever it says whose key that is.
    for for_job in ["(select min(id) from seriatim.job)", "-1"] {
        let steal = format!(
            "select seriatim.claim_unique_key('q', null, 'evil', 'replace', 'queue', {for_job}, false, now(), \
             '\"stolen\"', null, null, null, null, null, null, null, null, null, null)"
        );
        sqlx::query(AssertSqlSafe(steal)).execute(producer).await.unwrap();
    }
    assert_eq!(jobs_where(pool, "data = '\"stolen\"'").await, 0);

    may_not(producer, &OWNERS).await;
    may_not(
        producer,
        &[
            "select data from seriatim.job",
            "select payload from seriatim.job",
            "select * from seriatim.job",
            "select result from seriatim.job",
            "select error, history from seriatim.job",
            "table seriatim.queue_group",
            "update seriatim.job set priority = 9",
            "update seriatim.dedup set dedup_id = 'x'",
            "delete from seriatim.job",
            "delete from seriatim.dedup",
            "table seriatim.unique_key",
            "select seriatim.lock_unbegun(1, 'q', 'k')",
            "insert into seriatim.job (queue, data, status) values ('q', '1', 'succeeded')",
            "insert into seriatim.job (queue, data, result) values ('q', '1', '1')",
            "insert into seriatim.job (queue, data) values ('q', '1') returning data",
            "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) values ('q', 'g', now(), 1)",
            "insert into seriatim.cancel_request (job_id) values (1)",
            "select seriatim.receive('q')",
            "select seriatim.ack('1.x')",
            "select seriatim.rest('1.x', now())",
            "select seriatim.hold_job(1, gen_random_uuid(), true)",
            "table seriatim.processor",
        ],
    )
    .await;
    is_denied(&client.job(producer, 1).await.unwrap_err());
    is_denied(&client.cancel(producer, 1).await.unwrap_err());
    is_denied(&operator().pause_queue(producer, "q").await.unwrap_err());
    is_denied(&client.receive(producer, Receive::new("q")).await.unwrap_err());
    roles.remove().await;
}

async fn work(roles: &Roles<'_>, hold: Hold) {
    let (pool, worker, client) = (roles.database.pool(), &roles.worker, Client::default());
    let errors = Errors::default();
    let run = || {
        handler(async |job, data| match data.as_str() {
            Some("error") if job.attempt() < 3 => Err(JobError::retry("again")),
            Some("fail") => Err(JobError::fail("no")),
            Some("enqueue") => {
                let next = job_of("q", "next", 1).dedup_id(format!("{}", job.id()));
                seriatim::enqueue(job.tx().await?, next).await?;
                Ok(Value::Null)
            }
            Some("slow") => {
                assert_eq!(job.last_checkpoint::<u32>().await.map_err(JobError::retry)?, None);
                job.progress(50, "slowly").map_err(JobError::retry)?;
                job.checkpoint(&1).await.map_err(JobError::retry)?;
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Value::Null)
            }
            Some("rest") => {
                let until = chrono::Utc::now() + Duration::from_secs(1);
                assert!(job.rest_group(until, "429").await?);
                job.rest_queue(until, "429").await?;
                Ok(Value::Null)
            }
            Some("stuck") => std::future::pending().await,
            _ => Ok(data),
        })
    };
    let builder = errors.of(Processor::builder(worker.clone()));
    let running = started(
        builder
            .poll_interval(Duration::from_millis(50))
            .maintenance_interval(Duration::from_millis(100))
            .slots(4)
            .queue(queue("q").hold(hold), run())
            .queue(queue("several").hold(hold).time_slice(Duration::from_secs(30)), run())
            .queue(queue("limited").hold(hold), run())
            .queue(queue("parks").hold(hold).out_of_attempts(OutOfAttempts::Park), run())
            .queue(queue("gone").hold(hold).keep_succeeded(Retention::Never), run())
            .queue(queue("short").hold(hold).keep_failed(Retention::For(Duration::ZERO)), run()),
    )
    .await;
    client.configure_queue(pool, QueueSettings::new("limited").in_flight_limit(1)).await.unwrap();
    operator().pause_group(pool, "q", "paused").await.unwrap();
    let mut ids = Vec::new();
    for queue in ["q", "several", "limited", "parks"] {
        for data in ["ok", "error", "slow", "rest", "enqueue", "fail", "ok"] {
            ids.push(enqueue(&roles.producer, queue, "g", data).await);
        }
        let ungrouped = NewJob::new(queue, "error");
        ids.push(client.enqueue(&roles.producer, ungrouped).await.unwrap().id());
    }
    let paused = enqueue(&roles.producer, "q", "paused", 1).await;
    let parked = ids.remove(3 * 8 + 6);
    let failed = ids[3 * 8 + 5];
    for id in ids {
        ended(pool, id).await;
    }
    job_when(pool, parked, |job| job.status == seriatim::JobStatus::Parked).await;
    operator().redrive_parked(worker, "parks", "g", None).await.unwrap();
    // It fails again.
    job_when(pool, failed, |job| job.attempts > 1 && job.status.is_final()).await;
    job_when(pool, parked, |job| job.status == seriatim::JobStatus::Parked).await;
    operator().discard_parked(worker, "parks", "g", None).await.unwrap();
    operator().resume_group(pool, "q", "paused").await.unwrap();
    ended(pool, paused).await;
    // Cancelled while it runs; one that is deleted as it ends, or soon after.
    let stuck = enqueue(&roles.producer, "q", "stuck", "stuck").await;
    job_when(pool, stuck, |job| job.status == seriatim::JobStatus::Started).await;
    client.cancel(worker, stuck).await.unwrap();
    client.explain_job(worker, stuck).await.unwrap().unwrap();
    enqueue(&roles.producer, "gone", "g", "ok").await;
    enqueue(&roles.producer, "short", "g", "fail").await;
    until_jobs(pool, "queue in ('gone', 'short')", 0).await;
    operator().release_node(worker, "nobody").await.unwrap();
    operator().redrive(worker, "q", 10).await.unwrap();
    operator().purge(worker, "q").await.unwrap();
    running.shutdown(Duration::from_secs(1)).await;
    let denied = errors.0.entries();
    let denied: Vec<_> = denied.iter().filter(|error| error.contains("denied")).collect();
    assert!(denied.is_empty(), "{denied:?}");
    assert_eq!(errors.named("Claim"), [""; 0]);
    assert_eq!(errors.named("Maintenance"), [""; 0]);
}

/// A worker's role reads settings, and stores none.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_starts_with_settings_that_are_stored_already() {
    let database = database().await;
    let roles = Roles::create(&database).await;
    let worker = &roles.worker;
    let settings =
        || QueueSettings::new("q").rate(Rate::per_second(50)).max_attempts(3).delay(None);
    let build = || {
        let builder = Processor::builder(worker.clone()).settings(settings());
        builder.queue(queue("q"), handler(async |_, data| Ok(data))).build().unwrap()
    };
    let refused = build().start().await.unwrap_err();
    assert!(chain(&refused).contains("permission denied"), "{refused:?}");
    Client::default().configure_queue(database.pool(), settings()).await.unwrap();
    build().start().await.unwrap().shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_may_run_jobs_and_change_nothing_else() {
    let database = database().await;
    let roles = Roles::create(&database).await;
    let (worker, client) = (&roles.worker, Client::default());
    client.migrate(worker).await.unwrap();
    for hold in sample([Hold::Transaction, Hold::Lease(Duration::from_mins(10))]) {
        work(&roles, hold).await;
    }

    // A receiver, through the library and in SQL.
    for _ in 0..3 {
        enqueue(worker, "hand", "g", 1).await;
    }
    let what = Receive::new("hand").attempt_id("a");
    let received = client.receive(worker, what).await.unwrap().remove(0);
    client.extend(worker, &received.receipt, Duration::from_mins(1)).await.unwrap();
    let soon = chrono::Utc::now() + Duration::from_secs(1);
    assert!(client.rest_group(worker, &received.receipt, soon, "429").await.unwrap());
    client.nack_with(worker, &received.receipt, Duration::ZERO, "no").await.unwrap();
    // The rest goes on for a moment.
    let rests = "select count(*) from seriatim.group_setting where paused_until > now()";
    eventually(worker, rests, 0_i64).await;
    for end in ["ack(receipt)", "nack(receipt)"] {
        let sql = format!("select seriatim.{end} from seriatim.receive('hand')");
        assert_eq!(value::<String>(worker, sql).await, "done");
    }
    client.run_maintenance(worker, queue("hand")).await.unwrap();
    assert!(!client.group_jobs(worker, "hand", "g", 10).await.unwrap().is_empty());

    may_not(worker, &OWNERS).await;
    may_not(
        worker,
        &[
            "update seriatim.queue set in_flight_limit = null",
            "delete from seriatim.queue",
            "insert into seriatim.queue (name) values ('mine')",
            "update seriatim.group_setting set paused_at = null",
            "delete from seriatim.group_setting",
            "insert into seriatim.key_limit (queue, limit_key, groups) values ('q', 't', 1)",
            "delete from seriatim.key_limit",
            "select seriatim.set_pause('q', null, 'mine', null, 1)",
            "select seriatim.set_pause('q', 'g', 'mine', null, 1)",
        ],
    )
    .await;
    is_denied(&operator().pause_group(worker, "q", "g").await.unwrap_err());
    is_denied(&operator().pause_queue(worker, "q").await.unwrap_err());
    is_denied(&client.configure_queue(worker, QueueSettings::new("q")).await.unwrap_err());
    let policy = operator().set_group_policy(worker, "q", "g", Some(OutOfAttempts::Halt)).await;
    is_denied(&policy.unwrap_err());
    is_denied(&operator().set_key_limit(worker, "q", "t", 1).await.unwrap_err());
    roles.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_sees_where_jobs_are_and_nothing_that_they_carry() {
    let database = database().await;
    let roles = Roles::create(&database).await;
    let (pool, observer, client) = (database.pool(), &roles.observer, Client::default());
    client.migrate(observer).await.unwrap();
    let id = enqueue(pool, "q", "g", json!("carried")).await;
    client.operator("test", "audit").pause_queue(pool, "q").await.unwrap();
    client.operator("test", "audit").pause_group(pool, "q", "g").await.unwrap();

    assert_eq!(client.counts(observer, "q").await.unwrap().queued, 1);
    assert!(client.paused_queue(observer, "q").await.unwrap().is_some());
    assert_eq!(client.paused_groups(observer, "q").await.unwrap().len(), 1);
    client.queue_settings(observer, "q").await.unwrap();
    let list = "select name, reference, status::text, attempts, run_at from seriatim.job where queue = 'q' order by id";
    assert_eq!(sqlx::query(list).fetch_all(observer).await.unwrap().len(), 1);

    may_not(observer, &OWNERS).await;
    let columns = ["data", "payload", "result", "job", "*"];
    for column in columns {
        may_not(observer, &[&format!("select {column} from seriatim.job")]).await;
    }
    may_not(
        observer,
        &[
            "select seriatim.enqueue('q', '1')",
            "select seriatim.receive('q')",
            "insert into seriatim.job (queue, data) values ('q', '1')",
            "update seriatim.job set priority = 9",
            "delete from seriatim.job",
            "update seriatim.queue set paused_at = null",
            "insert into seriatim.queue (name) values ('mine')",
            "insert into seriatim.operation (actor, action, affected) values ('me', 'x', 1)",
            "delete from seriatim.queue_group",
            "select nextval('seriatim.job_id_seq')",
            "table seriatim.dedup",
        ],
    )
    .await;
    // How far a job is, and not what it keeps for its next attempt.
    let far =
        "insert into seriatim.job_progress values ($1, 40, 'far', now(), '\"carried\"', now())";
    sqlx::query(far).bind(id).execute(pool).await.unwrap();
    let far = client.without_data().job(observer, id).await.unwrap().unwrap();
    assert_eq!(far.progress.unwrap().to_string(), "40 %, far");
    assert!(far.checkpoint_at.is_some());
    may_not(
        observer,
        &[
            "select checkpoint from seriatim.job_progress",
            "delete from seriatim.job_progress",
            "select seriatim.progress('1.2', 1)",
            "select seriatim.checkpoint('1.2', '1')",
        ],
    )
    .await;
    is_denied(&client.job(observer, id).await.unwrap_err());
    is_denied(&client.group_jobs(observer, "q", "g", 1).await.unwrap_err());
    is_denied(&client.jobs_by_reference(observer, "q", "r", 1).await.unwrap_err());
    is_denied(&client.cancel(observer, id).await.unwrap_err());
    is_denied(&operator().pause_queue(observer, "q").await.unwrap_err());

    let why = client.explain_job(observer, id).await.unwrap().unwrap().to_string();
    assert!(why.contains("audit") && !why.contains("carried"), "{why}");
    let bare = client.without_data();
    let seen = bare.job(observer, id).await.unwrap().unwrap();
    assert_eq!((seen.id, &seen.data, &seen.result), (id, &Value::Null, &None));
    assert_eq!(bare.group_jobs(observer, "q", "g", 1).await.unwrap(), [seen]);
    bare.jobs_by_reference(observer, "q", "r", 1).await.unwrap();
    assert_eq!(bare.job_status(&roles.producer, id).await.unwrap(), Some(JobStatus::Queued));
    bare.recent_jobs(observer, "q", "g", 1).await.unwrap();
    client.queues(observer).await.unwrap();
    client.groups(observer, "q", &GroupFilter::default()).await.unwrap();
    client.group(observer, "q", "g").await.unwrap();
    client.failed_jobs(observer, &FailedFilter::default()).await.unwrap();
    client.processors(observer).await.unwrap();
    client.operations(observer, None, 10).await.unwrap();
    client.job_status(observer, id).await.unwrap();
    client.explain_group(observer, "q", "g").await.unwrap();
    for view in ["queue_overview", "group_overview", "dead_letters", "stopped"] {
        by_hand(observer, format!("select * from seriatim.{view}")).await;
    }
    by_hand(observer, "select * from seriatim.explain(1), seriatim.counts('q')").await;
    may_not(&roles.producer, &["table seriatim.stopped", "table seriatim.dead_letters"]).await;
    may_not(
        observer,
        &["select seriatim.configure_queue('q', '{}')", "select seriatim.purge('q')"],
    )
    .await;
    assert!(client.halted_groups(observer, "q").await.unwrap().is_empty());
    assert!(client.parked_groups(observer, "q").await.unwrap().is_empty());
    roles.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_may_do_what_operators_do_and_cannot_unwrite_it() {
    let database = database().await;
    let roles = Roles::create(&database).await;
    let (pool, operator) = (database.pool(), &roles.operator);
    let ann = Client::default().operator("ann", "a test");
    let id = enqueue(pool, "q", "g", 1).await;
    ann.pause_queue(operator, "q").await.unwrap();
    ann.resume_queue(operator, "q").await.unwrap();
    ann.pause_group(operator, "q", "g").await.unwrap();
    ann.resume_group(operator, "q", "g").await.unwrap();
    ann.cancel(operator, id).await.unwrap();
    ann.retry(operator, id).await.unwrap();
    ann.run_now(operator, id).await.unwrap();
    ann.skip(operator, id).await.unwrap();
    ann.redrive(operator, "q", 10).await.unwrap();
    ann.skip(operator, id).await.unwrap();
    ann.redrive_jobs(operator, &[id]).await.unwrap();
    ann.skip(operator, id).await.unwrap();
    ann.discard_jobs(operator, &[id]).await.unwrap();
    ann.configure_queue(operator, QueueSettings::new("q").max_attempts(2)).await.unwrap();
    ann.set_group_policy(operator, "q", "g", Some(OutOfAttempts::Halt)).await.unwrap();
    ann.set_group_policy(operator, "q", "g", None).await.unwrap();
    ann.set_key_limit(operator, "q", "t", 0).await.unwrap();
    ann.set_key_limit(operator, "q", "t", None).await.unwrap();
    ann.purge(operator, "q").await.unwrap();
    ann.release_node(operator, "nobody").await.unwrap();
    assert!(matches!(
        ann.park_group(operator, "q", "g").await,
        Err(ControlError::NothingWaits { .. })
    ));
    by_hand(operator, "select seriatim.pause('q', 'g', 'in psql')").await;
    assert_eq!(ann.client().operations(operator, None, 100).await.unwrap().len(), 19);
    by_hand(
        operator,
        "select seriatim.configure_queue('q', '{\"delay\": null}'); \
         select seriatim.set_group_policy('q', 'g', 'halt'); select seriatim.purge('q', 'g'); \
         select seriatim.redrive_parked('q', 'g'); select seriatim.discard_parked('q', 'g'); \
         select seriatim.release_node('nobody'); select * from seriatim.stopped",
    )
    .await;
    assert!(ann.client().job(operator, id).await.unwrap().is_some());
    ann.client().explain_job(operator, id).await.unwrap().unwrap();
    may_not(operator, &OWNERS).await;

    // A job that a transaction of another role holds.
    let hangs = handler(async |_, _| std::future::pending().await);
    let hung = enqueue(pool, "owners", "g", 1).await;
    let running = Processor::builder(pool.clone()).queue(queue("owners"), hangs).build().unwrap();
    let running = running.start().await.unwrap();
    let held = async {
        loop {
            let why = ann.client().explain_job(pool, hung).await.unwrap().unwrap();
            if matches!(why.reason, Reason::Running { .. }) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, held).await.unwrap();
    let refused = ann.abort(operator, hung).await.unwrap_err();
    assert!(matches!(refused, ControlError::MayNotAbort { .. }), "{refused}");
    ann.abort(pool, hung).await.unwrap();
    running.shutdown(Duration::ZERO).await;
    roles.remove().await;
}

/// Without `pg_read_all_stats` a role sees that a session of another has a lock, and not since
/// when.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_role_is_told_to_observers_and_operators() {
    let database = database().await;
    let roles = Roles::create(&database).await;
    let (pool, client) = (database.pool(), Client::default());
    let id = enqueue(pool, "q", "g", 1).await;
    let mut other = pool.begin().await.unwrap();
    let lock = "select pg_backend_pid() from seriatim.job where id = $1 for update";
    let pid: i32 = sqlx::query_scalar(lock).bind(id).fetch_one(&mut *other).await.unwrap();
    for role in [&roles.observer, &roles.operator] {
        let seen = client.explain_job(role, id).await.unwrap().unwrap();
        let Reason::Locked { session, .. } = &seen.reason else { panic!("{seen}") };
        assert_eq!((session.pid, session.transaction_start), (pid, None));
        let sentence = seen.to_string();
        let words = format!("a transaction has its row or its group's: database session {pid}");
        assert!(sentence.contains(&words), "{sentence}");
        assert!(!sentence.contains("privilege"), "{sentence}");
        let sql = format!("select reason || ' ' || (since is null) from seriatim.explain({id})");
        assert_eq!(value::<String>(role, sql).await, "locked true");
    }
    other.rollback().await.unwrap();
    let seen = client.explain_job(&roles.observer, id).await.unwrap().unwrap();
    assert!(matches!(seen.reason, Reason::NotAdopted { .. }), "{seen}");
    roles.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_opens_batches_a_worker_ends_them_and_an_observer_sees_no_data() {
    let database = database().await;
    let roles = Roles::create(&database).await;
    let (producer, worker, client) = (&roles.producer, &roles.worker, Client::default());
    let open = async |pool: &PgPool| {
        client.open_batch(pool, NewBatch::new("b", job_of("after", "g", "carried"))).await
    };
    let batch = open(producer).await.unwrap();
    client.enqueue(producer, job_of("q", "g", 1).batch(batch)).await.unwrap();
    assert!(client.seal_batch(producer, batch).await.unwrap());
    assert!(!client.seal_batch(producer, batch).await.unwrap());
    let others = [
        "select job from seriatim.batch",
        "select * from seriatim.batches()",
        "select * from seriatim.batch_jobs(1)",
        "select * from seriatim.end_batches()",
        "select seriatim.abandon_batch(1)",
        "update seriatim.batch set ended_at = now()",
    ];
    may_not(producer, &others).await;

    let run = handler(async |_, data| Ok(data));
    Jobs::new(worker).drain(queue("q"), run).await.unwrap();
    assert_eq!(client.end_batches(worker).await.unwrap(), 1);
    assert_eq!(client.batch_jobs(worker, batch, None).await.unwrap().len(), 1);
    client.run_maintenance(worker, queue("q")).await.unwrap();
    let abandoned = open(worker).await.unwrap();
    assert!(operator().abandon_batch(worker, abandoned).await.unwrap());

    let seen = client.batches(&roles.observer, None, false).await.unwrap();
    assert_eq!(seen.iter().map(|batch| batch.id).collect::<Vec<_>>(), [abandoned, batch]);
    assert_eq!(client.batch(&roles.observer, batch).await.unwrap().unwrap().succeeded.count, 1);
    let bare = client.without_data();
    let bare = bare.batch_jobs(&roles.observer, batch, None).await.unwrap();
    assert_eq!((bare.len(), &bare[0].result), (1, &None));
    let data = [
        "select job from seriatim.batch",
        "select * from seriatim.batch_jobs(1)",
        "select result from seriatim.batch_end",
        "select seriatim.seal_batch(1)",
        "select seriatim.abandon_batch(1)",
    ];
    may_not(&roles.observer, &data).await;
    is_denied(&open(&roles.observer).await.unwrap_err());
    roles.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_stores_and_fires_schedules_and_an_observer_sees_all_but_their_data() {
    let database = database().await;
    let roles = Roles::create(&database).await;
    let (worker, client) = (&roles.worker, Client::default());
    let secs = Duration::from_secs(1);
    let set = async |pool: &PgPool, name: &str| {
        let schedule = Schedule::every(name, secs).job(job_of("q", "g", "carried"));
        let mut conn = pool.acquire().await.unwrap();
        operator().set_schedule(&mut conn, schedule).await
    };
    let next = set(worker, "s").await.unwrap().unwrap();
    // Its first time may have passed before it was stored.
    assert_eq!(Jobs::new(worker).fire_schedules(next + secs).await.unwrap(), 1);
    operator().pause_schedule(worker, "s").await.unwrap();
    operator().fire_schedule(worker, "s").await.unwrap();
    operator().resume_schedule(worker, "s").await.unwrap();
    client.fire_schedules(worker).await.unwrap();
    is_denied(&operator().remove_schedule(worker, "s").await.unwrap_err());
    is_denied(&set(&roles.producer, "t").await.unwrap_err());
    is_denied(&operator().fire_schedule(&roles.producer, "s").await.unwrap_err());

    let seen = client.schedules(&roles.observer, None).await.unwrap();
    assert_eq!(seen.len(), 1);
    client.schedule(&roles.observer, "s").await.unwrap().unwrap();
    let job =
        ["select job from seriatim.schedule", "update seriatim.schedule set paused_at = null"];
    may_not(&roles.observer, &job).await;
    is_denied(&operator().pause_schedule(&roles.observer, "s").await.unwrap_err());
    operator().remove_schedule(&roles.operator, "s").await.unwrap();
    roles.remove().await;
}
