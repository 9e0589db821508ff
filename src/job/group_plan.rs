//! What a claim does with a group that it has locked. Pure.

use chrono::{DateTime, Utc};

/// A group's row, as it was when the claim locked it.
#[derive(Debug, Clone)]
pub(crate) struct LockedGroup {
    pub(crate) group: String,
    /// The (first) job of a claim that has not been settled although its lease ran out.
    pub(crate) claimed_job: Option<i64>,
    /// The last job of that claim, if it has followers.
    pub(crate) batch_end: Option<i64>,
    /// That claim was suspected a grace ago.
    pub(crate) suspected: bool,
    pub(crate) head_id: i64,
}

/// The head of a group, as read in a newer snapshot than the lock's.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadSnapshot {
    pub(crate) head: Option<Head>,
    /// The group has no unfinished job at all.
    pub(crate) drained: bool,
    /// The group is paused.
    pub(crate) paused: bool,
}

/// The job that is next in its group.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) id: i64,
    /// When it may run, or when it expires if that is earlier.
    pub(crate) due_at: DateTime<Utc>,
    pub(crate) due: bool,
    /// This claim has locked its row; if not, another transaction has it for a moment.
    pub(crate) locked: bool,
    pub(crate) disposition: Disposition,
    /// No attempt of it counts yet, so followers may be claimed with it. A job that may have killed
    /// its worker runs alone, so that the next death is counted to the right job.
    pub(crate) fresh: bool,
    pub(crate) priority: i16,
}

/// What becomes of a claimed job. All but `Run` end by the ordinary settle, without a new attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Its attempt was begun.
    Run,
    /// Its attempts were used up before: its workers died.
    Exhausted,
    /// It has expired.
    Expired(DateTime<Utc>),
    /// It is older than the queue's workers accept.
    Ignored,
}

impl Disposition {
    /// Returns the word that statements use.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Exhausted => "exhausted",
            Self::Expired(_) => "expired",
            Self::Ignored => "ignored",
        }
    }

    pub(crate) fn parse(word: &str, expires_at: Option<DateTime<Utc>>) -> Self {
        match (word, expires_at) {
            ("exhausted", _) => Self::Exhausted,
            ("expired", Some(at)) => Self::Expired(at),
            ("ignored", _) => Self::Ignored,
            _ => Self::Run,
        }
    }
}

/// What the claim writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Plan {
    /// Claim the group for this job; `fresh`: with followers, perhaps.
    Start { job: i64, disposition: Disposition, fresh: bool },
    /// The head is not due: the group is ready when it is, less its priority aging.
    Sleep { head: i64, until: DateTime<Utc>, aging: i16 },
    /// Another transaction is changing the head right now: read it again soon.
    Recheck { aging: i16 },
    /// The group is not ready before `unpause_group`.
    Pause { head: i64 },
    /// A lease ran out. Its handler may still be stopping: suspect it, and take over a grace later.
    Suspect,
    /// The claimed job is gone (hand-made SQL): free the row.
    Free,
    /// The group has no unfinished job.
    Retire,
}

pub(crate) fn plan(group: &LockedGroup, heads: &HeadSnapshot) -> Plan {
    match (group.claimed_job, &heads.head) {
        (Some(_), _) if !group.suspected => Plan::Suspect,
        // A take-over never retires: a job enqueued beside it would be lost.
        (Some(_), None) => Plan::Free,
        (None, None) if heads.drained => Plan::Retire,
        (None, None) => Plan::Recheck { aging: 0 },
        // A claimed job goes on: a take-over ends what a claim began.
        (None, Some(head)) if heads.paused => Plan::Pause { head: head.id },
        (None, Some(head)) if !head.due => {
            Plan::Sleep { head: head.id, until: head.due_at, aging: head.priority }
        }
        (None, Some(head)) if !head.locked => Plan::Recheck { aging: head.priority },
        (Some(_), Some(head)) if !head.locked => Plan::Recheck { aging: 0 },
        (claimed, Some(head)) => {
            let fresh = claimed.is_none() && head.fresh && head.disposition == Disposition::Run;
            Plan::Start { job: head.id, disposition: head.disposition, fresh }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free() -> LockedGroup {
        LockedGroup {
            group: "g".into(),
            claimed_job: None,
            batch_end: None,
            suspected: false,
            head_id: 1,
        }
    }

    fn head(due: bool, locked: bool) -> HeadSnapshot {
        let due_at = DateTime::UNIX_EPOCH;
        let head = Head {
            id: 7,
            due_at,
            due,
            locked,
            disposition: Disposition::Run,
            fresh: true,
            priority: 3,
        };
        HeadSnapshot { head: Some(head), drained: false, paused: false }
    }

    #[test]
    fn a_free_group_starts_its_head_sleeps_or_retires() {
        assert_eq!(
            plan(&free(), &head(true, true)),
            Plan::Start { job: 7, disposition: Disposition::Run, fresh: true }
        );
        assert_eq!(plan(&free(), &head(true, false)), Plan::Recheck { aging: 3 });
        let until = DateTime::UNIX_EPOCH;
        assert_eq!(plan(&free(), &head(false, false)), Plan::Sleep { head: 7, until, aging: 3 });
        assert_eq!(
            plan(&free(), &HeadSnapshot { head: None, drained: true, paused: false }),
            Plan::Retire
        );
        assert_eq!(plan(&free(), &HeadSnapshot::default()), Plan::Recheck { aging: 0 });
    }

    #[test]
    fn a_paused_group_starts_nothing_and_ends_what_was_begun() {
        let paused = |due| HeadSnapshot { paused: true, ..head(due, false) };
        assert_eq!(plan(&free(), &paused(true)), Plan::Pause { head: 7 });
        assert_eq!(plan(&free(), &paused(false)), Plan::Pause { head: 7 });
        let drained = HeadSnapshot { head: None, drained: true, paused: true };
        assert_eq!(plan(&free(), &drained), Plan::Retire);
        let suspected = LockedGroup { claimed_job: Some(7), suspected: true, ..free() };
        let heads = HeadSnapshot { paused: true, ..head(true, true) };
        assert_eq!(
            plan(&suspected, &heads),
            Plan::Start { job: 7, disposition: Disposition::Run, fresh: false }
        );
    }

    #[test]
    fn a_lapsed_claim_is_suspected_first_and_then_taken_over() {
        let lapsed = LockedGroup { claimed_job: Some(7), ..free() };
        assert_eq!(plan(&lapsed, &head(true, true)), Plan::Suspect);
        let suspected = LockedGroup { suspected: true, ..lapsed };
        assert_eq!(
            plan(&suspected, &head(true, true)),
            Plan::Start { job: 7, disposition: Disposition::Run, fresh: false }
        );
        assert_eq!(
            plan(&suspected, &HeadSnapshot { head: None, drained: true, paused: false }),
            Plan::Free
        );
    }
}
