//! Text that is safe on a terminal, and times in words.

use std::fmt::Write as _;
use std::time::Duration;

use chrono::{DateTime, Utc};

/// Returns the text with every character escaped that would move the cursor or turn the line
/// around: control characters, and those that set a direction of writing.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let sets_direction = matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        );
        if c.is_control() || sets_direction {
            _ = write!(shown, "{}", c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Returns the text as one argument of a shell, for commands that a person may copy.
pub(crate) fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        return text.to_owned();
    }
    if visible(text) == text {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    // Bash, zsh and ksh read $'…'.
    let mut quoted = String::from("$'");
    for c in text.chars() {
        match c {
            '\'' | '\\' => _ = write!(quoted, "\\{c}"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            c if visible(&c.to_string()) != c.to_string() => {
                _ = if c.is_ascii() {
                    write!(quoted, "\\x{:02x}", u32::from(c))
                } else {
                    write!(quoted, "\\u{:04x}", u32::from(c))
                };
            }
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

/// Returns a time in words, with two digits at most where that is enough: `45 s`, `12 min`.
pub(crate) fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if time.subsec_millis() > 0 => format!("{} ms", time.subsec_millis()),
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns how long ago a time is, at `now`; a time to come is `in 5 s`.
pub(crate) fn since(time: DateTime<Utc>, now: DateTime<Utc>) -> String {
    match (now - time).to_std() {
        Ok(age) => in_words(Duration::from_secs(age.as_secs())),
        Err(_) => format!("in {}", in_words((time - now).to_std().unwrap_or_default())),
    }
}

/// Returns a time to the second.
pub(crate) fn clock(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Returns a number with its noun: `1 job`, `2 jobs`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns a sentence whose advice names commands of this program instead of calls of the library.
pub(crate) fn in_commands(sentence: &str) -> String {
    let Some((why, advice)) = sentence.split_once("To do: ") else { return sentence.to_owned() };
    let commands = [
        ("unpause_group", "seriatim resume QUEUE GROUP"),
        ("unpause_queue", "seriatim resume QUEUE"),
        ("unhalt_group", "seriatim unhalt QUEUE GROUP"),
        ("run_now", "seriatim job run-now"),
        ("redrive_parked", "seriatim parked redrive QUEUE GROUP"),
        ("discard_parked", "seriatim parked discard QUEUE GROUP"),
    ];
    let advice = commands
        .iter()
        .fold(advice.to_owned(), |text, (call, command)| text.replace(call, command));
    format!("{why}To do: {advice}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{in_commands, in_words, shell, visible};

    #[test]
    fn control_characters_and_directions_are_escaped() {
        assert_eq!(visible("a\nb\u{1b}[31m\u{202e}c"), "a\\nb\\u{1b}[31m\\u{202e}c");
        assert_eq!(visible("שלום 👩‍👩‍👧 \"'"), "שלום 👩‍👩‍👧 \"'");
    }

    #[test]
    fn an_argument_is_one_word_for_a_shell() {
        assert_eq!(shell("customer-7"), "customer-7");
        assert_eq!(shell("two words"), "'two words'");
        assert_eq!(shell("it's"), r"'it'\''s'");
        assert_eq!(shell("--yes"), "'--yes'");
        assert_eq!(shell("a\nb'"), r"$'a\nb\''");
        assert_eq!(shell(""), "''");
    }

    #[test]
    fn times_are_in_words() {
        let cases =
            [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "119 min"), (7_200, "2 h")];
        for (seconds, words) in cases {
            assert_eq!(in_words(Duration::from_secs(seconds)), words);
        }
        assert_eq!(in_words(Duration::from_millis(40)), "40 ms");
    }

    #[test]
    fn advice_names_commands() {
        let sentence = "job 1 of group \"run_now\" waits. To do: unpause_group lets it go on";
        assert_eq!(
            in_commands(sentence),
            "job 1 of group \"run_now\" waits. To do: seriatim resume QUEUE GROUP lets it go on"
        );
    }
}
