//! Whether an attempt must have its effects.

use crate::event::{Ended, Found, Said};
use crate::history::{History, Job, Run};
use crate::life::surely_put_off;
use crate::violation::Promise;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It succeeded: all its effects are there, once.
    Counts,
    /// It has no effect: which promise says so, and why.
    Never(Promise, &'static str),
    /// All its effects or none.
    Perhaps,
}

pub(crate) fn verdict(history: &History, job: &Job, run: &Run) -> Verdict {
    let answers = job.settles_of(run.attempt);
    // A settle whose answer was lost may have got through, and then the next one is stale.
    let settled = answers.iter().any(|settle| settle.answer != Said::Stale);
    let done = answers.iter().any(|settle| settle.answer == Said::Done);
    if !settled && !answers.is_empty() {
        return Verdict::Never(Promise::P10, "its settle was refused as stale");
    }
    match run.end.map(|(_, outcome)| outcome) {
        Some(Ended::Succeeded) | None => {}
        Some(Ended::Again) if surely_put_off(history, job, run) => return Verdict::Counts,
        // If the writes cannot be committed, the attempt has failed.
        Some(Ended::Again) => return Verdict::Perhaps,
        Some(_) => return Verdict::Never(Promise::P4, "it did not succeed"),
    }
    if job.newest().is_some_and(|newest| newest.attempt > run.attempt) {
        return Verdict::Never(Promise::P10, "a newer attempt began");
    }
    match run.end {
        Some(_) => {}
        None if settled => return Verdict::Perhaps,
        None => return Verdict::Never(Promise::P4, "its handler never ended"),
    }
    let limit = job.enqueue.as_ref().and_then(|enqueue| enqueue.max_attempts);
    match job.status {
        Some(Found::Succeeded) => Verdict::Counts,
        _ if done => Verdict::Counts,
        Some(Found::Failed | Found::Cancelled | Found::Waiting | Found::Parked) => {
            Verdict::Never(Promise::P4, "its job has not succeeded")
        }
        // It would have run again if its success had not been recorded.
        None if history.drained.is_some()
            && job.returns.is_empty()
            && limit.is_some_and(|most| run.attempt < most) =>
        {
            Verdict::Counts
        }
        Some(Found::Missing) | None => Verdict::Perhaps,
    }
}
