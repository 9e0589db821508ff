//! Several servers that one program uses together, each with a schema of its own.
//!
//! Promises hold per group, and a group is on one server: nothing has to cross servers. So each
//! server has the jobs of its groups beside their data, and [`Shards`] makes the servers one for
//! people. [`Processor::over`](crate::Processor::over) works on all of them. A producer uses the
//! pool of the server that its data is on; for jobs without data beside them,
//! [`Shards::of_group`] chooses one.
//!
//! Each server has a number ([`ShardId`]), which the ids of its jobs contain:
//! [`Client::migrate_shard`](crate::Client::migrate_shard) sets it. The guide's page on servers has
//! a new server, a change of the number of servers, and moving a queue.
//!
//! ```no_run
//! # use seriatim::{ActiveJob, JobError, JobHandler, async_trait};
//! # struct Post;
//! # #[async_trait]
//! # impl JobHandler for Post {
//! #     type Data = u32; type Output = (); type Error = JobError;
//! #     async fn handle(&self, _: &mut ActiveJob, _: u32) -> Result<(), JobError> { Ok(()) }
//! # }
//! # async fn example(pools: [sqlx::PgPool; 2]) -> Result<(), Box<dyn std::error::Error>> {
//! use seriatim::shards::{ShardId, Shards};
//! use seriatim::{Client, NewJob, Processor, QueueOptions};
//!
//! let [first, second] = pools;
//! let shards = Shards::new([(ShardId::new(0)?, first), (ShardId::new(1)?, second)])?;
//! let client = Client::default();
//! for (shard, pool) in shards.iter() {
//!     client.migrate_shard(pool, shard).await?;
//! }
//! let (_, pool) = shards.of_group("account-42");
//! client.enqueue(pool, NewJob::new("postings", &7).group("account-42")).await?;
//!
//! let running = Processor::over(&shards)
//!     .queue(QueueOptions::new("postings").concurrency(8), Post)
//!     .build()?
//!     .start()
//!     .await?;
//! # Ok(())
//! # }
//! ```

pub use crate::client::shards::Shards;
pub use crate::job::shard::{ShardError, ShardId};
