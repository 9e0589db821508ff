//! The model of pages can fail: each broken rule breaks a promise, and its story is printed.

use super::checks::{RECEIVER, WORKER, flags, job};
use super::{Adoption, CONFINED, FAIR, Job, Kind, Mutation};
use crate::story::violates;

fn breaks(mutation: Mutation, model: Adoption, promise: &'static str) {
    let model = Adoption { mutation: Some(mutation), ..model };
    violates(&format!("{mutation:?}"), &model, promise);
}

#[test]
fn a_page_of_cleared_flags_hides_the_idle_group_behind() {
    let jobs = [job(0, 0), job(0, 1), job(1, 2)];
    let model = flags(&[Kind::Busy, Kind::Idle], &jobs, &[WORKER]);
    breaks(Mutation::StopAtClearedFlags, model, FAIR);
}

#[test]
fn flags_without_priority_hide_an_urgent_job() {
    let jobs = [job(0, 0), Job { priority: 1, ..job(1, 1) }];
    let model = flags(&[Kind::Idle, Kind::Idle], &jobs, &[WORKER]);
    breaks(Mutation::OrderWithoutPriority, model, FAIR);
}

#[test]
fn turns_that_start_nothing_use_up_the_claim() {
    let jobs = [job(0, 0), job(1, 1)];
    for kind in [Kind::Locked, Kind::Paused] {
        let model = flags(&[kind, Kind::Idle], &jobs, &[WORKER]);
        breaks(Mutation::EmptyTurnsCount, model, FAIR);
    }
}

#[test]
fn one_adopter_that_stays_open_keeps_all_new_groups() {
    let jobs = [job(0, 0), job(1, 1)];
    let model = flags(&[Kind::Idle, Kind::Idle], &jobs, &[WORKER, RECEIVER]);
    breaks(Mutation::OneAdopter, model, FAIR);
}

#[test]
fn a_page_that_is_locked_keeps_groups_that_are_not_started() {
    let jobs = [job(0, 0), job(1, 1)];
    let model = flags(&[Kind::Idle, Kind::Idle], &jobs, &[RECEIVER]);
    breaks(Mutation::LockThePage, Adoption { page: 2, ..model }, CONFINED);
}

#[test]
fn a_receive_that_keeps_what_it_met_delays_other_groups() {
    let jobs = [job(0, 0), job(1, 1)];
    let model = flags(&[Kind::Paused, Kind::Idle], &jobs, &[RECEIVER]);
    breaks(Mutation::KeepTheRefused, model, CONFINED);
}
