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
            and not o.served and cardinality(o.dead_letters_of) = 0
        order by o.queue limit 100",
    );
}

impl Store {
    /// Returns the queues that no living processor or receiver serves and whose jobs have been due
    /// for longer than `limit`, and how long they have been. Nobody need serve a dead-letter queue.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::store::Store;
    use crate::testing::TestDatabase;

    #[tokio::test]
    async fn nobody_need_serve_a_dead_letter_queue() {
        let database = TestDatabase::create().await.unwrap();
        let mut conn = database.pool().acquire().await.unwrap();
        let jobs =
            "insert into seriatim.job (queue, group_id, data, flagged, moved_from, run_at, turn_at) values
            ('ordres', 'g', 'null', true, null, now() - interval '1 h', now() - interval '1 h'),
            ('dead', 'g', 'null', true, 'orders', now() - interval '1 h', now() - interval '1 h')";
        sqlx::raw_sql(jobs).execute(&mut *conn).await.unwrap();
        let store = Store::default_schema();
        let unserved = store.unserved(&mut conn, Duration::from_mins(1)).await.unwrap();
        assert_eq!(unserved.iter().map(|(queue, _)| &**queue).collect::<Vec<_>>(), ["ordres"]);
        drop(conn);
        database.remove().await.unwrap();
    }
}
