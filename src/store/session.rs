//! How transactions begin. Each one names its isolation level and its limits, whatever the host's
//! defaults are.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgExecutor, PgTransaction};

use crate::store::transaction::depth;

/// `transaction_timeout` came with version 17.
const TRANSACTION_TIMEOUT_SINCE: u32 = 170_000;

/// The settings that this server's sessions have.
#[derive(Debug)]
pub(crate) struct SessionLimits {
    /// Not on every platform: the server says so when it is first set.
    check_interval: AtomicBool,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self { check_interval: AtomicBool::new(true) }
    }
}

/// READ COMMITTED: every statement needs a snapshot younger than the locks taken before it.
pub(crate) const BEGIN: &str = "begin isolation level read committed read write";

/// A frozen process must not hold up a queue: 2 s for a statement and between statements. Nothing
/// here is meant to wait for a lock, but `SKIP LOCKED` does wait in one case: if a row's writer
/// commits just as the row is skipped, its next version is locked without skipping. A handler may
/// hold that version by then. Hence 100 ms. The commit is synchronous: a claim must survive a
/// server crash.
const SHORT: &str = "; set local statement_timeout = '2s'; set local lock_timeout = '100ms'\
    ; set local idle_in_transaction_session_timeout = '2s'\
    ; set local synchronous_commit = on; ";

/// Plans must not depend on statistics of empty tables: each row of a batch is found by an index. A
/// generic plan is as good as another, and is made once: planning anew each time costs more than
/// running. For the library's own statements.
pub(crate) const PINNED_PLANS: &str = "set local plan_cache_mode = force_generic_plan\
    ; set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off\
    ; set local enable_mergejoin = off; set local enable_hashjoin = off; set local jit = off";

/// The session's own settings, for a handler's statements.
pub(crate) const FREE_PLANS: &str = "set local plan_cache_mode = default\
    ; set local enable_seqscan = default; set local enable_bitmapscan = default; set local enable_sort = default\
    ; set local enable_mergejoin = default; set local enable_hashjoin = default; set local jit = default";

/// The settings of a session that a handler may change, and on which the library's statements
/// depend. Not those that each transaction of the library sets by itself.
macro_rules! kept_settings {
    () => {
        "'{session_authorization, role, search_path, row_security, client_encoding, \
          default_transaction_isolation, default_transaction_read_only, \
          default_transaction_deferrable}'::pg_catalog.text[]"
    };
}

/// Notes the session's settings, before a handler's statements.
pub(crate) const NOTE_SETTINGS: &str = concat!(
    "select pg_catalog.set_config('seriatim.settings', array(select pg_catalog.current_setting(s.name) \
     from pg_catalog.unnest(",
    kept_settings!(),
    ") s(name))::pg_catalog.text, true); "
);

/// Undoes what a handler has set that the library's next statements depend on: its limits for this
/// transaction, and the noted settings for the session. The role comes after the session's user,
/// whose change resets it. Names their schema, as the handler's path may have others.
pub(crate) const RESTORE_SETTINGS: &str = concat!(
    "set local lock_timeout = 0; set local idle_in_transaction_session_timeout = 0; \
     select pg_catalog.set_config(s.name, s.value, false) from unnest(",
    kept_settings!(),
    ", nullif(pg_catalog.current_setting('seriatim.settings', true), '')::pg_catalog.text[]) s(name, value) \
     where pg_catalog.current_setting(s.name) operator(pg_catalog.<>) s.value; "
);

/// Whether a handler of this process has had a session for its statements.
static HANDLER_HAD_SESSION: AtomicBool = AtomicBool::new(false);

/// A handler gets a session for its statements.
pub(crate) fn note_handlers_session() {
    HANDLER_HAD_SESSION.store(true, Ordering::Relaxed);
}

/// Returns what lifts the limit of statements that a handler may have left in a session, for the
/// head of a message. Nothing while no handler has had one: it costs a claim some microseconds.
pub(crate) fn no_limit_left() -> &'static str {
    let left = HANDLER_HAD_SESSION.load(Ordering::Relaxed);
    if left { "set local statement_timeout = 0; " } else { "" }
}

/// A handler may take its time, also between statements.
const LONG: &str = "; set local statement_timeout = 0\
    ; set local idle_in_transaction_session_timeout = 0; ";

/// A host that vanished without a FIN must be noticed: by TCP, in about 10 s.
const NOTICE_HOST: &str = "set tcp_keepalives_idle = 4; set tcp_keepalives_interval = 2\
    ; set tcp_keepalives_count = 3; set tcp_user_timeout = '10s'";

/// A client that is gone must be noticed inside of a query too.
const NOTICE_CLIENT: &str = "; set client_connection_check_interval = '500ms'";

