//! The presence: one session per process shows by an advisory lock that the process lives, extends
//! its leases, and polls for idle queues.
//!
//! A process that can take another's lock suspects that other's claims. They are taken over a grace
//! later, however long their leases are. A process whose session was lost takes a new lock and
//! extends all its leases within that grace, which clears the suspicions. One that cannot stops its
//! handlers before the grace ends.
//!
//! If the server itself has said that it goes down, no process can suspect another. When it is
//! back, only a process that announced itself on this very server is suspected at once, others
//! after `RESTART_GRACE`.

use std::collections::HashSet;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::liveness::context::Context;
use crate::liveness::failure_detector::suspect_dead_processors;
use crate::liveness::pooler;
use crate::liveness::sessions::PROOF_LIMIT;
use crate::liveness::shared_poll::PollTarget;
use crate::primary::is_followed;
use crate::store::{
    HeartbeatQuery, LeasedClaim, Presence, ProcessorRow, RESTART_GRACE, ServerId, gave_up_waiting,
    in_short_tx,
};

/// Time between the begins of two ticks.
const INTERVAL: Duration = Duration::from_millis(500);
/// Bounds a tick. While nothing is proved, one that was too slow is followed by one that may take
/// twice as long, up to 8 s: a new session needs many round trips and compiles what it calls. On a
/// far server, or a machine with many times more work than cores, it would be given up each time.
const ANSWER: Duration = Duration::from_secs(1);
const LONGEST_ANSWER: u32 = 8;
/// The part of it that the server has for a heartbeat.
const HEARTBEAT: f64 = 0.6;
/// Delay after a tick that failed.
const RETRY: Duration = Duration::from_millis(100);
/// Bounds the connect of a new session: one that hangs does not hear that the network is back.
const CONNECT: Duration = Duration::from_secs(2);
/// Bounds a try to open a session where the pool leads now, beside one that lives.
const MOVE: Duration = Duration::from_millis(300);
/// Time between two announcements, which also record when the process was last seen.
const ANNOUNCE: Duration = Duration::from_secs(10);
/// How long after its last proof a process that saw its server go down keeps its handlers. The next
/// server, here or elsewhere, came later than that proof, and takes nothing over for
/// `RESTART_GRACE`. This is less, also if the way to it is longer for this process than for others.
const DOWN: Duration = Duration::from_secs(13);

/// Keeps the presence of a process.
pub(crate) struct PresenceKeeper<'a> {
    pub(crate) context: &'a Context,
    /// The application's: where it leads, the presence goes.
    pub(crate) pool: &'a PgPool,
    pub(crate) row: ProcessorRow,
    /// Whether to take a presence lock at all.
    pub(crate) wanted: bool,
}

struct Session {
    conn: PgConnection,
    /// The presence lock; `None` without a presence.
    key: Option<i64>,
    options: Arc<PgConnectOptions>,
    id: Option<ServerId>,
    /// The start of the server that the session belongs to.
    server: DateTime<Utc>,
    since: Instant,
    announced_at: Instant,
}

/// How surely other processes see this one.
#[derive(Debug, Default)]
struct Certainty {
    /// When the last check that found the lock held began; `None`: leases alone decide.
    proved: Option<Instant>,
    /// The server is down: it said so itself, or it ended the session and refused the next one.
    down: bool,
    /// The server ended the session. The next try to connect tells whether it goes down.
    ended: bool,
    /// The number of ticks in a row that were too slow.
    late: u32,
}

impl Certainty {
    fn ends_at(&self) -> Option<Instant> {
        Some(self.proved? + if self.down { DOWN } else { PROOF_LIMIT })
    }

    /// Returns the bound of a tick that proves the presence anew.
    fn answer(&self) -> Duration {
        ANSWER * 2_u32.saturating_pow(self.late).min(LONGEST_ANSWER)
    }

