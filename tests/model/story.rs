//! A counterexample, printed as a numbered list.

use std::fmt::Write;
use std::hash::Hash;

use stateright::Model;

use crate::ending::{Ends, shortest, walk};
use crate::protocol::{Action, Protocol};
use crate::state::{JOBS, State, Step, each};

/// A model whose stories are printed as numbered lists.
pub trait Told: Model<State: Copy, Action: Copy> {
    /// Returns what happens.
    fn say(&self, before: &Self::State, action: Self::Action) -> String;

    /// Returns what is stored.
    fn rows(&self, state: &Self::State) -> String;

    /// Returns a story as a numbered list.
    fn tell(&self, steps: &[(Self::State, Self::Action)]) -> String {
        let mut text = String::new();
        for (number, (before, action)) in steps.iter().enumerate() {
            let after = self.next_state(before, *action).unwrap_or(*before);
            let (said, rows) = (self.say(before, *action), self.rows(&after));
            let _ = writeln!(text, "{:>4}. {said:<70} | {rows}", number + 1);
        }
        text
    }
}

impl Told for Protocol {
    fn say(&self, before: &State, action: Action) -> String {
        say(before, action)
    }

    fn rows(&self, state: &State) -> String {
        rows(state)
    }
}

/// Finds and prints the shortest story that violates this promise.
pub fn violates<M: Told<State: Hash>>(name: &str, model: &M, promise: &'static str) {
    let steps =
        shortest(model, promise).unwrap_or_else(|| panic!("{name} does not break {promise}"));
    println!("{name} breaks {promise}:\n{}", model.tell(&steps));
}

/// Finds and prints the shortest story after which not everything can end.
pub fn strands<M: Ends>(name: &str, model: &M) {
    let steps = walk(model).stuck.unwrap_or_else(|| panic!("{name} strands nothing"));
    println!("{name} lets something wait for ever:\n{}", model.tell(&steps));
}

fn say(before: &State, action: Action) -> String {
    match action {
        Action::Insert(p) => format!("producer {p} inserts, from id {} on", before.next_id),
        Action::CommitEnqueue(p) => format!("producer {p} commits"),
        Action::RollBackEnqueue(p) => format!("producer {p} rolls back"),
        Action::Step(w) => format!("worker {w}: {}", step(before.workers[w].step)),
        Action::PassBy(w) => format!("worker {w} has no slot left for the group"),
        Action::Returns(w, result) => format!("worker {w}'s handler returns: {result:?}"),
        Action::Release(w) => format!("no slot comes free for the job of worker {w}"),
        Action::ReceiveAgain(w) => format!("receiver {w} receives in the same transaction"),
        Action::AckAtOnce(w) => format!("receiver {w} acks in the transaction that received"),
        Action::RollBack(w) => format!("receiver {w} rolls back"),
        Action::FailNext(w) => format!("worker {w}'s commit gets through, the next hold fails"),
        Action::SliceEnds(w) => {
            format!("worker {w}'s handler returns: Success, and the slice is over")
        }
        Action::FirstTx(w) => format!("worker {w}'s handler asks for its transaction"),
        Action::DropHandler(w) => format!("worker {w} notices its loss and drops its handler"),
        Action::Extend(w) => format!("worker {w} extends its lease"),
        Action::Kills(w) => format!("the handler kills worker {w}"),
        Action::FindDead(w) => format!("worker {w} finds the other one dead: its lock is free"),
        Action::Suspect(w) => format!("worker {w} suspects the other one's claims"),
        Action::ComeBack(w) => format!("worker {w} shows its presence again"),
        Action::AllBack => "every process has had the time to come back".into(),
        Action::LeaseEnds => "the lease is over".into(),
        Action::GraceEnds => "the grace is over".into(),
        Action::DelayEnds(job) => format!("job {job} is due again"),
        Action::Maintenance => format!("maintenance: {:?}", before.maintenance),
        Action::Ask(request) => format!("a request is made: number {request}"),
        Action::CarryOut => format!("the request is carried out: {:?}", before.operator),
        Action::Crash(w) => format!("worker {w} dies"),
        Action::LoseSession(w) => format!("worker {w}'s session dies"),
        Action::LoseAnswer(w) => format!("worker {w}'s commit gets through, its answer does not"),
        Action::LosePresence(w) => format!("worker {w}'s presence session dies"),
        Action::Terminate(w) => format!("worker {w}'s presence session is terminated"),
        Action::Restart => "the server restarts".into(),
        Action::Recover => "the server recovers from a crash, its postmaster lives on".into(),
        Action::Promote => "a standby that has all of it is promoted".into(),
    }
}

