//! The pool that follows.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use sqlx::pool::PoolConnectionMetadata;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgConnection, PgPool};
use tokio::time::sleep;

use crate::job::reason::reason;
use crate::primary::choice::{Look, Primary, primary};
use crate::primary::followed;
use crate::primary::hosts::{HostsError, parse};
use crate::primary::probe::{Probe, look};
use crate::primary::sessions::Sessions;

/// How long between two looks at the hosts.
const EVERY: Duration = Duration::from_secs(1);
/// As long as no primary was found.
const FIRST_EVERY: Duration = Duration::from_millis(200);
/// How many looks the present primary misses before another host of no higher timeline is taken.
const AWAY: u32 = 10;
/// A connection whose opening ended this long after a move may have been looked at before it.
const OPENING: Duration = Duration::from_millis(100);

type Hook = dyn Fn(&mut PgConnection, PoolConnectionMetadata) -> BoxFuture<'_, Result<(), sqlx::Error>>
    + Send
    + Sync;

/// Servers of one cluster, of which one is the primary; from [`Follow::url`] or [`Follow::new`].
#[derive(Clone)]
pub struct Follow {
    hosts: Vec<PgConnectOptions>,
    follows: bool,
    after_connect: Option<Arc<Hook>>,
}

/// Why no pool was opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// Within the pool's acquire timeout, no host could be written to.
    #[error("no host can be written to: {hosts}")]
    NoPrimary {
        /// Each host, and its reason.
        hosts: String,
    },
    /// Hosts are servers of different clusters: jobs of one are not those of the other.
    #[error("{host} is a server of another cluster than {other}: follow the servers of one")]
    OtherCluster {
        /// A host.
        host: String,
        /// A host of another system identifier.
        other: String,
    },
    /// The connection to the only host failed.
    #[error("{}", reason(.0))]
    Database(#[source] sqlx::Error),
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.hosts.iter().map(|host| (host.get_host(), host.get_port()));
        f.debug_struct("Follow")
            .field("hosts", &hosts.collect::<Vec<_>>())
            .field("follows", &self.follows)
            .finish_non_exhaustive()
    }
}

impl Follow {
    /// Reads a URL: `postgres://user@host1,host2:5433/database?target_session_attrs=read-write`.
    ///
    /// Each host has a port of its own, by default 5432. `target_session_attrs` is `read-write` or
    /// `primary`, and may be left out. A URL of one host without it is an ordinary one:
    /// [`connect`](Self::connect) then opens an ordinary pool, which follows nothing.
    ///
    /// # Errors
    ///
    /// If a host or the rest of the URL cannot be read.
    pub fn url(url: &str) -> Result<Self, HostsError> {
        let hosts = parse(url)?;
        let follows = hosts.writable || hosts.hosts.len() > 1;
        Ok(Self { hosts: hosts.hosts, follows, after_connect: None })
    }

    /// A server, whatever takes its place at its address. [`host`](Self::host) adds others.
    #[must_use]
    pub fn new(host: PgConnectOptions) -> Self {
        Self { hosts: vec![host], follows: true, after_connect: None }
    }

    /// Adds a server. From then on the primary is followed, whatever the URL said.
    #[must_use]
    pub fn host(mut self, host: PgConnectOptions) -> Self {
        self.hosts.push(host);
        self.follows = true;
        self
    }

    /// Changes the options of each host, as for an application's name.
    #[must_use]
    pub fn each_host(mut self, change: impl Fn(PgConnectOptions) -> PgConnectOptions) -> Self {
        self.hosts = self.hosts.into_iter().map(change).collect();
        self
    }

    /// Calls `hook` with each new connection of the pool, as
    /// [`PoolOptions::after_connect`](sqlx::pool::PoolOptions::after_connect) does.
    /// [`connect`](Self::connect) replaces the pool's own hooks.
    #[must_use]
    pub fn after_connect<H>(mut self, hook: H) -> Self
    where
        H: Fn(&mut PgConnection, PoolConnectionMetadata) -> BoxFuture<'_, Result<(), sqlx::Error>>
            + Send
            + Sync
            + 'static,
    {
        self.after_connect = Some(Arc::new(hook));
        self
    }

    /// Returns the hosts.
    #[must_use]
    pub fn hosts(&self) -> &[PgConnectOptions] {
        &self.hosts
    }

