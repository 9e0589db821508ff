//! The schedules of a processor, stored when it starts.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::job::schedule::CheckedSchedule;
use crate::liveness::context::Context;
use crate::liveness::supervised::supervised;
use crate::store::{Acting, WorkConnection, gave_up_waiting, in_short_tx};

/// Time between two tries to store them in the background.
const RETRY: Duration = Duration::from_secs(1);
/// How often a start tries to get the row of a schedule that others fire or change: each try waits
/// for 0.1 s.
const TRIES: usize = 20;

/// Stores the schedules, each in a transaction of its own.
pub(crate) async fn store(
    context: &Context,
    schedules: &[CheckedSchedule],
) -> Result<(), sqlx::Error> {
    if schedules.is_empty() {
        return Ok(());
    }
    let mut conn = WorkConnection::from(context.side.acquire().await?);
    for schedule in schedules {
        let mut tries = 1;
        loop {
            let set = in_short_tx(&mut conn, async |conn| {
                let store = &context.store;
                let now = store.now(&mut *conn).await?;
                let next = schedule.times.after(now);
                store.set_schedule(conn, schedule, next, Acting::default()).await
            });
            match set.await {
                Err(error) if gave_up_waiting(&error) && tries < TRIES => tries += 1,
                done => break done.map(drop)?,
            }
        }
    }
    conn.done();
    Ok(())
}

/// Stores the schedules as soon as the schema fits.
pub(crate) fn spawn(
    tasks: &mut JoinSet<()>,
    context: &Arc<Context>,
    stop: &CancellationToken,
    schedules: Arc<[CheckedSchedule]>,
) {
    let (context, stop) = (Arc::clone(context), stop.clone());
    tasks.spawn(async move {
        let storing = || async {
            if !context.pooler_state.has_transactions().await {
                return;
            }
            context.schema.opened().await;
            while let Err(error) = store(&context, &schedules).await {
                context.report(BackgroundError::StoreSchedules(error));
                sleep(RETRY).await;
            }
        };
        tokio::select! {
            () = supervised(&context, "the storing of schedules", &stop, storing) => {}
            () = stop.cancelled() => {}
        }
    });
}
