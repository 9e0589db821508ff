//! The handle of an application, for one schema, and the migration of that schema.

use std::sync::Arc;

use sqlx::pool::PoolConnection;
use sqlx::{PgPool, Postgres};

use crate::error::MigrateError;
use crate::job::error::NameError;
use crate::job::name;
use crate::job::new_job::{DATA_LIMIT, DATA_MOST, EnqueueSettings, NewJob};
use crate::job::shard::ShardId;
use crate::store::{Release, Store};

/// The calls of an application for one schema: enqueue, receive, read, explain. Cheap to clone;
/// holds no connection. [`operator`](Self::operator) returns the calls that change things by hand.
///
/// The free functions ([`migrate`](crate::migrate()), [`enqueue`](crate::enqueue()), …) are those
/// of `Client::default()`, which uses the schema `seriatim`.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use seriatim::{Client, NewJob};
///
/// let jobs = Client::new("billing_jobs")?.data_limit(64 * 1024);
/// jobs.migrate(&pool).await?;
/// jobs.enqueue(&pool, NewJob::new("invoices", &7).group("customer-7")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) store: Arc<Store>,
    pub(crate) enqueue: EnqueueSettings,
    pub(crate) without_data: bool,
}

impl Default for Client {
    /// Returns a client for the schema `seriatim`, with data up to 1 MiB and wake-ups.
    fn default() -> Self {
        let enqueue = EnqueueSettings { data_limit: DATA_LIMIT, notify: true, layers: Vec::new() };
        let store = Store::default_schema();
        Self { store, enqueue, without_data: false }
    }
}

impl Client {
    /// Returns a client for the tables in `schema`, which holds nothing else: at most 50 bytes,
    /// without control characters. Each application in a database needs its own schema.
    ///
    /// # Errors
    /// [`NameError`] if the name cannot be used.
    pub fn new(schema: &str) -> Result<Self, NameError> {
        name::check_schema(schema)?;
        Ok(Self { store: Arc::new(Store::new(schema)), ..Self::default() })
    }

    /// Limits the data of a job, in bytes of JSON or raw bytes, and its result. Default 1 MiB; more
    /// than 256 MiB count as 256 MiB. It holds for enqueues through this client, and for the
    /// outputs of handlers of a processor that has this
    /// [`client`](crate::ProcessorBuilder::client). SQL functions, schedules, the follow-ups of
    /// batches and the results of acks keep to 1 MiB, unless this is less.
    pub fn data_limit(mut self, bytes: usize) -> Self {
        self.enqueue.data_limit = bytes.min(DATA_MOST);
        self
    }

    /// Sets whether an enqueue wakes idle workers by `NOTIFY`, so that a job does not wait for
    /// their poll (0.5 s by default). Default true; false for transactions that are to be prepared
    /// (`PREPARE TRANSACTION`), or if thousands of longer ones enqueue and commit per second.
    pub fn notify(mut self, wake: bool) -> Self {
        self.enqueue.notify = wake;
        self
    }

    /// Adds a layer: a function that every enqueue through this client calls with each job, before
    /// the job is checked. Layers run in the order in which they were added. So do those of
    /// [`ActiveJob::enqueue`](crate::ActiveJob::enqueue), if the processor has this
    /// [`client`](crate::ProcessorBuilder::client). The SQL function has none.
    ///
    /// It runs in the thread of the caller, before any SQL: it must not block, and its panic
    /// reaches the caller. A header that the producer has set stays if the layer adds headers by
    /// [`NewJob::header_if_none`].
    ///
    /// ```
    /// # let request_id = || String::from("r-1");
    /// use seriatim::Client;
    ///
    /// let jobs = Client::default()
    ///     .enqueue_layer(move |job| job.header_if_none("request-id", request_id()));
    /// ```
    pub fn enqueue_layer(mut self, layer: impl Fn(&mut NewJob) + Send + Sync + 'static) -> Self {
        self.enqueue.layers.push(Arc::new(layer));
        self
    }

