//! The findings of a check, in words.

use std::io::{self, Write};

use crate::{History, check, tell};

/// Writes the stories of the violations, unless `quiet`, and their numbers. Returns whether no
/// promise is broken.
///
/// # Errors
/// Those of `out`.
pub fn report(history: &History, quiet: bool, out: &mut impl Write) -> io::Result<bool> {
    let violations = check(history);
    if !quiet {
        for violation in &violations.kept {
            writeln!(out, "{}", tell(history, violation))?;
        }
    }
    writeln!(
        out,
        "{} events: {} jobs, {} groups, {} processes",
        history.events,
        history.jobs.len(),
        history.groups.len(),
        history.processes.len()
    )?;
    if violations.is_empty() {
        writeln!(
            out,
            "no violation of P1, P2, P3, P4, P9 or P10, of limits, rates, batches or schedules"
        )?;
    }
    for (promise, count) in &violations.counts {
        writeln!(out, "violations of {promise}: {count}")?;
    }
    Ok(violations.is_empty())
}
