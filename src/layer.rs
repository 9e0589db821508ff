//! Layers: code around every handler of a processor.
//!
//! A [`Layer`] sets a tenant, measures, or tells an error service. It is added by
//! [`ProcessorBuilder::layer`](crate::ProcessorBuilder::layer).
//!
//! ```
//! use seriatim::layer::{Ended, Layer, Next};
//! use seriatim::{ActiveJob, async_trait};
//!
//! struct Report;
//!
//! #[async_trait]
//! impl Layer for Report {
//!     async fn run(&self, job: &mut ActiveJob, next: Next<'_>) -> Ended {
//!         let ended = next.run(job).await;
//!         if let Some(error) = ended.error() {
//!             eprintln!("job {}: {error}", job.id());
//!         }
//!         ended
//!     }
//! }
//! ```

pub use crate::attempt::layer::{Ended, Layer, Next};
