//! State carried from one claim to the next: which kind of job goes first, and where the index scan
//! starts.
//!
//! Problem: rows that are held, or dead rows that vacuum may not clean, are before the ready ones
//! in the index. Idea: a claim that, like the one before, read for longer than [`LONG_READ`] tells
//! the next ones where it left no row that it could take. They start there, for 40 times as long as
//! that read took, [`LATEST_READ`] at most.
//!
//! Flags of groups that cannot start are read in passes: a claim that ran out of time records where
//! the next one goes on, until one comes to the end. Each of these claims also reads the end of the
//! line, for jobs that have just come in. After a pass of several claims the flags that it has read
//! are left for a while.
//!
//! Gain: beside a pinned vacuum horizon 10 groups stay at 1,700 jobs/s instead of falling to 390 in
//! 25 s (with a key that is not unique).
//!
//! Tests: `interleavings::dead_rows`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::store::{ClaimAnswer, ClaimBounds, LoadedJob, ScanStart, Unread};

/// Bounds a short read, and adds the second for each job: a longer read passes many dead or held
/// rows.
const LONG_READ: (Duration, Duration) = (Duration::from_micros(500), Duration::from_micros(20));
/// Bounds the reads that are left to the shared poll, as its statement does.
const SHARED_READ: Duration = Duration::from_millis(20);
/// The number of long reads that each window saves: at least, and if no later job is known to be
/// due.
const READS_SKIPPED: (u32, u32) = (10, 40);
/// Bounds a window: the jobs of a dead process are found only by a read from the beginning. P6 has
/// 3 s for that, for the grace, and for the server to see that its client is gone.
const LATEST_READ: Duration = Duration::from_millis(500);
/// Bounds a pass over the flags that others come in behind while it runs: then it begins anew.
const LONGEST_PASS: Duration = Duration::from_secs(5);
/// After a pass its flags are left for so many times as long as it read, at most for the second:
/// meanwhile a late commit, or the end of a pause, is not seen there.
const PASS_RESTS: (u32, Duration) = (5, Duration::from_secs(2));
/// How long a claimed priority counts: other jobs with one may follow, with a place before the
/// window.
const PRIORITIZED: Duration = Duration::from_mins(1);

/// How long claims bring no data after one that the server could not read. The job that it is of
/// comes to be the first meanwhile, or the next claim fails as well.
const UNREADABLE: Duration = Duration::from_secs(1);

/// Bounds the halvings of a claim: the smallest brings one job, or 4 kB.
const HALVINGS: u32 = 10;

/// State carried from one claim to the next.
#[derive(Debug, Default)]
pub(crate) struct ClaimCursor {
    /// True if the next claim serves jobs without a group first. Kinds alternate, so that neither
    /// starves if there are not slots for all.
    ungrouped_first: bool,
    /// How often the next claim is halved, in jobs and in bytes: once for each that timed out, less
    /// once for each that did not.
    halvings: u32,
    /// Until when claims bring one job each, and no data, as the server could not read the data of
    /// one.
    unreadable_until: Option<Instant>,
    /// True if the last read from the beginning was long. A single one may have had its statements
    /// planned.
    long: bool,
    /// True if the last read was from the beginning, and short enough for the shared poll.
    short_read: bool,
    /// The window; `None` if claims read from the beginning.
    window: Option<ScanWindow>,
    /// The pass over the flags; `None` if one claim reads them all.
    pass: Option<FlagPass>,
    /// When a job with a priority was claimed last.
    prioritized: Option<Instant>,
}

/// A start inside the index for a while, past rows that are dead or held.
#[derive(Debug, Clone, Copy)]
struct ScanWindow {
    from: ScanStart,
    until: Instant,
}

/// A pass over more flags than one claim reads.
#[derive(Debug, Clone, Copy)]
struct FlagPass {
    /// Where the next claim goes on.
    from: (Option<DateTime<Utc>>, i64),
    /// The time that it took so far.
    read_for: Duration,
    /// When it begins anew, wherever it is.
    until: Instant,
    /// It came to the end.
    over: bool,
}

impl ClaimCursor {
    /// Returns the bounds of this claim for so many jobs.
    pub(crate) fn bounds(&mut self, jobs: usize) -> ClaimBounds {
        let ungrouped_first = self.ungrouped_first;
        self.ungrouped_first = !ungrouped_first;
        let from = self.scan_start();
        let bounds = ClaimBounds::new(jobs, self.halvings, ungrouped_first, from);
        match self.unreadable_until {
            Some(until) if Instant::now() < until => ClaimBounds { bytes: 1, ..bounds },
            _ => bounds,
        }
    }

    /// Leaves the data of jobs to their attempts for a while: this claim could not read that of
    /// one.
    pub(crate) fn leave_data_out(&mut self) {
        self.unreadable_until = Some(Instant::now() + UNREADABLE);
    }

