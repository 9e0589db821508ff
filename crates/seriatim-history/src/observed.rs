//! Puts the observations of a job in order.

use crate::error::ReadError;
use crate::event::Name;
use crate::history::{Batch, Job, Run};

impl Batch {
    pub(crate) fn new(name: Name) -> Self {
        let (jobs, follow_ups) = (Vec::new(), Vec::new());
        Self { name, when: None, opened: None, seal: None, sealed: None, jobs, follow_ups }
    }
}

impl Job {
    pub(crate) fn new(name: Name) -> Self {
        Self {
            name,
            enqueue: None,
            runs: Vec::new(),
            settles: Vec::new(),
            leaves: Vec::new(),
            returns: Vec::new(),
            effects: Vec::new(),
            status: None,
            forgiven: None,
            newest: None,
            ends: Vec::new(),
        }
    }

    pub(crate) fn finish(&mut self) -> Result<(), ReadError> {
        self.order_runs();
        self.returns.sort_by_key(|back| back.begin);
        self.leaves.sort_by_key(|leave| leave.begin);
        self.settles.sort_by_key(|settle| (settle.attempt, settle.begin));
        self.ends.sort_by_key(|end| end.2);
        let mut open = 0;
        for (attempt, process, at, outcome) in std::mem::take(&mut self.ends) {
            let its = |run: &&mut Run| {
                run.attempt == attempt
                    && run.process == process
                    && run.end.is_none()
                    && run.start <= at
            };
            let Some(run) = self.runs[open..].iter_mut().find(its) else {
                return Err(self.strange(attempt, &format!("ends at {at}")));
            };
            run.end = Some((at, outcome));
            open += self.runs[open..].iter().take_while(|run| run.end.is_some()).count();
        }
        let told = self.settles.iter().map(|settle| settle.attempt);
        let mut told = told.chain(self.effects.iter().map(|effect| effect.attempt));
        match told.find(|&attempt| self.run(attempt).is_none()) {
            Some(attempt) => Err(self.strange(attempt, "is settled or has an effect")),
            None => Ok(()),
        }
    }

    /// Puts the runs in order again, after their times were changed.
    pub fn order_runs(&mut self) {
        self.runs.sort_by_key(|run| (run.start, run.attempt));
        self.newest = (0..self.runs.len()).max_by_key(|&at| self.runs[at].attempt);
    }

    fn strange(&self, attempt: u32, did: &str) -> ReadError {
        ReadError::Whole(format!(
            "attempt {attempt} of job {} {did}, and no line says that it began there before",
            self.name
        ))
    }
}
