//! The schema: made once, by the first caller, beside whatever else is in the database.

use std::str::FromStr;
use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use seriatim::testing::TestDatabase;
use seriatim::{Client, MigrateError, NewJob};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, SqlSafeStr};

use crate::support::logged::Logged;
use crate::support::{
    Errors, by_hand, chain, database, ended, handler, job_of, processor, queue, started, value,
};

/// A database that was never migrated.
async fn bare() -> TestDatabase {
    let database = database().await;
    by_hand(database.pool(), "drop schema seriatim cascade").await;
    database
}

async fn tables(pool: &PgPool, schema: &str) -> Vec<String> {
    let schema = schema.replace('\'', "''");
    value(
        pool,
        format!(
            "select coalesce(array_agg(relname::text order by relname), '{{}}') from pg_class c \
             join pg_namespace n on n.oid = relnamespace where nspname = '{schema}' and relkind = 'r'"
        ),
    )
    .await
}

pub const TABLES: [&str; 31] = [
    "adoption_lock",
    "batch",
    "batch_due",
    "batch_end",
    "cancel_request",
    "dedup",
    "flag_scan",
    "freed_slot",
    "group_setting",
    "job",
    "job_progress",
    "key_limit",
    "maintenance",
    "migration",
    "move_task",
    "operation",
    "processor",
    "queue",
    "queue_group",
    "queue_metrics",
    "queue_minute",
    "receive_attempt",
    "receiver",
    "schedule",
    "server",
    "sqs_key",
    "sqs_queue",
    "sqs_secret",
    "tidy_scan",
    "unique_key",
    "upkeep_due",
];

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_migrate_at_once_and_again() {
    let database = bare().await;
    for _ in 0..2 {
        // Connections of their own, as of processes of their own.
        let pools = (0..8).map(|_| database.pool_with(PgPoolOptions::new().max_connections(1)));
        let pools: Vec<PgPool> = join_all(pools).await.into_iter().map(Result::unwrap).collect();
        for migrated in join_all(pools.iter().map(seriatim::migrate)).await {
            migrated.unwrap();
        }
    }
    let pool = database.pool();
    assert_eq!(tables(pool, "seriatim").await, TABLES);
    let applied: i64 = value(pool, "select count(*) from seriatim.migration").await;
    assert_eq!(applied, latest());
}

/// The newest version that this build knows: the number of its migrations.
fn latest() -> i64 {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations"));
    files.unwrap().count().try_into().unwrap()
}

/// Writes down migrations as a newer build would have made them; that build's are compatible from
/// a version.
async fn add_versions(pool: &PgPool, versions: &[i64], compatible_from: i64) {
    for version in versions {
        let add = format!(
            "insert into seriatim.migration (version, description, checksum, compatible_from) \
             values ({version}, 'of the future', '', {compatible_from})"
        );
        by_hand(pool, add).await;
    }
}

