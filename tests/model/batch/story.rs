//! The words of a counterexample.

use std::fmt::Write;

use super::state::{State, Step};
use super::{Action, Batch};
use crate::story::Told;

impl Told for Batch {
    fn say(&self, before: &State, action: Action) -> String {
        match action {
            Action::ReadToJoin(job) => format!("job {job} is to join: reads the batch"),
            Action::Join(job) => format!("job {job} locks the batch, and joins"),
            Action::CommitJoin(job) => format!("job {job} commits"),
            Action::RollBackJoin(job) => format!("job {job} rolls back"),
            Action::OpenEnd(job, true) => format!("job {job} succeeds, its transaction is open"),
            Action::OpenEnd(job, false) => format!("job {job} fails, its transaction is open"),
            Action::CommitEnd(job) => format!("the end of job {job} commits"),
            Action::RollBackEnd(job) => format!("the end of job {job} rolls back"),
            Action::Retry(job) => format!("job {job} is retried"),
            Action::Seal => "a producer seals the batch, its transaction is open".into(),
            Action::CommitSeal => "the seal commits".into(),
            Action::RollBackSeal => "the seal rolls back".into(),
            Action::LoseLook(look) => format!("look {look} loses its session"),
            Action::Look(look) => {
                let step = match before.looks[look].step {
                    Step::Idle => "reads what is due",
                    Step::Lock => "tries to lock the batch",
                    Step::Delete => "deletes what was due",
                    Step::Jobs => "reads jobs, and ends the batch if these have ended",
                    Step::Commit => "commits",
                };
                format!("look {look} {step}")
            }
        }
    }

    fn rows(&self, s: &State) -> String {
        let over = if s.ended { ", ended" } else { "" };
        let failed = if s.failed { ", failed" } else { "" };
        let mut text = format!("seal {:?}{over}{failed}, due {}", s.seal, s.due.count_ones());
        for (job, row) in s.jobs.iter().enumerate().take(self.jobs) {
            let _ = write!(text, " | {job} {:?}", row.state);
        }
        for (it, look) in s.looks.iter().enumerate() {
            if look.has_batch {
                let _ = write!(text, " | look {it} has the batch");
            }
            if look.ends {
                let _ = write!(text, " | look {it} ends the batch");
            }
        }
        text
    }
}
