//! Followers: the jobs that one turn claims together with the head of their group, and that a
//! lapsed turn gives back.

use std::collections::{HashMap, HashSet};

use sqlx::{PgConnection, Row};

use crate::store::claim::claim::ClaimOptions;
use crate::store::fragments::history_entry;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// Locks what may be claimed together with the heads: next in order, due, and never begun. Such
    /// a job loses nothing if its worker dies before it comes to run; one with a single attempt
    /// would. One that expires is left to a claim of its own, which alone sees that it did. The
    /// locked ids come as rows of their own: without an index, a join would take the square of
    /// their number.
    LOCK_FOLLOWERS = |names| names.sql(
        "with turn as materialized (
            select unnest($2) as group_id, unnest($3) as job_id
        ), next as materialized (
            select turn.group_id, f.id from turn
            join lateral (
                select j.id from {job} j
                where j.queue = $1 and (j.group_id, j.id) > (turn.group_id, turn.job_id)
                    and j.group_id <= turn.group_id
                    and j.group_id is not null and j.status in ('queued', 'started')
                order by j.group_id, j.id
                limit $4
            ) as f on true
        ), locked as materialized (
            select j.id from next
            join {job} as j on j.id = any (array[next.id])
            where j.finished_at is null and j.status <> 'started' and j.run_at <= now()
                and j.expires_at is null
                and coalesce(j.created_at >= $7, true)
                and j.attempts = j.attempts_forgiven and coalesce(j.max_attempts, $5) > 1
                and (j.lease_ms is null or not $6)
            for no key update of j skip locked
        )
        select next.group_id, next.id from next
        union all (select null, id from locked)",
    );

    /// Queues the jobs of lapsed turns again, but the first of each that has not ended. The lost
    /// worker may never have begun them, so their attempt does not count. The groups' rows are
    /// locked: no ack is in between.
    RETURN_BATCHES = |names| names.sql_with(
        "with turn as materialized (
            select unnest($2) as group_id, $1::text as queue
        ), batch as materialized (
            select g.queue, g.group_id, g.batch_end, (
                select min(b.id)
                from {batch_jobs}(g.queue, g.group_id, g.job_id, g.batch_end) b(id)
            ) as first
            from turn
            join {queue_group} as g on g.queue = any (array[turn.queue])
                and g.group_id between turn.group_id and turn.group_id
            where g.batch_end is not null
        ), behind as materialized (
            select j.id from batch
            join lateral (
                select j.id from {job} j
                where j.id = any(array(
                        select b.id from
                        {batch_jobs}(batch.queue, batch.group_id, batch.first + 1, batch.batch_end)
                            b(id)
                    ))
                    and j.finished_at is null and j.status not in ('queued', 'parked')
                for no key update of j skip locked
            ) as j on true
        )
        update {job} as j set
            status = 'queued',
            attempts_forgiven = j.attempts_forgiven + 1,
            history = {history}
        from behind
        where j.id = any (array[behind.id])
            and j.finished_at is null and j.status not in ('queued', 'parked')",
        &[("history", &history_entry("j", "'released'", "null"))],
    );
}

impl Store {
    /// What may be claimed together with these heads, up to `n` for each; in order, and locked. The
    /// groups' rows and the heads are locked.
    pub(crate) async fn lock_followers(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        heads: &[(&str, i64)],
        n: i64,
        options: ClaimOptions,
    ) -> Result<HashMap<String, Vec<i64>>, sqlx::Error> {
        let (groups, jobs): (Vec<&str>, Vec<i64>) = heads.iter().copied().unzip();
        let lock = self.query(&LOCK_FOLLOWERS).bind(queue).bind(groups).bind(jobs).bind(n);
        let lock =
            lock.bind(options.max_attempts).bind(options.own_lease).bind(options.ignore_before);
        let mut next: HashMap<String, Vec<i64>> = HashMap::new();
        let mut ours: HashSet<i64> = HashSet::new();
        for row in lock.fetch_all(conn).await? {
            let id = row.try_get(1)?;
            match row.try_get(0)? {
                Some(group) => next.entry(group).or_default().push(id),
                None => drop(ours.insert(id)),
            }
        }
        for line in next.values_mut() {
            line.sort_unstable();
            // One that is not to be had ends the line: order comes first.
            let until = line.iter().position(|id| !ours.contains(id)).unwrap_or(line.len());
            line.truncate(until);
        }
        Ok(next)
    }

    /// Gives back what is left of lapsed batches but their first jobs. The groups' rows are locked.
    pub(crate) async fn return_batches(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        groups: &[&str],
    ) -> Result<(), sqlx::Error> {
        let return_batches = self.query(&RETURN_BATCHES).bind(queue).bind(groups);
        return_batches.execute(conn).await.map(drop)
    }
}
