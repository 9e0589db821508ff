//! A standby that follows a server, and can take its place.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use seriatim::testing::{Server, TestDatabase};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgConnection, PgPool};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::{by_hand, eventually};

/// Ends when dropped.
#[derive(Debug)]
pub(crate) struct Standby {
    process: Child,
    folder: TempDir,
    programs: PathBuf,
    port: u16,
}

/// How a server ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    /// In order: all that was acknowledged is on the standby.
    Stopped,
    /// By SIGKILL.
    Killed,
}

impl Standby {
    /// A standby of the server, without which that commits nothing; or why there is none.
    pub(crate) async fn of(server: &Server, pool: &PgPool) -> Result<Self, String> {
        let (data, programs) = (server.data_directory().unwrap(), server.binaries().unwrap());
        if !programs.join("pg_basebackup").is_file() {
            return Err(String::from("the server's programs have no `pg_basebackup`"));
        }
        let options: PgConnectOptions = server.url().parse().unwrap();
        let made = Self::make(options.get_port(), data, programs, free_port());
        let standby = made.await;
        standby.is_needed_by(pool).await;
        Ok(standby)
    }

    /// A standby of this one, which was promoted, without which it commits nothing.
    pub(crate) async fn next(&self, pool: &PgPool, port: u16) -> Self {
        let data = self.folder.path().join("data");
        let standby = Self::make(self.port, &data, &self.programs, port).await;
        standby.is_needed_by(pool).await;
        standby
    }

    async fn make(from: u16, data: &Path, programs: &Path, port: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let made = Command::new(programs.join("pg_basebackup"))
            .args(["-h", "127.0.0.1", "-U", "postgres", "-R", "-c", "fast"])
            .args(["-p", &from.to_string(), "-D"])
            .arg(&path)
            .output()
            .await
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let owner = format!("--reference={}", data.display());
        let own = Command::new("chown").args(["-R", &owner]).arg(folder.path()).status();
        assert!(own.await.unwrap().success());
        let process = serve(programs, &path, port);
        Self { process, folder, programs: programs.to_owned(), port }
    }

    async fn is_needed_by(&self, pool: &PgPool) {
        by_hand(pool, "alter system set synchronous_standby_names = '*'").await;
        by_hand(pool, "select pg_reload_conf()").await;
        eventually(
            pool,
            "select count(*) from pg_stat_replication where sync_state = 'sync'",
            1_i64,
        )
        .await;
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// It ends, and its port is free.
    pub(crate) async fn ends(mut self, how: End) -> u16 {
        let signal = match how {
            End::Stopped => "-INT",
            End::Killed => "-KILL",
        };
        let id = self.process.id().unwrap().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().await.unwrap();
        assert!(sent.success());
        self.process.wait().await.unwrap();
        self.port
    }

    /// The URL of what `url` names, here.
    pub(crate) fn url(&self, url: &str) -> String {
        let options: PgConnectOptions = url.parse().unwrap();
        url.replacen(&format!(":{}/", options.get_port()), &format!(":{}/", self.port), 1)
    }

    /// It takes the place of the server.
    pub(crate) async fn is_promoted(&self, url: &str) {
        let options: PgConnectOptions = self.url(url).parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let promoted = async || -> Result<bool, sqlx::Error> {
            let mut conn: PgConnection = options.connect().await?;
            sqlx::query_scalar("select pg_promote()").fetch_one(&mut conn).await
        };
        while !matches!(promoted().await, Ok(true)) {
            assert!(Instant::now() < deadline, "it is not promoted");
            // It may just be starting.
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Starts a server on the data of a cluster, as its owner. It ends when dropped.
pub(crate) fn serve(programs: &Path, data: &Path, port: u16) -> Child {
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
        .args(["-c", "fsync=off", "-c", "max_connections=60", "-c", "deadlock_timeout=100ms"])
        .args(["-c", "max_prepared_transactions=20"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// A port that nobody listens at.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A server with a standby.
pub(crate) struct Pair {
    pub(crate) server: Server,
    pub(crate) database: TestDatabase,
    pub(crate) standby: Standby,
}

impl Pair {
    /// `None` where there is no standby to be had.
    pub(crate) async fn new() -> Option<Self> {
        // As many as the standby has.
        let server = Server::builder().setting("max_connections", "60").start().await.unwrap();
        let database = TestDatabase::create_on(&server).await.unwrap();
        match Standby::of(&server, database.pool()).await {
            Ok(standby) => Some(Self { server, database, standby }),
            Err(reason) => {
                println!("skipped: there is no standby here: {reason}");
                None
            }
        }
    }

    pub(crate) fn old(&self) -> &PgPool {
        self.database.pool()
    }

    /// A planned switchover: the server stops in order, and the standby takes its place.
    pub(crate) async fn switch_over(&self) -> PgPool {
        self.server.stop().await.unwrap();
        self.standby.is_promoted(&self.database.url()).await;
        let pool = PgPoolOptions::new().max_connections(20);
        let pool = pool.connect(&self.standby.url(&self.database.url())).await.unwrap();
        eventually(&pool, "select not pg_is_in_recovery()", true).await;
        pool
    }
}
