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
pub(in crate::interleavings) struct Stress {
    pub(in crate::interleavings) db: TestDatabase,
    pub(in crate::interleavings) store: Arc<Store>,
    pub(in crate::interleavings) options: QueueOptions,
    pub(in crate::interleavings) oracle: Oracle,
    pub(in crate::interleavings) groups: u64,
    pub(in crate::interleavings) producer_pause_ms: u64,
    /// Set when enqueues and requests are to end.
    pub(in crate::interleavings) stop: AtomicBool,
    /// Set when no job is left.
    pub(in crate::interleavings) drained: AtomicBool,
}

impl Stress {
    pub(in crate::interleavings) async fn session(&self, name: &str) -> PgConnection {
        let mut conn = self.db.connect().await.unwrap();
        run(&mut conn, &format!("set application_name = '{name}'")).await;
        conn
    }

    pub(in crate::interleavings) fn some_group(&self, rng: &mut fastrand::Rng) -> String {
        format!("g{}", rng.u64(0..self.groups))
    }
}
