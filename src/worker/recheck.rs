//! Rechecks after a skipped NOTIFY.
//!
//! A producer sends none if it sees its group busy, or sixteen fresh jobs in other idle groups: the
//! worker at that group, or on its way to those jobs, is to find the job. The producer may commit
//! after that worker's snapshot, so the worker looks again: 5 ms after an end, 20 ms after a claim,
//! 30 ms after a claim of many. It claims only if the look (`due_in`) finds something due. A later
//! commit waits for the poll (0.5 s).
//!
//! Why: PostgreSQL lets one notifying transaction commit at a time. A session that saw sixteen
//! relies on it for up to 10 ms, because asking costs up to a third of an enqueue.

use std::time::Duration;

use tokio::time::Instant;

/// Delay after an end, for an enqueue that saw the group busy.
const AFTER_END: Duration = Duration::from_millis(5);
/// Delay after a claim, for an enqueue that saw jobs which the claim then took, and their wake-up
/// sent.
const AFTER_CLAIM: Duration = Duration::from_millis(20);
/// Delay after a claim of many jobs, or of one job of many: a producer relies on its reading for 10
/// ms more (`seems_idle`).
const AFTER_BURST: Duration = Duration::from_millis(30);

/// The times of the next rechecks.
#[derive(Debug, Default)]
pub(crate) struct Recheck {
    /// After the first end since the last claim, however many follow.
    end: Option<Instant>,
    last_end: Option<Instant>,
    claim: Option<Instant>,
    /// After a burst; an end does not replace it.
    burst: Option<Instant>,
    /// A recheck ended the last wait, and nothing else: most find nothing.
    pub(crate) ended_wait: bool,
}

impl Recheck {
    /// Records an end. Its recheck replaces that of a lone job's claim.
    pub(crate) fn record_end(&mut self, now: Instant) {
        self.last_end = Some(now);
        self.end.get_or_insert(now + AFTER_END);
        self.claim = None;
    }

    /// Records a claim that took a lone job, or part of a `burst`.
    pub(crate) fn record_claim(&mut self, now: Instant, burst: bool) {
        if burst {
            self.burst = Some(now + AFTER_BURST);
        } else {
            self.claim = Some(now + AFTER_CLAIM);
        }
    }

    /// Returns when the next recheck is due.
    pub(crate) fn at(&self) -> Option<Instant> {
        [self.end, self.claim, self.burst].into_iter().flatten().min()
    }

    /// Drops the rechecks that a claim at `now` serves. A later one stays, and so does that of a
    /// job which has only just ended.
    pub(crate) fn begin_claim(&mut self, now: Instant) {
        if self.end.take_if(|at| *at <= now).is_some() {
            self.end = self.last_end.map(|end| end + AFTER_END).filter(|at| *at > now);
        }
        self.claim.take_if(|at| *at <= now);
        self.burst.take_if(|at| *at <= now);
    }

    /// Drops the rechecks while no slot is free: the next end claims. The recheck of a burst stays,
    /// because the end may come too early for it.
    pub(crate) fn clear(&mut self) {
        (self.end, self.claim) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_lone_job_has_one_recheck() {
        let start = Instant::now();
        let mut recheck = Recheck::default();
        recheck.record_claim(start, false);
        assert_eq!(recheck.at(), Some(start + ms(20)));
        recheck.record_end(start + ms(3));
        assert_eq!(recheck.at(), Some(start + ms(8)));
        recheck.begin_claim(start + ms(8));
        assert_eq!(recheck.at(), None);
    }

    #[test]
    fn ends_in_a_row_delay_no_recheck_and_the_last_has_one() {
        let start = Instant::now();
        let mut recheck = Recheck::default();
        for n in 0..4 {
            recheck.record_end(start + ms(n));
        }
        assert_eq!(recheck.at(), Some(start + ms(5)));
        recheck.begin_claim(start + ms(5));
        assert_eq!(recheck.at(), Some(start + ms(8)));
        recheck.begin_claim(start + ms(8));
        assert_eq!(recheck.at(), None);
    }

    #[test]
    fn an_end_keeps_the_recheck_after_a_burst() {
        let start = Instant::now();
        let mut recheck = Recheck::default();
        recheck.record_end(start);
        recheck.record_claim(start + ms(7), true);
        recheck.begin_claim(start + ms(7));
        assert_eq!(recheck.at(), Some(start + ms(37)));
        recheck.record_end(start + ms(8));
        recheck.begin_claim(start + ms(13));
        assert_eq!(recheck.at(), Some(start + ms(37)));
        recheck.begin_claim(start + ms(37));
        assert_eq!(recheck.at(), None);
    }

    #[test]
    fn a_lone_claim_or_full_slots_keep_the_recheck_after_a_burst() {
        let start = Instant::now();
        let mut recheck = Recheck::default();
        recheck.record_claim(start, true);
        recheck.record_claim(start + ms(3), false);
        recheck.record_end(start + ms(4));
        recheck.begin_claim(start + ms(9));
        assert_eq!(recheck.at(), Some(start + ms(30)));
        recheck.clear();
        assert_eq!(recheck.at(), Some(start + ms(30)));
    }

    #[test]
    fn a_claim_for_another_reason_keeps_rechecks_not_due() {
        let start = Instant::now();
        let mut recheck = Recheck::default();
        recheck.record_claim(start, false);
        recheck.begin_claim(start + ms(1));
        assert_eq!(recheck.at(), Some(start + ms(20)));
    }
}
