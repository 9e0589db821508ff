//! The claim of one round trip: what a worker does for most jobs.
//!
//! The function is `claim_jobs` of the schema. Its arguments are literals, as the message is a
//! transaction of its own: a transaction pooler gives it to one session.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::job::group_plan::Disposition;
use crate::store::claim::claim::{Claim, ClaimOptions};
use crate::store::claim::peek::until;
use crate::store::hold::{HeldJob, held_job};
use crate::store::literal::{id, name, time};
use crate::store::store::Store;

/// The largest number of jobs that one claim starts, and of followers. Slots wait for it, and its
/// cost grows with both.
pub(crate) const CLAIM_LIMIT: usize = 500;

/// The jobs that one round trip claimed.
#[derive(Debug)]
pub(crate) struct ClaimAnswer {
    pub(crate) jobs: Vec<Claim>,
    /// What their handlers need, by job.
    pub(crate) known: HashMap<i64, HeldJob>,
    /// Something is left that only a thorough claim does.
    pub(crate) thorough: bool,
    /// There may be more right now.
    pub(crate) more: bool,
    /// How long it is until the next job is due, if it read from the beginning.
    pub(crate) next: Option<Duration>,
    /// The time that it took to find what is due.
    pub(crate) read_for: Duration,
    /// From when on there was something to take.
    pub(crate) found_at: ScanStart,
}

/// From when on a claim reads: before, only dead or locked rows are expected.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScanStart {
    pub(crate) groups: Option<DateTime<Utc>>,
    pub(crate) flags: Option<DateTime<Utc>>,
    pub(crate) ungrouped: Option<DateTime<Utc>>,
}

impl Store {
    /// Claims up to `slots` jobs, and up to [`CLAIM_LIMIT`] followers, in a transaction of its own.
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
        let mut followers: HashMap<String, Vec<i64>> = HashMap::new();
        for row in jobs {
            let held = held_job(row)?;
            let job: i64 = row.try_get("id")?;
            let group: Option<String> = row.try_get("group_id")?;
            match (row.try_get("claim")?, group) {
                (Some(token), group) => {
                    let expires_at: Option<DateTime<Utc>> = row.try_get("expires_at")?;
                    let max_attempts =
                        held.max_attempts.map_or(i64::from(options.max_attempts), i64::from);
                    let disposition = Disposition::parse(row.try_get("disposition")?, expires_at);
                    let fresh = disposition == Disposition::Run && held.attempt == 1;
                    let may_wait = Some(fresh && max_attempts > 1 && expires_at.is_none());
                    let followers = Vec::new();
                    started.push(Claim { job, followers, group, token, disposition, may_wait });
                }
                (None, Some(group)) => followers.entry(group).or_default().push(job),
                (None, None) => {}
            }
            known.insert(job, held);
        }
        for claim in &mut started {
            let group = claim.group.as_ref();
            claim.followers = group.and_then(|group| followers.remove(group)).unwrap_or_default();
            claim.followers.sort_unstable();
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
                ungrouped: last.try_get("ungrouped_at")?,
            },
        })
    }
}
