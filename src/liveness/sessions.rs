//! The monitor: one session per process checks the sessions that hold its running jobs. While the
//! pool is led to another server, it is one session for each.
//!
//! A session can die while its process lives: the server restarts or fails over, an operator
//! terminates the backend, the network parts. Its locks are gone then, and another worker may take
//! the group over a grace after the first suspicion. A handler may be using its hold's own
//! connection, so the monitor asks for all holds. A hold that was not seen alive for `PROOF_LIMIT`
//! counts as lost: its handler is dropped before the grace ends.
//!
//! A handler can end the transaction itself, and its session lives on without the locks. So the
//! monitor asks for the sessions' transactions as well.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, PgPool};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::liveness::side_pool::one_of;
use crate::primary::is_followed;
use crate::store::{Hold, ServerId, SessionId, Sessions, Store, keep_open};

/// Time between the begins of two checks.
const INTERVAL: Duration = Duration::from_millis(500);
/// Bounds the time for an answer.
const ANSWER: Duration = Duration::from_millis(500);
/// Bounds the time for an answer to a check that begins after holds should count as lost.
const LATE_ANSWER: Duration = Duration::from_millis(250);
/// Delay after a check that failed.
const RETRY: Duration = Duration::from_millis(50);
/// A hold counts as lost if its last good check began longer ago than this. With the wind-up of a
/// dropped handler it stays well below the grace of a take-over.
pub(crate) const PROOF_LIMIT: Duration = Duration::from_millis(1250);

/// The holds of a process.
#[derive(Debug, Default)]
pub(crate) struct SessionMonitor {
    holds: Mutex<Holds>,
}

#[derive(Debug, Default)]
struct Holds {
    next: u64,
    watched: HashMap<u64, Watched>,
}

/// The monitor's own sessions, by their servers.
type MonitorSessions = HashMap<Option<ServerId>, PgConnection>;

/// The result of a check on one server.
#[derive(Debug)]
struct Found {
    alive: Sessions,
    /// The jobs that are requested to be cancelled.
    cancels: Vec<i64>,
}

#[derive(Debug, Clone)]
struct Watched {
    job: i64,
    session: SessionId,
    /// The options that the session was opened with, if they are known.
    options: Option<Arc<PgConnectOptions>>,
    /// The transaction that has the locks.
    xid: Option<i64>,
    /// The settle has begun, and may end the transaction at any time.
    settling: bool,
    /// The handler has ended the transaction.
    ended: bool,
    /// When the statement that last proved the session alive was sent.
    proved: Instant,
    signals: Signals,
}

/// The signals of the monitor to a running attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signals {
    /// The hold is lost: the handler must stop now.
    pub(crate) lost: CancellationToken,
    /// A request to cancel the job was found.
    pub(crate) cancel: CancellationToken,
}

/// A hold that the monitor checks until this is dropped.
#[derive(Debug)]
pub(crate) struct SessionWatch {
    session_monitor: Arc<SessionMonitor>,
    key: u64,
}

impl Drop for SessionWatch {
    fn drop(&mut self) {
        self.session_monitor.holds().watched.remove(&self.key);
    }
}

impl SessionWatch {
    /// From here on the end of the transaction is the settle's.
    pub(crate) fn begin_settle(&self) {
        if let Some(watched) = self.session_monitor.holds().watched.get_mut(&self.key) {
            watched.settling = true;
        }
    }

    /// Returns whether the hold was lost because the handler had ended its transaction.
    pub(crate) fn was_ended(&self) -> bool {
        self.session_monitor.holds().watched.get(&self.key).is_some_and(|watched| watched.ended)
    }
}

impl SessionMonitor {
    /// Watches the hold of a job. `options` is what its session was opened with. `since` is when
    /// the statement that took it was sent.
    pub(crate) fn watch(
        self: &Arc<Self>,
        job: i64,
        hold: Hold,
        options: Option<Arc<PgConnectOptions>>,
        since: Instant,
        signals: Signals,
    ) -> SessionWatch {
        let Hold { session, xid, .. } = hold;
        let (settling, ended, proved) = (false, false, since);
        let watched = Watched { job, session, options, xid, settling, ended, proved, signals };
        let mut holds = self.holds();
        let key = holds.next;
        holds.next += 1;
        holds.watched.insert(key, watched);
        SessionWatch { session_monitor: Arc::clone(self), key }
    }

