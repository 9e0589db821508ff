//! One session per process shows by an advisory lock that the process lives, extends its leases, and judges others.
//!
//! Who can take another process's lock doubts that process's claims; a grace later they are taken over, however long
//! their leases are. A process whose session was lost takes a new lock and extends all its leases within that grace,
//! which clears the doubts; one that cannot stops its handlers before the grace is over.
//!
//! Unless the server itself has said that it goes down: then nobody can judge. When it is back, only a process that
//! announced itself on this very server is judged at once, others after `SETTLED`.

use std::collections::HashSet;
use std::io;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::liveness::context::Context;
use crate::liveness::pooler;
use crate::liveness::sessions::LIMIT;
use crate::liveness::shared_poll::PollTarget;
use crate::store::{
    HeartbeatQuery, LeasedClaim, Presence, ProcessorRow, gave_up_waiting, in_short_tx, keep_open,
};

/// Between the begins of two ticks.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long a tick may take.
const ANSWER: Duration = Duration::from_secs(1);
/// After a tick that failed.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two announcements, which also show when the process was last seen.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How long processes have to come back to a server after a restart or a failover before they are judged.
const SETTLED: Duration = Duration::from_secs(15);
/// How long after a sign that the server is down its judges cannot have taken this process for dead: less than
/// `SETTLED`, which begins when the server is up again.
const DOWN: Duration = Duration::from_secs(10);

/// What a presence is kept with.
pub(crate) struct PresenceKeeper<'a> {
    pub(crate) context: &'a Context,
    pub(crate) options: sqlx::postgres::PgConnectOptions,
    pub(crate) row: ProcessorRow,
    /// Whether to show a presence at all.
    pub(crate) wanted: bool,
}

struct Session {
    conn: PgConnection,
    /// None: no presence.
    key: Option<i64>,
    /// Which start of the server it belongs to.
    server: DateTime<Utc>,
    since: Instant,
    announced_at: Instant,
}

/// What this process knows about being seen.
#[derive(Debug, Default)]
struct Certainty {
    /// The last check that found the lock held began then; none: others judge by leases alone.
    proved: Option<Instant>,
    /// The server said that it goes down, or later could not be reached at all: the last sign of it.
    down: Option<Instant>,
    /// The server ended the session. Perhaps it goes down; the next try to connect tells.
    ended: bool,
}

impl Certainty {
    fn until(&self) -> Option<Instant> {
        let proved = self.proved? + LIMIT;
        Some(self.down.map_or(proved, |down| proved.max(down + DOWN)))
    }

    /// Takes a failure for what it says about the server.
    fn failed(&mut self, error: &sqlx::Error, now: Instant) {
        let sign = sign(error);
        match sign {
            Sign::Down => self.down = Some(now),
            // Refused by whatever is at that address: says something only after the server's own word.
            Sign::Refused if self.down.is_some() || self.ended => self.down = Some(now),
            Sign::Refused | Sign::Ended | Sign::Nothing => {}
        }
        self.ended = matches!(sign, Sign::Ended);
    }
}

#[derive(Debug, Clone, Copy)]
enum Sign {
    Down,
    Ended,
    Refused,
    Nothing,
}

fn sign(error: &sqlx::Error) -> Sign {
    match error {
        sqlx::Error::Database(e) => match e.code().as_deref() {
            // It crashed; it goes down or is not up yet.
            Some("57P02" | "57P03") => Sign::Down,
            // As in a shutdown, but so does somebody with `pg_terminate_backend`, and others judge then.
            Some("57P01") => Sign::Ended,
            _ => Sign::Nothing,
        },
        sqlx::Error::Io(e)
            if [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound].contains(&e.kind()) =>
        {
            Sign::Refused
        }
        _ => Sign::Nothing,
    }
}

