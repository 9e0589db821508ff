//! Settle of many at once: the successes of leases, each group's turn passed with them (P4, P10).

use std::collections::HashSet;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::store::claim::claim::Claim;
use crate::store::fragments::{FREE_GROUP, FREE_JOB, priority_aging};
use crate::store::names::Names;
use crate::store::settle::turn::UnrecordedSuccess;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// Locks the rows of the groups that are still these claims', as a delete needs it. An adopter
    /// that shares a row has it skipped. This transaction must not have written the rows before.
    LOCK_ALONE = |names| names.sql(
        "with claimed as materialized (
            select unnest($1) as claim
        )
        select g.claim from claimed
        join lateral (
            select g.claim from {queue_group} g
            where g.claim = claimed.claim
            limit 1
            for update of g skip locked
        ) as g on true",
    );

    KEEP_GROUPS = |names| groups(names, KEEP);
    DELETE_GROUPS = |names| groups(names, DELETE);
    KEEP_UNGROUPED = |names| ungrouped(names, KEEP);
    DELETE_UNGROUPED = |names| ungrouped(names, DELETE);
}

/// A claim all of whose jobs have succeeded.
#[derive(Debug)]
pub(crate) struct Succeeded<'a> {
    pub(crate) queue: &'a str,
    pub(crate) claim: &'a Claim,
    /// The jobs of its turn that are not recorded yet, but the last.
    pub(crate) earlier: &'a [UnrecordedSuccess],
    /// Of the claim's job: as JSON.
    pub(crate) result: &'a str,
}

/// Records the jobs that succeeded.
const KEEP: &str = "
    update {job} as j set
        status = 'succeeded',
        finished_at = clock_timestamp(),
        result = mine.result::jsonb,
        error = null,
        {free_job}
    from mine
    where j.id = any (array[mine.id])
        and j.finished_at is null and j.status not in ('queued', 'parked')";

/// Deletes them, if succeeded jobs are not kept.
const DELETE: &str = "
    delete from {job}
    where id = any(array(select id from mine))
        and finished_at is null and status not in ('queued', 'parked')";

/// Records the jobs of groups whose rows this transaction has locked alone in a statement before,
/// passes their turns, and deletes the rows of those that are drained.
///
/// Its snapshot is of before the statement: the claims' own jobs are unfinished still. Most groups
/// have a job behind the claim's, and nothing else is looked up then. `mine` has a condition and no
/// join, which would compare each with each: this one is looked up in a hash.
fn groups(names: &Names, end: &str) -> String {
    names.sql_with(
        "with claimed as materialized (
            select unnest($1) as claim, unnest($2) as job_id,
                unnest($6) as first, unnest($7) as last
        ), ours as materialized (
            select g.ctid, claimed.claim, next.priority,
                next.id is null and (
                    select 1 from {job} u
                    where u.queue = g.queue and u.group_id = g.group_id
                        and u.group_id is not null and u.status in ('queued', 'started')
                        and u.id <> all(($3::bigint[])[claimed.first:claimed.last])
                    limit 1
                ) is null as drained
            from claimed
            join lateral (
                select g.queue, g.group_id, g.ctid from {queue_group} g
                where g.claim = claimed.claim
                limit 1
            ) as g on true
            left join lateral (
                select h.id, h.priority from {job} h
                where h.queue = g.queue and (h.group_id, h.id) > (g.group_id, claimed.job_id)
                    and h.group_id <= g.group_id
                    and h.group_id is not null and h.status in ('queued', 'started')
                order by h.group_id, h.id
                limit 1
            ) as next on true
        ), done as materialized (
            select unnest($3) as id, unnest($4) as result, unnest($5) as claim
        ), mine as materialized (
            select id, result from done where (claim in (select claim from ours)) is true
        ), ended as materialized (
            {end}
        ), passed as materialized (
            update {queue_group} as g set
                {free_group},
                ready_at = clock_timestamp() - {aging}
            from ours
            where g.ctid = ours.ctid and not ours.drained
        ), retired as materialized (
            delete from {queue_group}
            where halted_at is null and ctid = any (array(select ctid from ours where drained))
        )
        select claim from ours",
        &[
            ("end", &names.sql_with(end, &[("free_job", FREE_JOB)])),
            ("free_group", FREE_GROUP),
            ("aging", &priority_aging("coalesce(ours.priority, 0)")),
        ],
    )
}

