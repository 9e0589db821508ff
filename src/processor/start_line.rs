//! The line that a processor logs when it starts.

use crate::job::queue_options::QueueOptions;
use crate::liveness::context::Context;
use crate::processor::health::word_of;

/// What the line says of the settings.
pub(in crate::processor) struct StartLine {
    queues: String,
    slots: Option<usize>,
    node: String,
    listen: bool,
    presence: bool,
}

impl StartLine {
    pub(in crate::processor) fn new(
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
    pub(in crate::processor) fn log(&self, context: &Context, server: Option<&str>) {
        let sessions = !context.pooler_state.pooled.is_cancelled();
        tracing::info!(
            target: "seriatim::node",
            queues = self.queues,
            shared_slots = self.slots,
            node = self.node,
            schema = context.store.names().schema(),
            server,
            wake_ups = self.listen && sessions,
            presence = self.presence && sessions,
            "the processor has started"
        );
    }
}
