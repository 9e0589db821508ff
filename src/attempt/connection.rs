//! A slot's connection. It never returns to the pool with a transaction open.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres};
use tokio::time::Instant;

use crate::liveness::sessions::PROOF_LIMIT;
use crate::store::{AfterSettle, HoldReceipt, ServerId, SessionId, begin_of_handlers, transaction};

/// Closed when it is dropped with a transaction open: after an error, or with a future that is
/// dropped.
#[derive(Debug)]
pub(crate) struct SlotConnection {
    conn: PoolConnection<Postgres>,
    /// True if the server was told to notice when this process is gone.
    pub(crate) watched: bool,
    /// True if the server has planned a claim for this session, which takes longer than a claim.
    pub(crate) has_claimed: bool,
    /// The server's session; `None` until it is read.
    pub(crate) session: Option<SessionId>,
    /// The server, read once; `None` if it does not say.
    pub(crate) server: Option<ServerId>,
    /// The options that the connection was opened with, as far as a worker knows.
    pub(crate) options: Option<Arc<PgConnectOptions>>,
    /// True while a job's transaction is open: one message begins it and takes the locks, so sqlx
    /// does not count it.
    pub(crate) begun: bool,
    /// The job whose locks were taken by the settle of the job before.
    pub(crate) preheld: Option<PreheldJob>,
}

/// A job whose locks were taken with the settle of the one before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreheldJob {
    pub(crate) job: i64,
    pub(crate) receipt: HoldReceipt,
    /// When the message was sent.
    pub(crate) asked_at: Instant,
}

impl SlotConnection {
    /// Closes the connection, whose state is unknown, instead of giving it back.
    pub(crate) fn close(mut self) {
        self.conn.close_on_drop();
    }

    /// Begins a transaction for handlers that holds no job, and sets what `limits` says.
    pub(crate) async fn begin(&mut self, limits: &str) -> Result<(), sqlx::Error> {
        self.begun = true;
        let begin = format!("{}{limits}", begin_of_handlers(&self.conn));
        sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut *self.conn).await.map(drop)
    }

    /// Commits the open transaction.
    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.end_tx("commit").await
    }

    /// Rolls the open transaction back.
    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        self.end_tx("rollback").await
    }

    /// Returns whether the settle's message may also commit. It may not if sqlx counts the
    /// handler's savepoint as the transaction.
    pub(crate) fn after_settle(&self) -> AfterSettle {
        if self.conn.is_in_transaction() { AfterSettle::Nothing } else { AfterSettle::Commit }
    }

    /// Commits, unless the settle's message did.
    pub(crate) async fn finish_commit(&mut self, then: AfterSettle) -> Result<(), sqlx::Error> {
        match then {
            AfterSettle::Nothing => self.commit().await,
            AfterSettle::Commit => {
                self.begun = false;
                Ok(())
            }
            // The message committed and began the next transaction.
            AfterSettle::Hold { .. } => Ok(()),
        }
    }

    /// Notes the answer of a settle that also held a job, or ends the transaction that did not get
    /// the job's locks. If the connection is lost, the job's own hold finds that. After a slow
    /// answer, which proves too little, the job is held again; so it is if its claim is suspected.
    pub(crate) async fn set_preheld(
        &mut self,
        job: i64,
        held: Option<HoldReceipt>,
        asked_at: Instant,
    ) {
        match held.filter(|held| !held.suspected && asked_at.elapsed() < PROOF_LIMIT / 2) {
            Some(receipt) => self.preheld = Some(PreheldJob { job, receipt, asked_at }),
            None => drop(self.rollback().await),
        }
    }

    async fn end_tx(&mut self, how: &'static str) -> Result<(), sqlx::Error> {
        if self.begun && self.after_settle() == AfterSettle::Commit {
            sqlx::raw_sql(how).execute(&mut *self.conn).await?;
        } else if how == "commit" {
            transaction::commit(&mut self.conn).await?;
        } else {
            transaction::rollback(&mut self.conn).await?;
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
            has_claimed: false,
            session: None,
            server: None,
            options: None,
            begun: false,
            preheld: None,
        }
    }
}

impl Drop for SlotConnection {
    fn drop(&mut self) {
        if self.begun || self.conn.is_in_transaction() {
            self.conn.close_on_drop();
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
