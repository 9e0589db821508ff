//! `seriatim doctor`.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use seriatim::testing::TestDatabase;
use seriatim::{
    ActiveJob, Hold, JobError, JobHandler, JobKind, Kinds, Processor, QueueOptions, RetryPolicy,
    async_trait,
};
use sqlx::postgres::PgConnectOptions;
use tokio::process::Command;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::support::{Cli, DONE, ERROR, PATIENCE, REFUSED, dead_letters, ran};

/// Runs until its test lets it end.
struct Hangs {
    began: Arc<Notify>,
    ended: Arc<Notify>,
}

#[async_trait]
impl JobHandler for Hangs {
    type Data = serde_json::Value;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, _: serde_json::Value) -> Result<(), JobError> {
        self.began.notify_one();
        self.ended.notified().await;
        Ok(())
    }
}

#[tokio::test]
async fn doctor_finds_what_is_wrong_and_says_what_mends_it() {
    let cli = Cli::new().await;
    let fine = cli.ends(DONE, &["doctor"]).await;
    for check in ["clock", "pooler", "wake-ups", "vacuum horizon", "rights", "dead rows"] {
        assert!(fine.out.contains(&format!("ok       {check}: ")), "{check}: {}", fine.out);
    }

    // Due for long, and nobody serves the queue.
    let pool = cli.database.pool();
    let id = cli.enqueue("ann").await;
    let long_ago = "update seriatim.job set run_at = now() - interval '1 h', turn_at = now() - interval '1 h' where id = $1";
    sqlx::query(long_ago).bind(id).execute(pool).await.unwrap();
    sqlx::raw_sql("drop function seriatim.this_server()").execute(pool).await.unwrap();
    let wrong = ran(cli.command(&["doctor", "--json"]).output().await.unwrap());
    assert_eq!(wrong.code, ERROR, "{}", wrong.err);
    let findings = wrong.json();
    let of = |check: &str| {
        let found = findings.iter().find(|finding| finding["check"] == check);
        found.unwrap_or_else(|| panic!("{check}: {findings:?}"))
    };
    assert_eq!(of("schema")["level"], "problem");
    assert!(of("schema")["sentence"].as_str().unwrap().contains("this_server"), "{findings:?}");
    assert_eq!(of("processors")["level"], "problem");
    assert!(of("processors")["sentence"].as_str().unwrap().contains("no living processor"));
    assert!(of("processors")["mend"].is_string());
    cli.remove().await;
}

#[tokio::test]
async fn doctor_names_options_that_do_not_count() {
    let cli = Cli::new().await;
    let pool = cli.database.pool();
    let settings = "select seriatim.configure_queue('orders', '{\"max_attempts\": 3}')";
    sqlx::query(settings).execute(pool).await.unwrap();
    let said = "insert into seriatim.processor (id, node, server_started_at, queues, policies) \
        values (1, 'web-1', now(), '{orders}', '{\"orders\": {\"max_attempts\": 5, \"backoff\": \"1000 ms\"}}')";
    sqlx::query(said).execute(pool).await.unwrap();
    let found = cli.ends(DONE, &["doctor"]).await;
    let note = "note     policies: queue \"orders\": the processor on node \"web-1\" says max_attempts 5, \
        the queue's settings say 3 and count";
    assert!(found.out.contains(note), "{}", found.out);
    let mend = "-> seriatim configure orders --max-attempts default";
    assert!(found.out.contains(mend), "{}", found.out);
    cli.remove().await;
}

