//! Purges, and what they would do. A purge commits step by step, so its preview counts.

use sqlx::PgConnection;

use crate::client::operator::operator::Operator;
use crate::client::operator::purge::Purged;
use crate::error::ControlError;
use crate::job::effect::Effect;
use crate::job::name;
use crate::job::words::{Lane, counted};

impl Operator {
    pub(super) async fn act_purge(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
    ) -> Result<Effect, ControlError> {
        let purged = self.purge_some(conn, queue, group, false).await?;
        Ok(done(format!("{}: {purged}", Lane { queue, group }), purged))
    }

    pub(super) async fn act_purge_everything(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<Effect, ControlError> {
        let purged = self.purge_some(conn, queue, None, true).await?;
        let asked = match purged.running {
            0 => "",
            _ => "; processors are asked to cancel what runs on",
        };
        let mut effect = done(format!("queue {queue:?}: {purged}{asked}"), purged);
        // Deduplication ids are forgotten, job or not.
        effect.jobs = effect.jobs.filter(|jobs| *jobs > 0);
        Ok(effect)
    }

    pub(super) async fn preview_purge(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
    ) -> Result<Effect, ControlError> {
        name::check_lane(queue, group)?;
        let lane = Lane { queue, group };
        let (jobs, shown) = if let Some(group) = group {
            let overview = self.client().group(&mut *conn, queue, group).await?;
            let depth = overview.map(|overview| overview.depth).unwrap_or_default();
            (depth.count, depth.to_string())
        } else {
            let counts = self.client().counts(&mut *conn, queue).await?;
            let jobs = counts.queued + counts.delayed;
            (jobs, jobs.to_string())
        };
        if jobs == 0 {
            return Ok(Effect::new(format!("{lane} has no queued job")).jobs(0));
        }
        let (are, jobs_are) = if jobs == 1 { ("is", "job of") } else { ("are", "jobs of") };
        let sentence = format!(
            "{shown} unfinished {jobs_are} {lane} {are} cancelled, unless they run by then; running \
             and parked ones are left alone, and this cannot be undone"
        );
        Ok(Effect::new(sentence).jobs(jobs).with("jobs", jobs))
    }

    /// A purge of everything has something to do without a job too: deduplication ids, which
    /// nothing counts.
    pub(super) async fn preview_everything(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<Effect, ControlError> {
        name::check_queue(queue)?;
        let counts = self.client().counts(&mut *conn, queue).await?;
        let jobs = counts.queued + counts.delayed + counts.started;
        if jobs == 0 && self.client().doubt_about(conn, queue).await?.is_some() {
            let sentence = format!("no job or setting names queue {queue:?}");
            return Ok(Effect::new(sentence).jobs(0));
        }
        let sentence = format!(
            "{} of queue {queue:?} end as cancelled ({} queued, {} delayed, {} in flight): receipts \
             are stale, and processors are asked to cancel theirs; its deduplication ids are \
             forgotten; parked jobs are left alone, and this cannot be undone",
            counted(jobs, "job"),
            counts.queued,
            counts.delayed,
            counts.started
        );
        let mut effect = Effect::new(sentence).with("jobs", jobs);
        effect.jobs = Some(jobs).filter(|jobs| *jobs > 0);
        Ok(effect)
    }
}

fn done(sentence: String, purged: Purged) -> Effect {
    Effect::new(sentence).jobs(purged.cancelled).with("jobs", purged.cancelled).with_all(&purged)
}
