//! Tables of 100 k jobs, and the times at which their statistics were taken.

/// The time at which statistics of the tables were last taken.
pub(crate) const NEVER: &[&str] = &[];
pub(crate) const WHILE_EMPTY: &[&str] = &["analyze"];
/// A vacuum knows for sure how small a table is.
pub(crate) const VACUUMED: &[&str] = &["vacuum analyze"];
pub(crate) const WITH_ONE_GROUP: &[&str] = &[
    "insert into seriatim.job (queue, group_id, data) values ('q', 'g1', '1')",
    "insert into seriatim.queue_group (queue, group_id, ready_at, head_id) values ('q', 'g1', now(), 1)",
    "vacuum analyze",
];

/// Backlogs of 100 k jobs, ready as claims would have made them by and by; 300 flags are left.
pub(crate) const SHAPES: [(&str, &str); 5] = [
    (
        "one deep group",
        "insert into seriatim.job (queue, group_id, data, flagged) select 'q', 'g1', '1', n % 333 = 0 \
         from generate_series(1, 100000) n",
    ),
    (
        "10 k groups",
        "insert into seriatim.job (queue, group_id, data, flagged) select 'q', 'g' || n % 10000, '1', n <= 300 \
         from generate_series(1, 100000) n",
    ),
    (
        "history, and few jobs",
        "insert into seriatim.job (queue, group_id, data, flagged, status, finished_at) \
         select 'q', 'g' || n % 1000, '1', n > 99700, \
           case when n > 99000 then 'queued' else 'succeeded' end::seriatim.job_status, \
           case when n <= 99000 then now() end from generate_series(1, 100000) n",
    ),
    (
        "no groups, and a few",
        "insert into seriatim.job (queue, group_id, data, flagged) \
         select 'q', case when n > 99000 then 'g' || n end, '1', n > 99700 from generate_series(1, 100000) n",
    ),
    (
        "groups whose time is to come",
        "insert into seriatim.job (queue, group_id, data, flagged, run_at, turn_at) \
         select 'q', 'g' || n, '1', n <= 300 or n > 1000, at, at from (select n, \
           now() + interval '1 hour' * (n > 1000)::int as at from generate_series(1, 100000) n) n",
    ),
];
