//! Schedules, paused, resumed, fired and removed.

use serde_json::Value;
use sqlx::PgConnection;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::change::Change;
use crate::job::effect::{Effect, Undo};

impl Operator {
    pub(super) async fn act_pause_schedule(
        &self,
        conn: &mut PgConnection,
        schedule: &str,
    ) -> Result<Effect, ControlError> {
        let was = self.client().schedule(&mut *conn, schedule).await?;
        self.pause_schedule(&mut *conn, schedule).await?;
        let sentence =
            format!("schedule {schedule:?} is paused: it makes no job until it is resumed");
        let schedule = schedule.to_owned();
        let mut effect = Effect::new(sentence);
        effect.undo = Some(match was.filter(|was| was.paused_at.is_some()) {
            Some(was) => {
                Undo { change: Change::PauseSchedule { schedule }, reason: was.pause_reason }
            }
            None => Undo { change: Change::ResumeSchedule { schedule }, reason: None },
        });
        Ok(effect)
    }

    pub(super) async fn act_resume_schedule(
        &self,
        conn: &mut PgConnection,
        schedule: &str,
    ) -> Result<Effect, ControlError> {
        let was = self.client().schedule(&mut *conn, schedule).await?;
        self.resume_schedule(&mut *conn, schedule).await?;
        let sentence = format!("schedule {schedule:?} goes on, and does not make up for the pause");
        let change = Change::PauseSchedule { schedule: schedule.to_owned() };
        let mut effect = Effect::new(sentence);
        effect.undo = Some(Undo { change, reason: was.and_then(|was| was.pause_reason) });
        Ok(effect)
    }

    pub(super) async fn act_fire_schedule(
        &self,
        conn: &mut PgConnection,
        schedule: &str,
    ) -> Result<Effect, ControlError> {
        let job = self.fire_schedule(&mut *conn, schedule).await?;
        let made = |what: &str| {
            format!("schedule {schedule:?} has made {what}; its times stay as they are")
        };
        let effect = Effect::new(made(&format!("job {job}"))).jobs(1).with("job", job);
        Ok(effect.in_preview(made("a job"), |result| _ = result.insert("job".into(), Value::Null)))
    }

    pub(super) async fn act_remove_schedule(
        &self,
        conn: &mut PgConnection,
        schedule: &str,
    ) -> Result<Effect, ControlError> {
        self.remove_schedule(&mut *conn, schedule).await?;
        Ok(Effect::new(format!("schedule {schedule:?} is removed; its jobs stay")))
    }
}
