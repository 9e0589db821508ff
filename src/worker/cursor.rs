//! What a worker's claims hand on, each to the next: what is served first, and from when on they read.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::store::{ClaimAnswer, HeldJob, ScanStart};

/// What reads for longer to find what is due, and for longer for each job, reads past much that is dead or held.
const LONG_READ: (Duration, Duration) = (Duration::from_micros(500), Duration::from_micros(20));
/// How many such reads are saved for each, at least, and where nothing is known to be due before.
const READS_SKIPPED: (u32, u32) = (10, 40);
/// And for how long at most: what a dead process held for long is found by reading from the beginning only. P6 has 3 s for that, for
/// the grace, and for the server to see that its client is gone.
const LATEST_READ: Duration = Duration::from_millis(500);
/// After a job with a priority: others may follow, and their place in line is before where claims begin.
const PRIORITIZED: Duration = Duration::from_mins(1);

/// Which kind of job is served first when there are not slots for all; takes turns, so that neither starves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::worker) enum First {
    #[default]
    Groups,
    Ungrouped,
}

/// What a worker's claims hand on, each to the next.
#[derive(Debug, Default)]
pub(crate) struct ClaimCursor {
    first: First,
    /// The next one is to be thorough: the last one left something for it, or failed.
    pub(crate) thorough: bool,
    /// How many jobs the next one may bring beyond its slots, unless it is thorough.
    pub(crate) ahead: usize,
    /// The last one that read from the beginning read for long. One alone may have had its statements planned.
    long: bool,
    /// The last one read from the beginning, and not for long.
    in_short_tx: bool,
    /// Where they begin, if that is not the beginning.
    window: Option<ScanWindow>,
    /// When a job with a priority was claimed.
    prioritized: Option<Instant>,
}

/// For a while claims begin where something was found, instead of reading past all that is dead or held.
#[derive(Debug, Clone, Copy)]
struct ScanWindow {
    from: ScanStart,
    until: Instant,
}

impl ClaimCursor {
    /// What this one serves first.
    pub(in crate::worker) fn first(&mut self) -> First {
        let next = match self.first {
            First::Groups => First::Ungrouped,
            First::Ungrouped => First::Groups,
        };
        std::mem::replace(&mut self.first, next)
    }

    /// From when on this one reads.
    pub(in crate::worker) fn reads_from(&mut self) -> ScanStart {
        self.window.take_if(|window| window.until <= Instant::now());
        self.window.map_or_else(ScanStart::default, |window| window.from)
    }

    /// Whether the last one has read from the beginning, and not past much that is dead or held.
    pub(crate) fn read_shortly(&self) -> bool {
        self.in_short_tx
    }

    /// Remembers that there are priorities, if what was claimed has one.
    pub(in crate::worker) fn has_claimed(&mut self, known: &HashMap<i64, HeldJob>) {
        if known.values().any(|job| job.priority > 0) {
            self.prioritized = Some(Instant::now());
        }
    }

    /// Says when there is to be a look again, as far as it is known. Where claims have to read for long, the next ones begin where
    /// this one came to: for so much longer that reading from the beginning again is a small part of it.
    pub(in crate::worker) fn has_read(
        &mut self,
        read: &ClaimAnswer,
        filled: bool,
    ) -> Option<Duration> {
        let now = Instant::now();
        let jobs = u32::try_from(read.jobs.len()).unwrap_or(u32::MAX);
        let long = read.read_for >= LONG_READ.0 + LONG_READ.1 * jobs;
        self.in_short_tx = !long && self.window.is_none();
        let prioritized = self.prioritized.is_some_and(|at| now < at + PRIORITIZED);
        if read.thorough || (prioritized && !filled) {
            // Slots are free for what may be before; or a doubt has begun, and a claim that reads all knows when it is over.
            return self.window.take().map_or(read.next, |_| Some(Duration::ZERO));
        }
        if let Some(window) = &mut self.window {
            window.from = read.found_at;
            return Some(window.until.saturating_duration_since(now));
        }
        if std::mem::replace(&mut self.long, long) && long {
            let least = (read.read_for * READS_SKIPPED.0).min(LATEST_READ);
            let most = (read.read_for * READS_SKIPPED.1).min(LATEST_READ);
            let until = now + read.next.unwrap_or(most).clamp(least, most);
            self.window = Some(ScanWindow { from: read.found_at, until });
        }
        read.next
    }
}