    fn holds(&self) -> MutexGuard<'_, Holds> {
        // Nothing panics under the lock; a poisoned map is still a map.
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks until `stop`. Errors go to `report`.
    pub(crate) async fn run(
        &self,
        store: &Store,
        pool: &PgPool,
        stop: &CancellationToken,
        report: impl Fn(BackgroundError),
    ) {
        let mut kept = MonitorSessions::new();
        let mut next = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(next) => {}
            }
            let begun = Instant::now();
            next = begun + INTERVAL;
            let watched = self.holds().by_server();
            // A session that no hold needs stays, for the next ones, unless others are needed.
            kept.retain(|server, _| watched.is_empty() || watched.contains_key(server));
            // A check that comes too late (the process was frozen) is still made: the sessions may
            // live.
            let deadline = self.deadline();
            let limit =
                if deadline > begun { deadline.min(begun + ANSWER) } else { begun + LATE_ANSWER };
            // Beside each other: a server that does not answer must not delay another one's holds.
            let checks = watched.into_iter().map(|(server, watched)| {
                let conn = kept.remove(&server);
                // There is no other try: to open a session takes many round trips.
                let limit = if conn.is_none() { deadline.max(limit) } else { limit };
                async move {
                    let checked = timeout_at(limit, check(store, pool, conn, server, &watched));
                    (server, checked.await, watched, limit)
                }
            });
            let mut checks: FuturesUnordered<_> = checks.collect();
            while let Some((server, checked, watched, limit)) = checks.next().await {
                let error = match checked {
                    Ok(Ok((conn, found))) => {
                        self.apply(begun, &watched, &found);
                        kept.insert(server, conn);
                        continue;
                    }
                    // Dropped, not returned: a new connection tells whether the server is there.
                    Ok(Err(error)) => BackgroundError::SessionMonitor(error),
                    Err(_) => BackgroundError::TooSlow {
                        activity: "a check of the holds",
                        limit: limit.saturating_duration_since(begun),
                    },
                };
                next = Instant::now() + RETRY;
                report(error);
            }
            self.expire();
        }
    }

    /// Returns when the first hold counts as lost unless it is seen alive.
    fn deadline(&self) -> Instant {
        let holds = self.holds();
        let first = holds.watched.values().map(|w| w.proved).min();
        first.unwrap_or_else(Instant::now) + PROOF_LIMIT
    }

    /// Applies the answer of a check that began at `begun` to the holds that were watched then.
    fn apply(&self, begun: Instant, asked_for: &HashMap<u64, Watched>, found: &Found) {
        let mut holds = self.holds();
        for key in asked_for.keys() {
            let Some(watched) = holds.watched.get_mut(key) else {
                continue;
            };
            match found.alive.get(&(watched.session.pid, watched.session.since)) {
                // The settle would have said that it begins before it was sent.
                Some(xid) if has_left(watched.xid, *xid) && !watched.settling => {
                    watched.ended = true;
                    watched.signals.lost.cancel();
                }
                Some(_) => watched.proved = watched.proved.max(begun),
                None => watched.signals.lost.cancel(),
            }
            if found.cancels.contains(&watched.job) {
                watched.signals.cancel.cancel();
            }
        }
    }

    fn expire(&self) {
        let now = Instant::now();
        for watched in self.holds().watched.values() {
            if now >= watched.proved + PROOF_LIMIT {
                watched.signals.lost.cancel();
            }
        }
    }
}

/// Returns whether a session that held a job in one transaction has left it.
pub(crate) fn has_left(held_in: Option<i64>, now: Option<i64>) -> bool {
    held_in.is_some() && now != held_in
}

impl Holds {
    /// The holds, by the servers that they are on.
    fn by_server(&self) -> HashMap<Option<ServerId>, HashMap<u64, Watched>> {
        let mut servers: HashMap<_, HashMap<_, _>> = HashMap::new();
        for (key, watched) in &self.watched {
            servers.entry(watched.session.server).or_default().insert(*key, watched.clone());
        }
        servers
    }
}

/// Checks the holds of one server, on `kept` or a new session there.
async fn check(
    store: &Store,
    pool: &PgPool,
    kept: Option<PgConnection>,
    server: Option<ServerId>,
    watched: &HashMap<u64, Watched>,
) -> Result<(PgConnection, Found), sqlx::Error> {
    // A check that is given up drops its connection.
    let mut conn = if let Some(conn) = kept {
        conn
    } else {
        let own = watched.values().find_map(|w| w.options.as_ref());
        connect(store, pool, (server, own)).await?
    };
    let pids: Vec<_> = watched.values().map(|w| w.session.pid).collect();
    let jobs: Vec<_> = watched.values().map(|w| w.job).collect();
    let (alive, cancels) = store.check_holds(&mut conn, &pids, &jobs).await?;
    Ok((conn, Found { alive, cancels }))
}

/// Opens a session on the server, where the pool leads now or led when the holds were taken. The
/// process ids of one server mean nothing on another: a session elsewhere judges nothing.
async fn connect(
    store: &Store,
    pool: &PgPool,
    (server, own): (Option<ServerId>, Option<&Arc<PgConnectOptions>>),
) -> Result<PgConnection, sqlx::Error> {
    let present = pool.connect_options();
    let left = |own: &&Arc<_>| server.is_some() && !Arc::ptr_eq(own, &present);
    let before = own.filter(left).filter(|_| !is_followed(&present));
    let mut failed = None;
    for options in [Some(&present), before].into_iter().flatten() {
        match open(store, one_of(pool, options), server).await {
            Ok(Some(conn)) => return Ok(conn),
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
    }
    let message = "the pool leads to another server than that of a running job";
    Err(failed.unwrap_or_else(|| sqlx::Error::Protocol(message.to_owned())))
}

/// Opens a session; `None` if it is on another server.
async fn open(
    store: &Store,
    pool: PgPool,
    server: Option<ServerId>,
) -> Result<Option<PgConnection>, sqlx::Error> {
    let mut conn = pool.acquire().await?.detach();
    if server.is_none() {
        keep_open(&mut conn).await?;
        return Ok(Some(conn));
    }
    let found = store.keep_open_on(&mut conn).await?;
    Ok((found == server).then_some(conn))
}
