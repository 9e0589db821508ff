//! Counts the statements that this process sends, by sqlx's log of each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::Result;

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Prepares the count. Before [`counting`] it costs a statement nothing measurable.
pub(crate) fn install() -> Result<()> {
    Ok(tracing::subscriber::set_global_default(Counter)?)
}

pub(crate) fn counting(yes: bool) {
    COUNTING.store(yes, Ordering::SeqCst);
}

/// Returns the count so far.
pub(crate) fn count() -> u64 {
    COUNT.load(Ordering::SeqCst)
}

struct Counter;

fn is_statement(metadata: &Metadata<'_>) -> bool {
    metadata.target() == "sqlx::query"
}

impl Subscriber for Counter {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_statement(metadata) { Interest::sometimes() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_statement(metadata)
            && *metadata.level() <= Level::DEBUG
            && COUNTING.load(Ordering::Relaxed)
    }

    fn event(&self, _: &Event<'_>) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}
