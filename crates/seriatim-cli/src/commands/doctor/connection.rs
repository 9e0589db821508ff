//! Checks of what lies between this program and the server.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::Row;
use sqlx::postgres::PgListener;
use tokio::time::{Instant, timeout};

use crate::commands::doctor::finding::{Finding, Findings};
use crate::commands::doctor::transactions::age;
use crate::failure::Failure;
use crate::session::Session;

/// How far the clocks may differ.
const SKEW: chrono::Duration = chrono::Duration::seconds(2);
/// How long a notification or another session may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is looked for a transaction pooler.
const ROUNDS: u32 = 8;

/// Compares the clocks of this machine and the server.
pub(super) async fn clock(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("clock");
    let mut tx = session.read().await?;
    let before = Utc::now();
    let there: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()")
        .persistent(false)
        .fetch_one(&mut *tx)
        .await?;
    let after = Utc::now();
    // The answer was made at some time between.
    let skew = (before - there).max(there - after);
    if skew > SKEW {
        let milliseconds = skew.num_milliseconds();
        findings.note(
            format!(
                "the clock of this machine and that of the server differ by {milliseconds} ms: due \
                 times that a program computes by its own clock are off by that"
            ),
            Some(String::from("synchronize both clocks (NTP)")),
        );
    }
    Ok(findings.or_fine("that of this machine is the server's, to 2 s"))
}

/// Looks whether a session is this connection's own. Behind a transaction pooler another
/// connection can take it between two statements.
pub(super) async fn pooler(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("pooler");
    let pid = "select pg_backend_pid()";
    let mut first = session.pool.acquire().await?;
    let mut is_own = true;
    // The pooler may have other sessions at hand, and give one of those.
    for _ in 0..ROUNDS {
        let before = backend(sqlx::raw_sql(pid), &mut first).await?;
        let mut other = session.read().await?;
        let taken = backend(sqlx::raw_sql(pid), &mut other).await?;
        let after = timeout(PATIENCE, backend(sqlx::raw_sql(pid), &mut first)).await;
        other.rollback().await?;
        is_own = matches!(&after, Ok(Ok(after)) if *after == before) && taken != before;
        if !is_own {
            break;
        }
    }
    if !is_own {
        findings.problem(
            "a transaction pooler stands between this program and the server: LISTEN and presence \
             do not work, so jobs are found by polling and killed workers by their leases",
            "give processors an address of the server itself, or of a pooler with pool_mode = \
             session; docs/guide/poolers.md says what else works",
        );
    }
    Ok(findings.or_fine("sessions are this program's own"))
}

async fn backend(query: sqlx::RawSql, conn: &mut sqlx::PgConnection) -> Result<i32, sqlx::Error> {
    query.fetch_one(conn).await?.try_get(0)
}

/// How full the server's queue of notifications may be. From one half on no wake-up is sent.
const FULL: f64 = 0.25;

/// Looks at the server's queue of notifications, which a session that listens and stays in a
/// transaction keeps from being emptied. Who listens is not seen from outside.
async fn is_queue_full(session: &Session, findings: &mut Findings) -> Result<bool, Failure> {
    let mut tx = session.read().await?;
    let statement = "select pg_notification_queue_usage(), a.pid, coalesce(a.usename::text, '?'), \
           coalesce(a.datname::text, '?'), coalesce(a.application_name, ''), coalesce(a.state, '?'), \
           extract(epoch from clock_timestamp() - a.xact_start)::float8 \
         from (values (1)) once left join lateral (select * from pg_catalog.pg_stat_activity a \
           where a.xact_start is not null and a.backend_type = 'client backend' and a.pid <> pg_backend_pid() \
           order by a.xact_start limit 1) a on true";
    let row = sqlx::query(statement).persistent(false).fetch_one(&mut *tx).await?;
    let usage: f64 = row.try_get(0)?;
    if usage < FULL {
        return Ok(false);
    }
    let is_full = format!(
        "the server's queue of notifications is {:.0} % full, as some session listens and stays in a \
         transaction: from 50 % on no wake-up is sent, and jobs wait for the poll",
        usage * 100.0
    );
    let Some(pid) = row.try_get::<Option<i32>, _>(1)? else {
        findings.problem(is_full, "end sessions that listen and are idle in a transaction");
        return Ok(true);
    };
    let (user, database): (String, String) = (row.try_get(2)?, row.try_get(3)?);
    let (program, state): (String, String) = (row.try_get(4)?, row.try_get(5)?);
    findings.problem(
        format!(
            "{is_full}. The oldest transaction is of session {pid} of {user:?} in database {database:?} \
             ({program:?}, {state}), open for {}",
            age(row.try_get(6)?)
        ),
        format!("select pg_terminate_backend({pid});"),
    );
    Ok(true)
}

/// Sends itself a notification, on a channel of its own.
pub(super) async fn wake_ups(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("wake-ups");
    // When it is full, this notification would fail.
    if is_queue_full(session, &mut findings).await? {
        return Ok(findings.found);
    }
    let channel = format!("seriatim_doctor_{:016x}", fastrand::u64(..));
    let mut listener = PgListener::connect_with(&session.pool).await?;
    listener.listen(&channel).await?;
    let sent = Instant::now();
    let mut tx = session.begin().await?;
    let notify = sqlx::query("select pg_notify($1, '')").persistent(false).bind(&channel);
    notify.execute(&mut *tx).await?;
    tx.commit().await?;
    match timeout(PATIENCE, listener.recv()).await {
        Ok(received) => {
            received?;
            let took = sent.elapsed().as_millis();
            findings.fine(format!("a notification arrives within {took} ms"));
        }
        Err(_) => findings.problem(
            "a notification does not arrive: idle workers find jobs only by polling",
            "see whether there is a transaction pooler in between",
        ),
    }
    Ok(findings.found)
}
