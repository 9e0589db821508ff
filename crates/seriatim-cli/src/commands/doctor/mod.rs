//! `seriatim doctor`: what is wrong, and what mends it.
//!
//! Each check finds things by itself; one that cannot be made is a finding too.

mod connection;
mod schema;
mod server;
mod transactions;
mod work;

use serde::Serialize;
use sqlx::Row;

use crate::failure::Failure;
use crate::output::text::{count, visible};
use crate::output::{json_line, line};
use crate::session::Session;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// As it should be.
    Fine,
    /// Worth to know.
    Note,
    /// To be mended.
    Problem,
}

/// One finding of a check.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    sentence: String,
    /// The statement or command that mends it.
    mend: Option<String>,
    /// Whether the check could be made.
    made: bool,
}

/// All findings of one check.
struct Findings {
    check: &'static str,
    found: Vec<Finding>,
}

impl Findings {
    fn of(check: &'static str) -> Self {
        Self { check, found: Vec::new() }
    }

    fn problem(&mut self, sentence: impl Into<String>, mend: impl Into<String>) {
        self.add(Level::Problem, sentence.into(), Some(mend.into()));
    }

    fn note(&mut self, sentence: impl Into<String>, mend: Option<String>) {
        self.add(Level::Note, sentence.into(), mend);
    }

    fn fine(&mut self, sentence: impl Into<String>) {
        self.add(Level::Fine, sentence.into(), None);
    }

    fn add(&mut self, level: Level, sentence: String, mend: Option<String>) {
        self.found.push(Finding { check: self.check, level, sentence, mend, made: true });
    }

    /// Adds a note that the check could not be made, or not wholly.
    fn not_made(&mut self, sentence: impl Into<String>, mend: Option<String>) {
        let (check, level) = (self.check, Level::Note);
        self.found.push(Finding { check, level, sentence: sentence.into(), mend, made: false });
    }

    /// Adds a note if the server hides the transactions of other roles from this one.
    async fn sees_sessions(&mut self, session: &Session) -> Result<(), Failure> {
        let statement = "select current_user::text, quote_ident(current_user), \
             pg_has_role(current_user, 'pg_read_all_stats', 'usage')";
        let row = sqlx::query(statement).persistent(false);
        let row = row.fetch_one(&mut *session.read().await?).await?;
        if !row.try_get::<bool, _>(2)? {
            let (role, quoted): (String, String) = (row.try_get(0)?, row.try_get(1)?);
            self.not_made(
                format!("role {role:?} cannot see other sessions"),
                Some(format!("grant pg_read_all_stats to {quoted};")),
            );
        }
        Ok(())
    }

    /// Returns the findings; `otherwise` if there is none.
    fn or_fine(mut self, otherwise: &str) -> Vec<Finding> {
        if self.found.is_empty() {
            self.fine(otherwise);
        }
        self.found
    }
}

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
        show("policies", work::policies(session).await)?;
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
