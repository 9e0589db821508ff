//! Pause and resume queues and groups, and let them rest, in rows that workers only read. The
//! functions of `sql/functions/pause.sql` do it.

use std::time::Duration;

use sea_query::Order;
use sqlx::{PgExecutor, Row};

use crate::job::counts::{PausedGroup, PausedQueue};
use crate::job::job_error::storable_text;
use crate::job::until::Until;
use crate::store::admin::control::Acting;
use crate::store::builder::{PG, render, select, sql};
use crate::store::fragments::paused;
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    PAUSE = |names| names.sql(
        "select {pause}($1, $2, $3, $4, coalesce($5, clock_timestamp() + $6::float8 * interval '1 ms'))",
    );
    RESUME = |names| names.sql("select {resume}($1, $2, $3, $4)");
    REST = |names| names.sql(
        "select {rest}($1, coalesce($2, clock_timestamp() + $5::float8 * interval '1 ms'), $3, $4)",
    );
    PAUSED_QUEUE = paused_queue;
    PAUSED_GROUPS = paused_groups;
}

fn paused_queue(names: &Names) -> String {
    let query = select()
        .columns(["name", "paused_at", "pause_reason", "paused_until", "rested_by"])
        .expr(sql("extract(epoch from clock_timestamp() - q.paused_at)::float8"))
        .from_as(names.queue(), "q")
        .and_where(sql(format!("q.name = ?1 and {}", paused("q"))))
        .to_owned();
    render(query.build(PG))
}

fn paused_groups(names: &Names) -> String {
    let query = select()
        .columns(["group_id", "paused_at", "pause_reason", "paused_until", "rested_by"])
        .expr(sql("extract(epoch from clock_timestamp() - s.paused_at)::float8"))
        .from_as(names.group_setting(), "s")
        .and_where(sql(format!("s.queue = ?1 and {}", paused("s"))))
        .order_by("paused_at", Order::Asc)
        .to_owned();
    render(query.build(PG))
}

/// The answer to a job that asked for a rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestState {
    Set,
    /// A pause that lasts as long stands already, or the rest would be over.
    Kept,
    Stale,
    Busy,
}

/// A rest: who is to rest, why, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RestArguments<'a> {
    pub(crate) whole_queue: bool,
    pub(crate) until: Until,
    pub(crate) reason: &'a str,
}

/// Returns whether a pause or a rest was refused for its end: over or too far (22023), or no time
/// of `PostgreSQL` (22008).
pub(crate) fn is_end_refused(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("22023" | "22008"))
}

impl Store {
    /// Pauses the queue, or one group of it, for the reason of `acting`, until an operator or
    /// `until` ends it.
    pub(crate) async fn pause(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: Option<&str>,
        until: Option<Until>,
        acting: Acting<'_>,
    ) -> Result<(), sqlx::Error> {
        let pause = self.query(&PAUSE).bind(queue).bind(group);
        let (at, after) = until.map(Until::arguments).unwrap_or_default();
        let pause = pause.bind(acting.reason).bind(acting.actor).bind(at).bind(after);
        pause.execute(executor).await.map(drop)
    }

    /// Lets the group of a receipt's job rest, or its queue. Locks the row of the pause, and waits
    /// for it up to half a second.
    pub(crate) async fn rest(
        &self,
        executor: impl PgExecutor<'_>,
        receipt: &str,
        arguments: RestArguments<'_>,
    ) -> Result<RestState, sqlx::Error> {
        let RestArguments { whole_queue, until, reason } = arguments;
        let (at, after) = until.arguments();
        let rest = self.query(&REST).bind(receipt.to_owned()).bind(at);
        let rest = rest.bind(storable_text(reason)).bind(whole_queue).bind(after);
        match rest.fetch_one(executor).await?.try_get(0)? {
            "done" => Ok(RestState::Set),
            "kept" => Ok(RestState::Kept),
            "stale" => Ok(RestState::Stale),
            "busy" => Ok(RestState::Busy),
            word => Err(sqlx::Error::Protocol(format!("the schema's function returned {word:?}"))),
        }
    }

    /// Ends the pause of the queue, or of one group of it; returns whether it was paused.
    pub(crate) async fn resume(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: Option<&str>,
        acting: Acting<'_>,
    ) -> Result<bool, sqlx::Error> {
        let resume = self.query(&RESUME).bind(queue).bind(group);
        resume.bind(acting.reason).bind(acting.actor).fetch_one(executor).await?.try_get(0)
    }

    pub(crate) async fn paused_queue(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Option<PausedQueue>, sqlx::Error> {
        let row = self.query(&PAUSED_QUEUE).bind(queue).fetch_optional(executor).await?;
        row.map(|row| {
            Ok(PausedQueue {
                queue: row.try_get(0)?,
                since: row.try_get(1)?,
                reason: row.try_get(2)?,
                until: row.try_get(3)?,
                rested_by: row.try_get(4)?,
                age: age(row.try_get(5)?),
            })
        })
        .transpose()
    }

    pub(crate) async fn paused_groups(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<PausedGroup>, sqlx::Error> {
        let rows = self.query(&PAUSED_GROUPS).bind(queue).fetch_all(executor).await?;
        rows.iter()
            .map(|row| {
                Ok(PausedGroup {
                    queue: queue.to_owned(),
                    group: row.try_get(0)?,
                    since: row.try_get(1)?,
                    reason: row.try_get(2)?,
                    until: row.try_get(3)?,
                    rested_by: row.try_get(4)?,
                    age: age(row.try_get(5)?),
                })
            })
            .collect()
    }
}

fn age(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}
