//! Batches: jobs that join in transactions of their own, a seal, ends that commit late, and looks
//! side by side that start one follow-up.

mod checks;
mod job;
mod look;
mod mutants;
mod state;
mod story;

use stateright::{Model, Property};

use crate::ending::Ends;
use state::{Job, JobState, Look, Seal, State, Step};

pub const ONCE: &str = "a batch starts one follow-up";
pub const BEHIND: &str = "P3 a follow-up starts behind the ends of all jobs that joined";
pub const SUCCEEDED: &str = "a follow-up that needs successes starts behind these alone";
pub const NO_WAIT: &str = "P3 neither a seal nor an end waits for an open transaction";

/// One broken rule of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A look reads the batch by a snapshot, and does not lock it.
    LookWithoutLock,
    /// A look does not keep what was due for a batch that it could not lock.
    ForgetTheLocked,
    /// A look reads jobs before it locks the batch.
    ReadJobsBeforeTheLock,
    /// A look reads jobs before it reads what is due.
    ReadJobsBeforeWhatIsDue,
    /// A look deletes all that is due for the batch, also what it has not read.
    DeleteAll,
    /// A job joins by a snapshot, and does not lock the batch.
    JoinWithoutLock,
    /// The end of a batch is an update of no key: a join that has read it before takes its lock.
    EndOfNoKey,
    /// A look takes the batch while another transaction has joined it.
    LookBesideJoins,
    /// A look does not ask for the seal.
    LookBeforeTheSeal,
    /// A seal leaves nothing that is due.
    SealLeavesNothing,
    /// A seal locks the batch's row alone, against joins.
    SealLocksAlone,
    /// An end says that it is due in a transaction of its own, before its own commit.
    DueBeforeTheEnd,
    /// The job that ends last looks by itself, in its own transaction, and leaves nothing.
    LastEndLooks,
    /// The end of a job that runs again leaves its first end as it was.
    FirstEndCounts,
    /// The end of a failed job is not asked for.
    AnyEndIsASuccess,
}

/// A configuration: a batch, and transactions that each let one job join.
#[derive(Debug, Clone)]
pub struct Batch {
    pub jobs: usize,
    pub looks: usize,
    /// Jobs may fail, and the follow-up needs successes.
    pub may_fail: bool,
    /// How many jobs that have failed are retried.
    pub retries: u8,
    /// States that differ only in which job or which look is which are one state.
    pub symmetric: bool,
    pub mutation: Option<Mutation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    ReadToJoin(usize),
    Join(usize),
    CommitJoin(usize),
    RollBackJoin(usize),
    OpenEnd(usize, bool),
    CommitEnd(usize),
    RollBackEnd(usize),
    Retry(usize),
    Seal,
    CommitSeal,
    RollBackSeal,
    Look(usize),
    /// The session dies.
    LoseLook(usize),
}

impl Batch {
    pub fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Applies an action; returns whether it was possible.
    fn apply(&self, s: &mut State, action: Action) -> bool {
        match action {
            Action::ReadToJoin(job) => self.read_to_join(s, job),
            Action::Join(job) => self.join(s, job),
            Action::CommitJoin(job) | Action::RollBackEnd(job) => {
                s.jobs[job].state = JobState::Unfinished;
                true
            }
            Action::RollBackJoin(job) => {
                s.jobs[job].state = JobState::Gone;
                true
            }
            Action::OpenEnd(job, succeeds) => self.open_end(s, job, succeeds),
            Action::CommitEnd(job) => self.commit_end(s, job),
            Action::Retry(job) => {
                s.retries += 1;
                s.jobs[job] = Job { state: JobState::Unfinished, again: s.ended, ..s.jobs[job] };
                true
            }
            Action::Seal => self.open_seal(s),
            Action::CommitSeal => {
                s.seal = Seal::Sealed;
                s.append(u8::from(!self.is(Mutation::SealLeavesNothing)));
                true
            }
            Action::RollBackSeal => {
                s.seal = Seal::No;
                true
            }
            Action::Look(look) => self.look(s, look),
            Action::LoseLook(look) => {
                s.looks[look] = Look::default();
                true
            }
        }
    }
}

impl Model for Batch {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut first = State::default();
        for job in &mut first.jobs[..self.jobs] {
            job.state = JobState::Waits;
        }
        vec![first]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for job in 0..self.jobs {
            match s.jobs[job].state {
                JobState::Waits => actions.push(Action::ReadToJoin(job)),
                JobState::Read => actions.push(Action::Join(job)),
                JobState::Joined => {
                    actions.extend([Action::CommitJoin(job), Action::RollBackJoin(job)]);
                }
                JobState::Unfinished => {
                    actions.push(Action::OpenEnd(job, true));
                    if self.may_fail {
                        actions.push(Action::OpenEnd(job, false));
                    }
                }
                JobState::Ending { .. } => {
                    actions.extend([Action::CommitEnd(job), Action::RollBackEnd(job)]);
                }
                JobState::Ended { succeeded: false } if s.retries < self.retries => {
                    actions.push(Action::Retry(job));
                }
                JobState::Ended { .. } | JobState::Gone => {}
            }
        }
        match s.seal {
            Seal::No => actions.push(Action::Seal),
            Seal::Open => actions.extend([Action::CommitSeal, Action::RollBackSeal]),
            Seal::Sealed => {}
        }
        for look in 0..self.looks {
            actions.push(Action::Look(look));
            if s.looks[look].step != Step::Idle {
                actions.push(Action::LoseLook(look));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = *last;
        let possible = self.apply(&mut s, action);
        if self.symmetric {
            s.jobs[..self.jobs].sort_unstable();
            s.looks[..self.looks].sort_unstable();
        }
        Some(s).filter(|s| possible && s != last)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONCE, |_, s: &State| s.follow_ups <= 1),
            Property::always(BEHIND, |_, s: &State| !s.ended || is_over(s)),
            Property::always(SUCCEEDED, |model: &Self, s: &State| {
                !model.may_fail || !s.ended || !s.early
            }),
            Property::always(NO_WAIT, |_, s: &State| !s.waited),
        ]
    }
}

/// Returns whether the batch is sealed, and no job of it is unfinished, but for those that have
/// ended and run again since.
fn is_over(s: &State) -> bool {
    let unfinished = |job: &Job| {
        matches!(job.state, JobState::Unfinished | JobState::Ending { .. } | JobState::Joined)
    };
    s.seal == Seal::Sealed && s.jobs.iter().all(|job| job.again || !unfinished(job))
}

impl Ends for Batch {
    /// The follow-up is started, or the batch is known to have failed. One that is not sealed waits
    /// for its producer.
    fn ended(&self, s: &State) -> bool {
        let failed = |job: &Job| job.state == JobState::Ended { succeeded: false };
        s.seal == Seal::No || s.ended || s.failed && is_over(s) && s.jobs.iter().any(failed)
    }

    fn is_ordinary(&self, action: Action) -> bool {
        !matches!(action, Action::Retry(_) | Action::Seal | Action::LoseLook(_))
    }
}
