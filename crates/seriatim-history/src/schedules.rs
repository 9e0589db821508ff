//! A schedule makes one job for each due time.

use crate::event::Time;
use crate::history::{History, Schedule};
use crate::violation::{Promise, Violations};

pub(crate) fn check(history: &History, violations: &mut Violations) {
    for schedule in &history.schedules {
        check_schedule(history, schedule, violations);
    }
}

fn check_schedule(history: &History, schedule: &Schedule, violations: &mut Violations) {
    let name = &schedule.name;
    let mut made = schedule.jobs.clone();
    made.sort_unstable();
    for two in made.windows(2) {
        let ((due, first), (again, second)) = (two[0], two[1]);
        if due == again {
            violations.add(Promise::Schedule, history.last, vec![first, second], || {
                format!("schedule {name} made two jobs for its due time {due}")
            });
        }
    }
    let Some(every) = schedule.every else { return };
    for &(due, job) in &made {
        if due % every != 0 || due <= schedule.from {
            violations.add(Promise::Schedule, history.last, vec![job], || {
                format!("schedule {name} made a job for {due}, which is no due time of it")
            });
        }
    }
    let Some(until) = schedule.until else { return };
    let mut last = schedule.from.div_euclid(every) * every;
    let dues = made.iter().map(|&(due, _)| due).filter(|&due| due > schedule.from && due <= until);
    // The first time behind all that are due.
    let end: Time = until.div_euclid(every) * every + every;
    for due in dues.chain([end]) {
        let next = last + every;
        if due > next {
            violations.add(Promise::Schedule, history.last, vec![], || {
                format!("schedule {name} made no job for its due time {next}")
            });
        }
        last = due;
    }
}
