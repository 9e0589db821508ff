//! Queues whose jobs nobody takes.

use std::time::Duration;

use sqlx::{PgConnection, Row};

use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    UNSERVED = |names| names.sql(
        "select o.queue, extract(epoch from clock_timestamp() - o.oldest_due)::float8
        from {queue_overview}(1) o
        where o.paused_at is null and o.oldest_due < clock_timestamp() - make_interval(secs => $1)
            and not o.served
        order by o.queue limit 100",
    );
}

impl Store {
    /// Returns the queues that no living processor or receiver serves and whose jobs have been due
    /// for longer than `limit`, and how long they have been.
    pub(crate) async fn unserved(
        &self,
        conn: &mut PgConnection,
        limit: Duration,
    ) -> Result<Vec<(String, Duration)>, sqlx::Error> {
        let rows = self.query(&UNSERVED).bind(limit.as_secs_f64()).fetch_all(conn).await?;
        let age = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        rows.iter().map(|row| Ok((row.try_get(0)?, age(row.try_get(1)?)))).collect()
    }
}
