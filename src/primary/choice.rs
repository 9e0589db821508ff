//! Which host is the primary.

/// A server, by its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    /// Whether it is in recovery: a standby.
    pub(super) in_recovery: bool,
    /// A promotion begins another one. 0 where the server does not tell, and on a standby.
    pub(super) timeline: i64,
    /// The same on a primary and its standbys. 0 where the server does not tell.
    pub(super) system: i64,
}

/// The primary, as known so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Primary {
    pub(super) host: usize,
    pub(super) timeline: i64,
    pub(super) system: i64,
}

impl Look {
    /// Whether it is another cluster than that of the primary.
    pub(super) fn is_foreign(&self, primary: &Primary) -> bool {
        self.system != primary.system && self.system != 0 && primary.system != 0
    }

    /// Whether it takes writes on an older timeline than the primary: it was left behind by a
    /// promotion, and nobody has stopped it.
    pub(super) fn is_left_behind(&self, primary: &Primary) -> bool {
        let older = self.timeline != 0 && self.timeline < primary.timeline;
        !self.in_recovery && !self.is_foreign(primary) && older
    }
}

/// Returns the primary by the answers of all hosts: the one with the highest timeline that can be
/// written to, if it is none of before the present one. `None`: no host is, and the present one is
/// kept. `away`: the present one has not answered for long.
///
/// A host whose timeline is not higher, or not told, takes the place of the present one only if
/// that is a standby, or away: one answer that is late must not lead jobs to a server of before.
pub(super) fn primary(
    looks: &[Option<Look>],
    now: Option<&Primary>,
    away: bool,
) -> Option<Primary> {
    let writable = |(host, look): (usize, &Option<Look>)| {
        let look = look.filter(|look| !look.in_recovery)?;
        let found = Primary { host, timeline: look.timeline, system: look.system };
        let Some(now) = now else { return Some(found) };
        if look.is_foreign(now) || look.is_left_behind(now) {
            return None;
        }
        // An answer may leave out what an earlier one has told.
        let (timeline, system) = (found.timeline.max(now.timeline), found.system);
        let system = if system == 0 { now.system } else { system };
        let is_standby = || looks.get(now.host).copied().flatten().is_some_and(|l| l.in_recovery);
        let follows = host == now.host || timeline > now.timeline || away || is_standby();
        follows.then_some(Primary { host, timeline, system })
    };
    let is_present = |host| now.is_some_and(|now| now.host == host);
    looks.iter().enumerate().filter_map(writable).max_by_key(|primary| {
        (primary.timeline, is_present(primary.host), std::cmp::Reverse(primary.host))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWAY: Look = Look { in_recovery: true, timeline: -1, system: 7 };
    const STANDBY: Look = Look { in_recovery: true, timeline: 0, system: 7 };

    fn writable(timeline: i64) -> Look {
        Look { in_recovery: false, timeline, system: 7 }
    }

    fn chosen(looks: &[Look], now: Option<(usize, i64)>) -> Option<(usize, i64)> {
        let looks: Vec<_> =
            looks.iter().map(|look| Some(*look).filter(|look| *look != AWAY)).collect();
        let now = now.map(|(host, timeline)| Primary { host, timeline, system: 7 });
        primary(&looks, now.as_ref(), false).map(|primary| (primary.host, primary.timeline))
    }

    #[test]
    fn the_highest_timeline_that_can_be_written_to_is_the_primary() {
        assert_eq!(chosen(&[STANDBY, writable(3)], None), Some((1, 3)));
        assert_eq!(chosen(&[writable(3), writable(4)], None), Some((1, 4)));
        assert_eq!(chosen(&[writable(3), writable(4)], Some((0, 3))), Some((1, 4)));
        assert_eq!(chosen(&[writable(4), STANDBY], Some((0, 3))), Some((0, 4)), "in its place");
        assert_eq!(chosen(&[AWAY, STANDBY], Some((0, 3))), None);
    }

    #[test]
    fn none_of_an_older_timeline_is_taken_while_the_newer_one_is_away() {
        assert_eq!(chosen(&[writable(3), AWAY], Some((1, 4))), None);
    }

    #[test]
    fn the_present_one_stays_where_timelines_do_not_differ() {
        assert_eq!(chosen(&[writable(0), writable(0)], Some((1, 0))), Some((1, 0)));
        assert_eq!(chosen(&[writable(0), writable(0)], None), Some((0, 0)));
        assert_eq!(chosen(&[writable(0), AWAY], Some((1, 0))), None, "it may be late");
        assert_eq!(chosen(&[writable(0), STANDBY], Some((1, 0))), Some((0, 0)));
        let (now, looks) = (Primary { host: 1, timeline: 0, system: 7 }, [Some(writable(0)), None]);
        assert_eq!(primary(&looks, Some(&now), true).map(|found| found.host), Some(0));
    }

    #[test]
    fn an_answer_without_a_timeline_leaves_nobody_behind() {
        let silent = Look { in_recovery: false, timeline: 0, system: 0 };
        assert_eq!(chosen(&[silent, STANDBY], Some((0, 3))), Some((0, 3)));
        assert!(!silent.is_left_behind(&Primary { host: 0, timeline: 3, system: 7 }));
    }

    #[test]
    fn another_cluster_is_never_taken() {
        let foreign = Look { in_recovery: false, timeline: 9, system: 8 };
        assert_eq!(chosen(&[writable(3), foreign], Some((0, 3))), Some((0, 3)));
        assert_eq!(chosen(&[AWAY, foreign], Some((0, 3))), None);
    }
}
