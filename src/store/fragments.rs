//! Pieces of SQL that several statements share, and the constants in them.

use std::time::Duration;

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

/// The timeline of a server that can be written to: a promotion begins another one.
pub(crate) const TIMELINE: &str = "('x' || substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::bigint";

/// The assignments that end the claim on a group's row. It keeps the slot of its limit key.
pub(crate) const END_CLAIM: &str = "claim = null, job_id = null, suspect = null, \
     claimed_by = null, started_at = null, batch = null";

/// The assignments that free a group's row. The caller has passed its slot on: `free_slots`.
pub(crate) fn free_group() -> String {
    format!("{END_CLAIM}, limit_key = null")
}

/// The jobs that the claim on the row of this alias names.
pub(crate) fn claimed_jobs(alias: &str) -> String {
    format!("coalesce({alias}.batch, array[{alias}.job_id])")
}

/// How many these are.
pub(crate) fn claimed_count(alias: &str) -> String {
    format!("coalesce(cardinality({alias}.batch), 1)")
}

/// Whether a job `j` of a claim has not ended: a job with a group is queued meanwhile, and one
/// without is started. No partial index has these words.
pub(crate) const CLAIMED: &str =
    "j.finished_at is null and (j.status = 'queued') = (j.group_id is not null)";

/// The assignments that record the success of a job `j`, as `done` has it: the result, how many
/// seconds ago the handler ended, and when the attempt began, unless its row says so.
pub(crate) fn succeeded() -> String {
    format!(
        "status = 'succeeded', result = done.result::jsonb, error = null, \
         finished_at = coalesce(statement_timestamp() - make_interval(secs => done.ended), clock_timestamp()), \
         attempts = j.attempts + (done.started_at is not null)::integer, \
         last_started_at = coalesce(done.started_at, j.last_started_at), flagged = false, {FREE_JOB}"
    )
}

/// The assignments that free a job's own row.
pub(crate) const FREE_JOB: &str =
    "claim = null, lease_until = null, suspect = null, claimed_by = null";

/// The assignments that queue a job `j` again, with all its attempts. They leave its expiry alone.
/// Its unique key may be another job's by now.
pub(crate) const QUEUED_AGAIN: &str = "status = 'queued', finished_at = null, \
     run_at = now(), turn_at = now(), attempts_forgiven = j.attempts, snoozes = 0, parked_with = null, unique_key = null";

/// The assignments that queue a dead job `j`. An expiry that is over no longer counts: it would end
/// the job at once.
pub(crate) fn requeued() -> String {
    format!("{QUEUED_AGAIN}, expires_at = case when j.expires_at > now() then j.expires_at end")
}

/// Whether a job `j` waits in a dead-letter queue, and came there as a dead letter.
pub(crate) const WAITS_AS_DEAD_LETTER: &str = "j.moved_from is not null and j.status = 'queued' \
     and (select true from {claim_of}(j.queue, j.group_id, j.id) c) is null";

/// Whether lists show a job `j` as a dead letter that waits in a dead-letter queue. A receiver may
/// have looked at it, and let its visibility end.
pub(crate) const IS_LISTED_DEAD_LETTER: &str = "j.moved_from is not null and (j.status = 'queued' \
     and coalesce((select c.claimed_by is null and c.ready_at <= clock_timestamp() \
       from {claim_of}(j.queue, j.group_id, j.id) c), true) \
     or j.status = 'started' and j.claimed_by is null and j.lease_until <= clock_timestamp())";

/// The values that cancel a job: (column, value).
pub(crate) const CANCELLED: [(&str, &str); 3] =
    [("status", "'cancelled'"), ("finished_at", "clock_timestamp()"), ("parked_with", "null")];

/// The values that end a halt in its group's row: (column, value).
pub(crate) const UNHALTED: [(&str, &str); 7] = [
    ("halted_at", "null"),
    ("halt_reason", "null"),
    ("halt_job_id", "null"),
    ("halt_until", "null"),
    ("halt_then", "null"),
    ("park_to", "null"),
    ("ready_at", "clock_timestamp()"),
];

