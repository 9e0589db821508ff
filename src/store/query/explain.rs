//! Explain: what there is to know about a job and its group, by plain reads. Locks nothing.

use chrono::TimeDelta;
use sea_query::{Expr, JoinType, Order, SelectStatement};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::job::explanation::{BoundedCount, ProcessorInfo, SessionInfo};
use crate::job::facts::{Facts, JobFacts, LineFacts, Pause};
use crate::job::job::JobStatus;
use crate::store::builder::{PG, render, select, sql, sub};
use crate::store::fragments::paused;
use crate::store::index_terms::{in_group, in_order, unfinished};
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    JOB_FACTS = job_facts;
    GROUP_FACTS = group_facts;
    GROUP_LOCKER = |names| locker(names, "queue_group");
    JOB_LOCKER = |names| locker(names, "job");
}

/// What is asked about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    Job(i64),
    Group(&'a str, &'a str),
}

fn job_facts(names: &Names) -> String {
    let job = select()
        .columns(["queue", "group_id"])
        .expr_as(sql("id"), "job_id")
        .from(names.job())
        .and_where(sql("id = ?1"))
        .to_owned();
    facts(names, job)
}

fn group_facts(names: &Names) -> String {
    let group = select()
        .expr_as(sql("?1::text"), "queue")
        .expr_as(sql("?2::text"), "group_id")
        .expr_as(sql("null::int8"), "job_id")
        .to_owned();
    facts(names, group)
}

/// The number of rows of a query, counted up to one more than the limit.
fn count(mut query: SelectStatement) -> Expr {
    let some = query.expr(sql("1")).limit(BoundedCount::LIMIT + 1).to_owned();
    sub(select().expr(sql("count(*)")).from_subquery(some, "some").to_owned())
}

const JOB: [&str; 15] = [
    "id",
    "status::text",
    "attempts",
    "attempts_forgiven",
    "max_attempts",
    "run_at",
    "last_started_at",
    "finished_at",
    "expires_at",
    "error->>'message'",
    "flagged",
    "parked_with",
    "lease_until",
    "suspect = j.claim",
    "timeout_ms",
];
const LINE: usize = 2 * JOB.len();
const REST: usize = LINE + 8;

/// Everything in one statement, so in one snapshot. Each probe reads by an index, and no further
/// than the limit.
fn facts(names: &Names, subject: SelectStatement) -> String {
    let mut lowest = select()
        .column(("l", "id"))
        .from_as(names.job(), "l")
        .and_where(in_group("l", "k.queue", "k.group_id", None))
        .and_where(unfinished("l"))
        .limit(1)
        .to_owned();
    in_order(&mut lowest, "l", &Order::Asc);
    // Of several under one claim, the first that has not ended.
    let batch_jobs = names.quoted("batch_jobs");
    let claimed = sql(format!(
        "(select min(b.id) from \
         {batch_jobs}(k.queue, k.group_id, g.job_id, coalesce(g.batch_end, g.job_id)) b(id))"
    ));
    let is_head = Expr::cust_with_exprs(
        "h.id = case when k.group_id is null then k.job_id else coalesce($1, g.job_id, $2) end",
        [claimed, sub(lowest)],
    );
    let since = |paused: &str, at: &str| format!("case when {paused} then {at} end");
    let mut query = select();
    query
        .from_subquery(subject, "k")
        .join_as(JoinType::LeftJoin, names.job(), "j", sql("j.id = k.job_id"))
        .join_as(
            JoinType::LeftJoin,
            names.queue_group(),
            "g",
            sql("g.queue = k.queue and g.group_id = k.group_id"),
        )
        .join_as(JoinType::LeftJoin, names.job(), "h", is_head)
        .join_as(JoinType::LeftJoin, names.queue(), "q", sql("q.name = k.queue"))
        .join_as(
            JoinType::LeftJoin,
            names.group_setting(),
            "s",
            sql("s.queue = k.queue and s.group_id = k.group_id"),
        )
        .join_as(
            JoinType::LeftJoin,
            names.processor(),
            "p",
            sql("p.id = coalesce(g.claimed_by, h.claimed_by)"),
        );
    for alias in ["j", "h"] {
        for column in JOB {
            query.expr(sql(format!("{alias}.{}", column.replace("j.", &format!("{alias}.")))));
        }
    }
    query.exprs(
        [
            "g.queue is not null",
            "nullif(g.ready_at, 'infinity')",
            "g.job_id",
            "g.suspect = g.claim",
            "g.halted_at",
            "g.halt_reason",
            "g.halt_job_id",
            "g.halt_until",
            "g.park_to is not null",
            "clock_timestamp()",
            "k.queue",
            "k.group_id",
            &since(&paused("q"), "q.paused_at"),
            "q.pause_reason",
            "q.paused_until",
            &since(&paused("s"), "s.paused_at"),
            "s.pause_reason",
            "s.paused_until",
            "q.in_flight_limit::int8",
            "p.id",
            "p.node",
            "p.host",
            "p.pid",
            "case when k.group_id is null then h.xmax::text else g.xmax::text end",
            "h.xmax::text",
        ]
        .map(|column| sql(column.to_owned())),
    );
    for tally in tallies(names).into_iter().chain(fleet(names)) {
        query.expr(tally);
    }
    render(query.build(PG))
}

