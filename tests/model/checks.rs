//! Configurations, each explored in full: no property is violated, and everything ends.
//!
//! `SERIATIM_MODEL_DEEP=1` explores larger ones as well.

use std::time::Instant;

use stateright::Checker;

use crate::ending::{Ends, walk};
use crate::operator::Request::{
    Cancel, Duplicate, Move, Redrive, RedriveParked, ReleaseNode, Retry, Skip, Unhalt,
};
use crate::protocol::{Enqueue, Hold, OutOfAttempts, Protocol};
use crate::size::size;
use crate::state::Faults;
use crate::story::{strands, violates};

pub const ONE: Enqueue = Enqueue { jobs: 1, may_roll_back: false, delayed: false };
pub const TWO: Enqueue = Enqueue { jobs: 2, may_roll_back: false, delayed: false };
pub const THREE: Enqueue = Enqueue { jobs: 3, may_roll_back: false, delayed: false };
pub const NO_FAULTS: Faults = Faults {
    crashes: 0,
    sessions: 0,
    restarts: 0,
    recoveries: 0,
    terminations: 0,
    promotions: 0,
    lapses: 0,
    holds: 0,
};
const CRASH: Faults = Faults { crashes: 1, ..NO_FAULTS };
const SESSION: Faults = Faults { sessions: 1, ..NO_FAULTS };
const RESTART: Faults = Faults { restarts: 1, ..NO_FAULTS };
const LAPSE: Faults = Faults { lapses: 1, ..NO_FAULTS };

/// Returns a configuration without faults; each of `producers` is one transaction.
pub fn plain(producers: &[Enqueue]) -> Protocol {
    let producers = producers.to_vec();
    Protocol { producers, workers: 2, max_attempts: 2, turn: 1, ..Protocol::default() }
}

/// Returns a configuration in which a claim takes two jobs for one turn.
pub fn turns(producers: &[Enqueue]) -> Protocol {
    Protocol { turn: 2, ..plain(producers) }
}

fn leased(producers: &[Enqueue]) -> Protocol {
    Protocol { hold: Hold::Lease, ..plain(producers) }
}

pub fn present(producers: &[Enqueue]) -> Protocol {
    Protocol { presence: true, ..leased(producers) }
}

/// Returns a configuration in which the first error is the last.
pub fn stops(out_of_attempts: OutOfAttempts, producers: &[Enqueue]) -> Protocol {
    Protocol { out_of_attempts, may_fail: true, max_attempts: 1, ..plain(producers) }
}

/// Explores all states: each property, and whether everything ends.
pub fn check(name: &str, model: &Protocol) {
    explore(name, model, &model.with_symmetry());
    println!("    {model}");
}

/// Does that for any model. `alike` takes states for one that differ in nothing that matters.
/// Stateright explores the smaller ones as well, and has to come to the same.
pub fn explore<M>(name: &str, model: &M, alike: &M)
where
    M: Ends<State: Clone + PartialEq + Send + Sync + 'static, Action: PartialEq>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let begun = Instant::now();
    let graph = walk(alike);
    if let Some(promise) = graph.violated {
        violates(name, model, promise);
        panic!("{name}: {promise} is violated: the story is above");
    }
    if graph.stuck.is_some() {
        strands(name, model);
        panic!("{name}: not everything ends: the story is above");
    }
    if graph.states < size(3_000, 20_000) {
        let checker = alike.clone().checker().spawn_bfs().join();
        assert_eq!(checker.unique_state_count(), graph.states, "both explore the same");
        assert!(checker.discoveries().is_empty());
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("{name}: {} states, {} deep, {seconds:.1} s", graph.states, graph.depth);
}

/// Whether the environment asks for larger bounds.
pub fn is_deep() -> bool {
    std::env::var_os("SERIATIM_MODEL_DEEP").is_some()
}

#[test]
fn jobs_that_commit_in_any_order_or_roll_back() {
    let late = Enqueue { may_roll_back: true, ..TWO };
    check("two jobs that may roll back, and one", &plain(&[late, ONE]));
    check("three jobs", &plain(&[ONE, ONE, ONE]));
}

#[test]
fn jobs_that_wait_for_their_time() {
    let delayed = Enqueue { delayed: true, ..ONE };
    check("one that waits, and one", &plain(&[delayed, ONE]));
    check("one that waits, and is cancelled", &plain(&[delayed, ONE]).asking(&[Cancel(0)]));
}

#[test]
fn a_worker_that_dies_at_any_step() {
    check("a crash", &Protocol { faults: CRASH, ..plain(&[ONE, ONE]) });
    let faults = Faults { crashes: 2, ..NO_FAULTS };
    check("two crashes", &Protocol { faults, ..plain(&[ONE]) });
}

