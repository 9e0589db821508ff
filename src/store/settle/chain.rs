//! Chain: a settle that starts the next job of the same group, in one round trip.

use std::time::Instant;

use sqlx::{PgConnection, Row};

use crate::job::disposition::Disposition;
use crate::job::waits::WaitsAtClaim;
use crate::store::claim::{Claim, ClaimOptions};
use crate::store::hold::{HeldJob, HoldReceipt, XID, begin_text, held_job};
use crate::store::literal::{id, literal, name, time};
use crate::store::settle::many::Succeeded;
use crate::store::settle::quick::{AfterSettle, send};
use crate::store::store::Store;

/// What a settle that may chain came to.
#[derive(Debug)]
pub(crate) enum ChainAnswer {
    /// The next job is claimed. `held` says who holds it, if it was to be held and is.
    To {
        claim: Claim,
        known: Box<HeldJob>,
        held: Option<HoldReceipt>,
    },
    Passed,
    Drained,
}

impl Store {
    /// Settles a held job's success while no other group waits. Starts the next job of its group
    /// with it, if that may be. An error of the hold behind the commit leaves the transaction to be
    /// rolled back, as if a row was locked.
    pub(crate) async fn settle_and_chain(
        &self,
        conn: &mut PgConnection,
        Succeeded { queue, claim, result, .. }: Succeeded<'_>,
        keep: bool,
        then: AfterSettle,
        options: ClaimOptions,
    ) -> Result<ChainAnswer, sqlx::Error> {
        let settle = self.names.quoted("settle_and_chain");
        let queue = name(queue);
        let group = claim.group.as_deref().map_or_else(|| "null".to_owned(), literal);
        let result = if keep { literal(result) } else { String::from("null") };
        let then = match then {
            AfterSettle::Nothing => String::new(),
            AfterSettle::Commit | AfterSettle::Hold { .. } => String::from("; commit"),
            AfterSettle::HoldChained => {
                let (begin, hold) = (begin_text(conn), self.names.quoted("hold_next"));
                format!("; commit; {begin}; select {hold}(), {XID}")
            }
        };
        let ClaimOptions { max_attempts, lease, processor, ignore_before, .. } = options;
        let (job, token, lease) = (claim.job, claim.token, lease.as_secs_f64());
        let (processor, ignore_before) = (id(processor), time(ignore_before, "null"));
        let text = format!(
            "select * from {settle}({queue}, {group}, {job}, '{token}', {result}, {keep}, {max_attempts}, '{lease}', \
             {processor}, {ignore_before}){then}"
        );
        let rows = send(conn, text).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let held = rows.get(1).map(HoldReceipt::read).transpose()?.flatten();
        match row.try_get("state")? {
            "chained" => {
                let job = row.try_get("id")?;
                let token = row.try_get("claim")?;
                let (group, followers) = (claim.group.clone(), Vec::new());
                let next = Claim {
                    job,
                    followers,
                    group,
                    token,
                    disposition: Disposition::Run,
                    may_wait: false,
                };
                // The slot is its own.
                let known = held_job(row)?;
                let due_at = known.created_at.max(known.run_at);
                let waits = WaitsAtClaim::of_follower(row.try_get("chained_at")?, due_at);
                let known = HeldJob { waits: Some((waits, Instant::now())), ..known };
                Ok(ChainAnswer::To { claim: next, known: Box::new(known), held })
            }
            "drained" => Ok(ChainAnswer::Drained),
            _ => Ok(ChainAnswer::Passed),
        }
    }
}
