//! Claim: take the turns of groups that are due, look at their heads in a new statement, write what follows.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sea_query::{Expr, LockBehavior, LockType, Order, UpdateStatement};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::job::group_plan::{Disposition, LockedGroup, Plan};
use crate::job::job::Job;
use crate::job::queue_options::{Hold, QueueOptions};
use crate::store::Store;
use crate::store::index_terms::{keyed, same_group};
use crate::store::statement::{Names, PG, Template, cte, limit, rows_of, select, sql, with};

/// How long a claim is good for before its hold must stand.
pub(crate) const CLAIM_LEASE: Duration = Duration::from_millis(500);
/// How long after a first doubt a claim is taken over: longer than any worker needs to notice that it lost its hold.
pub(crate) const GRACE: Duration = Duration::from_millis(1750);
/// How much longer a group, or a job without one, has waited in the eyes of a claim for each level of its priority. What
/// has waited longer by the head start of all levels than anything that comes now goes first whatever the priorities:
/// nothing starves.
pub(crate) const PRIORITY_AGING: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(in crate::store) struct Statements {
    take: Template,
    start: Template,
    wake_others: Template,
}

/// A claimed job.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) job: i64,
    /// Jobs of its group that were claimed together with it, to be run after it, in order.
    pub(crate) behind: Vec<i64>,
    /// None: a job without a group.
    pub(crate) group: Option<String>,
    pub(crate) token: Uuid,
    pub(crate) go: Disposition,
    /// Whether it may be claimed before there is a slot for it: it was never begun, has further attempts, and does not
    /// expire. None: it was not looked at.
    pub(crate) may_wait: Option<bool>,
}

impl Claim {
    /// Goes on to the next job of the turn, if there is one.
    pub(crate) fn advance(&mut self) -> bool {
        let more = !self.behind.is_empty();
        if more {
            self.job = self.behind.remove(0);
        }
        more
    }
}

/// On which terms a queue's jobs are claimed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClaimOptions {
    /// Of jobs that name none.
    pub(crate) max_attempts: i32,
    /// How many jobs of a group are claimed together at most.
    pub(crate) jobs_per_turn: usize,
    /// How long a claim is good for, unless it is extended.
    pub(crate) lease: Duration,
    /// Whether a job's own lease comes first: where leases, and not locks, keep the jobs.
    pub(crate) own_lease: bool,
    /// Whose claims they are.
    pub(crate) processor: Option<i64>,
    /// Jobs that were enqueued before are not run.
    pub(crate) ignore_before: Option<DateTime<Utc>>,
}

impl ClaimOptions {
    pub(crate) fn new(options: &QueueOptions, processor: Option<i64>) -> Self {
        let (lease, own_lease) = match options.hold {
            Hold::Transaction => (CLAIM_LEASE, false),
            Hold::Lease(lease) => (lease, true),
        };
        let max_attempts = i32::try_from(options.retry.max_attempts).unwrap_or(i32::MAX);
        let ignore_before = options.ignore_before;
        let jobs_per_turn = options.jobs_per_turn.unwrap_or(1);
        Self { max_attempts, jobs_per_turn, lease, own_lease, processor, ignore_before }
    }
}

/// What was decided about a turn that did not start a job.
#[derive(Debug, Clone)]
pub(crate) struct GroupPlan {
    pub(crate) group: String,
    pub(crate) plan: Plan,
    /// What is claimed together with the head, in order.
    pub(crate) behind: Vec<i64>,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        Self {
            take: take(names),
            start: start(names),
            wake_others: Template::new(select().expr(sql("pg_notify(?1, ?2)")).build(PG)),
        }
    }
}

