//! The model can fail: each broken rule of the protocol breaks a promise, and its story is printed.

use crate::checks::{NO_FAULTS, ONE, THREE, TWO, plain, present, stops, turns};
use crate::ending::walk;
use crate::mutation::Mutation;
use crate::operator::Request::{Cancel, Duplicate, Move, ReleaseNode, Retry, Skip};
use crate::properties::{
    ATTEMPTS, AWAKE, DUPLICATE, ENDS_ONCE, LATE, MOVED, NO_WAIT, NOT_LEFT, NOTHING_LOST,
    ONE_AT_A_TIME, ORDER, STALE,
};
use crate::protocol::{Enqueue, Hold, OutOfAttempts, Protocol};
use crate::state::Faults;
use crate::story::violates;

fn breaks(mutation: Mutation, model: Protocol, promise: &'static str) {
    violates(&format!("{mutation:?}"), &model.with(mutation), promise);
}

/// Two attempts at most of a job that kills its workers.
fn deadly() -> Protocol {
    Protocol { deadly: Some(0), ..plain(&[ONE]) }
}

/// The first job is cancelled.
fn cancelled(producers: &[Enqueue]) -> Protocol {
    plain(producers).asking(&[Cancel(0)])
}

/// No transaction has the rows of a job that runs.
fn leased_and_cancelled() -> Protocol {
    Protocol { hold: Hold::Lease, ..cancelled(&[ONE]) }
}

#[test]
fn a_group_retired_in_one_statement_strands_a_job() {
    breaks(Mutation::RetireInOneStatement, plain(&[ONE, ONE]), NOTHING_LOST);
}

#[test]
fn two_adopters_give_a_group_two_rows() {
    breaks(Mutation::AdoptWithoutLock, plain(&[ONE, ONE]), ONE_AT_A_TIME);
}

#[test]
fn an_adopter_that_does_not_look_again_inserts_a_second_row() {
    breaks(Mutation::InsertByOldSnapshot, plain(&[ONE, ONE]), ONE_AT_A_TIME);
}

#[test]
fn a_flag_cleared_unseen_strands_a_retried_job() {
    breaks(
        Mutation::ClearWithoutCheck,
        plain(&[ONE, ONE]).asking(&[Cancel(0), Retry(0)]),
        NOTHING_LOST,
    );
}

#[test]
fn a_row_retired_after_a_write_makes_an_adopter_wait() {
    let model = Protocol { receivers: 1, ..plain(&[ONE, ONE]) };
    breaks(Mutation::RetireWritten, model, NO_WAIT);
}

#[test]
fn a_cleared_flag_of_a_sleeping_groups_head_wakes_nothing() {
    let model = Protocol { may_fail: true, ..cancelled(&[ONE]) };
    breaks(Mutation::ClearOfSleeper, model, AWAKE);
}

#[test]
fn a_move_that_flags_nothing_strands_a_job() {
    breaks(Mutation::MoveWithoutFlag, plain(&[TWO]).asking(&[Move(0)]), NOTHING_LOST);
}

#[test]
fn a_move_that_wakes_no_row_lets_it_sleep_for_nothing() {
    let model = Protocol { may_fail: true, ..plain(&[ONE]) };
    breaks(Mutation::MoveWakesNothing, model.asking(&[Move(0)]), AWAKE);
}

#[test]
fn a_claim_that_does_not_ask_for_the_queue_starts_a_job_of_another() {
    breaks(Mutation::StartMoved, plain(&[ONE, ONE]).asking(&[Move(0)]), MOVED);
}

#[test]
fn flags_of_parked_jobs_stay_in_the_page() {
    let model = stops(OutOfAttempts::Park, &[ONE, ONE]);
    let begun = walk(&model.with(Mutation::ParkKeepsFlags));
    assert!(begun.stuck.is_some());
}

#[test]
fn a_clear_that_does_not_skip_waits_for_a_handler() {
    breaks(Mutation::ClearWithoutSkip, plain(&[ONE]), NO_WAIT);
}

#[test]
fn a_released_node_that_lives_runs_beside_its_successor() {
    let model = Protocol { hold: Hold::Lease, ..plain(&[ONE]) }.asking(&[ReleaseNode]);
    breaks(Mutation::ReleaseNodeAtOnce, model, ONE_AT_A_TIME);
}

#[test]
fn a_flag_cleared_without_its_groups_lock_strands_its_job() {
    breaks(Mutation::ClearWithoutLock, plain(&[ONE, ONE]), NOTHING_LOST);
}

#[test]
fn a_head_read_in_the_statement_that_locks_is_not_the_head_and_strands_a_job() {
    for promise in [ORDER, NOTHING_LOST] {
        breaks(Mutation::ReadHeadsInTheStatementThatLocks, plain(&[TWO, ONE]), promise);
    }
}

