//! The server's statements. Queues, keys and the secret of handles are in tables of its own; jobs
//! are reached through the library and the functions of the schema.

mod database;
mod messages;
mod move_tasks;
mod queues;

pub(crate) use database::{Database, StoredKey, schema_of};
pub(crate) use messages::{is_undone, refusal};
pub(crate) use move_tasks::MoveTask;
pub(crate) use queues::Depth;
