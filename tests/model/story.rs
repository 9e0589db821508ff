//! A counterexample, told as a numbered list.

use std::fmt::Write;

use stateright::{Model, Path};

use crate::protocol::{Action, Protocol};
use crate::state::{JOBS, State, Step};

pub fn tell(model: &Protocol, steps: &[(State, Action)]) -> String {
    let mut text = String::new();
    for (number, (before, action)) in steps.iter().enumerate() {
        let after = model.next_state(before, *action).unwrap_or(*before);
        let _ = writeln!(text, "{:>4}. {:<70} {}", number + 1, say(before, *action), rows(&after));
    }
    text
}

/// The steps of a path up to the first state that violates the promise: Stateright may have gone on for a while.
pub fn steps_to(
    path: Path<State, Action>,
    model: &Protocol,
    promise: &'static str,
) -> Vec<(State, Action)> {
    let property = model.property(promise);
    let fine = path.into_vec().into_iter().take_while(|(s, _)| (property.condition)(model, s));
    fine.filter_map(|(state, action)| Some((state, action?))).collect()
}

fn say(before: &State, action: Action) -> String {
    match action {
        Action::Insert(p) => format!("producer {p} inserts, from id {} on", before.next_id),
        Action::CommitEnqueue(p) => format!("producer {p} commits"),
        Action::RollBackEnqueue(p) => format!("producer {p} rolls back"),
        Action::Step(w) => format!("worker {w}: {}", step(before.workers[w].step)),
        Action::PassBy(w) => format!("worker {w} has no slot left for the group"),
        Action::Returns(w, result) => format!("worker {w}'s handler returns: {result:?}"),
        Action::GivesBack(w) => format!("no slot comes free for worker {w}'s job"),
        Action::FirstTx(w) => format!("worker {w}'s handler asks for its transaction"),
        Action::DropHandler(w) => format!("worker {w} notices its loss and drops its handler"),
        Action::Extend(w) => format!("worker {w} extends its lease"),
        Action::Kills(w) => format!("the handler kills worker {w}"),
        Action::Judge(w) => format!("worker {w} judges: the other one's lock is free"),
        Action::Doubt(w) => format!("worker {w} doubts the other one's claims"),
        Action::ComeBack(w) => format!("worker {w} shows its presence again"),
        Action::SettleDown => "everybody has had the time to come back".into(),
        Action::LeaseEnds => "the lease is over".into(),
        Action::GraceEnds => "the grace is over".into(),
        Action::DelayEnds(job) => format!("job {job} is due again"),
        Action::Janitor => format!("janitor: {:?}", before.janitor),
        Action::Ask(request) => format!("a request is made: number {request}"),
        Action::CarryOut => format!("the request goes on: {:?}", before.operator),
        Action::Crash(w) => format!("worker {w} dies"),
        Action::LoseSession(w) => format!("worker {w}'s session dies"),
        Action::LoseAnswer(w) => format!("worker {w}'s commit gets through, its answer does not"),
        Action::LosePresence(w) => format!("worker {w}'s presence session dies"),
        Action::Terminate(w) => format!("somebody terminates worker {w}'s presence session"),
        Action::Restart => "the server restarts".into(),
        Action::Recover => "the server recovers from a crash, its postmaster lives on".into(),
    }
}

fn step(step: Step) -> String {
    let said = match step {
        Step::Idle => "looks for work",
        Step::FlagsLock { .. } => "adopts: locks the flagged jobs it saw",
        Step::WakeSee { .. } => "adopts: looks for a free row",
        Step::WakeLock { .. } => "adopts: locks the free row it saw",
        Step::ShareSee { .. } => "adopts: looks for a claimed row",
        Step::ShareLock { .. } => "adopts: shares the claimed row it saw",
        Step::InsertSee { .. } => "adopts: looks whether there is a row",
        Step::Insert { .. } => "adopts: inserts a row, as it has seen none",
        Step::TakeSee => "looks whether the group is due",
        Step::TakeLock { .. } => "locks the group that was due",
        Step::LookSee { .. } => "looks at the head",
        Step::LookLock { .. } => "locks the head and starts it",
        Step::RetireFreeSee => "looks whether the group is drained",
        Step::RetireFreeLock { .. } => "locks the row alone and retires the group",
        Step::ClaimCommit { claim: Some(_) } => "commits its claim",
        Step::ClaimCommit { claim: None } => "commits",
        Step::HoldSee { .. } => "looks whether its claim stands",
        Step::HoldLock { .. } => "locks the group by its claim, and the job",
        Step::Trust { .. } => "clears the doubt",
        Step::GiveBackCommit => "gives its claim back: commits",
        Step::ManySee => "settles: looks whether its claim stands",
        Step::ManyLock => "settles: locks the row alone",
        Step::ManyWrite => "settles: records, and passes the turn or retires",
        Step::ParkSee { .. } => "parks: looks who is behind",
        Step::ParkLock { .. } => "parks whom it saw",
        Step::RetireAlone => "locks the row alone, if nobody shares it",
        Step::RetireAtOnce { .. } => "locks the row and deletes it by what it saw",
        Step::Retire => "looks once more, and deletes the row of a drained group",
        Step::SettleCommit => "commits what came of the job",
        Step::GoOnSee { .. } => "sees which job is next",
        Step::GoOnLock { .. } => "locks the next job, ends its own and starts that",
        Step::GoOnCommit { .. } => "commits, and goes on",
        _ => "goes on",
    };
    said.into()
}

fn rows(s: &State) -> String {
    let mut text = String::from("|");
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
            if let (Some(token), Some(job)) = (row.claim, row.job) {
                let _ = write!(text, ", claim {token} of job {job}");
            }
            if row.suspect.is_some() {
                text.push_str(", doubted");
            }
        }
    }
    for (w, _) in s.workers.iter().enumerate().filter(|(_, worker)| worker.handler) {
        let _ = write!(text, " | {w} handles");
    }
    text
}
