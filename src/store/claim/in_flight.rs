//! In flight: the limit of a queue's jobs that are claimed at once, over all processes.
//!
//! A claim that may add to them has the queue's row locked, and counts in a new statement. What is
//! settled meanwhile only makes it less. So the limit holds exactly, and after crashes too: a claim
//! counts until its job is settled. A take-over does not add to the count and is allowed beyond it,
//! or a fleet that crashed would never continue.

use sqlx::{PgConnection, Row};

use crate::job::group_plan::LockedGroup;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    /// The limit, under the lock that every claim of such a queue takes.
    LOCK = |names| names.sql(
        "select q.in_flight_limit, q.paused_at is not null
        from {queue} q
        where q.name = $1
        for no key update of q skip locked",
    );

    /// The jobs that are claimed, whether their leases lapsed or not. In the order of the one index
    /// that has only claimed groups: no plan reads a backlog then.
    COUNT = |names| names.sql(
        "select (
            select coalesce(sum(claimed.batch_size), 0)
            from (
                select g.queue, g.group_id, g.ready_at, g.batch_size
                from {queue_group} g
                where g.queue = $1 and g.job_id is not null
                order by g.claimed_by
            ) as claimed
        ) + (
            select count(*) from {job} j
            where j.queue = $1 and j.group_id is null and j.status = 'started'
        )",
    );

    /// Locks the rows of up to n groups whose claim's lease ran out, the longest lapsed first.
    /// Skips those that are still held. The coalesce is no `is not null`, which the index of all
    /// claimed groups would serve once for each lapsed one.
    TAKE_LAPSED = |names| names.sql_with(
        "with lapsed as materialized (
            select g.queue, g.group_id, g.ready_at, g.batch_size
            from {queue_group} g
            where g.queue = $1 and g.job_id is not null and g.ready_at <= now()
            order by g.claimed_by
        )
        select g.group_id, g.job_id, g.head_id, g.batch_end, {suspected} as suspected
        from lapsed
        join {queue_group} as g on g.queue = any (array[lapsed.queue])
            and g.group_id between lapsed.group_id and lapsed.group_id
        where coalesce(g.job_id, 0) > 0 and g.ready_at <= now()
        order by lapsed.ready_at
        limit $2
        for no key update of g skip locked",
        &[("suspected", &names.is_suspected("g", "ready_at"))],
    );
}

/// How many more jobs of a queue may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// So many; `None` if any number.
    For(Option<usize>),
    /// The queue was paused meanwhile.
    Paused,
    /// Another transaction has the queue's row: a claim that counts, or a change of settings.
    Busy,
}

impl Store {
    /// Takes the turns of groups whose claim's lease ran out, and no others.
    pub(crate) async fn take_lapsed(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        n: i64,
    ) -> Result<Vec<LockedGroup>, sqlx::Error> {
        self.take(&TAKE_LAPSED, conn, queue, n).await
    }

    /// Locks the queue for this claim, and counts what is in flight.
    pub(crate) async fn room(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<Room, sqlx::Error> {
        let lock = self.query(&LOCK).bind(queue);
        let Some(row) = lock.fetch_optional(&mut *conn).await? else {
            return Ok(Room::Busy);
        };
        if row.try_get(1)? {
            return Ok(Room::Paused);
        }
        let Some(limit) = row.try_get::<Option<i32>, _>(0)? else {
            return Ok(Room::For(None));
        };
        let count = self.query(&COUNT).bind(queue);
        let claimed: i64 = count.fetch_one(conn).await?.try_get(0)?;
        Ok(Room::For(Some(usize::try_from(i64::from(limit) - claimed).unwrap_or(0))))
    }
}
