//! The database: row versions, row locks with `SKIP LOCKED`, and snapshots under READ COMMITTED.
//!
//! A row has its committed version, and perhaps one that an open transaction has written. A
//! statement decides by its snapshot. It checks a row that it locks once more, in that row's latest
//! version alone. A row that fails this check stays locked all the same.

use crate::state::{GroupRow, JOBS, JobRow, Rows, State, Status};

/// The version of the group's row in an open transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Written {
    #[default]
    Nothing,
    Row(GroupRow),
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Transaction {
    pub jobs: [Option<JobRow>; JOBS],
    pub group: Written,
    /// It has written the committed row before it had that locked alone: a share of the committed
    /// version follows its writes.
    pub updated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Locks {
    /// `FOR NO KEY UPDATE`.
    pub jobs: [Option<u8>; JOBS],
    pub group: Option<GroupLock>,
    /// `FOR KEY SHARE` of the group's row, a bit for each session.
    pub shared: u8,
    /// The group's advisory lock, until its transaction ends.
    pub advisory: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupLock {
    pub session: u8,
    /// `FOR UPDATE`; otherwise `FOR NO KEY UPDATE`.
    pub alone: bool,
}

/// How the group's row is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    KeyShare,
    NoKeyUpdate,
    Update,
}

impl State {
    /// A new snapshot: what is committed, and what the session's own transaction has written.
    pub fn snapshot(&self, session: usize) -> Rows {
        let mut rows = self.rows;
        let own = &self.transactions[session];
        for (row, written) in rows.jobs.iter_mut().zip(own.jobs) {
            *row = written.or(*row);
        }
        match own.group {
            Written::Nothing => {}
            Written::Row(row) => rows.group = Some(row),
            Written::Delete => rows.group = None,
        }
        rows
    }

    /// Locks the group's row and returns its latest version; `None` if it was skipped or is gone.
    pub fn lock_group(&mut self, session: usize, lock: Lock) -> Option<GroupRow> {
        let row = self.snapshot(session).group?;
        let own = session as u8;
        let others = self.locks.group.filter(|lock| lock.session != own);
        let shared_by_others = self.locks.shared & !(1 << own) != 0;
        let alone_before = self.locks.group.is_some_and(|lock| lock.alone);
        match lock {
            Lock::KeyShare if others.is_some_and(|lock| lock.alone) => {
                // `SKIP LOCKED` is of the version that it comes to first. If the other transaction
                // only updated that, it goes on to the next version, and waits there.
                let holder = others.map_or(own, |lock| lock.session);
                self.waited |= self.transactions[holder as usize].updated;
                return None;
            }
            Lock::KeyShare => self.locks.shared |= 1 << own,
            Lock::NoKeyUpdate | Lock::Update if others.is_some() => return None,
            Lock::Update if shared_by_others => return None,
            Lock::NoKeyUpdate | Lock::Update => {
                let alone = lock == Lock::Update || alone_before;
                self.locks.group = Some(GroupLock { session: own, alone });
            }
        }
        Some(row)
    }

    /// Locks a job's row `FOR NO KEY UPDATE` and returns its latest version; `None` as above.
    pub fn lock_job(&mut self, session: usize, job: u8) -> Option<JobRow> {
        let row = self.snapshot(session).jobs[job as usize]?;
        let lock = &mut self.locks.jobs[job as usize];
        if lock.is_some_and(|other| other != session as u8) {
            return None;
        }
        *lock = Some(session as u8);
        Some(row)
    }

    /// Writes a row that the session has locked, or has just inserted.
    pub fn write_job(&mut self, session: usize, job: u8, row: JobRow) {
        assert_eq!(self.locks.jobs[job as usize], Some(session as u8), "a row is written unlocked");
        self.transactions[session].jobs[job as usize] = Some(row);
    }

    pub fn write_group(&mut self, session: usize, row: GroupRow) {
        let own = session as u8;
        let alone = self.locks.group.is_some_and(|lock| lock.alone && lock.session == own);
        let transaction = &mut self.transactions[session];
        transaction.updated |= self.rows.group.is_some() && !alone;
        transaction.group = Written::Row(row);
    }

    /// Returns whether the session's open transaction has written the group's row.
    pub fn has_written_group(&self, session: usize) -> bool {
        matches!(self.transactions[session].group, Written::Row(_))
    }

    /// Deletes the group's row, which needs the stronger lock.
    pub fn delete_group(&mut self, session: usize) {
        assert!(self.locks.group.is_some_and(|lock| lock.alone && lock.session == session as u8));
        self.transactions[session].group = Written::Delete;
    }

    /// Inserts a row of the group. No constraint prevents a second one.
    pub fn insert_group(&mut self, session: usize, row: GroupRow) {
        let own = self.transactions[session].group;
        let others = self.transactions.iter().enumerate().filter(|(other, _)| *other != session);
        let by_others = others.map(|(_, other)| other.group).any(|it| it != Written::Nothing);
        // Its own transaction may have retired the group before.
        let there = self.rows.group.is_some() && own != Written::Delete;
        self.two_rows |= there || matches!(own, Written::Row(_)) || by_others;
        self.transactions[session].group = Written::Row(row);
    }

    pub fn has_written(&self, session: usize) -> bool {
        self.transactions[session] != Transaction::default()
    }

    pub fn commit(&mut self, session: usize) {
        self.rows = self.snapshot(session);
        // A request is deleted with its job's end, or by maintenance.
        self.rows.asked &=
            self.rows.which(|_, row| row.status.unfinished() || row.status == Status::Parked);
        self.rollback(session);
    }

    /// Ends the transaction without its writes; also the fate of a session that dies.
    pub fn rollback(&mut self, session: usize) {
        let own = session as u8;
        self.transactions[session] = Transaction::default();
        let Locks { jobs, group, shared, advisory } = &mut self.locks;
        for lock in jobs {
            *lock = lock.filter(|other| *other != own);
        }
        *group = group.filter(|lock| lock.session != own);
        *shared &= !(1 << own);
        *advisory = advisory.filter(|other| *other != own);
    }

    /// Returns an unused token, as a random one would be.
    pub fn fresh_token(&self) -> u8 {
        let mut used = 0_u32;
        let mut use_up = |token: Option<u8>| used |= token.map_or(0, |token| 1 << token);
        let written = self.transactions.iter().filter_map(|transaction| match transaction.group {
            Written::Row(row) => Some(row),
            _ => None,
        });
        for row in self.rows.group.into_iter().chain(written) {
            use_up(row.claim);
            use_up(row.suspect);
        }
        use_up(self.old_suspect);
        for worker in &self.workers {
            use_up(worker.claim.map(|claim| claim.token));
        }
        used.trailing_ones() as u8
    }
}
