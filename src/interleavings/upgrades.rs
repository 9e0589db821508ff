//! An upgrade, played through with a made-up next version: its migration, its functions, and
//! programs of both versions.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::error::{BackgroundError, MigrateError};
use crate::interleavings::support::scene::PATIENCE;
use crate::interleavings::support::size::size;
use crate::store::{Function, LATEST, Release, SchemaState, Step, Store};
use crate::testing::TestDatabase;
use crate::{ActiveJob, Client, Hold, JobError, JobHandler, NewJob, Processor, QueueOptions};

/// Returns the release after this one, with `functions` in place of those of the same name.
fn next(compatible_from: i64, functions: &[&str]) -> Release {
    let mut release = Release::this().clone();
    release.steps.push(Step {
        version: LATEST + 1,
        description: "of the future",
        sql: "alter table queue_group add column future integer",
        compatible_from,
    });
    for text in functions {
        let function = Function::new(text);
        let name = |signature: &str| signature.split('(').next().map(str::to_owned);
        release.functions.retain(|other| name(&other.signature) != name(&function.signature));
        release.functions.push(function);
    }
    release
}

async fn text(conn: &mut PgConnection, sql: &str) -> String {
    let row = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_one(conn).await.unwrap();
    row.get(0)
}

/// Returns the functions of these names, with their arguments and results.
async fn made(conn: &mut PgConnection, names: &str) -> String {
    let made = format!(
        "select coalesce(string_agg(proname || '(' || pg_get_function_arguments(oid) || ') ' \
         || pg_get_function_result(oid), '; ' order by proname), '') from pg_proc \
         where pronamespace = 'seriatim'::regnamespace and proname in ({names})"
    );
    text(conn, &made).await
}

#[tokio::test]
async fn an_older_versions_functions_are_replaced() {
    let (database, store) = (TestDatabase::create().await.unwrap(), Store::default_schema());
    let conn = &mut database.connect().await.unwrap();
    // As this version has none of these, it is the next one that has others.
    let with = |functions: &[&str]| next(LATEST, functions);
    let first = with(&[
        "create or replace function kept(a integer) returns integer language sql as $$ select 1 $$;",
        "create or replace function renamed(a integer) returns integer language sql as $$ select 1 $$;",
        "create or replace function returns_more(out a integer) language sql as $$ select 1 $$;",
        "create or replace function takes_more(a integer) returns integer language sql as $$ select 1 $$;",
        "create or replace function dropped(a text, b bigint default 1) returns integer language sql as $$ select 1 $$;",
    ]);
    store.migrate_to(conn, &first).await.unwrap();
    let names = "'kept', 'renamed', 'returns_more', 'takes_more', 'dropped'";
    assert_eq!(
        made(conn, names).await,
        "dropped(a text, b bigint DEFAULT 1) integer; kept(a integer) integer; \
         renamed(a integer) integer; returns_more(OUT a integer) integer; takes_more(a integer) integer"
    );
    let revoke = "revoke all on function seriatim.kept(integer) from public";
    sqlx::raw_sql(revoke).execute(&mut *conn).await.unwrap();

    let mut second = with(&[
        "create or replace function kept(a integer) returns integer language sql as $$ select 2 $$;",
        "create or replace function renamed(b integer) returns integer language sql as $$ select 2 $$;",
        "create or replace function returns_more(out a integer, out b integer) language sql as $$ select 1, 2 $$;",
        "create or replace function takes_more(a integer, b integer) returns integer language sql as $$ select 2 $$;",
    ]);
    second.steps.push(Step {
        version: LATEST + 2,
        description: "functions",
        sql: "",
        compatible_from: LATEST + 1,
    });
    store.migrate_to(conn, &second).await.unwrap();
    assert_eq!(
        made(conn, names).await,
        "kept(a integer) integer; renamed(b integer) integer; returns_more(OUT a integer, OUT b integer) record; \
         takes_more(a integer, b integer) integer"
    );
    assert_eq!(text(conn, "select seriatim.kept(0)::text").await, "2");
    // A function that keeps its signature keeps its grants.
    let public = "select (proacl::text like '%{=X%')::text from pg_proc where proname = 'kept'";
    assert_eq!(text(conn, public).await, "false");
    store.migrate_to(conn, &second).await.expect("and again");

    // The version before still finds its own, and the one before that is too old.
    store.migrate_to(conn, &first).await.expect("it runs on the one behind it");
    let error = store.migrate(conn).await.unwrap_err();
    assert!(
        matches!(error, MigrateError::Newer { found, known: LATEST, compatible_from, .. }
                if (found, compatible_from) == (LATEST + 2, LATEST + 1)),
        "{error:?}"
    );
    database.remove().await.unwrap();
}

