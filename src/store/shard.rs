//! The number of a schema among those of several servers: the range of the ids of its jobs.

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::error::MigrateError;
use crate::job::shard::ShardId;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    IDS = |names| {
        let sequence = names.quoted("job_id_seq").replace('\'', "''");
        format!(
            "select seqmin, seqmax from pg_catalog.pg_sequence where seqrelid = '{sequence}'::regclass"
        )
    };

    LAST_ID = |names| names.sql("select last_value, is_called from {job_id_seq}");
}

impl Store {
    /// Returns the number of the schema. One that was given none has the ids of shard 0.
    pub(crate) async fn shard(&self, conn: &mut PgConnection) -> Result<ShardId, sqlx::Error> {
        let row = self.query(&IDS).fetch_one(conn).await?;
        let start: i64 = row.try_get("seqmin")?;
        ShardId::of_job(start).ok_or_else(|| {
            let error = format!("the ids of its jobs begin at {start}, as those of no shard do");
            sqlx::Error::Protocol(error)
        })
    }

    /// Returns an error if the schema is not this shard.
    pub(crate) async fn check_shard(
        &self,
        conn: &mut PgConnection,
        wanted: ShardId,
    ) -> Result<(), MigrateError> {
        let found = self.shard(conn).await.map_err(|source| self.failed(source))?;
        if found == wanted { Ok(()) } else { Err(self.other_shard(found, wanted)) }
    }

    /// Gives the schema its number, in a transaction in which migrations are locked out.
    pub(crate) async fn set_shard(
        &self,
        conn: &mut PgConnection,
        shard: ShardId,
    ) -> Result<(), MigrateError> {
        let failed = |source| self.failed(source);
        let row = self.query(&IDS).fetch_one(&mut *conn).await.map_err(failed)?;
        let bounds =
            |row: &sqlx::postgres::PgRow| Ok((row.try_get("seqmin")?, row.try_get("seqmax")?));
        let (first, last) = bounds(&row).map_err(failed)?;
        if (first, last) == shard.ids() {
            return Ok(());
        }
        let found = self.shard(&mut *conn).await.map_err(failed)?;
        let row = self.query(&LAST_ID).fetch_one(&mut *conn).await.map_err(failed)?;
        let drawn: bool = row.try_get("is_called").map_err(failed)?;
        // A range that was set is not changed: other programs know the server by it.
        let unnumbered = last == i64::MAX;
        if found != shard && (drawn || !unnumbered) {
            return Err(self.other_shard(found, shard));
        }
        let (first, last) = shard.ids();
        let restart = if drawn { String::new() } else { format!(" start {first} restart") };
        let alter = format!(
            "alter sequence {} minvalue {first} maxvalue {last}{restart}",
            self.names().quoted("job_id_seq")
        );
        sqlx::query(AssertSqlSafe(alter)).persistent(false).execute(conn).await.map_err(failed)?;
        Ok(())
    }

    fn other_shard(&self, found: ShardId, wanted: ShardId) -> MigrateError {
        MigrateError::OtherShard { schema: self.names().schema().to_owned(), found, wanted }
    }
}
