//! A claim: pages of flags in the order of the line, and turns until its slots are full.

use super::state::{Claim, Group, JobState, State, Step, bits, each};
use super::{Adoption, Kind, Mutation};

impl Adoption {
    /// Where a group stands in the line: as its first waiting job, or behind all of those since its
    /// last turn ended.
    fn position(&self, state: &State, group: usize) -> i8 {
        let first = (0..self.jobs.len())
            .find(|job| self.jobs[*job].group == group && state.jobs[*job].waits());
        match state.groups[group] {
            Group::NoRow => first.map_or(i8::MAX, |job| self.jobs[job].position()),
            _ => 100 + group as i8,
        }
    }

    /// Where a flag stands in the index of flags.
    fn place(&self, job: usize) -> i8 {
        if self.is(Mutation::OrderWithoutPriority) {
            self.jobs[job].enqueued
        } else {
            self.jobs[job].position()
        }
    }

    pub fn startable(&self, group: usize) -> bool {
        !matches!(self.kinds[group], Kind::Paused | Kind::Resting | Kind::Locked)
    }

    /// Begins a call; a receiver's may be a further one in its open transaction.
    pub fn begin(&self, s: &mut State, session: usize) {
        let (jobs, groups) = s.seen_by(session);
        let due = (0..self.kinds.len()).filter(|group| {
            let waits =
                (0..self.jobs.len()).any(|job| self.jobs[job].group == *group && jobs[job].waits());
            self.startable(*group) && waits && matches!(groups[*group], Group::NoRow | Group::Due)
        });
        let due = bits(due);
        let touched = s.locked_by_others(session);
        let before = s.claims[session];
        s.claims[session] = Claim {
            step: Step::Page,
            slots: self.sessions[session].slots,
            due,
            touched,
            locked: before.locked,
            started: before.started,
            refused: before.refused,
            asleep: before.asleep,
            met: before.met,
            cleared: before.cleared,
            adopter: before.adopter,
            ..Claim::default()
        };
        self.read_page(s, session);
    }

    pub fn step(&self, s: &mut State, session: usize) {
        match s.claims[session].step {
            Step::Idle => self.begin(s, session),
            Step::Page => self.read_page(s, session),
            Step::Lock => self.take_next(s, session),
            Step::Look { group, at } => self.look(s, session, group as usize, at),
            Step::Take { groups } => self.take_again(s, session, groups),
            Step::Commit => self.commit(s, session),
        }
    }

    /// Reads a page without locking it. A worker clears the flags of rows that are claimed, or that
    /// sleep until another job's time; a receiver leaves them.
    fn read_page(&self, s: &mut State, session: usize) {
        let (jobs, groups) = s.seen_by(session);
        let cursor = s.claims[session].cursor;
        let flagged = (0..self.jobs.len()).filter(|job| jobs[*job] == JobState::Flagged);
        let mut page: Vec<usize> =
            flagged.filter(|job| cursor.is_none_or(|cursor| self.place(*job) > cursor)).collect();
        page.sort_by_key(|job| self.place(*job));
        page.truncate(self.page);
        let cleared = page.iter().copied().filter(|job| {
            let group = groups[self.jobs[*job].group];
            matches!(group, Group::Claimed | Group::Asleep) && !self.sessions[session].receives
        });
        let cleared = bits(cleared);
        let claim = &mut s.claims[session];
        claim.cursor = page.last().map(|job| self.place(*job)).or(cursor);
        claim.page = bits(page.iter().copied());
        claim.cleared |= cleared;
        let stops = self.is(Mutation::StopAtClearedFlags) && cleared == claim.page;
        claim.last_page = page.len() < self.page || stops;
        claim.step = Step::Lock;
        if self.is(Mutation::LockThePage) {
            for job in page {
                let group = self.jobs[job].group;
                if groups[group] == Group::NoRow {
                    s.lock(session, group);
                }
            }
        }
    }

