//! The monitor: one session per process checks the sessions that hold its running jobs.
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

use sqlx::{PgConnection, PgPool};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::store::{HeldJob, SessionId, Sessions, Store, in_short_tx, keep_open};

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

#[derive(Debug, Clone)]
struct Watched {
    job: i64,
    session: SessionId,
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
    /// Watches the hold of a job. `since` is when the statement that took it was sent.
    pub(crate) fn watch(
        self: &Arc<Self>,
        job: i64,
        held: &HeldJob,
        since: Instant,
        signals: Signals,
    ) -> SessionWatch {
        let HeldJob { session, xid, .. } = *held;
        let (settling, ended) = (false, false);
        let watched = Watched { job, session, xid, settling, ended, proved: since, signals };
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
        let mut conn = None;
        let mut next = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(next) => {}
            }
            let begun = Instant::now();
            next = begun + INTERVAL;
            let watched = self.holds().watched.clone();
            if watched.is_empty() {
                continue;
            }
            // A check that comes too late (the process was frozen) is still made: the sessions may
            // live.
            let limit = match self.deadline() {
                deadline if deadline > begun => deadline.min(begun + ANSWER),
                _ => begun + LATE_ANSWER,
            };
            match timeout_at(limit, check(store, pool, &mut conn, &watched)).await {
                Ok(Ok((alive, cancels))) => self.apply(begun, &watched, &alive, &cancels),
                failed => {
                    // Dropped, not returned: a new connection tells whether the server is there.
                    conn = None;
                    next = Instant::now() + RETRY;
                    report(match failed {
                        Ok(Err(error)) => BackgroundError::SessionMonitor(error),
                        _ => BackgroundError::TooSlow {
                            activity: "a check of the holds",
                            limit: limit.saturating_duration_since(begun),
                        },
                    });
                }
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
    fn apply(
        &self,
        begun: Instant,
        asked_for: &HashMap<u64, Watched>,
        alive: &Sessions,
        cancels: &[i64],
    ) {
        let mut holds = self.holds();
        for key in asked_for.keys() {
            let Some(watched) = holds.watched.get_mut(key) else {
                continue;
            };
            match alive.get(&watched.session) {
                // The settle would have said that it begins before it was sent.
                Some(xid) if *xid != watched.xid && !watched.settling => {
                    watched.ended = true;
                    watched.signals.lost.cancel();
                }
                Some(_) => watched.proved = watched.proved.max(begun),
                None => watched.signals.lost.cancel(),
            }
            if cancels.contains(&watched.job) {
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

async fn check(
    store: &Store,
    pool: &PgPool,
    kept: &mut Option<PgConnection>,
    watched: &HashMap<u64, Watched>,
) -> Result<(Sessions, Vec<i64>), sqlx::Error> {
    // Taken out, so that a check that is given up drops its connection.
    let mut conn = if let Some(conn) = kept.take() {
        conn
    } else {
        let mut conn = pool.acquire().await?.detach();
        keep_open(&mut conn).await?;
        conn
    };
    let pids = watched.values().map(|w| w.session.pid).collect();
    let jobs = watched.values().map(|w| w.job).collect();
    let found = in_short_tx(&mut conn, async |conn| {
        Ok((store.sessions(conn, pids).await?, store.cancel_requests(conn, jobs).await?))
    });
    let found = found.await?;
    *kept = Some(conn);
    Ok(found)
}
