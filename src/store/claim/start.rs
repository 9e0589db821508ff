//! Take the turns of groups that are due, and start the jobs that were planned.

use std::collections::HashMap;

use sqlx::{PgConnection, Row};

use crate::job::group_plan::{Disposition, LockedGroup, Plan};
use crate::store::claim::claim::{Claim, ClaimOptions, GroupPlan};
use crate::store::fragments::{lease, lost_attempt};
use crate::store::names::Names;
use crate::store::statement::{Statement, statements};
use crate::store::store::Store;

statements! {
    /// Locks the rows of up to n groups that are due, the one served least recently first (P8).
    TAKE = |names| names.sql_with(
        "select group_id, job_id, head_id, batch_end, {suspected} as suspected
        from {queue_group} g
        where g.queue = $1 and g.ready_at <= now() and g.ready_at < 'infinity'
        order by ready_at
        limit $2
        for no key update of g skip locked",
        &[("suspected", &names.is_suspected("g", "ready_at"))],
    );

    START = start;

    WAKE_OTHERS = |_| "select pg_notify($1, $2)".to_owned();
}

/// Starts jobs. This transaction has locked both rows, and has just read them under the locks.
///
/// The attempt is counted here and committed before the handler starts (P9). The token is random,
/// and every later statement about the turn shows it (P10). Only a claim of a free row moves
/// `head_id`.
fn start(names: &Names) -> String {
    // `claimed` and `started` are joined nowhere else: without an index, that would take the square
    // of their number.
    names.sql_with(
        "with turn as materialized (
            select unnest($2) as job_id, unnest($3) as group_id, unnest($4) as disposition,
                unnest($8) as batch_end, unnest($9) as batch_size
        ), started as materialized (
            update {job} as j set
                status = 'started',
                flagged = false,
                history = {history},
                attempts = j.attempts + case when turn.disposition = 'run' then 1 else 0 end,
                last_started_at =
                    case when turn.disposition = 'run' then clock_timestamp() else j.last_started_at end
            from turn
            where j.id = any (array[turn.job_id]) and j.finished_at is null
            returning j.id, j.queue, j.group_id, j.lease_ms, j.expires_at,
                turn.disposition, turn.batch_end, turn.batch_size
        ), claimed as materialized (
            update {queue_group} as g set
                claim = gen_random_uuid(),
                job_id = started.id,
                head_id = case when g.claim is null then started.id else g.head_id end,
                suspect = null,
                claimed_by = $7,
                aging_priority = 0,
                batch_end = started.batch_end,
                batch_size = started.batch_size,
                ready_at = clock_timestamp() + {lease}
            from started
            where g.queue = any (array[started.queue])
                and g.group_id between started.group_id and started.group_id
                and started.batch_size is not null
            returning started.id, g.group_id, g.claim, started.disposition, started.expires_at
        )
        select * from claimed",
        &[("history", &lost_attempt("j", "turn.disposition")), ("lease", &lease("started", "$5", "$6"))],
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
        self.take(&TAKE, conn, queue, n).await
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
        for GroupPlan { group, plan, followers } in plans {
            let Plan::Start { job, disposition, .. } = *plan else { continue };
            let size = i16::try_from(1 + followers.len()).unwrap_or(i16::MAX);
            jobs.push(job);
            ends.push(followers.last().copied());
            sizes.push(Some(size));
            jobs.extend(followers);
            ends.resize(jobs.len(), None);
            sizes.resize(jobs.len(), None);
            groups.resize(jobs.len(), group.as_str());
            words.resize(jobs.len(), disposition.word());
        }
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let start = self.query(&START).bind(queue).bind(jobs).bind(groups).bind(words);
        let start = start.bind(options.lease.as_secs_f64()).bind(options.own_lease);
        let start = start.bind(options.processor).bind(ends).bind(sizes);
        let rows = start.fetch_all(conn).await?;
        let followers: HashMap<&str, &Vec<i64>> =
            plans.iter().map(|plan| (plan.group.as_str(), &plan.followers)).collect();
        rows.iter()
            .map(|row| {
                let group: String = row.try_get("group_id")?;
                Ok(Claim {
                    job: row.try_get("id")?,
                    followers: followers.get(&*group).map_or_else(Vec::new, |jobs| (*jobs).clone()),
                    group: Some(group),
                    token: row.try_get("claim")?,
                    disposition: Disposition::parse(
                        row.try_get("disposition")?,
                        row.try_get("expires_at")?,
                    ),
                    may_wait: None,
                })
            })
            .collect()
    }

    /// Wakes the other workers of a queue when the transaction commits: there is more than this one
    /// can take.
    pub(crate) async fn wake_others(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<(), sqlx::Error> {
        let wake = self.query(&WAKE_OTHERS).bind(self.names.channel()).bind(queue);
        wake.execute(conn).await.map(drop)
    }

    /// Takes turns by `statement`.
    pub(in crate::store) async fn take(
        &self,
        statement: &'static Statement,
        conn: &mut PgConnection,
        queue: &str,
        n: i64,
    ) -> Result<Vec<LockedGroup>, sqlx::Error> {
        let rows = self.query(statement).bind(queue).bind(n).fetch_all(conn).await?;
        rows.iter()
            .map(|row| {
                Ok(LockedGroup {
                    group: row.try_get("group_id")?,
                    claimed_job: row.try_get("job_id")?,
                    suspected: row.try_get("suspected")?,
                    head_id: row.try_get("head_id")?,
                    batch_end: row.try_get("batch_end")?,
                })
            })
            .collect()
    }
}
