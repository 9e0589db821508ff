//! The words of a counterexample.

use std::fmt::Write;

use super::state::{GROUPS, State, Step};
use super::{Action, Adoption};
use crate::story::Told;

impl Told for Adoption {
    fn say(&self, before: &State, action: Action) -> String {
        let name = |session: usize| {
            let kind = if self.sessions[session].receives { "receiver" } else { "worker" };
            format!("{kind} {session}")
        };
        match action {
            Action::Enqueue(job) => format!("job {job} of group {} commits", self.jobs[job].group),
            Action::Settle(group) => format!("the turn of group {group} ends"),
            Action::ReceiveAgain(it) => format!("{} receives in the same transaction", name(it)),
            Action::RollBack(it) => format!("{} rolls back", name(it)),
            Action::Step(it) => {
                let step = match before.claims[it].step {
                    Step::Idle => "begins a claim: reads a page of flags".into(),
                    Step::Page => "reads the next page of flags".into(),
                    Step::Lock => "locks the next group in the line, or ends".into(),
                    Step::Look { group, .. } => {
                        format!("looks at group {group}, and starts its head")
                    }
                    Step::Take { .. } => {
                        "has rolled back, and locks a group that it can start, or ends".into()
                    }
                    Step::Commit => "commits".into(),
                };
                format!("{} {step}", name(it))
            }
        }
    }

    fn rows(&self, s: &State) -> String {
        let mut text = String::new();
        for group in 0..GROUPS.min(self.kinds.len()) {
            let _ = write!(text, "{group} {:?}", s.groups[group]);
            for (job, state) in s.jobs.iter().enumerate().take(self.jobs.len()) {
                if self.jobs[job].group == group {
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
}
