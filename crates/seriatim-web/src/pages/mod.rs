//! The pages, as HTML: a file for each address, with its query, its handler and its template.

pub(crate) mod batches;
pub(crate) mod failed;
pub(crate) mod find;
pub(crate) mod frame;
pub(crate) mod hour;
pub(crate) mod indented;
pub(crate) mod job;
pub(crate) mod job_line;
pub(crate) mod lane;
pub(crate) mod lane_row;
pub(crate) mod log;
pub(crate) mod move_tasks;
pub(crate) mod nodes;
pub(crate) mod parked;
pub(crate) mod queue;
pub(crate) mod queues;
pub(crate) mod schedules;
pub(crate) mod stopped;
pub(crate) mod url;
pub(crate) mod view;

use axum::Router;

use crate::data::Shared;
use crate::error::wrong_method;

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .merge(queues::route())
        .merge(queue::route())
        .merge(lane::route())
        .merge(job::route())
        .merge(stopped::route())
        .merge(parked::route())
        .merge(failed::route())
        .merge(find::route())
        .merge(schedules::route())
        .merge(batches::route())
        .merge(nodes::route())
        .merge(log::route())
        .method_not_allowed_fallback(wrong_method)
}
