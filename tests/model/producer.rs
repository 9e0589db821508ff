//! Enqueue: an insert, and a commit or rollback that may come much later than the ids were drawn.

use crate::protocol::Protocol;
use crate::state::{JobRow, Producer, State};

impl Protocol {
    /// Inserts a producer's jobs in one statement: ids are drawn now.
    pub fn insert(&self, s: &mut State, producer: usize) -> bool {
        if s.producers[producer] != Producer::Waiting {
            return false;
        }
        let first = s.next_id;
        let jobs = self.producers[producer].jobs;
        for id in first..first + jobs {
            // Jobs that are committed by now go before it, and so do the jobs before it in its own
            // statement.
            s.seen.before[id as usize] = s.rows.unfinished() | ((1 << id) - (1 << first));
        }
        s.next_id += jobs;
        s.producers[producer] = Producer::Open { first };
        true
    }

    /// Commits. The first job of the statement is flagged; no row is read, and none is locked.
    pub fn commit_enqueue(&self, s: &mut State, producer: usize) -> bool {
        let Producer::Open { first } = s.producers[producer] else {
            return false;
        };
        for id in first..first + self.producers[producer].jobs {
            let due = !self.producers[producer].delayed;
            let row = JobRow { flagged: id == first, due, ..JobRow::default() };
            s.rows.jobs[id as usize] = Some(row);
        }
        s.producers[producer] = Producer::Done;
        true
    }

    pub fn roll_back_enqueue(&self, s: &mut State, producer: usize) -> bool {
        let open = matches!(s.producers[producer], Producer::Open { .. });
        if open && self.producers[producer].may_roll_back {
            s.producers[producer] = Producer::Done;
            return true;
        }
        false
    }
}