fn host(sql: &'static str) -> Migrator {
    let migration =
        Migration::new(1, "the host's".into(), MigrationType::Simple, sql.into_sql_str(), false);
    Migrator::with_migrations(vec![migration])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_own_migrations_stay_apart() {
    let database = bare().await;
    let pool = database.pool();
    let host = host("create table account (n int)");
    let (ours, theirs) = tokio::join!(seriatim::migrate(pool), host.run(pool));
    ours.unwrap();
    theirs.unwrap();
    host.run(pool).await.expect("and again");
    seriatim::migrate(pool).await.expect("and again");
    assert_eq!(tables(pool, "public").await, ["_sqlx_migrations", "account"]);
    assert_eq!(tables(pool, "seriatim").await, TABLES);
    for (history, count) in [("public._sqlx_migrations", 1), ("seriatim.migration", latest())] {
        let applied: i64 = value(pool, format!("select count(*) from {history}")).await;
        assert_eq!(applied, count, "{history}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_schema_names_work_side_by_side() {
    let database = bare().await;
    let pool = database.pool();
    let names = ["My \"odd\" schema's", "a.b; drop", "Größe ?1 $2 {}", "select", &"x".repeat(50)];
    for name in names {
        let client = Client::new(name).unwrap();
        client.migrate(pool).await.unwrap();
        client.migrate(pool).await.expect("and again");
        assert_eq!(tables(pool, name).await, TABLES);
        // Found by a wake-up: a poll would come too late.
        let running = started(
            processor(&database, 10)
                .await
                .client(&client)
                .poll_interval(Duration::from_hours(1))
                .queue(queue("q"), handler(async |_, _| Ok(json!(1)))),
        )
        .await;
        let listening = "select count(*) > 0 from pg_stat_activity where query ilike 'listen %' \
                         and datname = current_database()";
        crate::support::eventually(pool, listening, true).await;
        let job = job_of("q", "g", 1);
        let id = client.enqueue(pool, job).await.unwrap().id();
        let ended = async {
            loop {
                let job = client.job(pool, id).await.unwrap().unwrap();
                if job.status.is_final() {
                    break;
                }
                // The database has no event to wait for here.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let ended = tokio::time::timeout(crate::support::PATIENCE, ended).await;
        ended.expect("the job runs");
        running.shutdown(Duration::from_secs(5)).await;
    }
    assert!(tables(pool, "seriatim").await.is_empty());
}

#[tokio::test]
async fn a_newer_schema_is_refused_with_both_versions() {
    let database = database().await;
    let pool = database.pool();
    let known = latest();
    add_versions(pool, &[known + 1, known + 2], known + 1).await;
    let role = Role::create(&database).await;
    for pool in [pool, &role.pool] {
        let error = seriatim::migrate(pool).await.unwrap_err();
        let MigrateError::Newer { found, known: its_latest, compatible_from, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!([*found, *its_latest, *compatible_from], [known + 2, known, known + 1]);
        let text = chain(&error);
        let (found, up_to) = (format!("version {found}"), format!("up to {known}"));
        assert!(text.contains(&found) && text.contains(&up_to), "{text}");
    }
    role.remove(&database).await;
}

/// `migrate` calls it different, and says what differs and what to do; also to a role that may
/// create nothing.
async fn is_different(database: &TestDatabase, what: &str, advice: &str) {
    let role = Role::create(database).await;
    for pool in [database.pool(), &role.pool] {
        let error = seriatim::migrate(pool).await.expect_err(what);
        let MigrateError::Different { version, .. } = &error else { panic!("{error:?}") };
        assert!([1, latest()].contains(version), "{error:?}");
        let text = chain(&error);
        assert!(text.contains(what) && text.contains(advice), "{what}, {advice} in {text}");
    }
    role.remove(database).await;
}

#[tokio::test]
async fn a_changed_migration_is_refused() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, "update seriatim.migration set checksum = '\\x00'").await;
    is_different(&database, "migration 1 (schema)", "the build of seriatim that made").await;
    // An earlier one alone.
    add_versions(pool, &[latest() + 1], latest()).await;
    is_different(&database, "migration 1 (schema)", "the build of seriatim that made").await;
}

#[tokio::test]
async fn a_changed_function_is_refused_until_it_is_asked_for() {
    let database = database().await;
    let pool = database.pool();
    let again = "update \"seriatim\".\"migration\" set functions = null";
    let changes = [
        (
            "update seriatim.migration set functions = jsonb_set(functions, '{receiver_may_retire()}', '\"00\"')",
            "function receiver_may_retire() (another build made it)",
        ),
        (
            "update seriatim.migration set functions = functions - 'receiver_may_retire()'",
            "function receiver_may_retire() (another build made it)",
        ),
        (
            "update seriatim.migration set functions = functions || '{\"of_another()\": \"00\"}'",
            "function of_another() (this build has none of it)",
        ),
        (
            "create or replace function seriatim.server_since() returns timestamptz language sql stable \
             as $$ select now() $$",
            "function server_since() (it was changed by hand)",
        ),
        (
            "drop function seriatim.receiver_may_retire()",
            "function receiver_may_retire() (it was dropped)",
        ),
        ("drop view seriatim.stopped", "view stopped (it was dropped)"),
    ];
    let bodies = "select string_agg(proname || prosrc, '' order by proname) from pg_proc \
                  where pronamespace = 'seriatim'::regnamespace";
    let before: String = value(pool, bodies).await;
    for (change, what) in changes {
        by_hand(pool, change).await;
        is_different(&database, what, again).await;
        by_hand(pool, again).await;
        seriatim::migrate(pool).await.expect(what);
        assert_eq!(value::<String>(pool, bodies).await, before, "{what}");
        seriatim::migrate(pool).await.expect("and again");
    }
}

/// As checkouts left their schemas, but for the texts of the migrations: the last one, and one
/// before it that had the table of minutes as a migration.
#[tokio::test]
async fn a_schema_of_a_checkout_before_the_first_release_is_brought_over() {
    let database = database().await;
    let pool = database.pool();
    let job = seriatim::enqueue(pool, NewJob::new("q", &1).group("g")).await.unwrap();
    let script = include_str!("../../../docs/from-checkout.sql");
    let mut psql = database.connect().await.unwrap();
    let refused = sqlx::raw_sql(script).execute(&mut psql).await.unwrap_err();
    drop(psql);
    let words = "the schema is at version 1, and not at 20 or 21 of a checkout";
    assert!(chain(&refused).contains(words), "{refused}");
    let columns = "select string_agg(format('%s %s %s', attname, atttypid::regtype, attnotnull), ', ' \
           order by attnum) from pg_attribute \
         where attrelid = to_regclass('seriatim.queue_minute') and attnum > 0";
    let fresh: String = value(pool, columns).await;
    let before = "alter type seriatim.adoption drop attribute others; \
         alter type seriatim.claim_answer drop attribute others; \
         alter type seriatim.claim_scan drop attribute others; \
         drop table seriatim.upkeep_due; drop function seriatim.upkeep_at_commit(); \
         drop table seriatim.unique_key; \
         alter table seriatim.job drop unique_key, drop replaced, drop replaced_at; \
         alter type seriatim.explanation drop attribute replaced, drop attribute replaced_at, \
         drop attribute silent; \
         drop table seriatim.key_limit; \
         drop table seriatim.queue_minute";
    for (last, table) in [(21, "select"), (20, before)] {
        let checkout = format!(
            "{table}; update seriatim.migration set checksum = '\\x00', compatible_from = 10; \
             insert into seriatim.migration (version, description, checksum, compatible_from) \
             select n, 'of a checkout', '\\x00', 10 from generate_series(2, {last}) n"
        );
        by_hand(pool, checkout).await;
        is_different(&database, "migration 1 (schema)", "\"From a checkout\"").await;
        let builder = processor(&database, 10).await;
        let builder = builder.queue(queue("q"), handler(async |_, _| Ok(json!(null))));
        let refused = builder.build().unwrap().start().await.unwrap_err();
        assert!(chain(&refused).contains("migration 1 (schema)"), "{refused:?}");
        sqlx::raw_sql(script).execute(pool).await.unwrap();
        assert_eq!(value::<String>(pool, columns).await, fresh, "the table that has come since");
        seriatim::migrate(pool).await.unwrap();
        seriatim::migrate(pool).await.expect("and again");
        assert_eq!(value::<i64>(pool, "select max(version) from seriatim.migration").await, 1);
    }
    let (running, _) = running(&database).await;
    assert_eq!(ended(pool, job.id()).await.attempts, 1);
    running.shutdown(Duration::from_secs(5)).await;
}

/// A role that may read and write but create nothing.
struct Role {
    name: String,
    pool: PgPool,
}

impl Role {
    async fn create(database: &TestDatabase) -> Self {
        let name = format!("role_of_{}", database.name());
        by_hand(
            database.pool(),
            format!(
                "create role {name} login;
                 grant usage on schema seriatim to {name};
                 grant select, insert, update, delete on all tables in schema seriatim to {name}"
            ),
        )
        .await;
        let options = PgConnectOptions::from_str(&database.url()).unwrap();
        let pool =
            PgPoolOptions::new().max_connections(3).connect_lazy_with(options.username(&name));
        Self { name, pool }
    }

    async fn remove(self, database: &TestDatabase) {
        self.pool.close().await;
        let name = self.name;
        by_hand(database.pool(), format!("drop owned by {name}; drop role {name}")).await;
    }
}

#[tokio::test]
async fn a_role_that_may_create_nothing_can_migrate_what_is_current() {
    let database = database().await;
    let role = Role::create(&database).await;
    seriatim::migrate(&role.pool).await.unwrap();
    seriatim::enqueue(&role.pool, NewJob::new("q", &1)).await.expect("and it can enqueue");
    let other = Client::new("another").unwrap();
    let refused = other.migrate(&role.pool).await.unwrap_err();
    let text = chain(&refused);
    assert!(text.contains("another") && text.contains("permission denied"), "{text}");
    role.remove(&database).await;
}

#[tokio::test]
async fn a_failed_migration_leaves_nothing() {
    let database = bare().await;
    let pool = database.pool();
    // In the way of the last table.
    by_hand(pool, "create schema seriatim; create table seriatim.cancel_request ()").await;
    let text = chain(&seriatim::migrate(pool).await.unwrap_err());
    assert!(text.contains("seriatim") && text.contains("cancel_request"), "{text}");
    assert_eq!(tables(pool, "seriatim").await, ["cancel_request"]);
    let types = "select count(*) from pg_type where typname = 'job_status'";
    assert_eq!(value::<i64>(pool, types).await, 0);
    by_hand(pool, "drop table seriatim.cancel_request").await;
    seriatim::migrate(pool).await.expect("and can be repeated");
    assert_eq!(tables(pool, "seriatim").await, TABLES);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_without_tables_says_so_and_starts_with_them() {
    let database = bare().await;
    let pool = database.pool();
    let errors = Errors::default();
    let builder = errors.of(processor(&database, 10).await);
    let _running = builder
        .queue(queue("q"), handler(async |_, _| Ok(json!(1))))
        .build()
        .unwrap()
        .start_when_ready();
    let said = errors
        .0
        .wait("it says that the tables are not there", |entries| {
            entries.iter().any(|entry| entry.starts_with("NotMigrated"))
        })
        .await;
    let said = said.iter().find(|entry| entry.starts_with("NotMigrated"));
    let said = said.unwrap();
    for word in ["call migrate", "\"seriatim\"", "does not exist"] {
        assert!(said.contains(word), "{word} in {said}");
    }
    let text = chain(&seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap_err());
    assert!(text.contains("does not exist"), "{text}");

    seriatim::migrate(pool).await.unwrap();
    let id = seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap().id();
    assert_eq!(ended(pool, id).await.result, Some(json!(1)));
}

/// A processor that runs jobs of the queue `q`, and what it reports.
async fn running(database: &TestDatabase) -> (seriatim::Running, Errors) {
    let errors = Errors::default();
    let builder = errors.of(processor(database, 10).await);
    let run = handler(async |_, _| Ok(json!(1)));
    (builder.queue(queue("q"), run).build().unwrap().start_when_ready(), errors)
}

/// A processor on that schema says so, claims nothing, and goes on when the schema has been put in
/// order.
async fn waits_for_another_schema(change: &str, words: &[&str], undo: &str) {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, change).await;
    let id = seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap().id();
    let (running, errors) = running(&database).await;
    let said = errors.0.wait_for(1).await;
    for word in words {
        assert!(said[0].contains(word), "{word} in {said:?}");
    }
    // The gate asks each second, and must not open by itself.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let attempts = "select attempts from seriatim.job";
    assert_eq!(value::<i32>(pool, attempts).await, 0);
    let said = errors.but_slow_checks();
    assert_eq!(said.len(), 1, "it says it once: {said:?}");
    by_hand(pool, undo).await;
    assert_eq!(ended(pool, id).await.result, Some(json!(1)));
    running.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_waits_for_a_schema_that_is_too_old() {
    let versions = format!("is at version {}, and this seriatim needs {}", latest() - 1, latest());
    waits_for_another_schema(
        "update seriatim.migration set version = -version; update seriatim.migration set version = -1 - version",
        &["OldSchema", &versions, "call migrate()"],
        "update seriatim.migration set version = -version; update seriatim.migration set version = 1 - version",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_claims_nothing_on_a_schema_that_is_too_new() {
    let newer = latest() + 2;
    let add = format!(
        "insert into seriatim.migration (version, description, checksum, compatible_from) \
         values ({newer}, 'of the future', '', {newer} - 1)"
    );
    let words = format!("is at version {newer}");
    waits_for_another_schema(
        &add,
        &["UnusableSchema", &words, "upgrade seriatim in this program"],
        &format!("delete from seriatim.migration where version = {newer}"),
    )
    .await;
}

#[tokio::test]
async fn a_program_says_that_it_runs_on_a_newer_schema() {
    let database = database().await;
    let pool = database.pool();
    let newer = latest() + 1;
    add_versions(pool, &[newer], latest()).await;
    let logged = Logged::default();
    let _guard = logged.start();
    let words =
        format!("is at version {newer}; this program has version {}, and can run on it", latest());

    seriatim::migrate(pool).await.expect("it can run on it");
    assert_eq!(logged.text().matches(&words).count(), 1, "{}", logged.text());

    let id = seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap().id();
    let (running, errors) = running(&database).await;
    assert_eq!(ended(pool, id).await.result, Some(json!(1)));
    running.shutdown(Duration::from_secs(5)).await;
    assert_eq!(logged.text().matches(&words).count(), 2, "{}", logged.text());
    assert_eq!(errors.but_slow_checks(), [""; 0]);
}

/// Creates the tables that Citus has in its catalogue, on a node of that group; 0 is the
/// coordinator's. They are a stand-in: Citus is not here.
async fn like_citus(database: &TestDatabase, group: i32) {
    by_hand(
        database.pool(),
        format!(
            "begin; set local allow_system_table_mods = on;
             create table pg_catalog.pg_dist_partition (logicalrelid regclass not null, partmethod \"char\");
             create table pg_catalog.pg_dist_local_group (groupid int not null);
             insert into pg_catalog.pg_dist_local_group values ({group});
             commit"
        ),
    )
    .await;
}

/// A pool whose sessions have an option of Citus.
fn pool_with_option(database: &TestDatabase, option: &str, value: &str) -> PgPool {
    let options = PgConnectOptions::from_str(&database.url()).unwrap().options([(option, value)]);
    PgPoolOptions::new().max_connections(2).connect_lazy_with(options)
}

#[tokio::test]
async fn migrate_refuses_tables_that_citus_distributes() {
    let database = database().await;
    let pool = database.pool();
    like_citus(&database, 0).await;
    by_hand(
        pool,
        "create table account (); insert into pg_catalog.pg_dist_partition values ('account', 'h')",
    )
    .await;
    seriatim::migrate(pool).await.expect("the application's own may be distributed");
    by_hand(pool, "insert into pg_catalog.pg_dist_partition values ('seriatim.job', 'n')").await;
    let error = seriatim::migrate(pool).await.unwrap_err();
    assert!(
        matches!(&error, MigrateError::Distributed { table, .. } if table == "job"),
        "{error:?}"
    );
    let text = chain(&error);
    assert!(text.contains("\"seriatim\"") && text.contains("local to one node"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_processor_refuses_tables_that_citus_distributes() {
    waits_for_another_schema(
        "begin; set local allow_system_table_mods = on;
         create table pg_catalog.pg_dist_partition (logicalrelid regclass not null); commit;
         insert into pg_catalog.pg_dist_partition values ('seriatim.queue_group')",
        &["UnusableSchema", "Citus distributes table \"queue_group\"", "local to one node"],
        "delete from pg_catalog.pg_dist_partition",
    )
    .await;
}

#[tokio::test]
async fn migrate_names_the_option_that_a_citus_node_needs() {
    let (propagation, by_schema) =
        ("citus.enable_ddl_propagation", "citus.enable_schema_based_sharding");
    for (group, set, option) in
        [(1, (by_schema, "off"), propagation), (0, (by_schema, "on"), by_schema)]
    {
        let database = bare().await;
        like_citus(&database, group).await;
        let refused = pool_with_option(&database, set.0, set.1);
        let error = seriatim::migrate(&refused).await.unwrap_err();
        let text = chain(&error);
        assert!(text.contains(&format!("{option} = off")), "{text}");
        assert!(tables(database.pool(), "seriatim").await.is_empty(), "nothing was made");
        let allowed = pool_with_option(&database, option, "off");
        seriatim::migrate(&allowed).await.unwrap();
        // From here on there is nothing to make, and no option is needed.
        seriatim::migrate(&refused).await.unwrap();
        for pool in [refused, allowed] {
            pool.close().await;
        }
    }
}

#[tokio::test]
async fn a_migration_that_citus_distributes_is_undone() {
    let database = bare().await;
    let pool = database.pool();
    like_citus(&database, 0).await;
    // As sharding by schema does, whatever switched it on.
    by_hand(
        pool,
        "create function distribute() returns event_trigger language plpgsql as $$ begin
           insert into pg_catalog.pg_dist_partition select objid::regclass, 'n'
           from pg_event_trigger_ddl_commands() where object_identity = 'seriatim.job'; end $$;
         create event trigger distribute on ddl_command_end when tag in ('CREATE TABLE')
           execute function distribute()",
    )
    .await;
    let error = seriatim::migrate(pool).await.unwrap_err();
    assert!(matches!(error, MigrateError::Distributed { .. }), "{error:?}");
    assert!(tables(pool, "seriatim").await.is_empty());
}

#[tokio::test]
async fn a_database_of_another_encoding_is_refused_in_words() {
    let database = database().await;
    for encoding in ["SQL_ASCII", "LATIN1", "EUC_JP", "WIN1252"] {
        let name = format!("{}_{}", database.name(), encoding.to_lowercase());
        let create = format!(
            "create database {name} encoding '{encoding}' template template0 lc_collate 'C' lc_ctype 'C'"
        );
        by_hand(database.pool(), create).await;
        let pool = PgPoolOptions::new().connect(&database.server().url_of(&name)).await.unwrap();
        let client = Client::default();
        let errors = [
            chain(&client.migrate(&pool).await.unwrap_err()),
            chain(&client.is_migrated(&pool).await.unwrap_err()),
            chain(&client.migration_sql(&pool).await.unwrap_err()),
            chain(&started_on(&pool).await),
        ];
        for error in errors {
            for words in [&*format!("has the encoding {encoding}"), "UTF8", "create database NAME"]
            {
                assert!(error.contains(words), "{words} in {error}");
            }
        }
        pool.close().await;
        by_hand(database.pool(), format!("drop database {name}")).await;
    }
}

/// Why a processor does not start on that database.
async fn started_on(pool: &PgPool) -> seriatim::StartError {
    let run = handler(async |_, _| Ok(json!(1)));
    let built = seriatim::Processor::builder(pool.clone())
        .queue(queue("q").concurrency(1), run)
        .build()
        .unwrap();
    built.start().await.expect_err("it must not start")
}

/// A migration of more than the timeout.
#[tokio::test]
async fn no_timeout_of_transactions_ends_a_migration() {
    let database = bare().await;
    let pool = database.pool();
    let number: i32 = value(pool, "select current_setting('server_version_num')::integer").await;
    if number < 170_000 {
        return;
    }
    by_hand(pool, format!("alter database {} set transaction_timeout = '20ms'", database.name()))
        .await;
    let limited = database.pool_with(PgPoolOptions::new()).await.unwrap();
    let script = Client::default().migration_sql(&limited).await.unwrap().unwrap();
    assert!(script.contains("set local transaction_timeout = 0"));
    seriatim::migrate(&limited).await.unwrap();
    seriatim::migrate(&limited).await.expect("and again");
    assert_eq!(tables(pool, "seriatim").await, TABLES);
}

/// `pg_dump --schema-only | psql`, and a test suite that truncates every table.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_without_its_rows_is_named() {
    let database = database().await;
    let pool = database.pool();
    for lost in ["truncate seriatim.migration", "drop table seriatim.migration"] {
        by_hand(pool, lost).await;
        let client = Client::default();
        let errors = [
            chain(&client.migrate(pool).await.unwrap_err()),
            chain(&client.is_migrated(pool).await.unwrap_err()),
            chain(&started_on(pool).await),
        ];
        for error in errors {
            for words in ["`migration` is missing or empty", "--schema-only", "drop it"] {
                assert!(error.contains(words), "{words} in {error}");
            }
        }
    }
    by_hand(pool, "drop schema seriatim cascade").await;
    seriatim::migrate(pool).await.expect("as the error advises");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_fills_tables_that_came_without_their_rows() {
    let database = database().await;
    let pool = database.pool();
    by_hand(pool, "truncate seriatim.adoption_lock, seriatim.sqs_secret, seriatim.server").await;
    let error = chain(&started_on(pool).await);
    assert!(error.contains("`adoption_lock`") && error.contains("migrate"), "{error}");
    assert!(!Client::default().is_migrated(pool).await.unwrap());
    // Until then the hint of the error is a statement that works as it is.
    seriatim::enqueue(pool, job_of("q", "g", 1)).await.unwrap();
    let refused = sqlx::query("select seriatim.receive('q')").execute(pool).await.unwrap_err();
    let hint = refused.as_database_error().unwrap();
    let hint = hint.downcast_ref::<sqlx::postgres::PgDatabaseError>().hint().unwrap().to_owned();
    let statement = hint.split_once(": ").unwrap().1.to_owned();
    by_hand(pool, statement).await;
    by_hand(pool, "truncate seriatim.adoption_lock").await;

    seriatim::migrate(pool).await.unwrap();
    let rows = "select count(*) from seriatim.adoption_lock";
    assert_eq!(value::<i64>(pool, rows).await, 65_536);
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.sqs_secret").await, 1);
    assert_eq!(value::<i64>(pool, "select count(*) from seriatim.receive('q')").await, 1);
}

/// Also a table that a later version of the schema fills.
#[tokio::test(flavor = "multi_thread")]
async fn migrate_fills_each_table_that_came_with_rows() {
    let database = database().await;
    let pool = database.pool();
    let mut filled = Vec::new();
    // The versions have a test of their own; any process fills the table of the server.
    for table in TABLES.into_iter().filter(|table| !["migration", "server"].contains(table)) {
        let empty = format!("select not exists (select from seriatim.{table})");
        if !value::<bool>(pool, &empty).await {
            filled.push(table);
        }
    }
    assert_eq!(filled, ["adoption_lock", "sqs_secret"]);
    for table in filled {
        let empty = format!("select not exists (select from seriatim.{table})");
        by_hand(pool, format!("truncate seriatim.{table}")).await;
        assert!(!Client::default().is_migrated(pool).await.unwrap(), "{table}");
        let error = chain(&started_on(pool).await);
        assert!(error.contains(&format!("`{table}`")) && error.contains("migrate"), "{error}");
        seriatim::migrate(pool).await.unwrap();
        assert!(!value::<bool>(pool, &empty).await, "{table}");
    }
}

#[tokio::test]
async fn row_security_without_a_policy_is_named() {
    let database = database().await;
    let pool = database.pool();
    let role = Role::create(&database).await;
    let Role { name, .. } = &role;
    by_hand(
        pool,
        format!("grant select, insert, update, delete on all tables in schema seriatim to {name}"),
    )
    .await;
    for table in ["migration", "job"] {
        by_hand(pool, format!("alter table seriatim.{table} enable row level security")).await;
        let errors = [
            chain(&seriatim::migrate(&role.pool).await.unwrap_err()),
            chain(&started_on(&role.pool).await),
        ];
        for error in errors {
            let alter = format!("alter table \"seriatim\".\"{table}\" disable row level security");
            for words in ["row security hides", name, &*alter] {
                assert!(error.contains(words), "{words} in {error}");
            }
        }
        seriatim::migrate(pool).await.expect("its owner sees the rows");
        by_hand(pool, format!("alter table seriatim.{table} disable row level security")).await;
    }
    role.remove(&database).await;
}