/// Records jobs without a group, whose own rows are locked.
fn ungrouped(names: &Names, end: &str) -> String {
    names.sql_with(
        "with claimed as materialized (
            select unnest($1) as claim, unnest($2) as job_id, unnest($3) as result
        ), mine as materialized (
            select j.id, claimed.claim, claimed.result from claimed
            join lateral (
                select j.id from {job} j
                where j.id = claimed.job_id and j.claim = claimed.claim
                    and j.finished_at is null and j.status not in ('queued', 'parked')
                limit 1
                for no key update of j skip locked
            ) as j on true
        ), ended as materialized (
            {end}
        )
        select claim from mine",
        &[("end", &names.sql_with(end, &[("free_job", FREE_JOB)]))],
    )
}

impl Store {
    /// Settles claims of which only successes are to be recorded, all with groups or all without.
    /// Returns the tokens of those that it settled: others are stale, or a row is locked for a
    /// moment. This transaction must not have written the groups' rows before.
    pub(crate) async fn settle_many(
        &self,
        conn: &mut PgConnection,
        claims: &[Succeeded<'_>],
        keep: bool,
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let tokens: Vec<Uuid> = claims.iter().map(|of| of.claim.token).collect();
        if claims.iter().any(|of| of.claim.group.is_none()) {
            let jobs: Vec<i64> = claims.iter().map(|of| of.claim.job).collect();
            let results: Vec<&str> = claims.iter().map(|of| of.result).collect();
            let settle = if keep { &KEEP_UNGROUPED } else { &DELETE_UNGROUPED };
            let settle = self.query(settle).bind(tokens).bind(jobs).bind(results);
            return read(settle.fetch_all(conn).await?);
        }
        let lock = self.query(&LOCK_ALONE).bind(tokens);
        let locked = read(lock.fetch_all(&mut *conn).await?)?;
        let locked = claims.iter().filter(|of| locked.contains(&of.claim.token));
        self.settle_groups(conn, locked, keep).await
    }

    /// `first` and `last` say which of all jobs are a claim's.
    async fn settle_groups<'a>(
        &self,
        conn: &mut PgConnection,
        claims: impl Iterator<Item = &'a Succeeded<'a>>,
        keep: bool,
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let (mut tokens, mut turns) = (Vec::new(), Vec::new());
        let (mut jobs, mut results, mut of) = (Vec::new(), Vec::new(), Vec::new());
        let (mut first, mut last) = (Vec::new(), Vec::new());
        let place = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        for Succeeded { claim, earlier, result, .. } in claims {
            tokens.push(claim.token);
            turns.push(claim.job);
            first.push(place(jobs.len() + 1));
            for done in *earlier {
                jobs.push(done.job);
                results.push(done.result.as_str());
            }
            jobs.push(claim.job);
            results.push(result);
            last.push(place(jobs.len()));
            of.resize(jobs.len(), claim.token);
        }
        if tokens.is_empty() {
            return Ok(HashSet::new());
        }
        let settle = if keep { &KEEP_GROUPS } else { &DELETE_GROUPS };
        let settle = self.query(settle).bind(tokens).bind(turns);
        let settle = settle.bind(jobs).bind(results).bind(of).bind(first).bind(last);
        read(settle.fetch_all(conn).await?)
    }
}

fn read(rows: Vec<PgRow>) -> Result<HashSet<Uuid>, sqlx::Error> {
    rows.into_iter().map(|row| row.try_get(0)).collect()
}
