//! Patterns of names: which queues a key is for.

/// The most patterns of a key.
const PATTERNS: usize = 50;
/// The longest pattern, in characters: the longest name of a queue.
const LENGTH: usize = 80;

/// The queues that a key is for: a queue whose name one of these patterns matches. `*` is any text,
/// also none; all else is itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Patterns(Vec<String>);

impl Patterns {
    /// Returns patterns that were checked before they were stored.
    pub(crate) fn stored(patterns: Vec<String>) -> Self {
        Self(patterns)
    }

    /// Returns patterns as they were given; or why they cannot be used.
    pub(crate) fn read(given: &[impl AsRef<str>]) -> Result<Self, String> {
        if given.is_empty() || given.len() > PATTERNS {
            return Err(format!(
                "a key is for 1 to {PATTERNS} patterns of names, and {} were given",
                given.len()
            ));
        }
        let is_sound = |pattern: &&str| {
            (1..=LENGTH).contains(&pattern.len())
                && pattern.bytes().all(|c| c.is_ascii_alphanumeric() || b"_-.*".contains(&c))
        };
        let given: Vec<&str> = given.iter().map(AsRef::as_ref).collect();
        match given.iter().find(|pattern| !is_sound(pattern)) {
            Some(odd) => Err(format!(
                "{odd:?} is no pattern of names: it has 1 to {LENGTH} letters, digits, _, -, . \
                 and *, which is any text"
            )),
            None => Ok(Self(given.into_iter().map(str::to_owned).collect())),
        }
    }

    pub(crate) fn texts(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn allow(&self, queue: &str) -> bool {
        self.0.iter().any(|pattern| is_matched(pattern, queue))
    }

    /// Returns the same patterns for `LIKE`, for lists of queues.
    pub(crate) fn likes(&self) -> Vec<String> {
        let like = |c: char| match c {
            '*' => String::from("%"),
            '%' | '_' | '\\' => format!("\\{c}"),
            other => other.to_string(),
        };
        self.0.iter().map(|pattern| pattern.chars().map(like).collect()).collect()
    }
}

/// Returns whether a pattern matches the whole name. The text between two stars is looked for once,
/// from the left: a later place would leave less for the rest.
fn is_matched(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut name) = name.strip_suffix(last) else { return false };
    for part in middle.split('*') {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_is_any_text() {
        for (pattern, matched, others) in [
            ("orders", &["orders"][..], &["orders2", "order", "Orders", ""][..]),
            ("orders*", &["orders", "orders.fifo", "orders*"], &["order", "my-orders"]),
            ("*.fifo", &["a.fifo", ".fifo"], &["afifo", "a.fifo2", "fifo"]),
            ("a*b*a", &["aba", "axbxa", "abba"], &["ab", "aa", "aab"]),
            ("aa*aa", &["aaaa", "aa-aa"], &["aaa", "aa"]),
            ("*", &["", "q", "\u{e9}"], &[]),
            ("a**b", &["ab", "axb"], &["a", "b"]),
            ("a.b", &["a.b"], &["axb"]),
            ("a_b", &["a_b"], &["axb"]),
        ] {
            let patterns = Patterns::read(&[pattern]).unwrap();
            for name in matched {
                assert!(patterns.allow(name), "{pattern} {name}");
            }
            for name in others {
                assert!(!patterns.allow(name), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn patterns_are_few_short_and_plain() {
        assert!(Patterns::read(&vec!["a"; PATTERNS]).is_ok());
        for odd in [vec![], vec!["a"; PATTERNS + 1], vec![""], vec!["a", "a b"], vec!["a%"]] {
            assert!(Patterns::read(&odd).is_err(), "{odd:?}");
        }
        for odd in ["a,b", "a?", "[a]", "\u{e9}", "a\\", "a/b", &"a".repeat(LENGTH + 1)] {
            let mistake = Patterns::read(&[odd]).unwrap_err();
            assert!(mistake.contains("letters, digits"), "{mistake}");
        }
    }

    /// Whether a pattern matches, by trying all.
    fn tried(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|from| tried(rest, &name[from..])),
            Some((first, rest)) => {
                name.split_first().is_some_and(|(c, left)| c == first && tried(rest, left))
            }
        }
    }

    proptest! {
        #[test]
        fn a_match_is_one_in_any_way(pattern in "[ab*]{1,8}", name in "[ab]{0,10}") {
            prop_assert_eq!(is_matched(&pattern, &name), tried(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
