//! Presence: each process shows by an advisory lock of one session that it lives. A process that
//! can take this lock may suspect the other's claims.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::job::policy::FailurePolicy;
use crate::store::fragments::GRACE;
use crate::store::literal::{literal, name};
use crate::store::names::Names;
use crate::store::session::BEGIN;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    TAKE_KEY = |_| "select pg_try_advisory_lock($1)".to_owned();

    NOTE_SERVER = |names| names.sql("select {note_server}()");

    SERVER_SINCE = |names| names.sql("select {server_since}()");

    /// Says which lock shows that the process lives. Waits some ms for a failure detector that has
    /// the row; the extension that follows sees what that one suspected.
    ANNOUNCE = |names| names.sql(
        "insert into {processor}
            (id, node, host, pid, presence_key, presence_pid, server_started_at,
            queues, max_attempts, timeouts_ms, policies)
        select $1::int8, $2::text, $3::text, $4::int4, $5::int8,
            case when $5::int8 is not null then pg_backend_pid() end, $6::timestamptz, $7::text[], $8::int4[], $9::int8[],
            $10::jsonb
        on conflict (id) do update set
            presence_key = excluded.presence_key,
            presence_pid = excluded.presence_pid,
            server_started_at = excluded.server_started_at,
            queues = excluded.queues,
            max_attempts = excluded.max_attempts,
            timeouts_ms = excluded.timeouts_ms,
            policies = excluded.policies,
            seen_at = clock_timestamp()",
    );

    /// The suspected claims of a process.
    SUSPECTED = |names| names.sql(
        "select g.claim from {queue_group} g
        where g.claimed_by = $1 and g.suspect is not null and coalesce(g.suspect = g.claim, false)
        union all
        select j.claim from {job} j
        where j.claimed_by = $1 and j.suspect is not null and j.suspect = j.claim",
    );

    WITHDRAW = |names| names.sql("update {processor} set presence_key = null where id = $1");

    LEAVE = |names| delete_claimless(names, "p.id = $1");

    FAILURE_DETECTOR_LOCK = |_| {
        "select pg_try_advisory_xact_lock(hashtextextended($1, 0))".to_owned()
    };

    /// The processes that may be suspected, locked against announcing another lock meanwhile.
    ///
    /// After a restart or a failover of the server all locks are gone. So a process that announced
    /// itself on another server is suspected only by a session that has been on this one for long
    /// enough (argument 2).
    OTHERS = |names| names.sql(
        "select id, presence_key from {processor} p
        where p.id <> $1 and p.presence_key is not null and ($2 or p.server_started_at = $3)
        for no key update of p skip locked",
    );

    /// Processes whose locks nobody holds.
    FREE_KEYS = |_| "with other as materialized (select unnest($1) as id, unnest($2) as presence_key) \
        select id from other where pg_try_advisory_xact_lock(presence_key)".to_owned();

    SUSPECT_GROUPS = |names| suspect_groups(names, "true");
    SUSPECT_UNGROUPED = |names| suspect_ungrouped(names, "true");
    SUSPECT_ORPHAN_GROUPS = |names| suspect_groups(names, "g.queue = $3 and g.claim <> all($4)");
    SUSPECT_ORPHAN_UNGROUPED =
        |names| suspect_ungrouped(names, "j.queue = $3 and j.claim <> all($4)");

    /// Deletes dead processes that own no claim. Keeps those seen in the last 2 min: a claim that
    /// they sent may still be committed by a server that waits for its standby, and a deleted
    /// process is never suspected again.
    FORGET = |names| delete_claimless(
        names,
        "p.id = any($1) and p.seen_at < clock_timestamp() - interval '2 min'",
    );
}

/// Suspects claims of processes once: they are due a grace later, however long their leases are.
fn suspect_groups(names: &Names, which: &str) -> String {
    names.sql_with(
        "with theirs as materialized (
            select queue, group_id, claim from {queue_group} g
            where g.job_id is not null and g.claimed_by = any($1)
                and g.suspect is distinct from g.claim and {which}
            for no key update of g skip locked
        )
        update {queue_group} as g set
            suspect = g.claim,
            ready_at = clock_timestamp() + make_interval(secs => $2)
        from theirs
        where g.queue = any (array[theirs.queue])
            and g.group_id between theirs.group_id and theirs.group_id
            and coalesce(g.claim = theirs.claim, false) and g.claimed_by = any($1)",
        &[("which", which)],
    )
}

fn suspect_ungrouped(names: &Names, which: &str) -> String {
    names.sql_with(
        "with theirs as materialized (
            select id, claim from {job} j
            where j.group_id is null and j.status = 'started' and j.claimed_by = any($1)
                and j.suspect is distinct from j.claim and {which}
            for no key update of j skip locked
        )
        update {job} as j set
            suspect = j.claim,
            lease_until = clock_timestamp() + make_interval(secs => $2)
        from theirs
        where j.id = any (array[theirs.id]) and j.claim = theirs.claim",
        &[("which", which)],
    )
}

