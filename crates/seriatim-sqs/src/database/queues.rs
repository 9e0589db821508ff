//! Queues: their rows, settings and numbers of messages.

use std::iter::Sum;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{PgConnection, PgPool, Row};

use crate::caller::{Caller, QueueName};
use crate::database::database::Database;
use crate::error::SqsError;
use crate::input::Texts;
use crate::queue::Queue;

/// The numbers of a queue's messages on a server, each up to 10,001.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Depth {
    pub(crate) visible: i64,
    pub(crate) delayed: i64,
    pub(crate) in_flight: i64,
}

/// The numbers of several servers together.
impl Sum for Depth {
    fn sum<I: Iterator<Item = Self>>(depths: I) -> Self {
        depths.fold(Self::default(), |sum, of| Self {
            visible: sum.visible + of.visible,
            delayed: sum.delayed + of.delayed,
            in_flight: sum.in_flight + of.in_flight,
        })
    }
}

impl Database {
    pub(crate) async fn queue(&self, pool: &PgPool, name: &QueueName) -> Result<Queue, SqsError> {
        if name.contains('\0') {
            return Err(SqsError::no_queue());
        }
        let mut conn = pool.acquire().await?;
        self.find_queue(&mut conn, name).await?.ok_or_else(SqsError::no_queue)
    }

    /// Returns a queue as it was at most 500 ms ago.
    pub(crate) async fn recent_queue(
        &self,
        caller: &Caller,
        name: QueueName,
    ) -> Result<Arc<Queue>, SqsError> {
        let pool = self.pool_of(caller);
        let read = Box::pin(self.queue(&pool, &name));
        self.queues.get((caller.role.clone(), name.clone().into_text()), read).await
    }

    /// Has queues read anew: one was changed.
    pub(crate) fn forget_queues(&self) {
        self.queues.clear();
    }

    pub(crate) async fn find_queue(
        &self,
        conn: &mut PgConnection,
        name: &QueueName,
    ) -> Result<Option<Queue>, SqsError> {
        let sql = self.sql(
            "select name, attributes, tags, created_at, modified_at from {schema}.sqs_queue
             where name = $1",
        );
        let row = sqlx::query(sql).bind(&**name).fetch_optional(conn).await?;
        Ok(row.map(|row| queue(&row)).transpose()?)
    }

    /// Locks a queue's row for the open transaction.
    pub(crate) async fn lock_queue(
        &self,
        conn: &mut PgConnection,
        name: &QueueName,
    ) -> Result<Queue, SqsError> {
        if name.contains('\0') {
            return Err(SqsError::no_queue());
        }
        let sql = self.sql("select from {schema}.sqs_queue where name = $1 for no key update");
        sqlx::query(sql).bind(&**name).execute(&mut *conn).await?;
        self.find_queue(conn, name).await?.ok_or_else(SqsError::no_queue)
    }

    /// Returns the names of queues behind `after`, in the order of their bytes: those that a
    /// pattern of `shown` is like, or all.
    pub(crate) async fn queue_names(
        &self,
        pool: &PgPool,
        prefix: &str,
        after: &str,
        limit: i64,
        shown: Option<Vec<String>>,
    ) -> Result<Vec<String>, SqsError> {
        if prefix.contains('\0') || after.contains('\0') {
            return Ok(Vec::new());
        }
        let sql = self.sql(
            "select name from {schema}.sqs_queue
             where name collate \"C\" > $2 and starts_with(name, $1)
               and ($4::text[] is null or name like any ($4))
             order by name collate \"C\" limit $3",
        );
        let names = sqlx::query_scalar(sql).bind(prefix).bind(after).bind(limit).bind(shown);
        Ok(names.fetch_all(pool).await?)
    }