fn step(step: Step) -> String {
    let said = match step {
        Step::Idle => "reads flags, and the group's row",
        Step::WakeLock { .. } => "adopts: locks the free row it saw",
        Step::ShareLock { .. } => "adopts: shares the claimed row it saw",
        Step::GroupLock { .. } => "adopts: tries the lock of the group, as it saw no row",
        Step::GroupSee { .. } => "adopts: looks again, and reads the head",
        Step::Insert { head: Some(_), .. } => {
            "adopts: locks the head and inserts the row that names it"
        }
        Step::Insert { head: None, .. } => "adopts: clears flags, as no job is unfinished",
        Step::TakeSee => "checks whether the group is due",
        Step::TakeLock { .. } => "locks the group that was due",
        Step::HeadSee { .. } => "reads the head",
        Step::HeadLock { .. } => "locks the head and names it in the row",
        Step::FollowSee { .. } => "reads the jobs behind the head",
        Step::FollowLock { .. } => "locks them, and names head and followers in the row",
        Step::SleepClear { .. } => "lets the group sleep, and clears flags behind its head",
        Step::RetireFreeSee => "checks whether the group is drained",
        Step::RetireFreeLock { .. } => "locks the row alone and retires the group",
        Step::ClaimCommit { claim: Some(_) } => "commits its claim",
        Step::ClaimCommit { claim: None } => "commits",
        Step::HoldSee { .. } => "checks whether its claim stands",
        Step::HoldLock { .. } => "locks the group by its claim, and the job",
        Step::ClearSuspicion { .. } => "clears the suspicion",
        Step::ReleaseCommit => "releases its claim: commits",
        Step::ManySee => "settles: checks whether its claim stands",
        Step::ManyLock => "settles: locks the row alone",
        Step::ManyWrite => "settles: records, and passes the turn or retires",
        Step::ParkSee => "parks: reads which jobs are behind",
        Step::ParkLock { .. } => "parks the jobs that it saw",
        Step::RetireAlone => "locks the row alone, if no adopter shares it",
        Step::RetireAtOnce { .. } => "locks the row and deletes it by what it saw",
        Step::Retire => "reads once more, and deletes the row of a drained group",
        Step::SettleCommit => "commits the outcome",
        Step::StayCommit => "commits what came of its job; the turn goes on",
        _ => "continues",
    };
    said.into()
}

fn rows(s: &State) -> String {
    let mut text = String::new();
    for id in 0..JOBS {
        if let Some(job) = s.rows.jobs[id] {
            let flag = if job.flagged { "*" } else { "" };
            let _ = write!(text, " {id}{flag} {:?}/{}", job.status, job.attempts);
        }
    }
    match s.rows.group {
        None => text.push_str(" | no row"),
        Some(row) => {
            let _ = write!(text, " | head {}, {:?}", row.head, row.ready);
            if let Some(token) = row.claim {
                let begun = if row.started { "" } else { " (no attempt)" };
                let jobs: Vec<u8> = each(row.jobs).collect();
                let _ = write!(text, ", claim {token} of {jobs:?}{begun}");
            }
            if row.suspect.is_some() {
                text.push_str(", suspected");
            }
        }
    }
    for (w, _) in s.workers.iter().enumerate().filter(|(_, worker)| worker.handler) {
        let _ = write!(text, " | {w} handles");
    }
    text
}
