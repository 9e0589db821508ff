//! The memory of answers: from the claim of their messages until their clients have read them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::connections::{Connections, Need};
use crate::error::{Code, SqsError};
use crate::memory::{Memory, Taken};

/// How long a request waits for memory before it is refused with 503. SDKs send it again.
const LIMIT: Duration = Duration::from_secs(5);

/// The memory of answers. For room, clients that do not read are given up.
#[derive(Clone)]
pub(crate) struct Answers {
    memory: Arc<Memory>,
    connections: Arc<Connections>,
}

impl Answers {
    pub(crate) fn new(limit: usize, connections: &Arc<Connections>) -> Self {
        Self { memory: Memory::new(limit), connections: Arc::clone(connections) }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.memory.is_full()
    }

    /// Takes memory for what is there already.
    pub(crate) fn take(&self, bytes: usize) -> Taken {
        self.memory.take(bytes)
    }

    /// Waits until there is memory, for 5 s at most.
    pub(crate) async fn room(&self) -> Result<(), SqsError> {
        self.begin(0).await.map(drop)
    }

    /// Takes memory for what will be there, and waits for it for 5 s at most.
    pub(crate) async fn begin(&self, bytes: usize) -> Result<Taken, SqsError> {
        let make_room = || self.connections.make_room(Need::Answers);
        timeout(LIMIT, self.memory.begin(bytes, make_room)).await.map_err(|_| {
            let message = "Too many answers are on their way to clients. Try again.";
            SqsError::new(Code::ServiceUnavailable, message)
        })
    }
}
