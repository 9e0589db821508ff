//! Priority aging of what slept until its time: it gets it when that time has come.
//!
//! Before, it would count as if it had waited for longer than it was asked to sleep, and be taken
//! too early.

use sqlx::PgConnection;

use crate::store::fragments::priority_aging;
use crate::store::statement::{Statement, statements};
use crate::store::store::Store;

/// How many sleepers one claim wakes.
const PAGE: i64 = 256;

statements! {
    /// Moves the rows of groups whose time has come to the front. What is locked gets no aging this
    /// time.
    GROUPS = |names| names.sql_with(
        "with due as materialized (
            select g.queue, g.group_id from {queue_group} g
            where g.queue = $1 and g.aging_priority > 0 and g.ready_at <= now()
            order by g.ready_at
            limit $2
            for no key update of g skip locked
        )
        update {queue_group} as g set ready_at = g.ready_at - {aging}, aging_priority = 0
        from due
        where g.queue = any (array[due.queue])
            and g.group_id between due.group_id and due.group_id",
        &[("aging", &priority_aging("g.aging_priority"))],
    );

    /// The same for jobs without a group. One whose expiry came first has none, and is not here.
    UNGROUPED = |names| names.sql_with(
        "with due as materialized (
            select j.id from {job} j
            where j.queue = $1 and j.group_id is null and j.status = 'queued' and j.priority > 0
                and j.turn_at >= j.run_at and j.run_at <= now()
            order by j.run_at
            limit $2
            for no key update of j skip locked
        )
        update {job} as j set turn_at = j.turn_at - {aging}
        from due
        where j.id = any (array[due.id])",
        &[("aging", &priority_aging("j.priority"))],
    );
}

impl Store {
    /// Gives due sleepers their aging; returns how many groups it were, and whether more may be
    /// waiting.
    pub(crate) async fn age_priority_groups(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<(usize, bool), sqlx::Error> {
        self.age_priority(conn, &GROUPS, queue).await
    }

    /// The same for jobs without a group.
    pub(crate) async fn age_priority_ungrouped(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<(usize, bool), sqlx::Error> {
        self.age_priority(conn, &UNGROUPED, queue).await
    }

    async fn age_priority(
        &self,
        conn: &mut PgConnection,
        statement: &'static Statement,
        queue: &str,
    ) -> Result<(usize, bool), sqlx::Error> {
        let aged = self.query(statement).bind(queue).bind(PAGE).execute(conn).await?;
        let aged = aged.rows_affected();
        Ok((usize::try_from(aged).unwrap_or(usize::MAX), aged == PAGE.unsigned_abs()))
    }
}
