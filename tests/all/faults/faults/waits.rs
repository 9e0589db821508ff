//! How long groups that no fault met are ready before they start. A recovery under load is compared
//! with that.

use std::time::Duration;

use super::judge::{Went, micros};
use seriatim_history::event::{Ended, Time};

/// A run that follows sooner, in the same process, belongs to the same turn.
const TURN: Time = 100_000;
/// A fault is compared with the groups that became ready so soon after it. Its own groups have by
/// then.
const SOON: Time = 3_000_000;

/// When turns ended that left jobs behind, and for how long each group was ready then.
#[derive(Debug, Default)]
pub struct Waits(Vec<(Time, Duration)>);

impl Waits {
    /// Returns the waits in groups' runs. The runs of each group are in the order of their starts.
    pub fn of(groups: &[Vec<Went>]) -> Self {
        let waited = |two: &[Went]| {
            let (run, next) = (&two[0], &two[1]);
            let was_there = next.enqueued.is_some_and(|enqueued| enqueued <= run.until);
            let of_the_turn = next.process == run.process && next.start < run.until + TURN;
            let is_ready = run.ended == Some(Ended::Succeeded) && was_there && !of_the_turn;
            is_ready.then(|| (run.until, micros(next.start - run.until)))
        };
        let pairs = groups.iter().flat_map(|runs| runs.windows(2));
        let mut waits: Vec<_> = pairs.filter_map(waited).collect();
        waits.sort_unstable();
        Self(waits)
    }

    /// The median of those that became ready soon after.
    pub fn wait_after(&self, since: Time) -> Option<Duration> {
        let from = self.0.partition_point(|(end, _)| *end < since);
        let to = self.0.partition_point(|(end, _)| *end < since + SOON);
        let mut waits: Vec<_> = self.0[from..to].iter().map(|(_, wait)| *wait).collect();
        waits.sort_unstable();
        waits.get(waits.len() / 2).copied()
    }
}

#[test]
fn a_wait_is_that_of_a_turn_that_left_jobs_behind() {
    let run = |process, start, until, enqueued| Went {
        given_up: false,
        process,
        start,
        until,
        enqueued: Some(enqueued),
        ended: Some(Ended::Succeeded),
    };
    let s = 1_000_000;
    let failed = Went { ended: Some(Ended::Retry), ..run(0, 0, s, 0) };
    let groups = [
        // Two of a turn, a wait of 2 s, and one that was not there yet.
        vec![
            run(0, 0, s, 0),
            run(0, s, 2 * s, 0),
            run(0, 4 * s, 5 * s, 0),
            run(0, 9 * s, 9 * s, 6 * s),
        ],
        // At once, but by another process: that is a wait.
        vec![run(0, 0, s, 0), run(1, s + 10, 2 * s, 0)],
        vec![failed, run(1, 3 * s, 4 * s, 0)],
        vec![run(0, 0, 3 * s, 0), run(1, 9 * s, 9 * s, 0)],
    ];
    let waits = Waits::of(&groups);
    let expected = [(s, 10), (2 * s, 2_000_000), (3 * s, 6_000_000)];
    assert_eq!(waits.0, expected.map(|(end, wait)| (end, Duration::from_micros(wait))));
    assert_eq!(waits.wait_after(s), Some(Duration::from_secs(2)));
    assert_eq!(waits.wait_after(2 * s + 1), Some(Duration::from_secs(6)));
    assert_eq!(waits.wait_after(3 * s + 1), None);
}
