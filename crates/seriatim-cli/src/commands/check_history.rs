//! `seriatim check-history`.

use std::error::Error;
use std::io::stdout;

use serde_json::json;
use seriatim_history::{History, check, report, tell};

use crate::args::CheckHistory;
use crate::failure::Failure;
use crate::output::json_line;

/// Decides whether a history breaks a promise, and tells each violation; as JSON, a line for each.
pub(crate) fn run(args: &CheckHistory, json: bool) -> Result<(), Failure> {
    let CheckHistory { file, quiet } = args;
    let history = History::read_file(file).map_err(|error| {
        let because = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        Failure::Usage(format!("{}: {error}{because}", file.display()))
    })?;
    if history.events == 0 {
        return Err(Failure::Usage(format!("{}: no event", file.display())));
    }
    let kept = if json {
        let violations = check(&history);
        for violation in &violations.kept {
            let promise = violation.promise.to_string();
            json_line(&json!({"promise": promise, "story": tell(&history, violation)}))?;
        }
        violations.is_empty()
    } else {
        report(&history, *quiet, &mut stdout().lock())?
    };
    if kept {
        return Ok(());
    }
    Err(Failure::Told(Box::new(Failure::Error(String::from("a promise is broken")))))
}
