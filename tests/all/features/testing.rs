//! Servers and databases for tests: they work, they are apart, and nothing of them is left behind.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use seriatim::testing::{Server, ServerError, TestDatabase};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection, PgPool};

use crate::support::sample;

/// How long the remains of a process may be there.
const CLEAN_WITHIN: Duration = Duration::from_mins(1);

/// The environment variable that selects how a child process ends: see [`child`].
const ENDING: &str = "SERIATIM_TEST_ENDING";

async fn count(pool: &PgPool, table: &str) -> Result<i64, sqlx::Error> {
    let select = format!("SELECT count(*) FROM {table}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(select)).fetch_one(pool).await
}

async fn connect(server: &Server) -> PgConnection {
    PgConnection::connect(&server.url()).await.unwrap()
}

#[tokio::test]
async fn a_stopped_server_keeps_its_port_and_what_was_committed() {
    let server = Server::builder().setting("max_connections", "40").start().await.unwrap();
    let url = server.url();
    let mut connection = connect(&server).await;
    let settings: (String, String, String) = sqlx::query_as(
        "SELECT current_setting('max_connections'), current_setting('fsync'), current_setting('synchronous_commit')",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(settings, ("40".into(), "off".into(), "on".into()));
    sqlx::raw_sql("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)")
        .execute(&mut connection)
        .await
        .unwrap();

    server.restart().await.unwrap();
    let mut connection = connect(&server).await;
    sqlx::query("INSERT INTO kept VALUES (2)").execute(&mut connection).await.unwrap();

    server.stop_immediately().await.unwrap();
    assert!(PgConnection::connect(&server.url()).await.is_err(), "it is down");
    assert!(
        sqlx::query("SELECT 1").execute(&mut connection).await.is_err(),
        "its sessions have ended"
    );
    server.stop().await.expect("to stop it once more is no error");

    server.start_again().await.unwrap();
    server.start_again().await.expect("to start it once more is no error");
    let mut connection = connect(&server).await;
    let kept: i64 =
        sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(&mut connection).await.unwrap();
    assert_eq!(kept, 2);
    assert_eq!(server.url(), url);
}

#[tokio::test]
async fn a_dropped_server_is_gone() {
    let server = Server::start().await.unwrap();
    let remains = Remains::of(&server);
    assert!(remains.are_there());
    let other_handle = server.clone();
    drop(server);
    connect(&other_handle).await.close().await.unwrap();
    drop(other_handle);
    remains.must_go();
}

#[tokio::test]
async fn a_folder_without_postgresql_is_refused() {
    let folder = folder_without_programs();
    let outcome = Server::builder().binaries(&folder).start().await;
    assert!(matches!(outcome, Err(ServerError::NoBinaries { .. })), "{outcome:?}");
}

/// A folder that exists and has no programs in it.
fn folder_without_programs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[tokio::test]
async fn a_setting_that_is_wrong_is_reported_in_the_servers_words() {
    let outcome = Server::builder().setting("no_such_setting", "1").start().await;
    let error = outcome.expect_err("the server does not know it").to_string();
    assert!(error.contains("no_such_setting"), "{error}");
}

#[tokio::test]
async fn databases_are_apart() {
    let (one, other) =
        (TestDatabase::create().await.unwrap(), TestDatabase::create().await.unwrap());
    sqlx::raw_sql("CREATE TABLE mine (n int); INSERT INTO mine VALUES (1)")
        .execute(one.pool())
        .await
        .unwrap();
    assert_eq!(count(one.pool(), "mine").await.unwrap(), 1);
    assert!(count(other.pool(), "mine").await.is_err());

    let pool = one.pool_with(PgPoolOptions::new().max_connections(1)).await.unwrap();
    assert_eq!(count(&pool, "mine").await.unwrap(), 1);
    let mut connection = one.connect().await.unwrap();
    sqlx::query("INSERT INTO mine VALUES (2)").execute(&mut connection).await.unwrap();
    let mut by_url = PgConnection::connect(&one.url()).await.unwrap();
    sqlx::query("INSERT INTO mine VALUES (3)").execute(&mut by_url).await.unwrap();
    assert_eq!(count(one.pool(), "mine").await.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_databases_can_be_made_at_once() {
    let made = (0..12).map(|_| tokio::spawn(TestDatabase::create()));
    let mut names = Vec::new();
    for database in made.collect::<Vec<_>>() {
        let database = database.await.unwrap().unwrap();
        sqlx::query("SELECT 1").execute(database.pool()).await.unwrap();
        names.push(database.name().to_owned());
        database.remove().await.unwrap();
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 12);
}

#[tokio::test]
async fn a_removed_database_is_gone_with_its_sessions() {
    let server = Server::shared().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let (name, mut left_over) = (database.name().to_owned(), database.connect().await.unwrap());
    let lost_sight_of = database.pool().acquire().await.unwrap();
    database.remove().await.unwrap();
    assert!(!exists(&server, &name).await);
    assert!(sqlx::query("SELECT 1").execute(&mut left_over).await.is_err());
    drop(lost_sight_of);
}

// The runtime's only thread is the one that drops.
#[tokio::test(flavor = "current_thread")]
async fn a_dropped_database_is_gone_with_its_sessions() {
    let server = Server::shared().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let name = database.name().to_owned();
    let mut busy = database.pool().begin().await.unwrap();
    sqlx::query("SELECT 1").execute(&mut *busy).await.unwrap();
    let begun = Instant::now();
    drop(database);
    assert!(begun.elapsed() < Duration::from_secs(10), "dropping took {:?}", begun.elapsed());
    goes(&server, &name).await;
}

#[tokio::test]
async fn the_database_of_a_test_that_panics_is_gone() {
    let server = Server::shared().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let name = database.name().to_owned();
    let panicked = tokio::spawn(async move {
        let _database = database;
        panic!("as asked");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    goes(&server, &name).await;
}

#[tokio::test]
async fn a_database_can_be_dropped_when_its_server_is_down() {
    let server = Server::start().await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    server.stop_immediately().await.unwrap();
    let begun = Instant::now();
    drop(database);
    assert!(begun.elapsed() < Duration::from_secs(3), "dropping took {:?}", begun.elapsed());
}

/// Waits until a database is gone: a drop waits for it for 2 s.
async fn goes(server: &Server, database: &str) {
    let begun = Instant::now();
    while exists(server, database).await {
        assert!(begun.elapsed() < CLEAN_WITHIN, "{database} is still there");
    }
}

async fn exists(server: &Server, database: &str) -> bool {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(database)
        .fetch_one(&mut connect(server).await)
        .await
        .unwrap()
}

#[test]
fn nothing_is_left_of_a_process_that_is_killed() {
    let (mut child, remains) = spawn_child("wait");
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    remains.must_go();
}

#[test]
fn nothing_is_left_of_a_process_that_is_interrupted() {
    let (mut child, remains) = spawn_child("wait");
    // As from a terminal: to the whole group, the server and the watchdog included if they were in
    // it. TERM too, because a background job of a script is born deaf to INT.
    let signals = "kill -s INT -- \"-$1\"; kill -s TERM \"$1\" || true";
    let sent =
        Command::new("sh").args(["-c", signals, "sh", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert!(!child.wait().unwrap().success());
    remains.must_go();
}

#[test]
fn nothing_is_left_of_a_process_that_panics_aborts_or_just_ends() {
    for (ending, success) in sample([("panic", false), ("abort", false), ("return", true)]) {
        let (mut child, remains) = spawn_child(ending);
        assert_eq!(child.wait().unwrap().success(), success, "{ending}");
        remains.must_go();
    }
}

#[test]
fn nothing_is_left_of_a_process_that_dies_in_a_restart() {
    let (mut child, remains) = spawn_child("restart");
    // So that it dies at no particular moment of a restart.
    std::thread::sleep(Duration::from_millis(fastrand::u64(..300)));
    child.kill().unwrap();
    child.wait().unwrap();
    remains.must_go();
}

#[tokio::test]
async fn what_a_process_left_on_a_given_server_goes_with_the_next_one() {
    let server = Server::start().await.unwrap();
    let databases = async || -> Vec<String> {
        sqlx::query_scalar(
            "SELECT datname FROM pg_database WHERE datname LIKE 'seriatim%' ORDER BY datname",
        )
        .fetch_all(&mut connect(&server).await)
        .await
        .unwrap()
    };
    let start = |ending| Guest::start(ending, &server.url());

    let mut dead = start("wait");
    dead.child.kill().unwrap();
    dead.child.wait().unwrap();
    let left = databases().await;
    assert!(left.contains(&dead.database), "{left:?}");

    let mut living = start("wait");
    // The server may take a moment to notice that the dead one's session is gone, and then its
    // databases stay for the process after the next: the promise is that they go, and the living
    // one's do not.
    let last = poll(async || {
        let mut last = start("return");
        assert!(last.child.wait().unwrap().success());
        let left = databases().await;
        assert!(left.contains(&living.database), "in use: {left:?}");
        (!left.contains(&dead.database)).then_some(last)
    })
    .await;
    assert!(!databases().await.contains(&last.database), "dropped by its own process");
    living.child.kill().unwrap();
    living.child.wait().unwrap();
    connect(&server).await.close().await.expect("no test stopped the given server");
}

async fn poll<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begun.elapsed() < CLEAN_WITHIN * 4, "did not happen");
    }
}

/// The folder and the address that a server must not leave behind.
struct Remains {
    folder: PathBuf,
    address: String,
}

impl Remains {
    fn of(server: &Server) -> Self {
        let folder = server.data_directory().unwrap().parent().unwrap().to_path_buf();
        let address = server.url().split(['@', '/']).nth(3).unwrap().to_owned();
        Self { folder, address }
    }

    fn are_there(&self) -> bool {
        self.folder.exists() || TcpStream::connect(&self.address).is_ok()
    }

    fn must_go(&self) {
        let begun = Instant::now();
        while self.are_there() {
            assert!(
                begun.elapsed() < CLEAN_WITHIN,
                "{} or {} is still there",
                self.folder.display(),
                self.address
            );
            // No signal tells that a stranger's process has ended.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// This test binary again, running [`child`] alone.
fn child_command(ending: &str) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["features::testing::child", "--exact", "--ignored", "--nocapture"])
        .env(ENDING, ending)
        .env_remove("DATABASE_URL")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// The words after `ready` that the child prints once it has its server.
fn ready(child: &mut Child) -> Vec<String> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let line = output.by_ref().lines().map_while(Result::ok).find_map(|line| {
        let (_, words) = line.split_once("ready ")?;
        Some(words.split_whitespace().map(str::to_owned).collect())
    });
    // The output at its end needs a reader, or printing fails.
    child.stdout = Some(output.into_inner());
    line.expect("the child starts its server")
}

fn spawn_child(ending: &str) -> (Child, Remains) {
    let mut child = child_command(ending).spawn().unwrap();
    let words = ready(&mut child);
    let remains = Remains { folder: PathBuf::from(&words[1]), address: words[2].clone() };
    (child, remains)
}

/// A process that uses a server of ours by `DATABASE_URL`.
struct Guest {
    child: Child,
    database: String,
}

impl Guest {
    fn start(ending: &str, url: &str) -> Self {
        let mut child = child_command(ending).env("DATABASE_URL", url).spawn().unwrap();
        let words = ready(&mut child);
        assert_eq!(words.len(), 1, "it has no server of its own");
        Self { child, database: words[0].clone() }
    }
}

/// A process with a server, a database, a child of its own, and an ending.
#[tokio::test]
#[ignore = "run by the tests above, in a process of its own"]
async fn child() {
    let ending = std::env::var(ENDING).expect("set by the test that runs this");
    let server = Server::shared().await.unwrap();
    let database = TestDatabase::create().await.unwrap();
    assert_eq!(database.server().url(), server.url(), "there is one shared server");
    // Outlives us, and must not keep the server alive by what it inherits.
    let mut grandchild = Command::new("sleep");
    grandchild.arg("10").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut grandchild = grandchild.spawn().unwrap();

    // In one write, on a line of its own: the test harness prints too.
    if server.is_private() {
        let remains = Remains::of(&server);
        println!("\nready {} {} {}", database.name(), remains.folder.display(), remains.address);
    } else {
        println!("\nready {}", database.name());
    }
    match ending.as_str() {
        "wait" => std::future::pending().await,
        "panic" => panic!("as asked"),
        "abort" => std::process::abort(),
        "restart" => loop {
            server.stop_immediately().await.unwrap();
            server.start_again().await.unwrap();
        },
        _ => database.remove().await.unwrap(),
    }
    grandchild.try_wait().unwrap();
}