/// A view is made behind the functions that it calls, which may have other results than before.
#[tokio::test]
async fn an_older_versions_views_are_replaced() {
    let (database, store) = (TestDatabase::create().await.unwrap(), Store::default_schema());
    let conn = &mut database.connect().await.unwrap();
    let view = "create or replace view {schema}.numbered as select * from {schema}.numbers();";
    let numbers = |columns: &str, values: &str| {
        format!(
            "create or replace function numbers({columns}) language sql as $$ select {values} $$;"
        )
    };
    let first = next(LATEST, &[view, &numbers("out a integer", "1")]);
    store.migrate_to(conn, &first).await.unwrap();
    assert_eq!(text(conn, "select a::text from seriatim.numbered").await, "1");
    let mut second = next(LATEST, &[view, &numbers("out b integer, out a integer", "2, 3")]);
    let step = Step { version: LATEST + 2, sql: "", ..second.steps[second.steps.len() - 1] };
    second.steps.push(step);
    store.migrate_to(conn, &second).await.unwrap();
    assert_eq!(text(conn, "select b::text || a from seriatim.numbered").await, "23");
    assert_eq!(text(conn, "select count(*)::text from seriatim.stopped").await, "0");
    // One that the next version has no more is dropped, and so is its function.
    let mut third = next(LATEST, &[]);
    for version in [LATEST + 2, LATEST + 3] {
        third.steps.push(Step { version, sql: "", ..step });
    }
    store.migrate_to(conn, &third).await.unwrap();
    let gone = "select (to_regclass('seriatim.numbered') is null)::text";
    assert_eq!(text(conn, gone).await, "true");
    assert_eq!(made(conn, "'numbers'").await, "");
    database.remove().await.unwrap();
}

#[tokio::test]
async fn a_failed_upgrade_leaves_the_version_before() {
    let (database, store) = (TestDatabase::create().await.unwrap(), Store::default_schema());
    let conn = &mut database.connect().await.unwrap();
    let broken = next(
        LATEST,
        &["create or replace function broken() returns integer language sql as $$ select x $$;"],
    );
    let error = store.migrate_to(conn, &broken).await.unwrap_err();
    let words = "could not migrate schema \"seriatim\" (broken()): column \"x\" does not exist";
    assert!(error.to_string().starts_with(words), "{error}");
    let columns = "select count(*)::text from pg_attribute where attname = 'future'";
    assert_eq!(text(conn, columns).await, "0");
    assert_eq!(store.schema_state(conn, None).await.unwrap(), SchemaState::Equal);
    store.migrate(conn).await.unwrap();
    database.remove().await.unwrap();
}

#[tokio::test]
async fn two_builds_of_one_version_do_not_replace_each_other() {
    let (database, store) = (TestDatabase::create().await.unwrap(), Store::default_schema());
    let conn = &mut database.connect().await.unwrap();
    let build = [
        "create or replace function server_since() returns integer language sql as $$ select 1 $$;",
    ];
    let mut other = next(LATEST, &build);
    other.steps.pop();
    let error = store.migrate_to(conn, &other).await.unwrap_err();
    assert!(
        error.to_string().contains("function server_since() (another build made it)"),
        "{error}"
    );
    store.migrate(conn).await.unwrap();
    database.remove().await.unwrap();
}

/// Records each job that ran, with its group.
struct Ran(Arc<Mutex<Vec<(String, u64)>>>);

#[async_trait]
impl JobHandler for Ran {
    type Data = u64;
    type Output = ();
    type Error = JobError;

