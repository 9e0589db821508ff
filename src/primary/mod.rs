//! Following the primary among several servers: a pool whose connections lead to the one that can
//! be written to.
//!
//! [`Follow`] reads a URL with several hosts, as libpq does, and opens a pool. It looks at each
//! host every second. When another one has become the primary, the pool connects there, closes its
//! idle connections to the old one, and processors and listeners follow. A pool behind a proxy
//! that leads to the primary needs none of this.
//!
//! ```no_run
//! use seriatim::primary::Follow;
//! use sqlx::postgres::PgPoolOptions;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "postgres://app@db1:5432,db2:5432/app?target_session_attrs=read-write";
//! let pool = Follow::url(url)?.connect(PgPoolOptions::new().max_connections(20)).await?;
//! seriatim::migrate(&pool).await?;
//! # Ok(())
//! # }
//! ```

mod choice;
mod follow;
mod followed;
mod hosts;
mod probe;
mod sessions;

pub use follow::{Follow, FollowError};
pub use hosts::HostsError;

pub(crate) use followed::is_followed;
