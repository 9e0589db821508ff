//! The settings of a queue, for all processes. Producers and workers read them without a lock.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::types::Json;
use sqlx::{PgExecutor, Row};

use crate::job::policy::{FailurePolicy, OverriddenOption};
use crate::job::queue_settings::{KeyLimit, SettingsDocument, StoredQueueSettings};
use crate::store::admin::control::Acting;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    CONFIGURE = |names| names.sql("select {configure_queue}($1, $2, $3, $4)");
    READ = |names| names.sql("select {queue_settings}($1)");
    LIMIT_KEY = |names| names.sql("select {set_key_limit}($1, $2, $3, $4, $5)");
    KEY_LIMITS = |names| names.sql(
        "select l.limit_key, l.groups from {key_limit} l where l.queue = $1 order by l.limit_key",
    );

    /// The options of living processors for their queues, beside the stored settings.
    SAID = |names| names.sql(
        "select p.node, p.policies, (
            select jsonb_object_agg(u.name, {queue_settings}(u.name)) from unnest(p.queues) u(name))
        from {processor} p
        where p.policies is not null and p.id in (select o.id from {processors}() o where o.alive)
        order by p.node, p.id",
    );
}

impl Store {
    pub(crate) async fn configure_queue(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        change: &(impl Serialize + Sync),
        acting: Acting<'_>,
    ) -> Result<(), sqlx::Error> {
        let query = self.query(&CONFIGURE).bind(queue).bind(Json(change));
        query.bind(acting.reason).bind(acting.actor).execute(executor).await.map(drop)
    }

    pub(crate) async fn queue_settings(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<StoredQueueSettings, sqlx::Error> {
        let stored: SettingsDocument = self.settings(executor, queue).await?;
        Ok(stored.into())
    }

    /// Returns whether these settings of a queue are stored already.
    pub(crate) async fn has_settings(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        settings: &SettingsDocument,
    ) -> Result<bool, sqlx::Error> {
        let stored: Value = self.settings(executor, queue).await?;
        let wanted = serde_json::to_value(settings).unwrap_or_default();
        // A rate without a burst has one by default.
        let has_rate = !wanted["rate"].is_null();
        let by_default =
            |name: &str, value: &Value| has_rate && name == "rate_burst" && value.is_null();
        let differs =
            |(name, value): (&String, &Value)| !by_default(name, value) && stored[name] != *value;
        Ok(wanted.as_object().is_some_and(|wanted| !wanted.iter().any(differs)))
    }

    /// Limits a key of a queue, or with `None` as the queue's settings say.
    pub(crate) async fn set_key_limit(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        key: &str,
        limit: Option<i32>,
        acting: Acting<'_>,
    ) -> Result<(), sqlx::Error> {
        let query = self.query(&LIMIT_KEY).bind(queue).bind(key).bind(limit);
        query.bind(acting.reason).bind(acting.actor).execute(executor).await.map(drop)
    }

    pub(crate) async fn key_limits(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<KeyLimit>, sqlx::Error> {
        let rows = self.query(&KEY_LIMITS).bind(queue).fetch_all(executor).await?;
        rows.iter()
            .map(|row| {
                let limit: i32 = row.try_get(1)?;
                Ok(KeyLimit { key: row.try_get(0)?, limit: limit.unsigned_abs() })
            })
            .collect()
    }

    /// Returns what the settings of a queue say about failed attempts.
    pub(crate) async fn queue_policy(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<FailurePolicy, sqlx::Error> {
        self.settings(executor, queue).await
    }

    async fn settings<T: DeserializeOwned + Send + Unpin + 'static>(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<T, sqlx::Error> {
        let row = self.query(&READ).bind(queue).fetch_one(executor).await?;
        row.try_get::<Json<T>, _>(0).map(|settings| settings.0)
    }

    /// Returns what living processors say of their queues and does not count.
    pub(crate) async fn overridden_options(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Vec<OverriddenOption>, sqlx::Error> {
        type Policies = Json<BTreeMap<String, FailurePolicy>>;
        let mut found = Vec::new();
        for row in self.query(&SAID).fetch_all(executor).await? {
            let (node, said): (String, Policies) = (row.try_get(0)?, row.try_get(1)?);
            let stored: Option<Policies> = row.try_get(2)?;
            let mut stored = stored.map(|stored| stored.0).unwrap_or_default();
            for (queue, said) in said.0 {
                let overrides = stored.remove(&queue).unwrap_or_default().overrides(&said);
                found.extend(overrides.into_iter().map(|(setting, said, counts)| {
                    let (queue, node) = (queue.clone(), node.clone());
                    OverriddenOption { queue, node, setting, said, counts }
                }));
            }
        }
        Ok(found)
    }
}
