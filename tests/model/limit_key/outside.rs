//! Events beside claims: ends of claims, crashes, cancels, and changes of the limit.

use super::state::{Change, Claim, End, GROUPS, Group, Row, State, Step};
use super::{LimitKey, Mutation};

impl LimitKey {
    /// Returns whether the claim of a group stands, and nobody has its row locked.
    pub fn may_end(&self, s: &State, group: usize) -> bool {
        let row = s.groups[group];
        let locked = s.claims.iter().any(|claim| claim.locked & 1 << group != 0);
        row.row == Row::Claimed && !row.lapsed && !locked && s.ends[group] == End::None
    }

    /// Begins the transaction that ends a job: its handler's, or an ack's.
    pub fn open_end(&self, s: &mut State, group: usize) {
        let mut wakes = 0;
        if self.is(Mutation::EndWakesItself) {
            let first = s.line.into_iter().find(|it| s.groups[*it as usize].row == Row::Gated);
            wakes = first.map_or(0, |first| 1 << first);
            s.waited |= s.claims.iter().any(|claim| claim.locked & wakes != 0);
        }
        if self.is(Mutation::EndAppendsFirst) && s.groups[group].slot {
            s.append(1);
        }
        s.ends[group] = End::Open { wakes };
    }

    /// Commits it: the turn is passed on, and the slot is free.
    pub fn commit_end(&self, s: &mut State, group: usize, wakes: u8) {
        s.ends[group] = End::None;
        s.jobs[group] -= 1;
        let appends = s.groups[group].slot && !self.is(Mutation::EndAppendsNothing);
        let row = if s.jobs[group] == 0 { Row::Gone } else { Row::Line };
        s.groups[group] = Group { row, ..<_>::default() };
        s.move_back(group);
        if self.is(Mutation::EndWakesItself) {
            for group in super::state::each(wakes) {
                s.groups[group].row = Row::Line;
                s.groups[group].slot = true;
            }
        } else if appends && !self.is(Mutation::EndAppendsFirst) {
            s.append(1);
        }
    }

    /// Releases a claim whose handler has not begun. It is in line again, and keeps its slot.
    pub fn release(&self, s: &mut State, group: usize) {
        let slot = s.groups[group].slot;
        s.groups[group] = Group { row: Row::Line, slot, ..<_>::default() };
    }

    /// The worker dies, and its lease runs out.
    pub fn crash(&self, s: &mut State, group: usize) {
        s.ends[group] = End::None;
        s.groups[group].lapsed = true;
        s.crashes += 1;
    }

    /// Cancels a job that no claim has, and nobody has locked.
    pub fn may_cancel(&self, s: &State, group: usize) -> bool {
        let locked = s.claims.iter().any(|claim| claim.heads & 1 << group != 0);
        s.jobs[group] == 1 && s.groups[group].row != Row::Claimed && !locked
    }

    /// Changes the limit, then looks for gated groups. Both are seen with the commit.
    pub fn open_change(&self, s: &mut State) {
        let gated = (0..GROUPS).any(|group| s.groups[group].row == Row::Gated);
        let always = self.own && !self.is(Mutation::OwnChangeLooksForGated);
        let appends = (gated || always) && !self.is(Mutation::ChangeWakesNobody);
        s.change = Change::Open { appends };
    }

    pub fn commit_change(&self, s: &mut State, appends: bool) {
        s.limit = self.changes[s.changes as usize];
        s.changes += 1;
        s.change = Change::None;
        s.append(u8::from(appends));
        s.beside |= !self.own && s.claims.iter().any(|claim| claim.step != Step::Idle);
    }

    pub fn roll_back(&self, s: &mut State, claim: usize) {
        s.claims[claim] = Claim::default();
    }
}
