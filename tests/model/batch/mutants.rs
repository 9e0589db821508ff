//! The model of batches can fail: each broken rule breaks a promise.

use super::checks::{batch, fails};
use super::{BEHIND, Batch, Mutation, NO_WAIT, ONCE, SUCCEEDED};
use crate::story::{strands, violates};

fn breaks(mutation: Mutation, model: &Batch, promise: &'static str) {
    let model = Batch { mutation: Some(mutation), ..model.clone() };
    violates(&format!("{mutation:?}"), &model, promise);
}

/// The mutation leaves a sealed batch without its follow-up for ever.
fn forgets(mutation: Mutation, model: &Batch) {
    let model = Batch { mutation: Some(mutation), ..model.clone() };
    strands(&format!("{mutation:?}"), &model);
}

#[test]
fn looks_that_do_not_lock_the_batch_start_two_follow_ups() {
    breaks(Mutation::LookWithoutLock, &batch(1, 2), ONCE);
}

#[test]
fn a_look_that_forgets_a_batch_it_could_not_lock_strands_it() {
    forgets(Mutation::ForgetTheLocked, &batch(1, 2));
}

#[test]
fn jobs_that_are_read_before_the_batch_is_locked_lack_one_that_joined() {
    breaks(Mutation::ReadJobsBeforeTheLock, &batch(1, 1), BEHIND);
}

#[test]
fn jobs_that_are_read_before_what_is_due_lack_an_end() {
    forgets(Mutation::ReadJobsBeforeWhatIsDue, &batch(1, 1));
}

#[test]
fn a_look_that_deletes_what_it_has_not_read_strands_a_batch() {
    forgets(Mutation::DeleteAll, &batch(2, 2));
}

#[test]
fn a_join_that_nothing_keeps_from_the_end_is_of_a_batch_that_has_ended() {
    for mutation in [
        Mutation::JoinWithoutLock,
        Mutation::EndOfNoKey,
        Mutation::LookBesideJoins,
        Mutation::LookBeforeTheSeal,
    ] {
        breaks(mutation, &batch(1, 1), BEHIND);
    }
}

#[test]
fn a_seal_that_leaves_nothing_strands_a_batch_whose_jobs_have_ended() {
    forgets(Mutation::SealLeavesNothing, &batch(1, 1));
}

#[test]
fn a_seal_that_locks_alone_waits_for_producers() {
    breaks(Mutation::SealLocksAlone, &batch(1, 1), NO_WAIT);
}

#[test]
fn an_end_that_is_due_before_its_commit_strands_its_batch() {
    forgets(Mutation::DueBeforeTheEnd, &batch(1, 1));
}

#[test]
fn two_last_ends_at_once_do_not_see_each_other() {
    forgets(Mutation::LastEndLooks, &batch(2, 1));
}

#[test]
fn a_job_that_succeeds_when_it_is_retried_has_its_last_end() {
    forgets(Mutation::FirstEndCounts, &fails(1, 1));
}

#[test]
fn a_failed_job_that_counts_as_any_end_starts_the_follow_up() {
    breaks(Mutation::AnyEndIsASuccess, &fails(1, 1), SUCCEEDED);
}