    /// Locks the next group in the line: a new group of the page, or a row that is due. The rows
    /// behind the page wait for the next page.
    fn take_next(&self, s: &mut State, session: usize) {
        let (_, groups) = s.seen_by(session);
        let claim = s.claims[session];
        let flagged = each(claim.page).fold(0, |bits, job| bits | 1 << self.jobs[job].group);
        let others = s.claims.iter().enumerate().filter(|(other, _)| *other != session);
        let kept_out = self.is(Mutation::OneAdopter) && others.map(|it| it.1).any(|it| it.adopter);
        let next = (0..self.kinds.len())
            .filter(|group| claim.tried & 1 << group == 0)
            .filter(|group| match groups[*group] {
                Group::NoRow => flagged & 1 << group != 0 && !kept_out,
                Group::Due => claim.last_page,
                Group::Asleep | Group::Claimed => false,
            })
            .min_by_key(|group| self.position(s, *group));
        let Some(group) = next else {
            if claim.last_page {
                self.end(s, session);
            } else {
                s.claims[session].step = Step::Page;
            }
            return;
        };
        let at = self.position(s, group);
        let claim = &mut s.claims[session];
        claim.tried |= 1 << group;
        claim.adopter |= self.is(Mutation::OneAdopter) && groups[group] == Group::NoRow;
        if s.lock(session, group) {
            s.claims[session].step = Step::Look { group: group as u8, at };
        }
    }

    /// A new statement: the row may have come or gone before the lock. A head that cannot start
    /// leaves a row that sleeps.
    fn look(&self, s: &mut State, session: usize, group: usize, at: i8) {
        let (jobs, groups) = s.seen_by(session);
        let waits =
            (0..self.jobs.len()).any(|job| self.jobs[job].group == group && jobs[job].waits());
        let free = matches!(groups[group], Group::NoRow | Group::Due);
        let starts = self.startable(group) && waits && free;
        let claim = &mut s.claims[session];
        claim.step = Step::Lock;
        if starts {
            claim.started |= 1 << group;
            claim.started_at[group] = Some(at);
            claim.slots -= 1;
        } else {
            claim.refused |= 1 << group;
            claim.asleep |= u8::from(waits && free) << group;
            claim.slots -= u8::from(self.is(Mutation::EmptyTurnsCount));
        }
        if claim.slots == 0 {
            self.end(s, session);
        }
    }

    /// The call ends. Each group that it had to start is started, or its slots went to groups that
    /// were before it in the line.
    fn end(&self, s: &mut State, session: usize) {
        let claim = s.claims[session];
        let missed = each(claim.due & !claim.touched & !claim.started);
        s.unfair |= missed.into_iter().any(|group| {
            let at = self.position(s, group);
            let before = claim.started_at.iter().flatten().filter(|other| **other < at);
            before.count() < self.sessions[session].slots as usize
        });
        let Claim {
            mut locked, mut started, refused, mut asleep, mut met, cleared, adopter, ..
        } = claim;
        let mut step = Step::Commit;
        if self.sessions[session].receives && refused != 0 && !self.is(Mutation::KeepTheRefused) {
            let groups = bits((0..self.kinds.len()).filter(|it| claim.started_at[*it].is_some()));
            locked &= !(groups | refused);
            started &= !groups;
            asleep = 0;
            met |= refused;
            step = Step::Take { groups };
        }
        s.claims[session] =
            Claim { step, locked, started, asleep, met, cleared, adopter, ..Claim::default() };
        if step == Step::Commit {
            s.claims[session].refused = refused;
            self.confine(s, session);
        }
    }

    /// Starts one of the groups again that a receive was about to start, by name. A group that has
    /// changed since is left alone.
    fn take_again(&self, s: &mut State, session: usize, groups: u8) {
        let Some(group) = each(groups).next() else {
            s.claims[session].step = Step::Commit;
            self.confine(s, session);
            return;
        };
        s.claims[session].step = Step::Take { groups: groups & !(1 << group) };
        if s.lock(session, group) {
            let (jobs, rows) = s.seen_by(session);
            let waits =
                (0..self.jobs.len()).any(|job| self.jobs[job].group == group && jobs[job].waits());
            let starts =
                self.startable(group) && waits && matches!(rows[group], Group::NoRow | Group::Due);
            let claim = &mut s.claims[session];
            claim.started |= u8::from(starts) << group;
            claim.locked &= !(u8::from(!starts) << group);
        }
    }

    /// An open transaction may keep what it starts, and a worker's what it is about to put off.
    fn confine(&self, s: &mut State, session: usize) {
        let claim = s.claims[session];
        let own = if self.sessions[session].receives { 0 } else { claim.refused };
        s.unconfined |= claim.locked & !claim.started & !own != 0;
    }
}
