//! Schedules: set, paused, resumed, fired by hand, removed.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor};

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::schedule::Schedule;

impl Operator {
    /// Makes a schedule, or changes the one of its name. If its timing is another one it begins
    /// from now, and makes up for nothing; else its due times go on as they were. A paused schedule
    /// stays paused. A processor that has a schedule of this name in its code sets it back when it
    /// starts.
    ///
    /// Returns when it is due next; `None`: never.
    ///
    /// # Errors
    /// [`ControlError::Schedule`]; [`ControlError::Database`].
    pub async fn set_schedule(
        &self,
        conn: &mut PgConnection,
        schedule: Schedule,
    ) -> Result<Option<DateTime<Utc>>, ControlError> {
        let schedule = schedule.check(self.client().enqueue.data_limit)?;
        let now = self.store().now(&mut *conn).await?;
        let next = schedule.times.after(now);
        Ok(self.store().set_schedule(conn, &schedule, next, self.acting()?).await?)
    }

    /// Pauses a schedule: no due time makes a job until
    /// [`resume_schedule`](Self::resume_schedule). A schedule that is paused stays so, with the new
    /// reason. Waits for a process that fires it.
    ///
    /// # Errors
    /// [`ControlError::NoSuchSchedule`]; [`ControlError::Database`].
    pub async fn pause_schedule(
        &self,
        executor: impl PgExecutor<'_>,
        schedule: &str,
    ) -> Result<(), ControlError> {
        let paused = self.store().pause_schedule(executor, schedule, self.acting()?).await?;
        found(paused, schedule)
    }

    /// Ends the pause of a schedule. Due times that passed during the pause make no job, whatever
    /// its [`Missed`](crate::Missed) says; [`fire_schedule`](Self::fire_schedule) makes one.
    ///
    /// # Errors
    /// [`ControlError::ScheduleNotPaused`], also if there is no such schedule;
    /// [`ControlError::Database`].
    pub async fn resume_schedule(
        &self,
        executor: impl PgExecutor<'_>,
        schedule: &str,
    ) -> Result<(), ControlError> {
        if self.store().resume_schedule(executor, schedule, self.acting()?).await? {
            return Ok(());
        }
        Err(ControlError::ScheduleNotPaused { schedule: schedule.to_owned() })
    }

    /// Fires a schedule once, now, also if it is paused or its last job still runs. Its due times
    /// stay as they are. The time of the call is the job's
    /// [`scheduled_for`](crate::ActiveJob::scheduled_for). Returns the job's id.
    ///
    /// # Errors
    /// [`ControlError::NoSuchSchedule`]; [`ControlError::Database`].
    pub async fn fire_schedule(
        &self,
        executor: impl PgExecutor<'_>,
        schedule: &str,
    ) -> Result<i64, ControlError> {
        let fired = self.store().fire_schedule(executor, schedule, self.acting()?).await?;
        fired.ok_or_else(|| ControlError::NoSuchSchedule { schedule: schedule.to_owned() })
    }

    /// Removes a schedule. Its jobs stay. A processor that has it in its code stores it again when
    /// it starts.
    ///
    /// # Errors
    /// [`ControlError::NoSuchSchedule`]; [`ControlError::Database`].
    pub async fn remove_schedule(
        &self,
        executor: impl PgExecutor<'_>,
        schedule: &str,
    ) -> Result<(), ControlError> {
        let removed = self.store().remove_schedule(executor, schedule, self.acting()?).await?;
        found(removed, schedule)
    }
}

fn found(found: bool, schedule: &str) -> Result<(), ControlError> {
    let none = || ControlError::NoSuchSchedule { schedule: schedule.to_owned() };
    found.then_some(()).ok_or_else(none)
}
