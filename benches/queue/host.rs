//! Description of the machine, the server and the sources.

use std::fs;
use std::process::Command;

use serde_json::{Map, Value, json};
use sqlx::Connection;

use seriatim::testing::Server;

use crate::Result;

const SERVER_SETTINGS: [&str; 9] = [
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "max_connections",
    "autovacuum",
    "jit",
];

/// Settings of a private server beside PostgreSQL's defaults: durable, and with room.
pub(crate) const GIVEN: [(&str, &str); 5] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("shared_buffers", "256MB"),
    ("max_wal_size", "4GB"),
    // For the 500 sessions of `busy`.
    ("max_connections", "700"),
];

/// Returns the machine, the versions and the settings.
pub(crate) async fn about(server: &Server) -> Result<Value> {
    let mut connection = sqlx::PgConnection::connect(&server.url()).await?;
    let mut settings = Map::new();
    for name in SERVER_SETTINGS {
        let value: String = sqlx::query_scalar("select current_setting($1)")
            .bind(name)
            .fetch_one(&mut connection)
            .await?;
        settings.insert(name.to_owned(), value.into());
    }
    let commits_in: f64 = commit_ms(&mut connection).await?;
    connection.close().await?;
    Ok(json!({
        "seriatim": env!("CARGO_PKG_VERSION"),
        "revision": said_by("git", &["describe", "--always", "--dirty", "--exclude=*"]),
        "compiler": said_by("rustc", &["--version"]),
        "arguments": std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        "optimized": !cfg!(debug_assertions),
        "at": chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
        "os": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "cores": std::thread::available_parallelism()?.get(),
        "processor": first_value("/proc/cpuinfo", "model name"),
        "memory": first_value("/proc/meminfo", "MemTotal"),
        "load": fs::read_to_string("/proc/loadavg").ok().map(|load| load.trim().to_owned()),
        "postgresql": server.version(),
        "private server": server.is_private(),
        "one commit, ms": commits_in,
        "settings": settings,
    }))
}

/// Returns a program's answer about these sources, if the program is there.
fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    let said = command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

/// Returns the time of a durable commit, alone.
async fn commit_ms(connection: &mut sqlx::PgConnection) -> Result<f64> {
    let began = std::time::Instant::now();
    let times = 50;
    for _ in 0..times {
        // The message is written to the WAL, and needs no table.
        sqlx::query("select pg_logical_emit_message(true, 'bench', '')")
            .execute(&mut *connection)
            .await?;
    }
    Ok((began.elapsed().as_secs_f64() * 1e6 / f64::from(times)).round() / 1e3)
}

/// Returns the value of the first line of `file` that begins with `name`.
fn first_value(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}
