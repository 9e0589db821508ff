//! A client that acts for a named operator.

use std::sync::Arc;

use crate::client::client::Client;
use crate::job::error::NameError;
use crate::job::name;
use crate::store::{Acting, Store};

/// Changes what an operator may change: jobs that failed, groups that stand, queues and nodes.
/// Cheap to clone; holds no connection. Made by [`Client::operator`].
///
/// Each change writes a row of the table `operation` in its own transaction: who, what, where and
/// why. A call that changed nothing writes none. [`Client::operations`] lists the rows.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use seriatim::Client;
///
/// let client = Client::default();
/// let ann = client.operator("ann", "the bank is closed");
/// ann.pause_queue(&pool, "postings").await?;
///
/// for done in client.operations(&pool, None, 20).await? {
///     println!("{} {} {:?}", done.actor, done.action, done.reason); // ann pause Some("the bank …
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Operator {
    client: Client,
    actor: Arc<str>,
    reason: Option<Arc<str>>,
}

impl Client {
    /// Returns an operator: `actor` is the name of a person or a program, `reason` why it acts, or
    /// `None`. Both are recorded with each change. They have at most 4000 characters and no NUL: a
    /// change by an operator with a longer text is refused with [`NameError`].
    pub fn operator<'a>(&self, actor: &str, reason: impl Into<Option<&'a str>>) -> Operator {
        let reason = reason.into().map(Arc::from);
        Operator { client: self.clone(), actor: actor.into(), reason }
    }
}

impl Operator {
    /// Returns the client that it was made of, for reads.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn store(&self) -> &Store {
        &self.client.store
    }

    /// Returns who acts and why.
    ///
    /// # Errors
    /// [`NameError`] if one of them cannot be stored.
    pub(crate) fn acting(&self) -> Result<Acting<'_>, NameError> {
        name::check_text("actor", &self.actor)?;
        name::check_text("reason", self.reason.as_deref().unwrap_or_default())?;
        Ok(Acting { actor: Some(&self.actor), reason: self.reason.as_deref() })
    }
}
