//! What the protocol does not cover yet, as the model found it: the code is so, and each breaks P2 for handlers that leases
//! keep. With the remedy that is named, it does not.

use crate::checks::{NO_FAULTS, ONE, check, present};
use crate::mutants::violates;
use crate::properties::ONE_AT_A_TIME;
use crate::protocol::Protocol;
use crate::state::Faults;

fn is_missing(name: &str, faults: Faults) {
    let model = Protocol { faults, ..present(&[ONE]) };
    violates(name, &model, ONE_AT_A_TIME);
    check(&format!("{name}, with its remedy"), &Protocol { remedied: true, ..model });
}

/// A judge doubts the claims of a process whose presence session was lost, and the server restarts before that process has
/// come back. It was told that the server goes down, so it keeps its handlers; the doubt is still there when the server is
/// back, its grace is over, and the group is taken over at once.
///
/// Remedy: a doubt from before the server's start does not count; it is written anew, until 15 s after the start.
#[test]
fn a_doubt_from_before_a_restart() {
    is_missing("a doubt from before a restart", Faults { sessions: 1, restarts: 1, ..NO_FAULTS });
}

/// After a crash of one of its processes the server ends all sessions and recovers, and `pg_postmaster_start_time()` is what
/// it was. So who announced itself before is judged at once, not 15 s later.
///
/// Remedy: what tells a restart must change with this as well.
#[test]
fn a_recovery_that_the_start_time_does_not_tell() {
    is_missing("a recovery", Faults { recoveries: 1, ..NO_FAULTS });
}

/// `pg_terminate_backend` says 57P01 as a shutdown does. A process that is told so by its presence session keeps its
/// handlers for 10 s, while it can be judged. If it cannot connect meanwhile, others take its jobs over, and so
/// does it itself, on the connections that it still has.
///
/// Remedy: that word alone is no sign of a shutdown; 57P03, or a refusal, at the next try to connect is.
#[test]
fn a_termination_that_is_taken_for_a_shutdown() {
    is_missing("a termination", Faults { terminations: 1, ..NO_FAULTS });
}
