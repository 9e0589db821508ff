//! The PostgreSQL server of a test.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection};
use tokio::sync::OnceCell;

use super::ServerError;
use super::binaries::{Places, checked};
use super::blocking::blocking;
use super::fetch;
use super::leftovers::{self, Key};
use super::private::{Plan, Private};
use super::standby;

/// The server of [`Server::shared`], or why there is none.
static SHARED: OnceCell<Result<Server, ServerError>> = OnceCell::const_new();

/// A PostgreSQL server for tests and examples. The [module's page](super) says where it comes from.
///
/// A `Server` is a handle and cheap to clone. A server of [`Server::start`] is stopped and its
/// files are removed soon after its last handle is dropped; the shared one, when the process ends.
#[derive(Debug, Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    origin: Origin,
    version: String,
    /// The key of the databases that this process creates on it.
    key: Key,
    created: AtomicU32,
    /// Nothing in here may belong to a runtime: each test has its own.
    template: OnceCell<Result<String, ServerError>>,
}

#[derive(Debug)]
enum Origin {
    /// `DATABASE_URL`.
    Given(String),
    Private(Private),
}

impl Server {
    /// Returns the server that all tests of this process share; the first call starts it.
    ///
    /// Later calls return the same server, or the same error.
    pub async fn shared() -> Result<Self, ServerError> {
        let shared = async {
            match env::var("DATABASE_URL") {
                Ok(url) if !url.is_empty() => Self::given(url).await,
                _ => Self::start().await,
            }
        };
        SHARED.get_or_init(|| shared).await.clone()
    }

    /// Starts a private server of the caller's own, which may be stopped and started again.
    ///
    /// It takes about a second. If many tests need a database and none harms the server, use
    /// [`Server::shared`].
    pub async fn start() -> Result<Self, ServerError> {
        Self::builder().start().await
    }

    /// Returns a builder for a private server with settings.
    pub fn builder() -> ServerBuilder {
        ServerBuilder { binaries: None, settings: Vec::new(), port: None, primary: None }
    }

    async fn given(url: String) -> Result<Self, ServerError> {
        let key = Key::random();
        // Before a database is created under the key, or another process would drop it as left
        // over.
        leftovers::hold(url.clone(), key).await?;
        let mut server = Self::new(Origin::Given(url), String::new(), key);
        let mut connection = server.connect().await?;
        let version = sqlx::query_scalar("SELECT current_setting('server_version')")
            .fetch_one(&mut connection)
            .await
            .map_err(ServerError::database("ask the server's version"))?;
        leftovers::remove(&mut connection)
            .await
            .map_err(ServerError::database("remove what ended processes left on the server"))?;
        // No other handle exists yet.
        if let Some(inner) = Arc::get_mut(&mut server.inner) {
            inner.version = version;
        }
        Ok(server)
    }

    fn new(origin: Origin, version: String, key: Key) -> Self {
        let inner =
            Inner { origin, version, key, created: AtomicU32::new(0), template: OnceCell::new() };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the URL of the database `postgres` of a private server, or `DATABASE_URL` as it is.
    pub fn url(&self) -> String {
        match &self.inner.origin {
            Origin::Given(url) => url.clone(),
            Origin::Private(server) => server.url("postgres"),
        }
    }

    /// Returns [`Server::url`] with the given database in place of its own. The name goes in as it
    /// is.
    pub fn url_of(&self, database: &str) -> String {
        match &self.inner.origin {
            Origin::Given(url) => with_database(url, database),
            Origin::Private(server) => server.url(database),
        }
    }

    /// Returns the server's version, such as `15.18 (Debian 15.18-0+deb12u1)`.
    pub fn version(&self) -> &str {
        &self.inner.version
    }

    /// Returns whether the server is this process's own, not that of `DATABASE_URL`.
    pub fn is_private(&self) -> bool {
        matches!(self.inner.origin, Origin::Private(_))
    }

    /// Returns the data directory of a private server.
    pub fn data_directory(&self) -> Option<&Path> {
        self.private().ok().map(Private::data_directory)
    }

    /// Returns the folder of a private server's programs. Only `initdb` and `postgres` are sure to
    /// be there.
    pub fn binaries(&self) -> Option<&Path> {
        self.private().ok().map(Private::binaries)
    }

    /// Stops a private server in an orderly way, for [`Server::start_again`].
    ///
    /// Sessions are ended, open transactions rolled back (PostgreSQL's *fast* mode). On a server
    /// that is not running it does nothing.
    pub async fn stop(&self) -> Result<(), ServerError> {
        self.private()?.stop("INT").await
    }

    /// Stops a private server as a crash would, for [`Server::start_again`], which then recovers.
    ///
    /// Nothing is written before it ends (PostgreSQL's *immediate* mode); committed data is kept.
    pub async fn stop_immediately(&self) -> Result<(), ServerError> {
        self.private()?.stop("QUIT").await
    }

    /// Starts a stopped private server, on the same port and data directory. Returns when it
    /// accepts connections.
    pub async fn start_again(&self) -> Result<(), ServerError> {
        self.private()?.start().await
    }

    /// Calls [`Server::stop`] and [`Server::start_again`].
    pub async fn restart(&self) -> Result<(), ServerError> {
        self.stop().await?;
        self.start_again().await
    }

    /// Promotes a private server that was started as a
    /// [standby](ServerBuilder::standby_of). Returns when it can be written to.
    ///
    /// Its primary is not stopped by this: call [`Server::stop`] or [`Server::stop_immediately`] on
    /// that before, or there are two servers that take writes.
    ///
    /// # Errors
    ///
    /// If the server is no standby, or is not promoted within 1 min.
    pub async fn promote(&self) -> Result<(), ServerError> {
        self.private()?;
        standby::promote(self.connect().await?).await
    }

    fn private(&self) -> Result<&Private, ServerError> {
        match &self.inner.origin {
            Origin::Given(_) => Err(ServerError::NotPrivate),
            Origin::Private(server) => Ok(server),
        }
    }

    /// Opens a connection to create and drop databases over.
    pub(super) async fn connect(&self) -> Result<PgConnection, ServerError> {
        let options: PgConnectOptions =
            self.url().parse().map_err(ServerError::database("read DATABASE_URL"))?;
        options.connect().await.map_err(ServerError::database("connect to the test server"))
    }

    /// Returns the name of a database that does not exist.
    pub(super) fn new_name(&self) -> String {
        let number = self.inner.created.fetch_add(1, Ordering::Relaxed);
        self.inner.key.name(&number.to_string())
    }

    /// Returns the database that tests' databases are copied from. The first call creates it by
    /// `prepare`.
    pub(super) async fn template<F>(&self, prepare: F) -> Result<String, ServerError>
    where
        F: AsyncFnOnce(&Self, &str) -> Result<(), ServerError>,
    {
        let make = async {
            let name = self.inner.key.name("template");
            prepare(self, &name).await.map(|()| name)
        };
        self.inner.template.get_or_init(|| make).await.clone()
    }
}

/// Settings for the start of a private server; from [`Server::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct ServerBuilder {
    binaries: Option<PathBuf>,
    settings: Vec<(String, String)>,
    port: Option<u16>,
    primary: Option<Server>,
}

