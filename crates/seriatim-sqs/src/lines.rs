//! The lines of requests of each role: those of one kind become statements together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use seriatim::{Client, Receipt, ReceiveError};
use sqlx::PgPool;

use crate::auth::Caller;
use crate::coalesce::{Line, Statement};
use crate::database::{Database, refusal};
use crate::error::SqsError;
use crate::sends::Sends;

/// The lines of a role.
#[derive(Clone)]
pub(crate) struct Lines {
    pub(crate) sends: Arc<Line<Sends>>,
    pub(crate) deletes: Arc<Line<Deletes>>,
}

/// The lines of all roles, which do not share statements.
pub(crate) struct AllLines {
    database: Arc<Database>,
    of_roles: Mutex<HashMap<Option<String>, Lines>>,
}

impl AllLines {
    pub(crate) fn new(database: &Arc<Database>) -> Self {
        Self { database: Arc::clone(database), of_roles: Mutex::default() }
    }

    pub(crate) fn of(&self, caller: &Caller) -> Lines {
        let mut lines = self.of_roles.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = lines.entry(caller.role.clone()).or_insert_with(|| {
            let (database, pool) = (&self.database, self.database.pool_of(caller));
            let client = database.client.clone();
            Lines {
                sends: Line::new(Sends::new(database, &pool)),
                deletes: Line::new(Deletes { client, pool }),
            }
        });
        lines.clone()
    }
}

/// Acks jobs, in a role.
pub(crate) struct Deletes {
    client: Client,
    pool: PgPool,
}

impl Statement for Deletes {
    type Asked = Vec<Receipt>;
    /// What each receipt came to.
    type Answer = Vec<Result<(), ReceiveError>>;
    type Error = ReceiveError;

    /// A receipt whose rows another transaction has is given up after half a second in any case.
    async fn run(
        &self,
        asked: &[Vec<Receipt>],
        _patient: bool,
    ) -> Result<Vec<Self::Answer>, ReceiveError> {
        let receipts = asked.concat();
        let mut done = self.client.ack_many(&self.pool, &receipts).await?.into_iter();
        Ok(asked.iter().map(|of| done.by_ref().take(of.len()).collect()).collect())
    }

    fn is_undone(error: &ReceiveError) -> bool {
        !matches!(error, ReceiveError::Database(error) if error.as_database_error().is_none())
    }

    fn refusal(error: ReceiveError) -> SqsError {
        refusal(error)
    }
}
