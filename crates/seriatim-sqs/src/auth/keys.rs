//! Keys: who may sign requests, and in which role the database is asked for them.

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, PgPool, Row};
use uuid::Uuid;

use crate::database::schema_of;
use crate::patterns::Patterns;

/// The keys of a schema, in its table `sqs_key`. Each change of one is recorded in the table
/// `operation`, in the statement of the change: who, why, the user of the session, and the key with
/// its rights.
#[derive(Debug, Clone)]
pub struct Keys {
    pool: PgPool,
    schema: String,
    actor: Option<String>,
    reason: Option<String>,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Key {
    /// The access key id in a client's configuration.
    pub access_key: String,
    /// The role of `PostgreSQL` that the database is asked in; `None`: that of the server.
    pub role: Option<String>,
    /// Patterns of the names of the queues that it is for, where `*` is any text; `None`: all.
    pub queues: Option<Vec<String>>,
    /// When it was made, by the database's clock.
    pub created_at: DateTime<Utc>,
    /// Since when it is refused, by the database's clock; `None`: it is not disabled.
    pub disabled_at: Option<DateTime<Utc>>,
}

/// A key with its secret, which nobody can read later on.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewKey {
    /// The access key id in a client's configuration.
    pub access_key: String,
    /// The secret access key in a client's configuration.
    pub secret: String,
}

impl NewKey {
    /// Returns a key of 244 random bits. It counts where it is [stored](Keys::store).
    pub fn random() -> Self {
        let random = || Uuid::new_v4().simple().to_string();
        let access_key = format!("SQS{}", random()[..17].to_ascii_uppercase());
        Self { access_key, secret: random() + &random() }
    }
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
    /// The queues that a key shall be for cannot be used.
    #[error("{mistake}")]
    Queues {
        /// The mistake, and what may be given.
        mistake: String,
    },
    /// The database refused.
    #[error("the keys cannot be read or changed: {0}")]
    Database(#[from] sqlx::Error),
}

impl Keys {
    /// Returns the keys of the schema of this client.
    pub fn new(pool: &PgPool, client: &seriatim::Client) -> Self {
        Self { pool: pool.clone(), schema: schema_of(client), actor: None, reason: None }
    }

    /// Records changes with this actor, the name of a person or a program, and the reason why it
    /// acts, or `None`. Default: the user of the session, and no reason.
    pub fn acting<'a>(mut self, actor: &str, reason: impl Into<Option<&'a str>>) -> Self {
        self.actor = Some(actor.to_owned());
        self.reason = reason.into().map(str::to_owned);
        self
    }

    /// Makes a key of 244 random bits, for all queues. With a role, the database is asked in it for
    /// the owner of the key: the server's role must be a member of it.
    ///
    /// # Errors
    /// [`KeyError::NoRole`]; [`KeyError::Database`].
    pub async fn add(&self, role: Option<&str>) -> Result<NewKey, KeyError> {
        let key = NewKey::random();
        self.insert(&key, role, None).await.map(|()| key)
    }

    /// Makes a key as [`add`](Self::add) does, for some queues: 1 to 50 patterns of names, each of
    /// 1 to 80 letters, digits, `_`, `-`, `.` and `*`, which is any text. A request that names
    /// another queue is refused, whether or not there is such a queue.
    ///
    /// # Errors
    /// [`KeyError::Queues`], [`KeyError::NoRole`]; [`KeyError::Database`].
    pub async fn add_for(
        &self,
        role: Option<&str>,
        queues: &[impl AsRef<str>],
    ) -> Result<NewKey, KeyError> {
        let key = NewKey::random();
        self.store(&key, role, Some(queues)).await.map(|()| key)
    }

    /// Stores a key, for all queues or for some, as [`add`](Self::add) and
    /// [`add_for`](Self::add_for) do. For several servers, each of which needs it.
    ///
    /// # Errors
    /// As [`add_for`](Self::add_for). [`KeyError::Database`] also if there is a key of this id.
    pub async fn store(
        &self,
        key: &NewKey,
        role: Option<&str>,
        queues: Option<&[impl AsRef<str>]>,
    ) -> Result<(), KeyError> {
        let queues = queues.map(Patterns::read).transpose();
        let queues = queues.map_err(|mistake| KeyError::Queues { mistake })?;
        self.insert(key, role, queues.as_ref().map(Patterns::texts)).await
    }