#[test]
fn a_fence_by_attempts_lets_a_stale_worker_write() {
    let model = Protocol { max_attempts: 1, ..plain(&[ONE]) };
    breaks(Mutation::FenceByAttempts, model, STALE);
}

#[test]
fn a_take_over_of_the_lowest_id_loses_it_when_it_is_retried() {
    breaks(
        Mutation::ReclaimLowest,
        Protocol { may_fail: true, ..plain(&[ONE, ONE]) },
        NOTHING_LOST,
    );
}

#[test]
fn a_take_over_without_suspicion_runs_beside_the_handler() {
    let faults = Faults { sessions: 1, ..NO_FAULTS };
    breaks(Mutation::TakeOverWithoutSuspicion, Protocol { faults, ..plain(&[ONE]) }, ONE_AT_A_TIME);
}

#[test]
fn a_receipt_that_counts_after_the_end_is_not_strict() {
    let faults = Faults { lapses: 1, ..NO_FAULTS };
    let model = Protocol { receivers: 1, strict: true, faults, ..plain(&[ONE]) };
    breaks(Mutation::CountAfterTheEnd, model, LATE);
}

#[test]
fn a_hold_that_keeps_a_suspicion_gets_no_grace() {
    let faults = Faults { sessions: 1, ..NO_FAULTS };
    breaks(Mutation::HoldKeepsSuspicion, Protocol { faults, ..plain(&[ONE]) }, ONE_AT_A_TIME);
}

#[test]
fn a_late_flag_cleared_on_a_claimed_row_strands_its_job() {
    breaks(Mutation::ClearBelowHead, plain(&[ONE, ONE]), NOTHING_LOST);
}

#[test]
fn reading_flagged_heads_alone_skips_a_cancelled_jobs_next() {
    breaks(Mutation::ReadOnlyFlaggedHeads, cancelled(&[TWO, ONE]), ORDER);
}

#[test]
fn a_take_over_that_retires_strands_a_job() {
    let faults = Faults { crashes: 1, ..NO_FAULTS };
    let model = Protocol { faults, max_attempts: 1, ..plain(&[ONE, ONE]) };
    breaks(Mutation::TakeOverRetires, model, NOTHING_LOST);
}

/// A lost attempt is not only counted late: a job that kills its workers never ends.
#[test]
fn a_take_over_that_does_not_count_begins_too_many_attempts() {
    for mutation in [Mutation::CountAtTheEndOnly, Mutation::TakeOverBeyondTheLimit] {
        breaks(mutation, deadly(), ATTEMPTS);
    }
    let begun = walk(&deadly().with(Mutation::CountAtTheEndOnly));
    assert!(begun.stuck.is_some());
}

#[test]
fn a_claim_without_its_jobs_lock_names_a_cancelled_job() {
    breaks(Mutation::ClaimWithoutLock, cancelled(&[ONE]), ENDS_ONCE);
}

#[test]
fn an_operator_that_does_not_look_again_takes_a_job_that_runs() {
    let model = Protocol { hold: Hold::Lease, ..plain(&[ONE]) };
    for mutation in [Mutation::ActWithoutLook, Mutation::LookInTheStatementThatLocks] {
        breaks(mutation, model.clone().asking(&[Cancel(0)]), ENDS_ONCE);
        breaks(mutation, model.clone().asking(&[Move(0)]), ENDS_ONCE);
    }
}

#[test]
fn a_duplicate_of_a_job_that_has_begun_is_lost() {
    let lost =
        [Mutation::ActWithoutLook, Mutation::DuplicateWithoutLock, Mutation::ClaimWithoutLock];
    for mutation in lost {
        let model = Protocol { hold: Hold::Lease, ..plain(&[ONE]) };
        breaks(mutation, model.asking(&[Duplicate(0)]), DUPLICATE);
    }
}

#[test]
fn a_request_carried_out_without_a_look_ends_a_job_that_runs() {
    breaks(Mutation::RequestWithoutLook, leased_and_cancelled(), ENDS_ONCE);
}

#[test]
fn a_look_that_keeps_its_lock_makes_a_settle_wait() {
    breaks(Mutation::LookKeepsLock, leased_and_cancelled(), NO_WAIT);
}

/// The job behind the moved one was to get its flag.
#[test]
fn a_move_that_keeps_the_lock_of_the_next_job_makes_a_settle_wait() {
    let model = Protocol { hold: Hold::Lease, ..plain(&[ONE, ONE]) };
    breaks(Mutation::MoveKeepsNext, model.asking(&[Move(0)]), NO_WAIT);
}

