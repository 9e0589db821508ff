//! The model: a configuration of the protocol, and its possible actions.

use std::fmt;

use stateright::{Model, Property};

use crate::ending::Ends;
use crate::mutation::Mutation;
use crate::operator::Request;
use crate::state::{
    Faults, JOBS, MaintenanceStep, OperatorStep, Producer, Ready, RunResult, State, Step, WORKERS,
    Worker, each,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Hold {
    #[default]
    Transaction,
    Lease,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OutOfAttempts {
    #[default]
    Continue,
    Halt,
    Park,
}

/// One statement of one transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Enqueue {
    pub jobs: u8,
    pub may_roll_back: bool,
    /// Its `run_at` is still to come.
    pub delayed: bool,
}

/// A configuration: the work, and the faults that may occur.
#[derive(Debug, Clone, Default)]
#[allow(clippy::struct_excessive_bools)] // Each switches one thing on.
pub struct Protocol {
    pub producers: Vec<Enqueue>,
    pub workers: usize,
    pub requests: Vec<Request>,
    pub faults: Faults,
    pub hold: Hold,
    /// The workers that are receivers, a bit for each.
    pub receivers: u8,
    /// Their claims are strict.
    pub strict: bool,
    /// Handlers may ask for their transaction: `job.tx()`.
    pub tx: bool,
    pub presence: bool,
    pub max_attempts: u8,
    pub out_of_attempts: OutOfAttempts,
    /// Handlers may return errors.
    pub may_fail: bool,
    /// How often handlers may put a job off. Beyond that it is an error.
    pub max_snoozes: u8,
    /// Claims may be released before their handlers begin.
    pub may_release: bool,
    /// How many jobs of the group a worker's claim takes for one turn at most.
    pub turn: usize,
    /// A job that kills every process that runs it.
    pub deadly: Option<u8>,
    /// States that differ only in which worker is which are one state.
    pub symmetric: bool,
    /// States that differ only in how a job has ended are one state.
    pub forgetful: bool,
    pub mutation: Option<Mutation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Insert(usize),
    CommitEnqueue(usize),
    RollBackEnqueue(usize),
    Step(usize),
    PassBy(usize),
    Returns(usize, RunResult),
    SliceEnds(usize),
    FirstTx(usize),
    Release(usize),
    ReceiveAgain(usize),
    AckAtOnce(usize),
    RollBack(usize),
    FailNext(usize),
    DropHandler(usize),
    Extend(usize),
    /// The handler of a deadly job.
    Kills(usize),
    FindDead(usize),
    Suspect(usize),
    ComeBack(usize),
    AllBack,
    LeaseEnds,
    GraceEnds,
    DelayEnds(u8),
    Maintenance,
    Ask(usize),
    CarryOut,
    Crash(usize),
    LoseSession(usize),
    LoseAnswer(usize),
    LosePresence(usize),
    Terminate(usize),
    Restart,
    Recover,
    Promote,
}

/// Prints its bounds.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let jobs: Vec<u8> = self.producers.iter().map(|producer| producer.jobs).collect();
        write!(f, "1 group, {} workers, jobs {jobs:?}, hold: {:?}", self.workers, self.hold)?;
        write!(f, ", receivers {}", self.receivers.count_ones())?;
        write!(f, "{}", if self.strict { ", strict" } else { "" })?;
        write!(f, ", at most {} attempts, then: {:?}", self.max_attempts, self.out_of_attempts)?;
        write!(f, "; at most {:?}", self.faults)?;
        write!(f, "; turns of {}, requests {:?}", self.turn, self.requests)
    }
}