    async fn insert(
        &self,
        key: &NewKey,
        role: Option<&str>,
        queues: Option<&[String]>,
    ) -> Result<(), KeyError> {
        if let Some(role) = role {
            let known = "select exists (select from pg_catalog.pg_roles where rolname = $1)";
            let known: bool = sqlx::query_scalar(known).bind(role).fetch_one(&self.pool).await?;
            if !known {
                return Err(KeyError::NoRole { role: role.to_owned() });
            }
        }
        // The secret of a key with limits is where programs that know of none do not read it.
        let sql = self.recorded(
            "insert into {schema}.sqs_key (access_key, secret, guarded_secret, role, queues)
             select $1, case when $6::text[] is null then $4 end,
               case when $6 is not null then $4 end, $5, $6",
            "add_sqs_key",
        );
        let insert = sqlx::query(sql).bind(&key.access_key).bind(&self.actor).bind(&self.reason);
        insert.bind(&key.secret).bind(role).bind(queues).execute(&self.pool).await?;
        Ok(())
    }

    /// Returns the keys, the oldest first; 1,000 at most.
    ///
    /// # Errors
    /// [`KeyError::Database`].
    pub async fn list(&self) -> Result<Vec<Key>, KeyError> {
        let sql = format!(
            "select access_key, role, queues, created_at, disabled_at from {}.sqs_key \
             order by created_at, access_key limit 1000",
            self.schema
        );
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&self.pool).await?;
        let keys = rows.iter().map(|row| {
            Ok(Key {
                access_key: row.try_get(0)?,
                role: row.try_get(1)?,
                queues: row.try_get(2)?,
                created_at: row.try_get(3)?,
                disabled_at: row.try_get(4)?,
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
        let delete = "delete from {schema}.sqs_key k where k.access_key = $1";
        self.change(access_key, delete, "remove_sqs_key").await
    }

    /// Disables a key until it is [enabled](Self::enable): requests that are signed with it are
    /// refused from 0.5 s later on, as those of a key that was removed. Returns whether there was
    /// one that was not disabled.
    ///
    /// # Errors
    /// [`KeyError::Database`].
    pub async fn disable(&self, access_key: &str) -> Result<bool, KeyError> {
        let disable = "update {schema}.sqs_key k set disabled_at = clock_timestamp(),
               guarded_secret = coalesce(k.secret, k.guarded_secret), secret = null
             where k.access_key = $1 and k.disabled_at is null";
        self.change(access_key, disable, "disable_sqs_key").await
    }

    /// Ends what [`disable`](Self::disable) began, from 0.5 s later on. Returns whether there was a
    /// key that was disabled.
    ///
    /// # Errors
    /// [`KeyError::Database`].
    pub async fn enable(&self, access_key: &str) -> Result<bool, KeyError> {
        let enable = "update {schema}.sqs_key k set disabled_at = null,
               secret = case when k.queues is null then k.guarded_secret end,
               guarded_secret = case when k.queues is not null then k.guarded_secret end
             where k.access_key = $1 and k.disabled_at is not null";
        self.change(access_key, enable, "enable_sqs_key").await
    }

    /// Returns whether the change found the key.
    async fn change(&self, access_key: &str, change: &str, action: &str) -> Result<bool, KeyError> {
        let change = sqlx::query(self.recorded(change, action)).bind(access_key);
        let change = change.bind(&self.actor).bind(&self.reason);
        Ok(change.execute(&self.pool).await?.rows_affected() > 0)
    }

    /// Returns a statement that changes the key `$1`, and records it: `$2` is who acts, `$3` why.
    fn recorded(&self, change: &str, action: &str) -> AssertSqlSafe<String> {
        let sql = format!(
            "with changed as ({change} returning access_key, role, queues)
             insert into {{schema}}.operation (actor, action, reason, affected, sqs_key)
             select coalesce($2, session_user::text), '{action}', $3, 1,
               c.access_key || coalesce(', role ' || c.role, '')
                 || coalesce(', queues ' || array_to_string(c.queues, ','), '')
             from changed c"
        );
        AssertSqlSafe(sql.replace("{schema}", &self.schema))
    }
}
