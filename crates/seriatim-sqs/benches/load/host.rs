//! The server that is measured.

use std::process::Stdio;

use seriatim::testing::{Server, TestDatabase};
use seriatim_sqs::{Access, Config, Keys, serve};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use crate::{Result, Settings};

/// Tells this program to be the server: the address of the database, the size of its pool, and
/// whether requests are signed.
const TOLD: &str = "SERIATIM_SQS_LOAD";

/// As `cargo bench --bench queue` has them.
const DURABLE: [(&str, &str); 4] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("shared_buffers", "256MB"),
    ("max_wal_size", "4GB"),
];

pub(crate) struct Host {
    pub(crate) endpoint: String,
    pub(crate) about: String,
    /// The processes whose processor time counts.
    pub(crate) processes: Vec<u32>,
    private: Option<Private>,
}

struct Private {
    _postgres: Server,
    database: TestDatabase,
    server: Child,
}

impl Host {
    pub(crate) fn of(endpoint: &str, process: Option<u32>) -> Self {
        let about = format!("at {endpoint}");
        let processes = process.into_iter().collect();
        Self { endpoint: endpoint.to_owned(), about, processes, private: None }
    }

    /// Starts a PostgreSQL and a server.
    pub(crate) async fn start(settings: &mut Settings) -> Result<Self> {
        let mut postgres = Server::builder();
        for (name, value) in DURABLE {
            postgres = postgres.setting(name, value);
        }
        let postgres = postgres.start().await?;
        let database = TestDatabase::create_on(&postgres).await?;
        if let Some(key) = &mut settings.signed {
            let made = Keys::new(database.pool(), &seriatim::Client::default()).add(None).await?;
            *key = format!("{}:{}", made.access_key, made.secret);
        }
        let told = format!("{} {} {}", settings.pool, settings.signed.is_some(), database.url());
        let mut server = Command::new(std::env::current_exe()?)
            .env(TOLD, told)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let out = server.stdout.take().ok_or("the server says nothing")?;
        let address = BufReader::new(out).lines().next_line().await?;
        let address = address.ok_or("the server did not start")?;
        let mut processes: Vec<u32> = server.id().into_iter().collect();
        let data = postgres.data_directory().ok_or("PostgreSQL is not private")?;
        let postmaster = std::fs::read_to_string(data.join("postmaster.pid"))?;
        processes.extend(postmaster.lines().next().and_then(|id| id.parse::<u32>().ok()));
        let about = format!(
            "seriatim, PostgreSQL {} with fsync, pool of {}",
            postgres.version(),
            settings.pool
        );
        let private = Some(Private { _postgres: postgres, database, server });
        Ok(Self { endpoint: format!("http://{address}"), about, processes, private })
    }

    /// The process of a server that this program started.
    pub(crate) fn server(&self) -> Option<u32> {
        self.private.as_ref().and(self.processes.first().copied())
    }

    /// The database of a server that this program started.
    pub(crate) fn pool(&self) -> Option<&PgPool> {
        self.private.as_ref().map(|private| private.database.pool())
    }

    pub(crate) async fn end(self) -> Result<()> {
        if let Some(mut private) = self.private {
            private.server.kill().await?;
            private.database.remove().await?;
        }
        Ok(())
    }
}

/// The settings that the server was given.
pub(crate) struct Served {
    connections: u32,
    access: Access,
    database: String,
}

impl Served {
    pub(crate) fn told() -> Option<Self> {
        let told = std::env::var(TOLD).ok()?;
        let mut told = told.splitn(3, ' ');
        Some(Self {
            connections: told.next()?.parse().ok()?,
            access: if told.next()? == "true" { Access::Signed } else { Access::Anonymous },
            database: told.next()?.to_owned(),
        })
    }

    /// Serves until it is killed.
    pub(crate) async fn serve(self) -> Result<()> {
        let pool = PgPoolOptions::new().max_connections(self.connections);
        let pool = pool.connect(&self.database).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let config = Config::new().access(self.access).connections(20_000);
        serve(listener, pool, config, std::future::pending()).await?;
        Ok(())
    }
}
