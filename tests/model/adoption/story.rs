//! A counterexample, printed as a numbered list.

use std::fmt::Write;

use stateright::Model;

use super::state::{GROUPS, State, Step};
use super::{Action, Adoption};

pub fn tell(model: &Adoption, steps: &[(State, Action)]) -> String {
    let mut text = String::new();
    for (number, (before, action)) in steps.iter().enumerate() {
        let after = model.next_state(before, *action).unwrap_or(*before);
        let said = say(model, before, *action);
        let _ = writeln!(text, "{:>4}. {said:<62} | {}", number + 1, rows(model, &after));
    }
    text
}

fn say(model: &Adoption, before: &State, action: Action) -> String {
    let name = |session: usize| {
        let kind = if model.sessions[session].receives { "receiver" } else { "worker" };
        format!("{kind} {session}")
    };
    match action {
        Action::Enqueue(job) => format!("job {job} of group {} commits", model.jobs[job].group),
        Action::Settle(group) => format!("the turn of group {group} ends"),
        Action::ReceiveAgain(it) => format!("{} receives in the same transaction", name(it)),
        Action::RollBack(it) => format!("{} rolls back", name(it)),
        Action::Step(it) => {
            let step = match before.claims[it].step {
                Step::Idle => "begins a claim: reads a page of flags".into(),
                Step::Page => "reads the next page of flags".into(),
                Step::Lock => "locks the next group in the line, or ends".into(),
                Step::Look { group, .. } => format!("looks at group {group}, and starts its head"),
                Step::Commit => "commits".into(),
            };
            format!("{} {step}", name(it))
        }
    }
}

fn rows(model: &Adoption, s: &State) -> String {
    let mut text = String::new();
    for group in 0..GROUPS.min(model.kinds.len()) {
        let _ = write!(text, "{group} {:?}", s.groups[group]);
        for (job, state) in s.jobs.iter().enumerate().take(model.jobs.len()) {
            if model.jobs[job].group == group {
                let _ = write!(text, " {job}:{state:?}");
            }
        }
        for (session, claim) in s.claims.iter().enumerate() {
            if claim.locked & 1 << group != 0 {
                let started =
                    if claim.started & 1 << group != 0 { " starts it" } else { " has it" };
                let _ = write!(text, " {session}{started}");
            }
        }
        text.push_str(" | ");
    }
    text
}
