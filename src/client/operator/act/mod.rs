//! Changes as values: previewed, and applied.

mod batches;
mod dead_letters;
mod doubts;
mod jobs;
mod lanes;
mod moves;
mod nodes;
mod purge;
mod schedules;
mod settings;

use sqlx::{Connection, PgConnection, PgTransaction};

use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::change::Change;
use crate::job::effect::Effect;
use crate::job::move_task::NewMoveTask;
use crate::store::BEGIN;
use crate::store::transaction::depth;

impl Operator {
    /// Makes a change, in a transaction of its own. In a transaction of the caller it is part of
    /// that, and takes effect when that commits; the transaction must be at READ COMMITTED. An
    /// error changes nothing.
    ///
    /// A purge commits step by step, and is refused in a transaction. An abort ends a session at
    /// once, which no rollback undoes.
    ///
    /// # Errors
    /// As the change's own method; [`ControlError::NoSuchMoveTask`];
    /// [`ControlError::MoveTaskEnded`]; [`ControlError::BatchEnded`].
    ///
    /// # Cancel safety
    /// A change that was dropped halfway is rolled back. For a purge see
    /// [`purge`](Self::purge).
    pub async fn apply(
        &self,
        conn: &mut PgConnection,
        change: &Change,
    ) -> Result<Effect, ControlError> {
        if let Change::Purge { .. } | Change::PurgeEverything { .. } = change {
            return self.act(conn, change).await;
        }
        let doubt = self.doubt(conn, change).await;
        let mut tx = begin(conn).await?;
        let effect = self.act(&mut tx, change).await?;
        if effect.jobs == Some(0) {
            // A move task with nothing to move, say, is not started.
            tx.rollback().await?;
        } else {
            tx.commit().await?;
        }
        Ok(effect.doubts(doubt))
    }

    /// Shows the effect of a change, and changes nothing: it makes the change and rolls it back.
    /// Until then it has the locks of the change. A purge and an abort are not made: the jobs of a
    /// purge are counted, and the job of an abort is looked at.
    ///
    /// The effect names no id of what the change would make, and has no undo.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub async fn preview(
        &self,
        conn: &mut PgConnection,
        change: &Change,
    ) -> Result<Effect, ControlError> {
        let doubt = self.doubt(conn, change).await;
        let mut tx = begin(conn).await?;
        let effect = match change {
            Change::Abort { job } => self.preview_abort(&mut tx, *job).await?,
            Change::Purge { queue, group } => {
                self.preview_purge(&mut tx, queue, group.as_deref()).await?
            }
            Change::PurgeEverything { queue } => self.preview_everything(&mut tx, queue).await?,
            _ => self.act(&mut tx, change).await?,
        };
        tx.rollback().await?;
        Ok(effect.doubts(doubt).previewed())
    }

    /// Returns a doubt about the queue that a change names. It is advice: a database that is too
    /// busy to give it still makes the change.
    async fn doubt(&self, conn: &mut PgConnection, change: &Change) -> Option<String> {
        let (Change::Pause { queue, .. }
        | Change::SetKeyLimit { queue, .. }
        | Change::SetGroupPolicy { queue, .. }
        | Change::MoveJobs { to: queue, .. }
        | Change::StartMoveTask(NewMoveTask { to_queue: Some(queue), .. })) = change
        else {
            return None;
        };
        let read = async {
            let mut tx = begin(conn).await?;
            let doubt = self.client().doubt_about(&mut tx, queue).await?;
            tx.rollback().await?;
            Ok::<_, sqlx::Error>(doubt)
        };
        read.await.unwrap_or_default()
    }

    async fn act(&self, conn: &mut PgConnection, change: &Change) -> Result<Effect, ControlError> {
        match change {
            Change::Cancel { job } => self.act_cancel(conn, *job).await,
            Change::Retry { job } => self.act_retry(conn, *job).await,
            Change::Skip { job } => self.act_skip(conn, *job).await,
            Change::RunNow { job } => self.act_run_now(conn, *job).await,
            Change::Abort { job } => self.act_abort(conn, *job).await,
            Change::MoveJobs { ids, to } => self.act_move(conn, ids, to).await,
            Change::Pause { queue, group, until } => {
                self.act_pause(conn, queue, group.as_deref(), *until).await
            }
            Change::Resume { queue, group } => self.act_resume(conn, queue, group.as_deref()).await,
            Change::Unhalt { queue, group } => self.act_unhalt(conn, queue, group).await,
            Change::Park { queue, group } => self.act_park(conn, queue, group).await,
            Change::Purge { queue, group } => self.act_purge(conn, queue, group.as_deref()).await,
            Change::PurgeEverything { queue } => self.act_purge_everything(conn, queue).await,
            Change::Redrive { queue, limit } => self.act_redrive(conn, queue, *limit).await,
            Change::RedriveJobs { ids } => self.act_redrive_jobs(conn, ids).await,
            Change::DiscardJobs { ids } => self.act_discard_jobs(conn, ids).await,
            Change::RedriveParked { queue, group, job } => {
                self.act_redrive_parked(conn, queue, group, *job).await
            }
            Change::DiscardParked { queue, group, job } => {
                self.act_discard_parked(conn, queue, group, *job).await
            }
            Change::StartMoveTask(task) => self.act_start_move_task(conn, task).await,
            Change::CancelMoveTask { task } => self.act_cancel_move_task(conn, *task).await,
            Change::ReleaseNode { node } => self.act_release_node(conn, node).await,
            Change::ConfigureQueue { queue, settings } => {
                self.act_configure(conn, queue, settings).await
            }
            Change::SetKeyLimit { queue, key, limit } => {
                self.act_key_limit(conn, queue, key, *limit).await
            }
            Change::SetGroupPolicy { queue, group, policy } => {
                self.act_group_policy(conn, queue, group, *policy).await
            }
            Change::PauseSchedule { schedule } => self.act_pause_schedule(conn, schedule).await,
            Change::ResumeSchedule { schedule } => self.act_resume_schedule(conn, schedule).await,
            Change::FireSchedule { schedule } => self.act_fire_schedule(conn, schedule).await,
            Change::RemoveSchedule { schedule } => self.act_remove_schedule(conn, schedule).await,
            Change::AbandonBatch { batch } => self.act_abandon_batch(conn, *batch).await,
        }
    }
}

/// Begins a transaction, or in one a savepoint.
async fn begin(conn: &mut PgConnection) -> Result<PgTransaction<'_>, sqlx::Error> {
    if depth(conn) > 0 { conn.begin().await } else { conn.begin_with(BEGIN).await }
}
