//! Settings of a queue, of a limit key, of a group.

use serde_json::{Map, Value};
use sqlx::PgConnection;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::effect::Effect;
use crate::job::name;
use crate::job::queue_options::OutOfAttempts;
use crate::job::queue_settings::StoredQueueSettings;
use crate::job::words::{Lane, counted};

impl Operator {
    pub(super) async fn act_configure(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        settings: &Map<String, Value>,
    ) -> Result<Effect, ControlError> {
        name::check_queue(queue)?;
        let was = self.client().queue_settings(&mut *conn, queue).await?;
        let acting = self.acting()?;
        self.store().configure_queue(&mut *conn, queue, settings, acting).await?;
        let is = self.client().queue_settings(&mut *conn, queue).await?;
        let sentence = format!("queue {queue:?}: {}", differences(&was, &is));
        Ok(Effect::new(sentence).with_all(&is).with("queue", queue))
    }

    pub(super) async fn act_key_limit(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        key: &str,
        limit: Option<u32>,
    ) -> Result<Effect, ControlError> {
        self.set_key_limit(&mut *conn, queue, key, limit).await?;
        let subject = format!("limit key {key:?} of queue {queue:?}");
        let sentence = match limit {
            Some(0) => format!("{subject} is paused: no group with it starts"),
            Some(limit) => {
                format!("{subject} has its own limit: {} at once", counted(limit.into(), "group"))
            }
            None => {
                let stored = self.client().queue_settings(&mut *conn, queue).await?;
                let of_queue = match stored.limit_per_key {
                    Some(limit) => format!("{} at once", counted(limit.into(), "group")),
                    None => String::from("none"),
                };
                format!("{subject} has the limit of its queue: {of_queue}")
            }
        };
        Ok(Effect::new(sentence))
    }

    pub(super) async fn act_group_policy(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
        policy: Option<OutOfAttempts>,
    ) -> Result<Effect, ControlError> {
        self.set_group_policy(&mut *conn, queue, group, policy).await?;
        let lane = Lane { queue, group: Some(group) };
        Ok(Effect::new(match policy {
            Some(policy) => format!("{lane}: a job that is out of attempts: {policy}"),
            None => format!("{lane} has the policy of its queue again"),
        }))
    }
}

/// Returns the settings that differ, each with what it was and is.
fn differences(was: &StoredQueueSettings, is: &StoredQueueSettings) -> String {
    let both = was.in_words().into_iter().zip(is.in_words());
    let differ: Vec<_> = both
        .filter(|((_, was), (_, is))| was != is)
        .map(|((name, was), (_, is))| format!("{name} {is} (was {was})"))
        .collect();
    if differ.is_empty() { String::from("nothing differs") } else { differ.join(", ") }
}
