//! What a worker remembers, and the connections of its slots.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::attempt::connection::SlotConnection;
use crate::attempt::run::End;
use crate::slots::queue_slots::Occupancy;
use crate::worker::claim::Course;
use crate::worker::fill::BACKOFF;
use crate::worker::prefetch::Prefetch;
use crate::worker::recheck::Again;

/// What a worker remembers from claim to claim.
pub(in crate::worker) struct State {
    /// Each says how it ended, and gives back its connection, if that can be used again.
    pub(in crate::worker) slots: JoinSet<(End, Option<SlotConnection>)>,
    /// Of those, the ones whose handlers run or may run.
    pub(in crate::worker) occupancy: Arc<Occupancy>,
    /// Connections of finished jobs, for the next ones. A claim takes no more jobs than it has connections.
    pub(in crate::worker) spare: Vec<SlotConnection>,
    /// Connections that were asked for. In tasks of their own: opening one may take longer than a claim waits for it,
    /// and would begin anew each time if it was given up.
    pub(in crate::worker) coming: JoinSet<Result<PoolConnection<Postgres>, sqlx::Error>>,
    /// The last claim took all that it could.
    pub(in crate::worker) busy: bool,
    /// The last claim took all that was due: only a wake-up, or a job behind which others are, calls for a look.
    pub(in crate::worker) quiet: bool,
    /// For how many slots the next claim gets connections: more and more, while each claim takes all that it can.
    pub(in crate::worker) reach: usize,
    pub(in crate::worker) course: Course,
    pub(in crate::worker) backoff: Duration,
    pub(in crate::worker) again: Again,
    pub(in crate::worker) prefetch: Arc<Prefetch>,
    /// When to look for claims whose answers were lost.
    pub(in crate::worker) strays: [Option<Instant>; 2],
}

impl State {
    /// Of a worker that is woken by this.
    pub(in crate::worker) fn new(wake: &Arc<Notify>) -> Self {
        let occupancy = Arc::default();
        let prefetch = Arc::new(Prefetch::new(Arc::clone(&occupancy), Arc::clone(wake)));
        Self {
            slots: JoinSet::new(),
            occupancy,
            spare: Vec::new(),
            coming: JoinSet::new(),
            busy: false,
            quiet: false,
            reach: 1,
            course: Course::default(),
            backoff: BACKOFF.0,
            again: Again::default(),
            prefetch,
            strays: [None; 2],
        }
    }
    /// Takes back a slot's connection; how its job ended.
    pub(in crate::worker) fn ended(
        &mut self,
        ended: Result<(End, Option<SlotConnection>), JoinError>,
    ) -> End {
        let (end, conn) = ended.unwrap_or((End::Lost, None));
        self.again.ended(Instant::now());
        self.spare.extend(conn);
        end
    }

    /// A claim has ended, and left more or not; whether a job that ended meanwhile has passed its group's turn on.
    pub(in crate::worker) fn claimed(&mut self, more: bool) -> bool {
        let ended = self.prefetch.claimed(more);
        if ended.is_some() {
            self.again.ended(Instant::now());
        }
        ended.unwrap_or_default()
    }

    /// Gives back all but so many connections: first those that were used for nothing yet, which would cost some more.
    pub(in crate::worker) fn keep(&mut self, most: usize) {
        let excess = self.spare.len().saturating_sub(most);
        if excess > 0 {
            self.spare.sort_by_key(|conn| u8::from(conn.watched) + u8::from(conn.claims));
            self.spare.drain(..excess);
        }
    }

    /// The connection for a claim: one that claimed before, if there is one.
    pub(in crate::worker) fn for_claim(&mut self) -> Option<SlotConnection> {
        let claims = self.spare.iter().position(|conn| conn.claims);
        claims.map(|claims| self.spare.swap_remove(claims)).or_else(|| self.spare.pop())
    }

    /// A connection for a job: if possible not the one that claims.
    pub(in crate::worker) fn for_job(&mut self) -> Option<SlotConnection> {
        let other = self.spare.iter().rposition(|conn| !conn.claims);
        other.map(|other| self.spare.swap_remove(other)).or_else(|| self.spare.pop())
    }
}