/// Locks the rows of up to n groups that are due, the one served least recently first (P8).
fn take(names: &Names) -> Template {
    let query = select()
        .columns(["group_id", "job_id", "head_id", "batch_end"])
        .expr_as(sql(names.is_doubted("g", "ready_at")), "doubted")
        .from_as(names.queue_group(), "g")
        .and_where(sql("g.queue = ?1 and g.ready_at <= now() and g.ready_at < 'infinity'"))
        .order_by("ready_at", Order::Asc)
        .limit(limit(2))
        .lock_with_tables_behavior(LockType::NoKeyUpdate, ["g"], LockBehavior::SkipLocked)
        .to_owned();
    Template::new(query.build(PG))
}

/// Starts jobs: both rows are locked by this transaction, and are written with what was just read under the locks.
///
/// The attempt is counted here and committed before the handler starts (P9). The token is random, and every later
/// statement about the run shows it (P10). Only a look on a free row moves `head_id`.
fn start(names: &Names) -> Template {
    let started = UpdateStatement::new()
        .table(names.job().alias("j"))
        .values([
            ("status", sql("'started'")),
            ("flagged", sql("false")),
            ("history", lost_attempt("j", "turn.go")),
            ("attempts", sql("j.attempts + case when turn.go = 'run' then 1 else 0 end")),
            (
                "last_started_at",
                sql("case when turn.go = 'run' then clock_timestamp() else j.last_started_at end"),
            ),
        ])
        .from("turn")
        .and_where(sql(keyed("j.id", "turn.job_id")))
        .and_where(sql("j.finished_at is null"))
        .returning(sea_query::Query::returning().exprs([
            sql("j.id"),
            sql("j.queue"),
            sql("j.group_id"),
            sql("j.lease_ms"),
            sql("j.expires_at"),
            sql("turn.go"),
            sql("turn.batch_end"),
            sql("turn.batch_size"),
        ]))
        .to_owned();
    let claimed = UpdateStatement::new()
        .table(names.queue_group().alias("g"))
        .values([
            ("claim", sql("gen_random_uuid()")),
            ("job_id", sql("started.id")),
            ("head_id", sql("case when g.claim is null then started.id else g.head_id end")),
            ("suspect", sql("null")),
            ("claimed_by", sql("?7")),
            ("boost", sql("0")),
            ("batch_end", sql("started.batch_end")),
            ("batch_size", sql("started.batch_size")),
            ("ready_at", sql(format!("clock_timestamp() + {}", lease("started", "?5", "?6")))),
        ])
        .from("started")
        .and_where(sql(same_group("g", "started")))
        .and_where(sql("started.batch_size is not null"))
        .returning(sea_query::Query::returning().exprs([
            sql("started.id"),
            sql("g.group_id"),
            sql("g.claim"),
            sql("started.go"),
            sql("started.expires_at"),
        ]))
        .to_owned();
    // Joined nowhere: without an index, that would take the square of their number.
    let query = select().expr(sql("*")).from("claimed").to_owned();
    let turn =
        rows_of(&[(2, "job_id"), (3, "group_id"), (4, "go"), (8, "batch_end"), (9, "batch_size")]);
    with([cte("turn", turn), cte("started", started), cte("claimed", claimed)], query)
}

/// The head start of a priority.
pub(in crate::store) fn priority_aging(priority: &str) -> String {
    format!("make_interval(secs => {priority} * {})", PRIORITY_AGING.as_secs())
}

/// How long a claim is good for: the terms' lease, or the job's own where that counts.
pub(in crate::store) fn lease(alias: &str, options: &str, own: &str) -> String {
    format!(
        "make_interval(secs => coalesce(case when {own} then {alias}.lease_ms / 1000.0 end, {options}))"
    )
}

/// What becomes of a job that is claimed now: the word of a [`Disposition`].
pub(in crate::store) fn go(alias: &str, max_attempts: &str, ignore_before: &str) -> String {
    format!(
        "case when {alias}.created_at < {ignore_before} then 'ignored' \
         when {alias}.attempts - {alias}.attempts_forgiven >= coalesce({alias}.max_attempts, {max_attempts}) \
           then 'exhausted' \
         when {alias}.expires_at <= now() then 'expired' else 'run' end"
    )
}

