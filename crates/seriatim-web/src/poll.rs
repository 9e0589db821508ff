//! The one poll of the database that all viewers share: who waits for its changes, and whether it
//! runs.

use tokio::sync::{Mutex, watch};

/// The poll that all viewers share. It runs while there are any.
pub(crate) struct Poll {
    changes: watch::Sender<u64>,
    running: Mutex<bool>,
}

impl Poll {
    pub(crate) fn new() -> Self {
        Self { changes: watch::Sender::new(0), running: Mutex::new(false) }
    }

    /// Tells all viewers that something has changed.
    pub(crate) fn announce(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    /// Returns a viewer of the changes. Starts the poll by `start` if it does not run.
    pub(crate) async fn subscribe(&self, start: impl FnOnce()) -> watch::Receiver<u64> {
        let mut running = self.running.lock().await;
        let viewer = self.changes.subscribe();
        if !*running {
            *running = true;
            start();
        }
        viewer
    }

    /// Returns whether no viewer is left. The poll that asks then ends.
    pub(crate) async fn ends(&self) -> bool {
        let mut running = self.running.lock().await;
        *running = self.changes.receiver_count() > 0;
        !*running
    }
}
