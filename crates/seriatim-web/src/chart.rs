//! The charts of the last hour: a bar for each minute, now at the right. Only geometry and words;
//! the templates draw them.

use std::fmt::Write as _;

use chrono::{DateTime, TimeDelta, Utc};
use seriatim::observe::{LastHour, QueueMinute};

use crate::data::{span, thousands};

/// The minutes of a chart.
const MINUTES: i64 = 60;
/// The width of a minute, and the height of a chart, in its own units.
const STEP: i64 = 4;
pub(crate) const WIDTH: i64 = STEP * MINUTES;
pub(crate) const HEIGHT: i64 = 48;
/// Where a chart has no bar. The minute of now is counted when it is over.
const NONE: &str = "none in the hour before this minute";
/// Older than this, the last count is no longer now.
const FRESH: TimeDelta = TimeDelta::minutes(3);

/// A chart: paths of bars, and what it says in words.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Chart {
    /// The bars, as the `d` of a path.
    pub(crate) bars: String,
    /// Bars in front of those.
    pub(crate) front: String,
    /// The value at its top, with its unit.
    pub(crate) top: String,
    /// Its content, in a sentence.
    pub(crate) words: String,
}

/// The last hour of a queue.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hour {
    /// Jobs that ended.
    pub(crate) ended: Chart,
    /// How long they had waited: 19 in 20, and in front half of them.
    pub(crate) waits: Chart,
    /// Jobs that failed for good.
    pub(crate) failed: Chart,
    /// How many jobs ended, and failed, in a few words.
    pub(crate) short: String,
    /// The minutes that nobody counted.
    pub(crate) uncounted: String,
    /// When the last minute ended that was counted, if that is too long ago; `None`: it is not.
    pub(crate) stale_since: Option<DateTime<Utc>>,
}

/// Draws the hour of a queue until `now`; `None`: nobody counts.
pub(crate) fn hour(hour: &LastHour, queue: &str, now: DateTime<Utc>) -> Option<Hour> {
    let last = *hour.counted.last()?;
    let is_stale = now - last > FRESH;
    let newest = if is_stale { now - TimeDelta::minutes(1) } else { last };
    let place = |minute: DateTime<Utc>| {
        let ago = (newest - minute).num_minutes();
        (0..MINUTES).contains(&ago).then_some(MINUTES - 1 - ago)
    };
    let counted: Vec<i64> = hour.counted.iter().filter_map(|minute| place(*minute)).collect();
    let uncounted = (0..MINUTES).filter(|at| !counted.contains(at)).map(|at| (at, HEIGHT));
    let minutes: Vec<(i64, QueueMinute)> = hour
        .queues
        .get(queue)
        .into_iter()
        .flatten()
        .filter_map(|minute| Some((place(minute.minute)?, *minute)))
        .collect();
    let counts = |of: fn(&QueueMinute) -> u64| series(&minutes, |minute| Some(of(minute)));
    let (ended, failed) = (counts(|minute| minute.ended), counts(|minute| minute.failed));
    let half = series(&minutes, |minute| minute.wait_median_ms);
    let most = series(&minutes, |minute| minute.wait_p95_ms);
    let top = |values: &[(i64, u64)]| round_up(values.iter().map(|(_, value)| *value).max());
    let (top_ended, top_failed, top_wait) = (top(&ended), top(&failed), top(&most));
    let sum = |values: &[(i64, u64)]| values.iter().map(|(_, value)| value).sum::<u64>();
    let per_minute = |top: u64| format!("{} a minute", thousands(top));
    Some(Hour {
        ended: Chart {
            bars: bars(&ended, top_ended),
            front: bars(&failed, top_ended),
            top: per_minute(top_ended),
            words: words_of_ended(&ended, sum(&ended)),
        },
        waits: Chart {
            bars: bars(&most, top_wait),
            front: bars(&half, top_wait),
            top: span(i64::try_from(top_wait).unwrap_or(i64::MAX)),
            words: words_of_waits(&half, &most),
        },
        failed: Chart {
            bars: bars(&failed, top_failed),
            front: String::new(),
            top: per_minute(top_failed),
            words: match sum(&failed) {
                0 => String::from(NONE),
                failed => format!("{} in the last hour", thousands(failed)),
            },
        },
        short: match (sum(&ended), sum(&failed)) {
            (0, _) => String::from("none"),
            (ended, 0) => thousands(ended),
            (ended, failed) => format!("{}, {} failed", thousands(ended), thousands(failed)),
        },
        uncounted: steps(uncounted),
        stale_since: is_stale.then_some(last + TimeDelta::minutes(1)),
    })
}

