//! Presence: each process shows by an advisory lock of one session that it lives; whoever can take that lock may doubt
//! the process's claims.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sea_query::{
    DeleteStatement, Expr, InsertStatement, LockBehavior, LockType, OnConflict, UpdateStatement,
};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::store::Store;
use crate::store::claim::start::GRACE;
use crate::store::index_terms::{keyed, same_group};
use crate::store::session::BEGIN;
use crate::store::statement::{
    Names, PG, Template, cte, literal, name, rows_of, select, sql, with,
};

#[derive(Debug)]
pub(in crate::store) struct Statements {
    take_key: Template,
    server_since: Template,
    announce: Template,
    withdraw: Template,
    leave: Template,
    judge_lock: Template,
    others: Template,
    free_keys: Template,
    suspect_groups: Template,
    suspect_ungrouped: Template,
    suspect_orphan_groups: Template,
    suspect_orphan_ungrouped: Template,
    forget: Template,
}

/// What a process says about itself.
#[derive(Debug, Clone)]
pub(crate) struct ProcessorRow {
    pub(crate) id: i64,
    pub(crate) node: String,
    pub(crate) host: Option<String>,
    pub(crate) pid: i32,
}

/// What a check of a process's own presence found.
#[derive(Debug)]
pub(crate) struct Presence {
    /// The lock is held by the very session that asked.
    pub(crate) held: bool,
    /// Claims of this process that somebody doubts.
    pub(crate) suspected: Vec<Uuid>,
    /// Another process's lock may be free.
    pub(crate) maybe_dead: bool,
    /// When there may be something to claim in the first of the queues that were asked for, as many as the look came to; none: never.
    pub(crate) due_in: Vec<Option<Duration>>,
    /// None: not asked for, or not come to.
    pub(crate) awaits_maintenance: Option<bool>,
}

/// Who asks, and for what beside its presence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeartbeatQuery<'a> {
    pub(crate) id: i64,
    pub(crate) key: i64,
    /// See [`Store::judge`].
    pub(crate) long_here: bool,
    pub(crate) server: DateTime<Utc>,
    /// Those with nothing to do.
    pub(crate) queues: &'a [&'a str],
    pub(crate) house: bool,
}

impl HeartbeatQuery<'_> {
    pub(crate) fn new(id: i64, key: i64, long_here: bool, server: DateTime<Utc>) -> Self {
        Self { id, key, long_here, server, queues: &[], house: false }
    }
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        let take_key = select().expr(sql("pg_try_advisory_lock(?1)")).to_owned();
        let judge_lock =
            select().expr(sql("pg_try_advisory_xact_lock(hashtextextended(?1, 0))")).to_owned();
        let withdraw = UpdateStatement::new()
            .table(names.processor())
            .value("presence_key", sql("null"))
            .and_where(sql("id = ?1"))
            .to_owned();
        Self {
            take_key: Template::new(take_key.build(PG)),
            server_since: server_since(names),
            announce: announce(names),
            withdraw: Template::new(withdraw.build(PG)),
            leave: claimless(names, "p.id = ?1"),
            judge_lock: Template::new(judge_lock.build(PG)),
            others: others(names),
            free_keys: free_keys(),
            suspect_groups: suspect_groups(names, "true"),
            suspect_ungrouped: suspect_ungrouped(names, "true"),
            suspect_orphan_groups: suspect_groups(names, "g.queue = ?3 and g.claim <> all(?4)"),
            suspect_orphan_ungrouped: suspect_ungrouped(
                names,
                "j.queue = ?3 and j.claim <> all(?4)",
            ),
            forget: forget(names),
        }
    }
}

fn server_since(names: &Names) -> Template {
    let since = format!("{}()", names.quoted("server_since"));
    Template::new(select().expr(sql(since)).build(PG))
}

/// Says which lock shows that the process lives. Waits for a judge that has the row, a few ms: what that doubted is seen
/// by the extension that follows.
fn announce(names: &Names) -> Template {
    let row = select()
        .exprs([
            sql("?1::int8"),
            sql("?2::text"),
            sql("?3::text"),
            sql("?4::int4"),
            sql("?5::int8"),
            sql("case when ?5::int8 is not null then pg_backend_pid() end"),
            sql("?6::timestamptz"),
        ])
        .to_owned();
    let mut insert = InsertStatement::new();
    insert
        .into_table(names.processor())
        .columns(["id", "node", "host", "pid", "presence_key", "presence_pid", "server_started_at"])
        .on_conflict(
            OnConflict::column("id")
                .update_columns(["presence_key", "presence_pid", "server_started_at"])
                .value("seen_at", sql("clock_timestamp()"))
                .to_owned(),
        );
    crate::store::statement::select_into(&mut insert, row);
    Template::new(insert.build(PG))
}

