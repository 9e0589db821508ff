//! A server that refuses writes, told once.

use std::time::Duration;

use tokio::time::Instant;

/// How long after its end a refusal may come from a connection of before: the pool keeps those to
/// the server that was left until something is tried on them.
const STRAGGLERS: Duration = Duration::from_secs(10);

/// Whether the server refuses writes, by the refusals and the writes of all parts of a processor.
#[derive(Debug, Default)]
pub(crate) struct ReadOnly {
    since: Option<Instant>,
    ended: Option<Instant>,
}

impl ReadOnly {
    /// A write was refused. Returns whether that is news: each part of a processor meets it at
    /// each try.
    pub(crate) fn refused(&mut self, now: Instant) -> bool {
        let straggler = self.ended.is_some_and(|ended| now < ended + STRAGGLERS);
        let news = self.since.is_none() && !straggler;
        if news {
            self.since = Some(now);
        }
        news
    }

    /// A write that began then was committed. Returns whether it ends the time of refusals: one
    /// that began before them may be on the server that was left.
    pub(crate) fn written(&mut self, begun: Instant, now: Instant) -> bool {
        let ends = self.since.is_some_and(|since| since < begun);
        if ends {
            *self = Self { since: None, ended: Some(now) };
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_once_and_again_after_writes() {
        let mut state = ReadOnly::default();
        let at = |from: Instant, ms| from + Duration::from_millis(ms);
        let start = Instant::now();
        assert!(!state.written(start, start));
        assert!(state.refused(at(start, 1)));
        assert!(!state.refused(at(start, 2)));

        // Its answer comes late, from the server that was left.
        assert!(!state.written(start, at(start, 3)));
        assert!(!state.refused(at(start, 4)));

        let back = at(start, 10);
        assert!(state.written(at(start, 5), back));
        // From a connection of before.
        assert!(!state.refused(at(back, 1)));
        assert!(state.refused(at(back, 10_000)));
        assert!(!state.refused(at(back, 10_001)));
    }
}
