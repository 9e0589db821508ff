//! Heads: which job is next in the groups whose turns were taken.

use std::collections::HashMap;

use sqlx::{PgConnection, Row};

use crate::job::group_plan::{Disposition, Head, HeadSnapshot, LockedGroup};
use crate::store::claim::claim::ClaimOptions;
use crate::store::fragments::disposition;
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    READ_HEADS = read_heads;
}

/// Reads the heads of the taken groups and locks those that may start. Its snapshot is younger than
/// the group locks.
///
/// The head is among few candidates per group, never the backlog (P7): one unfinished job from
/// `head_id` on, one from the lowest flag on, or the claimed job of a take-over. Late and retried
/// ids come in by their flag. The flagged job itself may have been cancelled since; jobs of its
/// statement, below `head_id` and without a flag, are behind it. Of several jobs under one claim,
/// the first that has not ended is the candidate.
///
/// What is found by id says `finished_at is null` for unfinished: the words of a partial index
/// could have that index read as a whole. A job that is taken over runs at once: it was due when it
/// was claimed. The head of a paused group is not locked, as an unpause must be able to flag it.
/// The three kinds of rows are put together by the caller: without an index, a join would take the
/// square of their number.
fn read_heads(names: &Names) -> String {
    names.sql_with(
        "with turn as materialized (
            select unnest($2) as group_id, unnest($3) as job_id, unnest($4) as head_id,
                unnest($7) as batch_end
        ), paused as materialized (
            select s.group_id from turn
            join lateral (
                select s.group_id from {group_setting} s
                where s.queue = $1 and s.group_id = turn.group_id and s.paused_at is not null
                limit 1
            ) as s on true
        ), candidate as materialized (
            select turn.group_id, c.id, c.priority, c.due_at, turn.job_id is not null as taken_over
            from turn
            join lateral (
                select j.id, j.priority, least(j.run_at, j.expires_at) as due_at from {job} j
                where j.queue = $1 and (j.group_id, j.id) >= (turn.group_id, turn.head_id)
                    and j.group_id <= turn.group_id
                    and j.group_id is not null and j.status in ('queued', 'started')
                order by j.group_id, j.id
                limit 1
            ) as c on true
            where turn.job_id is null
            union all (
                select turn.group_id, c.id, c.priority, c.due_at, turn.job_id is not null
                from turn
                join lateral (
                    select f.id from {job} f
                    where f.queue = $1 and f.group_id >= turn.group_id
                        and f.group_id <= turn.group_id and f.flagged
                    order by f.group_id, f.id
                    limit 1
                ) as f on true
                join lateral (
                    select j.id, j.priority, least(j.run_at, j.expires_at) as due_at from {job} j
                    where j.queue = $1 and (j.group_id, j.id) >= (turn.group_id, f.id)
                        and j.group_id <= turn.group_id
                        and j.group_id is not null and j.status in ('queued', 'started')
                    order by j.group_id, j.id
                    limit 1
                ) as c on true
                where turn.job_id is null
            )
            union all (
                select turn.group_id, c.id, c.priority, c.due_at, turn.job_id is not null
                from turn
                join lateral (
                    select j.id, j.priority, least(j.run_at, j.expires_at) as due_at from {job} j
                    where j.id = any (array[
                            case when turn.batch_end is null then turn.job_id else (
                                select min(b.id) from
                                {batch_jobs}($1, turn.group_id, turn.job_id, turn.batch_end) b(id)
                            ) end
                        ])
                        and j.finished_at is null
                ) as c on true
                where turn.job_id is not null
            )
        ), head as materialized (
            select distinct on (group_id) group_id, id, priority, due_at, taken_over
            from candidate
            order by group_id, id
        ), locked as materialized (
            select j.id, j.expires_at, {disposition} as disposition, j.attempts = j.attempts_forgiven as fresh
            from head
            join {job} as j on j.id = any (array[head.id])
            where j.finished_at is null
                and (least(j.run_at, j.expires_at) <= now() or head.taken_over)
                and (head.taken_over or head.group_id not in (select group_id from paused))
            for no key update of j skip locked
        )
        select head.group_id, head.id, head.priority, head.due_at,
            due_at <= now() or taken_over as due,
            null::text as disposition, null::timestamptz as expires_at, null::bool as fresh,
            null::bool as paused, null::bool as drained
        from head
        union all (
            select turn.group_id, null::int8, null::int2, null::timestamptz, null::bool,
                null, null::timestamptz, null::bool,
                turn.group_id in (select group_id from paused),
                (turn.group_id in (select group_id from head)) is not true and (
                    select 1 from {job} u
                    where u.queue = $1 and u.group_id = turn.group_id
                        and u.group_id is not null and u.status in ('queued', 'started')
                    limit 1
                ) is null
            from turn
        )
        union all (
            select null, locked.id, null, null, null,
                locked.disposition, locked.expires_at, locked.fresh, null, null
            from locked
        )",
        &[("disposition", &disposition("j", "$5", "$6"))],
    )
}

impl Store {
    /// Reads the heads of taken groups and locks the job rows that may start.
    pub(crate) async fn read_heads(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        turns: &[LockedGroup],
        options: ClaimOptions,
    ) -> Result<HashMap<String, HeadSnapshot>, sqlx::Error> {
        let groups: Vec<&str> = turns.iter().map(|turn| turn.group.as_str()).collect();
        let jobs: Vec<Option<i64>> = turns.iter().map(|turn| turn.claimed_job).collect();
        let heads: Vec<i64> = turns.iter().map(|turn| turn.head_id).collect();
        let ends: Vec<Option<i64>> = turns.iter().map(|turn| turn.batch_end).collect();
        let read = self.query(&READ_HEADS).bind(queue).bind(groups).bind(jobs).bind(heads);
        let read = read.bind(options.max_attempts).bind(options.ignore_before).bind(ends);
        let rows = read.fetch_all(conn).await?;
        let (mut snapshots, mut heads, mut locked) = (HashMap::new(), Vec::new(), HashMap::new());
        for row in &rows {
            let group: Option<String> = row.try_get("group_id")?;
            let id: Option<i64> = row.try_get("id")?;
            match (group, id) {
                (Some(group), None) => {
                    let (drained, paused) = (row.try_get("drained")?, row.try_get("paused")?);
                    snapshots.insert(group, HeadSnapshot { head: None, drained, paused });
                }
                (Some(group), Some(id)) => heads.push((group, id, row)),
                (None, Some(id)) => _ = locked.insert(id, row),
                (None, None) => {}
            }
        }
        for (group, id, row) in heads {
            let found = locked.get(&id);
            let disposition = match found {
                Some(row) => {
                    Disposition::parse(row.try_get("disposition")?, row.try_get("expires_at")?)
                }
                None => Disposition::Run,
            };
            let head = Head {
                id,
                due_at: row.try_get("due_at")?,
                due: row.try_get("due")?,
                locked: found.is_some(),
                fresh: found.map_or(Ok(false), |row| row.try_get("fresh"))?,
                priority: row.try_get("priority")?,
                disposition,
            };
            snapshots.entry(group).or_insert_with(HeadSnapshot::default).head = Some(head);
        }
        Ok(snapshots)
    }
}
