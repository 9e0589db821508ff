//! The effect of a call of maintenance.

use std::ops::AddAssign;

use serde::Serialize;

/// The effect of [`Client::maintain`](crate::Client::maintain).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Maintained {
    /// The number of ended jobs that retention deleted.
    pub deleted: u64,
    /// The number of jobs that were cancelled, as an operator had requested.
    pub cancelled: u64,
    /// The number of jobs that move tasks moved.
    pub moved: u64,
    /// The number of jobs that schedules made.
    pub scheduled: u64,
    /// The number of times that a group got further whose halt has ended.
    pub halts_ended: u64,
    /// The number of batches that ended.
    pub batches_ended: u64,
    /// The number of groups that nothing would have woken.
    pub repaired: u64,
}

impl AddAssign for Maintained {
    fn add_assign(&mut self, other: Self) {
        let Self { deleted, cancelled, moved, scheduled, halts_ended, batches_ended, repaired } =
            other;
        self.deleted += deleted;
        self.cancelled += cancelled;
        self.moved += moved;
        self.scheduled += scheduled;
        self.halts_ended += halts_ended;
        self.batches_ended += batches_ended;
        self.repaired += repaired;
    }
}