    /// Halves the next claim, as this one timed out. Returns whether it is the first in a row.
    pub(crate) fn halve(&mut self) -> bool {
        let first = self.halvings == 0;
        self.halvings = (self.halvings + 1).min(HALVINGS);
        self.window = None;
        self.pass = None;
        first
    }

    /// Returns where this claim starts to read.
    fn scan_start(&mut self) -> ScanStart {
        let now = Instant::now();
        self.window.take_if(|window| window.until <= now);
        self.pass.take_if(|pass| pass.until <= now);
        let from = self.window.map_or_else(ScanStart::default, |window| window.from);
        match self.pass {
            Some(FlagPass { from: (flags, flags_id), .. }) => ScanStart { flags, flags_id, ..from },
            None => ScanStart { flags_id: 0, ..from },
        }
    }

    /// Returns whether the last claim read from the beginning, and not past so many rows that are
    /// dead or held that the shared poll would be slow.
    pub(crate) fn short_read(&self) -> bool {
        self.short_read
    }

    /// Records an answer. Returns when the next claim is due, as far as it is known.
    pub(crate) fn record(&mut self, answer: &ClaimAnswer, bounds: ClaimBounds) -> Option<Duration> {
        self.halvings = self.halvings.saturating_sub(1);
        self.record_priorities(&answer.loaded);
        self.record_pass(answer);
        let next = self.record_read(answer, answer.jobs.len() >= bounds.slots);
        // The flags that a pass left may call for a claim once its rest is over.
        let again = self.pass.filter(|pass| pass.over).map(|pass| pass.until);
        let again = again.map(|until| until.saturating_duration_since(Instant::now()));
        [next, again].into_iter().flatten().min()
    }

    /// Begins a pass over the flags, goes on with it or ends it.
    fn record_pass(&mut self, read: &ClaimAnswer) {
        let now = Instant::now();
        let from = (read.found_at.flags, read.found_at.flags_id);
        let Some(pass) = &mut self.pass else {
            if read.unread == Some(Unread::Late) {
                let until = now + LONGEST_PASS;
                self.pass = Some(FlagPass { from, read_for: read.read_for, until, over: false });
            }
            return;
        };
        pass.from = from;
        match read.unread {
            None if pass.over => {}
            None => {
                pass.read_for += read.read_for;
                pass.over = true;
                pass.until = now + (pass.read_for * PASS_RESTS.0).min(PASS_RESTS.1);
            }
            Some(why) => {
                // One that others come in behind may never end.
                if pass.over && why == Unread::Late {
                    pass.until = now + LONGEST_PASS;
                    pass.over = false;
                }
                pass.read_for += read.read_for;
            }
        }
    }

    /// Remembers a priority among the claimed jobs.
    fn record_priorities(&mut self, loaded: &VecDeque<LoadedJob>) {
        if loaded.iter().any(|job| job.priority > 0) {
            self.prioritized = Some(Instant::now());
        }
    }

    /// Sets the window after a read that was long, like the one before. Returns when the next claim
    /// is due, as far as it is known. A window is so long that reads from the beginning are a small
    /// part of the time.
    fn record_read(&mut self, read: &ClaimAnswer, filled: bool) -> Option<Duration> {
        let now = Instant::now();
        let jobs = u32::try_from(read.jobs.len()).unwrap_or(u32::MAX);
        let long = read.read_for >= LONG_READ.0 + LONG_READ.1 * jobs;
        self.short_read = read.read_for < SHARED_READ && self.window.is_none();
        let prioritized = self.prioritized.is_some_and(|at| now < at + PRIORITIZED);
        if prioritized && !filled {
            // Free slots may serve jobs before the window.
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
            more: true,
            read_for: Duration::from_millis(ms),
            found_at: ScanStart { groups: at, flags: at, flags_id: 0, ungrouped: at },
            ..ClaimAnswer::default()
        }
    }

    /// Records a claim that leaves slots free.
    fn read_partly(cursor: &mut ClaimCursor, read: &ClaimAnswer) -> Option<Duration> {
        cursor.record_read(read, false)
    }

    #[test]
    fn after_a_long_read_the_next_claims_begin_where_it_came_to() {
        let mut cursor = ClaimCursor::default();
        read_partly(&mut cursor, &read(0));
        assert!(cursor.scan_start().groups.is_none());
        read_partly(&mut cursor, &read(5));
        assert!(cursor.scan_start().groups.is_none(), "once may be chance");
        let long = read(5);
        read_partly(&mut cursor, &long);
        assert_eq!(cursor.scan_start().groups, long.found_at.groups);
        assert_eq!(cursor.scan_start().flags, long.found_at.flags);
        assert_eq!(cursor.scan_start().ungrouped, long.found_at.ungrouped);
        let short = read(0);
        read_partly(&mut cursor, &short);
        assert_eq!(cursor.scan_start().groups, short.found_at.groups);
    }

