//! Nodes that are gone: suspects the claims of their processors.

use std::fmt;

use serde::Serialize;
use sqlx::PgExecutor;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::name;
use crate::job::words::counted;

/// The claims that a release made suspected; prints as one sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Released {
    /// The number of groups.
    pub groups: u64,
    /// The number of jobs without a group.
    pub jobs: u64,
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { groups, jobs } = *self;
        if groups + jobs == 0 {
            return f.write_str("no claim is there to be released");
        }
        write!(
            f,
            "the claims of {} and of {} without a group are suspected, and taken over in 2 s \
             unless the node proves that it lives",
            counted(groups, "group"),
            counted(jobs, "job"),
        )
    }
}

impl Operator {
    /// Says that a node is gone: the claims of its processors are suspected from now on, and are
    /// taken over 1.75 s later. `node` is the name of
    /// [`ProcessorBuilder::node`](crate::ProcessorBuilder::node), by default the host's. Jobs that
    /// were received by hand belong to no node.
    ///
    /// Harmless while the node lives and reaches the database: a job that a transaction holds is
    /// left alone, and its process clears the suspicion of a lease within 0.5 s. A process that
    /// shows its [presence](crate::ProcessorBuilder::presence) stops its handlers in time if it
    /// cannot. One without a presence does not learn of the suspicion while it is cut off: make
    /// sure that such a node is gone. Without this call a claim is suspected when its lease ends,
    /// or its processor's presence does.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::Database`].
    pub async fn release_node(
        &self,
        executor: impl PgExecutor<'_>,
        node: &str,
    ) -> Result<Released, ControlError> {
        name::check_text("node", node)?;
        let (groups, jobs) = self.store().release_node(executor, node, self.acting()?).await?;
        Ok(Released { groups, jobs })
    }
}
