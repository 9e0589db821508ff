//! A turn that goes on: as a job succeeds, the next one of its group is claimed in the same commit, for a moment and while no
//! other group waits.

use std::sync::Arc;

use tokio::time::Instant;

use crate::attempt::connection::{NextJob, PreheldJob, SlotConnection};
use crate::attempt::turn::{ChainWindow, ClaimedTurn, TurnEnd};
use crate::job::outcome::Outcome;
use crate::slots::queue_slots::{QUICK, SlotUsage};
use crate::store::{AfterSettle, ChainAnswer, Claim, ClaimOptions, HeldJob, Succeeded};

/// How many jobs a turn has at most that goes on: only a claim of a free group notes from where on its jobs are unfinished.
const MOST: usize = 50;

impl ClaimedTurn {
    /// Has its turn go on for a moment while no other group waits for one of these slots, unless the queue says how many jobs it has.
    pub(crate) fn open(mut self, slots: &Arc<SlotUsage>) -> Self {
        if self.queue.options.jobs_per_turn.is_none() && self.claim.group.is_some() {
            let (slots, since) = (Arc::clone(slots), Instant::now());
            self.open = Some(ChainWindow { slots, since, began: since, jobs: 1 });
        }
        self
    }

    /// Whether the next job of its group may be claimed as this one succeeds. Not behind one that was tried before: if it was the
    /// next one that the database refused, that must not fail this one again.
    pub(crate) fn may_chain(&self, held: &HeldJob) -> bool {
        self.claim.behind.is_empty()
            && held.attempt == 1
            && self.open.as_ref().is_some_and(|turn| turn.may_chain(Instant::now()))
            && !self.context.stop.is_cancelled()
    }

    /// Whether its turn has gone on before, and is likely to do so again.
    fn has_chained(&self) -> bool {
        self.open.as_ref().is_some_and(|turn| turn.jobs > 1)
    }

    pub(crate) fn next_job(&mut self, claim: Claim) {
        self.claim = claim;
        if let Some(turn) = &mut self.open {
            turn.jobs += 1;
            let now = Instant::now();
            turn.slots.record_end(std::mem::replace(&mut turn.began, now), now);
        }
    }

    /// Records a success, and claims the next job of the group with it, if there is one; holds that in the same round trip too, if that is
    /// likely to come to something.
    pub(crate) async fn succeed_and_chain(
        &self,
        conn: &mut SlotConnection,
        outcome: &Outcome,
        result: &str,
        then: AfterSettle,
    ) -> Result<TurnEnd, sqlx::Error> {
        let success =
            Succeeded { queue: &self.queue.name, claim: &self.claim, earlier: &[], result };
        let keep = self.queue.keep.succeeded;
        let options = ClaimOptions::new(&self.queue.options, Some(self.context.processor));
        let then = if then == AfterSettle::Commit && self.has_chained() {
            AfterSettle::Hold
        } else {
            then
        };
        let asked_at = Instant::now();
        let gone = self.context.store.settle_and_chain(conn, success, keep, then, options).await?;
        conn.committed(then).await?;
        if then == AfterSettle::Hold && !matches!(gone, ChainAnswer::To { held: Some(_), .. }) {
            conn.rollback().await?;
        }
        let end = self.ended(outcome);
        Ok(match gone {
            ChainAnswer::To { claim, known, held } => {
                let job = claim.job;
                conn.preheld = held.map(|pid| PreheldJob { job, pid, asked_at });
                let behind_tx = then == AfterSettle::Nothing;
                conn.next = Some(Box::new(NextJob { claim, known: *known, behind_tx }));
                TurnEnd::Stays
            }
            ChainAnswer::Drained if then != AfterSettle::Nothing => TurnEnd::Drained,
            ChainAnswer::Drained | ChainAnswer::Passed => end,
        })
    }
}

impl ChainWindow {
    /// Somebody may have come since that waits for a slot, or for the look that follows the end of a turn.
    fn may_chain(&self, now: Instant) -> bool {
        now < self.since + QUICK && self.jobs < MOST && self.slots.all_served()
    }
}
