//! The claim of jobs from a queue, in one round trip.
//!
//! The function is `claim_jobs` of the schema: `sql/functions/claim.sql` says what it does. Its
//! arguments are literals, as the message is a transaction of its own: a transaction pooler gives
//! it to one session.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgRow, PgTransactionManager};
use sqlx::{AssertSqlSafe, PgConnection, Row};
use sqlx_core::transaction::TransactionManager;
use uuid::Uuid;

use crate::job::disposition::Disposition;
use crate::job::waits::WaitsAtClaim;
use crate::store::claim::{CLAIM_BYTES, CLAIM_LIMIT, Claim, ClaimOptions};
use crate::store::fragments::PRIORITY_AGING;
use crate::store::hold::{HeldJob, held_job};
use crate::store::literal::{id, name, time};
use crate::store::session::begin_short;
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

/// What a claim brought, and what it saw beside that.
#[derive(Debug, Default)]
pub(crate) struct ClaimAnswer {
    pub(crate) jobs: Vec<Claim>,
    /// What their handlers need, by job.
    pub(crate) known: HashMap<i64, HeldJob>,
    /// Whose claims it took over: `worker` or `receiver`.
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
        if says_more(rows.last())?.is_none() {
            // The session's transactions have another isolation level, or only read.
            begin_short(conn).await?;
            rows = sqlx::raw_sql(AssertSqlSafe(call)).fetch_all(&mut *conn).await?;
            PgTransactionManager::commit(conn).await?;
        }
        let Some((last, jobs)) = rows.split_last() else {
            return Err(sqlx::Error::RowNotFound);
        };
        let next: Option<f64> = last.try_get("next")?;
        let mut answer = ClaimAnswer {
            more: says_more(Some(last))?.unwrap_or(true),
            next: next.map(seconds),
            read_for: last.try_get::<Option<f64>, _>("read_s")?.map_or(Duration::ZERO, seconds),
            found_at: ScanStart {
                groups: last.try_get("groups_at")?,
                flags: last.try_get("flags_at")?,
                flags_id: last.try_get::<Option<_>, _>("flags_id")?.unwrap_or_default(),
                ungrouped: last.try_get("ungrouped_at")?,
            },
            unread: unread(last)?,
            ..ClaimAnswer::default()
        };
        answer.read_jobs(jobs, options, ReadyTimes::read(last)?)?;
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
        let lease = lease.as_secs_f64();
        let flags_id = from.flags_id;
        let processor = id(processor);
        let ignore_before = time(ignore_before, "null");
        let [groups, flags, ungrouped] =
            [from.groups, from.flags, from.ungrouped].map(|from| time(from, "'-infinity'"));
        format!(
            "select * from {claim}({queue}, {slots}, {ungrouped_first}, {max_attempts}, '{lease}', {own_lease}, \
             {processor}, {ignore_before}, {groups}, {flags}, {flags_id}, {ungrouped}, {jobs_per_turn}, {followers}, {bytes})"
        )
    }
}

/// Returns what the last row of an answer says: `None` if it asks for another transaction.
fn says_more(last: Option<&PgRow>) -> Result<Option<bool>, sqlx::Error> {
    last.map_or(Ok(None), |last| last.try_get("more"))
}

/// Returns why the claim has not read all flags; `None` if it has.
fn unread(last: &PgRow) -> Result<Option<Unread>, sqlx::Error> {
    let left: Option<i64> = last.try_get("flags_id")?;
    let late: Option<bool> = last.try_get("late")?;
    let why = if late == Some(true) { Unread::Late } else { Unread::Filled };
    Ok(left.map(|_| why))
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// When the groups of claimed jobs were ready.
struct ReadyTimes {
    claimed_at: DateTime<Utc>,
    /// By the places of the jobs, with the aging of their priorities.
    ready_ats: Vec<Option<DateTime<Utc>>>,
    /// Whose the claims were that were taken over.
    lost_by: Vec<Option<String>>,
}

impl ReadyTimes {
    /// Reads the last row of an answer.
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            claimed_at: row.try_get("claimed_at")?,
            ready_ats: row.try_get::<Option<_>, _>("ready_ats")?.unwrap_or_default(),
            lost_by: row.try_get::<Option<_>, _>("lost_by")?.unwrap_or_default(),
        })
    }

    /// Returns how long the job at a place had waited at its claim.
    fn waits(&self, place: usize, held: &HeldJob, is_head: bool) -> WaitsAtClaim {
        let (due_at, claimed_at) = (held.created_at.max(held.run_at), self.claimed_at);
        if !is_head {
            return WaitsAtClaim::of_follower(claimed_at, due_at);
        }
        let ready_at = self.ready_ats.get(place).copied().flatten();
        if self.lost_by.get(place).is_some_and(Option::is_some) {
            let lapsed_at = ready_at.unwrap_or(due_at);
            return WaitsAtClaim::of_head(claimed_at, lapsed_at, lapsed_at);
        }
        // Put in line for another head, it may have another aging.
        let unaged = ready_at.map(|at| at + PRIORITY_AGING * held.priority.into());
        let ready_at = unaged.filter(|at| *at <= claimed_at).or(ready_at).unwrap_or(due_at);
        WaitsAtClaim::of_head(claimed_at, due_at, ready_at)
    }
}

impl ClaimAnswer {
    /// Reads the claimed jobs: each head has a token, and its followers come behind it.
    fn read_jobs(
        &mut self,
        rows: &[PgRow],
        options: ClaimOptions,
        ready: ReadyTimes,
    ) -> Result<(), sqlx::Error> {
        let now = Instant::now();
        for (place, row) in rows.iter().enumerate() {
            let mut held = held_job(row)?;
            let job: i64 = row.try_get("id")?;
            let token: Option<Uuid> = row.try_get("claim")?;
            held.waits = Some((ready.waits(place, &held, token.is_some()), now));
            if let Some(token) = token {
                let expires_at: Option<DateTime<Utc>> = row.try_get("expires_at")?;
                let max_attempts =
                    held.max_attempts.map_or(i64::from(options.max_attempts), i64::from);
                let disposition = Disposition::parse(row.try_get("disposition")?, expires_at);
                let fresh = disposition == Disposition::Run && held.attempt == 1;
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
            self.known.insert(job, held);
        }
        self.taken_over.extend(ready.lost_by.into_iter().flatten());
        Ok(())
    }
}
