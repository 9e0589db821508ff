//! Jobs without a group: their own row is their lock, their token and their lease.

use sqlx::{PgConnection, Row};

use crate::job::group_plan::Disposition;
use crate::store::claim::claim::{Claim, ClaimOptions};
use crate::store::fragments::{disposition, lease, lost_attempt};
use crate::store::names::Names;
use crate::store::statement::{Statement, statements};
use crate::store::store::Store;

statements! {
    START = |names| {
        let due = "j.status = 'queued' and j.turn_at <= now() order by turn_at, id";
        start(names, due)
    };

    TAKE_OVER = |names| {
        let suspected = names.is_suspected("j", "lease_until");
        let lapsed = "j.status = 'started' and j.lease_until <= now()";
        start(names, &format!("{lapsed} and {suspected} order by lease_until"))
    };

    /// Suspects claims whose lease lapsed. They are to be taken over a grace later.
    SUSPECT = |names| names.sql_with(
        "with due as materialized (
            select id from {job} j
            where j.queue = $1 and j.group_id is null
                and j.status = 'started' and j.lease_until <= now() and not {suspected}
            order by lease_until
            limit $2
            for no key update of j skip locked
        )
        update {job} as j set suspect = j.claim, lease_until = {suspect_until}
        from due
        where j.id = any (array[due.id])",
        &[
            ("suspected", &names.is_suspected("j", "lease_until")),
            ("suspect_until", &names.suspect_until("j")),
        ],
    );
}

/// Starts due jobs, or those whose claim was suspected a grace ago. Counts the attempt if there is
/// one (P9).
///
/// Each row decides for itself, and its condition is checked again on the version that was locked.
/// So one statement may lock and write.
fn start(names: &Names, which: &str) -> String {
    names.sql_with(
        "with due as materialized (
            select id, {disposition} as disposition from {job} j
            where j.queue = $1 and j.group_id is null and {which}
            limit $2
            for no key update of j skip locked
        )
        update {job} as j set
            status = 'started',
            history = {history},
            attempts = j.attempts + case when due.disposition = 'run' then 1 else 0 end,
            last_started_at =
                case when due.disposition = 'run' then clock_timestamp() else j.last_started_at end,
            claim = gen_random_uuid(),
            suspect = null,
            claimed_by = $6,
            lease_until = clock_timestamp() + {lease}
        from due
        where j.id = any (array[due.id])
        returning j.id, j.claim, due.disposition, j.expires_at",
        &[
            ("disposition", &disposition("j", "$4", "$7")),
            ("which", which),
            ("history", &lost_attempt("j", "due.disposition")),
            ("lease", &lease("j", "$3", "$5")),
        ],
    )
}

impl Store {
    /// Claims up to `n` due jobs without a group, oldest first.
    pub(crate) async fn start_ungrouped(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        n: i64,
        options: ClaimOptions,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        self.claim_ungrouped(conn, &START, queue, n, options).await
    }

    /// Suspects lapsed claims of jobs without a group, and takes over those suspected a grace ago.
    pub(crate) async fn take_over_ungrouped(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        n: i64,
        options: ClaimOptions,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        let suspect = self.query(&SUSPECT).bind(queue).bind(i64::MAX);
        suspect.execute(&mut *conn).await?;
        self.claim_ungrouped(conn, &TAKE_OVER, queue, n, options).await
    }

    async fn claim_ungrouped(
        &self,
        conn: &mut PgConnection,
        statement: &'static Statement,
        queue: &str,
        n: i64,
        options: ClaimOptions,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        if n < 1 {
            return Ok(Vec::new());
        }
        let claim = self.query(statement).bind(queue).bind(n).bind(options.lease.as_secs_f64());
        let claim =
            claim.bind(options.max_attempts).bind(options.own_lease).bind(options.processor);
        let claim = claim.bind(options.ignore_before);
        let rows = claim.fetch_all(conn).await?;
        rows.iter()
            .map(|row| {
                Ok(Claim {
                    followers: Vec::new(),
                    job: row.try_get(0)?,
                    group: None,
                    token: row.try_get(1)?,
                    disposition: Disposition::parse(row.try_get(2)?, row.try_get(3)?),
                    may_wait: None,
                })
            })
            .collect()
    }
}
