//! How long a job has waited, and for what. Pure.

use std::time::Duration;

use chrono::{DateTime, Utc};

/// The waits of a job from when it was due until its attempt began. Their sum is the whole wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    /// Until its group was ready with this job as its head.
    pub(crate) lane: Duration,
    /// From then on: for a claim and a slot.
    pub(crate) slot: Duration,
}

/// The waits as a claim found them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitsAtClaim {
    /// Since the job was due.
    pub(crate) since_due: Duration,
    /// Since its group was ready too; `None` for a job that gets the slot of the job before it.
    pub(crate) since_ready: Option<Duration>,
}

impl WaitsAtClaim {
    /// Returns those of the head of a claim.
    pub(crate) fn of_head(
        claimed_at: DateTime<Utc>,
        due_at: DateTime<Utc>,
        ready_at: DateTime<Utc>,
    ) -> Self {
        let since_ready = Some(since(ready_at.max(due_at), claimed_at));
        Self { since_due: since(due_at, claimed_at), since_ready }
    }

    /// Returns those of a job that gets the slot of the job before it.
    pub(crate) fn of_follower(claimed_at: DateTime<Utc>, due_at: DateTime<Utc>) -> Self {
        Self { since_due: since(due_at, claimed_at), since_ready: None }
    }

    /// Returns the waits of an attempt that begins so long after the claim.
    pub(crate) fn at_begin(self, after: Duration) -> Waits {
        match self.since_ready {
            Some(ready) => {
                Waits { lane: self.since_due.saturating_sub(ready), slot: ready + after }
            }
            None => Waits { lane: self.since_due + after, slot: Duration::ZERO },
        }
    }
}

/// Returns the time between two times; none if they are in the other order.
fn since(from: DateTime<Utc>, to: DateTime<Utc>) -> Duration {
    (to - from).to_std().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_waits_for_a_slot_and_a_follower_for_the_job_before_it() {
        let ms = Duration::from_millis;
        let head = WaitsAtClaim { since_due: ms(90), since_ready: Some(ms(30)) };
        assert_eq!(head.at_begin(ms(5)), Waits { lane: ms(60), slot: ms(35) });
        let follower = WaitsAtClaim { since_due: ms(90), since_ready: None };
        assert_eq!(follower.at_begin(ms(5)), Waits { lane: ms(95), slot: ms(0) });
    }
}
