//! The connections beside the application's pool, which never wait behind its jobs.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, PgPool, Postgres};
use tokio::time::{sleep, timeout};

use crate::primary::is_followed;

/// For maintenance and late records. Wake-ups, the monitor and the presence have one more each.
const CONNECTIONS: u32 = 2;

/// Time between two looks at where to connect, while a connection is waited for.
const LOOK: Duration = Duration::from_millis(100);

/// Bounds the question to a server why it gives no connection.
const ASK_LIMIT: Duration = Duration::from_secs(1);
const NO_ANSWER: &str = "the server gave no connection in time";

/// A pool that goes where the presence goes: what leases keep is settled where it is extended.
#[derive(Debug)]
pub(crate) struct SidePool {
    main: PgPool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Where to connect from now on.
    target: Arc<PgConnectOptions>,
    /// Earlier targets on the same server.
    same: Vec<Weak<PgConnectOptions>>,
    /// The options of `pool`.
    options: Arc<PgConnectOptions>,
    pool: PgPool,
}

impl SidePool {
    pub(crate) fn new(main: &PgPool) -> Self {
        let options = main.connect_options();
        let pool = pool_of(main, &options, CONNECTIONS);
        let state = State { target: Arc::clone(&options), same: Vec::new(), options, pool };
        Self { main: main.clone(), state: Mutex::new(state) }
    }

    /// Connects there from now on. Connections that are in use stay what they are. `same` says that
    /// the server is known to be that of before.
    pub(crate) fn follow(&self, options: &Arc<PgConnectOptions>, same: bool) {
        self.with(|state| {
            if Arc::ptr_eq(&state.target, options) {
                return;
            }
            let before = std::mem::replace(&mut state.target, Arc::clone(options));
            state.same.push(Arc::downgrade(&before));
            state.same.retain(|of| same && of.strong_count() > 0);
        });
    }

    /// Returns where it connects to.
    pub(crate) fn target(&self) -> Arc<PgConnectOptions> {
        self.with(|state| Arc::clone(&state.target))
    }

    /// Gets a connection within 5 s, wherever it leads by then.
    pub(crate) async fn acquire(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        loop {
            let (pool, target) = self.pool();
            let conn = tokio::select! {
                conn = pool.acquire() => conn,
                () = self.leaves(&target) => continue,
            };
            return match conn {
                Err(error) => Err(why_none(&pool, error).await),
                conn => conn,
            };
        }
    }

    /// Waits until it connects to another place than `target`. A connection that is being opened
    /// there may be refused again and again.
    pub(crate) async fn leaves(&self, target: &Arc<PgConnectOptions>) {
        while Arc::ptr_eq(&self.target(), target) {
            sleep(LOOK).await;
        }
    }

    /// Gets a connection within 5 s to the server that `origin` led to: what was claimed there is
    /// released and settled there. `None` is where the presence is.
    pub(crate) async fn acquire_at(
        &self,
        origin: Option<&Arc<PgConnectOptions>>,
    ) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        let apart = |origin: &&Arc<_>| !self.leads_as(origin) && !is_followed(origin);
        let Some(elsewhere) = origin.filter(apart) else {
            return self.acquire().await;
        };
        let mut conn = one_of(&self.main, elsewhere).acquire().await?;
        conn.close_on_drop();
        Ok(conn)
    }

    /// Returns whether these options are known to lead to the server of the present ones.
    fn leads_as(&self, options: &Arc<PgConnectOptions>) -> bool {
        let is = |of: &Weak<PgConnectOptions>| std::ptr::eq(of.as_ptr(), Arc::as_ptr(options));
        self.with(|state| Arc::ptr_eq(&state.target, options) || state.same.iter().any(is))
    }

    /// Returns a pool of one more connection, for a session of its own.
    pub(crate) fn one(&self) -> PgPool {
        one_of(&self.main, &self.target())
    }

    pub(crate) async fn close(&self) {
        self.pool().0.close().await;
    }

    /// Returns the pool, and where it connects to. It belongs to the runtime of the caller: a new
    /// pool is made here, not by the presence's thread.
    fn pool(&self) -> (PgPool, Arc<PgConnectOptions>) {
        self.with(|state| {
            if !Arc::ptr_eq(&state.options, &state.target) {
                state.options = Arc::clone(&state.target);
                state.pool = pool_of(&self.main, &state.options, CONNECTIONS);
            }
            (state.pool.clone(), Arc::clone(&state.options))
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // Nothing panics under the lock.
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Waits until the pool connects to another place than by `options`.
pub(crate) async fn led_elsewhere(pool: &PgPool, options: &Arc<PgConnectOptions>) {
    while Arc::ptr_eq(&pool.connect_options(), options) {
        sleep(LOOK).await;
    }
}

/// Returns why a pool gave no connection. While it waits for one, it tries to connect again and
/// again, and then says that its time is over: so it sounds as if all were in use. The server's own
/// reason comes first, if it gives no connection.
pub(crate) async fn why_none(pool: &PgPool, error: sqlx::Error) -> sqlx::Error {
    if !matches!(error, sqlx::Error::PoolTimedOut) {
        return error;
    }
    let options = pool.connect_options();
    let no_answer = || sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, NO_ANSWER));
    match timeout(ASK_LIMIT, PgConnection::connect_with(&options)).await {
        Err(_) => no_answer(),
        Ok(Err(of_server)) => of_server,
        // It is back by now, or all are in use.
        Ok(Ok(conn)) => {
            // The session ends with its socket, whatever becomes of the farewell.
            drop(conn.close().await);
            if pool.size() < pool.options().get_max_connections() { no_answer() } else { error }
        }
    }
}

/// Returns a pool of one connection like those of `pool`, with these options. Belongs to the
/// runtime that calls it.
pub(crate) fn one_of(pool: &PgPool, options: &Arc<PgConnectOptions>) -> PgPool {
    pool_of(pool, options, 1)
}

fn pool_of(pool: &PgPool, options: &Arc<PgConnectOptions>, connections: u32) -> PgPool {
    pool.options()
        .clone()
        .max_connections(connections)
        .min_connections(0)
        .acquire_timeout(Duration::from_secs(5))
        .connect_lazy_with((**options).clone())
}
