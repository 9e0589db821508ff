//! The settings of a queue, for the whole fleet.

use sqlx::PgExecutor;

use crate::client::client::Client;
use crate::job::error::ConfigureError;
use crate::job::policy::OverriddenOption;
use crate::job::queue_settings::{KeyLimit, QueueSettings, StoredQueueSettings};
use crate::store::Acting;

impl Client {
    /// Changes the settings of a queue for the whole fleet. Settings that are not named stay as
    /// they are. In a transaction it takes effect when that commits; until then only other calls
    /// for the same queue wait.
    ///
    /// An application may call it at every start, so no operation is recorded. An
    /// [operator](crate::admin::Operator::configure_queue) records who changed the settings.
    ///
    /// # Errors
    /// [`ConfigureError`]; nothing was changed then.
    pub async fn configure_queue(
        &self,
        executor: impl PgExecutor<'_>,
        settings: QueueSettings,
    ) -> Result<(), ConfigureError> {
        let (queue, change) = settings.check()?;
        Ok(self.store.configure_queue(executor, &queue, &change, Acting::default()).await?)
    }

    /// Returns the settings of a queue; the defaults if it was never configured.
    pub async fn queue_settings(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<StoredQueueSettings, sqlx::Error> {
        self.store.queue_settings(executor, queue).await
    }

    /// Returns the limit keys of a queue that have a limit of their own, in their order. An
    /// [operator](crate::admin::Operator::set_key_limit) sets these limits.
    pub async fn key_limits(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
    ) -> Result<Vec<KeyLimit>, sqlx::Error> {
        self.store.key_limits(executor, queue).await
    }

    /// Returns what living processors say of their queues' failed attempts and does not count,
    /// because the queue's settings say otherwise: by node.
    pub async fn overridden_options(
        &self,
        executor: impl PgExecutor<'_>,
    ) -> Result<Vec<OverriddenOption>, sqlx::Error> {
        self.store.overridden_options(executor).await
    }
}
