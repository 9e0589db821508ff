//! State that the tasks of the stress share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sqlx::PgConnection;

use crate::QueueOptions;
use crate::interleavings::support::oracle::Oracle;
use crate::interleavings::support::session::run;
use crate::store::Store;
use crate::testing::TestDatabase;

/// Shared by all tasks of one stress.
pub(crate) struct Stress {
    pub(crate) db: TestDatabase,
    pub(crate) store: Arc<Store>,
    pub(crate) options: QueueOptions,
    pub(crate) oracle: Oracle,
    pub(crate) groups: u64,
    pub(crate) producer_pause_ms: u64,
    /// Set when enqueues and requests are to end.
    pub(crate) stop: AtomicBool,
    /// Set when no job is left.
    pub(crate) drained: AtomicBool,
}

impl Stress {
    pub(crate) async fn session(&self, name: &str) -> PgConnection {
        let mut conn = self.db.connect().await.unwrap();
        run(&mut conn, &format!("set application_name = '{name}'")).await;
        conn
    }

    pub(crate) fn some_group(&self, rng: &mut fastrand::Rng) -> String {
        format!("g{}", rng.u64(0..self.groups))
    }
}
