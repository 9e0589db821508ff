//! Adopt: read flagged jobs and make sure that their groups are ready. The schema's function
//! `adopt` says why each flag may go.

use sqlx::{PgConnection, Row};

use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// Needs the adopter's lock.
    ADOPT = |names| names.sql("select readied, more from {adopt}($1, null, $2, '-infinity')");
}

/// How many flags one page of an adoption takes: at least, and at most if that is more than the
/// slots.
const PAGE: (i32, i32) = (64, 256);
/// Else a page takes so many more than there are slots.
const MORE: i32 = 32;

/// When a flagged job `j` is to be adopted: when it is due or expires, or at once if it is
/// finished. The words of an index.
pub(in crate::store) const FLAG_DUE_AT: &str =
    "case when j.finished_at is null then least(j.run_at, j.expires_at) else 'epoch' end";

/// What an adoption did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Adopted {
    /// Groups that were made ready or were so before.
    pub(crate) groups: usize,
    /// More flags are due.
    pub(crate) more: bool,
}

impl Store {
    /// Adopts a page of flagged jobs, and further pages while groups had to be skipped. Needs the
    /// adopter's lock.
    ///
    /// A page has more than the claim's `slots` can take, and not many more: those that run do not
    /// wait for the others.
    pub(crate) async fn adopt(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        slots: i64,
    ) -> Result<Adopted, sqlx::Error> {
        let slots = i32::try_from(slots).unwrap_or(i32::MAX);
        let page = slots.saturating_mul(2).clamp(PAGE.0, PAGE.1).max(slots.saturating_add(MORE));
        let row = self.query(&ADOPT).bind(queue).bind(page).fetch_one(conn).await?;
        let groups: i32 = row.try_get(0)?;
        Ok(Adopted { groups: usize::try_from(groups).unwrap_or(0), more: row.try_get(1)? })
    }
}
