//! The move tasks of a queue, on its page.

use seriatim::admin::{MoveTask, MoveTaskStatus, QueueOverview};

use crate::action::Button;
use crate::data::{self, shown, thousands};
use crate::error::WebError;
use crate::pages::frame::Visit;
use crate::pages::url::queue_url;
use crate::pages::view::{When, bounded};

/// The tasks from a queue and from its dead-letter queue.
pub(crate) struct Moves {
    pub(crate) tasks: Vec<TaskRow>,
    /// Starts one from the queue; none for those who may not, and while one runs.
    pub(crate) start: Vec<Button>,
    /// Where a task from its dead-letter queue is started.
    pub(crate) dead_letter_queue: Option<(String, String)>,
}

impl Moves {
    pub(crate) async fn read(visit: &Visit, queue: &QueueOverview) -> Result<Self, WebError> {
        let app = &visit.app;
        let mut tasks = data::move_tasks(app, Some(&queue.queue)).await?;
        let runs = tasks.iter().any(|task| task.status == MoveTaskStatus::Running);
        let mut dead_letter_queue = None;
        if let Some(name) = &queue.dead_letter_queue {
            tasks.extend(data::move_tasks(app, Some(name)).await?);
            tasks.sort_by_key(|task| std::cmp::Reverse(task.id));
            let there = data::queue(app, name).await?.is_some();
            dead_letter_queue = there.then(|| (queue_url(name), shown(name)));
        }
        let buttons = visit.buttons();
        let buttons = if runs { buttons } else { buttons.start_move_task(&queue.queue) };
        Ok(Self {
            tasks: tasks.iter().map(|task| TaskRow::new(visit, task)).collect(),
            start: buttons.made(),
            dead_letter_queue,
        })
    }
}

/// A move task in a list.
pub(crate) struct TaskRow {
    pub(crate) id: i64,
    pub(crate) status: &'static str,
    pub(crate) from: (String, String),
    /// `None`: each job goes where it failed.
    pub(crate) to: Option<(String, String)>,
    pub(crate) rate: String,
    pub(crate) moved: String,
    pub(crate) to_move: String,
    pub(crate) started: When,
    pub(crate) ended: Option<When>,
    pub(crate) failure: String,
    pub(crate) about: String,
    pub(crate) buttons: Vec<Button>,
}

impl TaskRow {
    fn new(visit: &Visit, task: &MoveTask) -> Self {
        let queue = |name: &String| (queue_url(name), shown(name));
        let (from, to) = (queue(&task.from_queue), task.to_queue.as_ref().map(queue));
        let target = to.as_ref().map_or("where each failed", |(_, name)| name.as_str());
        Self {
            id: task.id,
            status: task.status.as_str(),
            about: format!("Task {}, from {} to {target}", task.id, from.1),
            rate: task.per_second.map_or_else(
                || String::from("as fast as it goes"),
                |rate| format!("{} a second", thousands(rate.into())),
            ),
            moved: thousands(task.moved),
            to_move: bounded(task.to_move),
            started: When::new(task.started_at),
            ended: task.ended_at.map(When::new),
            failure: task.failure.as_deref().map(shown).unwrap_or_default(),
            buttons: visit.buttons().move_task(task).made(),
            from,
            to,
        }
    }
}
