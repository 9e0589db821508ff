//! Several servers that one program uses together.

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use sqlx::PgPool;
use tokio::time::timeout;

use crate::job::shard::{ShardError, ShardId, place_of};

/// Several servers that one program uses together, each by its number and its pool. Cheap to clone.
#[derive(Clone)]
pub struct Shards {
    /// In the order of their numbers. Never empty.
    servers: Arc<[(ShardId, PgPool)]>,
}

impl Shards {
    /// Returns the servers with these numbers. The order does not matter.
    ///
    /// # Errors
    /// [`ShardError`] if there is none, or two have one number or one pool.
    pub fn new(servers: impl IntoIterator<Item = (ShardId, PgPool)>) -> Result<Self, ShardError> {
        let mut servers: Vec<_> = servers.into_iter().collect();
        servers.sort_by_key(|(shard, _)| *shard);
        if servers.is_empty() {
            return Err(ShardError::NoServer);
        }
        for (place, (shard, pool)) in servers.iter().enumerate() {
            for (earlier, other) in servers.iter().take(place) {
                if earlier == shard {
                    return Err(ShardError::Twice { shard: *shard });
                }
                // A pool's options are in what its clones share.
                if ptr::eq(other.options(), pool.options()) {
                    return Err(ShardError::SamePool { first: *earlier, second: *shard });
                }
            }
        }
        Ok(Self { servers: servers.into() })
    }

    /// Returns each server, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (ShardId, &PgPool)> {
        self.servers.iter().map(|(shard, pool)| (*shard, pool))
    }

    /// Returns the pool of a server; `None` if it is none of these.
    pub fn pool(&self, shard: ShardId) -> Option<&PgPool> {
        self.iter().find(|(number, _)| *number == shard).map(|(_, pool)| pool)
    }

    /// Returns the server that has given a job its id, which names its server; `None` if it is none
    /// of these.
    pub fn of_job(&self, id: i64) -> Option<(ShardId, &PgPool)> {
        let shard = ShardId::of_job(id)?;
        Some((shard, self.pool(shard)?))
    }

    /// Returns the server for a group whose jobs have no data beside them, by a hash of the group's
    /// id. It is the same in every program and version, as long as the number of servers is.
    ///
    /// One server more takes its groups from all others, and moves no group between those: of `n`
    /// groups `n / servers` move to it. A group must never be on two servers, so its jobs must have
    /// ended on the old one before the first is enqueued on the new one.
    pub fn of_group(&self, group: &str) -> (ShardId, &PgPool) {
        let (shard, pool) = &self.servers[place_of(group, self.servers.len())];
        (*shard, pool)
    }

    /// Asks all servers at once. Returns each answer, in the order of their numbers: a server that
    /// fails or gives no answer within `limit` has an error, and the others their answers.
    ///
    /// ```no_run
    /// # async fn example(shards: &seriatim::shards::Shards) {
    /// use std::time::Duration;
    /// use seriatim::Client;
    ///
    /// let client = Client::default();
    /// let queues = shards.ask(Duration::from_secs(5), async |_, pool| client.queues(pool).await);
    /// for (shard, queues) in queues.await {
    ///     match queues {
    ///         Ok(queues) => println!("shard {shard}: {} queues", queues.len()),
    ///         Err(error) => println!("shard {shard} gives no answer: {error}"),
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped, so are the questions.
    pub async fn ask<T, E: From<sqlx::Error>>(
        &self,
        limit: Duration,
        question: impl AsyncFn(ShardId, &PgPool) -> Result<T, E>,
    ) -> Vec<(ShardId, Result<T, E>)> {
        let question = &question;
        let answers = self.iter().map(|(shard, pool)| async move {
            let answer = timeout(limit, question(shard, pool)).await;
            (shard, answer.unwrap_or_else(|_| Err(sqlx::Error::PoolTimedOut.into())))
        });
        join_all(answers).await
    }
}

impl fmt::Debug for Shards {
    /// Shows the numbers: the options of a pool have its password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.iter().map(|(shard, _)| shard.number()).collect();
        f.debug_tuple("Shards").field(&numbers).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> PgPool {
        PgPool::connect_lazy("postgres://localhost/none").unwrap()
    }

    fn shard(number: u16) -> ShardId {
        ShardId::new(number).unwrap()
    }

    #[tokio::test]
    async fn each_server_has_a_number_and_a_pool_of_its_own() {
        let one = pool();
        assert_eq!(Shards::new([]).unwrap_err(), ShardError::NoServer);
        let twice = Shards::new([(shard(1), pool()), (shard(1), pool())]);
        assert_eq!(twice.unwrap_err(), ShardError::Twice { shard: shard(1) });
        let same = Shards::new([(shard(4), one.clone()), (shard(2), one.clone())]);
        let error = ShardError::SamePool { first: shard(2), second: shard(4) };
        assert_eq!(same.unwrap_err(), error);
        let shards = Shards::new([(shard(4), one), (shard(2), pool())]).unwrap();
        assert_eq!(format!("{shards:?}"), "Shards([2, 4])");
        assert_eq!(shards.of_job(4 << 44).map(|(shard, _)| shard.number()), Some(4));
        assert!(shards.of_job(7).is_none() && shards.of_job(-1).is_none());
    }

    #[tokio::test]
    async fn a_server_without_an_answer_is_named_beside_the_answers_of_others() {
        let shards = Shards::new([0, 1, 2].map(|n| (shard(n), pool()))).unwrap();
        let answers =
            shards.ask(Duration::from_millis(50), async |shard, _| match shard.number() {
                0 => std::future::pending().await,
                1 => Err(sqlx::Error::RowNotFound),
                number => Ok(number),
            });
        let answers = answers.await;
        assert!(matches!(answers[0].1, Err(sqlx::Error::PoolTimedOut)));
        assert!(matches!(answers[1].1, Err(sqlx::Error::RowNotFound)));
        assert!(matches!(answers[2], (number, Ok(2)) if number == shard(2)));
    }
}