/// Begins a short transaction of the library's own (claim, settle by token, maintenance).
///
/// Not cancel safe: a caller that gives up must close the connection.
pub(crate) async fn begin_short(conn: &mut PgConnection) -> Result<PgTransaction<'_>, sqlx::Error> {
    let statement = short(conn);
    conn.begin_with(AssertSqlSafe(statement)).await
}

/// Returns what begins a short transaction, for one message with the work and the commit in it.
pub(crate) fn short(conn: &PgConnection) -> String {
    format!("{BEGIN}{SHORT}{PINNED_PLANS}{}", no_transaction_timeout(conn))
}

/// Returns what begins a transaction for handlers that holds no job.
pub(crate) fn begin_of_handlers(conn: &PgConnection) -> String {
    format!("{BEGIN}{LONG}{PINNED_PLANS}{}", no_transaction_timeout(conn))
}

/// Returns what has the server notice that the client of a session is gone, for sessions that hold
/// jobs, as far as the server is known to have the settings. Once per connection: in each
/// transaction these settings would cost as much as the rest of its begin.
///
/// Only these settings may be set for a session: it goes back to the host's pool, or through a
/// transaction pooler to other clients.
pub(crate) fn notice_lost_clients(limits: &SessionLimits) -> String {
    let check = limits.check_interval.load(Ordering::Relaxed);
    format!("{NOTICE_HOST}{}", if check { NOTICE_CLIENT } else { "" })
}

/// 22023: this platform cannot check for clients inside of a query. It is asked only once.
pub(crate) fn cannot_check(error: &sqlx::Error, limits: &SessionLimits) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    let cannot = code.is_some_and(|code| code == "22023");
    if cannot && limits.check_interval.swap(false, Ordering::Relaxed) {
        tracing::warn!("this server cannot check for lost clients inside a query: {error}");
    }
    cannot
}

/// Does work of the library in a short transaction. After an error the connection is to be closed,
/// unless the work [gave up waiting](gave_up_waiting): then nothing was done.
pub(crate) async fn in_short_tx<T>(
    conn: &mut PgConnection,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    let mut tx = begin_short(conn).await?;
    match work(&mut tx).await {
        Ok(done) => tx.commit().await.map(|()| done),
        Err(error) => {
            if gave_up_waiting(&error) {
                tx.rollback().await?;
            }
            Err(error)
        }
    }
}

/// Does work in a transaction with the session's own limits: its statements stay in one session of
/// a transaction pooler. Refused in a transaction of the caller. Not cancel safe, and after
/// another error the connection is to be closed.
pub(crate) async fn in_tx<T>(
    conn: &mut PgConnection,
    work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    // sqlx would roll the open transaction back, and say nothing of it.
    if depth(conn) > 0 {
        return Err(sqlx::Error::InvalidSavePointStatement);
    }
    let mut tx = conn.begin_with(BEGIN).await?;
    let done = work(&mut tx).await?;
    tx.commit().await.map(|()| done)
}

/// Keeps a session open without a transaction, for as long as its host is there. See
/// [`notice_lost_clients`].
pub(crate) async fn keep_open(session: impl PgExecutor<'_>) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(keep_open_text())).execute(session).await.map(drop)
}

/// The same for a message with more in it.
pub(crate) fn keep_open_text() -> String {
    format!("set idle_session_timeout = 0; {NOTICE_HOST}")
}

/// Returns what lets a transaction last as long as it takes, in a text of statements.
pub(crate) fn no_transaction_timeout(conn: &PgConnection) -> &'static str {
    let knows = conn.server_version_num().is_some_and(|v| v >= TRANSACTION_TIMEOUT_SINCE);
    if knows { "; set local transaction_timeout = 0" } else { "" }
}

/// 25006, or 0A000 where a standby refuses the begin of a transaction that writes: the server
/// cannot be written to.
pub(crate) fn is_read_only(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    let begin = || {
        let error = error.try_downcast_ref::<PgDatabaseError>();
        error.and_then(PgDatabaseError::routine) == Some("call_bool_check_hook")
    };
    match error.code().as_deref() {
        Some("25006") => true,
        Some("0A000") => begin(),
        _ => false,
    }
}

/// Returns whether the server could not read or send a value: it is too large, it is broken, or
/// there is no memory for it.
pub(crate) fn cannot_read(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| {
        code == "53200" || ["22", "54", "XX"].contains(&&code[..2.min(code.len())])
    })
}

/// 55P03: the statement was about to wait for a lock. Its transaction has to begin anew.
pub(crate) fn gave_up_waiting(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).is_some_and(|code| code == "55P03")
}