impl ServerBuilder {
    /// Sets a setting of `postgresql.conf`, over those of this module: `fsync` off,
    /// 300 connections, 20 prepared transactions, no Unix socket.
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Takes the programs from this folder, and searches nowhere else. It needs `initdb` and
    /// `postgres`.
    pub fn binaries(mut self, folder: impl Into<PathBuf>) -> Self {
        self.binaries = Some(folder.into());
        self
    }

    /// Listens at this port. Default: any free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Makes the server a standby of this private one, by streaming replication. Default: a primary
    /// of its own.
    ///
    /// Replication is synchronous: from its start on the primary commits nothing without it, so
    /// what was acknowledged is there after a promotion. Do not drop it before the primary's last
    /// handle and databases. Programs and settings are the primary's, and then those of this
    /// builder. It needs `pg_basebackup` among the programs ([`ServerError::NoStandby`]).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use seriatim::primary::Follow;
    /// use seriatim::testing::{Server, TestDatabase};
    /// use sqlx::postgres::PgPoolOptions;
    ///
    /// let primary = Server::start().await?;
    /// let database = TestDatabase::create_on(&primary).await?;
    /// let standby = Server::builder().standby_of(&primary).start().await?;
    /// let follow = Follow::url(&database.url())?.host(standby.url_of(database.name()).parse()?);
    /// let pool = follow.connect(PgPoolOptions::new()).await?;
    ///
    /// // The failover. Within some seconds `pool` leads to the promoted server.
    /// primary.stop_immediately().await?;
    /// standby.promote().await?;
    /// # let _ = pool;
    /// # Ok(())
    /// # }
    /// ```
    pub fn standby_of(mut self, primary: &Server) -> Self {
        self.primary = Some(primary.clone());
        self
    }

    /// Starts the server. Returns when it accepts connections; a standby, when its primary waits
    /// for it with each commit.
    pub async fn start(self) -> Result<Server, ServerError> {
        let Self { binaries, settings, port, primary } = self;
        let of = primary.as_ref().map(Server::private).transpose()?;
        let given = binaries.or_else(|| of.map(|of| of.binaries().to_owned()));
        let settings = of.iter().flat_map(|of| of.settings()).cloned().chain(settings).collect();
        let binaries = blocking(move || match given {
            Some(folder) => checked(&folder),
            None => Places::of_this_machine().find()?.map_or_else(fetch::fetched, Ok),
        })
        .await?;
        let plan = Plan { binaries, settings, port, primary: of.map(Private::port) };
        let (private, version) = Box::pin(Private::create(plan)).await?;
        if let Some(primary) = &primary {
            standby::make_needed(primary.connect().await?).await?;
        }
        tracing::debug!(version, url = private.url("postgres"), "started a PostgreSQL server");
        Ok(Server::new(Origin::Private(private), version, Key::random()))
    }
}

/// Returns `url` with another database.
fn with_database(url: &str, database: &str) -> String {
    let (head, query) =
        url.split_once('?').map_or((url, None), |(head, query)| (head, Some(query)));
    let authority = head.find("://").map_or(0, |at| at + 3);
    let end = head[authority..].find('/').map_or(head.len(), |at| authority + at);
    let mut changed = format!("{}/{database}", &head[..end]);
    // A database may be named here too, and would take precedence.
    let rest = query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .filter(|part| !part.starts_with("dbname="));
    for (number, part) in rest.enumerate() {
        changed.push(if number == 0 { '?' } else { '&' });
        changed.push_str(part);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn the_database_of_a_url_is_replaced() {
        for (url, expected) in [
            ("postgres://u:p@host:5432/app", "postgres://u:p@host:5432/t"),
            ("postgres://u@host", "postgres://u@host/t"),
            ("postgres://host/?sslmode=require", "postgres://host/t?sslmode=require"),
            ("postgres:///app?host=/run/pg&dbname=app&user=u", "postgres:///t?host=/run/pg&user=u"),
        ] {
            assert_eq!(with_database(url, "t"), expected);
        }
    }
}