/// Returns the values of minutes that have one, each with its place.
fn series(
    minutes: &[(i64, QueueMinute)],
    of: impl Fn(&QueueMinute) -> Option<u64>,
) -> Vec<(i64, u64)> {
    minutes.iter().filter_map(|(at, minute)| Some((*at, of(minute)?))).collect()
}

fn words_of_ended(ended: &[(i64, u64)], sum: u64) -> String {
    if sum == 0 {
        return String::from(NONE);
    }
    let or_more = ended.iter().any(|(_, ended)| *ended > QueueMinute::LIMIT);
    let last = ended.iter().find(|(at, _)| *at == MINUTES - 1).map_or(0, |(_, ended)| *ended);
    format!(
        "{}{} in the last hour, {} in the last minute",
        thousands(sum),
        if or_more { " or more" } else { "" },
        thousands(last)
    )
}

fn words_of_waits(half: &[(i64, u64)], most: &[(i64, u64)]) -> String {
    let (Some((at, half)), Some((_, most))) = (half.last(), most.last()) else {
        return String::from("nothing succeeded in the hour before this minute");
    };
    let words = |ms: u64| span(i64::try_from(ms).unwrap_or(i64::MAX));
    let when = match MINUTES - 1 - at {
        0 => String::new(),
        ago => format!(", {ago} min ago"),
    };
    format!("half up to {}, 19 in 20 up to {}{when}", words(*half), words(*most))
}

/// Returns a round number that is no less: 1, 2 or 5 and zeros.
fn round_up(most: Option<u64>) -> u64 {
    let most = most.unwrap_or(0).max(1);
    let mut unit = 1_u64;
    loop {
        for step in [1, 2, 5] {
            let round = unit.saturating_mul(step);
            if round >= most {
                return round;
            }
        }
        unit = unit.saturating_mul(10);
    }
}

/// Returns bars of these heights, side by side. A value that is not zero can be seen.
fn bars(values: &[(i64, u64)], top: u64) -> String {
    steps(values.iter().filter(|(_, value)| *value > 0).map(|(at, value)| {
        let full = u128::from(top.max(1));
        let height = u128::from(*value) * u128::from(HEIGHT.unsigned_abs()) / full;
        (*at, i64::try_from(height).unwrap_or(HEIGHT).clamp(2, HEIGHT))
    }))
}

/// Returns the outline of bars, in the order of their places; between them it is on the ground.
fn steps(bars: impl Iterator<Item = (i64, i64)>) -> String {
    let mut path = String::new();
    let (mut end, mut last) = (None, HEIGHT);
    // A String takes whatever is written.
    for (at, height) in bars {
        let (x, y) = (at * STEP, HEIGHT - height);
        if end != Some(x) {
            if end.is_some() {
                let _ = write!(path, "V{HEIGHT}z");
            }
            let _ = write!(path, "M{x} {HEIGHT}");
            last = HEIGHT;
        }
        if last != y {
            let _ = write!(path, "V{y}");
        }
        let _ = write!(path, "h{STEP}");
        (end, last) = (Some(x + STEP), y);
    }
    if end.is_some() {
        let _ = write!(path, "V{HEIGHT}z");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_795_000_020 + minute * 60, 0).unwrap_or_default()
    }

    #[test]
    fn bars_stand_at_their_minutes_and_gaps_are_shaded() {
        let mut minutes = LastHour::default();
        minutes.counted = (3..60).map(at).collect();
        assert_eq!(hour(&LastHour::default(), "mail", at(60)), None, "nobody counts");
        let empty = hour(&minutes, "mail", at(61)).unwrap_or_default();
        assert_eq!(empty.uncounted, "M0 48V0h4h4h4V48z");
        assert_eq!((&*empty.ended.bars, &*empty.ended.top), ("", "1 a minute"));
        assert_eq!(empty.ended.words, NONE);
        assert_eq!(empty.stale_since, None);
        // Ten minutes later, nobody has counted since.
        let stale = hour(&minutes, "mail", at(71)).unwrap_or_default();
        assert_eq!(stale.stale_since, Some(at(60)));
        assert!(stale.uncounted.ends_with("h4V48z"), "{}", stale.uncounted);
    }

    #[test]
    fn the_top_of_a_chart_is_a_round_number() {
        for (most, top) in [(0, 1), (1, 1), (3, 5), (58, 100), (200, 200), (201, 500)] {
            assert_eq!(round_up(Some(most)), top);
        }
        assert_eq!(round_up(Some(u64::MAX)), u64::MAX);
        assert_eq!(bars(&[(0, 1), (59, 500)], 500), "M0 48V46h4V48zM236 48V0h4V48z");
    }
}
