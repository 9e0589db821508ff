//! The reads of a rehearsal: a group's jobs with what they carry, and what a transaction has
//! written.

use std::collections::HashMap;

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::job::disposition::Disposition;
use crate::store::claim::Claim;
use crate::store::loaded_job::{LoadedJob, loaded_columns};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// The job that has halted the group or the one that is asked for, those that were parked with
    /// it, and those that wait behind it. Takes no lock.
    REHEARSED = |names| names.sql_with(
        "with first as materialized (
            select coalesce($3, (
                select g.halt_job_id from {queue_group} g
                where g.queue = $1 and g.group_id = $2 and g.halted_at is not null and g.park_to is null
            )) as id
        ), chosen as materialized (
            select j.id from first, {job} j
            where j.id = first.id and j.queue = $1 and j.group_id = $2
                and {job_state}(j.status, j.queue, j.group_id, j.id)::text <> 'succeeded'
            union
            select j.id from first, {job} j
            where j.queue = $1 and j.group_id = $2 and j.parked_with = first.id
            union
            select w.id from (
                select j.id from {job} j
                where j.queue = $1 and (j.group_id, j.id) > ($2, coalesce((select id from first), 0))
                    and j.group_id <= $2 and j.group_id is not null and j.status in ('queued', 'started')
                order by j.group_id, j.id limit $4
            ) w
        )
        select {columns}, case when job.expires_at <= clock_timestamp() then job.expires_at end as expired_at,
            (select c.started_at is not null from {claim_of}(job.queue, job.group_id, job.id) c) as is_running
        from {job} job where job.id in (select id from chosen) order by job.id limit $4",
        &[("columns", &loaded_columns(names))],
    );

    WRITES = |_| "select schemaname::text, relname::text, n_tup_ins, n_tup_upd, n_tup_del \
        from pg_catalog.pg_stat_xact_user_tables where n_tup_ins + n_tup_upd + n_tup_del > 0".to_owned();
}

/// A job that a rehearsal runs.
pub(crate) struct Rehearsed {
    /// No worker has it: nothing that is fenced by it counts.
    pub(crate) claim: Claim,
    pub(crate) loaded: LoadedJob,
    /// A worker has it now.
    pub(crate) is_running: bool,
}

/// The rows that a transaction has inserted, updated and deleted, by schema and table.
pub(crate) type Writes = HashMap<(String, String), [i64; 3]>;

impl Store {
    /// Returns the jobs of a group that a rehearsal runs, in order, at most `most`.
    pub(crate) async fn rehearsed(
        &self,
        conn: &mut PgConnection,
        (queue, group): (&str, &str),
        from: Option<i64>,
        most: i64,
    ) -> Result<Vec<Rehearsed>, sqlx::Error> {
        let query = self.query(&REHEARSED).bind(queue).bind(group).bind(from).bind(most);
        let rows = query.fetch_all(conn).await?;
        let jobs = rows.iter().map(|row| {
            let expired_at: Option<_> = row.try_get("expired_at")?;
            let disposition = expired_at.map_or(Disposition::Run, Disposition::Expired);
            let claim = Claim {
                job: row.try_get("id")?,
                followers: Vec::new(),
                group: Some(group.to_owned()),
                token: Uuid::nil(),
                disposition,
                may_wait: false,
                began: None,
            };
            let is_running = row.try_get::<Option<bool>, _>("is_running")?.unwrap_or(false);
            Ok(Rehearsed { claim, loaded: LoadedJob::read(row)?, is_running })
        });
        jobs.collect()
    }

    /// Returns what the open transaction has written so far. Writes of the session's transaction
    /// before may be in it.
    pub(crate) async fn writes(&self, conn: &mut PgConnection) -> Result<Writes, sqlx::Error> {
        let rows = self.query(&WRITES).fetch_all(conn).await?;
        let writes = rows.iter().map(|row| {
            let table = (row.try_get(0)?, row.try_get(1)?);
            Ok((table, [row.try_get(2)?, row.try_get(3)?, row.try_get(4)?]))
        });
        writes.collect()
    }
}
