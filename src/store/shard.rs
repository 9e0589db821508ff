//! The number of a schema among those of several servers: the range of the ids of its jobs.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::error::MigrateError;
use crate::job::shard::ShardId;
use crate::store::statement::statements;
use crate::store::store::Store;

/// How often the sequence is tried to be locked, each time for 0.1 s. Each open transaction that
/// has enqueued holds it, and enqueues wait behind a lock that waits.
pub(crate) const TRIES: usize = 50;
/// Time between two tries, in which producers go on.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

statements! {
    /// By its name: a role without rights on the schema may ask too.
    IDS = |names| names.sql(
        "select s.seqmin, s.seqmax, pg_catalog.pg_sequence_last_value(s.seqrelid) is not null
        from pg_catalog.pg_sequence s
        join pg_catalog.pg_class c on c.oid = s.seqrelid
        join pg_catalog.pg_namespace n on n.oid = c.relnamespace
        where n.nspname = $1 and c.relname = $2",
    );
}

/// The number of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbered {
    As(ShardId),
    /// It has given ids: those of shard 0.
    ByItsIds,
    Not,
    /// There are no tables.
    Missing,
}

impl Numbered {
    /// A schema that was given none has the ids of shard 0.
    fn shard(self) -> Option<ShardId> {
        match self {
            Self::As(shard) => Some(shard),
            Self::ByItsIds | Self::Not => Some(ShardId::default()),
            Self::Missing => None,
        }
    }
}

impl Store {
    /// Returns the number of the schema; `None` if there are no tables.
    pub(crate) async fn shard(
        &self,
        conn: &mut PgConnection,
    ) -> Result<Option<ShardId>, MigrateError> {
        let numbered = self.numbered(conn).await.map_err(|source| self.failed(source))?;
        Ok(numbered.shard())
    }

    async fn numbered(&self, conn: &mut PgConnection) -> Result<Numbered, sqlx::Error> {
        let ids = self.query(&IDS).bind(self.names().schema()).bind("job_id_seq");
        let Some(row) = ids.fetch_optional(conn).await? else {
            return Ok(Numbered::Missing);
        };
        let (first, last): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let own = ShardId::of_job(first).filter(|shard| shard.ids() == (first, last));
        Ok(match own {
            Some(shard) => Numbered::As(shard),
            None if row.try_get(2)? => Numbered::ByItsIds,
            None => Numbered::Not,
        })
    }

    /// Returns an error if the schema is there and not this shard.
    pub(crate) async fn check_shard(
        &self,
        conn: &mut PgConnection,
        wanted: ShardId,
    ) -> Result<(), MigrateError> {
        match self.shard(conn).await? {
            Some(found) if found != wanted => Err(self.other_shard(found, wanted)),
            _ => Ok(()),
        }
    }

    /// Returns whether the schema has this number for good; an error if it has another one.
    pub(crate) async fn is_shard(
        &self,
        conn: &mut PgConnection,
        wanted: ShardId,
    ) -> Result<bool, MigrateError> {
        let found = self.numbered(conn).await.map_err(|source| self.failed(source))?;
        match (found, found.shard()) {
            (Numbered::Not | Numbered::Missing, _) | (_, None) => Ok(false),
            (_, Some(shard)) if shard == wanted => Ok(true),
            (_, Some(shard)) => Err(self.other_shard(shard, wanted)),
        }
    }

    /// Gives the schema its number, in a transaction that locks migrations out and waits for locks
    /// for a moment only.
    pub(crate) async fn set_shard(
        &self,
        conn: &mut PgConnection,
        shard: ShardId,
    ) -> Result<(), MigrateError> {
        let failed = |source| self.failed(source);
        let (first, last) = shard.ids();
        let sequence = self.names().quoted("job_id_seq");
        // An id that is drawn between a look and the change would be of another shard. This changes
        // nothing, and keeps others from drawing.
        let lock = AssertSqlSafe(format!("alter sequence {sequence} no cycle"));
        sqlx::query(lock).persistent(false).execute(&mut *conn).await.map_err(failed)?;
        if self.is_shard(&mut *conn, shard).await? {
            return Ok(());
        }
        let alter = AssertSqlSafe(format!(
            "alter sequence {sequence} minvalue {first} maxvalue {last} start {first} restart"
        ));
        sqlx::query(alter).persistent(false).execute(conn).await.map_err(failed)?;
        Ok(())
    }

    fn other_shard(&self, found: ShardId, wanted: ShardId) -> MigrateError {
        MigrateError::OtherShard { schema: self.names().schema().to_owned(), found, wanted }
    }
}
