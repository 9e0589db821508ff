//! Moves: of jobs by their ids, and by a task.

use serde_json::Value;
use sqlx::PgConnection;

use crate::client::operator::move_jobs::Moved;
use crate::client::operator::operator::Operator;
use crate::error::ControlError;
use crate::job::change::Change;
use crate::job::effect::Effect;
use crate::job::move_task::{MoveTask, NewMoveTask};
use crate::job::words::{Lane, counted};

impl Operator {
    pub(super) async fn act_move(
        &self,
        conn: &mut PgConnection,
        ids: &[i64],
        to: &str,
    ) -> Result<Effect, ControlError> {
        // Read before the move, which may end a halt.
        let stops = self.client().stops_left(conn, ids, to).await?;
        let moved = self.move_jobs(&mut *conn, ids, to).await?;
        let count = u64::try_from(moved.jobs.len()).unwrap_or(u64::MAX);
        if count == 0 {
            return Ok(Effect::new(nothing_moved(to, &moved)).jobs(0));
        }
        let told = format!("queue {to:?}: {moved}");
        let sentence = match &*moved.jobs {
            [one] => format!("{told}; its id is {} now", one.new_job),
            _ => told.clone(),
        };
        let effect = Effect::new(sentence).jobs(count).with_all(&moved);
        let effect = effect.doubts(stops);
        Ok(effect.in_preview(told, |result| {
            let jobs = result.get_mut("jobs").and_then(Value::as_array_mut);
            jobs.into_iter().flatten().for_each(|moved| moved["new_job"] = Value::Null);
        }))
    }

    pub(super) async fn act_start_move_task(
        &self,
        conn: &mut PgConnection,
        task: &NewMoveTask,
    ) -> Result<Effect, ControlError> {
        let id = self.start_move_task(&mut *conn, task).await?;
        let started = self.move_task(conn, id).await?;
        if started.to_move.count == 0 {
            return Ok(Effect::new(nothing_waits(&started)).jobs(0));
        }
        let processors = self.client().processors(&mut *conn).await?;
        let told = format!("{started}; a cancel ends the task, and what has moved stays moved");
        let mut effect = Effect::new(format!("task {id}: {told}"))
            .jobs(started.to_move.count)
            .with_all(&started)
            .undo(Change::CancelMoveTask { task: id })
            .in_preview(told, |result| _ = result.insert("id".into(), Value::Null));
        if !processors.iter().any(|processor| processor.alive) {
            effect.advice = Some(String::from(
                "no processor lives: a server for SQS clients carries it on, or `seriatim move-task run`",
            ));
        }
        Ok(effect)
    }

    pub(super) async fn act_cancel_move_task(
        &self,
        conn: &mut PgConnection,
        task: i64,
    ) -> Result<Effect, ControlError> {
        let ended = || ControlError::MoveTaskEnded { task };
        let was = self.move_task(conn, task).await?;
        let moved = self.cancel_move_task(&mut *conn, task).await?.ok_or_else(ended)?;
        let rest = |limit: u32| limit.saturating_sub(u32::try_from(moved).unwrap_or(u32::MAX));
        let MoveTask { from_queue, to_queue, group, limit, per_second, .. } = was;
        let limit = limit.map(rest);
        let again = NewMoveTask { from_queue, to_queue, group, limit, per_second };
        let sentence = format!(
            "move task {task} ends; {} moved and stay where they are, the others stay in their queue",
            counted(moved, "job")
        );
        Ok(Effect::new(sentence).with("moved", moved).undo(Change::StartMoveTask(again)))
    }

    async fn move_task(
        &self,
        conn: &mut PgConnection,
        task: i64,
    ) -> Result<MoveTask, ControlError> {
        let found = self.store().move_task(&mut *conn, task).await?;
        found.ok_or(ControlError::NoSuchMoveTask { task })
    }
}

fn nothing_waits(task: &MoveTask) -> String {
    let from = Lane { queue: &task.from_queue, group: task.group.as_deref() };
    match task.to_queue {
        Some(_) => format!("nothing waits in {from}"),
        None => format!(
            "no dead letter of another queue waits in {from}; name a queue to move what waits"
        ),
    }
}

fn nothing_moved(to: &str, moved: &Moved) -> String {
    match moved.duplicates {
        0 => format!("no such job is queued, free, and not in queue {to:?} already"),
        jobs => format!("{} would be duplicates in queue {to:?}", counted(jobs, "job")),
    }
}
