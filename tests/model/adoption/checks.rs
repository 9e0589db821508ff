//! Configurations, each explored in full.

use super::{Adoption, Job, Kind, Session};
use crate::checks::{explore, is_deep};

pub const WORKER: Session = Session { slots: 1, receives: false };
pub const RECEIVER: Session = Session { slots: 1, receives: true };
const TWO_SLOTS: Session = Session { slots: 2, ..WORKER };

/// A job of the group with priority 0.
pub fn job(group: usize, enqueued: i8) -> Job {
    Job { group, enqueued, priority: 0, later: false }
}

pub fn flags(kinds: &[Kind], jobs: &[Job], sessions: &[Session]) -> Adoption {
    let (kinds, jobs, sessions) = (kinds.to_vec(), jobs.to_vec(), sessions.to_vec());
    Adoption { kinds, jobs, sessions, page: 1, flags_stay: false, mutation: None }
}

/// Explores all states, with pages of one flag and of two.
fn check(name: &str, model: &Adoption) {
    for page in [1, 2] {
        let model = Adoption { page, ..model.clone() };
        explore(&format!("{name}, pages of {page}"), &model, &model);
    }
}

/// Two flags of such a group, before one of an idle group.
fn behind(kind: Kind, sessions: &[Session]) -> Adoption {
    flags(&[kind, Kind::Idle], &[job(0, 0), job(0, 1), job(1, 2)], sessions)
}

/// And one of a third group, committed at any moment.
fn behind_and_late(kind: Kind, sessions: &[Session]) -> Adoption {
    let late = Job { later: true, ..job(2, 3) };
    let jobs = [job(0, 0), job(0, 1), job(1, 2), late];
    flags(&[kind, Kind::Idle, Kind::Idle], &jobs, sessions)
}

const KINDS: [Kind; 6] =
    [Kind::Idle, Kind::Busy, Kind::Paused, Kind::Resting, Kind::Locked, Kind::Sleeping];

#[test]
fn flags_of_any_group_before_an_idle_one() {
    for kind in KINDS {
        check(&format!("{kind:?}, two workers"), &behind(kind, &[WORKER, TWO_SLOTS]));
        check(&format!("{kind:?}, a receiver"), &behind(kind, &[WORKER, RECEIVER]));
    }
    check("Locked, and a late one", &behind_and_late(Kind::Locked, &[WORKER, RECEIVER]));
}

#[test]
fn receivers_that_stay_open_beside_each_other() {
    check("two receivers", &behind(Kind::Busy, &[RECEIVER, RECEIVER]));
    check("and a worker", &behind(Kind::Sleeping, &[RECEIVER, RECEIVER, WORKER]));
}

#[test]
fn flags_that_stay_while_their_jobs_run() {
    let jobs = [job(0, 0), job(1, 1)];
    let stay = Adoption { flags_stay: true, ..flags(&[Kind::Idle, Kind::Idle], &jobs, &[]) };
    check("two workers", &Adoption { sessions: vec![WORKER, TWO_SLOTS], ..stay.clone() });
    check("a receiver", &Adoption { sessions: vec![WORKER, RECEIVER], ..stay });
}

#[test]
fn a_job_of_a_higher_priority_goes_first() {
    let urgent = Job { priority: 1, later: true, ..job(2, 2) };
    let jobs = [job(0, 0), job(1, 1), urgent];
    check("a priority", &flags(&[Kind::Idle; 3], &jobs, &[WORKER, TWO_SLOTS]));
    check("and a receiver", &flags(&[Kind::Idle; 3], &jobs, &[RECEIVER, WORKER]));
}

#[test]
fn larger_bounds_of_pages() {
    if !is_deep() {
        return;
    }
    for kind in KINDS {
        let late = |sessions: &[Session]| behind_and_late(kind, sessions);
        check(&format!("{kind:?}, two workers, and a late one"), &late(&[WORKER, TWO_SLOTS]));
        check(&format!("{kind:?}, a receiver, and a late one"), &late(&[WORKER, RECEIVER]));
        let stay = |model: Adoption| Adoption { flags_stay: true, ..model };
        check(
            &format!("{kind:?}, two workers, flags stay"),
            &stay(behind(kind, &[WORKER, TWO_SLOTS])),
        );
        check(
            &format!("{kind:?}, a receiver, flags stay"),
            &stay(behind(kind, &[WORKER, RECEIVER])),
        );
    }
    check("Locked, a receiver", &behind(Kind::Locked, &[WORKER, TWO_SLOTS, RECEIVER]));
    check("Locked, two receivers", &behind(Kind::Locked, &[RECEIVER, RECEIVER, WORKER]));
}
