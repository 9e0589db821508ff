//! Claim, hold and settle in one round trip each: what a worker does for most jobs.
//!
//! The functions are in `sql/functions/` (claim, hold, settle). A hold goes with the begin of its transaction in one message, and a
//! settle with its commit, of which sqlx counts nothing. Their arguments are literals: statements that are prepared would not
//! fit in one message, and answers come as text.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::job::group_plan::Disposition;
use crate::store::Store;
use crate::store::claim::peek::until;
use crate::store::claim::start::{Claim, ClaimOptions};
use crate::store::hold::{HeldJob, SessionId, held_job};
use crate::store::session::{BEGIN, SessionLimits, knows_transaction_timeout, notice};
use crate::store::settle::many::Succeeded;
use crate::store::statement::{literal, name};

/// How many jobs one claim starts at most, and how many it starts behind those: slots wait for it, and what it costs grows
/// with their number.
pub(crate) const CLAIM_LIMIT: usize = 500;

/// What one round trip brought.
#[derive(Debug)]
pub(crate) struct ClaimAnswer {
    pub(crate) jobs: Vec<Claim>,
    /// What their handlers need, by job.
    pub(crate) known: HashMap<i64, HeldJob>,
    /// Something is left that it does not do.
    pub(crate) thorough: bool,
    /// There may be more right now.
    pub(crate) more: bool,
    /// When the next one will be due, if it read from the beginning.
    pub(crate) next: Option<Duration>,
    /// How long it read to find what is due.
    pub(crate) read_for: Duration,
    /// From when on there was something to take.
    pub(crate) found_at: ScanStart,
}

/// From when on a claim reads: before, nothing is expected but what is dead or held.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScanStart {
    pub(crate) groups: Option<DateTime<Utc>>,
    pub(crate) flags: Option<DateTime<Utc>>,
    pub(crate) ungrouped: Option<DateTime<Utc>>,
}

/// What a message ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterSettle {
    Nothing,
    Commit,
    /// Commits, and begins and holds the next job of the turn.
    Hold,
}

/// A job that is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldReceipt {
    /// The server's process.
    pub(crate) pid: i32,
    /// Its session, where it was asked for.
    pub(crate) session: Option<SessionId>,
}

/// Since when there is this session, in microseconds: however the session writes times.
const SINCE: &str = "select (extract(epoch from backend_start) * 1000000)::bigint \
    from pg_catalog.pg_stat_get_activity(pg_backend_pid())";

/// What a settle came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SettleAnswer {
    /// The turn has ended.
    pub(crate) ended: bool,
    /// And nothing is left in the group, or there is none.
    pub(crate) drained: bool,
    /// The server's process that holds the next job, where it was to be held and is.
    pub(crate) held: Option<i32>,
}

/// What a settle that may go on came to.
#[derive(Debug)]
pub(crate) enum ChainAnswer {
    /// The next job is claimed; what its handler needs, and the server's process that holds it, where it was to be held and
    /// is.
    To {
        claim: Claim,
        known: Box<HeldJob>,
        held: Option<i32>,
    },
    Passed,
    Drained,
}

/// The begin of a hold's transaction.
fn begin(conn: &PgConnection) -> String {
    let knows = knows_transaction_timeout(conn);
    format!("{BEGIN}{}", if knows { "; set local transaction_timeout = 0" } else { "" })
}

/// As a literal.
fn id(id: Option<i64>) -> String {
    id.map_or_else(|| "null".to_owned(), |id| format!("'{id}'"))
}

fn time(time: Option<DateTime<Utc>>, none: &str) -> String {
    time.map_or_else(|| none.to_owned(), |time| format!("'{}'", time.to_rfc3339()))
}