#[tokio::test]
async fn doctor_names_a_job_that_has_run_for_more_than_half_of_its_timeout() {
    let cli = Cli::new().await;
    let pool = cli.database.pool();
    let id = cli.enqueue("ann").await;
    let (began, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let hangs = Hangs { began: Arc::clone(&began), ended: Arc::clone(&ended) };
    // Its group's row is not locked: so the test can move the start.
    let hold = Hold::Lease(Duration::from_mins(10));
    let options = QueueOptions::new("orders").timeout(Duration::from_mins(5)).hold(hold);
    let processor = Processor::builder(pool.clone()).queue(options, hangs).build().unwrap();
    let running = processor.start().await.unwrap();
    began.notified().await;
    let fine = cli.ends(DONE, &["doctor"]).await.out;
    assert!(fine.contains("ok       running jobs: "), "{fine}");
    let groups = cli.ends(DONE, &["groups", "orders"]).await.out;
    assert!(groups.contains("s of 5 min"), "{groups}");
    let earlier = "update seriatim.queue_group set started_at = started_at - interval '3 min'";
    sqlx::raw_sql(earlier).execute(pool).await.unwrap();
    let found = cli.ends(DONE, &["doctor"]).await.out;
    let note = format!(
        "running jobs: job {id} of group \"ann\" of queue \"orders\" has run for 3 min of 5 min"
    );
    assert!(found.contains(&note), "{found}");
    assert!(found.contains(&format!("seriatim job abort {id}")), "{found}");
    cli.ends(DONE, &["pause", "orders", "ann", "--reason", "their audit"]).await;
    let groups = cli.ends(DONE, &["groups", "orders"]).await.out;
    assert!(groups.contains("for 3 min of 5 min, paused too: their audit"), "{groups}");
    ended.notify_one();
    running.shutdown(PATIENCE).await;
    cli.remove().await;
}

#[tokio::test]
async fn doctor_finds_a_failed_batch_and_a_late_schedule_among_many() {
    let cli = Cli::new().await;
    let many = "
        insert into seriatim.batch (id, name, starts_when, queue, job, sealed_at, failed_at)
          values (1, 'failed', 'all_succeeded', 'q', '{}', now(), now());
        insert into seriatim.batch_end (batch_id, job_id, queue, status, ended_at)
          values (1, 1, 'q', 'failed', now());
        insert into seriatim.batch (id, name, starts_when, queue, job)
          select i, 'open', 'all_succeeded', 'q', '{}' from generate_series(2, 10001) i;
        insert into seriatim.schedule (name, queue, job, kind, spec, missed, next_fire)
          select 'a' || i, 'q', '{}', 'every', '60', 'last', now() + interval '1 h'
          from generate_series(1, 10000) i;
        insert into seriatim.schedule (name, queue, job, kind, spec, missed, next_fire)
          values ('late', 'q', '{}', 'every', '60', 'last', now() - interval '1 h')";
    sqlx::raw_sql(many).execute(cli.database.pool()).await.unwrap();
    let found = cli.ends(ERROR, &["doctor"]).await.out;
    assert!(found.contains("batches: Batch 1, \"failed\", has failed"), "{found}");
    assert!(found.contains("schedules: schedule \"late\" has been due for"), "{found}");
    cli.remove().await;
}

#[tokio::test]
async fn doctor_takes_a_dead_letter_queue_for_what_it_is() {
    let cli = Cli::new().await;
    dead_letters(&cli).await;
    let long_ago =
        "update seriatim.job set run_at = now() - interval '1 h', turn_at = now() - interval '1 h'";
    sqlx::query(long_ago).execute(cli.database.pool()).await.unwrap();
    let found = cli.ends(DONE, &["doctor"]).await;
    let note = "note     processors: dead letters of queue \"orders\" wait in queue \"dead\"";
    assert!(found.out.contains(note), "{}", found.out);
    assert!(found.out.contains("-> seriatim dead-letters orders"), "{}", found.out);
    cli.remove().await;
}

#[tokio::test]
async fn doctor_takes_a_queue_for_served_between_two_polls() {
    let cli = Cli::new().await;
    cli.enqueue("ann").await;
    let pool = cli.database.pool();
    let polled = async |ago: &str| {
        let polled = format!(
            "delete from seriatim.receiver;
             insert into seriatim.receiver (queue, asked_at) values ('orders', now() - interval '{ago}');
             update seriatim.job set run_at = now() - interval '1 h', turn_at = now() - interval '1 h'"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(polled)).execute(pool).await.unwrap();
        cli.run(&["doctor"]).await.out
    };
    let found = polled("4 min").await;
    assert!(found.contains("ok       processors: "), "{found}");
    let found = polled("6 min").await;
    assert!(found.contains("no living processor or receiver serves it"), "{found}");
    assert!(found.contains("in the last 5 minutes"), "{found}");
    cli.remove().await;
}

#[tokio::test]
async fn doctor_needs_no_schema() {
    let cli = Cli::new().await;
    let other = ["--schema", "it's other"];
    let missing = cli.ends(ERROR, &[&other[..], &["doctor"]].concat()).await;
    let migrate = r"seriatim --schema 'it'\''s other' migrate";
    assert!(missing.out.contains(&format!("-> {migrate}\n")), "{}", missing.out);
    // Advice keeps the schema, of this program and of the library.
    let check = cli.ends(REFUSED, &[&other[..], &["migrate", "--check"]].concat()).await;
    assert!(check.err.contains(migrate), "{}", check.err);
    cli.ends(DONE, &[&other[..], &["migrate"]].concat()).await;
    cli.ends(DONE, &[&other[..], &["enqueue", "orders", "--group", "ann"]].concat()).await;
    cli.ends(DONE, &[&other[..], &["pause", "orders", "ann"]].concat()).await;
    let lane = cli.ends(DONE, &[&other[..], &["lane", "orders", "ann"]].concat()).await;
    let resume = r"`seriatim --schema 'it'\''s other' resume orders ann`";
    assert!(lane.out.contains(resume), "{}", lane.out);
    cli.remove().await;
}

#[tokio::test]
async fn doctor_tells_a_role_what_it_may_not_do() {
    let cli = Cli::new().await;
    let role = format!("cli_{}", cli.database.name());
    let make = format!("create role {role} login; grant usage on schema seriatim to {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(make)).execute(cli.database.pool()).await.unwrap();
    let url = cli.database.url().replace("://postgres@", &format!("://{role}@"));
    if cli.database.server().is_private() {
        let asked = ran(cli.command(&["doctor"]).env("DATABASE_URL", &url).output().await.unwrap());
        assert!(asked.out.contains("may not see jobs"), "{}{}", asked.out, asked.err);
        // Without a look at the tables there is nothing to call fine.
        assert_eq!(asked.code, ERROR, "{}", asked.out);
        let refused =
            ran(cli.command(&["queues"]).env("DATABASE_URL", url).output().await.unwrap());
        assert_eq!(refused.code, REFUSED, "{}", refused.err);
        assert!(refused.err.contains("docs/roles.sql"), "{}", refused.err);
    }
    let server = cli.database.server().clone();
    cli.remove().await;
    let other = TestDatabase::create_on(&server).await.unwrap();
    let drop = format!("drop role {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(other.pool()).await.unwrap();
    other.remove().await.unwrap();
}

/// Without a PgBouncer here it is skipped.
#[tokio::test]
async fn doctor_sees_a_transaction_pooler() {
    let cli = Cli::new().await;
    if !cli.database.server().is_private() {
        return cli.remove().await;
    }
    let server: PgConnectOptions = cli.database.url().parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = folder.path().join("pgbouncer.ini");
    let text = format!(
        "[databases]\n* = host={} port={} user={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
         default_pool_size = 4\nignore_startup_parameters = extra_float_digits\n",
        server.get_host(),
        server.get_port(),
        server.get_username(),
    );
    std::fs::write(&settings, text).unwrap();
    let folder_is_seen = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), folder_is_seen).unwrap();
    let mut pooler = Command::new("pgbouncer");
    // It refuses to run as root.
    pooler.arg("-u").arg("nobody").arg(&settings).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut pooler) = pooler.kill_on_drop(true).spawn() else {
        println!("skipped: there is no pooler here");
        return cli.remove().await;
    };
    let url =
        format!("postgres://postgres@127.0.0.1:{port}/{}?sslmode=disable", cli.database.name());
    let through = async |args: &[&str]| {
        ran(cli.command(args).env("DATABASE_URL", &url).output().await.unwrap())
    };
    let deadline = Instant::now() + PATIENCE;
    let mut reached = false;
    while !reached && Instant::now() < deadline && pooler.try_wait().unwrap().is_none() {
        reached = through(&["migrate", "--check"]).await.code == DONE;
    }
    if !reached {
        println!("skipped: the pooler does not run here");
        return cli.remove().await;
    }
    let found = through(&["doctor", "--json"]).await.json();
    let pooler = found.iter().find(|finding| finding["check"] == "pooler").unwrap();
    assert_eq!(pooler["level"], "problem", "{found:?}");
    // All other commands work.
    for args in
        [&["enqueue", "orders", "--group", "ann"][..], &["queues"], &["lane", "orders", "ann"]]
    {
        let done = through(args).await;
        assert_eq!(done.code, DONE, "{args:?}: {}", done.err);
    }
    cli.remove().await;
}

#[tokio::test]
async fn a_blocked_lane_is_named_with_the_session_that_blocks_it() {
    let cli = Cli::new().await;
    let pool = cli.database.pool();
    let job = cli.enqueue("ann").await;
    let long_ago = format!(
        "update seriatim.job set flagged = false, run_at = now() - interval '1 h', turn_at = run_at;
         insert into seriatim.queue_group (queue, group_id, ready_at, head_id, rechecks) \
         values ('orders', 'ann', now() + interval '1 s', {job}, 6)"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(long_ago)).execute(pool).await.unwrap();
    let mut open = pool.begin().await.unwrap();
    let lock = "set local application_name = 'psql of bob'; select 1 from seriatim.job for update";
    sqlx::raw_sql(lock).execute(&mut *open).await.unwrap();
    let pid: i32 =
        sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut *open).await.unwrap();
    // Shorter ones are claims.
    let deadline = Instant::now() + PATIENCE;
    let found = loop {
        let found = cli.run(&["doctor", "--json"]).await.json();
        let found = found.into_iter().find(|finding| finding["check"] == "blocked lanes").unwrap();
        if found["level"] == "problem" {
            break found;
        }
        assert!(Instant::now() < deadline, "{found}");
    };
    let sentence = found["sentence"].as_str().unwrap();
    for words in ["group \"ann\"", "due for 60 min", &format!("session {pid} (\"psql of bob\")")] {
        assert!(sentence.contains(words), "{words}: {sentence}");
    }
    let mend = found["mend"].as_str().unwrap();
    assert!(mend.contains(&format!("pg_terminate_backend({pid})")), "{mend}");
    let groups = cli.ends(DONE, &["groups", "orders", "--sort", "wait"]).await.out;
    assert!(groups.contains("locked by another transaction"), "{groups}");
    open.rollback().await.unwrap();
    cli.remove().await;
}

#[tokio::test]
async fn doctor_finds_claims_of_a_receiver_that_is_gone() {
    let cli = Cli::new().await;
    cli.enqueue("ann").await;
    cli.ends(DONE, &["receive", "orders"]).await;
    let over = "update seriatim.queue_group set ready_at = now() - interval '90 s'";
    sqlx::query(over).execute(cli.database.pool()).await.unwrap();
    let found = cli.ends(ERROR, &["doctor"]).await.out;
    assert!(found.contains("PROBLEM  claims: queue \"orders\" has claims"), "{found}");
    let groups = cli.ends(DONE, &["groups", "orders", "--state", "lapsed"]).await.out;
    assert!(groups.contains("ann") && groups.contains("lapsed"), "{groups}");
    let queues = cli.ends(DONE, &["queues"]).await.out;
    assert!(queues.contains("1 lapsed") && queues.contains("nobody has taken"), "{queues}");
    cli.remove().await;
}

#[tokio::test]
async fn doctor_names_a_schema_that_lost_its_rows() {
    let cli = Cli::new().await;
    let run = async |sql: &'static str| {
        sqlx::raw_sql(sql).execute(cli.database.pool()).await.unwrap();
    };
    run("truncate seriatim.adoption_lock").await;
    let found = cli.ends(ERROR, &["doctor"]).await;
    assert!(found.out.contains("PROBLEM  schema: the table adoption_lock"), "{}", found.out);
    cli.ends(DONE, &["migrate"]).await;
    cli.ends(DONE, &["doctor"]).await;

    run("truncate seriatim.migration").await;
    let found = cli.ends(ERROR, &["doctor"]).await;
    assert!(found.out.contains("PROBLEM  schema: schema \"seriatim\" has tables"), "{}", found.out);
    assert!(found.out.contains("its table migration is missing or empty"), "{}", found.out);
    let refused = cli.ends(REFUSED, &["migrate"]).await;
    assert!(refused.err.contains("--schema-only"), "{}", refused.err);
    cli.remove().await;
}

