//! A slot's connection, which never goes back to the pool with a transaction open.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx::{PgConnection, Postgres};
use sqlx_core::transaction::TransactionManager;
use tokio::time::Instant;

use crate::store::{AfterSettle, Claim, HeldJob, SessionId};

/// Rolls back what is open when it is dropped: on an error's way out, or with a future that is given up.
#[derive(Debug)]
pub(crate) struct SlotConnection {
    conn: PoolConnection<Postgres>,
    /// The server was told to notice when this process is gone.
    pub(crate) watched: bool,
    /// The server has planned a claim for this session, which takes longer than a claim.
    pub(crate) claims: bool,
    /// The server's session; none: nobody has asked for it.
    pub(crate) session: Option<SessionId>,
    /// A transaction is open that was begun by a message of which sqlx counted nothing.
    pub(crate) begun: bool,
    /// The job that it holds already: the message that settled the one before went on to it.
    pub(crate) preheld: Option<PreheldJob>,
    /// The job that was claimed with the settle of the one before.
    pub(crate) next: Option<Box<NextJob>>,
}

/// A job that was claimed as the one before it ended.
#[derive(Debug)]
pub(crate) struct NextJob {
    pub(crate) claim: Claim,
    /// What its handler needs.
    pub(crate) known: HeldJob,
    /// The one before has used its transaction, in which it may have enqueued.
    pub(crate) behind_tx: bool,
}

/// A job whose locks were taken with the settle of the one before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreheldJob {
    pub(crate) job: i64,
    /// The server's process.
    pub(crate) pid: i32,
    /// When the message was sent.
    pub(crate) asked_at: Instant,
}

impl SlotConnection {
    /// Closes it instead of giving it back: its state is unknown.
    pub(crate) fn close(mut self) {
        self.conn.close_on_drop();
    }

    /// How many transactions, and savepoints, sqlx counts while the handler is behind none.
    pub(crate) fn depth_of_hold(&self) -> usize {
        usize::from(!self.begun)
    }

    /// Commits the transaction that is open, however it was begun.
    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.end("commit").await
    }

    /// Rolls the transaction that is open back, however it was begun.
    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        self.end("rollback").await
    }

    /// Whether a message may commit as well: not where the handler had a savepoint. That is what sqlx counts then, and
    /// takes for the transaction.
    pub(crate) fn then(&self) -> AfterSettle {
        let counted = PgTransactionManager::get_transaction_depth(&self.conn) > 0;
        if counted { AfterSettle::Nothing } else { AfterSettle::Commit }
    }

    /// Commits, unless a message did.
    pub(crate) async fn committed(&mut self, then: AfterSettle) -> Result<(), sqlx::Error> {
        match then {
            AfterSettle::Nothing => self.commit().await,
            AfterSettle::Commit => {
                self.begun = false;
                Ok(())
            }
            // And began anew.
            AfterSettle::Hold => Ok(()),
        }
    }

    async fn end(&mut self, how: &'static str) -> Result<(), sqlx::Error> {
        if self.begun && self.then() == AfterSettle::Commit {
            sqlx::raw_sql(how).execute(&mut *self.conn).await?;
        } else if how == "commit" {
            PgTransactionManager::commit(&mut self.conn).await?;
        } else {
            PgTransactionManager::rollback(&mut self.conn).await?;
        }
        self.begun = false;
        Ok(())
    }
}

impl From<PoolConnection<Postgres>> for SlotConnection {
    fn from(conn: PoolConnection<Postgres>) -> Self {
        Self {
            conn,
            watched: false,
            claims: false,
            session: None,
            begun: false,
            preheld: None,
            next: None,
        }
    }
}

impl Drop for SlotConnection {
    fn drop(&mut self) {
        if self.begun {
            self.conn.close_on_drop();
            return;
        }
        while PgTransactionManager::get_transaction_depth(&self.conn) > 0 {
            PgTransactionManager::start_rollback(&mut self.conn);
        }
    }
}

impl Deref for SlotConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl DerefMut for SlotConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}
