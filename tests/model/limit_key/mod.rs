//! The limit per key: several groups of one key, claims side by side, ends that commit late.
//!
//! As the model of pages, it has only what decides: rows, locks, slots and snapshots. A group is
//! adopted, and has one head.

mod checks;
mod claim;
mod mutants;
mod outside;
mod state;
mod story;

use stateright::{Model, Property};

use crate::ending::Ends;
use state::{Change, End, GROUPS, Group, Row, State, Step};

pub const LIMIT: &str = "a claim counts no more groups of a key than its limit";
pub const FIRST: &str = "P8 the group that has waited longest is woken first";
pub const ONCE: &str = "P8 a group that was woken is not gated again";
pub const AT_ONCE: &str = "P8 a free slot is known while a group waits for it";
pub const NO_WAIT: &str = "P3 an end waits for no open transaction";

/// One broken rule of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A claim counts slots, and then locks the key.
    CountBeforeTheLock,
    /// The end of a claim appends no slot.
    EndAppendsNothing,
    /// The slot is appended in a transaction of its own, before that of the end commits.
    EndAppendsFirst,
    /// An end wakes the first gated group that it sees, and appends nothing.
    EndWakesItself,
    /// Freed slots are deleted, and groups woken for them, without the key's lock.
    WakeWithoutLock,
    /// Slots are counted by the snapshot that reads the freed ones.
    CountBeforeTheDelete,
    /// No slot is kept for a woken group.
    KeepNoSlot,
    /// The group that was gated last is woken first.
    WakeTheLast,
    /// Gated groups that a claim leaves behind, with slots left, are forgotten.
    ForgetTheRest,
    /// A claim that does not get the key gates the group, and asks nobody to look again.
    ForgetWithoutLock,
    /// A claim that does not get the key relies on a freed slot that it has not locked.
    RelyOnAnyNote,
    /// A woken group that has no job any more keeps its slot.
    KeepSlotForNothing,
    /// A change of the limit appends nothing.
    ChangeWakesNobody,
    /// A claim that is taken over gives its slot back.
    TakeOverFreesTheSlot,
    /// A group that begins when the limit was removed loses the slot that it has.
    SlotGoesWithTheLimit,
    /// A claim reads the limit once more as it writes what it starts.
    ReadTheLimitTwice,
    /// A claim counts by the key's own limit as it was before the lock.
    ReadOwnLimitBeforeTheLock,
    /// A change of the key's own limit appends a slot only if it sees a gated group.
    OwnChangeLooksForGated,
    /// A group that is adopted comes to its turn without the slot that its row has.
    AdoptWithoutTheSlot,
}

#[derive(Debug, Clone, Copy)]
pub struct Claimer {
    pub slots: u8,
    /// A receiver: its transaction may have several calls.
    pub receives: bool,
}

/// A configuration. All groups have one key.
#[derive(Debug, Clone)]
pub struct LimitKey {
    /// The jobs of each group.
    pub jobs: Vec<u8>,
    pub claims: Vec<Claimer>,
    pub limit: u8,
    /// Changes of the limit, one after the other; 0 removes it.
    pub changes: Vec<u8>,
    /// The limit is the key's own: claims read it behind the key's lock, and a change of it always
    /// appends a slot.
    pub own: bool,
    /// How many workers may die.
    pub crashes: u8,
    /// How many jobs may be cancelled.
    pub cancels: u8,
    /// Claims may be released before their handlers begin.
    pub may_release: bool,
    /// States that differ only in which claim is which are one state.
    pub symmetric: bool,
    pub mutation: Option<Mutation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Step(usize),
    ReceiveAgain(usize),
    RollBack(usize),
    OpenEnd(usize),
    CommitEnd(usize),
    RollBackEnd(usize),
    Release(usize),
    Crash(usize),
    Cancel(usize),
    OpenChange,
    CommitChange,
}

impl LimitKey {
    pub fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub fn with_symmetry(&self) -> Self {
        let alike = self.claims.iter().all(|it| it.slots == self.claims[0].slots);
        let symmetric = alike && self.claims.iter().all(|it| !it.receives);
        Self { symmetric, ..self.clone() }
    }
}

