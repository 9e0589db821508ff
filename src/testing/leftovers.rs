//! Databases that tests leave on a server that outlives them: which process they belong to, and
//! which may be dropped.
//!
//! Every database's name carries its process's key. The process holds an advisory lock on that key
//! as long as it lives. So a process that gets the lock knows that the key's databases are left
//! over.

use std::collections::BTreeSet;
use std::future::pending;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::oneshot;

use super::ServerError;

/// The prefix of the names of all databases of this module.
const PREFIX: &str = "seriatim_test_";

/// The first half of the advisory locks' keys ("sert"), to stay out of the way of other locks.
const LOCKS: i32 = 0x7365_7274;

/// The part that all databases of a process have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key(i32);

impl Key {
    pub(super) fn random() -> Self {
        Self(fastrand::i32(..))
    }

    pub(super) fn name(self, suffix: &str) -> String {
        format!("{PREFIX}{:08x}_{suffix}", self.0)
    }

    fn of_name(name: &str) -> Option<Self> {
        let (key, _) = name.strip_prefix(PREFIX)?.split_once('_')?;
        u32::from_str_radix(key, 16).ok().map(|key| Self(key.cast_signed()))
    }
}

/// Holds the key's lock until the process ends.
///
/// On a thread with a runtime of its own: a connection dies with its runtime, and each test has its
/// own.
pub(super) async fn hold(url: String, key: Key) -> Result<(), ServerError> {
    let (tell, told) = oneshot::channel();
    let thread = move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(tell.send(Err(ServerError::io("start a runtime")(error)))),
        };
        runtime.block_on(async {
            let locked = async {
                let mut connection = PgConnection::connect(&url).await?;
                sqlx::query("SELECT pg_advisory_lock($1, $2)")
                    .bind(LOCKS)
                    .bind(key.0)
                    .execute(&mut connection)
                    .await?;
                Ok(connection)
            };
            match locked.await {
                Ok(_connection) => {
                    let _ = tell.send(Ok(()));
                    pending::<()>().await;
                }
                Err(error) => {
                    let _ = tell.send(Err(ServerError::database("connect to DATABASE_URL")(error)));
                }
            }
        });
    };
    std::thread::Builder::new()
        .name("seriatim-testing".into())
        .spawn(thread)
        .map_err(ServerError::io("start a thread"))?;
    told.await.unwrap_or_else(|_| {
        Err(ServerError::database("connect to DATABASE_URL")(sqlx::Error::WorkerCrashed))
    })
}

/// Drops the databases of processes that have ended.
pub(super) async fn remove(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let names: Vec<String> =
        sqlx::query_scalar("SELECT datname FROM pg_database WHERE starts_with(datname, $1)")
            .bind(PREFIX)
            .fetch_all(&mut *connection)
            .await?;
    let keys: BTreeSet<i32> =
        names.iter().filter_map(|name| Key::of_name(name)).map(|key| key.0).collect();
    for key in keys {
        let ended: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1, $2)")
            .bind(LOCKS)
            .bind(key)
            .fetch_one(&mut *connection)
            .await?;
        if !ended {
            continue;
        }
        for name in names.iter().filter(|name| Key::of_name(name).is_some_and(|its| its.0 == key)) {
            // Not WITH (FORCE): a session that is there after all needs the database.
            let drop = format!("DROP DATABASE IF EXISTS {name}");
            if let Err(error) = sqlx::query(AssertSqlSafe(drop)).execute(&mut *connection).await {
                tracing::debug!(name, %error, "a left-over database stays");
            }
        }
        sqlx::query("SELECT pg_advisory_unlock($1, $2)")
            .bind(LOCKS)
            .bind(key)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_key() {
        for key in [0, 1, -1, i32::MIN, i32::MAX] {
            let of_name = Key::of_name(&Key(key).name("template"));
            assert_eq!(of_name.map(|key| key.0), Some(key));
        }
        assert!(Key::of_name("seriatim_test_mine").is_none());
        assert!(Key::of_name("my_database").is_none());
    }
}
