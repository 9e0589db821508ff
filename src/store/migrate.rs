//! The schema, brought up to date by sqlx's migrator under a lock and in a transaction of its own.

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::PgTransactionManager;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqlSafeStr};
use sqlx_core::transaction::TransactionManager;

use crate::error::MigrateError;
use crate::store::{Names, Store};

/// The migrations, oldest first: (version, description, SQL).
const MIGRATIONS: [(i64, &str, &str); 10] = [
    (1, "ordered groups", include_str!("../../migrations/0001_ordered_groups.sql")),
    (2, "leases and queues", include_str!("../../migrations/0002_leases_and_queues.sql")),
    (3, "enqueue function", include_str!("../../migrations/0003_enqueue_function.sql")),
    (4, "pull", include_str!("../../migrations/0004_pull.sql")),
    (5, "receive", include_str!("../../migrations/0005_receive.sql")),
    (6, "ack, nack, extend", include_str!("../../migrations/0006_ack_nack_extend.sql")),
    (7, "round trips", include_str!("../../migrations/0007_round_trips.sql")),
    (8, "claim", include_str!("../../migrations/0008_claim.sql")),
    (9, "doubts", include_str!("../../migrations/0009_doubts.sql")),
    (10, "presence look", include_str!("../../migrations/0010_presence_look.sql")),
];

/// The newest version that this crate knows.
pub(crate) const LATEST: i64 = MIGRATIONS[MIGRATIONS.len() - 1].0;

/// However long another process migrates or an index takes to build, this waits.
const BEGIN: &str = "begin isolation level read committed read write\
    ; set local statement_timeout = 0; set local lock_timeout = 0\
    ; set local idle_in_transaction_session_timeout = 0; set local client_min_messages = warning";

fn migrator(table: &str) -> Migrator {
    let migrations = MIGRATIONS.map(|(version, description, sql)| {
        Migration::new(
            version,
            description.into(),
            MigrationType::Simple,
            sql.into_sql_str(),
            false,
        )
    });
    let mut migrator = Migrator::with_migrations(migrations.to_vec());
    migrator.dangerous_set_table_name(table.to_owned());
    // sqlx's own lock is one per database, shared with the host's migrations, and stays behind after an error.
    migrator.set_locking(false);
    migrator
}

impl Store {
    /// Applies what is missing. All in one transaction: it changes everything or nothing.
    pub(crate) async fn migrate(&self, conn: &mut PgConnection) -> Result<(), MigrateError> {
        let database =
            |source| MigrateError::Database { schema: self.names.schema().to_owned(), source };
        match self.applied_here(conn).await.map_err(database)? {
            // Nothing to do, and no right to create anything is needed.
            Some(LATEST) => return Ok(()),
            Some(found) if found > LATEST => {
                return Err(MigrateError::Newer {
                    schema: self.names.schema().to_owned(),
                    found,
                    known: LATEST,
                });
            }
            _ => {}
        }
        PgTransactionManager::begin(conn, Some(BEGIN.into_sql_str())).await.map_err(database)?;
        match self.migrate_in_transaction(conn).await {
            Ok(()) => PgTransactionManager::commit(conn).await.map_err(database),
            Err(error) => {
                if let Err(rollback) = PgTransactionManager::rollback(conn).await {
                    tracing::warn!("could not roll back a failed migration: {rollback}");
                }
                Err(error)
            }
        }
    }

    /// In a transaction, which a transaction pooler gives to one session.
    async fn applied_here(&self, conn: &mut PgConnection) -> Result<Option<i64>, sqlx::Error> {
        let begin = "begin isolation level read committed read only";
        PgTransactionManager::begin(conn, Some(begin.into_sql_str())).await?;
        let applied = self.applied(conn).await;
        PgTransactionManager::rollback(conn).await?;
        applied
    }

    /// Leaves no statement's name in the session, and none in the connection's cache: the migrator's have names, whatever
    /// others have left there.
    async fn forget_names(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        if self.is_nameless() {
            conn.clear_cached_statements().await?;
            sqlx::raw_sql("deallocate all").execute(conn).await?;
        }
        Ok(())
    }

    async fn migrate_in_transaction(&self, conn: &mut PgConnection) -> Result<(), MigrateError> {
        let schema = || self.names.schema().to_owned();
        let database = |source| MigrateError::Database { schema: schema(), source };
        let quoted = self.quoted_schema();
        let lock =
            sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, 0))").persistent(false);
        lock.bind(format!("seriatim migrate {quoted}"))
            .execute(&mut *conn)
            .await
            .map_err(database)?;
        let exists =
            sqlx::query("select to_regnamespace($1) is not null").persistent(false).bind(&quoted);
        let exists: bool =
            exists.fetch_one(&mut *conn).await.and_then(|row| row.try_get(0)).map_err(database)?;
        let mut setup = format!("set local search_path = {quoted}");
        if !exists {
            setup = format!("create schema {quoted}; {setup}");
        }
        sqlx::raw_sql(AssertSqlSafe(setup)).execute(&mut *conn).await.map_err(database)?;
        let table = self.names.quoted("migration");
        self.forget_names(conn).await.map_err(database)?;
        let migrated = migrator(&table).run_direct(None, &mut *conn, false).await;
        migrated.map_err(|error| match error {
            sqlx::migrate::MigrateError::VersionMissing(found) => {
                MigrateError::Newer { schema: schema(), found, known: LATEST }
            }
            sqlx::migrate::MigrateError::VersionMismatch(version) => {
                MigrateError::Different { schema: schema(), version }
            }
            sqlx::migrate::MigrateError::Execute(source)
            | sqlx::migrate::MigrateError::ExecuteMigration(source, _) => database(source),
            other => database(sqlx::Error::Migrate(Box::new(other))),
        })?;
        self.forget_names(conn).await.map_err(database)
    }

    /// The version of the schema in the database; none: not there, or not readable.
    pub(crate) async fn applied(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Option<i64>, sqlx::Error> {
        let table = self.names.quoted("migration");
        let there =
            sqlx::query("select to_regclass($1) is not null").persistent(false).bind(&table);
        if !there.fetch_one(&mut *conn).await?.try_get::<bool, _>(0)? {
            return Ok(None);
        }
        let version = format!("select max(version) from {table}");
        sqlx::query(AssertSqlSafe(version)).persistent(false).fetch_one(conn).await?.try_get(0)
    }

    fn quoted_schema(&self) -> String {
        Names::quote(self.names.schema())
    }
}