/// The processes that may be judged, locked against their announcing another lock meanwhile.
///
/// After a restart or a failover of the server all locks are gone, so a process that announced itself on another server
/// is judged only by whoever has been here for long enough (argument 2).
fn others(names: &Names) -> Template {
    let query = select()
        .columns(["id", "presence_key"])
        .from_as(names.processor(), "p")
        .and_where(sql("p.id <> ?1 and p.presence_key is not null"))
        .and_where(sql("(?2 or p.server_started_at = ?3)"))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["p"], LockBehavior::SkipLocked)
        .to_owned();
    Template::new(query.build(PG))
}

/// Those whose locks nobody holds.
fn free_keys() -> Template {
    let query = select()
        .column("id")
        .from("other")
        .and_where(sql("pg_try_advisory_xact_lock(presence_key)"))
        .to_owned();
    with([cte("other", rows_of(&[(1, "id"), (2, "presence_key")]))], query)
}

/// Doubts claims of processes, all or some, once: they are due a grace later, however long their leases are.
fn suspect_groups(names: &Names, which: &'static str) -> Template {
    let theirs = select()
        .columns(["queue", "group_id", "claim"])
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.job_id is not null and g.claimed_by = any(?1)"))
        .and_where(sql("g.suspect is distinct from g.claim"))
        .and_where(sql(which))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    let suspected = UpdateStatement::new()
        .table(names.queue_group().alias("g"))
        .value("suspect", sql("g.claim"))
        .value("ready_at", sql("clock_timestamp() + make_interval(secs => ?2)"))
        .from("theirs")
        .and_where(sql(same_group("g", "theirs")))
        .and_where(sql("coalesce(g.claim = theirs.claim, false) and g.claimed_by = any(?1)"))
        .to_owned();
    with([cte("theirs", theirs)], suspected)
}

fn suspect_ungrouped(names: &Names, which: &'static str) -> Template {
    let theirs = select()
        .columns(["id", "claim"])
        .from_as(names.job(), "j")
        .and_where(sql("j.group_id is null and j.status = 'started' and j.claimed_by = any(?1)"))
        .and_where(sql("j.suspect is distinct from j.claim"))
        .and_where(sql(which))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["j"], LockBehavior::SkipLocked)
        .to_owned();
    let suspected = UpdateStatement::new()
        .table(names.job().alias("j"))
        .value("suspect", sql("j.claim"))
        .value("lease_until", sql("clock_timestamp() + make_interval(secs => ?2)"))
        .from("theirs")
        .and_where(sql(format!("{} and j.claim = theirs.claim", keyed("j.id", "theirs.id"))))
        .to_owned();
    with([cte("theirs", theirs)], suspected)
}

/// Dead processes that nothing is claimed by any more. Not those that were seen a moment ago: a claim of theirs may be committed
/// yet, by a server that waits for its standby, and who is forgotten is not judged again.
fn forget(names: &Names) -> Template {
    claimless(names, "p.id = any(?1) and p.seen_at < clock_timestamp() - interval '2 min'")
}

/// Deletes these processes, but for those by whom something is claimed: who has no row is not judged.
fn claimless(names: &Names, which: &'static str) -> Template {
    let groups = select()
        .expr(sql("1"))
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.job_id is not null and g.claimed_by = p.id"))
        .to_owned();
    let ungrouped = select()
        .expr(sql("1"))
        .from_as(names.job(), "j")
        .and_where(sql("j.group_id is null and j.status = 'started' and j.claimed_by = p.id"))
        .to_owned();
    let idle = select()
        .column("id")
        .from_as(names.processor(), "p")
        .and_where(sql(which))
        .and_where(Expr::not_exists(groups))
        .and_where(Expr::not_exists(ungrouped))
        .to_owned();
    let query = DeleteStatement::new()
        .from_table(names.processor())
        .and_where(sql("id in (select id from idle)"))
        .to_owned();
    with([cte("idle", idle)], query)
}

impl Store {
    /// Takes the lock of a presence for the session; false: somebody else has a lock of that number.
    pub(crate) async fn take_presence(
        &self,
        conn: &mut PgConnection,
        key: i64,
    ) -> Result<bool, sqlx::Error> {
        self.presence.take_key.query().bind(key).fetch_one(conn).await?.try_get(0)
    }

    /// Since when this server's locks are there: none outlives its start, or its recovery from a crash. The same for as long as
    /// a session lasts.
    pub(crate) async fn server_since(
        &self,
        conn: &mut PgConnection,
    ) -> Result<DateTime<Utc>, sqlx::Error> {
        self.presence.server_since.query().fetch_one(conn).await?.try_get(0)
    }

    /// Writes the process's row, with the lock that shows that it lives; none: leases alone decide.
    pub(crate) async fn announce(
        &self,
        conn: &mut PgConnection,
        row: &ProcessorRow,
        key: Option<i64>,
        server: DateTime<Utc>,
    ) -> Result<(), sqlx::Error> {
        let announce = self.presence.announce.query().bind(row.id).bind(&row.node).bind(&row.host);
        announce.bind(row.pid).bind(key).bind(server).execute(conn).await.map(drop)
    }

