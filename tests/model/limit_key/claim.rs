//! A claim: wakes gated groups for freed slots, then starts or gates groups in the order of the
//! line, then looks at freed slots once more.

use super::state::{Change, Claim, GROUPS, Group, Row, State, Step};
use super::{LimitKey, Mutation};

/// More than any number of groups: the limit was removed.
const ANY: u8 = 9;

impl LimitKey {
    /// Begins a call; a receiver's may be a further one in its open transaction.
    pub fn begin(&self, s: &mut State, it: usize) {
        let adopts = self.is(Mutation::AdoptWithoutTheSlot);
        let line = (0..GROUPS).filter(|group| adopts && s.seen(it, *group).row == Row::Line);
        s.claims[it] = Claim {
            step: Step::WakeList,
            limit: s.limit,
            line: line.fold(0, |bits, group| bits | 1 << group),
            slots: self.claims[it].slots,
            ..s.claims[it]
        };
        if !self.removes() {
            self.list_freed(s, it);
        }
    }

    /// A step is several statements if nothing that happens between them matters: behind a lock,
    /// nobody else writes what they read.
    pub fn step(&self, s: &mut State, it: usize) {
        match s.claims[it].step {
            Step::Idle => self.begin(s, it),
            Step::WakeList => self.list_freed(s, it),
            Step::WakeDelete => self.delete_freed(s, it),
            Step::Wake => {
                self.read_own(s, it);
                let room = self.room_to_wake(s, it);
                self.wake(s, it, room);
            }
            Step::Lock => self.lock_next(s, it),
            Step::Count { group, counted } => self.count(s, it, group, counted),
            Step::Commit => self.commit(s, it),
        }
    }

    /// Reads freed slots. The transaction sees its own as well.
    fn list_freed(&self, s: &mut State, it: usize) {
        let freed = s.freed & !s.claims[it].deleted;
        let claim = &mut s.claims[it];
        if freed == 0 && claim.appended == 0 {
            claim.step = Step::Lock;
            return;
        }
        claim.step = Step::WakeDelete;
        if self.is(Mutation::CountBeforeTheDelete) {
            s.claims[it].room = Some(self.room_to_wake(s, it));
        }
    }

    /// Deletes freed slots, if it gets the key; not those that another claim has locked.
    fn delete_freed(&self, s: &mut State, it: usize) {
        let locked = s.lock_key(it) || self.is(Mutation::WakeWithoutLock);
        let freed = s.free_notes(it);
        let claim = &mut s.claims[it];
        if locked {
            claim.deleted |= freed;
            claim.noted = 0;
            claim.appended = 0;
        }
        claim.step = if locked { Step::Wake } else { Step::Lock };
    }

    /// Reads the limit anew, if it is the key's own.
    fn read_own(&self, s: &mut State, it: usize) {
        if self.own {
            s.claims[it].limit = s.limit;
        }
    }

    fn room_to_wake(&self, s: &State, it: usize) -> u8 {
        let limit = s.claims[it].limit;
        if limit == 0 { ANY } else { s.room(it, limit) }
    }

    /// Returns whether the limit may be removed: then it matters when it is read.
    fn removes(&self) -> bool {
        self.changes.contains(&0)
    }

    /// Wakes the groups that have waited longest, and keeps a slot for each.
    fn wake(&self, s: &mut State, it: usize, room: u8) {
        let others = s.locked_by_others(it);
        s.claims[it].step = Step::Lock;
        let room = s.claims[it].room.take().unwrap_or(room);
        if room == 0 {
            return;
        }
        let most = room.min(s.claims[it].slots);
        let limit = s.claims[it].limit;
        let mut gated: Vec<u8> = s.line.to_vec();
        gated.retain(|group| {
            s.seen(it, *group as usize).row == Row::Gated && others & 1 << group == 0
        });
        let first = gated.first().copied();
        if self.is(Mutation::WakeTheLast) {
            gated.reverse();
        }
        gated.truncate(most as usize);
        s.unfair |= first.is_some_and(|first| !gated.contains(&first));
        for group in &gated {
            let slot = limit > 0 && !self.is(Mutation::KeepNoSlot);
            let row = Group { row: Row::Line, slot, woken: limit > 0, ..<_>::default() };
            s.claims[it].written[*group as usize] = Some(row);
            s.claims[it].locked |= 1 << group;
        }
        s.over |= limit > 0 && !gated.is_empty() && s.holders(it) > limit;
        // Others are behind these, or are locked for a moment.
        let rest = (0..GROUPS).any(|group| s.seen(it, group).row == Row::Gated);
        let left = rest && (gated.len() as u8) < room && !self.is(Mutation::ForgetTheRest);
        s.claims[it].appended += u8::from(left);
    }

