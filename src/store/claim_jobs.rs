//! The claim of jobs from a queue, in one round trip.
//!
//! The function is `claim_jobs` of the schema: `sql/functions/claim.sql` says what it does. Its
//! arguments are literals, as the message is a transaction of its own: a transaction pooler gives
//! it to one session.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Deserialize;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::job::disposition::Disposition;
use crate::job::waits::WaitsAtClaim;
use crate::store::claim::{CLAIM_BYTES, CLAIM_LIMIT, Claim, ClaimOptions};
use crate::store::fragments::PRIORITY_AGING;
use crate::store::literal::{id, name, time};
use crate::store::loaded_job::LoadedJob;
use crate::store::session::{BEGIN, begin_short, no_limit_left};
use crate::store::store::Store;

/// How much one claim may bring, and where it begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClaimBounds {
    /// Heads of groups, and jobs without a group.
    pub(crate) slots: usize,
    pub(crate) followers: usize,
    pub(crate) bytes: u64,
    /// Jobs without a group are claimed first.
    pub(crate) ungrouped_first: bool,
    pub(crate) from: ScanStart,
}

impl ClaimBounds {
    /// The largest for so many slots, halved so many times.
    pub(crate) fn new(slots: usize, halvings: u32, ungrouped_first: bool, from: ScanStart) -> Self {
        let limit = (CLAIM_LIMIT >> halvings).max(1);
        let bytes = CLAIM_BYTES >> halvings;
        Self { slots: slots.min(limit), followers: limit, bytes, ungrouped_first, from }
    }
}

/// From when on a claim reads: before, only dead or locked rows are expected.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScanStart {
    pub(crate) groups: Option<DateTime<Utc>>,
    pub(crate) flags: Option<DateTime<Utc>>,
    /// Flags of that time are read behind this one: a transaction may leave any number with one
    /// time.
    pub(crate) flags_id: i64,
    pub(crate) ungrouped: Option<DateTime<Utc>>,
}

/// The jobs that a claim brought, and its other findings.
#[derive(Debug, Default)]
pub(crate) struct ClaimAnswer {
    pub(crate) jobs: Vec<Claim>,
    /// The jobs of these claims as their handlers need them: of each its job, then its followers.
    pub(crate) loaded: VecDeque<LoadedJob>,
    /// The owners of the claims that it took over: `worker` or `receiver`.
    pub(crate) taken_over: Vec<String>,
    /// There may be more right now.
    pub(crate) more: bool,
    /// How long it is until the next job is due, if it read from the beginning.
    pub(crate) next: Option<Duration>,
    /// The time that it took to find what is due.
    pub(crate) read_for: Duration,
    /// From when on there was something to take.
    pub(crate) found_at: ScanStart,
    /// Whether flags behind that place have not been read.
    pub(crate) unread: Option<Unread>,
    /// The queue has a limit or a rate; `None`: it did not look.
    pub(crate) limited: Option<bool>,
}

/// Why a claim has not read all flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It had what it wanted.
    Filled,
    /// Its time was over: too many call for nothing.
    Late,
}

impl Store {
    /// Prepares a session for claims, holds and settles.
    ///
    /// Not cancel safe, and after an error the connection is to be closed.
    pub(crate) async fn warm_up(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        // One message, which a transaction pooler gives to one session.
        let [pin, warm_up] = ["pin_plans", "warm_up"].map(|function| self.names.quoted(function));
        let call = format!("{BEGIN}; select {pin}(); select {warm_up}(); commit");
        sqlx::raw_sql(AssertSqlSafe(call)).execute(conn).await.map(drop)
    }