    /// Returns whether the pool will follow: there are several hosts, or the URL asks for one that
    /// can be written to.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// Opens a pool to the primary, and follows the primary until the pool is closed.
    ///
    /// A task looks at each host every second, through a connection of its own. The primary is the
    /// host that can be written to and has the highest timeline. When another host becomes the
    /// primary, the pool connects there from now on. Connections to the old one are closed when
    /// they are idle or given back. A new connection to a standby, or to a server of an older
    /// timeline, is refused. Where the old primary still takes writes, the pool's sessions there
    /// are ended, so that handlers drop what would be lost.
    ///
    /// `options` keep their limits and times, but for `min_connections`, which becomes 0. Their
    /// hooks `after_connect`, `before_acquire` and `after_release` are replaced: give yours to
    /// [`after_connect`](Self::after_connect). The task holds the pool, until that is
    /// [closed](PgPool::close).
    ///
    /// Where a server does not tell its timeline, two servers that can be written to cannot be told
    /// apart: the pool stays with the one it has, until that is a standby or has not answered for
    /// 10 s. A password that is rotated needs another pool.
    ///
    /// # Errors
    ///
    /// If no host can be written to within the pool's acquire timeout (30 s by default), or if two
    /// hosts are of different clusters.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub async fn connect(self, options: PgPoolOptions) -> Result<PgPool, FollowError> {
        let Some(first) = self.hosts.first().filter(|_| self.follows) else {
            // The hosts are never empty.
            let host = self.hosts.into_iter().next().unwrap_or_default();
            let options = match self.after_connect {
                Some(hook) => options.after_connect(move |conn, meta| hook(conn, meta)),
                None => options,
            };
            return options.connect_with(host).await.map_err(FollowError::Database);
        };
        let first = first.clone();
        let mut probes: Vec<Probe> = self.hosts.into_iter().map(Probe::new).collect();
        let found = first_primary(&mut probes, options.get_acquire_timeout()).await?;
        let state = Arc::new(State {
            place: Mutex::new(Place { primary: found, moved_at: None }),
            sessions: Sessions::default(),
        });
        let host = probes.get(found.host).map_or(first, |probe| probe.options.clone());
        let pool = hooked(options, &state, self.after_connect).connect_lazy_with(host);
        followed::note(&pool.connect_options());
        tokio::spawn(follow(pool.clone(), probes, state));
        Ok(pool)
    }
}

/// Where the primary is, and the sessions that were opened.
#[derive(Debug)]
struct State {
    place: Mutex<Place>,
    sessions: Sessions,
}

#[derive(Debug)]
struct Place {
    primary: Primary,
    /// `None`: it has not moved.
    moved_at: Option<Instant>,
}

impl State {
    fn place(&self) -> MutexGuard<'_, Place> {
        // Nothing panics under the lock.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a connection of this age was opened to the present primary.
    fn is_present(&self, age: Duration) -> bool {
        self.place().moved_at.is_none_or(|at| age + OPENING <= at.elapsed())
    }

    /// Refuses a new connection that leads elsewhere.
    async fn admit(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        let (look, session) = look(conn).await?;
        let primary = self.place().primary;
        let refused = if look.in_recovery {
            Some("the server is a standby")
        } else if look.is_foreign(&primary) {
            Some("the server is of another cluster")
        } else if look.is_left_behind(&primary) {
            Some("the server is of an older timeline than the primary")
        } else {
            None
        };
        if let Some(reason) = refused {
            return Err(sqlx::Error::Configuration(reason.into()));
        }
        if let Some(session) = session {
            self.sessions.opened(session);
        }
        Ok(())
    }
}

/// Returns the options with the hooks that keep connections of other servers away.
fn hooked(options: PgPoolOptions, state: &Arc<State>, hook: Option<Arc<Hook>>) -> PgPoolOptions {
    let (opened, acquired, released) = (Arc::clone(state), Arc::clone(state), Arc::clone(state));
    options
        // The pool opens these for minutes, with pauses of up to a minute, and acquires wait.
        .min_connections(0)
        .after_connect(move |conn, meta| {
            let (state, hook) = (Arc::clone(&opened), hook.clone());
            Box::pin(async move {
                let moved_at = state.place().moved_at;
                state.admit(conn).await?;
                if let Some(hook) = hook {
                    hook(conn, meta).await?;
                }
                // It is opened only now, and would pass for one of the next server.
                if state.place().moved_at == moved_at {
                    Ok(())
                } else {
                    Err(sqlx::Error::Configuration("the primary moved meanwhile".into()))
                }
            })
        })
        .before_acquire(move |_, meta| {
            let present = acquired.is_present(meta.age);
            Box::pin(async move { Ok(present) })
        })
        .after_release(move |_, meta| {
            let present = released.is_present(meta.age);
            Box::pin(async move { Ok(present) })
        })
}

/// Looks at all hosts together. Returns each answer, or why there is none.
async fn look_at(probes: &mut [Probe]) -> Vec<Result<Look, sqlx::Error>> {
    join_all(probes.iter_mut().map(Probe::look)).await
}

fn answers(looks: &[Result<Look, sqlx::Error>]) -> Vec<Option<Look>> {
    looks.iter().map(|look| look.as_ref().ok().copied()).collect()
}

