//! The findings of a check.

use serde::Serialize;
use sqlx::Row;

use crate::failure::Failure;
use crate::session::Session;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    /// As it should be.
    Fine,
    /// Worth to know.
    Note,
    /// To be mended.
    Problem,
}

/// One finding of a check.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) level: Level,
    pub(super) sentence: String,
    /// The statement or command that mends it.
    pub(super) mend: Option<String>,
    /// Whether the check could be made.
    pub(super) made: bool,
}

/// All findings of one check.
pub(super) struct Findings {
    pub(super) check: &'static str,
    pub(super) found: Vec<Finding>,
}

impl Findings {
    pub(super) fn of(check: &'static str) -> Self {
        Self { check, found: Vec::new() }
    }

    pub(super) fn problem(&mut self, sentence: impl Into<String>, mend: impl Into<String>) {
        self.add(Level::Problem, sentence.into(), Some(mend.into()));
    }

    pub(super) fn note(&mut self, sentence: impl Into<String>, mend: Option<String>) {
        self.add(Level::Note, sentence.into(), mend);
    }

    pub(super) fn fine(&mut self, sentence: impl Into<String>) {
        self.add(Level::Fine, sentence.into(), None);
    }

    fn add(&mut self, level: Level, sentence: String, mend: Option<String>) {
        self.found.push(Finding { check: self.check, level, sentence, mend, made: true });
    }

    /// Adds a note that the check could not be made, or not wholly.
    pub(super) fn not_made(&mut self, sentence: impl Into<String>, mend: Option<String>) {
        let (check, level) = (self.check, Level::Note);
        self.found.push(Finding { check, level, sentence: sentence.into(), mend, made: false });
    }

    /// Adds a note if the server hides the transactions of other roles from this one.
    pub(super) async fn sees_sessions(&mut self, session: &Session) -> Result<(), Failure> {
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
    pub(super) fn or_fine(mut self, otherwise: &str) -> Vec<Finding> {
        if self.found.is_empty() {
            self.fine(otherwise);
        }
        self.found
    }
}
