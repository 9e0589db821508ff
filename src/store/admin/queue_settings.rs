//! The settings of a queue, for all processes. Producers and workers read them without a lock.

use std::time::Duration;

use serde_json::{Map, Value};
use sqlx::types::Json;
use sqlx::{PgExecutor, Row};

use crate::job::queue_settings::{CheckedSettings, DedupScope, QueueSettings, StoredQueueSettings};
use crate::store::admin::control::Acting;
use crate::store::admin::policy::{policy, policy_columns};
use crate::store::builder::{PG, render, select, sql};
use crate::store::names::Names;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    CONFIGURE = |names| names.sql("select {configure_queue}($1, $2, $3, $4)");
    READ = read;
}

/// The columns, in the order in which they are read.
const SETTINGS: [&str; 13] = [
    "delay_ms",
    "dedup_window_ms",
    "dedup_scope",
    "dedup_by_content",
    "in_flight_limit",
    "max_attempts",
    "backoff_ms",
    "backoff_cap_ms",
    "out_of_attempts",
    "halt_for_ms",
    "halt_then",
    "dead_letter_queue",
    "strict_visibility",
];

fn read(names: &Names) -> String {
    let query =
        select().columns(SETTINGS).from(names.queue()).and_where(sql("name = ?1")).to_owned();
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
            dead_letter_queue,
            strict_visibility,
        } = change;
        let time = |ms: Option<i64>| ms.map_or(Value::Null, in_ms);
        let mut settings = Map::new();
        let mut name = |setting: &str, value: Option<Value>| {
            settings.extend(value.map(|value| (setting.to_owned(), value)));
        };
        name("delay", delay_ms.map(time));
        name("dedup_window", dedup_window_ms.map(time));
        name("dedup_scope", dedup_scope.map(|scope| scope.as_str().into()));
        name("dedup_by_content", dedup_by_content.map(Value::from));
        name("in_flight_limit", in_flight_limit.map(Value::from));
        name("max_attempts", max_attempts.map(Value::from));
        name("backoff", backoff_ms.map(time));
        name("backoff_cap", backoff_cap_ms.map(time));
        name("dead_letter_queue", dead_letter_queue.map(Value::from));
        name("strict_visibility", strict_visibility.map(Value::from));
        if let Some(policy) = out_of_attempts {
            let (word, ms, then) = policy.map_or((None, None, None), |policy| {
                let (word, ms, then) = policy_columns(policy);
                (Some(word), ms, then)
            });
            name("out_of_attempts", Some(word.into()));
            name("halt_for", Some(time(ms)));
            name("halt_then", Some(then.into()));
        }
        let query = self.query(&CONFIGURE).bind(queue).bind(Json(settings));
        query.bind(acting.reason).bind(acting.actor).execute(executor).await.map(drop)
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
                dead_letter_queue: None,
                strict_visibility: false,
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
            dead_letter_queue: row.try_get(11)?,
            strict_visibility: row.try_get(12)?,
        })
    }
}

/// As the SQL functions of settings take a time.
fn in_ms(ms: i64) -> Value {
    format!("{ms} ms").into()
}
