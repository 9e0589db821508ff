//! The schema: made once, by whoever comes first, beside whatever else is in the database.

use std::str::FromStr;
use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use seriatim::testing::TestDatabase;
use seriatim::{Client, MigrateError, NewJob};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, SqlSafeStr};

use crate::support::{
    Errors, by_hand, chain, database, ended, handler, job_of, processor, queue, value,
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

const TABLES: [&str; 9] = [
    "cancel_request",
    "dedup",
    "group_setting",
    "job",
    "migration",
    "processor",
    "queue",
    "queue_group",
    "receive_attempt",
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
    assert_eq!(applied, 10);
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
    for (history, count) in [("public._sqlx_migrations", 1), ("seriatim.migration", 10)] {
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
        let running = processor(&database, 10)
            .await
            .client(&client)
            .poll_interval(Duration::from_hours(1))
            .queue(queue("q"), handler(async |_, _| Ok(json!(1))))
            .build()
            .unwrap()
            .start();
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
    by_hand(
        pool,
        "insert into seriatim.migration (version, description, success, checksum, execution_time) \
         select n, 'of the future', true, checksum, 0 from seriatim.migration m, unnest('{11, 12}'::int[]) n where m.version = 1",
    )
    .await;
    let role = Role::create(&database).await;
    for pool in [pool, &role.pool] {
        let error = seriatim::migrate(pool).await.unwrap_err();
        assert!(matches!(error, MigrateError::Newer { found: 12, known: 10, .. }), "{error:?}");
        let text = chain(&error);
        assert!(text.contains("version 12") && text.contains("up to 10"), "{text}");
    }
    role.remove(&database).await;
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
    let _running =
        builder.queue(queue("q"), handler(async |_, _| Ok(json!(1)))).build().unwrap().start();
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
