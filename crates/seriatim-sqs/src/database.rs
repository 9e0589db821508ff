//! The server's statements. Queues, keys and the secret of handles are in tables of its own; jobs
//! are reached through the library and the functions of the schema.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use seriatim::Client;
use seriatim::receive::{Receipt, ReceiveError, Received};
use sqlx::postgres::{PgPoolOptions, PgRow};
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row};

use crate::auth::Caller;
use crate::cache::Cache;
use crate::error::{Code, SqsError};
use crate::handle::Handles;
use crate::input::Texts;
use crate::queue::Queue;

/// The most connections of each role that keys name.
const CONNECTIONS_OF_ROLE: u32 = 10;
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the name of a client's schema as SQL takes it.
pub(crate) fn schema_of(client: &Client) -> String {
    format!("\"{}\"", client.schema().replace('"', "\"\""))
}

/// A key with its secret.
pub(crate) struct StoredKey {
    pub(crate) secret: String,
    pub(crate) role: Option<String>,
}

/// A task that moves messages, as it stands.
#[derive(Debug, Clone)]
pub(crate) struct MoveTask {
    pub(crate) id: i64,
    /// `None`: the queue that each message came from.
    pub(crate) to_queue: Option<String>,
    pub(crate) per_second: Option<i32>,
    pub(crate) status: String,
    pub(crate) moved: i64,
    pub(crate) to_move: i64,
    pub(crate) failure: Option<String>,
    pub(crate) started_at: DateTime<Utc>,
}

/// The numbers of a queue's messages, each up to 10,001.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Depth {
    pub(crate) visible: i64,
    pub(crate) delayed: i64,
    pub(crate) in_flight: i64,
}

pub(crate) struct Database {
    pub(crate) client: Client,
    pool: PgPool,
    schema: String,
    of_roles: Mutex<HashMap<String, PgPool>>,
    keys: Cache<String, StoredKey>,
    /// By the role that reads them, which may lack the right to.
    queues: Cache<(Option<String>, String), Queue>,
    pub(crate) handles: Handles,
}

impl Database {
    /// Reads the secret of the schema.
    pub(crate) async fn open(pool: PgPool, client: Client) -> Result<Self, sqlx::Error> {
        let schema = schema_of(&client);
        let secret = format!("select secret from {schema}.sqs_secret limit 1");
        let secret = sqlx::query_scalar(AssertSqlSafe(secret)).fetch_one(&pool).await?;
        let handles = Handles::new(secret);
        Ok(Self {
            client,
            pool,
            schema,
            of_roles: Mutex::default(),
            keys: Cache::default(),
            queues: Cache::default(),
            handles,
        })
    }

    /// The pool of the server's own role.
    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Returns the pool for a caller. A role has its own: its connections begin in that role.
    pub(crate) fn pool_of(&self, caller: &Caller) -> PgPool {
        let Some(role) = &caller.role else { return self.pool.clone() };
        let mut pools = self.of_roles.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let pool = pools.entry(role.clone()).or_insert_with(|| {
            let options = (*self.pool.connect_options()).clone().options([("role", role)]);
            PgPoolOptions::new()
                .max_connections(CONNECTIONS_OF_ROLE)
                .acquire_timeout(ACQUIRE_TIMEOUT)
                .connect_lazy_with(options)
        });
        pool.clone()
    }

    fn sql(&self, text: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(text.replace("{schema}", &self.schema))
    }