impl Model for LimitKey {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut first = State { limit: self.limit, line: [0, 1, 2], ..State::default() };
        for (group, jobs) in self.jobs.iter().enumerate() {
            first.jobs[group] = *jobs;
            first.groups[group] = Group { row: Row::Line, ..<_>::default() };
        }
        vec![first]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for (it, claim) in self.claims.iter().enumerate() {
            actions.push(Action::Step(it));
            if s.claims[it].step == Step::Commit {
                actions.push(Action::RollBack(it));
                if claim.receives {
                    actions.push(Action::ReceiveAgain(it));
                }
            }
        }
        for group in 0..self.jobs.len() {
            if s.ends[group] != End::None {
                actions.extend([Action::CommitEnd(group), Action::RollBackEnd(group)]);
            }
            if self.may_end(s, group) {
                actions.push(Action::OpenEnd(group));
                if self.may_release {
                    actions.push(Action::Release(group));
                }
            }
            let lives = s.groups[group].row == Row::Claimed && !s.groups[group].lapsed;
            if lives && s.crashes < self.crashes {
                actions.push(Action::Crash(group));
            }
            if s.cancels < self.cancels && self.may_cancel(s, group) {
                actions.push(Action::Cancel(group));
            }
        }
        match s.change {
            Change::Open { .. } => actions.push(Action::CommitChange),
            Change::None if (s.changes as usize) < self.changes.len() => {
                actions.push(Action::OpenChange);
            }
            Change::None => {}
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = *last;
        match action {
            Action::Step(it) => self.step(&mut s, it),
            Action::ReceiveAgain(it) => self.begin(&mut s, it),
            Action::RollBack(it) => self.roll_back(&mut s, it),
            Action::OpenEnd(group) => self.open_end(&mut s, group),
            Action::CommitEnd(group) => {
                let End::Open { wakes } = s.ends[group] else { return None };
                self.commit_end(&mut s, group, wakes);
            }
            Action::RollBackEnd(group) => s.ends[group] = End::None,
            Action::Release(group) => self.release(&mut s, group),
            Action::Crash(group) => self.crash(&mut s, group),
            Action::Cancel(group) => {
                s.jobs[group] = 0;
                s.cancels += 1;
            }
            Action::OpenChange => self.open_change(&mut s),
            Action::CommitChange => {
                let Change::Open { appends } = s.change else { return None };
                self.commit_change(&mut s, appends);
            }
        }
        if self.symmetric {
            s.claims[..self.claims.len()].sort_unstable();
        }
        Some(s).filter(|s| s != last)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LIMIT, |_, s: &State| !s.over),
            Property::always(FIRST, |_, s: &State| !s.unfair),
            Property::always(ONCE, |_, s: &State| !s.gated_again),
            Property::always(AT_ONCE, |_, s: &State| knows(s)),
            Property::always(NO_WAIT, |_, s: &State| !s.waited),
        ]
    }
}

impl Ends for LimitKey {
    fn ended(&self, s: &State) -> bool {
        s.jobs == [0; GROUPS]
    }

    fn is_ordinary(&self, action: Action) -> bool {
        matches!(
            action,
            Action::Step(_) | Action::OpenEnd(_) | Action::CommitEnd(_) | Action::CommitChange
        )
    }
}

/// Returns whether a freed slot is there for the groups that are gated while the key has room. Not
/// while a transaction is open; and a claim beside a change of the queue's limit may gate by the
/// limit of before.
fn knows(s: &State) -> bool {
    let open = s.claims.iter().any(|claim| claim.step != Step::Idle)
        || s.ends.iter().any(|end| *end != End::None)
        || s.change != Change::None;
    let gated = s.groups.iter().any(|group| group.row == Row::Gated);
    let taken = s.groups.iter().filter(|group| group.slot).count() as u8;
    let room = s.limit == 0 || taken < s.limit;
    open || s.beside || !gated || !room || s.freed != 0
}