impl Store {
    /// Claims up to `slots` jobs, and up to [`CLAIM_LIMIT`] of those that are to run in the same turns behind them, in a
    /// transaction of its own.
    pub(crate) async fn quick_claim(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        slots: i32,
        ungrouped_first: bool,
        options: ClaimOptions,
        from: ScanStart,
    ) -> Result<ClaimAnswer, sqlx::Error> {
        let claim = self.names.quoted("claim_jobs");
        let (queue, channel) = (name(queue), name(&self.names.channel()));
        let ClaimOptions {
            max_attempts,
            jobs_per_turn,
            lease,
            own_lease,
            processor,
            ignore_before,
        } = options;
        let lease = lease.as_secs_f64();
        let processor = id(processor);
        let ignore_before = time(ignore_before, "null");
        let [groups, flags, ungrouped] =
            [from.groups, from.flags, from.ungrouped].map(|from| time(from, "'-infinity'"));
        let text = format!(
            "select * from {claim}({queue}, {slots}, {ungrouped_first}, {max_attempts}, '{lease}', {own_lease}, {processor}, \
             {ignore_before}, {channel}, {groups}, {flags}, {ungrouped}, {jobs_per_turn}, {CLAIM_LIMIT})"
        );
        // One message, which a transaction pooler gives to one session.
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let Some((last, jobs)) = rows.split_last() else {
            return Err(sqlx::Error::RowNotFound);
        };
        let next: Option<f64> = last.try_get("next")?;
        let mut known = HashMap::new();
        let mut started = Vec::new();
        let mut behind: HashMap<String, Vec<i64>> = HashMap::new();
        for row in jobs {
            let held = held_job(row)?;
            let job: i64 = row.try_get("id")?;
            let group: Option<String> = row.try_get("group_id")?;
            match (row.try_get("claim")?, group) {
                (Some(token), group) => {
                    let expires_at: Option<DateTime<Utc>> = row.try_get("expires_at")?;
                    let max_attempts =
                        held.max_attempts.map_or(i64::from(options.max_attempts), i64::from);
                    let go = Disposition::parse(row.try_get("go")?, expires_at);
                    let fresh = go == Disposition::Run && held.attempt == 1;
                    let may_wait = Some(fresh && max_attempts > 1 && expires_at.is_none());
                    let behind = Vec::new();
                    started.push(Claim { job, behind, group, token, go, may_wait });
                }
                (None, Some(group)) => behind.entry(group).or_default().push(job),
                (None, None) => {}
            }
            known.insert(job, held);
        }
        for claim in &mut started {
            let group = claim.group.as_ref();
            claim.behind = group.and_then(|group| behind.remove(group)).unwrap_or_default();
            claim.behind.sort_unstable();
        }
        Ok(ClaimAnswer {
            jobs: started,
            known,
            thorough: last.try_get("thorough")?,
            more: last.try_get("more")?,
            next: until(next),
            read_for: until(last.try_get("read_s")?).unwrap_or_default(),
            found_at: ScanStart {
                groups: last.try_get("groups_at")?,
                flags: last.try_get("flags_at")?,
                ungrouped: last.try_get("loose_at")?,
            },
        })
    }