    /// Returns a key as it was at most 500 ms ago.
    pub(crate) async fn key(&self, access_key: &str) -> Result<Option<Arc<StoredKey>>, SqsError> {
        let read = Box::pin(async { self.find_key(access_key).await.map_err(Some)?.ok_or(None) });
        match self.keys.get(access_key.to_owned(), read).await {
            Ok(key) => Ok(Some(key)),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    async fn find_key(&self, access_key: &str) -> Result<Option<StoredKey>, SqsError> {
        if access_key.contains('\0') {
            return Ok(None);
        }
        let sql = self.sql("select secret, role from {schema}.sqs_key where access_key = $1");
        let row = sqlx::query(sql).bind(access_key).fetch_optional(&self.pool).await?;
        let key = row.map(|row| -> Result<_, sqlx::Error> {
            Ok(StoredKey { secret: row.try_get(0)?, role: row.try_get(1)? })
        });
        Ok(key.transpose()?)
    }

    pub(crate) async fn queue(&self, pool: &PgPool, name: &str) -> Result<Queue, SqsError> {
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
        name: String,
    ) -> Result<Arc<Queue>, SqsError> {
        let pool = self.pool_of(caller);
        let read = Box::pin(self.queue(&pool, &name));
        self.queues.get((caller.role.clone(), name.clone()), read).await
    }

    /// Has queues read anew: one was changed.
    pub(crate) fn forget_queues(&self) {
        self.queues.clear();
    }

    pub(crate) async fn find_queue(
        &self,
        conn: &mut PgConnection,
        name: &str,
    ) -> Result<Option<Queue>, SqsError> {
        let sql = self.sql(
            "select name, attributes, tags, created_at, modified_at from {schema}.sqs_queue
             where name = $1",
        );
        let row = sqlx::query(sql).bind(name).fetch_optional(conn).await?;
        Ok(row.map(|row| queue(&row)).transpose()?)
    }

    /// Locks a queue's row for the open transaction.
    pub(crate) async fn lock_queue(
        &self,
        conn: &mut PgConnection,
        name: &str,
    ) -> Result<Queue, SqsError> {
        if name.contains('\0') {
            return Err(SqsError::no_queue());
        }
        let sql = self.sql("select from {schema}.sqs_queue where name = $1 for no key update");
        sqlx::query(sql).bind(name).execute(&mut *conn).await?;
        self.find_queue(conn, name).await?.ok_or_else(SqsError::no_queue)
    }

    /// Returns the names of queues behind `after`, in order.
    pub(crate) async fn queue_names(
        &self,
        pool: &PgPool,
        prefix: &str,
        after: &str,
        limit: i64,
    ) -> Result<Vec<String>, SqsError> {
        if prefix.contains('\0') || after.contains('\0') {
            return Ok(Vec::new());
        }
        let sql = self.sql(
            "select name from {schema}.sqs_queue
             where name > $2 and starts_with(name, $1) order by name limit $3",
        );
        let names = sqlx::query_scalar(sql).bind(prefix).bind(after).bind(limit);
        Ok(names.fetch_all(pool).await?)
    }

    /// Returns the names of the queues whose dead letters belong to this one, as they say.
    pub(crate) async fn sources_of(
        &self,
        pool: &PgPool,
        queue: &str,
        after: &str,
        limit: i64,
    ) -> Result<Vec<String>, SqsError> {
        let sql = self.sql(
            "select name from {schema}.sqs_queue
             where name > $2 and split_part(
                 nullif(attributes ->> 'RedrivePolicy', '')::jsonb ->> 'deadLetterTargetArn',
                 ':', 6) = $1
             order by name limit $3",
        );
        let names = sqlx::query_scalar(sql).bind(queue).bind(after).bind(limit);
        Ok(names.fetch_all(pool).await?)
    }

    /// Adds a queue. Returns false if there is one of this name, and locks it: otherwise another
    /// transaction may remove it before its settings are compared.
    pub(crate) async fn insert_queue(
        &self,
        conn: &mut PgConnection,
        name: &str,
        attributes: &Texts,
        tags: &Texts,
    ) -> Result<bool, SqsError> {
        let sql = self.sql(
            "insert into {schema}.sqs_queue (name, attributes, tags) values ($1, $2, $3)
             on conflict (name) do update set name = excluded.name
             returning xmax = 0",
        );
        let insert = sqlx::query_scalar(sql).bind(name).bind(Json(attributes)).bind(Json(tags));
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

    pub(crate) async fn set_tags(
        &self,
        pool: &PgPool,
        name: &str,
        given: &Texts,
        removed: &[String],
    ) -> Result<(), SqsError> {
        let sql =
            self.sql("update {schema}.sqs_queue set tags = (tags || $2) - $3 where name = $1");
        sqlx::query(sql).bind(name).bind(Json(given)).bind(removed).execute(pool).await?;
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

    /// Starts a task that moves what waits in a queue. Returns its number; `None` if one is
    /// running.
    pub(crate) async fn start_move_task(
        &self,
        pool: &PgPool,
        source: &str,
        target: Option<&str>,
        rate: Option<i64>,
    ) -> Result<Option<i64>, SqsError> {
        let sql = self.sql("select {schema}.start_move_task($1, $2, $3::int)");
        let task = sqlx::query_scalar(sql).bind(source).bind(target).bind(rate);
        match task.fetch_one(pool).await {
            // The arguments are sound.
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("22023") => {
                Ok(None)
            }
            task => Ok(Some(task?)),
        }
    }

    /// Ends a task of a source queue. Returns how many messages it has moved; `None` if no such
    /// task is running.
    pub(crate) async fn cancel_move_task(
        &self,
        pool: &PgPool,
        task: i64,
        source: &str,
    ) -> Result<Option<i64>, SqsError> {
        let sql = self.sql(
            "select {schema}.cancel_move_task(t.id) from {schema}.move_task t
             where t.id = $1 and t.from_queue = $2",
        );
        let moved = sqlx::query_scalar(sql).bind(task).bind(source).fetch_optional(pool).await?;
        Ok(moved.flatten())
    }

    /// Returns the tasks of a source queue, the newest first.
    pub(crate) async fn move_tasks(
        &self,
        pool: &PgPool,
        source: &str,
        most: i64,
    ) -> Result<Vec<MoveTask>, SqsError> {
        let sql = self.sql(
            "select t.id, t.to_queue, t.per_second::int, t.status, t.moved, t.to_move, t.failure,
               t.started_at
             from {schema}.move_task t where t.from_queue = $1 order by t.id desc limit $2",
        );
        let rows = sqlx::query(sql).bind(source).bind(most).fetch_all(pool).await?;
        let tasks = rows.iter().map(|row| {
            Ok(MoveTask {
                id: row.try_get(0)?,
                to_queue: row.try_get(1)?,
                per_second: row.try_get(2)?,
                status: row.try_get(3)?,
                moved: row.try_get(4)?,
                to_move: row.try_get(5)?,
                failure: row.try_get(6)?,
                started_at: row.try_get(7)?,
            })
        });
        Ok(tasks.collect::<Result<_, sqlx::Error>>()?)
    }

    /// Carries all running tasks one batch further.
    pub(crate) async fn run_move_tasks(&self) -> Result<(), SqsError> {
        let sql = self.sql("select {schema}.run_move_tasks()");
        sqlx::query(sql).execute(&self.pool).await?;
        Ok(())
    }

    /// Clears flags of messages that cannot be received now, where receives find more than they can
    /// read. Returns whether there is more to do at once.
    pub(crate) async fn tidy(&self) -> Result<bool, SqsError> {
        let sql = self.sql("select t.more from {schema}.tidy() t");
        Ok(sqlx::query_scalar(sql).fetch_one(&self.pool).await?)
    }

    /// Notes a purge. Returns false if another one began less than 60 s ago.
    pub(crate) async fn begin_purge(&self, pool: &PgPool, name: &str) -> Result<bool, SqsError> {
        let sql = self.sql(
            "update {schema}.sqs_queue set purged_at = clock_timestamp()
             where name = $1
               and (purged_at is null or purged_at <= clock_timestamp() - interval '60 s')",
        );
        Ok(sqlx::query(sql).bind(name).execute(pool).await?.rows_affected() == 1)
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

    /// Returns when jobs were enqueued, as far as they are there still.
    pub(crate) async fn created(
        &self,
        conn: &mut PgConnection,
        jobs: &[i64],
    ) -> Result<HashMap<i64, i64>, sqlx::Error> {
        let sql = self.sql(
            "select j.id, (extract(epoch from j.created_at) * 1000000)::int8
             from {schema}.job j where j.id = any ($1)",
        );
        let rows = sqlx::query(sql).bind(jobs).fetch_all(conn).await?;
        let pairs = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        pairs.collect()
    }

    /// Receives messages.
    /// Releases messages that were received for a client that is gone.
    pub(crate) async fn release(&self, pool: &PgPool, unseen: &[Received]) -> Result<(), SqsError> {
        if unseen.is_empty() {
            return Ok(());
        }
        let receipts: Vec<String> = unseen.iter().map(|job| job.receipt.to_string()).collect();
        let sql = self.sql("select from {schema}.release_many($1)");
        sqlx::query(sql).bind(receipts).execute(pool).await?;
        Ok(())
    }

    /// Returns which of these queues may have a message now.
    pub(crate) async fn due_queues(&self, queues: &[String]) -> Result<Vec<String>, SqsError> {
        let sql = self.sql("select * from {schema}.due_queues($1)");
        Ok(sqlx::query_scalar(sql).bind(queues).fetch_all(&self.pool).await?)
    }

    /// Returns which of these jobs have not ended.
    pub(crate) async fn unfinished(
        &self,
        pool: &PgPool,
        jobs: &[i64],
    ) -> Result<Vec<i64>, SqsError> {
        let sql = self
            .sql("select j.id from {schema}.job j where j.id = any ($1) and j.finished_at is null");
        Ok(sqlx::query_scalar(sql).bind(jobs).fetch_all(pool).await?)
    }

    /// Returns the receipts that receivers have of these jobs, of those without a group.
    pub(crate) async fn receipts(
        &self,
        pool: &PgPool,
        jobs: &[i64],
    ) -> Result<HashMap<i64, Receipt>, SqsError> {
        let sql = self.sql(
            "select j.id, j.id || '.' || j.claim from {schema}.job j
             where j.id = any ($1) and j.group_id is null and j.finished_at is null
               and j.claim is not null and j.claimed_by is null",
        );
        let rows: Vec<(i64, String)> = sqlx::query_as(sql).bind(jobs).fetch_all(pool).await?;
        Ok(rows.into_iter().filter_map(|(id, text)| Some((id, text.parse().ok()?))).collect())
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

/// Returns whether a call of a receiver has done nothing: the database said so, and did not just go
/// away.
pub(crate) fn is_undone(error: &ReceiveError) -> bool {
    !matches!(error, ReceiveError::Database(error) if error.as_database_error().is_none())
}

/// Returns the SQS error for a receiver's refused call.
pub(crate) fn refusal(error: ReceiveError) -> SqsError {
    match error {
        ReceiveError::Busy { .. } => SqsError::busy(),
        ReceiveError::Database(error) => error.into(),
        other => SqsError::new(Code::InvalidParameterValue, other.to_string()),
    }
}
