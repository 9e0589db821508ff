//! The settings of a queue, for all processes. Producers and workers read them without a lock.

use std::time::Duration;

use sea_query::{InsertStatement, OnConflict};
use sqlx::{PgExecutor, Row};

use crate::job::queue_settings::{CheckedSettings, DedupScope, QueueSettings, StoredQueueSettings};
use crate::store::admin::control::Acting;
use crate::store::admin::policy::{policy, policy_columns};
use crate::store::builder::{PG, cte, render, select, select_into, sql, with};
use crate::store::fragments::recorded;
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    CONFIGURE = configure;
    READ = read;
}

/// (column, its value, whether it is named).
const SETTINGS: [(&str, &str, &str); 11] = [
    ("delay_ms", "?3", "?2"),
    ("dedup_window_ms", "?5", "?4"),
    ("dedup_scope", "coalesce(?6, 'queue')", "?6 is not null"),
    ("dedup_by_content", "coalesce(?7, false)", "?7 is not null"),
    ("in_flight_limit", "?9", "?8"),
    ("max_attempts", "?11", "?10"),
    ("backoff_ms", "?13", "?12"),
    ("backoff_cap_ms", "?15", "?14"),
    ("out_of_attempts", "?17", "?16"),
    ("halt_for_ms", "?18", "?16"),
    ("halt_then", "?19", "?16"),
];

/// Inserts or changes one row, and locks it. A setting that is not named stays.
fn configure(names: &Names) -> String {
    let mut changed = OnConflict::column("name");
    for (column, _, named) in SETTINGS {
        let value = format!("case when {named} then excluded.{column} else queue.{column} end");
        changed.value(column, sql(value));
    }
    let mut insert = InsertStatement::new();
    insert
        .into_table(names.queue())
        .columns(["name"].into_iter().chain(SETTINGS.map(|(column, _, _)| column)))
        .on_conflict(changed);
    let row = select().expr(sql("?1")).exprs(SETTINGS.map(|(_, value, _)| sql(value))).to_owned();
    select_into(&mut insert, row);
    let what = "'configure_queue', ?1::text, null, null, ?20::text, 1";
    let record = select().expr(recorded(names, what, "?21")).to_owned();
    with([cte("written", insert)], record)
}

fn read(names: &Names) -> String {
    let query = select()
        .columns(SETTINGS.map(|(column, _, _)| column))
        .from(names.queue())
        .and_where(sql("name = ?1"))
        .to_owned();
    render(query.build(PG))
}

impl Store {
    pub(crate) async fn configure_queue(
        &self,
        executor: impl PgExecutor<'_>,
        change: CheckedSettings,
        acting: Acting<'_>,
    ) -> Result<(), sqlx::Error> {
        let CheckedSettings {
            queue,
            delay_ms,
            dedup_window_ms,
            dedup_scope,
            dedup_by_content,
            in_flight_limit,
            max_attempts,
            out_of_attempts,
            backoff_ms,
            backoff_cap_ms,
        } = change;
        let policy = out_of_attempts.flatten().map(policy_columns);
        let query = self.query(&CONFIGURE);
        query
            .bind(queue)
            .bind(delay_ms.is_some())
            .bind(delay_ms.flatten())
            .bind(dedup_window_ms.is_some())
            .bind(dedup_window_ms.flatten())
            .bind(dedup_scope.map(DedupScope::as_str))
            .bind(dedup_by_content)
            .bind(in_flight_limit.is_some())
            .bind(in_flight_limit.flatten())
            .bind(max_attempts.is_some())
            .bind(max_attempts.flatten())
            .bind(backoff_ms.is_some())
            .bind(backoff_ms.flatten())
            .bind(backoff_cap_ms.is_some())
            .bind(backoff_cap_ms.flatten())
            .bind(out_of_attempts.is_some())
            .bind(policy.map(|(word, _, _)| word))
            .bind(policy.and_then(|(_, ms, _)| ms))
            .bind(policy.and_then(|(_, _, then)| then))
            .bind(acting.reason)
            .bind(acting.actor)
            .execute(executor)
            .await
            .map(drop)
    }

    pub(crate) async fn queue_settings(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<StoredQueueSettings, sqlx::Error> {
        let row = self.query(&READ).bind(queue).fetch_optional(executor).await?;
        let Some(row) = row else {
            return Ok(StoredQueueSettings {
                delay: None,
                dedup_window: QueueSettings::DEDUP_WINDOW,
                dedup_scope: DedupScope::default(),
                dedup_by_content: false,
                in_flight_limit: None,
                max_attempts: None,
                out_of_attempts: None,
                backoff: None,
                backoff_cap: QueueSettings::BACKOFF_CAP,
            });
        };
        let time = |ms: Option<i64>| ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
        let count = |n: Option<i32>| n.map(i32::unsigned_abs);
        Ok(StoredQueueSettings {
            delay: time(row.try_get(0)?),
            dedup_window: time(row.try_get(1)?).unwrap_or(QueueSettings::DEDUP_WINDOW),
            dedup_scope: match row.try_get(2)? {
                "group" => DedupScope::Group,
                _ => DedupScope::Queue,
            },
            dedup_by_content: row.try_get(3)?,
            in_flight_limit: count(row.try_get(4)?),
            max_attempts: count(row.try_get(5)?),
            backoff: time(row.try_get(6)?),
            backoff_cap: time(row.try_get(7)?).unwrap_or(QueueSettings::BACKOFF_CAP),
            out_of_attempts: policy(&row, 8)?,
        })
    }
}