impl Protocol {
    pub fn is(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub fn hold_of(&self, w: usize) -> Hold {
        if self.is_receiver(w) { Hold::Lease } else { self.hold }
    }

    pub fn with(mut self, mutation: Mutation) -> Self {
        self.mutation = Some(mutation);
        self
    }

    pub fn asking(mut self, requests: &[Request]) -> Self {
        self.requests = requests.to_vec();
        self
    }

    /// Applies an action; returns whether it was possible.
    fn apply(&self, s: &mut State, action: Action) -> bool {
        match action {
            Action::Insert(p) => self.insert(s, p),
            Action::CommitEnqueue(p) => self.commit_enqueue(s, p),
            Action::RollBackEnqueue(p) => self.roll_back_enqueue(s, p),
            Action::Step(w) => self.step(s, w),
            Action::PassBy(w) => self.pass_by(s, w),
            Action::Returns(w, result) => !self.runs_deadly(s, w) && self.returns(s, w, result),
            Action::SliceEnds(w) => !self.runs_deadly(s, w) && self.slice_ends(s, w),
            Action::FirstTx(w) => self.first_tx(s, w),
            Action::Release(w) => self.release(s, w),
            Action::ReceiveAgain(w) => self.receive_again(s, w),
            Action::AckAtOnce(w) => self.ack_at_once(s, w),
            Action::RollBack(w) => self.roll_back(s, w),
            Action::FailNext(w) => self.fault(s, |f| &mut f.holds, |p, s| p.fail_next(s, w)),
            Action::DropHandler(w) => self.drop_handler(s, w),
            Action::Extend(w) => self.extend(s, w),
            Action::Kills(w) => self.runs_deadly(s, w) && self.crash(s, w),
            Action::FindDead(w) => self.find_dead(s, w),
            Action::Suspect(w) => self.suspect(s, w),
            Action::ComeBack(w) => self.come_back(s, w),
            Action::AllBack => self.come_all_back(s),
            Action::LeaseEnds => self.lease_ends(s),
            Action::GraceEnds => self.grace_ends(s),
            Action::DelayEnds(job) => self.delay_ends(s, job),
            Action::Maintenance => self.run_maintenance(s),
            Action::Ask(request) => self.ask(s, request),
            Action::CarryOut => self.carry_out(s),
            Action::Crash(w) => self.fault(s, |f| &mut f.crashes, |p, s| p.crash(s, w)),
            Action::LoseSession(w) => {
                self.fault(s, |f| &mut f.sessions, |p, s| p.lose_session(s, w))
            }
            Action::LoseAnswer(w) => self.fault(s, |f| &mut f.sessions, |p, s| p.lose_answer(s, w)),
            Action::LosePresence(w) => {
                self.fault(s, |f| &mut f.sessions, |p, s| p.lose_presence(s, w, false))
            }
            Action::Terminate(w) => {
                let word = self.is(Mutation::TerminationIsAShutdown);
                self.fault(s, |f| &mut f.terminations, |p, s| p.lose_presence(s, w, word))
            }
            Action::Restart => self.fault(s, |f| &mut f.restarts, |p, s| p.restart(s, true)),
            Action::Recover => {
                let told = !self.is(Mutation::RecoveryIsNoStart);
                self.fault(s, |f| &mut f.recoveries, |p, s| p.restart(s, told))
            }
            Action::Promote => {
                let told = !self.is(Mutation::PromotionIsNoStart);
                self.fault(s, |f| &mut f.promotions, |p, s| p.restart(s, told))
            }
        }
    }

    fn runs_deadly(&self, s: &State, w: usize) -> bool {
        let worker = &s.workers[w];
        worker.handler && worker.claim.is_some_and(|claim| Some(claim.job) == self.deadly)
    }
}

impl Ends for Protocol {
    /// No committed job is unfinished, and neither a flag nor the group's row is left; or the group
    /// is halted, which only a request ends.
    fn ended(&self, s: &State) -> bool {
        s.rows.unfinished() == 0 && s.rows.flagged() == 0 && s.rows.group.is_none()
            || s.rows.group.is_some_and(|row| row.halted_by.is_some() && row.park_to.is_none())
    }

    fn is_ordinary(&self, action: Action) -> bool {
        !matches!(
            action,
            Action::Insert(_)
                | Action::CommitEnqueue(_)
                | Action::RollBackEnqueue(_)
                | Action::Ask(_)
                | Action::Crash(_)
                | Action::LoseSession(_)
                | Action::LoseAnswer(_)
                | Action::LosePresence(_)
                | Action::Terminate(_)
                | Action::Restart
                | Action::Recover
                | Action::Promote
                | Action::ReceiveAgain(_)
                | Action::AckAtOnce(_)
                | Action::RollBack(_)
                | Action::FailNext(_)
        )
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut workers = [Worker::new(Step::Dead, false); WORKERS];
        workers[..self.workers].fill(Worker::new(Step::Idle, self.presence));
        let mut producers = [Producer::Done; JOBS];
        producers[..self.producers.len()].fill(Producer::Waiting);
        vec![State {
            rows: <_>::default(),
            transactions: <_>::default(),
            locks: <_>::default(),
            producers,
            next_id: 0,
            workers,
            operator: OperatorStep::Idle,
            two_rows: false,
            waited: false,
            requested: 0,
            maintenance: MaintenanceStep::Idle,
            start: 0,
            all_back: true,
            old_suspect: None,
            faults: self.faults,
            seen: <_>::default(),
        }]
    }

