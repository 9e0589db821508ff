//! Changes of a group, and the pause of a whole queue.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::change::Change;
use crate::job::effect::{Effect, Undo};
use crate::job::name;
use crate::job::until::Until;
use crate::job::words::{Lane, clock_time, counted, counted_are};

impl Operator {
    pub(super) async fn act_pause(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
        until: Option<DateTime<Utc>>,
    ) -> Result<Effect, ControlError> {
        let stood = self.pause_of(conn, queue, group).await?;
        self.start_pause(&mut *conn, queue, group, until.map(Until::At)).await?;
        let until = match until {
            Some(until) => format!("until {} or until it is resumed", clock_time(&until)),
            None => String::from("until it is resumed"),
        };
        let lane = Lane { queue, group };
        let sentence =
            format!("{lane} is paused: jobs that run go on, and no other begins, {until}");
        let (queue, group) = (queue.to_owned(), group.map(str::to_owned));
        let mut effect = Effect::new(sentence);
        // A pause that stood has another reason and another end now.
        effect.undo = Some(match stood {
            Some((reason, until)) => Undo { change: Change::Pause { queue, group, until }, reason },
            None => Undo { change: Change::Resume { queue, group }, reason: None },
        });
        Ok(effect)
    }

    /// Returns the reason and the end of the pause, if there is one.
    async fn pause_of(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
    ) -> Result<Option<(Option<String>, Option<DateTime<Utc>>)>, ControlError> {
        name::check_lane(queue, group)?;
        Ok(if let Some(group) = group {
            let was = self.client().group(&mut *conn, queue, group).await?;
            was.filter(|was| was.paused_at.is_some())
                .map(|was| (was.pause_reason, was.paused_until))
        } else {
            let was = self.client().paused_queue(&mut *conn, queue).await?;
            was.map(|was| (was.reason, was.until))
        })
    }

    pub(super) async fn act_resume(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
    ) -> Result<Effect, ControlError> {
        // Read before the resume, which removes the reason and the end of the pause.
        let (reason, until) = self.pause_of(conn, queue, group).await?.unwrap_or_default();
        match group {
            Some(group) => self.resume_group(&mut *conn, queue, group).await?,
            None => self.resume_queue(&mut *conn, queue).await?,
        }
        let mut effect = Effect::new(format!("{} goes on", Lane { queue, group }));
        let (queue, group) = (queue.to_owned(), group.map(str::to_owned));
        effect.undo = Some(Undo { change: Change::Pause { queue, group, until }, reason });
        Ok(effect)
    }

    pub(super) async fn act_unhalt(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
    ) -> Result<Effect, ControlError> {
        self.unhalt_group(&mut *conn, queue, group).await?;
        Ok(Effect::new(format!(
            "{} goes on with its next job; the one that halted it stays failed",
            Lane { queue, group: Some(group) }
        )))
    }

    pub(super) async fn act_park(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
    ) -> Result<Effect, ControlError> {
        let depth = self.client().group(&mut *conn, queue, group).await?.map(|group| group.depth);
        let depth = depth.map_or(1, |depth| depth.count);
        let job = self.park_group(&mut *conn, queue, group).await?;
        let sentence = format!(
            "job {job} of {} is a dead letter from now on, and those that wait behind it step \
             aside with it, until they are redriven or discarded; later ones run ({} in all)",
            Lane { queue, group: Some(group) },
            counted(depth, "unfinished job")
        );
        Ok(Effect::new(sentence).jobs(depth).with("job", job))
    }

    pub(super) async fn act_redrive_parked(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
        job: Option<i64>,
    ) -> Result<Effect, ControlError> {
        let redriven = self.redrive_parked(&mut *conn, queue, group, job).await?;
        let sentence = format!("{}: {redriven}", Lane { queue, group: Some(group) });
        Ok(Effect::new(sentence).jobs(redriven.jobs).with_all(&redriven))
    }

    pub(super) async fn act_discard_parked(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: &str,
        job: Option<i64>,
    ) -> Result<Effect, ControlError> {
        let jobs = self.discard_parked(&mut *conn, queue, group, job).await?;
        let sentence = format!(
            "{} given up of {}: {} as cancelled; the failed one stays failed",
            counted_are(jobs, "parked job"),
            Lane { queue, group: Some(group) },
            if jobs == 1 { "it ends" } else { "they end" }
        );
        Ok(Effect::new(sentence).jobs(jobs).with("jobs", jobs))
    }
}
