//! Purges, and what they would do. A purge commits step by step, so its preview counts.

use sqlx::PgConnection;

use crate::client::operator::operator::Operator;
use crate::client::operator::purge::Purged;
use crate::error::ControlError;
use crate::job::effect::Effect;
use crate::job::explanation::BoundedCount;
use crate::job::name;
use crate::job::overview::JobCounts;
use crate::job::words::Lane;

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
        let sentence = format!("queue {queue:?}: {purged}{asked}");
        Ok(done(sentence, purged).with("everything", true))
    }

    pub(super) async fn preview_purge(
        &self,
        conn: &mut PgConnection,
        queue: &str,
        group: Option<&str>,
    ) -> Result<Effect, ControlError> {
        name::check_lane(queue, group)?;
        let lane = Lane { queue, group };
        let waiting: BoundedCount = if let Some(group) = group {
            let overview = self.client().group(&mut *conn, queue, group).await?;
            overview.map(|overview| overview.depth).unwrap_or_default()
        } else {
            let jobs = self.jobs_of(conn, queue).await?;
            jobs.into_iter().flat_map(|jobs| [jobs.queued, jobs.delayed]).sum()
        };
        let jobs = waiting.count;
        if jobs == 0 {
            return Ok(Effect::new(format!("{lane} has no queued job")).jobs(0));
        }
        let (are, jobs_are) = if jobs == 1 { ("is", "job of") } else { ("are", "jobs of") };
        let sentence = format!(
            "{waiting} unfinished {jobs_are} {lane} {are} cancelled; what runs by then and what is \
             parked is left alone; this cannot be undone"
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
        let Some(jobs) = self.jobs_of(conn, queue).await? else {
            let sentence = format!("no job or setting names queue {queue:?}");
            return Ok(Effect::new(sentence).jobs(0));
        };
        let all: BoundedCount = [jobs.queued, jobs.delayed, jobs.started].into_iter().sum();
        let (noun, end) = if all.count == 1 { ("job", "ends") } else { ("jobs", "end") };
        let sentence = format!(
            "{all} {noun} of queue {queue:?} {end} as cancelled ({} queued, {} delayed, {} in flight): \
             receipts are stale, and processors are asked to cancel theirs; its deduplication ids \
             are forgotten; parked jobs are left alone; this cannot be undone",
            jobs.queued, jobs.delayed, jobs.started
        );
        let mut effect = Effect::new(sentence).with("jobs", all.count).with("everything", true);
        effect.jobs = Some(all.count).filter(|jobs| *jobs > 0);
        Ok(effect)
    }

    /// Returns the jobs of a queue by state, bounded as lists have them; `None`: nothing names it.
    async fn jobs_of(
        &self,
        conn: &mut PgConnection,
        queue: &str,
    ) -> Result<Option<JobCounts>, ControlError> {
        let queues = self.client().queues(&mut *conn).await?;
        let found = queues.into_iter().find(|overview| overview.queue == queue);
        Ok(found.map(|overview| overview.jobs))
    }
}

/// A purge that cancelled nothing may have met locked or running jobs, and has forgotten ids.
fn done(sentence: String, purged: Purged) -> Effect {
    let mut effect = Effect::new(sentence).with("jobs", purged.cancelled).with_all(&purged);
    effect.jobs = Some(purged.cancelled).filter(|jobs| *jobs > 0);
    effect
}