/// Waits until a host can be written to.
async fn first_primary(probes: &mut [Probe], within: Duration) -> Result<Primary, FollowError> {
    let deadline = Instant::now() + within;
    loop {
        let looks = look_at(probes).await;
        if let Some(found) = primary(&answers(&looks), None, false) {
            let foreign = |look: &Result<Look, _>| {
                look.as_ref().is_ok_and(|look: &Look| look.is_foreign(&found))
            };
            if let Some(other) = looks.iter().position(foreign) {
                let name = |host: usize| probes.get(host).map(Probe::name).unwrap_or_default();
                return Err(FollowError::OtherCluster {
                    host: name(other),
                    other: name(found.host),
                });
            }
            return Ok(found);
        }
        if Instant::now() >= deadline {
            let hosts = probes.iter().zip(&looks).map(|(probe, look)| match look {
                Ok(_) => format!("{} is a standby", probe.name()),
                Err(error) => format!("{}: {}", probe.name(), reason(error)),
            });
            let hosts = hosts.collect::<Vec<_>>().join("; ");
            return Err(FollowError::NoPrimary { hosts });
        }
        sleep(FIRST_EVERY).await;
    }
}

/// Follows the primary until the pool is closed.
async fn follow(pool: PgPool, mut probes: Vec<Probe>, state: Arc<State>) {
    let (mut noted, mut missed) = (Noted::default(), 0);
    let mut closed = pool.close_event();
    let ended = closed.do_until(async {
        loop {
            sleep(EVERY).await;
            let looks = answers(&look_at(&mut probes).await);
            let now = state.place().primary;
            let answered = looks.get(now.host).is_some_and(Option::is_some);
            missed = if answered { 0 } else { missed + 1 };
            let found = primary(&looks, Some(&now), missed >= AWAY);
            noted.primary_is(found.is_some(), &probes);
            if let Some(found) = found.filter(|found| *found != now) {
                move_to(&pool, &probes, &state, found);
            }
            leave_behind(&mut probes, &looks, &state, &mut noted).await;
        }
    });
    // It has no end but the pool's.
    drop(ended.await);
}

/// The pool connects to `found` from now on.
fn move_to(pool: &PgPool, probes: &[Probe], state: &State, found: Primary) {
    let before = {
        let mut place = state.place();
        let before = std::mem::replace(&mut place.primary, found);
        // First, so that no connection that is being opened passes as one of the new server.
        place.moved_at = Some(Instant::now());
        before
    };
    let Some(probe) = probes.get(found.host) else { return };
    if before.timeline == found.timeline && before.host == found.host {
        return;
    }
    // Also where another server has the address: all that is open leads to the one of before.
    pool.set_connect_options(probe.options.clone());
    followed::note(&pool.connect_options());
    tracing::info!(host = probe.name(), timeline = found.timeline, "the pool follows the primary");
    while let Some(mut idle) = pool.try_acquire() {
        idle.close_on_drop();
    }
}

/// Ends the pool's sessions on servers that a promotion has left behind and that still take writes.
async fn leave_behind(
    probes: &mut [Probe],
    looks: &[Option<Look>],
    state: &State,
    noted: &mut Noted,
) {
    let primary = state.place().primary;
    for (probe, look) in probes.iter_mut().zip(looks) {
        let Some(look) = look else { continue };
        if look.is_foreign(&primary) {
            noted.foreign(probe);
        }
        if !look.is_left_behind(&primary) {
            continue;
        }
        let name = probe.name();
        match probe.end_all(&state.sessions).await {
            Ok(0) => {}
            Ok(sessions) => tracing::warn!(
                host = name,
                timeline = look.timeline,
                sessions,
                "a server of an older timeline takes writes: its sessions were ended"
            ),
            Err(error) => tracing::warn!(
                host = name,
                timeline = look.timeline,
                error = reason(&error),
                "a server of an older timeline takes writes, and its sessions could not be ended"
            ),
        }
    }
}

/// The warnings that were logged: each is logged once.
#[derive(Debug, Default)]
struct Noted {
    no_primary: bool,
    foreign: bool,
}

impl Noted {
    fn primary_is(&mut self, found: bool, probes: &[Probe]) {
        if !found && !self.no_primary {
            let hosts = probes.iter().map(Probe::name).collect::<Vec<_>>().join(", ");
            tracing::warn!(hosts, "no host can be written to");
        }
        self.no_primary = !found;
    }

    fn foreign(&mut self, probe: &Probe) {
        if !std::mem::replace(&mut self.foreign, true) {
            tracing::warn!(
                host = probe.name(),
                "the host is of another cluster: it is not followed"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_more_is_followed() {
        let one = Follow::url("postgres://localhost/app").unwrap();
        assert!(!one.follows());
        assert!(one.host(PgConnectOptions::new_without_pgpass().host("other")).follows());
    }
}
