//! Adopt: see flagged jobs and make sure their groups are in line. `sql/functions/adopt.sql` has the function, and says
//! why each flag may go.

use sea_query::Values;
use sqlx::{PgConnection, Row};

use crate::store::Store;
use crate::store::statement::{Names, Template};

/// How many flags one page of an adoption takes at least, and at most where that is more than there are slots.
const PAGE: (i32, i32) = (64, 256);
/// And else so many more than there are slots.
const MORE: i32 = 32;

/// When the group of a flagged job `j` is to be looked at: when there is something to do about the job, or at once where it
/// is finished. The words of an index.
pub(in crate::store) const LOOK_AT: &str =
    "case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end";

#[derive(Debug)]
pub(in crate::store) struct Statements {
    adopt: Template,
}

/// What an adoption did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Adopted {
    /// Groups put in line or found there.
    pub(crate) groups: usize,
    /// More flags are waiting.
    pub(crate) more: bool,
}

impl Statements {
    pub(in crate::store) fn new(names: &Names) -> Self {
        let call = format!(
            "select in_line, more from {}(?1, null, ?2, '-infinity')",
            names.quoted("adopt")
        );
        Self { adopt: Template::new((call, Values(Vec::new()))) }
    }
}

impl Store {
    /// Adopts a page of flagged jobs, and further pages while groups had to be skipped. Needs the adopter's lock.
    ///
    /// A page has more than the claim's `slots` can take, and not many more: those that run do not wait for the others.
    pub(crate) async fn adopt(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        slots: i64,
    ) -> Result<Adopted, sqlx::Error> {
        let slots = i32::try_from(slots).unwrap_or(i32::MAX);
        let page = slots.saturating_mul(2).clamp(PAGE.0, PAGE.1).max(slots.saturating_add(MORE));
        let row = self.adopt.adopt.query().bind(queue).bind(page).fetch_one(conn).await?;
        let groups: i32 = row.try_get(0)?;
        Ok(Adopted { groups: usize::try_from(groups).unwrap_or(0), more: row.try_get(1)? })
    }
}