    /// Whether this session still holds the lock, who is doubted, whether [`judge`](Self::judge) may find something, and what the
    /// process may have to do.
    pub(crate) async fn presence_look(
        &self,
        conn: &mut PgConnection,
        asks: HeartbeatQuery<'_>,
    ) -> Result<Presence, sqlx::Error> {
        // One message, which a transaction pooler gives to one session.
        let limit = "set local statement_timeout = '600ms'";
        let text = format!("{BEGIN}; {limit}; {}; commit", self.presence_sql(asks));
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let due_in: Vec<Option<f64>> = row.try_get("due_in")?;
        let wait = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Ok(Presence {
            held: row.try_get("held")?,
            suspected: row.try_get("doubted")?,
            maybe_dead: row.try_get("maybe_dead")?,
            // What is past is due.
            due_in: due_in.into_iter().map(|seconds| seconds.map(wait)).collect(),
            awaits_maintenance: row.try_get("awaits_house")?,
        })
    }

    /// The statement alone.
    pub(crate) fn presence_sql(&self, asks: HeartbeatQuery<'_>) -> String {
        let HeartbeatQuery { id, key, long_here, server, queues, house } = asks;
        let (look, judge) = (self.names.quoted("presence_look"), literal(&self.judge_lock()));
        let (server, queues) = (server.to_rfc3339(), queues.iter().map(|queue| name(queue)));
        let queues = queues.collect::<Vec<_>>().join(",");
        format!(
            "select * from {look}('{id}', '{key}', {long_here}, '{server}', {judge}, array[{queues}]::text[], {house})"
        )
    }

    fn judge_lock(&self) -> String {
        format!("seriatim judge {}", self.names.schema())
    }

    /// From here on leases alone decide about the process.
    pub(crate) async fn withdraw_presence(
        &self,
        conn: &mut PgConnection,
        id: i64,
    ) -> Result<(), sqlx::Error> {
        self.presence.withdraw.query().bind(id).execute(conn).await.map(drop)
    }

    /// Deletes the process's row: it ends in order. Not if something is still claimed by it, which others are to see then.
    pub(crate) async fn leave(&self, conn: &mut PgConnection, id: i64) -> Result<(), sqlx::Error> {
        self.presence.leave.query().bind(id).execute(conn).await.map(drop)
    }

    /// Judges the other processes, in the short transaction that is open; how many claims are doubted now.
    ///
    /// `long_here`: the asking session has been on this server for longer than processes need to come back to it. `server`:
    /// that server's [`server_since`](Self::server_since).
    pub(crate) async fn judge(
        &self,
        conn: &mut PgConnection,
        id: i64,
        long_here: bool,
        server: DateTime<Utc>,
    ) -> Result<u64, sqlx::Error> {
        let sql = &self.presence;
        let lock = self.judge_lock();
        if !sql.judge_lock.query().bind(lock).fetch_one(&mut *conn).await?.try_get::<bool, _>(0)? {
            return Ok(0);
        }
        let others =
            sql.others.query().bind(id).bind(long_here).bind(server).fetch_all(&mut *conn).await?;
        if others.is_empty() {
            return Ok(0);
        }
        let (mut ids, mut keys) = (Vec::<i64>::new(), Vec::<i64>::new());
        for row in others {
            ids.push(row.try_get(0)?);
            keys.push(row.try_get(1)?);
        }
        let free = sql.free_keys.query().bind(ids).bind(keys).fetch_all(&mut *conn).await?;
        let dead: Vec<i64> = free.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        if dead.is_empty() {
            return Ok(0);
        }
        let grace = GRACE.as_secs_f64();
        let groups = sql.suspect_groups.query().bind(&dead).bind(grace).execute(&mut *conn).await?;
        let ungrouped =
            sql.suspect_ungrouped.query().bind(&dead).bind(grace).execute(&mut *conn).await?;
        sql.forget.query().bind(&dead).execute(conn).await?;
        Ok(groups.rows_affected() + ungrouped.rows_affected())
    }

    /// Doubts a queue's claims of this process that it does not know; how many.
    pub(crate) async fn suspect_orphans(
        &self,
        conn: &mut PgConnection,
        id: i64,
        queue: &str,
        known: &[Uuid],
    ) -> Result<u64, sqlx::Error> {
        let mut suspected = 0;
        for suspect in
            [&self.presence.suspect_orphan_groups, &self.presence.suspect_orphan_ungrouped]
        {
            let suspect =
                suspect.query().bind([id]).bind(GRACE.as_secs_f64()).bind(queue).bind(known);
            suspected += suspect.execute(&mut *conn).await?.rows_affected();
        }
        Ok(suspected)
    }
}
