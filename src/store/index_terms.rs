//! How rows are looked up: in words that leave a planner one index, whatever it takes the tables for. When they were last
//! vacuumed they may have been empty, and of an empty table all plans cost the same.

use sea_query::{Expr, Order, SelectStatement};

use crate::store::statement::{sql, sub};

/// That `alias` is an unfinished job of a group, written exactly as the partial index has it.
pub(in crate::store) fn unfinished(alias: &str) -> Expr {
    sql(format!("{alias}.group_id is not null and {alias}.status in ('queued', 'started')"))
}

/// That it is a job without a group that waits, or runs, likewise.
pub(in crate::store) fn ungrouped(alias: &str, status: &str) -> Expr {
    sql(format!("{alias}.group_id is null and {alias}.status = '{status}'"))
}

/// That a job is started, in words that are no partial index's: a plan could read that as a whole, where jobs are to be
/// looked up by their ids.
pub(in crate::store) fn started(alias: &str) -> String {
    format!("{alias}finished_at is null and {alias}status not in ('queued', 'parked')")
}

/// That a job has one of these statuses, in words that are no partial index's.
pub(in crate::store) fn status_in(alias: &str, statuses: &str) -> String {
    format!("{alias}status::text in ({statuses})")
}

/// `column = value`, by which the row of each of a batch's keys is looked up. An equality could also be joined by reading
/// an index as a whole, in its order.
pub(in crate::store) fn keyed(column: &str, value: &str) -> String {
    format!("{column} = any (array[{value}])")
}

/// That a row is the one of the group that `of` names. Both are columns of a batch: a literal queue would do for reading
/// all of its groups. A range, as a second array could be taken for a mere filter of the first one's rows.
pub(in crate::store) fn same_group(alias: &str, of: &str) -> String {
    let queue = keyed(&format!("{alias}.queue"), &format!("{of}.queue"));
    format!("{queue} and {alias}.group_id between {of}.group_id and {of}.group_id")
}

/// The jobs of a group, from an id on where there is one, as in `">= ?3"`. By the group and the id together, as in the
/// groups' own indexes: the id alone could be looked for by the primary key, among all jobs. The id must not be null: that is
/// found out entry by entry, of the whole group. No id ends it, as PostgreSQL reads on to the group's end: for the jobs up to one
/// there is the SQL function `batch_jobs`.
pub(in crate::store) fn in_group(
    alias: &str,
    queue: &str,
    group: &str,
    from: Option<&str>,
) -> Expr {
    let first = match from.and_then(|from| from.split_once(' ')) {
        Some((compared, id)) => {
            format!("({alias}.group_id, {alias}.id) {compared} ({group}, {id})")
        }
        None => format!("{alias}.group_id >= {group}"),
    };
    sql(format!("{alias}.queue = {queue} and {first} and {alias}.group_id <= {group}"))
}

/// Orders the jobs of a group as the groups' own indexes do: by the id alone, the primary key has that order too.
pub(in crate::store) fn in_order<'a>(
    jobs: &'a mut SelectStatement,
    alias: &'static str,
    order: &Order,
) -> &'a mut SelectStatement {
    jobs.order_by((alias, "group_id"), order.clone()).order_by((alias, "id"), order.clone())
}

/// `(query LIMIT 1) IS NULL`. Not `NOT EXISTS`: that may be hashed, and reads a whole backlog for a few look-ups.
pub(in crate::store) fn none_of(query: SelectStatement) -> Expr {
    let mut query = query;
    query.limit(1);
    Expr::cust_with_expr("$1 is null", sub(query))
}