/// `column = value, …` of an update.
pub(crate) fn assignments(values: &[(&str, &str)]) -> String {
    let pairs = values.iter().map(|(column, value)| format!("{column} = {value}"));
    pairs.collect::<Vec<_>>().join(", ")
}

/// Returns whether the queue or the group setting of this alias is paused now. Every reader of a
/// pause asks this, so that a pause with an end is over exactly then.
pub(crate) fn paused(alias: &str) -> String {
    format!(
        "({alias}.paused_at is not null and coalesce({alias}.paused_until > clock_timestamp(), true))"
    )
}

/// How many rows and flags that say nothing an operator's list or count passes over at most. A row
/// takes some microseconds.
pub(crate) const LOOKED_AT: u32 = 100_000;

/// Returns whether the group of this alias, a row of it or a job, has an unfinished job. Its row
/// and its flags may outlive those. Worded so that only the groups' own index does.
pub(crate) fn has_jobs(alias: &str) -> String {
    format!(
        "((select u.id from {{schema}}.job u \
         where u.queue = {alias}.queue and u.group_id between {alias}.group_id and {alias}.group_id \
           and u.group_id is not null and u.status in ('queued', 'started') \
         order by u.group_id, u.id limit 1) is not null)"
    )
}

/// Returns whether the group of this alias, a row of it or a job, is paused now.
pub(crate) fn is_paused(alias: &str) -> String {
    format!(
        "((select s.group_id from {{schema}}.group_setting s \
         where s.queue = {alias}.queue and s.group_id = {alias}.group_id and {} limit 1) is not null)",
        paused("s")
    )
}

/// Returns whether the claim of this alias is strict, and over. The end of one that was suspected
/// or put off is not that of its visibility any more.
pub(crate) fn over(alias: &str, end: &str) -> String {
    format!(
        "({alias}.strict is true and ({alias}.{end} <= clock_timestamp() \
         or coalesce({alias}.suspect = {alias}.claim, false)))"
    )
}

/// How long the end of a claim has passed when it counts as lapsed. A living queue takes it over
/// sooner: its next claim suspects it, and another one takes it over a grace later.
const LAPSED_AFTER: Duration = Duration::from_secs(5);

/// Returns whether the claim of this alias, a row of `table`, has lapsed: its lease or visibility
/// is over, nobody has taken it over, and no session holds it.
pub(crate) fn lapsed(alias: &str, end: &str, table: &str) -> String {
    let after = LAPSED_AFTER.as_secs();
    format!(
        "({alias}.{end} <= now() - interval '{after} s' and ({alias}.xmax::text = '0' \
         or {{schema}}.locker({alias}.xmax::text, '{table}') is null))"
    )
}

/// The place of a flagged job `j` in the line. A finished job's flag comes first: others may be
/// behind it. The words of an index.
pub(crate) const FLAG_AT: &str = "case when j.finished_at is null then j.turn_at else 'epoch' end";

/// The disposition of a job that is claimed now: the word of a `Disposition`. A job that has
/// expired is no dead letter of its attempts, so it halts no group. `attempts` is the number of
/// attempts that were begun, `terms` are the terms of the claim.
pub(crate) fn disposition(attempts: &str) -> String {
    format!(
        "case when exists (select from {{schema}}.cancel_request r where r.job_id = j.id) then 'cancelled' \
         when j.created_at < terms.ignore_before then 'ignored' \
         when j.expires_at <= clock_timestamp() then 'expired' \
         when {attempts} - j.attempts_forgiven >= coalesce(j.max_attempts, terms.default_attempts) \
           then 'exhausted' else 'run' end"
    )
}

/// The message of an attempt whose worker was lost.
pub(crate) const LOST: &str = "the worker was lost before the attempt ended";
