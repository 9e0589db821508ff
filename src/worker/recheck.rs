//! When a worker looks again though nothing has called for it: somebody who saw it at work, and so woke nobody, may have
//! committed behind what it read.

use std::time::Duration;

use tokio::time::Instant;

/// Behind a job's end: an enqueue that saw its group busy.
const AFTER_END: Duration = Duration::from_millis(5);
/// Behind a claim: an enqueue that saw what the claim then took, and that somebody had been woken for it.
const AFTER_CLAIM: Duration = Duration::from_millis(20);
/// The same behind a claim of many, or of one of many: producers rely on what they saw for 10 ms more (`seems_idle`).
const AFTER_BURST: Duration = Duration::from_millis(30);

/// The looks to come.
#[derive(Debug, Default)]
pub(in crate::worker) struct Recheck {
    /// Behind the first end since the last look, however many follow.
    end: Option<Instant>,
    last_end: Option<Instant>,
    claim: Option<Instant>,
    /// An end does not stand for it.
    burst: Option<Instant>,
}

impl Recheck {
    /// A job has ended. Its look is behind a lone job's claim, too.
    pub(in crate::worker) fn ended(&mut self, now: Instant) {
        self.last_end = Some(now);
        self.end.get_or_insert(now + AFTER_END);
        self.claim = None;
    }

    /// A claim took something: a lone job, or part of a `burst`.
    pub(in crate::worker) fn claimed(&mut self, now: Instant, burst: bool) {
        if burst {
            self.burst = Some(now + AFTER_BURST);
        } else {
            self.claim = Some(now + AFTER_CLAIM);
        }
    }

    /// When the next one is due.
    pub(in crate::worker) fn at(&self) -> Option<Instant> {
        [self.end, self.claim, self.burst].into_iter().flatten().min()
    }

    /// There is a look. One that is due later stays, and so does that behind a job which has only just ended.
    pub(in crate::worker) fn looks(&mut self, now: Instant) {
        if self.end.take_if(|at| *at <= now).is_some() {
            self.end = self.last_end.map(|end| end + AFTER_END).filter(|at| *at > now);
        }
        self.claim.take_if(|at| *at <= now);
        self.burst.take_if(|at| *at <= now);
    }

    /// No slot is free: the next end calls for a look, which is behind a burst only if it comes late enough.
    pub(in crate::worker) fn clear(&mut self) {
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
        recheck.claimed(start, false);
        assert_eq!(recheck.at(), Some(start + ms(20)));
        recheck.ended(start + ms(3));
        assert_eq!(recheck.at(), Some(start + ms(8)));
        recheck.looks(start + ms(8));
        assert_eq!(recheck.at(), None);
    }

    #[test]
    fn ends_in_a_row_delay_no_recheck_and_the_last_has_one() {
        let start = Instant::now();
        let mut recheck = Recheck::default();
        for n in 0..4 {
            recheck.ended(start + ms(n));
        }
        assert_eq!(recheck.at(), Some(start + ms(5)));
        recheck.looks(start + ms(5));
        assert_eq!(recheck.at(), Some(start + ms(8)));
        recheck.looks(start + ms(8));
        assert_eq!(recheck.at(), None);
    }

    #[test]
    fn an_end_keeps_the_recheck_after_a_burst() {
        let start = Instant::now();
        let mut recheck = Recheck::default();
        recheck.ended(start);
        recheck.claimed(start + ms(7), true);
        recheck.looks(start + ms(7));
        assert_eq!(recheck.at(), Some(start + ms(37)));
        recheck.ended(start + ms(8));
        recheck.looks(start + ms(13));
        assert_eq!(recheck.at(), Some(start + ms(37)));
        recheck.looks(start + ms(37));
        assert_eq!(recheck.at(), None);
    }

    #[test]
    fn a_lone_claim_or_full_slots_keep_the_recheck_after_a_burst() {
        let start = Instant::now();
        let mut recheck = Recheck::default();
        recheck.claimed(start, true);
        recheck.claimed(start + ms(3), false);
        recheck.ended(start + ms(4));
        recheck.looks(start + ms(9));
        assert_eq!(recheck.at(), Some(start + ms(30)));
        recheck.clear();
        assert_eq!(recheck.at(), Some(start + ms(30)));
    }

    #[test]
    fn a_claim_for_another_reason_keeps_rechecks_not_due() {
        let start = Instant::now();
        let mut recheck = Recheck::default();
        recheck.claimed(start, false);
        recheck.looks(start + ms(1));
        assert_eq!(recheck.at(), Some(start + ms(20)));
    }
}
