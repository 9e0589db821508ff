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
        let change = settings.check()?;
        Ok(self.store().configure_queue(executor, change, self.acting()?).await?)
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
