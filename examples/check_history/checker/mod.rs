//! The checker: reads a history of a queue and decides which promises it breaks. `docs/history.md`
//! has the format, and the conclusions from each observation.

mod attempts;
mod effects;
mod ends;
pub(crate) mod event;
pub(crate) mod history;
mod life;
mod order;
mod overlap;
mod prefix_max;
pub(crate) mod read;
mod story;
mod verdict;
pub(crate) mod violation;

pub(crate) use history::History;
pub(crate) use story::tell;
use violation::Violations;

/// Decides all promises, each in a time that grows with the history as n log n.
pub(crate) fn check(history: &History) -> Violations {
    let mut violations = Violations::default();
    order::check(history, &mut violations);
    overlap::check(history, &mut violations);
    ends::check(history, &mut violations);
    effects::check(history, &mut violations);
    attempts::check(history, &mut violations);
    violations
}
