//! Receiving: jobs without a handler, settled by receipt.
//!
//! [`Client::receive`](crate::Client::receive) takes a [`Receive`] and returns [`Received`] jobs,
//! each with a [`Receipt`]. [`ack`](crate::Client::ack), [`nack`](crate::Client::nack) and
//! [`extend`](crate::Client::extend) take the receipt. SQL functions of the same names do the same
//! for other languages.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use seriatim::Client;
//! use seriatim::receive::{Receive, ReceiveError};
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::default();
//! let request = Receive::new("postings").max(10).visibility(Duration::from_secs(60));
//! for job in client.receive(&pool, request).await? {
//!     match client.ack(&pool, &job.receipt).await {
//!         Ok(()) => {}
//!         Err(ReceiveError::Stale { .. }) => println!("job {} is another's by now", job.id),
//!         Err(error) => return Err(error.into()),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub use crate::client::receive::{ParseReceiptError, Receipt, Receive, ReceiveError, Received};
