//! A worker's next step in the database, and what can befall it on the way.

use crate::mutation::Mutation;
use crate::protocol::{Hold, Protocol};
use crate::state::{
    Faults, JANITOR, JOBS, JanitorStep, OPERATOR, OperatorStep, Producer, RunResult, State, Step,
    Then, WORKERS,
};

impl Protocol {
    /// The next thing that a worker does in the database by itself.
    pub fn step(&self, s: &mut State, w: usize) -> bool {
        match s.workers[w].step {
            Step::Dead | Step::Held { .. } | Step::HoldLost | Step::Leased => return false,
            Step::Idle => return self.begin_claim(s, w),
            Step::FlagsLock { flags } => self.lock_flags(s, w, flags),
            Step::WakeSee { flags } => self.see_free(s, w, flags),
            Step::WakeLock { flags } => self.wake_free(s, w, flags),
            Step::ShareSee { flags } => self.see_claimed(s, w, flags),
            Step::ShareLock { flags } => self.share_claimed(s, w, flags),
            Step::InsertSee { flags } => self.see_none(s, w, flags),
            Step::Insert { flags } => self.insert_new(s, w, flags),
            Step::TakeSee => self.see_due(s, w),
            Step::TakeLock { seen } => self.take(s, w, seen),
            Step::LookSee { seen } => self.see_head(s, w, seen),
            Step::LookLock { head, wrong, alone } => self.start(s, w, head, wrong, alone),
            Step::RetireFreeSee => self.see_drained(s, w),
            Step::RetireFreeLock { drained } => self.retire_free(s, w, drained),
            Step::ClaimCommit { claim } => self.commit_claim(s, w, claim),
            Step::HoldSee { then } => self.see_claim(s, w, then),
            Step::HoldLock { then, followed } => self.hold(s, w, then, followed),
            Step::Trust { then } => self.trust(s, w, then),
            Step::ManySee => self.see_many(s, w),
            Step::ManyLock => self.lock_many(s, w),
            Step::ManyWrite => return self.write_many(s, w),
            Step::ParkSee { followed } => self.see_behind(s, w, followed),
            Step::ParkLock { followed, behind } => self.park_behind(s, w, followed, behind),
            Step::RetireAlone => self.lock_alone(s, w),
            Step::RetireAtOnce { drained } => self.retire_at_once(s, w, drained),
            Step::Retire => self.retire(s, w),
            Step::SettleCommit | Step::GiveBackCommit => self.commit_settle(s, w, true),
            Step::GoOnSee { followed } => self.see_next(s, w, followed),
            Step::GoOnLock { followed, next, wrong } => self.go_on(s, w, followed, next, wrong),
            Step::GoOnCommit { claim } => self.commit_next(s, w, claim, true),
        }
        true
    }

    /// The process dies, at whatever step. Another one takes its place, unless it is to be judged.
    pub fn crash(&self, s: &mut State, w: usize) -> bool {
        if s.workers[w].step == Step::Dead {
            return false;
        }
        s.rollback(w);
        let worker = &mut s.workers[w];
        worker.step = if self.presence { Step::Dead } else { Step::Idle };
        worker.claim = None;
        worker.handler = false;
        worker.late = RunResult::default();
        worker.present = false;
        worker.knows_down = false;
        worker.judging = None;
        true
    }

    /// The session that the worker uses dies, and the worker lives.
    pub fn lose_session(&self, s: &mut State, w: usize) -> bool {
        let worker = s.workers[w];
        let step = match worker.step {
            Step::Dead | Step::Idle | Step::Leased | Step::HoldLost => return false,
            Step::Held { .. } => Step::HoldLost,
            // The handler is not begun, and nobody will: the claim's lease runs out.
            Step::HoldSee { then: Then::Handle }
            | Step::HoldLock { then: Then::Handle, .. }
            | Step::Trust { then: Then::Handle } => {
                s.workers[w].claim = None;
                Step::Idle
            }
            Step::HoldSee { then } | Step::HoldLock { then, .. } | Step::Trust { then } => {
                Step::HoldSee { then }
            }
            Step::GiveBackCommit => Step::HoldSee { then: Then::GiveBack },
            Step::ManySee | Step::ManyLock | Step::ManyWrite => Step::ManySee,
            Step::ParkSee { .. }
            | Step::ParkLock { .. }
            | Step::RetireAlone
            | Step::RetireAtOnce { .. }
            | Step::Retire
            | Step::GoOnSee { .. }
            | Step::GoOnLock { .. }
            | Step::GoOnCommit { .. }
            | Step::SettleCommit => Step::HoldSee { then: Then::Record(worker.late) },
            // In a claim.
            _ => Step::Idle,
        };
        s.rollback(w);
        s.workers[w].step = step;
        true
    }

    /// A commit gets through, and its answer does not.
    pub fn lose_answer(&self, s: &mut State, w: usize) -> bool {
        match s.workers[w].step {
            Step::ClaimCommit { .. } => {
                s.commit(w);
                s.workers[w].step = Step::Idle;
            }
            Step::SettleCommit | Step::GiveBackCommit => self.commit_settle(s, w, false),
            Step::GoOnCommit { claim } => self.commit_next(s, w, claim, false),
            _ => return false,
        }
        true
    }

    /// All sessions are gone, and all locks, those of presences too. `told`: the server's start time tells.
    pub fn restart(&self, s: &mut State, told: bool) -> bool {
        for w in 0..WORKERS {
            self.lose_session(s, w);
            s.rollback(w);
            let worker = &mut s.workers[w];
            worker.judging = None;
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
        s.rollback(JANITOR);
        s.janitor = JanitorStep::Idle;
        s.start += u8::from(told);
        s.settled = false;
        let counts = self.is(Mutation::DoubtOutlivesRestart);
        s.old_doubt = s.rows.group.and_then(|row| row.suspect).filter(|_| !counts);
        true
    }

    /// `word`: its process takes the server's words for those of a shutdown.
    pub fn lose_presence(&self, s: &mut State, w: usize, word: bool) -> bool {
        let worker = &mut s.workers[w];
        let lost = self.presence && worker.present && self.hold == Hold::Lease;
        if lost {
            worker.present = false;
            worker.knows_down = word;
            worker.judging = None;
        }
        lost
    }

    /// Something goes wrong, if that many things may.
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