    /// Lists actions that may be possible; `next_state` decides.
    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        for p in 0..self.producers.len() {
            match s.producers[p] {
                Producer::Waiting => actions.push(Action::Insert(p)),
                Producer::Open { .. } => {
                    actions.extend([Action::CommitEnqueue(p), Action::RollBackEnqueue(p)]);
                }
                Producer::Done => {}
            }
        }
        for w in 0..self.workers {
            actions.push(Action::Step(w));
            if self.may_release {
                actions.push(Action::Release(w));
            }
            if self.is_receiver(w) {
                actions.extend([
                    Action::ReceiveAgain(w),
                    Action::AckAtOnce(w),
                    Action::RollBack(w),
                ]);
            }
            if s.faults.holds > 0 {
                actions.push(Action::FailNext(w));
            }
            if s.workers[w].step == Step::TakeSee {
                actions.push(Action::PassBy(w));
            }
            if s.workers[w].handler {
                actions.extend([
                    Action::Returns(w, RunResult::Success),
                    Action::SliceEnds(w),
                    Action::DropHandler(w),
                ]);
                let possible = [
                    (self.may_fail, Action::Returns(w, RunResult::Error)),
                    (self.max_snoozes > 0, Action::Returns(w, RunResult::Snooze)),
                    (self.tx, Action::FirstTx(w)),
                    (self.deadly.is_some(), Action::Kills(w)),
                ];
                actions.extend(possible.iter().filter(|(is, _)| *is).map(|(_, action)| action));
            }
            if s.workers[w].claim.is_some() {
                actions.push(Action::Extend(w));
            }
            if self.presence {
                actions.extend([Action::FindDead(w), Action::Suspect(w), Action::ComeBack(w)]);
            }
            if s.faults.crashes > 0 {
                actions.push(Action::Crash(w));
            }
            if s.faults.sessions > 0 {
                actions.extend([
                    Action::LoseSession(w),
                    Action::LoseAnswer(w),
                    Action::LosePresence(w),
                ]);
            }
        }
        match s.rows.group.map(|row| row.ready) {
            Some(Ready::Lease) => actions.push(Action::LeaseEnds),
            Some(Ready::Grace { .. } | Ready::AfterRestart) => actions.push(Action::GraceEnds),
            _ => {}
        }
        for job in each(s.rows.which(|_, row| !row.due)) {
            actions.push(Action::DelayEnds(job));
        }
        if !s.all_back {
            actions.push(Action::AllBack);
        }
        let faults = [
            (s.faults.restarts, Action::Restart),
            (s.faults.recoveries, Action::Recover),
            (s.faults.promotions, Action::Promote),
        ];
        actions.extend(faults.iter().filter(|(left, _)| *left > 0).map(|(_, fault)| fault));
        if s.faults.terminations > 0 {
            actions.extend((0..self.workers).map(Action::Terminate));
        }
        let cancels = self.requests.iter().any(|request| matches!(request, Request::Cancel(_)));
        if cancels || self.out_of_attempts == OutOfAttempts::Park {
            actions.push(Action::Maintenance);
        }
        if s.operator == OperatorStep::Idle {
            let open = (0..self.requests.len()).filter(|it| s.requested & 1 << it == 0);
            actions.extend(open.map(Action::Ask));
        } else {
            actions.push(Action::CarryOut);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = *last;
        if !self.apply(&mut s, action) {
            return None;
        }
        self.wake(&mut s);
        // A job that has ended, or stepped aside, is waited for no more.
        let over = s.rows.which(|_, row| !row.status.unfinished());
        for before in &mut s.seen.before {
            *before &= !over;
        }
        if self.forgetful {
            let named = s.rows.group.map_or(0, |row| row.jobs);
            s.forget(over & !named & !self.may_come_back(&s));
        }
        if self.symmetric {
            s.sort_workers(self.workers);
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        crate::properties::all()
    }
}
