//! A chained turn: the settle of a job claims the group's next job in the same commit.
//!
//! The next job has a token of its own. A turn chains for up to 20 ms and 50 jobs, while no other
//! group waits, and only if a claim would start the job as well. The head is read by a statement
//! younger than the group's lock. `head_id` is lowered for a late job and never raised: an adopter
//! that shares the row relies on it. A chain must not fail the job that ends. A claim whose hold
//! fails is released: no other worker knows of it.
//!
//! Tests: `chained_turns::*`, `interleavings::chain`.

use std::sync::Arc;

use tokio::time::Instant;

use crate::attempt::connection::{NextJob, PreheldJob, SlotConnection};
use crate::attempt::turn::{ChainWindow, ClaimedTurn, TurnEnd};
use crate::job::outcome::Outcome;
use crate::slots::queue_slots::{QUICK, SlotUsage};
use crate::store::{AfterSettle, ChainAnswer, Claim, ClaimOptions, HeldJob, Succeeded};

/// Bounds the jobs of a chained turn: only the claim of a free group notes where its unfinished
/// jobs begin.
const MAX_CHAINED_JOBS: usize = 50;

impl ClaimedTurn {
    /// Opens the turn for chaining, unless the queue sets its jobs per turn or the job has no
    /// group.
    pub(crate) fn open(mut self, slots: &Arc<SlotUsage>) -> Self {
        if self.queue.options.jobs_per_turn.is_none() && self.claim.group.is_some() {
            let (slots, since) = (Arc::clone(slots), Instant::now());
            self.open = Some(ChainWindow { slots, since, began: since, jobs: 1 });
        }
        self
    }

    /// Returns whether this success may claim the group's next job. A retried job does not chain:
    /// if the database refused the next job before, that must not fail this job again.
    pub(crate) fn may_chain(&self, held: &HeldJob) -> bool {
        self.claim.followers.is_empty()
            && held.attempt == 1
            && self.open.as_ref().is_some_and(|turn| turn.may_chain(Instant::now()))
            && !self.context.stop.is_cancelled()
    }

    /// Returns whether the turn has chained before, and so is likely to chain again.
    pub(in crate::attempt) fn has_chained(&self) -> bool {
        self.open.as_ref().is_some_and(|turn| turn.jobs > 1)
    }

    pub(crate) fn begin_chained(&mut self, claim: Claim) {
        self.claim = claim;
        if let Some(turn) = &mut self.open {
            turn.jobs += 1;
            let now = Instant::now();
            turn.slots.record_end(std::mem::replace(&mut turn.began, now), now);
        }
    }

    /// Records a success and claims the group's next job, if there is one. It also holds that job
    /// in the same round trip if the turn has chained before.
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
            AfterSettle::HoldChained
        } else {
            then
        };
        let asked_at = Instant::now();
        let answer =
            self.context.store.settle_and_chain(conn, success, keep, then, options).await?;
        conn.finish_commit(then).await?;
        match &answer {
            _ if then != AfterSettle::HoldChained => {}
            ChainAnswer::To { held: Some(_), .. } => {}
            // If the connection is lost, the next hold finds that, and releases the job.
            ChainAnswer::To { held: None, .. } => drop(conn.rollback().await),
            ChainAnswer::Passed | ChainAnswer::Drained => conn.rollback().await?,
        }
        let end = self.tell_end(outcome);
        Ok(match answer {
            ChainAnswer::To { claim, known, held } => {
                let job = claim.job;
                conn.preheld = held.map(|receipt| PreheldJob { job, receipt, asked_at });
                let after_handler_tx = then == AfterSettle::Nothing;
                conn.next = Some(Box::new(NextJob { claim, known: *known, after_handler_tx }));
                TurnEnd::Stays
            }
            ChainAnswer::Drained if then != AfterSettle::Nothing => TurnEnd::Drained,
            ChainAnswer::Drained | ChainAnswer::Passed => end,
        })
    }
}

impl ChainWindow {
    /// Returns whether the turn may go on: neither its time nor its jobs are used up, and no other
    /// group waits for a slot or for the recheck after an end.
    fn may_chain(&self, now: Instant) -> bool {
        now < self.since + QUICK && self.jobs < MAX_CHAINED_JOBS && self.slots.all_served()
    }
}