#[tokio::test]
async fn doctor_names_a_database_that_is_not_utf8() {
    let cli = Cli::new().await;
    let name = format!("{}_latin1", cli.database.name());
    let create = format!(
        "create database {name} encoding 'LATIN1' template template0 lc_collate 'C' lc_ctype 'C'"
    );
    let run = async |sql: String| {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(cli.database.pool()).await.unwrap();
    };
    run(create).await;
    let url = cli.database.server().url_of(&name);
    let found = ran(cli.command(&["doctor"]).env("DATABASE_URL", &url).output().await.unwrap());
    assert_eq!(found.code, ERROR, "{}", found.err);
    assert!(found.out.contains("has the encoding LATIN1"), "{}", found.out);
    assert!(found.out.contains("-> create database NAME encoding 'UTF8'"), "{}", found.out);
    let refused = ran(cli.command(&["migrate"]).env("DATABASE_URL", &url).output().await.unwrap());
    assert_eq!(refused.code, REFUSED, "{}", refused.err);
    assert!(refused.err.contains("LATIN1"), "{}", refused.err);
    run(format!("drop database {name}")).await;
    cli.remove().await;
}

/// Takes numbers alone.
struct Numbers;

#[async_trait]
impl JobHandler for Numbers {
    type Data = u32;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, _: u32) -> Result<(), JobError> {
        Ok(())
    }
}

