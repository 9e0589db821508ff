//! The tracks of lanes: how long each has run, waited or stood, on one axis for all, and the jobs
//! that come next. Only geometry; the template draws it.

use chrono::{DateTime, TimeDelta, Utc};

/// The past is drawn left of this place, and the next jobs right of it, in units of the picture.
const NOW: f64 = 236.0;
/// So narrow may a bar be that it can still be seen.
const NARROWEST: f64 = 3.0;
/// The next jobs that are drawn.
const NEXT: u64 = 6;
/// The marks that an axis may have, in seconds.
const MARKS: [(f64, &str); 9] = [
    (1.0, "1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3_600.0, "1 h"),
    (6.0 * 3_600.0, "6 h"),
    (86_400.0, "1 d"),
    (7.0 * 86_400.0, "7 d"),
    (30.0 * 86_400.0, "30 d"),
];
/// So near may two marks be.
const APART: f64 = 40.0;

/// The axis that all tracks share. Each tenfold of time has the same length: a second and a week
/// can both be seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    seconds: f64,
}

impl Axis {
    /// Returns an axis on which all these times have a place.
    pub(crate) fn new(times: impl IntoIterator<Item = DateTime<Utc>>, now: DateTime<Utc>) -> Self {
        let longest = times.into_iter().map(|at| seconds(now - at)).fold(0.0, f64::max);
        let next = MARKS.iter().find(|(mark, _)| *mark >= longest.max(60.0));
        Self { seconds: next.map_or(longest, |(mark, _)| *mark) }
    }

    fn x(self, seconds: f64) -> f64 {
        NOW * (1.0 - seconds.max(0.0).ln_1p() / self.seconds.ln_1p()).clamp(0.0, 1.0)
    }

    /// Returns the marks, each with its place; now is the last one.
    pub(crate) fn marks(self) -> Vec<(String, &'static str)> {
        let mut marks = vec![(NOW, "now")];
        for (mark, word) in MARKS.iter().filter(|(mark, _)| *mark <= self.seconds) {
            let x = self.x(*mark);
            if marks.last().is_none_or(|(last, _)| last - x >= APART) {
                marks.push((x, word));
            }
        }
        marks.into_iter().rev().map(|(x, word)| (format!("{x:.0}"), word)).collect()
    }

    /// Returns the bar of a lane since a time, as the `d` of a path.
    pub(crate) fn bar(self, since: DateTime<Utc>, now: DateTime<Utc>) -> String {
        let x = self.x(seconds(now - since)).min(NOW - NARROWEST);
        format!("M{x:.0} 2H{NOW:.0}v8H{x:.0}z")
    }
}

/// Returns the next jobs, as the `d` of a dashed path: a box for each, up to six.
pub(crate) fn boxes(jobs: u64) -> String {
    match jobs.min(NEXT) {
        0 => String::new(),
        jobs => format!("M244 6h{}", 9 * jobs - 2),
    }
}

fn seconds(delta: TimeDelta) -> f64 {
    delta.as_seconds_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_and_a_week_have_their_places() {
        let now = Utc::now();
        let ago = |seconds| now - TimeDelta::seconds(seconds);
        let axis = Axis::new([ago(2), ago(3 * 86_400)], now);
        let marks: Vec<_> = axis.marks().into_iter().map(|(_, word)| word).collect();
        assert_eq!(marks.first(), Some(&"7 d"));
        assert_eq!(marks.last(), Some(&"now"));
        assert_eq!(axis.bar(ago(7 * 86_400), now), "M0 2H236v8H0z");
        assert_eq!(axis.bar(now, now), "M233 2H236v8H233z", "it can be seen");
        // Nothing is older than a minute.
        let marks = Axis::new([], now).marks();
        assert_eq!(marks.first(), Some(&(String::from("0"), "1 min")));
        assert_eq!((&*boxes(0), &*boxes(2)), ("", "M244 6h16"));
        assert_eq!(boxes(100), boxes(6));
    }
}