    /// Sets whether statements are prepared under names, once for a connection. Default true. A
    /// [`Processor`](crate::Processor) finds out by itself what it needs.
    ///
    /// False is for connections through a transaction pooler that keeps no track of names
    /// (`PgBouncer` before 1.21). Calls in a transaction work there then, whatever other clients
    /// left behind. Calls outside of a transaction, on a pool, do not: the driver sends them in two
    /// parts, and each may meet another session.
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// use seriatim::{Client, NewJob};
    ///
    /// let jobs = Client::default().named_statements(false);
    /// let mut tx = pool.begin().await?;
    /// jobs.enqueue(&mut *tx, NewJob::new("invoices", &7).group("customer-7")).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn named_statements(mut self, names: bool) -> Self {
        self.store = Arc::new(self.store.for_another_pool(names));
        self
    }

    /// Returns a client that reads jobs without what they carry: their data is null, payload and
    /// result are `None`, and there are no headers. So an observer's role may call
    /// [`job`](Self::job), [`group_jobs`](Self::group_jobs) and
    /// [`jobs_by_reference`](Self::jobs_by_reference) (`docs/roles.sql`), and a list does not bring
    /// megabytes.
    pub fn without_data(&self) -> Self {
        Self { without_data: true, ..self.clone() }
    }

    /// Returns the name of the schema.
    pub fn schema(&self) -> &str {
        self.store.names().schema()
    }

    /// Creates the schema and its tables, or brings them up to date, in one transaction.
    ///
    /// Several processes may call it at once and at every start. A role that may create nothing can
    /// call it on a schema that is up to date. The application's own migrations are not touched:
    /// the history is in the schema's table `migration`.
    ///
    /// A newer schema is left as it is, and logged, if this version can run on it: the version
    /// before the schema's always can. `docs/guide/upgrading.md` has the order of a deploy.
    ///
    /// # Errors
    /// [`MigrateError::Newer`] if this version is too old for the schema;
    /// [`MigrateError::Different`] if a different build of the same version made it, or one of its
    /// functions was changed by hand; [`MigrateError::Distributed`] and
    /// [`MigrateError::CitusOption`] if Citus would not leave it to its node;
    /// [`MigrateError::Database`] otherwise.
    pub async fn migrate(&self, pool: &PgPool) -> Result<(), MigrateError> {
        self.store.migrate(&mut *self.connection(pool).await?).await
    }

    /// Calls [`migrate`](Self::migrate), and gives the schema its number among the servers that one
    /// program uses ([`Shards`](crate::shards::Shards)): the ids of its jobs have a range of their
    /// own from then on. To be called before the first job, and at every start. A schema that has
    /// given an id already is shard 0, also if the enqueue was rolled back; every other keeps the
    /// number that it has.
    ///
    /// Nothing is locked where there is nothing to do. Else it waits, 10 s at most, for open
    /// transactions that have enqueued the first jobs, and lets other enqueues pass meanwhile.
    ///
    /// # Errors
    /// As [`migrate`](Self::migrate), and [`MigrateError::OtherShard`] if it has another number.
    pub async fn migrate_shard(&self, pool: &PgPool, shard: ShardId) -> Result<(), MigrateError> {
        self.store.migrate_shard(&mut *self.connection(pool).await?, shard).await
    }

    /// Returns whether the schema has this number for good: it was set, or is shown by ids that
    /// were given. If not, [`migrate_shard`](Self::migrate_shard) sets it.
    ///
    /// # Errors
    /// [`MigrateError::OtherShard`] if it has another one; [`MigrateError::Database`].
    pub async fn is_shard(&self, pool: &PgPool, shard: ShardId) -> Result<bool, MigrateError> {
        self.store.has_shard(&mut *self.connection(pool).await?, shard).await
    }

    /// Returns the number of the schema among the servers that one program uses. One that was given
    /// none is shard 0. `None` if there are no tables.
    ///
    /// # Errors
    /// [`MigrateError::Database`].
    pub async fn shard(&self, pool: &PgPool) -> Result<Option<ShardId>, MigrateError> {
        self.store.schema_shard(&mut *self.connection(pool).await?).await
    }

    /// Returns whether [`migrate`](Self::migrate) would find nothing to do.
    ///
    /// # Errors
    /// As [`migrate`](Self::migrate).
    pub async fn is_migrated(&self, pool: &PgPool) -> Result<bool, MigrateError> {
        self.store.is_migrated(&mut *self.connection(pool).await?).await
    }

    /// Returns what [`migrate`](Self::migrate) would do on this database, as a script of SQL for a
    /// role that has the rights. `None` if there is nothing to do.
    ///
    /// # Errors
    /// As [`migrate`](Self::migrate).
    pub async fn migration_sql(&self, pool: &PgPool) -> Result<Option<String>, MigrateError> {
        self.store.migration_sql(&mut *self.connection(pool).await?).await
    }

    async fn connection(&self, pool: &PgPool) -> Result<PoolConnection<Postgres>, MigrateError> {
        // Made first: the server may end a session that is idle meanwhile.
        Release::this();
        let schema = || self.schema().to_owned();
        let conn = pool.acquire().await;
        conn.map_err(|source| MigrateError::Database { schema: schema(), step: None, source })
    }
}

/// Calls [`Client::migrate`] for the schema `seriatim`.
pub async fn migrate(pool: &PgPool) -> Result<(), MigrateError> {
    Client::default().migrate(pool).await
}