/// What processors say of the queue (attempts, timeout), requests to cancel the job and the head,
/// the served queues if this one is not, whether the claim's processor lives, what it is, and the
/// group's parked jobs with the time of the first.
fn fleet(names: &Names) -> [Expr; 11] {
    let of_queue = |column: &str, which: &str| {
        names.sql(&format!(
            "coalesce(p.{column}[array_position(p.queues, k.queue)], (select {which}(o.{column}[array_position(o.queues, k.queue)])
             from {{processor}} o where k.queue = any (o.queues)))"
        ))
    };
    let cancel = |alias: &str| {
        names.sql(&format!(
            "(select min(r.requested_at) from {{cancel_request}} r where r.job_id = {alias}.id)"
        ))
    };
    let parked = "j.queue = k.queue and j.group_id = k.group_id and j.parked_with is not null";
    [
        of_queue("max_attempts", "max"),
        of_queue("timeouts_ms", "max"),
        cancel("j"),
        cancel("h"),
        names.sql(
            "(select case when not bool_or(o.queues is null or k.queue = any (o.queues)) is true
               then array(select distinct s.name from {processors}() o, unnest(o.queues) s(name)
                 where o.alive order by s.name limit 20) end
             from {processors}() o where o.alive)",
        ),
        names.sql("(select o.alive from {processors}() o where o.id = p.id)"),
        String::from("p.queues"),
        String::from("p.started_at"),
        String::from("p.seen_at"),
        names.sql(&format!(
            "(select count(*) from (select from {{job}} j where {parked} and j.status = 'parked' limit {}) parked)",
            BoundedCount::LIMIT + 1
        )),
        names.sql(&format!(
            "(select min(f.finished_at) from (select j.finished_at from {{job}} j where {parked}
               and j.status = 'failed' order by j.group_id, j.id limit 100) f)"
        )),
    ]
    .map(sql)
}

/// Groups and jobs in flight in the queue (2), due groups and jobs before the head (2), and jobs
/// behind.
fn tallies(names: &Names) -> [Expr; 5] {
    let jobs = |condition: Expr| select().from_as(names.job(), "n").and_where(condition).to_owned();
    let groups = |condition: &'static str| {
        select().from_as(names.queue_group(), "n").and_where(sql(condition)).to_owned()
    };
    let behind = jobs(in_group("n", "k.queue", "k.group_id", Some("> coalesce(j.id, h.id, 0)")))
        .and_where(unfinished("n"))
        .to_owned();
    [
        // Each job of a batch counts, as it does for the limit.
        sub(select()
            .expr(sql("coalesce(sum(claimed.batch_size), 0)::int8"))
            .from_subquery(
                groups("n.queue = k.queue and n.job_id is not null")
                    .expr(sql("n.batch_size"))
                    .limit(BoundedCount::LIMIT + 1)
                    .to_owned(),
                "claimed",
            )
            .to_owned()),
        count(jobs(sql("n.queue = k.queue and n.group_id is null and n.status = 'started'"))),
        count(groups(
            "n.queue = k.queue and n.ready_at <= now() and n.ready_at < 'infinity' and n.job_id is null \
             and n.ready_at < g.ready_at",
        )),
        count(jobs(sql(
            "n.queue = k.queue and n.group_id is null and n.status = 'queued' and k.group_id is null \
             and n.turn_at <= now() and (n.turn_at, n.id) < (h.turn_at, h.id)",
        ))),
        count(behind),
    ]
}

