//! The model can fail: each rule of the protocol, when it is broken, breaks a promise, and the story of it is told.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};

use crate::checks::{NO_FAULTS, ONE, TWO, plain, present};
use crate::ending::walk;
use crate::mutation::Mutation;
use crate::operator::Request;
use crate::properties::{ATTEMPTS, NOTHING_LOST, ONE_AT_A_TIME, ORDER, STALE};
use crate::protocol::{Hold, Protocol};
use crate::state::Faults;
use crate::story::{steps_to, tell};

fn breaks(mutation: Mutation, model: Protocol, promise: &'static str) {
    violates(&format!("{mutation:?}"), &model.with(mutation), promise);
}

/// Finds the shortest story that ends in the violation of this promise, and tells it.
pub fn violates(name: &str, model: &Protocol, promise: &'static str) {
    let mut shortest = None;
    let mut deep = usize::MAX;
    loop {
        let found = HasDiscoveries::AnyOf(BTreeSet::from([promise]));
        let checker = model.clone().checker().finish_when(found).target_max_depth(deep);
        let Some(path) = checker.spawn_bfs().join().discovery(promise) else { break };
        let steps = steps_to(path, model, promise);
        deep = steps.len() + 1;
        shortest = Some(steps);
    }
    let steps = shortest.unwrap_or_else(|| panic!("{name} does not break {promise}"));
    println!("{name} breaks {promise}:\n{}", tell(model, &steps));
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
fn a_flag_cleared_without_its_groups_lock_strands_its_job() {
    breaks(Mutation::ClearWithoutLock, plain(&[ONE, ONE]), NOTHING_LOST);
}

#[test]
fn a_head_read_in_the_statement_that_locks_is_not_the_head() {
    breaks(Mutation::LookInTheStatementThatLocks, plain(&[ONE, ONE]), ORDER);
}

#[test]
fn a_head_read_in_the_statement_that_locks_strands_a_job() {
    breaks(Mutation::LookInTheStatementThatLocks, plain(&[ONE, ONE]), NOTHING_LOST);
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
fn a_presence_judged_right_after_a_restart_runs_two_jobs_at_once() {
    let faults = Faults { restarts: 1, ..NO_FAULTS };
    let model = Protocol { faults, hold: Hold::Lease, presence: true, ..plain(&[ONE]) };
    breaks(Mutation::JudgeAfterRestart, model, ONE_AT_A_TIME);
}

#[test]
fn a_take_over_in_one_look_runs_a_job_beside_its_handler() {
    let faults = Faults { sessions: 1, ..NO_FAULTS };
    breaks(Mutation::TakeOverInOneLook, Protocol { faults, ..plain(&[ONE]) }, ONE_AT_A_TIME);
}

#[test]
fn a_hold_that_keeps_a_doubt_is_taken_over_without_a_grace() {
    let faults = Faults { sessions: 1, ..NO_FAULTS };
    breaks(Mutation::HoldKeepsDoubt, Protocol { faults, ..plain(&[ONE]) }, ONE_AT_A_TIME);
}

#[test]
fn a_late_flag_cleared_on_a_claimed_row_strands_its_job() {
    breaks(Mutation::ClearBelowHead, plain(&[ONE, ONE]), NOTHING_LOST);
}

#[test]
fn a_look_at_flagged_jobs_alone_overlooks_the_follower_of_a_cancelled_one() {
    let requests = vec![Request::Cancel(0)];
    breaks(Mutation::LookOnlyAtFlags, Protocol { requests, ..plain(&[TWO, ONE]) }, ORDER);
}

#[test]
fn a_take_over_that_retires_strands_a_job() {
    let faults = Faults { crashes: 1, ..NO_FAULTS };
    let model = Protocol { faults, max_attempts: 1, ..plain(&[ONE, ONE]) };
    breaks(Mutation::TakeOverRetires, model, NOTHING_LOST);
}

#[test]
fn an_attempt_counted_in_the_settle_is_begun_uncounted() {
    breaks(Mutation::CountInSettle, plain(&[ONE]), ATTEMPTS);
}

/// Not only is it counted late: a job that kills its workers never ends.
#[test]
fn an_attempt_counted_in_the_settle_lets_a_deadly_job_run_for_ever() {
    let model = Protocol { deadly: Some(0), ..plain(&[ONE]) }.with(Mutation::CountInSettle);
    let begun = walk(&Protocol { max_attempts: 2, ..model });
    assert!(begun.stuck.is_some());
}

#[test]
fn a_lease_extended_without_its_token_is_another_ones() {
    let faults = Faults { lapses: 2, ..NO_FAULTS };
    let model = Protocol { faults, hold: Hold::Lease, ..plain(&[ONE]) };
    breaks(Mutation::ExtendWithoutToken, model, STALE);
}

#[test]
fn a_claim_given_back_without_its_token_is_another_ones() {
    let model = Protocol {
        may_give_back: true,
        faults: Faults { lapses: 2, ..NO_FAULTS },
        ..plain(&[ONE])
    };
    breaks(Mutation::GiveBackWithoutToken, model, STALE);
}

#[test]
fn a_turn_that_goes_on_and_raises_the_head_strands_a_job() {
    let model = Protocol { may_go_on: true, ..plain(&[ONE, ONE, ONE]) };
    breaks(Mutation::GoOnRaisesHead, model, NOTHING_LOST);
}

#[test]
fn a_turn_that_goes_on_behind_its_job_alone_overlooks_a_late_one() {
    let model = Protocol { may_go_on: true, ..plain(&[ONE, TWO]) };
    breaks(Mutation::GoOnLooksBehind, model, ORDER);
}

#[test]
fn a_doubt_that_outlives_a_restart_is_due_before_its_process_is_back() {
    let faults = Faults { sessions: 1, restarts: 1, ..NO_FAULTS };
    let model = Protocol { faults, ..present(&[ONE]) };
    breaks(Mutation::DoubtOutlivesRestart, model, ONE_AT_A_TIME);
}

#[test]
fn a_recovery_that_counts_as_no_start_has_processes_judged_at_once() {
    let faults = Faults { recoveries: 1, ..NO_FAULTS };
    let model = Protocol { faults, ..present(&[ONE]) };
    breaks(Mutation::RecoveryIsNoStart, model, ONE_AT_A_TIME);
}

#[test]
fn a_termination_that_is_taken_for_a_shutdown_keeps_a_handler_that_is_judged() {
    let faults = Faults { terminations: 1, ..NO_FAULTS };
    let model = Protocol { faults, ..present(&[ONE]) };
    breaks(Mutation::TerminationIsAShutdown, model, ONE_AT_A_TIME);
}