    #[test]
    fn entries_before_the_window_are_read_again_after_a_while() {
        let mut cursor = ClaimCursor::default();
        read_partly(&mut cursor, &read(10_000));
        read_partly(&mut cursor, &read(10_000));
        let window = cursor.window.as_mut().unwrap();
        assert!(window.until <= Instant::now() + LATEST_READ);
        window.until = Instant::now();
        assert!(cursor.scan_start().groups.is_none());
        assert!(cursor.window.is_none());
    }

    #[test]
    fn a_later_due_time_is_waited_for() {
        let ms = Duration::from_millis;
        let window = |next: Option<u64>| {
            let mut cursor = ClaimCursor::default();
            let long = ClaimAnswer { next: next.map(ms), ..read(5) };
            read_partly(&mut cursor, &long);
            let began = Instant::now();
            assert_eq!(read_partly(&mut cursor, &long), long.next);
            let until = cursor.window.unwrap().until;
            // The next claims know no more.
            assert!(read_partly(&mut cursor, &read(0)).unwrap() <= until - began);
            (until - began, began.elapsed())
        };
        for (next, long) in [(None, 200), (Some(120), 120), (Some(1), 50), (Some(60_000), 200)] {
            let (until, took) = window(next);
            assert!(ms(long) <= until && until <= ms(long) + took, "{next:?}: {until:?}");
        }
    }

    #[test]
    fn priorities_make_the_next_claim_read_all() {
        let mut cursor = ClaimCursor::default();
        read_partly(&mut cursor, &read(10_000));
        read_partly(&mut cursor, &read(10_000));
        assert!(cursor.window.is_some());
        cursor.prioritized = Some(Instant::now());
        cursor.record_read(&read(10_000), true);
        assert!(cursor.window.is_some());
        assert_eq!(read_partly(&mut cursor, &read(10_000)), Some(Duration::ZERO));
        assert!(cursor.window.is_none());
    }

    #[test]
    fn a_pass_over_the_flags_goes_on_where_it_ended_and_rests_behind_its_end() {
        let mut cursor = ClaimCursor::default();
        let bounds = cursor.bounds(1);
        let place = |cursor: &mut ClaimCursor| {
            let from = cursor.scan_start();
            (from.flags, from.flags_id)
        };
        let at = |id: i64, unread: Option<Unread>| {
            let mut answer = ClaimAnswer { unread, ..read(30) };
            answer.found_at.flags_id = id;
            answer
        };
        cursor.record(&at(5, Some(Unread::Filled)), bounds);
        assert_eq!(place(&mut cursor), (None, 0), "it had what it wanted");
        for id in [7, 8, 9] {
            let late = at(id, Some(Unread::Late));
            cursor.record(&late, bounds);
            assert_eq!(place(&mut cursor), (late.found_at.flags, id));
        }
        let filled = at(10, Some(Unread::Filled));
        cursor.record(&filled, bounds);
        assert_eq!(place(&mut cursor), (filled.found_at.flags, 10));
        let end = at(0, None);
        let next = cursor.record(&end, bounds);
        assert_eq!(place(&mut cursor), (end.found_at.flags, 0));
        // It took five claims' time.
        assert!(next.is_some_and(|next| next <= Duration::from_millis(5 * 150)), "{next:?}");
        cursor.pass.as_mut().unwrap().until = Instant::now();
        assert_eq!(cursor.scan_start().flags_id, 0);
        assert!(cursor.pass.is_none());
    }

    #[test]
    fn a_pass_that_others_come_in_behind_begins_anew() {
        let mut cursor = ClaimCursor::default();
        let bounds = cursor.bounds(1);
        for unread in [Unread::Late, Unread::Filled, Unread::Late] {
            cursor.record(&ClaimAnswer { unread: Some(unread), ..read(30) }, bounds);
        }
        let pass = cursor.pass.as_mut().unwrap();
        assert!(!pass.over && pass.until <= Instant::now() + LONGEST_PASS);
        pass.until = Instant::now();
        cursor.scan_start();
        assert!(cursor.pass.is_none());
    }

    #[test]
    fn groups_and_jobs_without_one_come_first_by_turns() {
        let mut cursor = ClaimCursor::default();
        let mut first = || cursor.bounds(1).ungrouped_first;
        assert_eq!([first(), first(), first()], [false, true, false]);
    }

    #[test]
    fn a_claim_that_timed_out_is_halved_until_others_have_ended() {
        let mut cursor = ClaimCursor::default();
        let whole = cursor.bounds(1_000);
        assert_eq!([cursor.halve(), cursor.halve()], [true, false], "told once");
        let bounds = cursor.bounds(1_000);
        assert_eq!((bounds.slots, bounds.followers), (whole.slots / 4, whole.followers / 4));
        assert_eq!(bounds.bytes, whole.bytes / 4);
        for _ in 0..2 {
            cursor.record(&read(0), bounds);
        }
        assert_eq!(cursor.bounds(1_000).bytes, whole.bytes);
        for _ in 0..100 {
            cursor.halve();
        }
        assert_eq!(cursor.bounds(1_000).slots, 1);
    }
}
