//! State: rows as committed, and each claim with what it has not committed.

pub const GROUPS: usize = 3;
pub const CLAIMS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Row {
    /// No row: no job is left.
    #[default]
    Gone,
    /// Free and due. Its place is in `State::line`.
    Line,
    /// Sleeps until a slot is free.
    Gated,
    Claimed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[allow(clippy::struct_excessive_bools)] // Each says one thing.
pub struct Group {
    pub row: Row,
    /// It has a slot of the key.
    pub slot: bool,
    /// The worker is dead, and the lease is over.
    pub lapsed: bool,
    /// For the promises alone: its claim began under a limit.
    pub limited: bool,
    /// For the promises alone: it was woken, and has not started since.
    pub woken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Step {
    #[default]
    Idle,
    /// Reads freed slots.
    WakeList,
    /// Locks the key for them, and deletes all that there are by then.
    WakeDelete,
    /// Counts slots that are left, and wakes gated groups.
    Wake,
    /// Locks the next group in the line, reads its head, and whether it needs a slot.
    Lock,
    /// Locks the key for the group, and counts. `counted`: for a mutation.
    Count { group: u8, counted: u8 },
    /// Has ended; its transaction is open.
    Commit,
}

/// A claim. Groups and freed slots are sets of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Claim {
    pub step: Step,
    /// The limit, as the claim has read it when it began.
    pub limit: u8,
    /// For a mutation: the groups that were in the line when it began. It adopts any other.
    pub line: u8,
    /// It looks at freed slots a second time.
    pub again: bool,
    /// How many groups it may start.
    pub slots: u8,
    pub has_key: bool,
    /// The key has no slot left.
    pub full: bool,
    pub tried: u8,
    /// Freed slots that it has deleted, and those that it has locked for a group that it gates.
    pub deleted: u8,
    pub noted: u8,
    /// The number of freed slots that it has appended.
    pub appended: u8,
    /// For a mutation: the slots that were left when it read them.
    pub room: Option<u8>,
    /// Groups whose rows it has locked.
    pub locked: u8,
    /// Groups whose heads it has locked.
    pub heads: u8,
    /// The groups' rows as it has written them.
    pub written: [Option<Group>; GROUPS],
}

/// A transaction that ends the claim of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum End {
    #[default]
    None,
    Open {
        /// For a mutation: gated groups that it has woken.
        wakes: u8,
    },
}

/// A transaction that changes the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Change {
    #[default]
    None,
    /// It has looked for gated groups, and appends a slot if it has found one.
    Open { appends: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(clippy::struct_excessive_bools)] // Each says one thing.
pub struct State {
    /// Unfinished jobs of each group.
    pub jobs: [u8; GROUPS],
    pub groups: [Group; GROUPS],
    /// The groups in the order of the line: by the time at which each came to its turn.
    pub line: [u8; GROUPS],
    /// Rows of `freed_slot`, a bit for each.
    pub freed: u8,
    /// The limit; 0: none.
    pub limit: u8,
    /// The number of the configuration's changes that were made.
    pub changes: u8,
    pub change: Change,
    pub claims: [Claim; CLAIMS],
    pub ends: [End; GROUPS],
    pub crashes: u8,
    pub cancels: u8,
    /// A claim was open beside a change of the limit.
    pub beside: bool,
    /// More groups had slots than the limit by which a claim has counted.
    pub over: bool,
    /// A group was woken before one that was gated before it.
    pub unfair: bool,
    /// A group that was woken was gated again.
    pub gated_again: bool,
    /// An end waited for another transaction.
    pub waited: bool,
}

pub fn each(bits: u8) -> impl Iterator<Item = usize> {
    (0..8).filter(move |it| bits & 1 << it != 0)
}

impl Group {
    /// Returns whether it has a slot, as the promises see it: it runs under a limit, or is woken.
    fn holds(self) -> bool {
        if self.row == Row::Claimed { self.limited } else { self.slot }
    }
}

impl State {
    /// Returns a group's row as a new statement of the claim sees it, with the claim's own writes.
    pub fn seen(&self, claim: usize, group: usize) -> Group {
        self.claims[claim].written[group].unwrap_or(self.groups[group])
    }

    /// Returns how many slots of `limit` a new statement of the claim finds free.
    pub fn room(&self, claim: usize, limit: u8) -> u8 {
        let taken = (0..GROUPS).filter(|group| self.seen(claim, *group).slot).count();
        limit.saturating_sub(taken as u8)
    }

    /// Returns how many groups have slots if the claim commits, whatever the others do.
    pub fn holders(&self, claim: usize) -> u8 {
        let holds = |group: &usize| {
            if let Some(row) = self.claims[claim].written[*group] {
                return row.holds();
            }
            let mut rows = self.claims.iter().filter_map(|other| other.written[*group]);
            self.groups[*group].holds() || rows.any(Group::holds)
        };
        (0..GROUPS).filter(holds).count() as u8
    }

    /// Returns the groups whose rows other transactions have locked.
    pub fn locked_by_others(&self, claim: usize) -> u8 {
        let others = self.claims.iter().enumerate().filter(|(other, _)| *other != claim);
        let ending = (0..GROUPS).filter(|group| self.ends[*group] != End::None);
        others.fold(0, |bits, (_, other)| bits | other.locked) | ending.fold(0, |b, g| b | 1 << g)
    }

    /// Locks the key; false if another claim has it.
    pub fn lock_key(&mut self, claim: usize) -> bool {
        let mut others = self.claims.iter().enumerate().filter(|(other, _)| *other != claim);
        let free = !others.any(|(_, other)| other.has_key);
        self.claims[claim].has_key |= free;
        free
    }

    /// Returns the freed slots whose rows no other claim has locked or deleted.
    pub fn free_notes(&self, claim: usize) -> u8 {
        let others = self.claims.iter().enumerate().filter(|(other, _)| *other != claim);
        self.freed & !others.fold(0, |bits, (_, other)| bits | other.noted | other.deleted)
    }

    /// Appends freed slots. A fifth would be lost; the promises show that none matters.
    pub fn append(&mut self, count: u8) {
        for _ in 0..count {
            let free = self.freed.trailing_ones();
            if self.freed.count_ones() < 4 {
                self.freed |= 1 << free;
            }
        }
    }

    /// Gives a group the last place in the line.
    pub fn move_back(&mut self, group: usize) {
        let at = self.line.iter().position(|it| *it == group as u8).unwrap_or(0);
        self.line[at..].rotate_left(1);
    }
}
