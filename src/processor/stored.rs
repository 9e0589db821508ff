//! Settings of queues and schedules, which a processor stores when it starts.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::job::queue_settings::SettingsDocument;
use crate::job::schedule::CheckedSchedule;
use crate::liveness::context::Context;
use crate::liveness::supervised::supervised;
use crate::store::{Acting, WorkConnection, gave_up_waiting, in_short_tx};

/// Time between two tries to store them in the background.
const RETRY: Duration = Duration::from_secs(1);
/// How often a start tries to get a row that others use or change: each try waits for 0.1 s.
const TRIES: usize = 20;

/// Settings and schedules to store.
#[derive(Default)]
pub(crate) struct Stored {
    /// Each with the name of its queue.
    pub(crate) settings: Vec<(String, SettingsDocument)>,
    pub(crate) schedules: Vec<CheckedSchedule>,
}

impl Stored {
    pub(crate) fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.schedules.is_empty()
    }

    /// Stores all, each in a transaction of its own.
    pub(crate) async fn store(&self, context: &Context) -> Result<(), sqlx::Error> {
        if self.is_empty() {
            return Ok(());
        }
        let mut conn = WorkConnection::from(context.side.acquire().await?);
        // Schedules first: a worker's role may store these.
        let schedules = self.schedules.iter().map(Item::Schedule);
        for item in schedules.chain(self.settings.iter().map(Item::Settings)) {
            let mut tries = 1;
            loop {
                let stored = in_short_tx(&mut conn, async |conn| item.store(context, conn).await);
                match stored.await {
                    Err(error) if gave_up_waiting(&error) && tries < TRIES => tries += 1,
                    done => break done?,
                }
            }
        }
        conn.done();
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Item<'a> {
    Settings(&'a (String, SettingsDocument)),
    Schedule(&'a CheckedSchedule),
}

impl Item<'_> {
    async fn store(self, context: &Context, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        let (store, acting) = (&context.store, Acting::default());
        match self {
            Self::Settings((queue, settings)) => {
                // A worker's role may read them, and not write.
                if store.has_settings(&mut *conn, queue, settings).await? {
                    return Ok(());
                }
                store.configure_queue(conn, queue, settings, acting).await
            }
            Self::Schedule(schedule) => {
                let now = store.now(&mut *conn).await?;
                let next = schedule.times.after(now);
                store.set_schedule(conn, schedule, next, acting).await.map(drop)
            }
        }
    }
}

/// Stores all as soon as the schema fits.
pub(crate) fn spawn(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    stop: &CancellationToken,
    stored: Arc<Stored>,
) {
    let (context, stop) = (Arc::clone(context), stop.clone());
    tasks.spawn(async move {
        let storing = || async {
            if !context.pooler_state.has_transactions().await {
                return;
            }
            context.schema.opened().await;
            while let Err(error) = stored.store(&context).await {
                context.report(BackgroundError::Store(error));
                sleep(RETRY).await;
            }
        };
        tokio::select! {
            () = supervised(&context, "the storing of settings and schedules", &stop, storing) => {}
            () = stop.cancelled() => {}
        }
    });
}
