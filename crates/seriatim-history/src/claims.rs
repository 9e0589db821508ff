//! When the claims were that runs came of: they are not seen, only the starts.

use std::collections::HashMap;

use crate::event::{Ended, Time};
use crate::history::{Group, History, Run};

/// A run, and the time before which its claim cannot have been.
pub(crate) struct Claim {
    pub(crate) job: usize,
    /// Its index among the job's.
    pub(crate) run: usize,
    pub(crate) after: Time,
}

/// The claims of a group, in the order of its starts.
pub(crate) fn claims(history: &History, group: &Group) -> Vec<Claim> {
    let runs = |&job: &usize| (0..history.jobs[job].runs.len()).map(move |run| (job, run));
    let mut order: Vec<(usize, usize)> = group.jobs.iter().flat_map(runs).collect();
    order.sort_by_key(|&(job, run)| history.jobs[job].runs[run].start);
    let mut before = Time::MIN;
    let mut claims: Vec<Claim> = Vec::with_capacity(order.len());
    let mut last_claims = HashMap::new();
    for (job, run) in order {
        let its = &history.jobs[job].runs[run];
        let last = run.checked_sub(1).map(|last| &history.jobs[job].runs[last]);
        let after = match last {
            // Its end was not recorded, not even a success: its claim was taken over, and that
            // claim did not read the head.
            Some(last) if !recorded(last) => last_claims.get(&job).copied().unwrap_or(last.start),
            // A claim follows the one before it, whose handler had its outcome to settle. If two
            // handlers overlap, the order is not known.
            _ if history.followers || before > its.start => {
                last.map_or(Time::MIN, |last| last.start)
            }
            _ => before,
        };
        last_claims.insert(job, after);
        claims.push(Claim { job, run, after });
        let over = match its.end {
            Some((
                at,
                Ended::Succeeded | Ended::Failed | Ended::Retry | Ended::Snoozed | Ended::Again,
            )) => at,
            // The take-over may have been claimed at any time.
            _ => its.start,
        };
        before = before.max(over);
    }
    claims
}

/// Returns whether the end of a run that was not the job's last one was recorded, which passed the
/// group's turn on.
fn recorded(run: &Run) -> bool {
    let end = run.end.map(|(_, outcome)| outcome);
    matches!(end, Some(Ended::Failed | Ended::Retry | Ended::Released | Ended::Snoozed))
}