    /// Returns the time until a claim may find something; `None` if nothing will be due. It costs
    /// less than a claim that finds nothing.
    ///
    /// Not cancel safe: a caller that gives up closes the connection.
    pub(crate) async fn due_in(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<Option<Duration>, sqlx::Error> {
        let [pin, due_in] = ["pin_plans", "due_in"].map(|function| self.names.quoted(function));
        let (no_limit, queue) = (no_limit_left(), name(queue));
        // One message, which a transaction pooler gives to one session.
        let call = format!("{no_limit}select {pin}(), {due_in}({queue})");
        let rows = sqlx::raw_sql(AssertSqlSafe(call)).fetch_all(conn).await?;
        let row = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        Ok(row.try_get::<Option<f64>, _>(1)?.map(seconds))
    }

    /// Claims jobs of a queue, in a transaction of its own.
    ///
    /// Not cancel safe: a caller that gives up closes the connection. The claim may have been
    /// committed then, and is orphaned.
    pub(crate) async fn claim(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        bounds: ClaimBounds,
        options: ClaimOptions,
    ) -> Result<ClaimAnswer, sqlx::Error> {
        let call = self.claim_call(queue, bounds, options);
        // One message, which a transaction pooler gives to one session.
        let mut rows = sqlx::raw_sql(AssertSqlSafe(call.clone())).fetch_all(&mut *conn).await?;
        if end_of(rows.last())?.is_none() {
            // The session's transactions have another isolation level, or only read.
            let mut tx = begin_short(conn).await?;
            rows = sqlx::raw_sql(AssertSqlSafe(call)).fetch_all(&mut *tx).await?;
            tx.commit().await?;
        }
        let Some((last, jobs)) = rows.split_last() else {
            return Err(sqlx::Error::RowNotFound);
        };
        let end: ClaimEnd = match end_of(Some(last))? {
            Some(text) => serde_json::from_str(&text).map_err(|e| sqlx::Error::Decode(e.into()))?,
            None => ClaimEnd { more: true, ..ClaimEnd::default() },
        };
        let mut answer = ClaimAnswer {
            more: end.more,
            next: end.next.map(seconds),
            read_for: seconds(end.reading),
            unread: end.unread(),
            limited: Some(end.limited == Some(true)),
            found_at: ScanStart {
                groups: end.groups_at,
                flags: end.flags_at,
                flags_id: end.flags_id.unwrap_or_default(),
                ungrouped: end.ungrouped_at,
            },
            ..ClaimAnswer::default()
        };
        answer.read_jobs(jobs, options, end.claimed_at)?;
        Ok(answer)
    }

    fn claim_call(&self, queue: &str, bounds: ClaimBounds, options: ClaimOptions) -> String {
        let (claim, queue) = (self.names.quoted("claim_jobs"), name(queue));
        let ClaimBounds { slots, followers, bytes, ungrouped_first, from } = bounds;
        let ClaimOptions {
            max_attempts,
            jobs_per_turn,
            lease,
            own_lease,
            processor,
            ignore_before,
        } = options;
        let (lease, no_limit) = (lease.as_secs_f64(), no_limit_left());
        let flags_id = from.flags_id;
        let processor = id(processor);
        let ignore_before = time(ignore_before, "null");
        let [groups, flags, ungrouped] =
            [from.groups, from.flags, from.ungrouped].map(|from| time(from, "'-infinity'"));
        let [terms, limits, front] =
            ["claim_terms", "claim_limits", "claim_front"].map(|name| self.names.quoted(name));
        format!(
            "{no_limit}select * from {claim}(({queue}, null, false, {processor}, {max_attempts}, '{lease}', {own_lease}, \
             {ignore_before}, {jobs_per_turn}, true)::{terms}, ({slots}, {followers}, {bytes}, null)::{limits}, \
             ({groups}, {flags}, {flags_id}, {ungrouped})::{front}, {ungrouped_first})"
        )
    }
}

/// Returns how the claim ended, from the last row: `None` if it asks for another transaction.
fn end_of(last: Option<&PgRow>) -> Result<Option<String>, sqlx::Error> {
    last.map_or(Ok(None), |last| last.try_get("answer"))
}

/// How a claim ended: `claim_answer` of the schema, without the jobs.
#[derive(Debug, Default, Deserialize)]
struct ClaimEnd {
    more: bool,
    next: Option<f64>,
    /// In seconds.
    reading: f64,
    groups_at: Option<DateTime<Utc>>,
    flags_at: Option<DateTime<Utc>>,
    flags_id: Option<i64>,
    late: Option<bool>,
    limited: Option<bool>,
    ungrouped_at: Option<DateTime<Utc>>,
    claimed_at: DateTime<Utc>,
}

impl ClaimEnd {
    /// Returns why the claim has not read all flags; `None` if it has.
    fn unread(&self) -> Option<Unread> {
        self.flags_id.map(|_| if self.late == Some(true) { Unread::Late } else { Unread::Filled })
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// Returns how long a claimed job had waited. Its row has when its turn was ready, or when a claim
/// that is taken over lapsed.
fn waits(
    row: &PgRow,
    job: &LoadedJob,
    claimed_at: DateTime<Utc>,
) -> Result<WaitsAtClaim, sqlx::Error> {
    let due_at = job.created_at.max(job.run_at);
    if row.try_get::<Option<Uuid>, _>("claim")?.is_none() {
        return Ok(WaitsAtClaim::of_follower(claimed_at, due_at));
    }
    let ready_at: Option<DateTime<Utc>> = row.try_get("ready_at")?;
    if row.try_get::<Option<String>, _>("lost_by")?.is_some() {
        let lapsed_at = ready_at.unwrap_or(due_at);
        return Ok(WaitsAtClaim::of_head(claimed_at, lapsed_at, lapsed_at));
    }
    // Put in line for another head, it may have another aging.
    let unaged = ready_at.map(|at| at + PRIORITY_AGING * job.priority.into());
    let ready_at = unaged.filter(|at| *at <= claimed_at).or(ready_at).unwrap_or(due_at);
    Ok(WaitsAtClaim::of_head(claimed_at, due_at, ready_at))
}

impl ClaimAnswer {
    /// Reads the claimed jobs: each head has a token, and its followers come behind it.
    fn read_jobs(
        &mut self,
        rows: &[PgRow],
        options: ClaimOptions,
        claimed_at: DateTime<Utc>,
    ) -> Result<(), sqlx::Error> {
        let now = Instant::now();
        for row in rows {
            let mut loaded = LoadedJob::read(row)?;
            let job: i64 = row.try_get("id")?;
            let token: Option<Uuid> = row.try_get("claim")?;
            loaded.waits = Some((waits(row, &loaded, claimed_at)?, now));
            self.taken_over.extend(row.try_get::<Option<String>, _>("lost_by")?);
            if let Some(token) = token {
                let expires_at: Option<DateTime<Utc>> = row.try_get("expires_at")?;
                let max_attempts =
                    loaded.max_attempts.map_or(i64::from(options.max_attempts), i64::from);
                let disposition = Disposition::parse(row.try_get("disposition")?, expires_at);
                let fresh = disposition == Disposition::Run && loaded.number.of_all == 1;
                let may_wait = fresh && max_attempts > 1 && expires_at.is_none();
                let (followers, group) = (Vec::new(), row.try_get("group_id")?);
                let began = None;
                self.jobs.push(Claim {
                    job,
                    followers,
                    group,
                    token,
                    disposition,
                    may_wait,
                    began,
                });
            } else if let Some(head) = self.jobs.last_mut() {
                head.followers.push(job);
            }
            self.loaded.push_back(loaded);
        }
        Ok(())
    }
}
