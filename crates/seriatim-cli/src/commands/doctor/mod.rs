//! `seriatim doctor`: what is wrong, and what mends it.
//!
//! Each check finds things by itself; one that cannot be made is a finding too.

mod connection;
mod finding;
mod schema;
mod server;
mod transactions;
mod work;

use crate::commands::doctor::finding::{Finding, Findings, Level};
use crate::failure::Failure;
use crate::output::text::{count, visible};
use crate::output::{json_line, line};
use crate::session::Session;

/// Makes all checks. Fails if there is a problem, or if one could not be made.
pub(crate) async fn run(session: &Session) -> Result<(), Failure> {
    let (mut problems, mut not_made) = (0, 0);
    let mut show = |check: &'static str, findings: Result<Vec<Finding>, Failure>| {
        let findings = findings.unwrap_or_else(|failure| {
            let mut findings = Findings::of(check);
            findings.not_made(format!("could not be checked: {failure}"), None);
            findings.found
        });
        problems += findings.iter().filter(|finding| finding.level == Level::Problem).count();
        not_made += usize::from(findings.iter().any(|finding| !finding.made));
        findings.iter().try_for_each(|finding| print(session, finding))
    };
    show("server", server::settings(session).await)?;
    show("clock", connection::clock(session).await)?;
    show("pooler", connection::pooler(session).await)?;
    show("wake-ups", connection::wake_ups(session).await)?;
    show("vacuum horizon", transactions::horizon(session).await)?;
    let (is_migrated, findings) = schema::version(session).await;
    show("schema", Ok(findings))?;
    show("rights", schema::rights(session).await)?;
    // Without the tables the others have nothing to look at.
    if is_migrated {
        show("dead rows", schema::dead_rows(session).await)?;
        show("long transactions", transactions::lockers(session).await)?;
        show("blocked lanes", work::blocked(session).await)?;
        show("processors", work::processors(session).await)?;
        show("claims", work::claims(session).await)?;
        show("running jobs", work::running(session).await)?;
        show("schedules", work::schedules(session).await)?;
        show("batches", work::batches(session).await)?;
        show("policies", work::policies(session).await)?;
        show("payloads", work::payloads(session).await)?;
        show("maintenance", work::maintenance(session).await)?;
        show("stopped", work::stopped(session).await)?;
    }
    let count = |number: usize, noun| count(number.try_into().unwrap_or(u64::MAX), noun);
    let are = |number| if number == 1 { "is" } else { "are" };
    let found = format!("there {} {}", are(problems), count(problems, "problem"));
    let open = format!("{} could not be made", count(not_made, "check"));
    match (problems, not_made) {
        (0, 0) => Ok(()),
        (_, 0) => Err(Failure::Error(found)),
        (0, _) => Err(Failure::Error(open)),
        _ => Err(Failure::Error(format!("{found}, and {open}"))),
    }
}

fn print(session: &Session, finding: &Finding) -> Result<(), Failure> {
    if session.json() {
        return json_line(finding);
    }
    let Finding { check, level, sentence, mend, made: _ } = finding;
    let level = match level {
        Level::Fine => "ok",
        Level::Note => "note",
        Level::Problem => "PROBLEM",
    };
    line(&format!("{level:<8} {check}: {}", visible(sentence)))?;
    mend.as_ref().map_or(Ok(()), |mend| line(&format!("         -> {}", visible(mend))))
}