#[test]
fn a_lease_extended_without_its_token_is_another_ones() {
    let faults = Faults { lapses: 2, ..NO_FAULTS };
    let model = Protocol { faults, hold: Hold::Lease, ..plain(&[ONE]) };
    breaks(Mutation::ExtendWithoutToken, model, STALE);
}

#[test]
fn a_claim_released_without_its_token_is_another_ones() {
    let model =
        Protocol { may_release: true, faults: Faults { lapses: 2, ..NO_FAULTS }, ..plain(&[ONE]) };
    breaks(Mutation::ReleaseWithoutToken, model, STALE);
}

#[test]
fn a_turn_that_goes_on_without_a_look_at_its_claim_runs_beside_another() {
    let faults = Faults { lapses: 1, ..NO_FAULTS };
    let model = Protocol { faults, hold: Hold::Lease, ..turns(&[TWO]) };
    breaks(Mutation::RecordWithoutToken, model.clone(), STALE);
    breaks(Mutation::BeginAfterTheGrace, model, ONE_AT_A_TIME);
}

#[test]
fn a_take_over_that_raises_the_head_strands_a_late_job() {
    breaks(Mutation::TakeOverRaisesHead, turns(&[ONE, ONE, ONE]), NOTHING_LOST);
}

#[test]
fn a_take_over_that_counts_the_whole_turn_charges_jobs_that_never_began() {
    breaks(Mutation::TakeOverCountsAll, turns(&[TWO]), ATTEMPTS);
}

#[test]
fn followers_without_a_lock_or_past_one_are_not_next() {
    let model = Protocol { turn: 3, ..plain(&[THREE]) }.asking(&[Cancel(1)]);
    breaks(Mutation::FollowWithoutLock, model.clone(), ENDS_ONCE);
    breaks(Mutation::FollowPastGap, model, ORDER);
}

#[test]
fn followers_read_later_than_their_head_run_before_a_late_job() {
    breaks(Mutation::FollowBesideLate, turns(&[ONE, ONE, ONE]), ORDER);
}

#[test]
fn a_turn_that_goes_on_after_a_failure_runs_a_job_before_it() {
    breaks(Mutation::GoOnAfterFailure, Protocol { may_fail: true, ..turns(&[TWO]) }, ORDER);
}

#[test]
fn an_operator_that_looks_at_the_first_job_only_takes_one_of_its_turn() {
    for request in [Cancel(1), Skip(1), Move(1)] {
        breaks(Mutation::LookAtFirstOnly, turns(&[TWO]).asking(&[request]), ENDS_ONCE);
    }
}

#[test]
fn a_turn_that_is_forgotten_behind_a_failed_hold_is_left_behind() {
    let faults = Faults { holds: 1, ..NO_FAULTS };
    breaks(Mutation::TurnForgetsNext, Protocol { faults, ..turns(&[TWO]) }, NOT_LEFT);
}

#[test]
fn an_end_of_the_server_or_a_presence_that_is_mistaken_runs_two_jobs_at_once() {
    let lost = Faults { sessions: 1, ..NO_FAULTS };
    for (mutation, faults) in [
        (Mutation::SuspectRightAfterRestart, Faults { restarts: 1, ..NO_FAULTS }),
        (Mutation::SuspicionOutlivesRestart, Faults { restarts: 1, ..lost }),
        (Mutation::SuspicionOutlivesRestart, Faults { promotions: 1, ..lost }),
        (Mutation::PromotionIsNoStart, Faults { promotions: 1, ..lost }),
        (Mutation::RecoveryIsNoStart, Faults { recoveries: 1, ..NO_FAULTS }),
        (Mutation::TerminationIsAShutdown, Faults { terminations: 1, ..NO_FAULTS }),
    ] {
        breaks(mutation, Protocol { faults, ..present(&[ONE]) }, ONE_AT_A_TIME);
    }
}

/// Two attempts, and a job that may be put off once.
#[test]
fn a_snooze_is_not_held_against_its_job_and_has_a_bound() {
    let model = Protocol { max_snoozes: 1, ..plain(&[ONE]) };
    for mutation in [Mutation::SnoozeCounts, Mutation::SnoozeWithoutBound] {
        breaks(mutation, model.clone(), ATTEMPTS);
    }
}

#[test]
fn a_job_that_is_put_off_and_passed_by_the_next_runs_behind_it_or_never() {
    let model = Protocol { max_snoozes: 1, ..plain(&[ONE, ONE]) };
    for promise in [ORDER, NOTHING_LOST] {
        breaks(Mutation::SnoozeGivesItsPlaceUp, model.clone(), promise);
    }
}
