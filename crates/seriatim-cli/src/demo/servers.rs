//! The private servers of the demo.

use std::time::Duration;

use seriatim::Client;
use seriatim::primary::{Follow, FollowError, HostsError};
use seriatim::shards::{ShardError, ShardId, Shards};
use seriatim::testing::{Server, ServerError, TestDatabase};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::failure::Failure;

/// A server with a standby, of which one is the primary.
pub(super) struct Pair {
    pub(super) shard: ShardId,
    pub(super) primary: Server,
    pub(super) standby: Server,
}

/// The servers, each with its database. They end when dropped, and their files are removed.
pub(super) struct Servers {
    pub(super) shards: Shards,
    /// The URL of each, in the order of their numbers.
    pub(super) urls: Vec<String>,
    pub(super) version: String,
    _databases: Vec<TestDatabase>,
    /// The one that fails over. Behind the databases: without its standby the primary commits
    /// nothing.
    pub(super) pair: Option<Pair>,
}

fn failed(what: &str) -> impl FnOnce(ServerError) -> Failure {
    Failure::could_not::<ServerError>(what)
}

impl Servers {
    /// Starts so many. With `failover` one of them has a standby.
    pub(super) async fn start(count: u16, failover: bool) -> Result<Self, Failure> {
        let starting: Vec<_> = (0..count).map(|_| tokio::spawn(Server::start())).collect();
        let mut servers = Vec::new();
        for start in starting {
            let started = start.await.map_err(Failure::could_not("start a private PostgreSQL"))?;
            servers.push(started.map_err(failed("start a private PostgreSQL"))?);
        }
        // The second one, if there are several: the page shows it between others.
        let fails_over = failover.then_some(usize::from(count > 1));
        let (mut databases, mut urls, mut pools) = (Vec::new(), Vec::new(), Vec::new());
        let mut pair = None;
        for (number, server) in (0..count).zip(&servers) {
            let shard = ShardId::new(number).map_err(Failure::could_not("number the servers"))?;
            let database = TestDatabase::create_on(server).await;
            let database = database.map_err(failed("make its tables"))?;
            let mut url = database.url();
            let mut pool = database.pool().clone();
            if count > 1 {
                Client::default().migrate_shard(&pool, shard).await?;
            }
            if fails_over == Some(usize::from(number)) {
                let standby = Server::builder().standby_of(server).start().await;
                let standby = standby.map_err(failed("start a standby"))?;
                url = with_standby(&url, &standby)?;
                let follow = Follow::url(&url);
                let follow = follow.map_err(Failure::could_not::<HostsError>("read the hosts"))?;
                let options = PgPoolOptions::new();
                let options = options.max_connections(20).acquire_timeout(Duration::from_secs(5));
                let connected = follow.connect(options).await;
                pool = connected.map_err(Failure::could_not::<FollowError>("connect"))?;
                pair = Some(Pair { shard, primary: server.clone(), standby });
            }
            databases.push(database);
            urls.push(url);
            pools.push((shard, pool));
        }
        let shards = Shards::new(pools);
        let shards = shards.map_err(Failure::could_not::<ShardError>("number the servers"))?;
        let version = servers.first().map(|server| server.version().to_owned());
        let version = version.unwrap_or_default();
        Ok(Self { shards, urls, version, _databases: databases, pair })
    }

    /// Returns whether there are several.
    pub(super) fn several(&self) -> bool {
        self.urls.len() > 1
    }

    /// Returns the environment variable that names them, with its value.
    pub(super) fn variable(&self) -> (&'static str, String) {
        if !self.several() {
            return ("DATABASE_URL", self.urls.concat());
        }
        let numbered = self.shards.iter().zip(&self.urls);
        let numbered: Vec<_> = numbered.map(|((shard, _), url)| format!("{shard}={url}")).collect();
        ("SERIATIM_SERVERS", numbered.join(" "))
    }
}

/// Returns the URL with the standby as a second host.
fn with_standby(url: &str, standby: &Server) -> Result<String, Failure> {
    let port = |url: &str| url.parse::<PgConnectOptions>().map(|options| options.get_port());
    let (own, other) = (port(url)?, port(&standby.url())?);
    Ok(url.replacen(&format!(":{own}/"), &format!(":{own},127.0.0.1:{other}/"), 1))
}
