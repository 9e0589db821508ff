//! Settings of a queue, and the policy of a group.

use sqlx::PgExecutor;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::error::ConfigureError;
use crate::job::name;
use crate::job::queue_options::OutOfAttempts;
use crate::job::queue_settings::QueueSettings;

impl Operator {
    /// Changes the settings of a queue, as
    /// [`Client::configure_queue`](crate::Client::configure_queue) does, and records it.
    ///
    /// # Errors
    /// [`ConfigureError`]; nothing was changed then.
    pub async fn configure_queue(
        &self,
        executor: impl PgExecutor<'_>,
        settings: QueueSettings,
    ) -> Result<(), ConfigureError> {
        let (queue, change) = settings.check()?;
        Ok(self.store().configure_queue(executor, &queue, &change, self.acting()?).await?)
    }

    /// Limits how many groups with one limit key run at once over the whole fleet, instead of the
    /// queue's [`limit_per_key`](QueueSettings::limit_per_key), which the queue need not have. 0
    /// pauses the key: none of its groups starts until the limit changes. `None` brings the key
    /// back to the limit of its queue.
    ///
    /// A higher limit counts at once. A lower limit stops no running job. Jobs that are being
    /// claimed may still start. A job whose worker died is taken over whatever the limit is.
    /// [`Client::key_limits`](crate::Client::key_limits) lists the limits.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::OutOfRange`] for a limit above 2147483647;
    /// [`ControlError::Database`].
    pub async fn set_key_limit(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        key: &str,
        limit: impl Into<Option<u32>>,
    ) -> Result<(), ControlError> {
        name::check_queue(queue)?;
        name::check("limit key", key, name::GROUP_LIMIT)?;
        let limit = limit.into().map(|limit| {
            i32::try_from(limit).map_err(|_| ControlError::OutOfRange {
                setting: "limit",
                value: limit.to_string(),
                range: "from 0 to 2147483647",
            })
        });
        let limit = limit.transpose()?;
        Ok(self.store().set_key_limit(executor, queue, key, limit, self.acting()?).await?)
    }

    /// Sets what a group does with a job that is out of attempts, instead of its queue's
    /// [`out_of_attempts`](crate::QueueOptions::out_of_attempts). `None` takes it back. It holds
    /// for attempts that end from now on.
    ///
    /// # Errors
    /// [`ControlError::Name`]; [`ControlError::OutOfRange`] for a deadline that cannot be used;
    /// [`ControlError::Database`].
    pub async fn set_group_policy(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        policy: Option<OutOfAttempts>,
    ) -> Result<(), ControlError> {
        name::check_queue(queue)?;
        name::check("group", group, name::GROUP_LIMIT)?;
        if let Some((value, range)) = policy.and_then(OutOfAttempts::mistake) {
            return Err(ControlError::OutOfRange { setting: "policy", value, range });
        }
        Ok(self.store().set_group_policy(executor, queue, group, policy, self.acting()?).await?)
    }
}
