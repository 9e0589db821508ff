//! The settle of one round trip: a success, and the commit in the same message.
//!
//! sqlx counts nothing of such a commit. The arguments are literals: prepared statements would not
//! fit in one message, and answers come as text.

use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::store::claim::claim::Claim;
use crate::store::hold::HoldReceipt;
use crate::store::literal::literal;
use crate::store::store::Store;

/// What a message ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterSettle {
    Nothing,
    Commit,
    /// Commits, and begins and holds the next job of the turn.
    Hold,
}

/// What a settle came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SettleAnswer {
    /// The turn has ended.
    pub(crate) ended: bool,
    /// And nothing is left in the group, or the job has none.
    pub(crate) drained: bool,
    /// Who holds the next job, if it was to be held and is.
    pub(crate) held: Option<HoldReceipt>,
}

impl Store {
    /// Settles a held job's success, and does what `then` says. The claim stays for its followers,
    /// unless the queue or the group is paused.
    pub(crate) async fn quick_settle(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        result: &str,
        keep: bool,
        then: AfterSettle,
    ) -> Result<SettleAnswer, sqlx::Error> {
        let settle = self.names.quoted("settle_success");
        let result = if keep { literal(result) } else { String::from("null") };
        let followers = match &*claim.followers {
            [] => String::from("null"),
            followers => {
                let followers: Vec<String> = followers.iter().map(i64::to_string).collect();
                format!("'{{{}}}'", followers.join(","))
            }
        };
        let (job, token) = (claim.job, claim.token);
        let then = match (then, claim.followers.first()) {
            (AfterSettle::Nothing, _) => String::new(),
            (AfterSettle::Hold, Some(next)) => {
                format!("; commit; {}", self.hold_message(conn, claim, *next))
            }
            (AfterSettle::Commit | AfterSettle::Hold, _) => String::from("; commit"),
        };
        let text =
            format!("select {settle}({job}, '{token}', {result}, {keep}, {followers}){then}");
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let word: &str = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
        let (ended, drained) = (word != "stays", word == "drained");
        let held = rows.get(1).map(HoldReceipt::read).transpose()?.flatten();
        Ok(SettleAnswer { ended, drained, held })
    }
}
