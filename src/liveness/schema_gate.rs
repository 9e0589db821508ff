//! The gate that no job passes while this program does not fit its schema.

use tokio::sync::watch;

/// Closed until the schema is known to fit.
#[derive(Debug)]
pub(crate) struct SchemaGate {
    pub(crate) open: watch::Sender<bool>,
}

impl Default for SchemaGate {
    fn default() -> Self {
        Self { open: watch::Sender::new(false) }
    }
}

impl SchemaGate {
    /// Waits until the schema fits.
    pub(crate) async fn opened(&self) {
        // The sender is this gate's own, so it outlives the wait.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }

    /// Opens the gate: a check before the start has found that the schema fits.
    pub(crate) fn set_open(&self) {
        self.open.send_replace(true);
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.open.borrow()
    }
}
