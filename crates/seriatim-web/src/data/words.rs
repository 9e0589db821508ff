//! Explanations in the words of the page: its buttons, where the library names calls.

/// The library's calls, and the buttons that do the same.
const BUTTONS: [(&str, &str); 11] = [
    ("Call resume_group", "Resume the group"),
    ("call resume_group", "resume the group"),
    ("Call resume_queue", "Resume the queue"),
    ("call resume_queue", "resume the queue"),
    ("Call unhalt_group", "Unhalt the group"),
    ("Call redrive_parked", "Redrive"),
    ("or discard_parked", "or discard"),
    ("run_now job", "run now job"),
    ("Call set_key_limit", "Use the command seriatim set-key-limit"),
    ("with set_key_limit", "with the command seriatim set-key-limit"),
    ("with configure_queue", "with the command seriatim configure"),
];

/// Returns an explanation whose advice, at its end, names buttons. Text before that stays: it may
/// repeat names and the error of a job.
pub(crate) fn explained(sentence: &str, advice: Option<&str>) -> String {
    let Some((facts, advice)) =
        advice.and_then(|advice| Some((sentence.strip_suffix(advice)?, advice)))
    else {
        return sentence.to_owned();
    };
    let named = |text: String, (call, button): &(&str, &str)| text.replace(call, button);
    facts.to_owned() + &BUTTONS.iter().fold(advice.to_owned(), named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_buttons_and_facts_stay() {
        let facts = "Job 1 failed: Call resume_group. ";
        let advice = "Call resume_group to let the group go on.";
        let sentence = format!("{facts}{advice}");
        let shown = format!("{facts}Resume the group to let the group go on.");
        assert_eq!(explained(&sentence, Some(advice)), shown);
        assert_eq!(explained(facts, None), facts);
    }
}
