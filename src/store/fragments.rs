//! Pieces of SQL that several statements share, and the constants in them.

use std::time::Duration;

use sea_query::Expr;

use crate::job::job::Job;
use crate::store::builder::sql;

/// How long after it was suspected a claim is taken over: longer than any worker needs to notice
/// that it lost its hold.
pub(crate) const GRACE: Duration = Duration::from_millis(1750);

/// How long processes have to come back after a restart or failover of the server, before they are
/// suspected and their claims taken over.
pub(crate) const RESTART_GRACE: Duration = Duration::from_secs(15);

/// How much longer a group, or a job without one, counts as waiting for each level of its priority.
/// A group that has waited longer by the aging of all levels goes first whatever the priorities:
/// nothing starves.
pub(crate) const PRIORITY_AGING: Duration = Duration::from_secs(10);

/// What is set in a group's row to free it.
pub(in crate::store) const FREE_GROUP: &str = "claim = null, job_id = null, suspect = null, \
     claimed_by = null, batch_end = null, batch_size = 1";

/// What is set in a job's own row to free it.
pub(in crate::store) const FREE_JOB: &str =
    "claim = null, lease_until = null, suspect = null, claimed_by = null";

/// What a job `j` gets whose attempts begin anew, but for its expiry.
pub(in crate::store) const QUEUED_AGAIN: &str = "status = 'queued', finished_at = null, \
     run_at = now(), turn_at = now(), attempts_forgiven = j.attempts, parked_with = null";

/// What a dead job `j` gets when it is queued. An expiry that is over no longer counts: it would
/// end the job at once.
pub(in crate::store) fn requeued() -> String {
    format!("{QUEUED_AGAIN}, expires_at = case when j.expires_at > now() then j.expires_at end")
}

/// Whether a job `j` waits in a dead-letter queue, and came there as a dead letter.
pub(in crate::store) const WAITS_AS_DEAD_LETTER: &str =
    "j.moved_from is not null and j.status = 'queued'";

/// What a job gets when it is cancelled: (column, value).
pub(in crate::store) const CANCELLED: [(&str, &str); 3] =
    [("status", "'cancelled'"), ("finished_at", "clock_timestamp()"), ("parked_with", "null")];

/// What a halted group's row gets when its halt ends: (column, value).
pub(in crate::store) const UNHALTED: [(&str, &str); 7] = [
    ("halted_at", "null"),
    ("halt_reason", "null"),
    ("halt_job_id", "null"),
    ("halt_until", "null"),
    ("halt_then", "null"),
    ("park_to", "null"),
    ("ready_at", "clock_timestamp()"),
];

/// The same values for an update of sea-query's.
pub(in crate::store) fn values(
    pairs: &[(&'static str, &'static str)],
) -> Vec<(&'static str, Expr)> {
    pairs.iter().map(|(column, value)| (*column, sql(*value))).collect()
}

/// `column = value, …` of an update.
pub(in crate::store) fn assignments(values: &[(&str, &str)]) -> String {
    let pairs = values.iter().map(|(column, value)| format!("{column} = {value}"));
    pairs.collect::<Vec<_>>().join(", ")
}

/// Returns whether the queue or the group setting of this alias is paused now. Every reader of a
/// pause asks this, so that a pause with an end is over exactly then.
pub(in crate::store) fn paused(alias: &str) -> String {
    format!(
        "({alias}.paused_at is not null and coalesce({alias}.paused_until > clock_timestamp(), true))"
    )
}

/// Returns whether the claim of this alias is strict, and over. The end of one that was suspected
/// or put off is not that of its visibility any more.
pub(in crate::store) fn over(alias: &str, end: &str) -> String {
    format!(
        "({alias}.strict is true and ({alias}.{end} <= clock_timestamp() \
         or coalesce({alias}.suspect = {alias}.claim, false)))"
    )
}

/// The place of a flagged job `j` in the line. A finished job's flag comes first: others may be
/// behind it. The words of an index.
pub(in crate::store) const FLAG_AT: &str =
    "case when j.finished_at is null then j.turn_at else 'epoch' end";

/// What becomes of a job that is claimed now: the word of a `Disposition`. A job that has expired
/// is no dead letter of its attempts, so it halts no group.
pub(in crate::store) fn disposition(
    alias: &str,
    max_attempts: &str,
    ignore_before: &str,
) -> String {
    format!(
        "case when exists (select from {{schema}}.cancel_request r where r.job_id = {alias}.id) then 'cancelled' \
         when {alias}.created_at < {ignore_before} then 'ignored' \
         when {alias}.expires_at <= clock_timestamp() then 'expired' \
         when {alias}.attempts - {alias}.attempts_forgiven >= coalesce({alias}.max_attempts, {max_attempts}) \
           then 'exhausted' else 'run' end"
    )
}

/// The history with the attempt that a take-over finds unfinished; unchanged if the job was queued.
/// If its attempts are used up, the settle that follows writes that.
pub(in crate::store) fn lost_attempt(alias: &str, disposition: &str) -> String {
    let entry =
        history_entry(alias, "'worker_lost'", "'the worker was lost before the attempt ended'");
    format!(
        "case when {alias}.status = 'started' and {alias}.attempts > 0 and {disposition} <> 'exhausted' \
           then {entry} else {alias}.history end"
    )
}

/// `history` with one more entry, cut to its last entries.
pub(in crate::store) fn history_entry(alias: &str, kind: &str, message: &str) -> String {
    let kept = Job::HISTORY_LIMIT;
    format!(
        "case when jsonb_array_length({alias}.history) >= {kept} then {alias}.history - 0 else {alias}.history end \
         || jsonb_build_array(jsonb_build_object('attempt', {alias}.attempts, 'started_at', {alias}.last_started_at, \
         'finished_at', clock_timestamp(), 'kind', {kind}::text, 'message', {message}::text))"
    )
}
