//! The words of a counterexample.

use std::fmt::Write;

use super::state::{End, State, Step};
use super::{Action, LimitKey};
use crate::story::Told;

impl Told for LimitKey {
    fn say(&self, before: &State, action: Action) -> String {
        let name = |it: usize| {
            let kind = if self.claims[it].receives { "receiver" } else { "worker" };
            format!("{kind} {it}")
        };
        match action {
            Action::ReceiveAgain(it) => format!("{} receives in the same transaction", name(it)),
            Action::RollBack(it) => format!("{} rolls back", name(it)),
            Action::OpenEnd(group) => {
                format!("the job of group {group} ends, its transaction is open")
            }
            Action::CommitEnd(group) => format!("the end of group {group}'s job commits"),
            Action::RollBackEnd(group) => format!("the end of group {group}'s job rolls back"),
            Action::Release(group) => format!("the claim of group {group} is released"),
            Action::Crash(group) => format!("the worker of group {group} dies, its lease runs out"),
            Action::Cancel(group) => format!("the job of group {group} is cancelled"),
            Action::OpenChange => {
                format!(
                    "the limit is set to {}, not committed",
                    self.changes[before.changes as usize]
                )
            }
            Action::CommitChange => "the change of the limit commits".into(),
            Action::Step(it) => {
                let step = match before.claims[it].step {
                    Step::Idle => format!("begins a claim, the limit is {}", before.limit),
                    Step::WakeList => "reads freed slots".into(),
                    Step::WakeDelete => "tries to lock the key, and deletes them".into(),
                    Step::Wake => "counts slots that are left, and wakes gated groups".into(),
                    Step::Lock => "locks the next group in the line, or ends".into(),
                    Step::Count { group, .. } => {
                        let limit = before.claims[it].limit;
                        format!(
                            "tries to lock the key, and counts for group {group}, limit {limit}"
                        )
                    }
                    Step::Commit => "commits".into(),
                };
                format!("{} {step}", name(it))
            }
        }
    }

    fn rows(&self, s: &State) -> String {
        let mut text = format!("limit {}, freed {} | ", s.limit, s.freed.count_ones());
        for group in 0..self.jobs.len() {
            let row = s.groups[group];
            let slot = if row.slot { "+slot" } else { "" };
            let lapsed = if row.lapsed { " lapsed" } else { "" };
            let ends = if s.ends[group] == End::None { "" } else { " ends" };
            let _ =
                write!(text, "{group}: {} jobs {:?}{slot}{lapsed}{ends}", s.jobs[group], row.row);
            for (it, claim) in s.claims.iter().enumerate() {
                if let Some(row) = claim.written[group] {
                    let slot = if row.slot { "+slot" } else { "" };
                    let _ = write!(text, ", {it} writes {:?}{slot}", row.row);
                }
            }
            text.push_str(" | ");
        }
        text
    }
}