/// The session of the transaction that is written as a row's locker.
fn locker(names: &Names, table: &str) -> String {
    names.sql_with(
        "select a.pid, a.state, a.query, a.query_start, pg_catalog.host(a.client_addr), a.backend_start,
            a.xact_start, pg_catalog.pg_blocking_pids(a.pid), nullif(a.application_name, '')
        from pg_catalog.pg_stat_activity a where a.pid = {locker}($1, {table})",
        &[("table", &format!("'{table}'"))],
    )
}

impl Store {
    /// Returns what there is to know; `None` if there is no such job.
    pub(crate) async fn facts(
        &self,
        conn: &mut PgConnection,
        subject: Subject<'_>,
    ) -> Result<Option<Facts>, sqlx::Error> {
        let query = match subject {
            Subject::Job(id) => self.query(&JOB_FACTS).bind(id),
            Subject::Group(queue, group) => self.query(&GROUP_FACTS).bind(queue).bind(group),
        };
        query.fetch_optional(conn).await?.as_ref().map(read).transpose()
    }

    /// Returns the session whose transaction has locked the row, by the row's `xmax`.
    pub(crate) async fn locker(
        &self,
        conn: &mut PgConnection,
        xid: &str,
        of_group: bool,
    ) -> Result<Option<SessionInfo>, sqlx::Error> {
        let locker = if of_group { &GROUP_LOCKER } else { &JOB_LOCKER };
        let found = self.query(locker).bind(xid).fetch_optional(conn).await?;
        found.as_ref().map(session).transpose()
    }
}

fn session(row: &PgRow) -> Result<SessionInfo, sqlx::Error> {
    Ok(SessionInfo {
        pid: row.try_get(0)?,
        state: row.try_get(1)?,
        query: row
            .try_get::<Option<&str>, _>(2)?
            .filter(|query| !query.is_empty())
            .map(presentable),
        query_start: row.try_get(3)?,
        client_address: row.try_get(4)?,
        since: row.try_get(5)?,
        transaction_start: row.try_get(6)?,
        blocked_by: row.try_get(7)?,
        application: row.try_get(8)?,
    })
}

