//! Who asks: the key that a request is signed with, its rights and its region.

use std::ops::Deref;
use std::sync::Arc;

use crate::error::{Code, SqsError};
use crate::patterns::Patterns;

/// The most characters of a name in the log.
const SHOWN: usize = 80;

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The key that the request is signed with; `None` if signatures are not asked for.
    pub(crate) access_key: Option<String>,
    /// The role that the database is asked in; `None`: the server's.
    pub(crate) role: Option<String>,
    /// The queues that the key is for; `None`: all.
    pub(crate) queues: Option<Arc<Patterns>>,
    /// The region that the client believes to be in.
    pub(crate) region: String,
}

/// The name of a queue that its caller may name. Only a [`Caller`] makes one, and the database
/// finds and makes queues by this type alone: so no operation can leave the check out.
#[derive(Debug, Clone)]
pub(crate) struct QueueName(String);

impl QueueName {
    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

impl Deref for QueueName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Caller {
    /// Refuses a queue that the key is not for, whether or not it is there.
    pub(crate) fn queue(&self, name: String) -> Result<QueueName, SqsError> {
        match &self.queues {
            Some(queues) if !queues.allow(&name) => {
                let shown: String = name.chars().take(SHOWN).collect();
                let message = "This access key is not for this queue. Use a key that is: \
                               seriatim sqs key add --queues makes one.";
                Err(not_for(queues, &format!("{shown:?}"), message))
            }
            _ => Ok(QueueName(name)),
        }
    }

    /// Refuses what may reach any queue, to a key that is for some.
    pub(crate) fn any_queue(&self) -> Result<(), SqsError> {
        match &self.queues {
            Some(queues) => {
                let message = "This access key is for some queues: name a DestinationArn among \
                               them. Without one, messages go to any queue that they came from.";
                Err(not_for(queues, "a task without a destination", message))
            }
            None => Ok(()),
        }
    }

    /// Returns who a change is recorded with: the key.
    pub(crate) fn actor(&self) -> &str {
        self.access_key.as_deref().unwrap_or("sqs")
    }

    /// Returns the patterns of the queues that lists show, for `LIKE`; `None`: all are shown.
    pub(crate) fn shown(&self) -> Option<Vec<String>> {
        self.queues.as_ref().map(|queues| queues.likes())
    }
}

fn not_for(queues: &Patterns, what: &str, message: &str) -> SqsError {
    let detail = format!("the key is for {}, not for {what}", queues.texts().join(","));
    SqsError { detail: Some(detail), ..SqsError::new(Code::AccessDenied, message) }
}