    /// Locks the next group in the line, or a claim that lapsed. The second time it looks at those
    /// alone that it has woken.
    fn lock_next(&self, s: &mut State, it: usize) {
        let claim = s.claims[it];
        let others = s.locked_by_others(it);
        let next = s.line.into_iter().find(|group| {
            let row = s.seen(it, *group as usize);
            let due = row.row == Row::Line || row.row == Row::Claimed && row.lapsed;
            let wanted = !claim.again || claim.written[*group as usize].is_some();
            due && wanted && (claim.tried | others) & 1 << group == 0
        });
        let claim = &mut s.claims[it];
        match next.filter(|_| claim.slots > 0) {
            Some(group) => {
                claim.tried |= 1 << group;
                claim.locked |= 1 << group;
                self.ask(s, it, group);
            }
            None if claim.slots > 0 && !claim.again => {
                claim.again = true;
                claim.step = Step::WakeList;
            }
            None => {
                let Claim { has_key, deleted, noted, appended, locked, heads, written, .. } =
                    *claim;
                let step = Step::Commit;
                *claim = Claim {
                    step,
                    has_key,
                    deleted,
                    noted,
                    appended,
                    locked,
                    heads,
                    written,
                    ..<_>::default()
                };
                if self.is(Mutation::ReadTheLimitTwice) && s.limit == 0 {
                    for (group, row) in s.claims[it].written.iter_mut().enumerate() {
                        let had = s.groups[group].slot;
                        *row = row.map(|row| Group { slot: row.slot && had, ..row });
                    }
                }
            }
        }
    }

    /// Reads the head. A group that has a slot, or is taken over, needs none.
    fn ask(&self, s: &mut State, it: usize, group: u8) {
        self.read_own(s, it);
        let mut row = s.seen(it, group as usize);
        let early = self.is(Mutation::CountBeforeTheLock);
        let counted = if early { s.room(it, s.claims[it].limit) } else { 0 };
        let claim = &mut s.claims[it];
        let adopted = row.row == Row::Line && claim.line & 1 << group == 0;
        row.slot &= !(adopted && self.is(Mutation::AdoptWithoutTheSlot));
        if s.jobs[group as usize] == 0 {
            // Its job was cancelled. A row that this transaction has written stays for the next
            // claim.
            let passes = row.slot && !self.is(Mutation::KeepSlotForNothing);
            claim.appended += u8::from(passes);
            let is_written = claim.written[group as usize].is_some() || row.slot;
            let row = if is_written { Row::Line } else { Row::Gone };
            claim.written[group as usize] = Some(Group { row, ..<_>::default() });
            claim.step = Step::Lock;
            return;
        }
        claim.heads |= u8::from(self.cancels > 0) << group;
        if row.row == Row::Claimed || row.slot || claim.limit == 0 {
            self.start(s, it, group, row, false);
        } else if claim.full {
            self.gate(s, it, group);
        } else {
            claim.step = Step::Count { group, counted };
        }
    }

    /// If another claim has the key, a later claim counts. Otherwise it counts in a new statement.
    fn count(&self, s: &mut State, it: usize, group: u8, counted: u8) {
        let locked = s.lock_key(it);
        if locked && !self.is(Mutation::ReadOwnLimitBeforeTheLock) {
            self.read_own(s, it);
        }
        let limit = s.claims[it].limit;
        let room = if self.is(Mutation::CountBeforeTheLock) { counted } else { s.room(it, limit) };
        if !locked {
            self.note(s, it);
            self.gate(s, it, group);
        } else if limit == 0 {
            // Removed since the claim asked for the group.
            let row = s.seen(it, group as usize);
            self.start(s, it, group, row, false);
        } else if room > 0 {
            let row = s.seen(it, group as usize);
            self.start(s, it, group, row, true);
        } else {
            self.gate(s, it, group);
        }
    }

    /// Leaves a freed slot for a later claim, or locks one that is there.
    fn note(&self, s: &mut State, it: usize) {
        let free = s.free_notes(it) & !s.claims[it].deleted;
        let claim = &mut s.claims[it];
        if self.is(Mutation::ForgetWithoutLock) || claim.noted != 0 || claim.appended > 0 {
        } else if free == 0 {
            claim.appended = 1;
        } else if !self.is(Mutation::RelyOnAnyNote) {
            claim.noted = 1 << free.trailing_zeros();
        }
    }

    fn gate(&self, s: &mut State, it: usize, group: u8) {
        s.gated_again |= s.seen(it, group as usize).woken;
        let claim = &mut s.claims[it];
        claim.full = true;
        claim.written[group as usize] = Some(Group { row: Row::Gated, ..<_>::default() });
        claim.step = Step::Lock;
    }

    /// Starts the job of a group, `row`. `counted`: the claim has found a slot for it.
    fn start(&self, s: &mut State, it: usize, group: u8, row: Group, counted: bool) {
        let taken_over = row.row == Row::Claimed;
        let keeps = row.slot && !self.is(Mutation::SlotGoesWithTheLimit);
        let frees = taken_over && row.slot && self.is(Mutation::TakeOverFreesTheSlot);
        let claim = &mut s.claims[it];
        let slot = (claim.limit > 0 || keeps) && !frees;
        let begins = counted || !taken_over && row.slot;
        let limited = begins && claim.limit > 0 || row.limited;
        claim.appended += u8::from(frees);
        let started = Group { row: Row::Claimed, slot, limited, ..<_>::default() };
        claim.written[group as usize] = Some(started);
        claim.slots -= 1;
        claim.step = Step::Lock;
        let limit = claim.limit;
        s.over |= counted && s.holders(it) > limit;
    }

    fn commit(&self, s: &mut State, it: usize) {
        let claim = s.claims[it];
        s.beside |= !self.own && s.change != Change::None;
        for (group, row) in claim.written.into_iter().enumerate() {
            s.groups[group] = row.unwrap_or(s.groups[group]);
        }
        s.freed &= !claim.deleted;
        s.append(claim.appended);
        s.claims[it] = <_>::default();
    }
}