    /// Returns the names of the queues whose dead letters belong to this one, as they say: those
    /// that a pattern of `shown` is like, or all.
    pub(crate) async fn sources_of(
        &self,
        pool: &PgPool,
        queue: &str,
        after: &str,
        limit: i64,
        shown: Option<Vec<String>>,
    ) -> Result<Vec<String>, SqsError> {
        let sql = self.sql(
            "select name from {schema}.sqs_queue
             where name collate \"C\" > $2 and split_part(
                 nullif(attributes ->> 'RedrivePolicy', '')::jsonb ->> 'deadLetterTargetArn',
                 ':', 6) = $1
               and ($4::text[] is null or name like any ($4))
             order by name collate \"C\" limit $3",
        );
        let names = sqlx::query_scalar(sql).bind(queue).bind(after).bind(limit).bind(shown);
        Ok(names.fetch_all(pool).await?)
    }

    /// Adds a queue. Returns false if there is one of this name, and locks it: otherwise another
    /// transaction may remove it before its settings are compared.
    pub(crate) async fn insert_queue(
        &self,
        conn: &mut PgConnection,
        name: &QueueName,
        attributes: &Texts,
        tags: &Texts,
    ) -> Result<bool, SqsError> {
        let sql = self.sql(
            "insert into {schema}.sqs_queue (name, attributes, tags) values ($1, $2, $3)
             on conflict (name) do update set name = excluded.name
             returning xmax = 0",
        );
        let insert = sqlx::query_scalar(sql).bind(&**name).bind(Json(attributes)).bind(Json(tags));
        Ok(insert.fetch_one(conn).await?)
    }

    /// Merges settings into those of a queue. Empty ones are removed.
    pub(crate) async fn set_attributes(
        &self,
        conn: &mut PgConnection,
        name: &str,
        given: &Texts,
    ) -> Result<(), SqsError> {
        let sql = self.sql(
            "update {schema}.sqs_queue set modified_at = clock_timestamp(), attributes = (
               select coalesce(jsonb_object_agg(a.key, a.value), '{}')
               from jsonb_each(attributes || $2) a where a.value <> '\"\"')
             where name = $1",
        );
        sqlx::query(sql).bind(name).bind(Json(given)).execute(conn).await?;
        Ok(())
    }

    /// Gives a queue these settings and tags, whatever it has.
    pub(crate) async fn replace_queue(
        &self,
        conn: &mut PgConnection,
        queue: &Queue,
    ) -> Result<(), SqsError> {
        let sql = self.sql(
            "update {schema}.sqs_queue set modified_at = clock_timestamp(), attributes = $2, tags = $3
             where name = $1",
        );
        let replace = sqlx::query(sql).bind(&queue.name);
        replace.bind(Json(&queue.attributes)).bind(Json(&queue.tags)).execute(conn).await?;
        Ok(())
    }

    pub(crate) async fn set_tags(
        &self,
        conn: &mut PgConnection,
        name: &str,
        given: &Texts,
        removed: &[String],
    ) -> Result<(), SqsError> {
        let sql =
            self.sql("update {schema}.sqs_queue set tags = (tags || $2) - $3 where name = $1");
        sqlx::query(sql).bind(name).bind(Json(given)).bind(removed).execute(conn).await?;
        Ok(())
    }

    /// Removes a queue, and ends the tasks that move messages from or to it. Its jobs are not
    /// touched.
    pub(crate) async fn delete_queue(
        &self,
        conn: &mut PgConnection,
        name: &str,
    ) -> Result<(), SqsError> {
        let sql = self.sql("delete from {schema}.sqs_queue where name = $1");
        sqlx::query(sql).bind(name).execute(&mut *conn).await?;
        let sql = self.sql(
            "update {schema}.move_task set status = 'failed', ended_at = clock_timestamp(),
               failure = 'AWS.SimpleQueueService.NonExistentQueue'
             where ended_at is null and $1 in (from_queue, to_queue)",
        );
        sqlx::query(sql).bind(name).execute(conn).await?;
        Ok(())
    }

    /// Notes a purge. Returns false if another one began less than 60 s ago.
    pub(crate) async fn begin_purge(
        &self,
        conn: &mut PgConnection,
        name: &str,
    ) -> Result<bool, SqsError> {
        let sql = self.sql(
            "update {schema}.sqs_queue set purged_at = clock_timestamp()
             where name = $1
               and (purged_at is null or purged_at <= clock_timestamp() - interval '60 s')",
        );
        Ok(sqlx::query(sql).bind(name).execute(conn).await?.rows_affected() == 1)
    }

    /// Counts the messages of a queue. One whose visibility is over is not in flight any more,
    /// whether or not a receive has found it yet.
    pub(crate) async fn depth(&self, pool: &PgPool, queue: &str) -> Result<Depth, SqsError> {
        let sql = self.sql(
            "select d.queued + over.n, d.delayed, d.started::int8 - over.n
             from {schema}.queue_depth($1) d cross join lateral (
               select ((select coalesce(sum(c.jobs), 0) from (
                   select coalesce(cardinality(g.batch), 1) as jobs, g.claimed_by, g.ready_at from {schema}.queue_group g
                   where g.queue = $1 and g.job_id is not null limit 10001) c
                 where c.claimed_by is null and c.ready_at <= clock_timestamp())
               + (select count(*) from (
                   select j.claimed_by, j.lease_until from {schema}.job j
                   where j.queue = $1 and j.group_id is null and j.status = 'started'
                   limit 10001) c
                 where c.claimed_by is null and c.lease_until <= clock_timestamp()))::int8) over(n)",
        );
        let row = sqlx::query(sql).bind(queue).fetch_one(pool).await?;
        Ok(Depth { visible: row.try_get(0)?, delayed: row.try_get(1)?, in_flight: row.try_get(2)? })
    }
}

fn queue(row: &PgRow) -> Result<Queue, sqlx::Error> {
    let texts = |column: usize| row.try_get::<Json<Texts>, _>(column).map(|json| json.0);
    let time = |column: usize| row.try_get::<DateTime<Utc>, _>(column);
    Ok(Queue {
        name: row.try_get(0)?,
        attributes: texts(1)?,
        tags: texts(2)?,
        created_at: time(3)?,
        modified_at: time(4)?,
    })
}
