//! The model of the limit per key can fail: each broken rule breaks a promise.

use super::checks::{TWO_SLOTS, WORKER, changed, limited};
use super::{AT_ONCE, FIRST, LIMIT, LimitKey, Mutation, NO_WAIT, ONCE};
use crate::story::{strands, violates};

fn with(mutation: Mutation, model: LimitKey) -> LimitKey {
    LimitKey { mutation: Some(mutation), ..model }
}

fn breaks(mutation: Mutation, model: LimitKey, promise: &'static str) {
    violates(&format!("{mutation:?}"), &with(mutation, model), promise);
}

/// The mutation leaves a group gated for ever.
fn forgets(mutation: Mutation, model: LimitKey) {
    strands(&format!("{mutation:?}"), &with(mutation, model));
}

/// Two groups, a limit of one.
fn two() -> LimitKey {
    limited(1, &[1, 1], &[WORKER, WORKER])
}

#[test]
fn claims_that_count_before_they_lock_the_key_start_too_many() {
    breaks(Mutation::CountBeforeTheLock, two(), LIMIT);
}

#[test]
fn an_end_that_appends_no_slot_forgets_a_group() {
    forgets(Mutation::EndAppendsNothing, two());
}

#[test]
fn a_slot_that_is_appended_before_its_end_commits_is_lost() {
    forgets(Mutation::EndAppendsFirst, two());
}

#[test]
fn an_end_that_wakes_by_itself_misses_a_group_or_waits_for_a_claim() {
    forgets(Mutation::EndWakesItself, two());
    breaks(Mutation::EndWakesItself, changed(&[1, 2], &[1, 1], &[WORKER, WORKER]), NO_WAIT);
}

#[test]
fn slots_that_are_passed_on_without_the_keys_lock_are_passed_on_twice() {
    breaks(Mutation::WakeWithoutLock, limited(1, &[1, 1, 1], &[WORKER, WORKER]), LIMIT);
}

#[test]
fn a_count_that_is_older_than_the_delete_loses_a_slot() {
    forgets(Mutation::CountBeforeTheDelete, two());
}

#[test]
fn a_woken_group_without_a_slot_is_gated_again() {
    breaks(Mutation::KeepNoSlot, limited(1, &[1, 1, 1], &[WORKER, WORKER]), ONCE);
}

#[test]
fn groups_that_are_woken_from_the_end_are_not_first_come_first_served() {
    breaks(Mutation::WakeTheLast, limited(1, &[1, 1, 1], &[WORKER, WORKER]), FIRST);
}

#[test]
fn a_claim_that_forgets_the_rest_leaves_a_group_with_a_free_slot() {
    breaks(Mutation::ForgetTheRest, changed(&[1, 3], &[1, 1, 1], &[WORKER]), AT_ONCE);
    forgets(Mutation::ForgetTheRest, changed(&[1, 0], &[1, 1, 1], &[WORKER]));
}

#[test]
fn a_claim_without_the_key_that_asks_for_no_look_forgets_a_group() {
    forgets(Mutation::ForgetWithoutLock, two());
}

#[test]
fn a_slot_that_is_kept_for_nothing_is_lost() {
    let model = LimitKey { cancels: 1, ..limited(1, &[1, 1, 1], &[WORKER]) };
    forgets(Mutation::KeepSlotForNothing, model);
}

#[test]
fn a_change_that_wakes_nobody_leaves_a_group_with_a_free_slot() {
    breaks(Mutation::ChangeWakesNobody, changed(&[1, 2], &[1, 1], &[WORKER]), AT_ONCE);
}

#[test]
fn a_take_over_that_frees_its_slot_lets_too_many_run() {
    let model = LimitKey { crashes: 1, ..limited(1, &[1, 1], &[TWO_SLOTS]) };
    breaks(Mutation::TakeOverFreesTheSlot, model, LIMIT);
}

#[test]
fn a_note_that_another_claim_may_delete_forgets_a_group() {
    forgets(Mutation::RelyOnAnyNote, two());
}

/// The limit is removed between the count, which gates a group, and the write.
#[test]
fn a_limit_that_is_read_twice_gives_a_start_no_slot() {
    forgets(Mutation::ReadTheLimitTwice, changed(&[1, 0], &[1, 1], &[TWO_SLOTS]));
}

/// Another claim has consumed the slot of the change before this one locks the key.
#[test]
fn an_own_limit_that_is_read_before_the_lock_leaves_a_group_with_a_free_slot() {
    let model = LimitKey { own: true, ..changed(&[1, 2], &[1, 1], &[WORKER, WORKER]) };
    breaks(Mutation::ReadOwnLimitBeforeTheLock, model, AT_ONCE);
}

/// The claim that gates a group is open, so the change does not see that group.
#[test]
fn a_change_that_looks_for_gated_groups_leaves_a_group_with_a_free_slot() {
    let model = LimitKey { own: true, ..changed(&[1, 2], &[1, 1], &[WORKER, WORKER]) };
    breaks(Mutation::OwnChangeLooksForGated, model, AT_ONCE);
}

/// A claim is released after another one has begun, which adopts the group.
#[test]
fn a_group_that_is_adopted_without_its_slot_waits_behind_itself() {
    let released = LimitKey { may_release: true, ..limited(1, &[1], &[WORKER, WORKER]) };
    forgets(Mutation::AdoptWithoutTheSlot, released);
}

/// So does one that another claim has woken since.
#[test]
fn a_woken_group_that_is_adopted_without_its_slot_is_gated_again() {
    breaks(Mutation::AdoptWithoutTheSlot, two(), ONCE);
}

/// A claim that has counted by the limit of before gates a group behind the change. The end of the
/// other one has to wake it.
#[test]
fn a_slot_that_goes_with_the_limit_is_not_appended_by_its_end() {
    let model = changed(&[1, 0], &[1, 1], &[WORKER, WORKER]);
    forgets(Mutation::SlotGoesWithTheLimit, LimitKey { may_release: true, ..model });
}
