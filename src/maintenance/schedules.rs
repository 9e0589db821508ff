//! Schedules that are due make their jobs.
//!
//! Any number of processes may do so at once: each due time is fired by the one that finds the
//! schedule's row as it was read. Nothing is kept in memory between two ticks.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use sqlx::error::DatabaseError;
use tokio::time::Instant;

use crate::job::error::ScheduleError;
use crate::metrics::schedules::record_schedule_jobs;
use crate::store::{Firing, Store, begin_short, gave_up_waiting, in_short_tx};

/// How many schedules are read at once, and how many are fired in one transaction.
const READ: usize = 1000;
const FIRED: usize = 100;
/// How many schedules a line in the log names.
const NAMED: usize = 10;
/// How long the first try waits for a lock: all commits that notify wait for each other, and a row
/// that others fire is locked by them for a while.
const PATIENT: &str = "set local lock_timeout = '1s'";
/// Bounds what one tick reads in order, and how long it fires them.
const READS: usize = 20;
const TIME: Duration = Duration::from_secs(5);

/// The effect of the schedules that were due.
#[derive(Debug, Default)]
pub(crate) struct Fired {
    /// The number of jobs that were made.
    pub(crate) jobs: u64,
    /// The schedules that made them, up to ten.
    names: Vec<String>,
    /// How many schedules are left to the next tick, for they waited for a lock.
    pub(crate) waiting: usize,
    /// The schedules that cannot be fired: their times cannot be read, or the database refused.
    pub(crate) refused: Vec<(String, sqlx::Error)>,
    /// In what time the next schedule is due.
    pub(crate) next_in: Option<Duration>,
}

/// Fires the schedules that are due: at `now`, or by the database's clock.
///
/// The schedules that the database refuses stay due, and so first in line. If a tick does not get
/// through all that are due, it fires some of the rest at random, so that each has its turn.
pub(crate) async fn fire_schedules(
    store: &Store,
    conn: &mut PgConnection,
    now: Option<DateTime<Utc>>,
) -> Result<Fired, sqlx::Error> {
    let mut fired = Fired::default();
    let now = match now {
        Some(now) => now,
        None => in_short_tx(conn, async |conn| store.now(conn).await).await?,
    };
    let mut after = (DateTime::<Utc>::UNIX_EPOCH, String::new());
    let (mut reads, mut at_random, mut until) = (0, false, Instant::now() + TIME);
    loop {
        reads += 1;
        let read = async |conn: &mut PgConnection| {
            store.due_schedules(conn, now, (after.0, &after.1), limit(), at_random).await
        };
        let due = in_short_tx(conn, read).await?;
        let Some(last) = due.last() else { break };
        let (full, last) = (due.len() == READ, (last.next_fire, last.name.clone()));
        let mut firings = Vec::new();
        for due in due {
            // One of a kind that this version does not know is left to the one that stored it.
            let Some((timing, missed)) = due.timing else { continue };
            let times = match timing.times(&due.name) {
                Ok(times) => times,
                // A process with the feature `cron` fires it.
                Err(ScheduleError::NoCron { .. }) => continue,
                Err(mistake) => {
                    let mistake = sqlx::Error::Decode(Box::new(mistake));
                    fired.refused.push((due.name, mistake));
                    continue;
                }
            };
            let plan = times.plan(missed, due.next_fire, due.counts_from, now);
            let (seen, since) = (due.next_fire, due.counts_from);
            firings.push(Firing { name: due.name, seen, since, due: plan.due, next: plan.next });
        }
        for firings in firings.chunks(FIRED) {
            fire(store, conn, firings, until, true, &mut fired).await?;
        }
        let in_time = Instant::now() < until;
        if at_random || in_time && !full {
            break;
        }
        if in_time {
            after = last;
        }
        if !in_time || reads == READS {
            (at_random, until) = (true, Instant::now() + TIME);
        }
    }
    let next = async |conn: &mut PgConnection| store.schedule_due_in(conn, now).await;
    let next_in = in_short_tx(conn, next).await?;
    fired.next_in = next_in.map(|s| Duration::try_from_secs_f64(s).unwrap_or(Duration::ZERO));
    if fired.jobs > 0 {
        record_schedule_jobs(fired.jobs);
        let Fired { jobs, names, .. } = &fired;
        tracing::info!(jobs, schedules = names.join(", "), "schedules made jobs");
    }
    Ok(fired)
}

fn limit() -> i64 {
    i64::try_from(READ).unwrap_or(i64::MAX)
}

/// Fires some schedules in one transaction, unless it is `until` already; each in a transaction of
/// its own if the database refuses that. One whose row another process has, or whose job waits for
/// a lock, is left to the next tick. With `patient` it waits longer.
async fn fire(
    store: &Store,
    conn: &mut PgConnection,
    firings: &[Firing],
    until: Instant,
    patient: bool,
    fired: &mut Fired,
) -> Result<(), sqlx::Error> {
    if Instant::now() >= until {
        return Ok(());
    }
    match fire_together(store, conn, firings, patient).await? {
        Ok(made) => {
            for (schedule, jobs) in made.into_iter().filter(|(_, jobs)| *jobs > 0) {
                fired.jobs += jobs;
                if fired.names.len() < NAMED {
                    fired.names.push(schedule);
                }
            }
        }
        Err(error) => match firings {
            [_] if gave_up_waiting(&error) => fired.waiting += 1,
            [one] => fired.refused.push((one.name.clone(), error)),
            several => {
                for one in several {
                    let one = std::slice::from_ref(one);
                    Box::pin(fire(store, conn, one, until, false, fired)).await?;
                }
            }
        },
    }
    Ok(())
}

/// Returns how many jobs each has made, or why the database refused: then nothing was done, and the
/// connection is as it was.
async fn fire_together(
    store: &Store,
    conn: &mut PgConnection,
    firings: &[Firing],
    patient: bool,
) -> Result<Result<Vec<(String, u64)>, sqlx::Error>, sqlx::Error> {
    let mut tx = begin_short(conn).await?;
    let fired = async {
        if patient {
            sqlx::raw_sql(PATIENT).execute(&mut *tx).await?;
        }
        store.fire_due(&mut *tx, firings).await
    };
    let refused = match fired.await {
        Ok(made) => match tx.commit().await {
            Ok(()) => return Ok(Ok(made)),
            Err(error) => error,
        },
        Err(error) if is_of_statement(&error) => {
            tx.rollback().await?;
            error
        }
        Err(error) => error,
    };
    if is_of_statement(&refused) { Ok(Err(refused)) } else { Err(refused) }
}

/// Returns whether the statement failed, and the session goes on.
fn is_of_statement(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| !code.starts_with("57P") && !code.starts_with("08"))
}
