//! Settle of many at once: the successes of leases, each group's turn passed with them (P4, P10).

use std::collections::HashSet;
use std::time::Instant;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::store::claim::Claim;
use crate::store::settle::turn::{UnrecordedSuccess, age};
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    SETTLE_SUCCESSES = |names| names.sql(
        "select {settle_successes}($1, $2, $3, $4, $5, $6, $7, $8)",
    );
    SETTLE_UNGROUPED_SUCCESSES = |names| names.sql(
        "select {settle_ungrouped_successes}($1, $2, $3, $4)",
    );
}

/// A claim all of whose jobs have succeeded.
#[derive(Debug)]
pub(crate) struct Succeeded<'a> {
    pub(crate) claim: &'a Claim,
    /// The jobs of its turn that are not recorded yet, but the last.
    pub(crate) earlier: &'a [UnrecordedSuccess],
    /// The result of the claim's job, as JSON.
    pub(crate) result: &'a str,
}

impl Store {
    /// Settles claims of which only successes are to be recorded, all with groups or all without.
    /// Returns the tokens of those that it settled: others are stale, or a row is locked for a
    /// moment. This transaction must not have written the groups' rows before.
    pub(crate) async fn settle_many(
        &self,
        conn: &mut PgConnection,
        claims: &[Succeeded<'_>],
        keep: bool,
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let tokens: Vec<Uuid> = claims.iter().map(|of| of.claim.token).collect();
        if claims.iter().any(|of| of.claim.group.is_none()) {
            let jobs: Vec<i64> = claims.iter().map(|of| of.claim.job).collect();
            let results: Vec<&str> = claims.iter().map(|of| of.result).collect();
            let settle = self.query(&SETTLE_UNGROUPED_SUCCESSES).bind(tokens).bind(jobs);
            return read(settle.bind(results).bind(keep).fetch_all(conn).await?);
        }
        self.settle_groups(conn, claims, keep).await
    }

    async fn settle_groups(
        &self,
        conn: &mut PgConnection,
        claims: &[Succeeded<'_>],
        keep: bool,
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let (mut tokens, mut turns) = (Vec::new(), Vec::new());
        let (mut jobs, mut results, mut of) = (Vec::new(), Vec::new(), Vec::new());
        let (mut began, mut ended, now) = (Vec::new(), Vec::new(), Instant::now());
        for Succeeded { claim, earlier, result, .. } in claims {
            tokens.push(claim.token);
            turns.push(claim.job);
            for done in *earlier {
                jobs.push(done.job);
                results.push(done.result.as_str());
                began.push(age(done.began, now));
                ended.push(age(done.ended, now));
            }
            jobs.push(claim.job);
            results.push(result);
            began.push(age(claim.began, now));
            ended.push(None);
            of.resize(jobs.len(), claim.token);
        }
        let settle = self
            .query(&SETTLE_SUCCESSES)
            .bind(tokens)
            .bind(turns)
            .bind(jobs)
            .bind(results)
            .bind(began)
            .bind(ended)
            .bind(of)
            .bind(keep);
        read(settle.fetch_all(conn).await?)
    }
}

fn read(rows: Vec<PgRow>) -> Result<HashSet<Uuid>, sqlx::Error> {
    rows.into_iter().map(|row| row.try_get(0)).collect()
}