/// The history with the attempt that a take-over finds unfinished; unchanged where the job was queued. Where its attempts
/// are used up, the settle that follows says so.
pub(in crate::store) fn lost_attempt(alias: &str, go: &str) -> Expr {
    let entry =
        history_entry(alias, "'worker_lost'", "'the worker was lost before the attempt ended'");
    sql(format!(
        "case when {alias}.status = 'started' and {alias}.attempts > 0 and {go} <> 'exhausted' \
           then {entry} else {alias}.history end"
    ))
}

/// `history` with one more entry, cut to its last entries.
pub(in crate::store) fn history_entry(alias: &str, kind: &str, message: &str) -> String {
    let kept = Job::HISTORY_LIMIT;
    format!(
        "case when jsonb_array_length({alias}.history) >= {kept} then {alias}.history - 0 else {alias}.history end \
         || jsonb_build_array(jsonb_build_object('attempt', {alias}.attempts, 'started_at', {alias}.last_started_at, \
         'finished_at', clock_timestamp(), 'kind', {kind}::text, 'message', {message}::text))"
    )
}

impl Store {
    /// Takes the turns of up to `n` groups: their rows are locked until the transaction ends.
    pub(crate) async fn take_turns(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        n: i64,
    ) -> Result<Vec<LockedGroup>, sqlx::Error> {
        taken(&self.claim.take, conn, queue, n).await
    }

    /// Starts the jobs of the plans that say so.
    pub(crate) async fn start(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        plans: &[GroupPlan],
        options: ClaimOptions,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        let (mut jobs, mut groups, mut words) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ends, mut sizes) = (Vec::new(), Vec::new());
        for GroupPlan { group, plan, behind } in plans {
            let Plan::Start { job, go, .. } = *plan else { continue };
            let size = i16::try_from(1 + behind.len()).unwrap_or(i16::MAX);
            jobs.push(job);
            ends.push(behind.last().copied());
            sizes.push(Some(size));
            jobs.extend(behind);
            ends.resize(jobs.len(), None);
            sizes.resize(jobs.len(), None);
            groups.resize(jobs.len(), group.as_str());
            words.resize(jobs.len(), go.word());
        }
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let start = self.claim.start.query().bind(queue).bind(jobs).bind(groups).bind(words);
        let start = start.bind(options.lease.as_secs_f64()).bind(options.own_lease);
        let start = start.bind(options.processor).bind(ends).bind(sizes);
        let rows = start.fetch_all(conn).await?;
        let behind: HashMap<&str, &Vec<i64>> =
            plans.iter().map(|plan| (plan.group.as_str(), &plan.behind)).collect();
        rows.iter()
            .map(|row| {
                let group: String = row.try_get("group_id")?;
                Ok(Claim {
                    job: row.try_get("id")?,
                    behind: behind.get(&*group).map_or_else(Vec::new, |jobs| (*jobs).clone()),
                    group: Some(group),
                    token: row.try_get("claim")?,
                    go: Disposition::parse(row.try_get("go")?, row.try_get("expires_at")?),
                    may_wait: None,
                })
            })
            .collect()
    }

    /// Wakes the other workers of a queue when the transaction commits: there is more than this one can take.
    pub(crate) async fn wake_others(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<(), sqlx::Error> {
        let wake = self.claim.wake_others.query().bind(self.names.channel()).bind(queue);
        wake.execute(conn).await.map(drop)
    }
}

/// Runs a statement that takes turns.
pub(in crate::store) async fn taken(
    template: &Template,
    conn: &mut PgConnection,
    queue: &str,
    n: i64,
) -> Result<Vec<LockedGroup>, sqlx::Error> {
    let rows = template.query().bind(queue).bind(n).fetch_all(conn).await?;
    rows.iter()
        .map(|row| {
            Ok(LockedGroup {
                group: row.try_get("group_id")?,
                claimed_job: row.try_get("job_id")?,
                suspected: row.try_get("doubted")?,
                head_id: row.try_get("head_id")?,
                batch_end: row.try_get("batch_end")?,
            })
        })
        .collect()
}
