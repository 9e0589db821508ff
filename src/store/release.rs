//! Release: give claimed jobs back that were not begun, as if they had not been claimed.

use std::collections::HashSet;

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::job::disposition::Disposition;
use crate::store::claim::Claim;
use crate::store::fragments::{CLAIMED, END_CLAIM, FREE_JOB};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// Locks the rows of the groups that are still these claims'.
    LOCK_GROUPS = |names| names.sql(
        "with claimed as materialized (
            select unnest($1) as claim
        )
        select g.claim from claimed
        join lateral (
            select g.claim from {queue_group} g
            where g.claim = claimed.claim
            limit 1
            for no key update of g skip locked
        ) as g on true",
    );

    /// Locks the jobs without a group that are still these claims'.
    LOCK_UNGROUPED = |names| names.sql_with(
        "with claimed as materialized (
            select unnest($1) as job_id, unnest($2) as claim
        )
        select claimed.claim from claimed
        join lateral (
            select j.id from {job} j
            where j.id = claimed.job_id and j.claim = claimed.claim and {claimed}
            limit 1
            for no key update of j skip locked
        ) as j on true",
        &[("claimed", CLAIMED)],
    );

    /// Queues jobs without a group whose claims this transaction has locked. A claim that began no
    /// attempt counted none.
    JOBS = |names| names.sql_with(
        "with given as materialized (
            select unnest($1) as id, unnest($2) as begun
        )
        update {job} as j set
            status = 'queued',
            attempts = j.attempts - given.begun::integer,
            last_started_at =
                case when j.attempts > 1 or not given.begun then j.last_started_at end,
            {free}
        from given
        where j.id = any (array[given.id]) and {claimed}",
        &[("free", FREE_JOB), ("claimed", CLAIMED)],
    );

    WAKE_OTHERS = |names| names.sql("select {wake}($1)");

    /// Frees their groups and puts them before all groups that are ready: there they were. Each
    /// keeps its slot.
    GROUPS = |names| names.sql_with(
        "with given as materialized (
            select unnest($2) as claim
        ), ours as materialized (
            select g.ctid from given
            join lateral (
                select g.ctid from {queue_group} g where g.claim = given.claim limit 1
            ) as g on true
        )
        update {queue_group} as g set
            {free},
            ready_at = least((
                select f.ready_at from {queue_group} f
                where f.queue = $1 and f.ready_at <= now() and f.ready_at < 'infinity'
                order by f.ready_at
                limit 1
            ), clock_timestamp()) - interval '1 us'
        from ours
        where g.ctid = ours.ctid",
        &[("free", END_CLAIM)],
    );
}

impl Store {
    /// Gives back claims of a queue whose handlers have not begun, and wakes other workers for
    /// them. Returns the tokens that no longer stand: of the others, a row is locked for a moment.
    /// In the short transaction that is open on `conn`.
    pub(crate) async fn release(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        claims: &[&Claim],
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let grouped = claims.iter().filter(|of| of.group.is_some());
        let tokens: Vec<Uuid> = grouped.map(|of| of.token).collect();
        let lock = self.query(&LOCK_GROUPS).bind(tokens);
        let mut rows = lock.fetch_all(&mut *conn).await?;
        let ungrouped = claims.iter().filter(|of| of.group.is_none());
        let (jobs, tokens): (Vec<i64>, Vec<Uuid>) = ungrouped.map(|of| (of.job, of.token)).unzip();
        if !jobs.is_empty() {
            let lock = self.query(&LOCK_UNGROUPED).bind(jobs).bind(tokens);
            rows.extend(lock.fetch_all(&mut *conn).await?);
        }
        let locked: HashSet<Uuid> =
            rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let (grouped, ungrouped): (Vec<&Claim>, Vec<&Claim>) = claims
            .iter()
            .filter(|of| locked.contains(&of.token))
            .partition(|of| of.group.is_some());
        if !ungrouped.is_empty() {
            let begun = |of: &&Claim| (of.job, of.disposition == Disposition::Run);
            let (jobs, begun): (Vec<i64>, Vec<bool>) = ungrouped.iter().map(begun).unzip();
            self.query(&JOBS).bind(jobs).bind(begun).execute(&mut *conn).await?;
        }
        if !grouped.is_empty() {
            // Nothing was written to their jobs.
            let tokens: Vec<Uuid> = grouped.iter().map(|of| of.token).collect();
            let free = self.query(&GROUPS).bind(queue).bind(tokens);
            free.execute(&mut *conn).await?;
        }
        if !locked.is_empty() {
            let wake = self.query(&WAKE_OTHERS).bind(queue);
            wake.execute(&mut *conn).await?;
        }
        let mut over = locked.clone();
        for claim in claims.iter().filter(|of| !locked.contains(&of.token)) {
            // Skipped or taken over; or an earlier try was committed and its answer lost.
            if !self.has_claim(conn, claim).await? {
                over.insert(claim.token);
            }
        }
        Ok(over)
    }
}
