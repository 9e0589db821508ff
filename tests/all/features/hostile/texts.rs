//! Texts that have done harm somewhere before.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Pieces that have ended a string, a statement or an identifier somewhere before, or mean
/// something to a formatter.
const PIECES: [&str; 36] = [
    "'",
    "\"",
    "\\",
    "`",
    ";",
    "--",
    "/*",
    "*/",
    "$",
    "$$",
    "$f$",
    "$1",
    "?1",
    "?",
    "%",
    "%s",
    "{}",
    "{schema}",
    "'; drop table seriatim.job; --",
    "\"; drop schema seriatim cascade; --",
    "\\u0000",
    "E'\\x",
    "null",
    ",",
    "(",
    "}",
    " ",
    "x",
    "é",
    "🦀",
    "\u{202e}",
    "\u{2028}",
    "\u{feff}",
    "\u{ffff}",
    "\u{fffd}",
    "\u{10ffff}",
];
const CONTROLS: [&str; 7] = ["\0", "\n", "\r", "\t", "\u{1b}[31m", "\u{7f}", "\u{85}"];

/// Texts around `limit` characters and below, some with control characters.
pub fn text(limit: usize) -> impl Strategy<Value = String> {
    let pieces = |controls: u32| {
        let piece = prop_oneof![
            20 => prop::sample::select(&PIECES[..]).prop_map(str::to_owned),
            4 => any::<char>().prop_filter("no control", |c| !c.is_control()).prop_map(String::from),
            controls => prop::sample::select(&CONTROLS[..]).prop_map(str::to_owned),
        ];
        prop::collection::vec(piece, 1..10).prop_map(|pieces| pieces.concat())
    };
    let padded = move |length: usize| {
        pieces(0).prop_map(move |text| text.chars().cycle().take(length).collect::<String>())
    };
    prop_oneof![
        80 => pieces(0).prop_map(move |text| text.chars().take(limit).collect()),
        8 => padded(limit),
        2 => padded(limit + 1),
        4 => pieces(8),
        1 => Just(String::new()),
    ]
}

/// Whether it may be a name.
pub fn fits(text: &str, limit: usize) -> bool {
    !text.is_empty() && text.chars().count() <= limit && !text.chars().any(char::is_control)
}

/// As an error's message is kept.
pub fn kept(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub fn generate<S: Strategy>(strategy: &S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::default();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}
