//! A worker's next step in the database, and the faults that can meet it.

use crate::mutation::Mutation;
use crate::protocol::{Hold, Protocol};
use crate::state::{
    Faults, JOBS, MAINTENANCE, MaintenanceStep, OPERATOR, OperatorStep, Producer, State, Step,
    Then, WORKERS, Worker,
};

impl Protocol {
    /// Takes the worker's next step in the database; returns whether there is one.
    pub fn step(&self, s: &mut State, w: usize) -> bool {
        match s.workers[w].step {
            Step::Dead | Step::Held | Step::HoldLost | Step::Leased => return false,
            Step::Idle => return self.begin_claim(s, w),
            Step::WakeLock { flags, wakes } => self.wake_row(s, w, flags, wakes),
            Step::ShareLock { flags } => self.share_claimed(s, w, flags),
            Step::GroupLock { flags } => self.lock_new(s, w, flags),
            Step::GroupSee { flags } => self.see_new(s, w, flags),
            Step::Insert { flags, head, wrong } => self.insert_new(s, w, flags, head, wrong),
            Step::TakeSee => self.see_due(s, w),
            Step::TakeLock { seen } => self.take(s, w, seen),
            Step::HeadSee { seen } => self.see_head(s, w, seen),
            Step::HeadLock { head, wrong, alone } => self.start(s, w, head, wrong, alone),
            Step::FollowSee { head } => self.see_followers(s, w, head),
            Step::FollowLock { head, next } => self.lock_followers(s, w, head, next),
            Step::SleepClear { head } => self.clear_behind(s, w, head),
            Step::RetireFreeSee => self.see_drained(s, w),
            Step::RetireFreeLock { drained } => self.retire_free(s, w, drained),
            Step::ClaimCommit { claim } => self.commit_claim(s, w, claim),
            Step::HoldSee { then } => self.see_claim(s, w, then),
            Step::HoldLock { then } => self.hold(s, w, then),
            Step::ClearSuspicion { then } => self.clear_suspicion(s, w, then),
            Step::ManySee => self.see_many(s, w),
            Step::ManyLock => self.lock_many(s, w),
            Step::ManyWrite => return self.write_many(s, w),
            Step::ParkSee => self.see_behind(s, w),
            Step::ParkLock { behind } => self.park_behind(s, w, behind),
            Step::RetireAlone => self.lock_alone(s, w),
            Step::RetireAtOnce { drained } => self.retire_at_once(s, w, drained),
            Step::Retire => self.retire(s, w),
            Step::SettleCommit | Step::ReleaseCommit => self.commit_settle(s, w, true),
            Step::StayCommit => self.commit_stay(s, w, true),
        }
        true
    }

    /// The process dies, at any step. Another one takes its place, unless the model has presence,
    /// which is to find it dead.
    pub fn crash(&self, s: &mut State, w: usize) -> bool {
        if s.workers[w].step == Step::Dead {
            return false;
        }
        s.rollback(w);
        let step = if self.presence { Step::Dead } else { Step::Idle };
        s.workers[w] = Worker::new(step, false);
        true
    }

    /// The session that the worker uses dies, and the worker lives.
    pub fn lose_session(&self, s: &mut State, w: usize) -> bool {
        let worker = s.workers[w];
        let step = match worker.step {
            Step::Dead | Step::Idle | Step::Leased | Step::HoldLost => return false,
            Step::Held => Step::HoldLost,
            Step::HoldSee { then }
            | Step::HoldLock { then, .. }
            | Step::ClearSuspicion { then } => match then {
                Then::Handle if self.is_in_the_middle(s, w) => {
                    Step::HoldSee { then: Then::Release }
                }
                // The handler is not begun and never will be: the claim's lease runs out.
                Then::Handle => {
                    s.workers[w].claim = None;
                    Step::Idle
                }
                then => Step::HoldSee { then },
            },
            Step::ReleaseCommit => Step::HoldSee { then: Then::Release },
            Step::ManySee | Step::ManyLock | Step::ManyWrite => Step::ManySee,
            Step::ParkSee
            | Step::ParkLock { .. }
            | Step::RetireAlone
            | Step::RetireAtOnce { .. }
            | Step::Retire
            | Step::SettleCommit => Step::HoldSee { then: Then::Record(worker.unrecorded) },
            Step::StayCommit => self.record_again(s, w),
            // In a claim.
            _ => worker.without_transaction(),
        };
        s.rollback(w);
        s.workers[w].step = step;
        true
    }

    /// A commit gets through, and its answer does not.
    pub fn lose_answer(&self, s: &mut State, w: usize) -> bool {
        match s.workers[w].step {
            Step::ClaimCommit { .. } | Step::SettleCommit | Step::ReleaseCommit => {
                self.commit_settle(s, w, false);
            }
            Step::StayCommit => self.commit_stay(s, w, false),
            _ => return false,
        }
        true
    }

    /// All sessions are gone, and all locks, those of presences too. `told`: the server says that
    /// all holds have become uncertain.
    pub fn restart(&self, s: &mut State, told: bool) -> bool {
        for w in 0..WORKERS {
            self.lose_session(s, w);
            s.rollback(w);
            let worker = &mut s.workers[w];
            worker.found_dead = None;
            if worker.step != Step::Dead {
                worker.present = false;
                worker.knows_down = self.presence;
            }
        }
        for producer in 0..JOBS {
            if matches!(s.producers[producer], Producer::Open { .. }) {
                s.producers[producer] = Producer::Done;
            }
        }
        s.rollback(OPERATOR);
        s.operator = OperatorStep::Idle;
        s.rollback(MAINTENANCE);
        s.maintenance = MaintenanceStep::Idle;
        s.start += u8::from(told);
        s.all_back = false;
        let counts = !told || self.is(Mutation::SuspicionOutlivesRestart);
        s.old_suspect = s.rows.group.and_then(|row| row.suspect).filter(|_| !counts);
        true
    }

    /// Ends the presence session. `word`: its process takes the server's words for those of a
    /// shutdown.
    pub fn lose_presence(&self, s: &mut State, w: usize, word: bool) -> bool {
        let worker = &mut s.workers[w];
        let lost = self.presence && worker.present && self.hold_of(w) == Hold::Lease;
        if lost {
            worker.present = false;
            worker.knows_down = word;
            worker.found_dead = None;
        }
        lost
    }

    /// Applies a fault, if one of its kind is left.
    pub fn fault(
        &self,
        s: &mut State,
        left: impl Fn(&mut Faults) -> &mut u8,
        happens: impl Fn(&Self, &mut State) -> bool,
    ) -> bool {
        if *left(&mut s.faults) == 0 || !happens(self, s) {
            return false;
        }
        *left(&mut s.faults) -= 1;
        true
    }
}