#[test]
fn a_session_that_dies_at_any_step() {
    check("a session or an answer is lost", &Protocol { faults: SESSION, ..plain(&[ONE, ONE]) });
}

#[test]
fn a_server_that_restarts_at_any_step() {
    check("a restart", &Protocol { faults: RESTART, ..plain(&[ONE, ONE]) });
}

#[test]
fn claims_that_are_released() {
    let waits = |producers: &[Enqueue]| Protocol { may_release: true, ..plain(producers) };
    check("jobs that are released", &waits(&[ONE, ONE]));
    check("and a crash", &Protocol { faults: CRASH, ..waits(&[ONE]) });
    check("and a session or an answer", &Protocol { faults: SESSION, ..waits(&[ONE]) });
    check("and a cancel", &waits(&[ONE]).asking(&[Cancel(0)]));
}

#[test]
fn turns_of_several_jobs() {
    let late = Enqueue { may_roll_back: true, ..TWO };
    check("two jobs that may roll back, and one", &turns(&[late, ONE]));
    check("three jobs", &turns(&[ONE, ONE, ONE]));
    check("a turn of three jobs", &Protocol { turn: 3, ..plain(&[TWO, ONE]) });
    check("and errors", &Protocol { may_fail: true, ..turns(&[TWO]) });
    check("and claims that are released", &Protocol { may_release: true, ..turns(&[TWO]) });
}

#[test]
fn turns_whose_workers_die() {
    check("a crash", &Protocol { faults: CRASH, ..turns(&[TWO]) });
    check("a session or an answer", &Protocol { faults: SESSION, ..turns(&[TWO]) });
    check("a deadly job", &Protocol { deadly: Some(1), ..turns(&[ONE, ONE]) });
    let faults = Faults { holds: 1, ..NO_FAULTS };
    check("a hold that fails behind a commit", &Protocol { faults, ..turns(&[ONE, ONE]) });
}

#[test]
fn turns_under_a_lease() {
    let leased = |jobs: &[Enqueue]| Protocol { hold: Hold::Lease, ..turns(jobs) };
    check("three jobs", &leased(&[TWO, ONE]));
    check("a lapse, and tx()", &Protocol { faults: LAPSE, tx: true, ..leased(&[TWO]) });
    check("a crash", &Protocol { faults: CRASH, ..leased(&[TWO]) });
    check("a session or an answer", &Protocol { faults: SESSION, ..leased(&[TWO]) });
    check("a cancel", &leased(&[TWO]).asking(&[Cancel(1)]));
}

#[test]
fn turns_beside_an_operator() {
    for request in [Cancel(1), Skip(1), Move(1)] {
        check("a request for a follower", &turns(&[TWO]).asking(&[request]));
    }
    check("a move of the head", &turns(&[TWO]).asking(&[Move(0)]));
}

#[test]
fn receivers_with_several_calls_in_a_transaction() {
    let received = |jobs: &[Enqueue]| Protocol { receivers: 1, ..plain(jobs) };
    check("a worker and a receiver", &received(&[ONE, ONE]));
    check("and a crash", &Protocol { faults: CRASH, ..received(&[ONE]) });
    check("two receivers", &Protocol { receivers: 3, ..plain(&[ONE, ONE]) });
    check("and a lapse", &Protocol { receivers: 3, faults: LAPSE, ..plain(&[ONE, ONE]) });
    check("two receivers, three jobs", &Protocol { receivers: 3, ..plain(&[TWO, ONE]) });
    check("and a cancel and a retry", &received(&[ONE, ONE]).asking(&[Cancel(0), Retry(0)]));
}

#[test]
fn receivers_whose_visibility_is_strict() {
    let strict =
        |jobs: &[Enqueue]| Protocol { receivers: 3, strict: true, faults: LAPSE, ..plain(jobs) };
    check("two receivers, and a lapse", &strict(&[ONE, ONE]));
    let faults = Faults { crashes: 1, lapses: 1, ..NO_FAULTS };
    check("and a crash", &Protocol { faults, ..strict(&[ONE]) });
    check("a worker and a receiver", &Protocol { receivers: 1, ..strict(&[ONE, ONE]) });
    check("and errors", &Protocol { may_fail: true, ..strict(&[ONE]) });
}

#[test]
fn three_adopters_side_by_side() {
    let three = |jobs: &[Enqueue]| Protocol { workers: 3, ..plain(jobs) };
    check("three workers", &three(&[ONE, ONE]));
    check("three receivers", &Protocol { receivers: 7, ..three(&[ONE, ONE]) });
}

#[test]
fn flags_that_are_cleared_beside_a_retry() {
    check("a cancel and a retry", &plain(&[ONE, ONE]).asking(&[Cancel(0), Retry(0)]));
}

