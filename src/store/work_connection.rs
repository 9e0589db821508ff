//! A connection for one piece of work that may be given up.

use std::ops::{Deref, DerefMut};

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres};

/// Closed when it is dropped, unless the work was done: work that is given up leaves it in an
/// unknown state.
#[derive(Debug)]
pub(crate) struct WorkConnection {
    conn: PoolConnection<Postgres>,
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
        Self { conn, done: false }
    }
}

impl Drop for WorkConnection {
    fn drop(&mut self) {
        if !self.done {
            self.conn.close_on_drop();
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