#[cfg(test)]
mod tests {
    use chrono::Utc;

    use super::*;

    fn read(ms: u64) -> ClaimAnswer {
        let at = Some(Utc::now());
        ClaimAnswer {
            jobs: Vec::new(),
            known: HashMap::new(),
            thorough: false,
            more: true,
            next: None,
            read_for: Duration::from_millis(ms),
            found_at: ScanStart { groups: at, flags: at, ungrouped: at },
        }
    }

    /// A claim that leaves slots free.
    fn look(cursor: &mut ClaimCursor, read: &ClaimAnswer) -> Option<Duration> {
        cursor.has_read(read, false)
    }

    #[test]
    fn after_a_long_read_the_next_claims_begin_where_it_came_to() {
        let mut cursor = ClaimCursor::default();
        look(&mut cursor, &read(0));
        assert!(cursor.reads_from().groups.is_none());
        look(&mut cursor, &read(5));
        assert!(cursor.reads_from().groups.is_none(), "once may be chance");
        let long = read(5);
        look(&mut cursor, &long);
        assert_eq!(cursor.reads_from().groups, long.found_at.groups);
        assert_eq!(cursor.reads_from().flags, long.found_at.flags);
        assert_eq!(cursor.reads_from().ungrouped, long.found_at.ungrouped);
        let in_short_tx = read(0);
        look(&mut cursor, &in_short_tx);
        assert_eq!(cursor.reads_from().groups, in_short_tx.found_at.groups);
    }

    #[test]
    fn entries_before_the_window_are_read_again_after_a_while() {
        let mut cursor = ClaimCursor::default();
        look(&mut cursor, &read(10_000));
        look(&mut cursor, &read(10_000));
        let window = cursor.window.as_mut().unwrap();
        assert!(window.until <= Instant::now() + LATEST_READ);
        window.until = Instant::now();
        assert!(cursor.reads_from().groups.is_none());
        assert!(cursor.window.is_none());
    }

    #[test]
    fn a_later_due_time_is_waited_for() {
        let ms = Duration::from_millis;
        let window = |next: Option<u64>| {
            let mut cursor = ClaimCursor::default();
            let long = ClaimAnswer { next: next.map(ms), ..read(5) };
            look(&mut cursor, &long);
            let began = Instant::now();
            assert_eq!(look(&mut cursor, &long), long.next);
            let until = cursor.window.unwrap().until;
            // The next ones know no more.
            assert!(look(&mut cursor, &read(0)).unwrap() <= until - began);
            (until - began, began.elapsed())
        };
        for (next, long) in [(None, 200), (Some(120), 120), (Some(1), 50), (Some(60_000), 200)] {
            let (until, took) = window(next);
            assert!(ms(long) <= until && until <= ms(long) + took, "{next:?}: {until:?}");
        }
    }

    #[test]
    fn priorities_and_suspicions_make_the_next_claim_read_all() {
        let mut cursor = ClaimCursor::default();
        let suspect = ClaimAnswer { thorough: true, ..read(10_000) };
        for (with, priorities) in [(suspect, false), (read(10_000), true)] {
            look(&mut cursor, &read(10_000));
            look(&mut cursor, &read(10_000));
            assert!(cursor.window.is_some());
            cursor.prioritized = priorities.then(Instant::now);
            if priorities {
                cursor.has_read(&with, true);
                assert!(cursor.window.is_some());
            }
            assert_eq!(look(&mut cursor, &with), Some(Duration::ZERO));
            assert!(cursor.window.is_none());
        }
    }

    #[test]
    fn groups_and_jobs_without_one_come_first_by_turns() {
        let mut cursor = ClaimCursor::default();
        assert_eq!(
            [cursor.first(), cursor.first(), cursor.first()],
            [First::Groups, First::Ungrouped, First::Groups]
        );
    }
}
