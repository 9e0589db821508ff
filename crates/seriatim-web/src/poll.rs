//! The one poll of the database that all viewers share: who waits for its news, and whether it
//! runs.

use tokio::sync::{Mutex, watch};

/// The poll that all viewers share. It runs while there are any.
pub(crate) struct Poll {
    news: watch::Sender<News>,
    running: Mutex<bool>,
}

/// The news of the last poll.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// It counts changes.
    pub(crate) version: u64,
    /// The database does not answer.
    pub(crate) away: bool,
}

impl Poll {
    pub(crate) fn new() -> Self {
        Self { news: watch::Sender::new(News::default()), running: Mutex::new(false) }
    }

    /// Tells all viewers that something has changed.
    pub(crate) fn announce(&self) {
        self.news.send_modify(|news| news.version += 1);
    }

    /// Tells all viewers whether the database answers, if that is news. A database that is back may
    /// have changed.
    pub(crate) fn answers(&self, answers: bool) {
        self.news.send_if_modified(|news| {
            let is_new = news.away == answers;
            news.away = !answers;
            news.version += u64::from(is_new && answers);
            is_new
        });
    }

    /// Returns a viewer of the news. Starts the poll by `start` if it does not run.
    pub(crate) async fn subscribe(&self, start: impl FnOnce()) -> watch::Receiver<News> {
        let mut running = self.running.lock().await;
        let viewer = self.news.subscribe();
        if !*running {
            *running = true;
            start();
        }
        viewer
    }

    /// Returns whether no viewer is left. The poll that asks then ends.
    pub(crate) async fn ends(&self) -> bool {
        let mut running = self.running.lock().await;
        *running = self.news.receiver_count() > 0;
        !*running
    }
}