/// Deletes these processes, but for those that own a claim: a process without a row is not
/// suspected.
fn delete_claimless(names: &Names, which: &str) -> String {
    names.sql_with(
        "with idle as materialized (
            select id from {processor} p
            where {which}
                and not exists(
                    select 1 from {queue_group} g
                    where g.job_id is not null and g.claimed_by = p.id
                )
                and not exists(
                    select 1 from {job} j
                    where j.group_id is null and j.status = 'started' and j.claimed_by = p.id
                )
        )
        delete from {processor} where id in (select id from idle)",
        &[("which", which)],
    )
}

/// A process as it announces itself.
#[derive(Debug, Clone)]
pub(crate) struct ProcessorRow {
    pub(crate) id: i64,
    pub(crate) node: String,
    pub(crate) host: Option<String>,
    pub(crate) pid: i32,
    pub(crate) queues: Vec<ServedQueue>,
}

/// A queue that a process serves.
#[derive(Debug, Clone)]
pub(crate) struct ServedQueue {
    pub(crate) name: String,
    pub(crate) policy: FailurePolicy,
    pub(crate) timeout: Option<Duration>,
}

/// The result of a check of a process's own presence.
#[derive(Debug)]
pub(crate) struct Presence {
    /// The lock is held by the very session that asked.
    pub(crate) held: bool,
    /// Claims of this process that are suspected.
    pub(crate) suspected: Vec<Uuid>,
    /// Another process's lock may be free: the failure detector may find something.
    pub(crate) maybe_dead: bool,
    /// The time until there may be something to claim, for as many of the queues as were polled in
    /// time; `None` if never.
    pub(crate) due_in: Vec<Option<Duration>>,
    /// `None` if not asked for, or not read in time.
    pub(crate) awaits_maintenance: Option<bool>,
}

/// The query of a heartbeat: about its own presence, idle queues and maintenance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeartbeatQuery<'a> {
    pub(crate) id: i64,
    pub(crate) key: i64,
    /// See [`Store::suspect_dead_processors`].
    pub(crate) long_here: bool,
    pub(crate) server: DateTime<Utc>,
    /// The idle queues to poll.
    pub(crate) queues: &'a [&'a str],
    pub(crate) maintenance: bool,
    /// Bounds it in the server.
    pub(crate) within: Duration,
}

impl HeartbeatQuery<'_> {
    pub(crate) fn new(id: i64, key: i64, long_here: bool, server: DateTime<Utc>) -> Self {
        let within = Duration::from_millis(600);
        Self { id, key, long_here, server, queues: &[], maintenance: false, within }
    }
}

impl Store {
    /// Takes the lock of a presence for the session; returns false if another session has a lock of
    /// that number.
    pub(crate) async fn take_presence(
        &self,
        conn: &mut PgConnection,
        key: i64,
    ) -> Result<bool, sqlx::Error> {
        self.query(&TAKE_KEY).bind(key).fetch_one(conn).await?.try_get(0)
    }

    /// Writes down which server this is, once it is another one: all holds are uncertain then.
    pub(crate) async fn note_server(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        self.query(&NOTE_SERVER).execute(conn).await.map(drop)
    }

    /// Returns since when this server has locks: none outlives its start, its promotion, or its
    /// recovery from a crash.
    pub(crate) async fn server_since(
        &self,
        conn: &mut PgConnection,
    ) -> Result<DateTime<Utc>, sqlx::Error> {
        self.query(&SERVER_SINCE).fetch_one(conn).await?.try_get(0)
    }

    /// Writes the process's row, with the lock that shows that it lives. Without a lock, leases
    /// alone decide.
    pub(crate) async fn announce(
        &self,
        conn: &mut PgConnection,
        row: &ProcessorRow,
        key: Option<i64>,
        server: DateTime<Utc>,
    ) -> Result<(), sqlx::Error> {
        let announce = self.query(&ANNOUNCE).bind(row.id).bind(&row.node).bind(&row.host);
        let queues: Vec<&str> = row.queues.iter().map(|queue| &*queue.name).collect();
        let attempts = row.queues.iter().map(|queue| {
            queue.policy.max_attempts.and_then(|attempts| i32::try_from(attempts).ok())
        });
        let timeouts = row.queues.iter().map(|queue| {
            queue.timeout.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
        });
        let (attempts, timeouts): (Vec<_>, Vec<_>) = (attempts.collect(), timeouts.collect());
        let announce = announce.bind(row.pid).bind(key).bind(server).bind(queues);
        let policies: BTreeMap<_, _> =
            row.queues.iter().map(|queue| (&*queue.name, &queue.policy)).collect();
        let announce = announce.bind(attempts).bind(timeouts).bind(Json(policies));
        announce.execute(conn).await.map(drop)
    }

