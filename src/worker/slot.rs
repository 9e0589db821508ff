//! A slot by transaction: runs a turn, and then prefetched turns while there are any.
//!
//! The settle of a turn takes the locks of the next one in the same message, so that each job costs
//! one round trip. The next turn is chosen when the handler has ended, not before: else it would
//! wait for one handler although another slot is free.
//!
//! Tests: `prefetch::*`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

use crate::attempt::connection::SlotConnection;
use crate::attempt::release::{UnstartedTurn, release};
use crate::attempt::turn::{NextTurn, TurnEnd};
use crate::slots::queue_slots::SlotGuard;
use crate::worker::prefetch::{Next, Prefetch, PrefetchedTurn};

/// The next step of the slot after its turn; `None` until the settle asks.
struct Chosen {
    prefetch: Arc<Prefetch>,
    /// The options that the slot's connection was opened with.
    origin: Option<Arc<PgConnectOptions>>,
    next: Mutex<Option<Next<PrefetchedTurn>>>,
}

impl Chosen {
    fn next(&self) -> MutexGuard<'_, Option<Next<PrefetchedTurn>>> {
        // Nothing panics under the lock.
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NextTurn for Chosen {
    fn take(&self, has_claimed: bool) -> Option<(i64, Uuid)> {
        let chosen = self.prefetch.next(self.origin.as_ref(), has_claimed);
        let claim = match &chosen {
            Next::Turn(turn) => Some((turn.run.claim.job, turn.run.claim.token)),
            Next::Claim | Next::Nothing => None,
        };
        // A connection that is promised to a claim stays so. For lack of a turn the slot asks
        // again.
        *self.next() = Some(chosen).filter(|chosen| !matches!(chosen, Next::Nothing));
        claim
    }
}

/// Returns how the last turn ended, and the connection if it can be used again.
pub(crate) async fn run(
    prefetch: Arc<Prefetch>,
    mut turn: PrefetchedTurn,
    mut conn: SlotConnection,
    mut slot: SlotGuard,
) -> (TurnEnd, Option<SlotConnection>) {
    let stop = turn.run.context.stop.clone();
    let (buffer, origin) = (Arc::clone(&prefetch), conn.options.clone());
    let chosen = Arc::new(Chosen { prefetch: buffer, origin, next: Mutex::default() });
    let mut passed = false;
    let (end, conn) = loop {
        let mut run = turn.run;
        run.next = Some(Arc::clone(&chosen) as Arc<dyn NextTurn>);
        let (end, left) = run.into_end(turn.jobs, conn).await;
        passed |= end != TurnEnd::Drained;
        let next = chosen.next().take();
        // A transaction that could not be ended: the connection is lost.
        let left = left.filter(|left| !left.begun || left.preheld.is_some());
        let Some(left) = left.filter(|_| !stop.is_cancelled()) else {
            if let Some(Next::Turn(PrefetchedTurn { run, guard, .. })) = next {
                release(vec![UnstartedTurn { run, guard }]).await;
                prefetch.notify_released();
            }
            break (end, None);
        };
        let next = match next {
            Some(next) => next,
            None => prefetch.next(chosen.origin.as_ref(), left.has_claimed),
        };
        match next {
            Next::Turn(next) => {
                prefetch.record_end(end != TurnEnd::Drained);
                slot.begin_next_job();
                (turn, conn) = (next, left);
            }
            Next::Claim => {
                // The worker must not take it for the end of a group that was all.
                passed = true;
                break (end, Some(left));
            }
            Next::Nothing => break (end, Some(left)),
        }
    };
    drop(slot);
    // A turn before may have passed its group's turn on.
    (if passed && end == TurnEnd::Drained { TurnEnd::Finished } else { end }, conn)
}
