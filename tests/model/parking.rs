//! Park: a failed job and those behind it step aside; in batches, while their group is halted with
//! `park_to`. And maintenance, which goes on with that, and carries out requests to cancel.

use crate::claim::freed;
use crate::database::Lock;
use crate::mutation::Mutation;
use crate::operator::{end, lock_waiting};
use crate::protocol::Protocol;
use crate::state::{
    GroupRow, JobRow, MAINTENANCE, MaintenanceStep, Ready, Rows, State, Status, Step, each, lowest,
};

/// Limit of jobs that one transaction parks.
const BATCH: u32 = 1;

fn queued_behind(rows: &Rows, failed: u8, to: Option<u8>) -> u8 {
    rows.which(|id, row| {
        row.status == Status::Queued && id > failed && to.is_none_or(|to| id <= to)
    })
}

/// Parks a batch of the jobs that the statement saw; returns the last id that is left.
fn park(s: &mut State, session: usize, failed: u8, behind: u8, keeps: bool) -> Option<u8> {
    let mut next = 0_u8;
    for id in each(behind) {
        if next.count_ones() == BATCH {
            break;
        }
        if let Some(job) = s.lock_job(session, id).filter(|job| job.status == Status::Queued) {
            next |= 1 << id;
            let parked_with = Some(failed);
            // Nothing is to be adopted for it, and no start would clear its flag.
            let flagged = job.flagged && keeps;
            let status = Status::Parked;
            s.write_job(session, id, JobRow { status, flagged, parked_with, ..job });
        }
    }
    each(behind & !next).last()
}

impl Protocol {
    pub fn see_behind(&self, s: &mut State, w: usize) {
        let Some(claim) = s.workers[w].claim else { return };
        let behind = queued_behind(&s.snapshot(w), claim.job, None);
        s.workers[w].step = Step::ParkLock { behind };
    }

    pub fn park_behind(&self, s: &mut State, w: usize, behind: u8) {
        let Some(claim) = s.workers[w].claim else { return };
        let Some(park_to) = park(s, w, claim.job, behind, self.is(Mutation::ParkKeepsFlags)) else {
            return self.pass_turn(s, w);
        };
        if let Some(row) = s.snapshot(w).group {
            let (halted_by, park_to) = (Some(claim.job), Some(park_to));
            let ready = Ready::Never;
            s.write_group(w, GroupRow { ready, halted_by, park_to, ..freed(&row) });
        }
        s.workers[w].step = Step::SettleCommit;
    }

    /// Maintenance continues a park that a settle began, or carries out a request of a job that
    /// nobody has claimed, as an operator does.
    pub fn run_maintenance(&self, s: &mut State) -> bool {
        match s.maintenance {
            MaintenanceStep::Idle => {
                if s.rows.group.is_some_and(|row| row.park_to.is_some()) {
                    if s.lock_group(MAINTENANCE, Lock::NoKeyUpdate).is_none() {
                        return false;
                    }
                    s.maintenance = MaintenanceStep::ParkSee;
                } else {
                    let Some(job) = lowest(s.rows.asked & s.rows.which(|_, row| !row.is_over()))
                    else {
                        return false;
                    };
                    s.maintenance = MaintenanceStep::RequestLock { job };
                }
            }
            MaintenanceStep::RequestLock { job } => {
                s.maintenance = MaintenanceStep::Idle;
                if lock_waiting(s, MAINTENANCE, job).is_none() {
                    s.rollback(MAINTENANCE);
                } else if self.is(Mutation::RequestWithoutLook) {
                    end(s, MAINTENANCE, job, Status::Cancelled);
                    s.commit(MAINTENANCE);
                } else {
                    s.maintenance = MaintenanceStep::RequestLook { job };
                }
            }
            MaintenanceStep::RequestLook { job } => {
                if !self.finds_claimed(&s.snapshot(MAINTENANCE), job) {
                    end(s, MAINTENANCE, job, Status::Cancelled);
                }
                s.commit(MAINTENANCE);
                s.maintenance = MaintenanceStep::Idle;
            }
            MaintenanceStep::ParkSee => {
                let rows = s.snapshot(MAINTENANCE);
                let Some(GroupRow { halted_by: Some(failed), park_to, .. }) = rows.group else {
                    return false;
                };
                let behind = queued_behind(&rows, failed, park_to);
                s.maintenance = MaintenanceStep::ParkLock { behind };
            }
            MaintenanceStep::ParkLock { behind } => {
                let Some(row) = s.snapshot(MAINTENANCE).group else { return false };
                let keeps = self.is(Mutation::ParkKeepsFlags);
                let rest = park(s, MAINTENANCE, row.halted_by.unwrap_or(0), behind, keeps);
                let row = if rest.is_some() {
                    GroupRow { park_to: rest, ..row }
                } else {
                    GroupRow { halted_by: None, park_to: None, ready: Ready::Due, ..row }
                };
                s.write_group(MAINTENANCE, row);
                s.commit(MAINTENANCE);
                s.maintenance = MaintenanceStep::Idle;
            }
        }
        true
    }
}
