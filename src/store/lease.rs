//! Leases: what keeps a claimed job when no transaction does. Extended for many jobs in one
//! statement, by token (P10).

use std::collections::HashSet;

use sqlx::{AssertSqlSafe, PgConnection, Row};
use uuid::Uuid;

use crate::store::literal::array;
use crate::store::session::short;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// Extends the leases of groups and clears suspicions. Skips locked rows, and versions newer
    /// than this statement: those are tried again.
    EXTEND_GROUPS = |names| names.sql(
        "with lease as materialized (
            select unnest($1) as claim, unnest($2) as seconds
        ), ours as materialized (
            select g.ctid, lease.seconds from lease
            join lateral (
                select g.ctid from {queue_group} g
                where g.claim = lease.claim
                limit 1
                for no key update of g skip locked
            ) as g on true
        )
        update {queue_group} as g set
            suspect = null,
            ready_at = clock_timestamp() + make_interval(secs => ours.seconds)
        from ours
        where g.ctid = ours.ctid
        returning g.claim",
    );

    /// The same for jobs without a group.
    EXTEND_UNGROUPED = |names| names.sql(
        "with lease as materialized (
            select unnest($1) as id, unnest($2) as claim, unnest($3) as seconds
        ), ours as materialized (
            select j.id, lease.claim, lease.seconds from lease
            join lateral (
                select j.id from {job} j
                where j.id = lease.id and j.claim = lease.claim
                limit 1
                for no key update of j skip locked
            ) as j on true
        )
        update {job} as j set
            suspect = null,
            lease_until = clock_timestamp() + make_interval(secs => ours.seconds)
        from ours
        where j.id = any (array[ours.id]) and j.claim = ours.claim
        returning j.claim",
    );
}

/// A claim that its lease keeps.
#[derive(Debug, Clone)]
pub(crate) struct LeasedClaim {
    pub(crate) job: i64,
    /// Whether it is of no group.
    pub(crate) ungrouped: bool,
    /// Jobs that will run after it under the same claim.
    pub(crate) followers: Vec<i64>,
    pub(crate) token: Uuid,
    /// In seconds.
    pub(crate) lease: f64,
}

impl Store {
    /// Extends leases; the tokens of those that were.
    pub(crate) async fn extend_leases(
        &self,
        conn: &mut PgConnection,
        claims: &[LeasedClaim],
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let (ungrouped, grouped): (Vec<_>, Vec<_>) = claims.iter().partition(|c| c.ungrouped);
        let mut extended = HashSet::with_capacity(claims.len());
        if !grouped.is_empty() {
            let tokens: Vec<Uuid> = grouped.iter().map(|c| c.token).collect();
            let seconds: Vec<f64> = grouped.iter().map(|c| c.lease).collect();
            let extend = self.query(&EXTEND_GROUPS).bind(tokens).bind(seconds);
            for row in extend.fetch_all(&mut *conn).await? {
                extended.insert(row.try_get(0)?);
            }
        }
        if !ungrouped.is_empty() {
            let jobs: Vec<i64> = ungrouped.iter().map(|c| c.job).collect();
            let tokens: Vec<Uuid> = ungrouped.iter().map(|c| c.token).collect();
            let seconds: Vec<f64> = ungrouped.iter().map(|c| c.lease).collect();
            let extend = self.query(&EXTEND_UNGROUPED).bind(jobs).bind(tokens).bind(seconds);
            for row in extend.fetch_all(&mut *conn).await? {
                extended.insert(row.try_get(0)?);
            }
        }
        Ok(extended)
    }

    /// Which of these claims still stand.
    pub(crate) async fn still_claimed(
        &self,
        conn: &mut PgConnection,
        claims: &[LeasedClaim],
    ) -> Result<HashSet<Uuid>, sqlx::Error> {
        let text = self.still_claimed_sql(claims);
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }

    /// Returns which claims are still there, and for which jobs there is a request to cancel. One
    /// message: the server may be far, and its answer has to come soon.
    ///
    /// Not cancel safe, and after an error the connection is to be closed.
    pub(crate) async fn check_leases(
        &self,
        conn: &mut PgConnection,
        claims: &[LeasedClaim],
        jobs: &[i64],
    ) -> Result<(HashSet<Uuid>, Vec<i64>), sqlx::Error> {
        let (begin, requests) = (short(conn), self.cancel_requests_sql(jobs));
        let text = format!("{begin}; {requests}; {}; commit", self.still_claimed_sql(claims));
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(conn).await?;
        let (requests, claimed): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.len() == 1);
        let claimed = claimed.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let requests = requests.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        Ok((claimed, requests))
    }

    /// A plain read: only another token, or no row, says that a claim is lost. In rows of two
    /// columns.
    fn still_claimed_sql(&self, claims: &[LeasedClaim]) -> String {
        let tokens = array("uuid", claims.iter().map(|c| c.token));
        let jobs = array("int8", claims.iter().map(|c| c.job));
        let ungrouped = array("bool", claims.iter().map(|c| c.ungrouped));
        self.names.sql_with(
            "with lease as materialized (
                select unnest({tokens}) as claim, unnest({jobs}) as id, unnest({ungrouped}) as ungrouped
            )
            select claim, id from lease
            where lease.claim = coalesce(
                (select g.claim from {queue_group} g where g.claim = lease.claim limit 1),
                (select j.claim from {job} j where j.id = lease.id and lease.ungrouped limit 1)
            )",
            &[("tokens", &tokens), ("jobs", &jobs), ("ungrouped", &ungrouped)],
        )
    }
}