#[test]
fn nodes_that_are_released() {
    let released = |model: Protocol| model.asking(&[ReleaseNode]);
    check("a lease", &released(leased(&[ONE, ONE])));
    let faults = Faults { crashes: 1, lapses: 1, ..NO_FAULTS };
    check("and a crash", &released(Protocol { faults, ..leased(&[ONE]) }));
    check("a transaction", &released(plain(&[ONE])));
    check("with presence", &released(Protocol { faults: SESSION, ..present(&[ONE]) }));
}

#[test]
fn a_standby_that_is_promoted() {
    let faults = Faults { promotions: 1, ..NO_FAULTS };
    check("a promotion", &Protocol { faults, ..plain(&[ONE]) });
    check("under a lease", &Protocol { faults, ..leased(&[ONE]) });
    check("with presence", &Protocol { faults, ..present(&[ONE]) });
    let faults = Faults { sessions: 1, ..faults };
    check("a session, then a promotion", &Protocol { faults, ..present(&[ONE]) });
}

#[test]
fn handlers_that_return_errors() {
    let errors = Protocol { may_fail: true, ..plain(&[ONE, ONE]) };
    check("errors", &errors);
    check("errors and a cancel", &errors.asking(&[Cancel(1)]));
    check("errors under a lease", &Protocol { may_fail: true, ..leased(&[ONE, ONE]) });
}

#[test]
fn handlers_that_put_their_jobs_off() {
    let snoozes = |model: Protocol| Protocol { max_snoozes: 1, ..model };
    check("two jobs", &snoozes(plain(&[ONE, ONE])));
    check("a lease, and a crash", &snoozes(Protocol { faults: CRASH, ..leased(&[ONE]) }));
    check("a receiver", &snoozes(Protocol { receivers: 1, ..plain(&[ONE]) }));
    check("a turn", &snoozes(turns(&[TWO])));
    check("and a cancel", &snoozes(plain(&[ONE]).asking(&[Cancel(0)])));
}

#[test]
fn a_job_that_kills_its_workers() {
    check("a deadly job", &Protocol { deadly: Some(0), ..plain(&[ONE, ONE]) });
    check("a deadly job under a lease", &Protocol { deadly: Some(0), ..leased(&[ONE, ONE]) });
}

#[test]
fn leases_that_run_out() {
    check("leases", &leased(&[ONE, ONE, ONE]));
    check("a lapse", &Protocol { faults: LAPSE, ..leased(&[ONE, ONE]) });
    check("a lapse, and tx()", &Protocol { faults: LAPSE, tx: true, ..leased(&[ONE, ONE]) });
}

#[test]
fn leases_whose_workers_die() {
    check("a crash", &Protocol { faults: CRASH, ..leased(&[ONE, ONE]) });
    let faults = Faults { crashes: 1, lapses: 1, ..NO_FAULTS };
    check("a crash and a lapse", &Protocol { faults, ..leased(&[ONE]) });
    check("a session, and tx()", &Protocol { faults: SESSION, tx: true, ..leased(&[ONE, ONE]) });
}

#[test]
fn presences_that_are_lost() {
    check("a crash", &Protocol { faults: CRASH, ..present(&[ONE, ONE]) });
    check("a session", &Protocol { faults: SESSION, ..present(&[ONE, ONE]) });
    let faults = Faults { sessions: 2, ..NO_FAULTS };
    check("two sessions", &Protocol { faults, ..present(&[ONE]) });
}

/// A presence that is lost before a restart, a recovery that ends all sessions, and a presence
/// session that is terminated.
#[test]
fn presences_that_are_ended() {
    let ended = |name: &str, faults| check(name, &Protocol { faults, ..present(&[ONE]) });
    ended("a presence, then a restart", Faults { sessions: 1, restarts: 1, ..NO_FAULTS });
    ended("a presence and a recovery", Faults { recoveries: 1, ..NO_FAULTS });
    ended("a terminated presence", Faults { terminations: 1, ..NO_FAULTS });
}

#[test]
fn presences_through_a_restart() {
    check("a restart", &Protocol { faults: RESTART, ..present(&[ONE, ONE]) });
    let faults = Faults { restarts: 1, crashes: 1, ..NO_FAULTS };
    check("a restart and a crash", &Protocol { faults, ..present(&[ONE]) });
}

#[test]
fn a_move_to_another_queue_at_any_time() {
    let errors = Protocol { may_fail: true, ..plain(&[ONE, ONE]) };
    check("a move", &plain(&[TWO, ONE]).asking(&[Move(0)]));
    check("a move of a later job", &plain(&[TWO, ONE]).asking(&[Move(1)]));
    check("errors and a move", &errors.asking(&[Move(0)]));
    check("under a lease", &leased(&[ONE, ONE]).asking(&[Move(0)]));
}

