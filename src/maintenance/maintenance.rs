//! The tick of maintenance, by one process at a time: requests, halts, move tasks, schedules,
//! batches, flags, and in each round retention and the sweep.

use std::sync::Arc;
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::error::BackgroundError;
use crate::job::queue_options::QueueOptions;
use crate::liveness::shared_poll::{LATE, PollTarget, SharedPoll};
use crate::liveness::side_pool::SidePool;
use crate::maintenance::batches::{end_batches, tend_batches};
use crate::maintenance::halts::end_halts;
use crate::maintenance::move_tasks::run_move_tasks;
use crate::maintenance::queues::maintain_queues;
use crate::maintenance::requests::settle_requests;
use crate::maintenance::retention::{forget_expired, forget_pauses, forget_progress};
use crate::maintenance::schedules::{Fired, fire_schedules};
use crate::maintenance::silent::Silent;
use crate::maintenance::tidy::tidy;
use crate::maintenance::unserved::Unserved;
use crate::store::{QueueRound, Store, WorkConnection};

/// Time between two polls for requests.
const TICK: Duration = Duration::from_secs(1);
/// Bounds a tick: one that takes longer has lost its server.
const LIMIT: Duration = Duration::from_secs(30);

/// The effect of a tick.
#[derive(Debug, Default)]
pub(crate) struct Tick {
    /// The effects of the round on the queues.
    pub(crate) rounds: Vec<QueueRound>,
    pub(crate) fired: Fired,
    /// The batches whose follow-ups the database refused, and why.
    pub(crate) refused: Vec<(i64, String)>,
}

/// Where the next round goes on.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    /// Settings of groups: the last queue and group.
    settings: (String, String),
    /// Progress that is left behind: the last job looked at.
    progress: i64,
    /// Batches: the last that was noted, and the last looked at that has ended.
    batches: (i64, i64),
    silent: Silent,
}

pub(crate) struct Maintenance<'a> {
    pub(crate) store: &'a Store,
    pub(crate) queues: Vec<QueueOptions>,
    /// Time between two rounds of retention and sweep.
    pub(crate) interval: Duration,
}

impl Maintenance<'_> {
    /// Runs ticks until `stop`: every second, and at a `wake`.
    pub(crate) async fn run(
        &self,
        side: &SidePool,
        shared_poll: &Arc<SharedPoll>,
        wake: &Notify,
        stop: &CancellationToken,
        report: impl Fn(BackgroundError),
    ) {
        let mut round_at = Instant::now() + self.interval.mul_f64(fastrand::f64());
        let (mut cursors, mut unserved) = (Cursors::default(), Unserved::default());
        loop {
            let round = Instant::now() >= round_at;
            if round {
                round_at = Instant::now() + self.interval;
            }
            let tick = async {
                let tick = self.tick(side.acquire().await?, round, &mut cursors).await?;
                if round {
                    let mut conn = WorkConnection::from(side.acquire().await?);
                    unserved.look(self.store, &mut conn, &self.queues, &report).await?;
                    conn.done();
                }
                Ok::<_, sqlx::Error>(tick)
            };
            let mut schedule_at = None;
            match timeout(LIMIT, tick).await {
                Ok(Ok(Tick { rounds, fired, refused })) => {
                    for (schedule, source) in fired.refused {
                        report(BackgroundError::Schedule { schedule, source });
                    }
                    for (batch, reason) in refused {
                        report(BackgroundError::Batch { batch, reason });
                    }
                    schedule_at = fired.next_in.and_then(|next| Instant::now().checked_add(next));
                    for QueueRound { queue, repaired, failed, .. } in rounds {
                        if let Some(reason) = failed {
                            let reason = format!("queue {queue:?}: {reason}");
                            report(BackgroundError::Maintenance(sqlx::Error::Protocol(reason)));
                        } else if repaired > 0 {
                            report(BackgroundError::Stranded { queue, repaired });
                        }
                    }
                }
                Ok(Err(error)) => report(BackgroundError::Maintenance(error)),
                Err(_) => {
                    report(BackgroundError::TooSlow { activity: "maintenance", limit: LIMIT });
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wait(round_at, shared_poll) => {}
                () = until(schedule_at) => {}
                () = wake.notified() => {}
            }
        }
    }

    /// Waits until the next tick, or until the shared poll finds something to do.
    async fn wait(&self, round_at: Instant, shared_poll: &Arc<SharedPoll>) {
        let now = Instant::now();
        let Some(poll_handle) = shared_poll.register(PollTarget::Maintenance, now, TICK, LATE)
        else {
            return sleep(TICK.min(self.interval)).await;
        };
        loop {
            let until = poll_handle.poll_at().min(round_at);
            if until <= Instant::now() {
                return;
            }
            tokio::select! {
                () = poll_handle.changed() => {}
                () = sleep_until(until) => {}
            }
        }
    }

    /// Handles requests, halts, move tasks, schedules, batches and flags; with `round` also runs a
    /// round of retention and sweep.
    pub(crate) async fn tick(
        &self,
        conn: PoolConnection<Postgres>,
        round: bool,
        cursors: &mut Cursors,
    ) -> Result<Tick, sqlx::Error> {
        let store = self.store;
        let Tick { mut rounds, mut fired, mut refused } = Tick::default();
        let mut conn = WorkConnection::from(conn);
        let mut leads = true;
        if store.awaits_maintenance(&mut conn).await? {
            leads = settle_requests(store, &mut conn).await?;
            if leads {
                end_halts(store, &mut conn).await?;
            }
            fired = fire_schedules(store, &mut conn, None).await?;
            refused = end_batches(store, &mut conn).await?.refused;
            run_move_tasks(store, &mut conn).await?;
            tidy(store, &mut conn).await?;
        }
        if leads && round {
            forget_expired(store, &mut conn).await?;
            forget_pauses(store, &mut conn, &mut cursors.settings).await?;
            rounds = maintain_queues(store, &mut conn, &self.queues).await?;
            forget_progress(store, &mut conn, &mut cursors.progress).await?;
            tend_batches(store, &mut conn, &mut cursors.batches).await?;
            // Last: a session that does not end keeps nothing else from its turn.
            cursors.silent.abort_runs(store, &mut conn).await?;
        }
        conn.done();
        Ok(Tick { rounds, fired, refused })
    }
}

/// Waits until a time; for ever without one.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