    /// Records what a failure says about the server.
    fn record_failure(&mut self, error: &sqlx::Error) {
        let sign = sign(error);
        match sign {
            Sign::Down => self.down = true,
            // Any process at that address may have refused it: counts only after the server's own
            // word.
            Sign::Refused if self.ended => self.down = true,
            Sign::Refused | Sign::Ended | Sign::Nothing => {}
        }
        self.ended = matches!(sign, Sign::Ended);
        self.late += u32::from(is_too_slow(error));
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
            // The server crashed, goes down, or is not up yet.
            Some("57P02" | "57P03") => Sign::Down,
            // A shutdown says this, but so does `pg_terminate_backend`, and then other processes
            // can suspect.
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

/// Returns whether the server ended a statement because of its time: 57014.
fn is_too_slow(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| code == "57014")
}

impl PresenceKeeper<'_> {
    /// Keeps the presence and the leases until `stop`, then withdraws the presence.
    pub(crate) async fn run(mut self, stop: &CancellationToken, report: impl Fn(BackgroundError)) {
        let mut session = None;
        let mut certainty = Certainty::default();
        let mut next = Instant::now();
        let leases = &self.context.leases;
        if !self.context.pooler_state.has_transactions().await {
            return;
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep_until(next) => {}
                () = leases.new_claim.notified() => {
                    // There is nothing to do before its first extension.
                    next = leases.next_extension().map_or(next, |at| next.min(at));
                    continue;
                }
            }
            let begun = Instant::now();
            // A handler may be stopped late by as much as a tick takes.
            let answer = if leases.is_empty() { certainty.answer() } else { ANSWER };
            let ends_at = certainty.ends_at().filter(|end| *end > begun);
            let limit = ends_at.map_or(begun + answer, |end| end.min(begun + ANSWER));
            let tick = leases.expire_during(self.tick(&mut session, &mut certainty));
            let ticked = tokio::select! {
                ticked = timeout_at(limit, tick) => ticked,
                // A heartbeat ends soon.
                () = stop.cancelled(), if answer > ANSWER => break,
                // A process that waited long enough claims without a presence.
                () = leases.new_claim.notified(), if answer > ANSWER => continue,
            };
            match ticked {
                Ok(Ok(())) => {
                    leases.announced.cancel();
                    next = begun + INTERVAL;
                }
                failed => {
                    // Dropped, not used again: a new connection tells whether the server is there.
                    session = None;
                    next = Instant::now() + RETRY;
                    report(if let Ok(Err(error)) = failed {
                        certainty.record_failure(&error);
                        BackgroundError::Presence(error)
                    } else {
                        certainty.late += 1;
                        let limit = limit.saturating_duration_since(begun);
                        BackgroundError::TooSlow { activity: "a presence check", limit }
                    });
                }
            }
            let now = Instant::now();
            let proved_until = certainty.ends_at();
            self.context.vitals.record_presence(proved_until);
            leases.expire(now, proved_until);
            if let Some(session) = &session {
                leases.are_on(session.server);
            }
            let soonest = now + if session.is_some() { RETRY / 5 } else { RETRY };
            next = leases.next_extension().map_or(next, |at| next.min(at.max(soonest)));
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
        let within = certainty.answer().mul_f64(HEARTBEAT);
        // Taken out, so that a tick that is given up drops its connection.
        let (mut session, fresh) = self.session(kept.take(), certainty).await?;
        let mut extend_all = fresh;
        let mut suspected = Vec::new();
        let mut proof = None;
        let long_here = session.since.elapsed() >= RESTART_GRACE;
        // Without a presence of its own, each tick checks the locks of the others.
        let mut maybe_dead = true;
        if let Some(key) = session.key {
            let (id, server) = (self.row.id, session.server);
            let (store, conn) = (&self.context.store, &mut session.conn);
            let begun = Instant::now();
            let query =
                HeartbeatQuery { within, ..HeartbeatQuery::new(id, key, long_here, server) };
            let presence = send_heartbeat(self.context, conn, query).await?;
            if !presence.held {
                in_short_tx(conn, async |conn| store.withdraw_presence(conn, id).await).await?;
            }
            maybe_dead = presence.maybe_dead || !presence.held;
            suspected = presence.suspected;
            if presence.held {
                proof = Some(Certainty { proved: Some(begun), ..Certainty::default() });
                // A suspected claim is not safe before it is extended.
                if !extend_all && suspected.is_empty() {
                    *certainty = proof.take().unwrap_or_default();
                }
            } else {
                // The session is not the one that took the lock: a pooler is in between.
                pooler::accept_transaction_pooler(self.context, true);
                session.key = None;
                extend_all = true;
            }
        }
        if session.key.is_none() {
            *certainty = Certainty::default();
            if self.context.leases.next_extension().is_some() {
                // An operator may take this node for gone: `release_node`.
                let (id, store) = (self.row.id, &self.context.store);
                let find = async |conn: &mut PgConnection| store.suspected_claims(conn, id).await;
                suspected = in_short_tx(&mut session.conn, find).await?;
            }
        }
        self.extend_leases(&mut session.conn, &suspected, extend_all).await?;
        if let Some(proof) = proof {
            *certainty = proof;
        }
        self.check_claims(&mut session).await?;
        if maybe_dead {
            let (store, conn) = (&self.context.store, &mut session.conn);
            suspect_dead_processors(store, conn, self.row.id, long_here, session.server).await?;
        }
        *kept = Some(session);
        Ok(())
    }

    /// Returns a session that shows the presence where the pool leads now, and whether it is new.
    async fn session(
        &self,
        kept: Option<Session>,
        certainty: &mut Certainty,
    ) -> Result<(Session, bool), sqlx::Error> {
        let options = self.pool.connect_options();
        let (conn, id) = match kept {
            Some(session) if Arc::ptr_eq(&session.options, &options) => {
                return Ok((session, false));
            }
            // Its claims are there, and the old session would show a presence where it counts for
            // nothing.
            Some(_) if is_followed(&options) => {
                self.context.side.follow(&options, true);
                self.open(&options).await?
            }
            // The pool leads elsewhere, perhaps too early: the old session is as good until then.
            Some(session) => match timeout(MOVE, self.open(&options)).await {
                Ok(Ok((conn, id))) if id == session.id || self.context.leases.is_empty() => {
                    self.context.side.follow(&options, id.is_some() && id == session.id);
                    (conn, id)
                }
                // Claims under leases on the old server are extended and settled there first.
                _ => return Ok((session, false)),
            },
            None => {
                self.context.side.follow(&options, false);
                self.open(&options).await?
            }
        };
        Ok((self.announce(conn, (options, id), certainty).await?, true))
    }