fn read(row: &PgRow) -> Result<Facts, sqlx::Error> {
    let readied: bool = row.try_get(LINE)?;
    let line = if readied {
        Some(LineFacts {
            ready_at: row.try_get(LINE + 1)?,
            claimed_job: row.try_get(LINE + 2)?,
            suspected: row.try_get::<Option<bool>, _>(LINE + 3)?.unwrap_or_default(),
            halted_at: row.try_get(LINE + 4)?,
            halt_reason: row.try_get(LINE + 5)?,
            halt_job: row.try_get(LINE + 6)?,
            halt_until: row.try_get(LINE + 7)?,
            parking: row.try_get(REST)?,
        })
    } else {
        None
    };
    let rest = REST + 1;
    let fleet = rest + 21;
    let paused = |at: usize| -> Result<_, sqlx::Error> {
        let (why, until) = (row.try_get(at + 1)?, row.try_get(at + 2)?);
        let since: Option<_> = row.try_get(at)?;
        Ok(since.map(|since| Pause { since, why, until }))
    };
    let processor = match row.try_get(rest + 10)? {
        None => None,
        Some(id) => Some(ProcessorInfo {
            id,
            node: row.try_get(rest + 11)?,
            host: row.try_get(rest + 12)?,
            pid: row.try_get(rest + 13)?,
            alive: row.try_get::<Option<bool>, _>(fleet + 5)?.unwrap_or_default(),
            queues: row.try_get(fleet + 6)?,
            started_at: row.try_get(fleet + 7)?,
            seen_at: row.try_get(fleet + 8)?,
        }),
    };
    let tally = |n: usize| row.try_get::<i64, _>(rest + 16 + n).map(i64::unsigned_abs);
    Ok(Facts {
        now: row.try_get(rest)?,
        queue: row.try_get(rest + 1)?,
        group: row.try_get(rest + 2)?,
        job: job(row, 0)?,
        head: job(row, JOB.len())?,
        line,
        queue_paused: paused(rest + 3)?,
        group_paused: paused(rest + 6)?,
        limit: row.try_get::<Option<i64>, _>(rest + 9)?.map(i64::unsigned_abs),
        in_flight: tally(0)? + tally(1)?,
        due_before: tally(2)? + tally(3)?,
        behind: tally(4)?,
        processor,
        locked_by: row.try_get(rest + 14)?,
        head_locked_by: row.try_get(rest + 15)?,
        attempts: row.try_get::<Option<i32>, _>(fleet)?.map(i32::unsigned_abs),
        timeout: row.try_get::<Option<i64>, _>(fleet + 1)?.and_then(TimeDelta::try_milliseconds),
        job_cancel: row.try_get(fleet + 2)?,
        head_cancel: row.try_get(fleet + 3)?,
        unserved: row.try_get(fleet + 4)?,
        parked: row.try_get::<i64, _>(fleet + 9)?.unsigned_abs(),
        parked_since: row.try_get(fleet + 10)?,
    })
}

fn job(row: &PgRow, at: usize) -> Result<Option<JobFacts>, sqlx::Error> {
    let Some(id) = row.try_get(at)? else { return Ok(None) };
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let status: String = row.try_get(at + 1)?;
    Ok(Some(JobFacts {
        id,
        status: JobStatus::parse(&status)
            .ok_or_else(|| sqlx::Error::Decode(format!("unknown job status {status:?}").into()))?,
        attempts: count(row.try_get(at + 2)?),
        forgiven: count(row.try_get(at + 3)?),
        max_attempts: row.try_get::<Option<i32>, _>(at + 4)?.map(count),
        run_at: row.try_get(at + 5)?,
        started_at: row.try_get(at + 6)?,
        finished_at: row.try_get(at + 7)?,
        expires_at: row.try_get(at + 8)?,
        error: row.try_get(at + 9)?,
        flagged: row.try_get(at + 10)?,
        parked_with: row.try_get(at + 11)?,
        lease_until: row.try_get(at + 12)?,
        suspected: row.try_get::<Option<bool>, _>(at + 13)?.unwrap_or_default(),
        timeout: row.try_get::<Option<i64>, _>(at + 14)?.and_then(TimeDelta::try_milliseconds),
    }))
}

/// A query as it may be shown: the library's own literals are left out, as a success's result is
/// one (see `literal`), and its holds as a whole, as they show the claim's token.
fn presentable(query: &str) -> String {
    if ["hold_job", "hold_next"].iter().any(|own| query.contains(own)) {
        return "(the hold of the job, by the library)".to_owned();
    }
    match query.split_once("convert_from(decode('") {
        Some((before, _)) => format!("{before}…"),
        None => query.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_query_is_shown_without_the_result_that_is_in_it() {
        let literal = crate::store::literal::literal("SECRET");
        let query = format!("select settle_success(1, 'x', {literal}::jsonb, true, null); commit");
        assert_eq!(super::presentable(&query), "select settle_success(1, 'x', (…");
        assert_eq!(super::presentable("select 1"), "select 1");
        let hold = super::presentable("begin; select \"seriatim\".\"hold_job\"(25, 'token')");
        assert!(!hold.contains("token"), "{hold}");
    }
}
