//! A PgBouncer in front of a database: in transaction mode a session is a client's for one
//! transaction at a time.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use seriatim::testing::TestDatabase;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tokio::time::Instant;

use crate::support::PATIENCE;

/// The pooler, or the end of the test, with the reason.
macro_rules! pooler {
    ($start:expr) => {
        match $start.await {
            Ok(pooler) => pooler,
            Err(reason) => {
                println!("skipped: there is no pooler here: {reason}");
                return;
            }
        }
    };
}
pub(crate) use pooler;

/// Ends when dropped.
#[derive(Debug)]
pub struct Pooler {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

/// Settings that allow sqlx's prepared statements: no name is left for the next transaction.
const FORGETS: &str = "server_reset_query = deallocate all\nserver_reset_query_always = 1\n";

impl Pooler {
    /// A pooler of transactions with so many sessions, which forget prepared statements; or why
    /// there is none.
    pub async fn start(database: &TestDatabase, sessions: u32) -> Result<Self, String> {
        Self::start_as(database, sessions, "transaction", FORGETS).await
    }

    /// A pooler in a mode, which was told no more than it must be.
    pub async fn plain(database: &TestDatabase, sessions: u32, mode: &str) -> Result<Self, String> {
        Self::start_as(database, sessions, mode, "").await
    }

    async fn start_as(
        database: &TestDatabase,
        sessions: u32,
        mode: &str,
        besides: &str,
    ) -> Result<Self, String> {
        if !database.server().is_private() {
            return Err(String::from("it would have to log in to a server that is not the test's"));
        }
        let server: PgConnectOptions = database.url().parse().unwrap();
        let port = free_port();
        let folder = tempfile::tempdir().unwrap();
        let settings = folder.path().join("pgbouncer.ini");
        // Version 1.18 knows no prepared statements: what a client leaves behind is in the next
        // one's way, unless it `FORGETS`.
        let text = format!(
            "[databases]\n* = host={} port={} user={}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {mode}\ndefault_pool_size = {sessions}\n\
             ignore_startup_parameters = extra_float_digits\n{besides}",
            server.get_host(),
            server.get_port(),
            server.get_username(),
        );
        std::fs::write(&settings, text).unwrap();
        let mut command = Command::new("pgbouncer");
        if is_root() {
            // It refuses to run as root, and reads its settings before it becomes another user.
            command.args(["-u", "nobody"]);
        }
        let process = command.arg(&settings).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = process.map_err(|error| format!("`pgbouncer` cannot be run: {error}"))?;
        let pooler = Self { process, port, _folder: folder };
        let deadline = Instant::now() + PATIENCE;
        let options: PgConnectOptions = pooler.url(database).parse().unwrap();
        while let Err(error) = options.connect().await {
            assert!(Instant::now() < deadline, "no connection through the pooler: {error}");
            // A process that starts has no event to wait for.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(pooler)
    }

    /// Where the database is, through the pooler, without a cache of prepared statements.
    pub fn url(&self, database: &TestDatabase) -> String {
        format!("{}&statement-cache-capacity=0", self.plain_url(database))
    }

    /// Where it is for the driver as it comes.
    pub fn plain_url(&self, database: &TestDatabase) -> String {
        let server: PgConnectOptions = database.url().parse().unwrap();
        let (direct, pooled) = (format!(":{}/", server.get_port()), format!(":{}/", self.port));
        database.url().replace(&direct, &pooled)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        // It is ours, and waited for: no process stays.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}
