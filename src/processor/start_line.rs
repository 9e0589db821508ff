//! The lines that a processor logs when it starts.

use sqlx::PgConnection;

use crate::job::policy::FailurePolicy;
use crate::job::queue_options::QueueOptions;
use crate::job::shard::ShardId;
use crate::liveness::context::Context;
use crate::processor::health::word_of;
use crate::store::{WorkConnection, in_short_tx};

/// The settings that the line shows.
pub(crate) struct StartLine {
    queues: String,
    slots: Option<usize>,
    node: String,
    listen: bool,
    presence: bool,
}

impl StartLine {
    pub(crate) fn new(
        queues: &[QueueOptions],
        slots: Option<usize>,
        node: &str,
        (listen, presence): (bool, bool),
    ) -> Self {
        let queue = |queue: &QueueOptions| {
            format!("{} ({} slots, {})", queue.name(), queue.concurrency, word_of(queue.hold))
        };
        let queues = queues.iter().map(queue).collect::<Vec<_>>().join(", ");
        Self { queues, slots, node: node.to_owned(), listen, presence }
    }

    /// Logs it. `server` is the server's version, if it is known.
    pub(crate) fn log(&self, context: &Context, server: Option<&str>) {
        let sessions = !context.pooler_state.pooled.is_cancelled();
        tracing::info!(
            target: "seriatim::node",
            queues = self.queues,
            shared_slots = self.slots,
            node = self.node,
            shard = context.shard.map(ShardId::number),
            schema = context.store.names().schema(),
            server,
            wake_ups = self.listen && sessions,
            presence = self.presence && sessions,
            "the processor has started"
        );
    }
}

/// The policies of processors for failed attempts, by queue.
pub(crate) type Policies = Vec<(String, FailurePolicy)>;

/// Returns the policy of each queue.
pub(crate) fn policies<'a>(queues: impl IntoIterator<Item = &'a QueueOptions>) -> Policies {
    queues.into_iter().map(|queue| (queue.name().to_owned(), queue.into())).collect()
}

/// Warns of options that do not count, as the queues' settings say otherwise. An error is another
/// task's to report.
pub(crate) async fn warn_of_overridden(context: &Context, policies: &Policies) {
    let Ok(conn) = context.side.acquire().await else { return };
    let mut conn = WorkConnection::from(conn);
    for (queue, own) in policies {
        let stored = async |conn: &mut PgConnection| context.store.queue_policy(conn, queue).await;
        let Ok(stored) = in_short_tx(&mut conn, stored).await else { return };
        for (setting, said, counts) in stored.overrides(own) {
            tracing::warn!(
                target: "seriatim::node",
                queue,
                setting,
                said,
                counts,
                "an option of this processor does not count: the queue's settings say otherwise"
            );
        }
    }
    conn.done();
}
