//! The settle of one round trip: a success, and the commit in the same message.
//!
//! sqlx counts nothing of such a commit. The arguments are literals: prepared statements would not
//! fit in one message, and answers come as text.

use futures::TryStreamExt;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Either, PgConnection, Row};
use uuid::Uuid;

use crate::job::batch::RESULT_LIMIT;
use crate::store::claim::Claim;
use crate::store::hold::{HoldAnswer, HoldReceipt};
use crate::store::literal::literal;
use crate::store::store::Store;

/// The next transaction has the isolation level of the last one.
const COMMIT_AND_BEGIN: &str = "commit and chain";

/// The rest of a message, after its settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterSettle {
    Nothing,
    Commit,
    /// Commits, and begins and holds this job.
    Hold {
        job: i64,
        token: Uuid,
    },
}

/// The result of a settle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SettleAnswer {
    /// The turn has ended.
    pub(crate) ended: bool,
    /// And nothing is left in the group, or the job has none.
    pub(crate) drained: bool,
    /// Who holds the next job, if it was to be held and is.
    pub(crate) held: Option<HoldReceipt>,
}

/// Sends a settle and what follows it in one message. The settle's own answer is the first row.
///
/// An error after the commit must not hide that the settle is committed. The hold that failed is
/// missing in the answer.
async fn send(conn: &mut PgConnection, text: String) -> Result<Vec<PgRow>, sqlx::Error> {
    let mut answers = sqlx::raw_sql(AssertSqlSafe(text)).fetch_many(conn);
    let (mut rows, mut ended) = (Vec::new(), 0);
    loop {
        match answers.try_next().await {
            Ok(Some(Either::Right(row))) => rows.push(row),
            Ok(Some(Either::Left(_))) => ended += 1,
            Ok(None) => return Ok(rows),
            // The settle and the commit have ended.
            Err(error) if ended >= 2 => {
                tracing::debug!("the hold after a settle failed: {error}");
                return Ok(rows);
            }
            Err(error) => return Err(error),
        }
    }
}

impl Store {
    /// Settles a held job's success, and does what `then` says. If the turn `goes_on`, the claim
    /// stays for its followers, unless the queue or the group is paused.
    pub(crate) async fn quick_settle(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        result: &str,
        keep: bool,
        goes_on: bool,
        then: AfterSettle,
    ) -> Result<SettleAnswer, sqlx::Error> {
        let settle = self.names.quoted("settle_success");
        // The job may be of a batch, which keeps its result.
        let wanted = keep || result.len() <= RESULT_LIMIT;
        let result = if wanted { literal(result) } else { String::from("null") };
        let (job, token) = (claim.job, claim.token);
        let age = claim.age().map_or_else(|| String::from("null"), |age| format!("'{age}'"));
        let then = match then {
            AfterSettle::Nothing => String::new(),
            AfterSettle::Hold { job, token } => {
                format!("; {}", self.hold_message(conn, COMMIT_AND_BEGIN, job, token))
            }
            AfterSettle::Commit => String::from("; commit"),
        };
        let text =
            format!("select {settle}({job}, '{token}', {result}, {keep}, {goes_on}, {age}){then}");
        let rows = send(conn, text).await?;
        let word: &str = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        let (ended, drained) = (word != "stays", word == "drained");
        let held = match rows.get(1).map(HoldAnswer::read).transpose()? {
            Some(HoldAnswer::Held(receipt)) => Some(receipt),
            Some(HoldAnswer::Skipped | HoldAnswer::Lost) | None => None,
        };
        Ok(SettleAnswer { ended, drained, held })
    }
}
