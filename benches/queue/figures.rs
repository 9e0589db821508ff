//! Figures from measurements.

use std::time::Duration;

/// Converts a count for calculations. Counts here stay far below the first that is rounded.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Returns the count per second.
pub(crate) fn rate(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { float(count) / time.as_secs_f64() }
}

/// Returns the value below which a share of the values lies (the nearest measured one); `None` for
/// no values.
///
/// `share` is in thousandths: 500 is the median.
pub(crate) fn percentile<T: Ord + Copy>(values: &mut [T], share: usize) -> Option<T> {
    values.sort_unstable();
    let rank = (values.len() * share).div_ceil(1000);
    values.get(rank.max(1) - 1).copied()
}

/// Returns the middle value, of an even number the upper one.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the rates of the first and the last `window` of a sampled counter.
pub(crate) fn ends(samples: &[(Duration, u64)], window: Duration) -> (f64, f64) {
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return (f64::NAN, f64::NAN);
    };
    let between = |from: &(Duration, u64), to: &(Duration, u64)| {
        rate(to.1 - from.1, to.0.saturating_sub(from.0))
    };
    let early = samples.iter().find(|sample| sample.0 >= first.0 + window).unwrap_or(last);
    let late = samples.iter().rev().find(|sample| sample.0 + window <= last.0).unwrap_or(first);
    (between(first, early), between(late, last))
}

/// Prints a number with three significant digits.
pub(crate) fn short(number: f64) -> String {
    let size = number.abs();
    if !number.is_finite() {
        String::from("-")
    } else if size >= 100_000.0 {
        format!("{:.0} k", number / 1_000.0)
    } else if size >= 10_000.0 {
        format!("{:.1} k", number / 1_000.0)
    } else if size >= 100.0 {
        format!("{number:.0}")
    } else if size >= 10.0 {
        format!("{number:.1}")
    } else {
        format!("{number:.2}")
    }
}
