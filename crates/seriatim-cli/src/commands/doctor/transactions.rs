//! Checks of long transactions: those that pin vacuum's horizon, and those that hold up groups.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Row};

use crate::commands::doctor::finding::{Finding, Findings};
use crate::failure::Failure;
use crate::output::text::in_words;
use crate::session::Session;

/// How old a transaction may be, in seconds.
const OLD: f64 = 600.0;
/// How many findings of one sort are listed.
const MOST: i64 = 10;

/// Looks who keeps vacuum from removing dead rows.
pub(super) async fn horizon(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("vacuum horizon");
    let mut tx = session.read().await?;
    let sessions = "select a.pid, coalesce(a.usename::text, '?'), coalesce(a.state, a.backend_type), \
           coalesce(a.application_name, ''), \
           extract(epoch from clock_timestamp() - a.xact_start)::float8 \
         from pg_catalog.pg_stat_activity a \
         where a.backend_xmin is not null and a.xact_start < clock_timestamp() - make_interval(secs => $1) \
           and a.pid <> pg_backend_pid() order by a.xact_start limit $2";
    for row in
        sqlx::query(sessions).persistent(false).bind(OLD).bind(MOST).fetch_all(&mut *tx).await?
    {
        let (pid, user): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
        let (state, program): (String, String) = (row.try_get(2)?, row.try_get(3)?);
        findings.problem(
            format!(
                "session {pid} of {user:?} ({program:?}, {state}) has a transaction open for {}: \
                 vacuum removes nothing that died since",
                age(row.try_get(4)?)
            ),
            format!("select pg_terminate_backend({pid});"),
        );
    }
    let prepared = "select p.gid, extract(epoch from clock_timestamp() - p.prepared)::float8 \
         from pg_catalog.pg_prepared_xacts p \
         where p.prepared < clock_timestamp() - make_interval(secs => $1) order by p.prepared limit $2";
    for row in
        sqlx::query(prepared).persistent(false).bind(OLD).bind(MOST).fetch_all(&mut *tx).await?
    {
        let gid: String = row.try_get(0)?;
        findings.problem(
            format!("the prepared transaction {gid:?} has been open for {}", age(row.try_get(1)?)),
            format!("rollback prepared '{}';", gid.replace('\'', "''")),
        );
    }
    let slots = "select s.slot_name::text, s.active, pg_catalog.age(s.xmin)::int8 \
         from pg_catalog.pg_replication_slots s \
         where s.xmin is not null and (not s.active or pg_catalog.age(s.xmin) > 1000000) limit $1";
    for row in sqlx::query(slots).persistent(false).bind(MOST).fetch_all(&mut *tx).await? {
        let (slot, active): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
        let transactions: i64 = row.try_get(2)?;
        let state = if active { "is behind" } else { "is used by nobody" };
        findings.problem(
            format!(
                "the replication slot {slot:?} {state}, and keeps vacuum {transactions} \
                 transactions back"
            ),
            format!("select pg_drop_replication_slot('{}');", slot.replace('\'', "''")),
        );
    }
    findings.sees_sessions(session).await?;
    Ok(findings.or_fine("no transaction is older than 10 min"))
}

/// Looks for old transactions that hold rows of jobs or groups, and for locks on whole tables.
pub(super) async fn lockers(session: &Session) -> Result<Vec<Finding>, Failure> {
    let mut findings = Findings::of("long transactions");
    let mut tx = session.read().await?;
    // Every lock of a row comes with one of these modes on its table. Reads have AccessShareLock.
    let statement = "select a.pid, coalesce(a.usename::text, '?'), coalesce(a.state, '?'), \
           coalesce(a.application_name, ''), \
           extract(epoch from clock_timestamp() - min(a.xact_start))::float8, \
           bool_or(l.mode not in ('RowShareLock', 'RowExclusiveLock')), \
           pg_catalog.string_agg(distinct c.relname::text, ', ' order by c.relname::text), \
           cardinality(pg_catalog.pg_blocking_pids(a.pid)) \
         from pg_catalog.pg_locks l \
         join pg_catalog.pg_class c on c.oid = l.relation \
         join pg_catalog.pg_stat_activity a on a.pid = l.pid \
         where l.granted and l.locktype = 'relation' \
           and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database()) \
           and l.relation in (to_regclass($1)::oid, to_regclass($2)::oid) \
           and l.mode in ('RowShareLock', 'RowExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', \
             'ExclusiveLock', 'AccessExclusiveLock') \
           and a.pid <> pg_backend_pid() \
         group by a.pid, a.usename, a.state, a.application_name \
         having min(a.xact_start) < clock_timestamp() - make_interval(secs => $3) \
           or (bool_or(l.mode not in ('RowShareLock', 'RowExclusiveLock')) \
             and min(a.xact_start) < clock_timestamp() - interval '10 s') \
         order by min(a.xact_start) limit $4";
    let (job, group) = (session.table("job"), session.table("queue_group"));
    let rows = sqlx::query(AssertSqlSafe(statement))
        .persistent(false)
        .bind(job)
        .bind(group)
        .bind(OLD)
        .bind(MOST);
    for row in rows.fetch_all(&mut *tx).await? {
        let (pid, user): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
        let (state, program): (String, String) = (row.try_get(2)?, row.try_get(3)?);
        let (whole, tables): (bool, String) = (row.try_get(5)?, row.try_get(6)?);
        let what = if whole {
            format!("the whole of {tables}, and nobody else gets on")
        } else {
            format!("rows of {tables}: a handler that runs so long, or a transaction left open")
        };
        findings.problem(
            format!(
                "session {pid} of {user:?} ({program:?}, {state}) has held locks for {} on {what}",
                age(row.try_get(4)?)
            ),
            format!("select pg_terminate_backend({pid}); -- a job that it runs is retried"),
        );
    }
    findings.sees_sessions(session).await?;
    Ok(findings.or_fine("none has held jobs or groups for 10 min"))
}

pub(super) fn age(seconds: f64) -> String {
    in_words(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
}
