//! The lives of a job: from its enqueue, or its return to its place, until it is out of the way.

use crate::event::{Ended, Enqueued, Found, Said, Time};
use crate::history::{Enqueue, History, Job, Return, Run};

/// In its place, and in the way of the jobs behind it.
#[derive(Debug)]
pub(crate) struct Life {
    /// From here on every reader has surely seen it; `None`: not known.
    pub(crate) seen_from: Option<Time>,
    /// Until here it was surely in the way; `None`: it still is.
    pub(crate) in_the_way_until: Option<Time>,
}

/// When the job was surely committed.
pub(crate) fn known_by(job: &Job, enqueue: &Enqueue) -> Option<Time> {
    let told = matches!(enqueue.outcome, Enqueued::Committed | Enqueued::Made);
    let acknowledged = enqueue.end.filter(|_| told);
    // Whatever the answer to its producer: it ran, so it was there.
    acknowledged.into_iter().chain(job.runs.first().map(|run| run.start)).min()
}

/// The lives of a job, in order.
pub(crate) fn lives(history: &History, job: &Job, enqueue: &Enqueue) -> Vec<Life> {
    let mut lives = Vec::with_capacity(1 + job.returns.len());
    for n in 0..=job.returns.len() {
        let back = n.checked_sub(1).map(|before| &job.returns[before]);
        let next = job.returns.get(n);
        let seen_from = match back {
            None => known_by(job, enqueue),
            Some(back) => back.end,
        };
        let mut in_the_way_until = out_of_the_way(history, job, back, next, enqueue);
        if history.followers {
            // Its outcome may be recorded together with those of followers, and it may run again if
            // that fails.
            let success = |run: &&Run| run.end.is_some_and(|(_, end)| end == Ended::Succeeded);
            let first = life_of(job, back, next).iter().find(success);
            in_the_way_until = first.map(|run| history.until(run)).or(in_the_way_until);
        }
        lives.push(Life { seen_from, in_the_way_until });
    }
    lives
}

fn out_of_the_way(
    history: &History,
    job: &Job,
    back: Option<&Return>,
    next: Option<&Return>,
    enqueue: &Enqueue,
) -> Option<Time> {
    let from = back.map_or(Time::MIN, |back| back.begin);
    let to = next.map_or(Time::MAX, |next| next.begin);
    let runs = life_of(job, back, next);
    let leaves = during(&job.leaves, |leave| leave.begin, from, to);
    let ran = runs.last().map(|run| history.until(run));
    let left = leaves.last().map(|leave| leave.begin);
    let ended = ran.max(left);
    if next.is_some() {
        // Only a job that has ended can return.
        return ended.or(Some(enqueue.begin));
    }
    if left.is_some() || may_be_the_end(job, runs, enqueue) {
        return ended;
    }
    // It ended in a way that was not observed, at an unknown time.
    job.status.is_some_and(Found::is_final).then_some(ended.unwrap_or(enqueue.begin))
}

/// Returns those items of a life from a list in the order of time.
fn during<T>(all: &[T], at: impl Fn(&T) -> Time, from: Time, to: Time) -> &[T] {
    let begin = all.partition_point(|one| at(one) < from);
    let end = all.partition_point(|one| at(one) < to);
    &all[begin..end.max(begin)]
}

/// Returns whether the last of these runs may have been the last of its job.
fn may_be_the_end(job: &Job, runs: &[Run], enqueue: &Enqueue) -> bool {
    let Some(last) = runs.last() else {
        return false;
    };
    match last.end.map(|(_, outcome)| outcome) {
        Some(Ended::Succeeded | Ended::Failed) => true,
        Some(Ended::Released | Ended::Snoozed | Ended::Again) => {
            job.status.is_some_and(Found::is_final)
        }
        Some(Ended::Retry | Ended::Dropped) | None => match (job.status, enqueue.max_attempts) {
            (Some(status), _) => status.is_final(),
            // Attempts without a handler's start count as well.
            (None, Some(most)) if job.returns.is_empty() => last.attempt >= most,
            (None, _) => true,
        },
    }
}

/// Returns the runs between two returns.
fn life_of<'j>(job: &'j Job, back: Option<&Return>, next: Option<&Return>) -> &'j [Run] {
    let from = back.map_or(Time::MIN, |back| back.begin);
    let to = next.map_or(Time::MAX, |next| next.begin);
    during(&job.runs, |run| run.start, from, to)
}

/// Returns the runs that are surely of the job's last life. A run that began while the job was
/// queued again may be of the one before.
pub(crate) fn last_life<'j>(history: &History, job: &'j Job) -> &'j [Run] {
    let Some(back) = job.returns.last() else {
        return &job.runs;
    };
    let by = back.end.unwrap_or(Time::MAX);
    &job.runs[job.runs.partition_point(|run| !history.surely_before(by, run.start))..]
}

/// Returns whether, by all that is known, the job has ended.
pub(crate) fn may_have_ended(history: &History, job: &Job, enqueue: &Enqueue) -> bool {
    let back = job.returns.last();
    out_of_the_way(history, job, back, None, enqueue).is_some()
}

/// Returns whether a run put its job off, and that was surely recorded: the job came again, and
/// nothing went wrong in between.
pub(crate) fn surely_put_off(history: &History, job: &Job, run: &Run) -> bool {
    if !matches!(run.end, Some((_, Ended::Snoozed | Ended::Again))) {
        return false;
    }
    let next = job.runs.iter().filter(|next| next.attempt > run.attempt).map(|next| next.start);
    let answers = job.settles_of(run.attempt);
    next.min().is_some_and(|next| {
        (answers.is_empty() || answers.iter().any(|settle| settle.answer == Said::Done))
            && !history.fault_between(run.start, next)
            && !job.is_asked_to_leave(history, run.start, next)
    })
}