impl PresenceKeeper<'_> {
    /// Keeps the presence and the leases until `stop`, and takes leave then.
    pub(crate) async fn run(mut self, stop: &CancellationToken, report: impl Fn(BackgroundError)) {
        let mut session = None;
        let mut certainty = Certainty::default();
        let mut next = Instant::now();
        let leases = &self.context.leases;
        if !self.context.pooler_state.is_open().await {
            return;
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep_until(next) => {}
                () = leases.came.notified() => {
                    // Nothing to do before its first extension.
                    next = leases.next().map_or(next, |at| next.min(at));
                    continue;
                }
            }
            let begun = Instant::now();
            let limit = match certainty.proved.map(|proved| proved + LIMIT) {
                Some(deadline) if deadline > begun => deadline.min(begun + ANSWER),
                _ => begun + ANSWER,
            };
            match timeout_at(limit, self.tick(&mut session, &mut certainty)).await {
                Ok(Ok(())) => next = begun + INTERVAL,
                failed => {
                    // Dropped, not used again: whatever is wrong with it, a new one tells more.
                    session = None;
                    next = Instant::now() + AGAIN;
                    report(match failed {
                        Ok(Err(error)) => {
                            certainty.failed(&error, Instant::now());
                            BackgroundError::Presence(error)
                        }
                        _ => {
                            BackgroundError::TooSlow { activity: "a presence check", limit: ANSWER }
                        }
                    });
                }
            }
            let now = Instant::now();
            leases.expire(now, certainty.until());
            next = leases.next().map_or(next, |at| next.min(at.max(now + AGAIN / 5)));
        }
        if let Some(Session { mut conn, .. }) = session {
            let leave = async {
                let (store, id) = (&self.context.store, self.row.id);
                in_short_tx(&mut conn, async |conn| store.leave(conn, id).await).await?;
                conn.close().await
            };
            if let Ok(Err(error)) = timeout_at(Instant::now() + ANSWER, leave).await {
                report(BackgroundError::Presence(error));
            }
        }
    }

    async fn tick(
        &mut self,
        kept: &mut Option<Session>,
        certainty: &mut Certainty,
    ) -> Result<(), sqlx::Error> {
        let begun = Instant::now();
        // Taken out, so that a tick that is given up drops its connection.
        let (mut session, fresh) = match kept.take() {
            Some(session) => (session, false),
            None => (self.connect(certainty).await?, true),
        };
        let mut extend_all = fresh;
        let mut suspected = Vec::new();
        let long_here = session.since.elapsed() >= SETTLED;
        // Without a presence of its own it looks at the others' locks each time.
        let mut maybe_dead = true;
        if let Some(key) = session.key {
            let (id, server) = (self.row.id, session.server);
            let (store, conn) = (&self.context.store, &mut session.conn);
            let presence =
                look(self.context, conn, HeartbeatQuery::new(id, key, long_here, server)).await?;
            if !presence.held {
                in_short_tx(conn, async |conn| store.withdraw_presence(conn, id).await).await?;
            }
            maybe_dead = presence.maybe_dead || !presence.held;
            suspected = presence.suspected;
            if presence.held {
                *certainty = Certainty { proved: Some(begun), ..Certainty::default() };
            } else {
                // The session is not the one that took the lock: there is a pooler between.
                pooler::notice(self.context, true);
                session.key = None;
                extend_all = true;
            }
        }
        if session.key.is_none() {
            *certainty = Certainty::default();
        }
        self.extend(&mut session.conn, &suspected, extend_all).await?;
        self.look_around(&mut session).await?;
        if maybe_dead {
            self.judge(&mut session, long_here).await?;
        }
        *kept = Some(session);
        Ok(())
    }

    /// Opens a session with a lock of its own, and announces it. A new lock each time: an old session may linger.
    async fn connect(&self, certainty: &mut Certainty) -> Result<Session, sqlx::Error> {
        let mut conn = PgConnection::connect_with(&self.options).await?;
        keep_open(&mut conn).await?;
        let store = &self.context.store;
        let begun = Instant::now();
        let key = in_short_tx(&mut conn, async |conn| {
            let server = store.server_since(conn).await?;
            let mut key = None;
            // The host may have a lock of the same number, once in a great while.
            for _ in 0..3 {
                let number = fastrand::i64(..);
                let wanted = self.wanted && !self.context.pooler_state.pooled.is_cancelled();
                if wanted && store.take_presence(conn, number).await? {
                    key = Some(number);
                    break;
                }
            }
            if key.is_some() {
                // Whatever becomes of the announcement, from here on others may judge.
                certainty.proved.get_or_insert(begun);
            }
            store.announce(conn, &self.row, key, server).await?;
            Ok((key, server))
        });
        let (key, server) = key.await?;
        self.context.leases.announced.cancel();
        let now = Instant::now();
        Ok(Session { conn, key, server, since: now, announced_at: now })
    }

    async fn extend(
        &self,
        conn: &mut PgConnection,
        suspected: &[uuid::Uuid],
        all: bool,
    ) -> Result<(), sqlx::Error> {
        let asked_at = Instant::now();
        let claims = self.context.leases.due(asked_at, suspected, all);
        if claims.is_empty() {
            return Ok(());
        }
        let store = &self.context.store;
        let extended =
            in_short_tx(conn, async |conn| store.extend_leases(conn, &claims).await).await;
        let extended = match extended {
            // Nothing was extended; the next try is soon.
            Err(error) if gave_up_waiting(&error) => HashSet::new(),
            extended => extended?,
        };
        let still_claimed = if extended.len() < claims.len() {
            in_short_tx(conn, async |conn| store.still_claimed(conn, &claims).await).await?
        } else {
            HashSet::new()
        };
        self.context.leases.extended(asked_at, &claims, &extended, &still_claimed);
        Ok(())
    }

    /// Claims that were taken away, requests to cancel, and a sign of life now and then.
    async fn look_around(&self, session: &mut Session) -> Result<(), sqlx::Error> {
        let store = &self.context.store;
        let conn = &mut session.conn;
        let leases = &self.context.leases;
        let claims = leases.due(Instant::now(), &[], true);
        if !claims.is_empty() {
            let jobs = |claim: &LeasedClaim| [&[claim.job], &*claim.behind].concat();
            let jobs = claims.iter().flat_map(jobs).collect();
            let found = in_short_tx(conn, async |conn| {
                Ok((
                    store.still_claimed(conn, &claims).await?,
                    store.cancel_requests(conn, jobs).await?,
                ))
            });
            let (still_claimed, asked) = found.await?;
            leases.check(&claims, &still_claimed);
            leases.cancel(&asked);
        }
        if session.announced_at.elapsed() >= HEARTBEAT {
            let (key, server) = (session.key, session.server);
            in_short_tx(conn, async |conn| store.announce(conn, &self.row, key, server).await)
                .await?;
            session.announced_at = Instant::now();
        }
        Ok(())
    }

    /// Doubts the claims of processes whose locks nobody holds.
    async fn judge(&self, session: &mut Session, long_here: bool) -> Result<(), sqlx::Error> {
        let store = &self.context.store;
        let conn = &mut session.conn;
        let (id, server) = (self.row.id, session.server);
        let judged = in_short_tx(conn, async |conn| {
            store.suspect_dead_processors(conn, id, long_here, server).await
        })
        .await;
        let suspected = match judged {
            Err(error) if gave_up_waiting(&error) => return Ok(()),
            judged => judged?,
        };
        if suspected > 0 {
            tracing::info!(suspected, "claims of dead processes will be taken over");
        }
        Ok(())
    }
}

/// What a tick looks at: the presence, and whether there is something to do for those that wait.
async fn look(
    context: &Context,
    conn: &mut PgConnection,
    asks: HeartbeatQuery<'_>,
) -> Result<Presence, sqlx::Error> {
    let began = Instant::now();
    let (queues, house) = context.shared_poll.targets(began);
    let names: Vec<_> = queues.iter().map(String::as_str).collect();
    let found = context
        .store
        .heartbeat(conn, HeartbeatQuery { queues: &names, maintenance: house, ..asks })
        .await?;
    let house = found
        .awaits_maintenance
        .map(|waits| (PollTarget::Maintenance, waits.then_some(Duration::ZERO)));
    let due_in = found.due_in.iter().copied();
    let queues = queues.into_iter().map(PollTarget::Queue).zip(due_in);
    context.shared_poll.polled(began, Instant::now(), queues.chain(house));
    Ok(found)
}
