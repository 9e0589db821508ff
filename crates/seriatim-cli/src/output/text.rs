//! Text that is safe on a terminal, and times in words.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::Duration;

use chrono::{DateTime, Utc};
use seriatim::explain::BoundedCount;

use crate::args::DEFAULT_SCHEMA;

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

/// How advice calls this program.
static PROGRAM: OnceLock<String> = OnceLock::new();

/// Returns how advice calls this program: with the schema, if that is not the default.
pub(crate) fn program() -> &'static str {
    PROGRAM.get().map_or("seriatim", |program| program)
}

/// Makes advice name the schema, if it is not the default.
pub(crate) fn advise_for(schema: &str) {
    if schema != DEFAULT_SCHEMA {
        _ = PROGRAM.set(format!("seriatim --schema {}", shell(schema)));
    }
}

/// Returns a count; `10000+` if there are more than were counted.
pub(crate) fn number(count: BoundedCount) -> String {
    format!("{}{}", count.count, if count.or_more { "+" } else { "" })
}

/// Returns a number with its noun: `1 job`, `2 jobs`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Returns a sentence of the library that names commands of this program instead of calls. Text in
/// quotes stays: names of queues and groups.
pub(crate) fn in_commands(sentence: &str, queue: Option<&str>, group: Option<&str>) -> String {
    let queue = queue.map_or_else(|| String::from("QUEUE"), shell);
    let group = group.map_or_else(|| String::from("GROUP"), shell);
    let program = program();
    let limit = |setting: &str, value: &str| {
        let flag = setting.replace('_', "-");
        format!("{setting} with `{program} configure {queue} --{flag} {value}`")
    };
    let calls = [
        ("resume_group", format!("`{program} resume {queue} {group}`")),
        ("resume_queue", format!("`{program} resume {queue}`")),
        ("unhalt_group", format!("`{program} unhalt {queue} {group}`")),
        ("redrive_parked", format!("`{program} parked redrive {queue} {group}`")),
        ("discard_parked", format!("`{program} parked discard {queue} {group}`")),
        ("in_flight_limit with configure_queue", limit("in_flight_limit", "JOBS")),
        ("limit_per_key with configure_queue", limit("limit_per_key", "GROUPS")),
        ("set_key_limit", format!("`{program} set-key-limit {queue} KEY GROUPS`")),
        ("rate with configure_queue", limit("rate", "STARTS/s")),
        ("group_spacing with configure_queue", limit("group_spacing", "TIME")),
        ("run_move_tasks", format!("`{program} move-task run`")),
        ("cancel_move_task", format!("`{program} move-task cancel TASK`")),
        (", or raise the limit with Client::data_limit", String::new()),
    ];
    let named = |part: &str| {
        let part = calls.iter().fold(part.to_owned(), |text, (call, command)| {
            let text = text.replace(&format!("Call {call}"), &format!("Run {command}"));
            text.replace(&format!("call {call}"), &format!("run {command}")).replace(call, command)
        });
        VERBS.iter().fold(part, |text, verb| with_job(&text, verb))
    };
    // Every second part is in quotes. A quote that is escaped is one of a name, too.
    let mut quoted = false;
    let parts = sentence.split_inclusive('"').map(|part| {
        let shown = if quoted { part.to_owned() } else { named(part) };
        if !part.ends_with("\\\"") {
            quoted = !quoted;
        }
        shown
    });
    parts.collect()
}

/// The library's verbs for a job, which are commands too.
const VERBS: [&str; 7] = ["retry", "skip", "cancel", "abort", "run_now", "redrive", "discard"];

/// Returns an explanation whose advice, at its end, names commands. Text before that stays: it may
/// repeat the error of a job.
pub(crate) fn explained(
    sentence: &str,
    advice: Option<&str>,
    queue: Option<&str>,
    group: Option<&str>,
) -> String {
    let Some((facts, advice)) =
        advice.and_then(|advice| Some((sentence.strip_suffix(advice)?, advice)))
    else {
        return sentence.to_owned();
    };
    // `skip it` is about the job that was named before.
    let job = advice.split_once("job ").map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()));
    let advice = match job.and_then(|mut parts| parts.next()).filter(|id| !id.is_empty()) {
        Some(id) => VERBS.iter().fold(advice.to_owned(), |text, verb| {
            text.replace(&format!("{verb} it"), &format!("{verb} job {id}"))
        }),
        None => advice.to_owned(),
    };
    facts.to_owned() + &in_commands(&advice, queue, group)
}

/// Returns the text with `retry job 1` or `retry 1` as the command for it. A sentence that begins
/// so begins with `Run` then.
fn with_job(text: &str, verb: &str) -> String {
    let capital = format!("{}{} ", verb[..1].to_uppercase(), &verb[1..]);
    let text = match text.strip_prefix(&capital) {
        Some(rest) if rest.starts_with("job ") => format!("Run {verb} {rest}"),
        _ => text.to_owned(),
    };
    let mut done = String::new();
    let mut rest = &*text;
    while let Some((before, after)) = rest.split_once(&format!("{verb} ")) {
        done.push_str(before);
        let id = after.strip_prefix("job ").unwrap_or(after);
        let digits = id.find(|c: char| !c.is_ascii_digit()).unwrap_or(id.len());
        if digits == 0 || before.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            done.push_str(verb);
            done.push(' ');
            rest = after;
        } else {
            _ = write!(done, "`{} job {} {}`", program(), verb.replace('_', "-"), &id[..digits]);
            rest = &id[digits..];
        }
    }
    done + rest
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{explained, in_commands, in_words, shell, visible};

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
        let in_q = |sentence| in_commands(sentence, Some("q"), Some("two words"));
        let explained = |facts: &str, advice: &str| {
            let sentence = format!("{facts} {advice}");
            explained(&sentence, Some(advice), Some("q"), Some("two words"))
        };
        assert_eq!(
            explained(
                "Job 1 of group \"run_now\" failed: retry job 7.",
                "Call resume_group to let the group go on."
            ),
            "Job 1 of group \"run_now\" failed: retry job 7. \
             Run `seriatim resume q 'two words'` to let the group go on."
        );
        assert_eq!(
            explained("It failed.", "Retry job 1 when the cause is fixed, or skip it."),
            "It failed. Run `seriatim job retry 1` when the cause is fixed, or `seriatim job skip 1`."
        );
        assert_eq!(
            in_commands(
                "group \"a \\\" unhalt_group\" is not paused (unhalt_group ends a halt)",
                None,
                None
            ),
            "group \"a \\\" unhalt_group\" is not paused (`seriatim unhalt QUEUE GROUP` ends a halt)"
        );
        for (setting, flag) in [
            ("in_flight_limit", "--in-flight-limit JOBS"),
            ("limit_per_key", "--limit-per-key GROUPS"),
            ("rate", "--rate STARTS/s"),
            ("group_spacing", "--group-spacing TIME"),
        ] {
            let advice = format!("raise \"limit_per_key\"'s {setting} with configure_queue.");
            assert_eq!(
                in_commands(&advice, Some("q"), None),
                format!("raise \"limit_per_key\"'s {setting} with `seriatim configure q {flag}`.")
            );
        }
        assert_eq!(in_q("run_now job 5; retry it"), "`seriatim job run-now 5`; retry it");
    }
}
