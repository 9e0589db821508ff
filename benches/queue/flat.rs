//! Decides whether a sampled value grows.

/// The means of the middle and of the last third of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Thirds {
    pub(crate) middle: f64,
    pub(crate) last: f64,
}

/// The last third may be above the middle one by this ratio.
const TOLERANCE: f64 = 0.1;

impl Thirds {
    /// Returns `None` for fewer than three samples. In the first third a run comes to its size.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let third = values.len() / 3;
        let (rest, last) = values.split_at(values.len() - third);
        let (_, middle) = rest.split_at(rest.len() - third);
        Some(Self { middle: mean(middle)?, last: mean(last)? })
    }

    /// Returns whether it grew by no more than a tenth and `slack`, which is for values so small
    /// that a tenth is nothing.
    pub(crate) fn is_flat(self, slack: f64) -> bool {
        self.last <= self.middle * (1.0 + TOLERANCE) + slack
    }

    pub(crate) fn ratio(self) -> f64 {
        self.last / self.middle
    }
}

pub(crate) fn mean(values: &[f64]) -> Option<f64> {
    let count = u32::try_from(values.len()).ok().filter(|count| *count > 0)?;
    Some(values.iter().sum::<f64>() / f64::from(count))
}
