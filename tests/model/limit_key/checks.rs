//! Configurations, each explored in full.

use super::{Claimer, LimitKey};
use crate::checks::{explore, is_deep};

pub const WORKER: Claimer = Claimer { slots: 1, receives: false };
pub const TWO_SLOTS: Claimer = Claimer { slots: 2, receives: false };
pub const RECEIVER: Claimer = Claimer { slots: 1, receives: true };

/// Groups with so many jobs, and a limit.
pub fn limited(limit: u8, jobs: &[u8], claims: &[Claimer]) -> LimitKey {
    let (jobs, claims) = (jobs.to_vec(), claims.to_vec());
    LimitKey {
        jobs,
        claims,
        limit,
        changes: vec![],
        own: false,
        crashes: 0,
        cancels: 0,
        may_release: false,
        symmetric: false,
        mutation: None,
    }
}

/// And changes of the limit.
pub fn changed(limits: &[u8], jobs: &[u8], claims: &[Claimer]) -> LimitKey {
    LimitKey { changes: limits[1..].to_vec(), ..limited(limits[0], jobs, claims) }
}

fn check(name: &str, model: &LimitKey) {
    explore(name, model, &model.with_symmetry());
}

#[test]
fn claims_of_a_full_key_side_by_side() {
    check("two workers, three groups", &limited(1, &[1, 1, 1], &[WORKER, WORKER]));
    check("two workers, two jobs of a group", &limited(1, &[2, 1], &[WORKER, WORKER]));
    check("three workers", &limited(1, &[1, 1], &[WORKER, WORKER, WORKER]));
}

#[test]
fn receivers_that_stay_open_beside_each_other() {
    check("two receivers", &limited(1, &[1, 1], &[RECEIVER, RECEIVER]));
    check("a receiver and a worker", &limited(1, &[1, 1], &[RECEIVER, WORKER]));
}

#[test]
fn slots_of_workers_that_die_and_of_claims_that_are_released() {
    let dies = LimitKey { crashes: 1, ..limited(1, &[1, 1], &[WORKER, WORKER]) };
    check("a crash, and claims that are released", &LimitKey { may_release: true, ..dies });
}

#[test]
fn slots_of_groups_whose_job_is_cancelled() {
    let cancelled = |model: LimitKey| LimitKey { cancels: 1, ..model };
    check("two workers", &cancelled(limited(1, &[1, 1], &[WORKER, WORKER])));
    check("three groups", &cancelled(limited(1, &[1, 1, 1], &[TWO_SLOTS])));
}

#[test]
fn a_limit_that_changes_at_any_time() {
    for limits in [[1, 2], [2, 1], [1, 0]] {
        check(&format!("limits {limits:?}"), &changed(&limits, &[1, 1, 1], &[WORKER]));
    }
}

#[test]
fn a_limit_that_is_removed_during_a_claim_of_two_groups() {
    check("two slots", &changed(&[1, 0], &[1, 1, 1], &[TWO_SLOTS]));
    check("removed and set again", &changed(&[1, 0, 1], &[1, 1], &[TWO_SLOTS]));
}

#[test]
fn a_limit_that_is_removed_beside_a_claim_that_goes_on() {
    let removed = changed(&[1, 0], &[1, 1], &[WORKER, WORKER]);
    check("claims that are released", &LimitKey { may_release: true, ..removed });
}

#[test]
fn the_own_limit_of_a_key_that_changes_at_any_time() {
    let own = |model: LimitKey| LimitKey { own: true, ..model };
    for limits in [[1, 2], [2, 1], [1, 0]] {
        let two = changed(&limits, &[1, 1], &[WORKER, WORKER]);
        check(&format!("limits {limits:?}"), &own(two));
    }
    check("removed and set again", &own(changed(&[1, 0, 1], &[1, 1], &[TWO_SLOTS])));
}

#[test]
fn larger_bounds_of_limit_keys() {
    if !is_deep() {
        return;
    }
    let two = [WORKER, WORKER];
    check("limit 2, two slots", &limited(2, &[1, 1, 1], &[TWO_SLOTS, WORKER]));
    check("a receiver, three groups", &limited(1, &[1, 1, 1], &[RECEIVER, WORKER]));
    check("a cancel", &LimitKey { cancels: 1, ..limited(1, &[1, 1, 1], &two) });
    for limits in [&[1, 2][..], &[2, 1], &[1, 0, 1]] {
        check(&format!("limits {limits:?}"), &changed(limits, &[1, 1], &two));
    }
    check("removed, and a crash", &LimitKey { crashes: 1, ..changed(&[1, 0], &[1, 1], &two) });
}