    /// Checks the process's presence and polls its idle queues, in one message.
    pub(crate) async fn heartbeat(
        &self,
        conn: &mut PgConnection,
        asks: HeartbeatQuery<'_>,
    ) -> Result<Presence, sqlx::Error> {
        // One message, which a transaction pooler gives to one session.
        let limit = format!("set local statement_timeout = {}", asks.within.as_millis());
        let text = format!("{BEGIN}; {limit}; {}; commit", self.heartbeat_sql(asks));
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let due_in: Vec<Option<f64>> = row.try_get("due_in")?;
        let wait = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Ok(Presence {
            held: row.try_get("held")?,
            suspected: row.try_get("suspected")?,
            maybe_dead: row.try_get("maybe_dead")?,
            // A time in the past is due now.
            due_in: due_in.into_iter().map(|seconds| seconds.map(wait)).collect(),
            awaits_maintenance: row.try_get("awaits_maintenance")?,
        })
    }

    /// The statement alone.
    pub(crate) fn heartbeat_sql(&self, asks: HeartbeatQuery<'_>) -> String {
        let HeartbeatQuery { id, key, long_here, server, queues, maintenance, .. } = asks;
        let (heartbeat, lock) =
            (self.names.quoted("heartbeat"), literal(&self.failure_detector_lock()));
        let (server, queues) = (server.to_rfc3339(), queues.iter().map(|queue| name(queue)));
        let queues = queues.collect::<Vec<_>>().join(",");
        format!(
            "select * from {heartbeat}('{id}', '{key}', {long_here}, '{server}', {lock}, array[{queues}]::text[], {maintenance})"
        )
    }

    fn failure_detector_lock(&self) -> String {
        format!("seriatim failure detector {}", self.names.schema())
    }

    /// Returns the suspected claims of a process. A heartbeat returns them as well.
    pub(crate) async fn suspected_claims(
        &self,
        conn: &mut PgConnection,
        id: i64,
    ) -> Result<Vec<Uuid>, sqlx::Error> {
        let rows = self.query(&SUSPECTED).bind(id).fetch_all(conn).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }

    /// From here on leases alone decide about the process.
    pub(crate) async fn withdraw_presence(
        &self,
        conn: &mut PgConnection,
        id: i64,
    ) -> Result<(), sqlx::Error> {
        self.query(&WITHDRAW).bind(id).execute(conn).await.map(drop)
    }

    /// Deletes the process's row when it ends. Not if it still owns a claim, which other processes
    /// are to suspect then.
    pub(crate) async fn leave(&self, conn: &mut PgConnection, id: i64) -> Result<(), sqlx::Error> {
        self.query(&LEAVE).bind(id).execute(conn).await.map(drop)
    }

    /// Suspects the claims of processes whose lock is free, in the short transaction that is open.
    /// Returns how many are suspected now.
    ///
    /// `long_here`: the asking session has been on this server for longer than processes need to
    /// come back to it. `server`: that server's [`server_since`](Self::server_since).
    pub(crate) async fn suspect_dead_processors(
        &self,
        conn: &mut PgConnection,
        id: i64,
        long_here: bool,
        server: DateTime<Utc>,
    ) -> Result<u64, sqlx::Error> {
        let lock = self.query(&FAILURE_DETECTOR_LOCK).bind(self.failure_detector_lock());
        if !lock.fetch_one(&mut *conn).await?.try_get::<bool, _>(0)? {
            return Ok(0);
        }
        let others =
            self.query(&OTHERS).bind(id).bind(long_here).bind(server).fetch_all(&mut *conn).await?;
        if others.is_empty() {
            return Ok(0);
        }
        let (mut ids, mut keys) = (Vec::<i64>::new(), Vec::<i64>::new());
        for row in others {
            ids.push(row.try_get(0)?);
            keys.push(row.try_get(1)?);
        }
        let free = self.query(&FREE_KEYS).bind(ids).bind(keys).fetch_all(&mut *conn).await?;
        let dead: Vec<i64> = free.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        if dead.is_empty() {
            return Ok(0);
        }
        let grace = GRACE.as_secs_f64();
        let groups =
            self.query(&SUSPECT_GROUPS).bind(&dead).bind(grace).execute(&mut *conn).await?;
        let ungrouped =
            self.query(&SUSPECT_UNGROUPED).bind(&dead).bind(grace).execute(&mut *conn).await?;
        self.query(&FORGET).bind(&dead).execute(conn).await?;
        Ok(groups.rows_affected() + ungrouped.rows_affected())
    }

    /// Suspects the orphaned claims of a queue: those of this process that it does not know.
    /// Returns how many.
    pub(crate) async fn suspect_orphans(
        &self,
        conn: &mut PgConnection,
        id: i64,
        queue: &str,
        known: &[Uuid],
    ) -> Result<u64, sqlx::Error> {
        let mut suspected = 0;
        for suspect in [&SUSPECT_ORPHAN_GROUPS, &SUSPECT_ORPHAN_UNGROUPED] {
            let suspect =
                self.query(suspect).bind([id]).bind(GRACE.as_secs_f64()).bind(queue).bind(known);
            suspected += suspect.execute(&mut *conn).await?.rows_affected();
        }
        Ok(suspected)
    }
}