    async fn handle(&self, job: &mut ActiveJob, n: u64) -> Result<(), JobError> {
        let group = job.group().unwrap_or_default().to_owned();
        self.0.lock().unwrap().push((group, n));
        Ok(())
    }
}

/// Programs of this version run through the upgrade to the next one, and start again behind it; in
/// each group each job runs once and in order.
#[tokio::test(flavor = "multi_thread")]
async fn programs_of_the_version_before_run_through_an_upgrade() {
    let (database, client) = (TestDatabase::create().await.unwrap(), Client::default());
    let pool = database.pool();
    let mut release = next(LATEST, &[]);
    for function in &mut release.functions {
        // All are replaced, and none is the same.
        *function = function.changed(|text| text.replacen("$$", "$$ /* of the next version */", 1));
    }
    let (ran, errors) = (Arc::default(), Arc::new(Mutex::new(Vec::new())));
    let start = |hold: Hold| {
        let (ran, errors) = (Ran(Arc::clone(&ran)), Arc::clone(&errors));
        let options = QueueOptions::new("q").concurrency(3).hold(hold);
        let pool = PgPoolOptions::new().max_connections(5).connect_lazy(&database.url()).unwrap();
        let builder = Processor::builder(pool).queue(options, ran);
        let on_error = move |error: &BackgroundError| {
            errors.lock().unwrap().push(format!("{error}: {error:?}"));
        };
        builder.on_error(on_error).build().unwrap().start_when_ready()
    };
    let holds = || [Hold::Transaction, Hold::Lease(Duration::from_secs(30))];
    let enqueue = async |jobs: std::ops::Range<u64>| {
        for n in jobs {
            let groups = ["a", "b", "c"].map(|group| NewJob::new("q", &n).group(group));
            client.enqueue_many(pool, groups).await.unwrap();
        }
    };
    let ran_all = async |until: usize| {
        let all = async {
            while ran.lock().unwrap().len() < until {
                // The handlers report nothing else.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.expect("all jobs run");
    };

    let some = size(10, 20);
    let expected: Vec<u64> = (0..8 * some).chain(0..some).chain(0..some).collect();
    let before = holds().map(start);
    enqueue(0..2 * some).await;
    let upgrade = async {
        let mut conn = pool.acquire().await.unwrap();
        Store::default_schema().migrate_to(&mut conn, &release).await.unwrap();
    };
    tokio::join!(enqueue(2 * some..6 * some), upgrade);
    enqueue(6 * some..8 * some).await;
    // The programs start again one after the other, as after a crash, on the newer schema.
    let mut after = Vec::new();
    for (hold, old) in holds().into_iter().zip(before) {
        old.shutdown(Duration::from_secs(5)).await;
        client.migrate(pool).await.expect("it can run on the next version");
        after.push(start(hold));
        enqueue(0..some).await;
    }
    ran_all(3 * expected.len()).await;
    for running in after {
        running.shutdown(Duration::from_secs(5)).await;
    }
    let of_this = "select count(*)::text from pg_proc where pronamespace = 'seriatim'::regnamespace \
                  and prosrc not like ' /* of the next version */%'";
    assert_eq!(text(&mut database.connect().await.unwrap(), of_this).await, "0");
    for group in ["a", "b", "c"] {
        let ran = ran.lock().unwrap();
        let of_group: Vec<u64> =
            ran.iter().filter(|(of, _)| of == group).map(|(_, n)| *n).collect();
        assert_eq!(of_group, expected, "{group}");
    }
    // A heartbeat and maintenance give up waiting for the tables that the migration has locked, and
    // try again. A session that waited for longer than its claim lasts has lost it: it runs
    // nothing.
    let slow = |error: &String| {
        let tries_again =
            error.starts_with("the presence") || error.starts_with("maintenance failed");
        tries_again && error.contains("55P03")
            || error.contains("did not end within")
            || error.contains("another worker has its claim")
    };
    errors.lock().unwrap().retain(|error| !slow(error));
    assert_eq!(*errors.lock().unwrap(), [""; 0]);
    database.remove().await.unwrap();
}
