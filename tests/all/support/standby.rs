//! A server with a standby that follows it, and can take its place.

use seriatim::testing::{Server, ServerError, TestDatabase};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

/// A standby of the server, without which that commits nothing; `None` where there is none to be
/// had.
pub(crate) async fn standby_of(server: &Server) -> Option<Server> {
    match Server::builder().standby_of(server).start().await {
        Ok(standby) => Some(standby),
        Err(reason @ ServerError::NoStandby { .. }) => {
            println!("skipped: there is no standby here: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
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
    pub(crate) standby: Server,
}

impl Pair {
    /// `None` where there is no standby to be had.
    pub(crate) async fn new() -> Option<Self> {
        let server = Server::builder().setting("deadlock_timeout", "100ms").start().await.unwrap();
        let database = TestDatabase::create_on(&server).await.unwrap();
        let standby = standby_of(&server).await?;
        Some(Self { server, database, standby })
    }

    pub(crate) fn old(&self) -> &PgPool {
        self.database.pool()
    }

    /// The URL of the database on the standby.
    pub(crate) fn standby_url(&self) -> String {
        self.standby.url_of(self.database.name())
    }

    /// A planned switchover: the server stops in order, and the standby takes its place.
    pub(crate) async fn switch_over(&self) -> PgPool {
        self.server.stop().await.unwrap();
        self.standby.promote().await.unwrap();
        let pool = PgPoolOptions::new().max_connections(20);
        pool.connect(&self.standby_url()).await.unwrap()
    }
}