/// An enqueue with the unique key of a job that waits. Its transaction stays open.
#[test]
fn a_duplicate_of_a_job_that_waits() {
    check("of the first job", &plain(&[ONE, ONE]).asking(&[Duplicate(0)]));
    check("of a later job", &plain(&[TWO]).asking(&[Duplicate(1)]));
    check("of a follower", &turns(&[TWO]).asking(&[Duplicate(1)]));
    check("under a lease", &leased(&[ONE, ONE]).asking(&[Duplicate(0)]));
    check(
        "beside a receiver",
        &Protocol { receivers: 2, ..plain(&[ONE, ONE]).asking(&[Duplicate(0)]) },
    );
    check("twice, and a cancel", &plain(&[ONE]).asking(&[Duplicate(0), Duplicate(0), Cancel(0)]));
    let faults = Faults { sessions: 1, ..NO_FAULTS };
    check("and a session that dies", &Protocol { faults, ..plain(&[ONE]).asking(&[Duplicate(0)]) });
}

#[test]
fn a_cancel_at_any_time() {
    check("a cancel", &plain(&[TWO, ONE]).asking(&[Cancel(0)]));
    check("under a lease", &leased(&[ONE, ONE]).asking(&[Cancel(0)]));
}

#[test]
fn a_skip_at_any_time() {
    let released = Protocol { may_release: true, ..plain(&[ONE]) };
    check("a skip", &plain(&[ONE, ONE]).asking(&[Skip(0)]));
    check("under a lease", &leased(&[ONE, ONE]).asking(&[Skip(0)]));
    check("and claims that are released", &released.asking(&[Skip(0)]));
}

#[test]
fn a_halt_that_is_ended_or_retried() {
    check("a halt", &stops(OutOfAttempts::Halt, &[ONE, ONE]).asking(&[Unhalt, Retry(0)]));
}

#[test]
fn jobs_that_step_aside_and_come_back() {
    let parks = |jobs: &[Enqueue]| stops(OutOfAttempts::Park, jobs).asking(&[RedriveParked]);
    check("parked", &parks(&[THREE]));
    check("parked, each with a flag", &parks(&[ONE, ONE]));
}

#[test]
fn dead_letters_that_are_redriven() {
    check("a redrive", &stops(OutOfAttempts::Continue, &[ONE, ONE]).asking(&[Redrive]));
}

#[test]
fn larger_bounds_of_adopters() {
    if !is_deep() {
        return;
    }
    let three = Protocol { workers: 3, ..plain(&[ONE, ONE]) };
    check("three workers, and a crash", &Protocol { faults: CRASH, ..three.clone() });
    check("a worker and two receivers", &Protocol { receivers: 6, ..three.clone() });
    check("three workers, and a cancel", &three.asking(&[Cancel(0)]));
}

#[test]
fn larger_bounds_of_receivers() {
    if !is_deep() {
        return;
    }
    let received = |jobs: &[Enqueue]| Protocol { receivers: 3, ..plain(jobs) };
    check("two receivers, and a session", &Protocol { faults: SESSION, ..received(&[TWO, ONE]) });
    check("and a lapse", &Protocol { faults: LAPSE, ..received(&[TWO, ONE]) });
    check("and a cancel and a retry", &received(&[TWO, ONE]).asking(&[Cancel(0), Retry(0)]));
    check("a worker and a receiver", &Protocol { receivers: 1, ..plain(&[TWO, ONE]) });
}

#[test]
fn larger_bounds() {
    if !is_deep() {
        return;
    }
    let on = Protocol { turn: 3, ..plain(&[TWO, ONE]) };
    check("a turn of three jobs, and a cancel", &on.clone().asking(&[Cancel(0)]));
    check("and a crash", &Protocol { faults: CRASH, ..on });
    check("a crash, three jobs", &Protocol { faults: CRASH, ..plain(&[TWO, ONE]) });
    check("a session, three jobs", &Protocol { faults: SESSION, ..plain(&[TWO, ONE]) });
    let faults = Faults { crashes: 1, sessions: 1, ..NO_FAULTS };
    check("a crash and a session", &Protocol { faults, ..plain(&[ONE, ONE]) });
    check("a crash and a session under a lease", &Protocol { faults, ..leased(&[ONE, ONE]) });
    check("a crash and a session with presence", &Protocol { faults, ..present(&[ONE, ONE]) });
    check("parked", &stops(OutOfAttempts::Park, &[TWO, ONE]).asking(&[RedriveParked]));
    check("a redrive", &stops(OutOfAttempts::Continue, &[TWO, ONE]).asking(&[Redrive]));
    check("a cancel and a retry", &plain(&[TWO, ONE]).asking(&[Cancel(0), Retry(0)]));
    check(
        "a halt",
        &stops(OutOfAttempts::Halt, &[TWO, ONE]).asking(&[Unhalt, Retry(0), Cancel(1)]),
    );
}