/// A kind of job that the processor knows.
#[derive(serde::Serialize, serde::Deserialize)]
struct Charge {
    cents: u32,
}

impl JobKind for Charge {
    const NAME: &'static str = "charge";
    const QUEUE: &'static str = "billing";
}

struct Charges;

#[async_trait]
impl JobHandler for Charges {
    type Data = Charge;
    type Output = u32;
    type Error = JobError;

    async fn handle(&self, _: &mut ActiveJob, charge: Charge) -> Result<u32, JobError> {
        Ok(charge.cents)
    }
}

#[tokio::test]
async fn doctor_names_kinds_that_nobody_knows_and_data_that_does_not_decode() {
    let cli = Cli::new().await;
    let pool = cli.database.pool();
    let later = RetryPolicy::new(3).base(Duration::from_mins(1));
    let options = |name: &str| QueueOptions::new(name).concurrency(1).retry(later.clone());
    let processor = Processor::builder(pool.clone())
        .queue(options("waits"), Numbers)
        .queue(options("dead").retry_undecodable(false), Numbers)
        .queue(options("billing"), Kinds::new().on(Charges));
    let _running = processor.build().unwrap().start().await.unwrap();
    for queue in ["waits", "dead"] {
        let job = seriatim::NewJob::new(queue, &"secret").group("ann");
        seriatim::enqueue(pool, job).await.unwrap();
    }
    let refund = seriatim::NewJob::new("billing", &"secret").name("refund").group("bob");
    seriatim::enqueue(pool, refund).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ran = ran(cli.command(&["doctor"]).output().await.unwrap());
        let kind = "PROBLEM  payloads: group \"bob\" of queue \"billing\" waits for job";
        let waits = "PROBLEM  payloads: group \"ann\" of queue \"waits\" waits for job";
        let dead = "note     payloads: dead letters whose data does not decode: 1, such as job";
        if [kind, waits, dead].iter().all(|line| ran.out.contains(line)) {
            let unknown = "no handler for the kind \"refund\" in this process";
            assert!(ran.out.contains(unknown), "{}", ran.out);
            assert!(ran.out.contains("deploy a process with a handler for it"), "{}", ran.out);
            assert!(
                ran.out.contains("does not decode into u32: invalid type: string"),
                "{}",
                ran.out
            );
            assert!(!ran.out.contains("secret"), "{}", ran.out);
            return;
        }
        assert!(Instant::now() < deadline, "{}", ran.out);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
