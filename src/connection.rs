//! A slot's connection, which never goes back to the pool with a transaction open.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::postgres::PgTransactionManager;
use sqlx::{PgConnection, Postgres};
use sqlx_core::transaction::TransactionManager;

/// Rolls back what is open when it is dropped: on an error's way out, or with a future that is given up.
#[derive(Debug)]
pub(crate) struct SlotConnection {
    conn: PoolConnection<Postgres>,
    /// The server was told to notice when this process is gone.
    pub(crate) watched: bool,
}

impl SlotConnection {
    /// Closes it instead of giving it back: its state is unknown.
    pub(crate) fn close(mut self) {
        self.conn.close_on_drop();
    }
}

impl From<PoolConnection<Postgres>> for SlotConnection {
    fn from(conn: PoolConnection<Postgres>) -> Self {
        Self { conn, watched: false }
    }
}

impl Drop for SlotConnection {
    fn drop(&mut self) {
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

/// A connection for work that may be given up half-way, which leaves it in an unknown state: closed when it is dropped,
/// unless the work was done.
#[derive(Debug)]
pub(crate) struct WorkConnection {
    conn: SlotConnection,
    done: bool,
}

impl WorkConnection {
    /// The work is done: the connection goes back to its pool.
    pub(crate) fn done(mut self) {
        self.done = true;
    }
}

impl From<PoolConnection<Postgres>> for WorkConnection {
    fn from(conn: PoolConnection<Postgres>) -> Self {
        Self { conn: conn.into(), done: false }
    }
}

impl Drop for WorkConnection {
    fn drop(&mut self) {
        if !self.done {
            self.conn.conn.close_on_drop();
        }
    }
}

impl Deref for WorkConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.conn
    }
}

impl DerefMut for WorkConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.conn
    }
}