    /// Begins a transaction and holds a claimed job in it, as [`hold`](Self::hold) does. None: somebody has a row for a
    /// moment, the claim is doubted or lost, or the job is to be cancelled, and the transaction is to be rolled back.
    ///
    /// With `first` it is the session's first hold: it is told to [notice](super::notice_lost_clients) when its client is
    /// gone, and asked which it is. Error 22023 then says that it cannot.
    pub(crate) async fn begin_and_hold(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        first: Option<&SessionLimits>,
    ) -> Result<Option<HoldReceipt>, sqlx::Error> {
        let mut text = self.hold_message(conn, claim, claim.job);
        if let Some(limits) = first {
            // In a transaction of its own: a job that fails must not undo it.
            text = format!("begin; {}; commit; {text}; {SINCE}", notice(limits));
        }
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let Some(pid) = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)? else {
            return Ok(None);
        };
        let since: Option<i64> = rows.get(1).map(|row| row.try_get(0)).transpose()?;
        let since = since.and_then(DateTime::from_timestamp_micros);
        Ok(Some(HoldReceipt { pid, session: since.map(|since| SessionId { pid, since }) }))
    }

    fn hold_message(&self, conn: &PgConnection, claim: &Claim, job: i64) -> String {
        let (begin, hold) = (begin(conn), self.names.quoted("hold_job"));
        format!("{begin}; select {hold}({job}, '{}')", claim.token)
    }

    /// Settles a held job's success, and does what `then` says. With jobs behind it the claim stays for them, unless
    /// somebody paused the queue or the group.
    pub(crate) async fn quick_settle(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        result: &str,
        keep: bool,
        then: AfterSettle,
    ) -> Result<SettleAnswer, sqlx::Error> {
        let settle = self.names.quoted("settle_success");
        let result = if keep { literal(result) } else { String::from("null") };
        let behind = match &*claim.behind {
            [] => String::from("null"),
            behind => {
                let behind: Vec<String> = behind.iter().map(i64::to_string).collect();
                format!("'{{{}}}'", behind.join(","))
            }
        };
        let (job, token) = (claim.job, claim.token);
        let then = match (then, claim.behind.first()) {
            (AfterSettle::Nothing, _) => String::new(),
            (AfterSettle::Hold, Some(next)) => {
                format!("; commit; {}", self.hold_message(conn, claim, *next))
            }
            (AfterSettle::Commit | AfterSettle::Hold, _) => String::from("; commit"),
        };
        let text =
            format!("select {settle}({job}, '{token}', {result}::jsonb, {keep}, {behind}){then}");
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let word: &str = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        let (ended, drained) = (word != "stays", word == "drained");
        let held = rows.get(1).map(|row| row.try_get(0)).transpose()?.flatten();
        Ok(SettleAnswer { ended, drained, held })
    }

    /// Settles a held job's success where no other group waits: the next job of its group is started with it, if that may be.
    pub(crate) async fn settle_and_chain(
        &self,
        conn: &mut PgConnection,
        Succeeded { queue, claim, result, .. }: Succeeded<'_>,
        keep: bool,
        then: AfterSettle,
        options: ClaimOptions,
    ) -> Result<ChainAnswer, sqlx::Error> {
        let settle = self.names.quoted("settle_and_go_on");
        let queue = name(queue);
        let group = claim.group.as_deref().map_or_else(|| "null".to_owned(), literal);
        let result = if keep { literal(result) } else { String::from("null") };
        let then = match then {
            AfterSettle::Nothing => String::new(),
            AfterSettle::Commit => String::from("; commit"),
            AfterSettle::Hold => {
                let (begin, hold) = (begin(conn), self.names.quoted("hold_next"));
                format!("; commit; {begin}; select {hold}()")
            }
        };
        let ClaimOptions { max_attempts, lease, processor, ignore_before, .. } = options;
        let (job, token, lease) = (claim.job, claim.token, lease.as_secs_f64());
        let (processor, ignore_before) = (id(processor), time(ignore_before, "null"));
        let text = format!(
            "select * from {settle}({queue}, {group}, {job}, '{token}', {result}::jsonb, {keep}, {max_attempts}, '{lease}', \
             {processor}, {ignore_before}){then}"
        );
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let held = rows.get(1).map(|row| row.try_get(0)).transpose()?.flatten();
        match row.try_get("state")? {
            "goes_on" => {
                let job = row.try_get("id")?;
                let token = row.try_get("claim")?;
                let (group, behind) = (claim.group.clone(), Vec::new());
                let next =
                    Claim { job, behind, group, token, go: Disposition::Run, may_wait: None };
                Ok(ChainAnswer::To { claim: next, known: Box::new(held_job(row)?), held })
            }
            "drained" => Ok(ChainAnswer::Drained),
            _ => Ok(ChainAnswer::Passed),
        }
    }

    /// Which session of the server this is.
    pub(crate) async fn session(&self, conn: &mut PgConnection) -> Result<SessionId, sqlx::Error> {
        let sql =
            "select pid, backend_start from pg_catalog.pg_stat_get_activity(pg_backend_pid())";
        let row = sqlx::query(sql).persistent(!self.is_nameless()).fetch_one(conn).await?;
        Ok(SessionId { pid: row.try_get(0)?, since: row.try_get(1)? })
    }
}
