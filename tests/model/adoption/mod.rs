//! Pages of flags: several groups, several claims at once, transactions that stay open.
//!
//! The other model has one group, and all that happens to it. This one has up to three, and only
//! what decides whose turn it is: flags, rows, locks and slots. Its promises are those of fairness.

mod checks;
mod claim;
mod mutants;
mod outside;
mod state;
mod story;

use stateright::{Model, Property};

use crate::ending::Ends;
use state::{Group, JobState, State, Step};

pub const FAIR: &str = "P8 an idle group's due job is started by a claim with a free slot";
pub const CONFINED: &str = "P3 an open claim has locked only what it starts";

/// One broken rule of adoption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A claim ends its pages at one whose flags it has cleared.
    StopAtClearedFlags,
    /// Flags are read in the order of their enqueues.
    OrderWithoutPriority,
    /// A turn that starts nothing uses up a slot.
    EmptyTurnsCount,
    /// One adopter per queue, until its commit.
    OneAdopter,
    /// A claim locks all new groups of a page before it starts the first.
    LockThePage,
    /// A receive keeps the groups that it has met and cannot start.
    KeepTheRefused,
}

/// A group, as its first state has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No row.
    Idle,
    /// Claimed, by a worker outside of the model.
    Busy,
    /// Its setting is paused; it has no row yet.
    Paused,
    /// Its row rests until the pause ends.
    Resting,
    /// Its head is locked by another open transaction; it has no row yet.
    Locked,
    /// Its row sleeps until its head's time, and the flagged jobs are behind that.
    Sleeping,
}

#[derive(Debug, Clone, Copy)]
pub struct Job {
    pub group: usize,
    pub enqueued: i8,
    pub priority: i8,
    /// It is committed at any moment, not before the first.
    pub later: bool,
}

impl Job {
    /// Its place in the line.
    pub fn position(&self) -> i8 {
        self.enqueued - 10 * self.priority
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Session {
    pub slots: u8,
    /// A receiver: its transaction may stay open, and have several calls.
    pub receives: bool,
}

/// A configuration. Ids are places in `jobs`.
#[derive(Debug, Clone)]
pub struct Adoption {
    pub kinds: Vec<Kind>,
    pub jobs: Vec<Job>,
    pub sessions: Vec<Session>,
    /// The number of flags in a page.
    pub page: usize,
    /// Jobs that run keep their flags. Else a state less: they are like those of a busy group.
    pub flags_stay: bool,
    pub mutation: Option<Mutation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Enqueue(usize),
    /// The turn of a claimed group ends.
    Settle(usize),
    Step(usize),
    ReceiveAgain(usize),
    RollBack(usize),
}

impl Adoption {
    pub fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }
}

impl Model for Adoption {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut first = State::default();
        for (job, state) in self.jobs.iter().zip(&mut first.jobs) {
            *state = if job.later { JobState::Open } else { JobState::Flagged };
        }
        for (kind, group) in self.kinds.iter().zip(&mut first.groups) {
            *group = match kind {
                Kind::Idle | Kind::Paused | Kind::Locked => Group::NoRow,
                Kind::Busy => Group::Claimed,
                Kind::Resting | Kind::Sleeping => Group::Asleep,
            };
        }
        vec![first]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        let open = (0..self.jobs.len()).filter(|job| s.jobs[*job] == JobState::Open);
        actions.extend(open.map(Action::Enqueue));
        let claimed = (0..self.kinds.len()).filter(|group| s.groups[*group] == Group::Claimed);
        actions.extend(claimed.map(Action::Settle));
        for session in 0..self.sessions.len() {
            actions.push(Action::Step(session));
            if self.sessions[session].receives && s.claims[session].step == Step::Commit {
                actions.extend([Action::ReceiveAgain(session), Action::RollBack(session)]);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = *last;
        match action {
            Action::Enqueue(job) => s.jobs[job] = JobState::Flagged,
            Action::Settle(group) => self.settle(&mut s, group),
            Action::Step(session) => self.step(&mut s, session),
            Action::ReceiveAgain(session) => self.begin(&mut s, session),
            Action::RollBack(session) => s.claims[session] = <_>::default(),
        }
        Some(s).filter(|s| s != last)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(FAIR, |_, s: &State| !s.unfair),
            Property::always(CONFINED, |_, s: &State| !s.unconfined),
        ]
    }
}

impl Ends for Adoption {
    /// Each state alone keeps its promises or breaks them.
    fn ended(&self, _: &State) -> bool {
        true
    }

    fn is_ordinary(&self, _: Action) -> bool {
        false
    }
}