    async fn open(
        &self,
        options: &PgConnectOptions,
    ) -> Result<(PgConnection, Option<ServerId>), sqlx::Error> {
        let connect = timeout(CONNECT, PgConnection::connect_with(options));
        let mut conn =
            connect.await.map_err(|_| sqlx::Error::Io(io::ErrorKind::TimedOut.into()))??;
        let id = self.context.store.keep_open_on(&mut conn).await?;
        Ok((conn, id))
    }

    /// Takes a presence lock, and announces it. The lock is new each time: an old session may
    /// linger. After an error the session before must not go on: the row may show the new lock.
    async fn announce(
        &self,
        mut conn: PgConnection,
        (options, id): (Arc<PgConnectOptions>, Option<ServerId>),
        certainty: &mut Certainty,
    ) -> Result<Session, sqlx::Error> {
        let store = &self.context.store;
        let begun = Instant::now();
        let key = in_short_tx(&mut conn, async |conn| {
            store.note_server(conn).await?;
            let server = store.server_since(conn).await?;
            let mut key = None;
            // The application may hold a lock of the same number, once in a great while.
            for _ in 0..3 {
                let number = fastrand::i64(..);
                let wanted = self.wanted && !self.context.pooler_state.pooled.is_cancelled();
                if wanted && store.take_presence(conn, number).await? {
                    key = Some(number);
                    break;
                }
            }
            if key.is_some() {
                // The announcement may be committed even if its answer is lost: suspicions are
                // possible from here on.
                if mem::take(&mut certainty.down) {
                    certainty.proved = Some(begun);
                }
                certainty.proved.get_or_insert(begun);
            }
            store.announce(conn, &self.row, key, server).await?;
            Ok((key, server))
        });
        let (key, server) = key.await?;
        self.context.record_write(begun);
        self.context.leases.extend_through(&options);
        let now = Instant::now();
        Ok(Session { conn, key, options, id, server, since: now, announced_at: now })
    }

    async fn extend_leases(
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
            // Nothing was extended; the next try comes after `RETRY`.
            Err(error) if gave_up_waiting(&error) => HashSet::new(),
            extended => extended?,
        };
        let still_claimed = if extended.len() < claims.len() {
            in_short_tx(conn, async |conn| store.still_claimed(conn, &claims).await).await?
        } else {
            HashSet::new()
        };
        self.context.leases.apply_extension(asked_at, &claims, &extended, &still_claimed);
        Ok(())
    }

    /// Checks that leased claims still stand, passes on requests to cancel, and announces this
    /// process every `ANNOUNCE`.
    async fn check_claims(&self, session: &mut Session) -> Result<(), sqlx::Error> {
        let store = &self.context.store;
        let conn = &mut session.conn;
        let leases = &self.context.leases;
        let claims = leases.due(Instant::now(), &[], true);
        if !claims.is_empty() {
            let jobs = |claim: &LeasedClaim| [&[claim.job], &*claim.followers].concat();
            let jobs: Vec<_> = claims.iter().flat_map(jobs).collect();
            let (still_claimed, asked) = store.check_leases(conn, &claims, &jobs).await?;
            leases.stop_lost(&claims, &still_claimed);
            leases.cancel(&asked);
        }
        if session.announced_at.elapsed() >= ANNOUNCE {
            let (key, server) = (session.key, session.server);
            in_short_tx(conn, async |conn| store.announce(conn, &self.row, key, server).await)
                .await?;
            session.announced_at = Instant::now();
        }
        Ok(())
    }
}

/// Checks the presence and polls for idle queues, in one statement.
async fn send_heartbeat(
    context: &Context,
    conn: &mut PgConnection,
    query: HeartbeatQuery<'_>,
) -> Result<Presence, sqlx::Error> {
    let began = Instant::now();
    let (queues, maintenance) = context.shared_poll.targets(began);
    let names: Vec<_> = queues.iter().map(String::as_str).collect();
    let found = context
        .store
        .heartbeat(conn, HeartbeatQuery { queues: &names, maintenance, ..query })
        .await?;
    let maintenance = found
        .awaits_maintenance
        .map(|waits| (PollTarget::Maintenance, waits.then_some(Duration::ZERO)));
    let due_in = found.due_in.iter().copied();
    let queues = queues.into_iter().map(PollTarget::Queue).zip(due_in);
    context.shared_poll.record(began, Instant::now(), queues.chain(maintenance));
    Ok(found)
}
