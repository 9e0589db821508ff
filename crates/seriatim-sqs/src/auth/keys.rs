//! Keys: who may sign requests, and in which role the database is asked for them.

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, PgPool, Row};
use uuid::Uuid;

use crate::database::schema_of;

/// The keys of a schema, in its table `sqs_key`.
#[derive(Debug, Clone)]
pub struct Keys {
    pool: PgPool,
    schema: String,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Key {
    /// The access key id in a client's configuration.
    pub access_key: String,
    /// The role of `PostgreSQL` that the database is asked in; `None`: that of the server.
    pub role: Option<String>,
    /// When it was made, by the database's clock.
    pub created_at: DateTime<Utc>,
}

/// A key that was just made.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewKey {
    /// The access key id in a client's configuration.
    pub access_key: String,
    /// The secret access key in a client's configuration.
    pub secret: String,
}

impl std::fmt::Debug for NewKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewKey").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// Why a key was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// No role of `PostgreSQL` has this name.
    #[error("there is no role {role:?}: create it, and grant it one of docs/roles.sql")]
    NoRole {
        /// The name.
        role: String,
    },
    /// The database refused.
    #[error("the keys cannot be read or changed: {0}")]
    Database(#[from] sqlx::Error),
}

impl Keys {
    /// Returns the keys of the schema of this client.
    pub fn new(pool: &PgPool, client: &seriatim::Client) -> Self {
        Self { pool: pool.clone(), schema: schema_of(client) }
    }

    /// Makes a key of 244 random bits. With a role, the database is asked in it for the owner of
    /// the key: the server's role must be a member of it.
    ///
    /// # Errors
    /// [`KeyError::NoRole`]; [`KeyError::Database`].
    pub async fn add(&self, role: Option<&str>) -> Result<NewKey, KeyError> {
        if let Some(role) = role {
            let known = "select exists (select from pg_catalog.pg_roles where rolname = $1)";
            let known: bool = sqlx::query_scalar(known).bind(role).fetch_one(&self.pool).await?;
            if !known {
                return Err(KeyError::NoRole { role: role.to_owned() });
            }
        }
        let random = || Uuid::new_v4().simple().to_string();
        let access_key = format!("SQS{}", random()[..17].to_ascii_uppercase());
        let key = NewKey { access_key, secret: random() + &random() };
        let sql = format!(
            "insert into {}.sqs_key (access_key, secret, role) values ($1, $2, $3)",
            self.schema
        );
        let insert = sqlx::query(AssertSqlSafe(sql)).bind(&key.access_key).bind(&key.secret);
        insert.bind(role).execute(&self.pool).await?;
        Ok(key)
    }

    /// Returns the keys, the oldest first; 1,000 at most.
    ///
    /// # Errors
    /// [`KeyError::Database`].
    pub async fn list(&self) -> Result<Vec<Key>, KeyError> {
        let sql = format!(
            "select access_key, role, created_at from {}.sqs_key order by created_at, access_key \
             limit 1000",
            self.schema
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&self.pool).await?;
        let keys = rows.iter().map(|row| {
            Ok(Key {
                access_key: row.try_get(0)?,
                role: row.try_get(1)?,
                created_at: row.try_get(2)?,
            })
        });
        keys.collect()
    }

    /// Removes a key: requests that are signed with it are refused from 0.5 s later on. Returns
    /// whether there was one.
    ///
    /// # Errors
    /// [`KeyError::Database`].
    pub async fn remove(&self, access_key: &str) -> Result<bool, KeyError> {
        let sql = format!("delete from {}.sqs_key where access_key = $1", self.schema);
        let delete = sqlx::query(AssertSqlSafe(sql)).bind(access_key);
        Ok(delete.execute(&self.pool).await?.rows_affected() > 0)
    }
}
