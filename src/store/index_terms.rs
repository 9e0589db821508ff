//! How rows are looked up: in words that leave a planner one index, whatever the statistics say.
//! When the tables were last vacuumed they may have been empty, and for an empty table all plans
//! cost the same.
//!
//! Statements that are written as SQL use the same words. Four of them occur only there:
//!
//! * `column = any (array[value])`, by which the row of each of a batch's keys is found. An
//!   equality could also be joined by reading an index as a whole, in its order.
//! * A claimed job is found by its id and the words of `fragments::CLAIMED`: no partial index has
//!   them, and so none is read as a whole.
//! * `(select 1 … limit 1) is null` instead of `not exists`, which may be hashed and read a whole
//!   backlog for a few rows.
//! * An argument's array is unnested in a materialized `with`, and its rows are joined laterally
//!   with `limit 1`.

use sea_query::{Expr, Order, SelectStatement};

use crate::store::builder::sql;

/// The condition that `alias` is an unfinished job of a group, written exactly as the partial index
/// has it.
pub(crate) fn unfinished(alias: &str) -> Expr {
    sql(format!("{alias}.group_id is not null and {alias}.status in ('queued', 'started')"))
}

/// The jobs of a group, from an id on if one is given, as in `">= ?3"`. By the group and the id
/// together, as in the groups' own indexes: the id alone could be searched by the primary key,
/// among all jobs. The id must not be null, or the whole group is read. There is no upper id, as
/// PostgreSQL reads on to the group's end.
pub(crate) fn in_group(alias: &str, queue: &str, group: &str, from: Option<&str>) -> Expr {
    let first = match from.and_then(|from| from.split_once(' ')) {
        Some((compared, id)) => {
            format!("({alias}.group_id, {alias}.id) {compared} ({group}, {id})")
        }
        None => format!("{alias}.group_id >= {group}"),
    };
    sql(format!("{alias}.queue = {queue} and {first} and {alias}.group_id <= {group}"))
}

/// Orders the jobs of a group as the groups' own indexes do: by the id alone, the primary key has
/// that order too.
pub(crate) fn in_order<'a>(
    jobs: &'a mut SelectStatement,
    alias: &'static str,
    order: &Order,
) -> &'a mut SelectStatement {
    jobs.order_by((alias, "group_id"), order.clone()).order_by((alias, "id"), order.clone())
}
