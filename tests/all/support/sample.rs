//! The variants of a test, such as both holds: all in CI, one of them in a newcomer's run.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::size;

/// Returns all in CI. For a plain `cargo test` returns one, which the name of the test decides: so
/// the tests of a feature run different ones.
pub(crate) fn sample<T, const N: usize>(all: [T; N]) -> Vec<T> {
    let mut name = DefaultHasher::new();
    std::thread::current().name().hash(&mut name);
    let one = usize::try_from(name.finish() % N.max(1) as u64).unwrap_or_default();
    let chosen = |at: &usize| size(*at == one, true);
    all.into_iter().enumerate().filter(|(at, _)| chosen(at)).map(|(_, variant)| variant).collect()
}
