//! Errors of operations. The first line of a message has the reason. The source lets code
//! distinguish errors, and adds nothing to print.

use std::fmt;
use std::time::Duration;

use crate::job::error::{BuildMistake, NameError, ScheduleError};
use crate::job::reason::{failed_call, reason};
use crate::job::redact::redact_detail;
use crate::job::shard::ShardId;
use crate::job::stall::Stall;
use crate::job::until::Until;

/// Why `migrate` failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The database was migrated by a newer seriatim, and this one cannot run on its schema.
    #[error(
        "schema {schema:?} is at version {found}, this seriatim knows versions up to {known}, and it takes {compatible_from} to run on it: upgrade seriatim in this program"
    )]
    Newer {
        /// The schema.
        schema: String,
        /// The version in the database.
        found: i64,
        /// The newest version that this crate knows.
        known: i64,
        /// The oldest version that can run on the schema.
        compatible_from: i64,
    },
    /// A migration or a function is not the one that this crate has at the same version.
    #[error(
        "schema {schema:?} is not version {version} as this seriatim has it, {what} differs: {advice}"
    )]
    Different {
        /// The schema.
        schema: String,
        /// The version.
        version: i64,
        /// The difference, and a possible cause.
        what: String,
        /// How to proceed.
        advice: String,
    },
    /// Citus distributes a table of the schema. Ids of several nodes have no order, so no promise
    /// could be kept.
    #[error(
        "Citus distributes table {table:?} of schema {schema:?}, and ids of several nodes have no order: keep the jobs in a schema whose tables are local to one node"
    )]
    Distributed {
        /// The schema.
        schema: String,
        /// The first of its tables that is distributed.
        table: String,
    },
    /// The schema has the number of another shard, or has given its jobs ids without one: those of
    /// shard 0.
    #[error(
        "schema {schema:?} of this database is shard {found}, not {wanted}: check which server each pool leads to. A schema keeps its number, and one that has given ids to jobs is shard 0"
    )]
    OtherShard {
        /// The schema.
        schema: String,
        /// The shard that it is.
        found: ShardId,
        /// The shard that it should be.
        wanted: ShardId,
    },
    /// Citus would pass the schema on to other nodes. It must be local to the node that it is used
    /// on.
    #[error(
        "Citus would not keep schema {schema:?} on this node: call migrate() through connections with {option} = off, by `PgConnectOptions::options([({option:?}, \"off\")])` or `ALTER ROLE ... SET {option} = off`"
    )]
    CitusOption {
        /// The schema.
        schema: String,
        /// The option that must be off while the schema is made.
        option: &'static str,
    },
    /// The database cannot store every character.
    #[error(
        "database {database:?} has the encoding {encoding}, and seriatim needs UTF8, because names, data and error messages may contain any character: make another database with `create database NAME encoding 'UTF8' template template0 lc_collate 'C' lc_ctype 'C'`, or the cluster with `initdb -E UTF8`"
    )]
    Encoding {
        /// The database.
        database: String,
        /// Its encoding.
        encoding: String,
    },
    /// There are tables, and the table `migration` is empty or missing.
    #[error(
        "schema {schema:?} has tables, but no record of its version: the table `migration` is missing or empty, as after `pg_dump --schema-only`, or when a test suite truncates all tables. If the schema has no jobs to keep, drop it and call migrate() again; otherwise copy the table `migration` from the database that the schema came from"
    )]
    NoVersion {
        /// The schema.
        schema: String,
    },
    /// A table that came with rows is empty.
    #[error(
        "the table `{table}` of schema {schema:?} is empty, and seriatim does not work without its rows: call migrate() (or run `seriatim migrate`), which fills it again"
    )]
    NoRows {
        /// The schema.
        schema: String,
        /// The table.
        table: &'static str,
    },
    /// Row security hides every row of a table from the role.
    #[error(
        "row security hides every row of table {table:?} in schema {schema:?} from role {role:?}: no policy lets the role see them. Run `alter table \"{schema}\".\"{table}\" disable row level security` for each table of the schema, or connect as a role with BYPASSRLS"
    )]
    RowSecurity {
        /// The schema.
        schema: String,
        /// The first table that is hidden.
        table: String,
        /// The role.
        role: String,
    },
    /// A migration failed.
    #[error("could not migrate schema {schema:?}{}: {}", named(step.as_deref()), reason(source))]
    Database {
        /// The schema.
        schema: String,
        /// The migration, the function or the view that the database refused. `None` if it was
        /// another statement.
        step: Option<String>,
        /// The error of the database.
        #[source]
        source: sqlx::Error,
    },
}

/// Why a request about a job or a group failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// No such job: it never existed, or retention has deleted it.
    #[error("there is no job {id} (it may have been deleted after its retention)")]
    NoSuchJob {
        /// The id.
        id: i64,
    },
    /// The job waits in a group that another job has halted: without it the group would stay
    /// halted.
    #[error(
        "job {id} does not stop its group, job {by} has halted it: skip {by} to let the group go on, or cancel {id} to give that one up"
    )]
    HaltedBy {
        /// The job of the request.
        id: i64,
        /// The job that halted the group.
        by: i64,
    },
    /// The job failed for good in another queue, and waits in that one's dead-letter queue.
    #[error(
        "job {id} is a dead letter of queue {queue:?} and waits in its dead-letter queue, so it cannot be {request}: redrive {id} to run it again, or discard {id} to give it up"
    )]
    DeadLetter {
        /// The job.
        id: i64,
        /// The queue that it failed in.
        queue: String,
        /// The request.
        request: &'static str,
    },
    /// The job was moved to another queue, where it has another number. A retry of the old job
    /// would run it twice.
    #[error("job {id} was moved to queue {queue:?} as job {moved_as}: retry {moved_as}")]
    Moved {
        /// The job of the request.
        id: i64,
        /// The queue that it was moved to.
        queue: String,
        /// The job there.
        moved_as: i64,
    },
    /// A session holds the job, and this role may not terminate it: it must be the session's role,
    /// a member of it, or of `pg_signal_backend`.
    #[error(
        "job {id} is held by database session {pid}, which this role may not terminate: grant it pg_signal_backend, or ask the session's role"
    )]
    MayNotAbort {
        /// The job.
        id: i64,
        /// The session's process id in the server.
        pid: i32,
    },
    /// A job of the group runs, so that the group cannot be parked.
    #[error(
        "group {group:?} of queue {queue:?} runs job {job}: wait for it, or cancel or abort it first"
    )]
    GroupRuns {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
        /// The job.
        job: i64,
    },
    /// No job of the group waits, so that there is nothing to park.
    #[error("no job of group {group:?} of queue {queue:?} waits")]
    NothingWaits {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
    },
    /// A move task is running for the queue.
    #[error(
        "a task moves what waits in queue {queue:?} already: cancel it by cancel_move_task, or let it end"
    )]
    MoveTaskRuns {
        /// The queue.
        queue: String,
    },
    /// No such move task: it never existed, or was deleted after its end.
    #[error("there is no move task {task}")]
    NoSuchMoveTask {
        /// The task.
        task: i64,
    },
    /// The move task has ended.
    #[error("move task {task} has ended already")]
    MoveTaskEnded {
        /// The task.
        task: i64,
    },
    /// No such schedule.
    #[error("there is no schedule {schedule:?}")]
    NoSuchSchedule {
        /// The name.
        schedule: String,
    },
    /// The schedule is not paused, or there is none of this name.
    #[error("there is no paused schedule {schedule:?}")]
    ScheduleNotPaused {
        /// The name.
        schedule: String,
    },
    /// The job of a schedule that is due could not be enqueued. Other schedules were fired.
    #[error("schedule {schedule:?} is due, and its job could not be enqueued: {}", reason(source))]
    ScheduleRefused {
        /// The name.
        schedule: String,
        /// The error of the database.
        #[source]
        source: sqlx::Error,
    },
    /// The schedule cannot be used.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// There is no batch of this id, or it was deleted with its follow-up.
    #[error("there is no batch {batch} (it may have been deleted with its follow-up)")]
    NoSuchBatch {
        /// The batch.
        batch: i64,
    },
    /// The batch has ended, or was abandoned before.
    #[error("batch {batch} has ended, or was abandoned before")]
    BatchEnded {
        /// The batch.
        batch: i64,
    },
    /// The follow-up of a batch could not be enqueued. Other batches were ended.
    #[error(
        "the jobs of batch {batch} have ended, and its follow-up could not be enqueued: {reason}"
    )]
    BatchRefused {
        /// The batch.
        batch: i64,
        /// The reason that the database gave.
        reason: String,
    },
    /// The group is not halted. [`Operator::resume_group`](crate::admin::Operator::resume_group)
    /// ends a pause.
    #[error("group {group:?} of queue {queue:?} is not halted (resume_group ends a pause)")]
    NotHalted {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
    },
    /// The queue, or the group, is not paused.
    /// [`Operator::unhalt_group`](crate::admin::Operator::unhalt_group) ends a halt.
    #[error("{}", not_paused(queue, group.as_deref()))]
    NotPaused {
        /// The queue.
        queue: String,
        /// The group; `None`: the queue itself.
        group: Option<String>,
    },
    /// The job is in a state that does not allow the request.
    #[error("job {id} is {status}, so it cannot be {request}: {advice}")]
    WrongStatus {
        /// The id.
        id: i64,
        /// Its status.
        status: crate::JobStatus,
        /// The request.
        request: &'static str,
        /// The request that is allowed instead.
        advice: &'static str,
    },
    /// Another transaction or a worker has locked the job's row for a moment.
    #[error("job {id} is locked by a worker or another transaction: try again")]
    Busy {
        /// The id.
        id: i64,
    },
    /// No such job of the group is parked.
    #[error("no job of group {group:?} of queue {queue:?} is parked{}", .job.map(|id| format!(" with job {id}")).unwrap_or_default())]
    NotParked {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
        /// The failed job that was named.
        job: Option<i64>,
    },
    /// Some of the jobs are locked by another transaction, or are still being parked.
    /// Nothing was changed.
    #[error("jobs of group {group:?} of queue {queue:?} are being changed: try again")]
    GroupBusy {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
    },
    /// A setting is out of its range.
    #[error("{setting} is {value}, it must be {range}")]
    OutOfRange {
        /// The setting.
        setting: &'static str,
        /// The value that was given.
        value: String,
        /// The range that is allowed.
        range: &'static str,
    },
    /// Later jobs of its group were parked with the job, or are being parked: they are queued or
    /// given up together.
    #[error("other jobs are parked with job {id}: use redrive_parked or discard_parked")]
    Parked {
        /// The id.
        id: i64,
    },
    /// The name of the queue or group cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The database refused. With SQLSTATE 0A000: a change of jobs that wait needs READ COMMITTED,
    /// as an older snapshot may hide that one of them runs.
    #[error("{}", failed_call("request", .0))]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for ControlError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(redact_detail(error))
    }
}

/// Returns what was not paused. A group may be halted instead, which another verb ends.
fn not_paused(queue: &str, group: Option<&str>) -> String {
    match group {
        Some(group) => {
            format!("group {group:?} of queue {queue:?} is not paused (unhalt_group ends a halt)")
        }
        None => format!("queue {queue:?} is not paused (resume_group ends the pause of a group)"),
    }
}

/// Why a group or a queue does not rest as its job asked. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestError {
    /// The job has no group.
    #[error("job {job} has no group that could rest: call rest_queue to let its queue rest")]
    NoGroup {
        /// The job.
        job: i64,
    },
    /// The hold of the job is lost: what this attempt asks for does not count.
    #[error("nothing rests for job {job}: another worker has taken its claim over")]
    TakenOver {
        /// The job.
        job: i64,
    },
    /// The end is too far away.
    #[error(
        "the rest would last until {until}, it must end within 100 years, by the database's clock"
    )]
    OutOfRange {
        /// The end.
        until: Until,
    },
    /// Another transaction has had the row of the pause for five seconds.
    #[error("nothing rests for job {job}: the pause is locked by another transaction, try again")]
    Busy {
        /// The job.
        job: i64,
    },
    /// The database refused, or could not be reached.
    #[error("{}", failed_call("rest", .0))]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for RestError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(redact_detail(error))
    }
}

/// Why a group's jobs are not rehearsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RehearsalError {
    /// A worker has a job of the group.
    #[error(
        "job {job} of the group is running now: rehearse when it has ended, or pause the group first"
    )]
    Running {
        /// The job.
        job: i64,
    },
    /// There is no such job in the group, or it has succeeded.
    #[error(
        "group {group} has no job {job} that has not succeeded: give another job, or none to begin at the next"
    )]
    NotOfGroup {
        /// The job.
        job: i64,
        /// The group.
        group: String,
    },
    /// The processor serves no such queue.
    #[error("the processor has no handler for queue {queue}: register one, or name another queue")]
    NoHandler {
        /// The queue.
        queue: String,
    },
    /// The database refused, or could not be reached. Everything is rolled back.
    #[error("{}", failed_call("rehearse", .0))]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for RehearsalError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(redact_detail(error))
    }
}

/// Every mistake in a processor's settings, at once. Its `Debug` is its message, which says what to
/// do: a `main` that returns the error prints that.
#[derive(thiserror::Error)]
#[error("the processor cannot be built: {}", .mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct BuildError {
    mistakes: Vec<BuildMistake>,
}

impl BuildError {
    pub(crate) fn new(mistakes: Vec<BuildMistake>) -> Self {
        Self { mistakes }
    }

    /// The mistakes, in the order of the builder's calls.
    pub fn mistakes(&self) -> &[BuildMistake] {
        &self.mistakes
    }
}

impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the reason why a claim was of no use.
fn named(step: Option<&str>) -> String {
    step.map_or_else(String::new, |step| format!(" ({step})"))
}

fn reason_or_taken_over(source: Option<&sqlx::Error>) -> String {
    let lost = "another worker has its claim, or an operator has aborted it";
    source.map_or_else(|| String::from(lost), reason)
}

/// Why a processor did not start. Nothing runs. Its `Debug` is its message, which says what to do:
/// a `main` that returns the error prints that.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The database could not be reached, or refused to be read.
    #[error("the processor cannot start: {}", failed_call("check of the database", .0))]
    Database(#[source] sqlx::Error),
    /// The server gave no answer in time.
    #[error(
        "the processor cannot start: the database did not answer within {limit:?}, check its address and load"
    )]
    NoAnswer {
        /// The limit.
        limit: Duration,
    },
    /// There are no tables.
    #[error(
        "the processor cannot start: schema {schema:?} has no tables in this database, call migrate() on it first (or run `seriatim migrate`)"
    )]
    NotMigrated {
        /// The schema.
        schema: String,
    },
    /// The schema is of a version before this program's.
    #[error(
        "the processor cannot start: schema {schema:?} is at version {found}, and this seriatim needs {needed}: call migrate() on this database first (or run `seriatim migrate`)"
    )]
    OldSchema {
        /// The schema.
        schema: String,
        /// The version in the database.
        found: i64,
        /// The version of this crate.
        needed: i64,
    },
    /// This program cannot run on the schema: it is too new, Citus distributes it, its rows are
    /// missing or hidden, or its database is not UTF8.
    #[error("the processor cannot start: {0}")]
    UnusableSchema(#[source] MigrateError),
    /// The role of the pool lacks rights that a processor needs.
    #[error(
        "the processor cannot start: role {role:?} lacks rights in schema {schema:?} ({}): run docs/roles.sql as the schema's owner, then `grant seriatim_worker to {role:?}`",
        .missing.join(", ")
    )]
    MissingRights {
        /// The role.
        role: String,
        /// The schema.
        schema: String,
        /// The rights, as `GRANT` words them.
        missing: Vec<String>,
    },
    /// The server is read-only: a standby, perhaps.
    #[error(
        "the processor cannot start: the server is read-only, a standby perhaps. Connect to the primary, or use start_when_ready()"
    )]
    ReadOnly,
    /// A statement pooler is between this processor and the server: no transaction can be had.
    #[error(
        "the processor cannot start: a pooler of statements is in between, behind which there are no transactions. Set its mode to `transaction` or `session`, or connect directly: {}",
        reason(.0)
    )]
    StatementPooler(#[source] sqlx::Error),
    /// A processor of several servers ([`Processor::over`](crate::Processor::over)) cannot start
    /// because of this one.
    #[error("shard {shard}: {error}")]
    OnShard {
        /// The number of the server.
        shard: ShardId,
        /// The error there.
        #[source]
        error: Box<StartError>,
    },
}

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An error that no caller gets: it goes to `tracing` and to the hook of
/// [`ProcessorBuilder::on_error`](crate::ProcessorBuilder::on_error). The processor goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackgroundError {
    /// The pool gave no connection to a claim. It is tried again.
    #[error("queue {queue:?} got no connection from the pool: {}", reason(source))]
    Connection {
        /// The queue.
        queue: String,
        /// The error of the pool.
        #[source]
        source: sqlx::Error,
    },
    /// Handlers under a lease wait in [`ActiveJob::tx`](crate::ActiveJob::tx) for connections of
    /// the pool, longer than its `acquire_timeout`. They wait on, until their jobs' timeouts.
    /// Reported at most once a minute.
    #[error(
        "handlers of queue {queue:?} wait in tx() for a connection: all {connections} connections of the pool are in use. Raise its max_connections, or lower the queue's concurrency"
    )]
    PoolExhausted {
        /// The queue of the handler that waited.
        queue: String,
        /// `max_connections` of the pool.
        connections: u32,
    },
    /// A claim failed. It is tried again.
    #[error("queue {queue:?} could not claim jobs: {}", reason(source))]
    Claim {
        /// The queue.
        queue: String,
        /// The error of the database.
        #[source]
        source: sqlx::Error,
    },
    /// The tables are not there, or not those of this version. The claim is tried again, so that a
    /// processor may start before its migration.
    #[error(
        "queue {queue:?} has no tables in schema {schema:?}: call migrate() on this database first: {}",
        reason(source)
    )]
    NotMigrated {
        /// The queue.
        queue: String,
        /// The schema.
        schema: String,
        /// The error of the database.
        #[source]
        source: sqlx::Error,
    },
    /// The schema is of a version before this program's. No job is claimed until it is migrated;
    /// the version is checked each second.
    #[error(
        "schema {schema:?} is at version {found}, and this seriatim needs {needed}: call migrate() on this database, no job is claimed before"
    )]
    OldSchema {
        /// The schema.
        schema: String,
        /// The version in the database.
        found: i64,
        /// The version of this crate.
        needed: i64,
    },
    /// This program cannot run on the schema: [`MigrateError::Newer`] or
    /// [`MigrateError::Distributed`]. No job is claimed until that has changed; the schema is
    /// checked each second.
    #[error("this program does not fit its schema, and claims no job: {0}")]
    UnusableSchema(#[source] MigrateError),
    /// A claimed job could not be held: its claim was taken over, or the connection failed. It runs
    /// again.
    #[error("job {job} of queue {queue:?} could not be held for its run: {}", reason_or_taken_over(source.as_ref()))]
    Hold {
        /// The queue.
        queue: String,
        /// The job.
        job: i64,
        /// The error of the database; `None` if another worker has the claim.
        #[source]
        source: Option<sqlx::Error>,
    },
    /// The session or the lease that held a running job was lost; its handler was dropped.
    #[error("the hold of job {job} of queue {queue:?} was lost while its handler ran")]
    HoldLost {
        /// The queue.
        queue: String,
        /// The job.
        job: i64,
    },
    /// The outcome of a job was not recorded by this worker: its claim was taken over, or the
    /// database could not be reached for too long. Unless the last commit got through, another
    /// worker runs the job again.
    #[error("the outcome of job {job} of queue {queue:?} was not recorded by this worker: {}", reason_or_taken_over(source.as_ref()))]
    Settle {
        /// The queue.
        queue: String,
        /// The job.
        job: i64,
        /// The error of the database; `None` if another worker has the claim.
        #[source]
        source: Option<sqlx::Error>,
    },
    /// The monitor's session, which checks the holds, failed. It is opened again.
    #[error("the monitor session failed: {}", reason(.0))]
    SessionMonitor(#[source] sqlx::Error),
    /// The session of this process's presence, which extends its leases too, failed. It is opened
    /// again. If that takes too long, handlers under a lease are stopped.
    #[error("the presence of this processor could not be shown: {}", reason(.0))]
    Presence(#[source] sqlx::Error),
    /// The thread of the monitor and the presence could not be started. The processor claims
    /// nothing.
    #[error("the monitor could not be started, so no job is claimed: {0}")]
    NoMonitor(#[source] std::io::Error),
    /// The wake-up session failed. Polling goes on.
    #[error("the wake-up session failed, polling goes on: {}", reason(.0))]
    Listener(#[source] sqlx::Error),
    /// A transaction pooler is between this processor and the server. The processor goes on without
    /// sessions of its own, as with `listen(false)` and `presence(false)`. Reported once, unless
    /// both are switched off.
    #[error(
        "a transaction pooler is in between: the processor goes on without wake-ups (jobs are found by polling) and without presence (a dead worker's leases end by themselves). Connect directly or through a session pooler to have both, or say listen(false) and presence(false)"
    )]
    TransactionPooler,
    /// A statement pooler is between this processor and the server: no transaction can be had. The
    /// processor claims nothing.
    #[error(
        "a pooler of statements is in between, behind which there are no transactions, so no job is claimed: set its mode to `transaction` or `session`, or connect directly: {}",
        reason(.0)
    )]
    StatementPooler(#[source] sqlx::Error),
    /// The server is read-only: a standby, or a primary that became one. Nothing is claimed or
    /// settled there. Its connections are closed, and opened anew until a server can be written to.
    /// Reported once until then, in place of what each part of the processor meets.
    #[error(
        "the server is read-only, a standby perhaps: connections to it are closed, and opened anew until one can be written to"
    )]
    ReadOnly,
    /// Maintenance failed. It is tried again.
    #[error("maintenance failed: {}", reason(.0))]
    Maintenance(#[source] sqlx::Error),
    /// The job of a schedule that is due could not be enqueued. It is tried again.
    #[error("schedule {schedule:?} is due, and its job could not be enqueued: {}", reason(source))]
    Schedule {
        /// The schedule.
        schedule: String,
        /// The error of the database.
        #[source]
        source: sqlx::Error,
    },
    /// The follow-up of a batch could not be enqueued. It is tried again.
    #[error(
        "the jobs of batch {batch} have ended, and its follow-up could not be enqueued: {reason}"
    )]
    Batch {
        /// The batch.
        batch: i64,
        /// The reason that the database gave.
        reason: String,
    },
    /// The settings and schedules of a processor could not be stored. It is tried again.
    #[error("the settings and schedules of this processor could not be stored: {}", reason(.0))]
    Store(#[source] sqlx::Error),
    /// The sweep found jobs that nothing would have woken, and repaired them. Hand-made SQL can
    /// cause this.
    #[error(
        "{repaired} groups of queue {queue:?} had jobs that nothing would have woken; they were made ready"
    )]
    Stranded {
        /// The queue.
        queue: String,
        /// The number of groups that were made ready.
        repaired: u64,
    },
    /// Jobs of a queue have been due for a minute, and no living processor or receiver serves it:
    /// its name is mistyped somewhere, or a program does not run. Reported once while it lasts, by
    /// each process that runs maintenance.
    #[error(
        "no processor or receiver serves queue {queue:?}, whose jobs have been due for {waited:.0?}: compare its name letter by letter, or start the program that serves it"
    )]
    Unserved {
        /// The queue.
        queue: String,
        /// How long they have been due.
        waited: Duration,
    },
    /// A background task of the processor panicked. It begins again after 1 s; until then the
    /// processor is not [ready](crate::Running::health). Code of the application may be the cause,
    /// such as a recorder of metrics or a subscriber of `tracing`. If not, please report it.
    #[error("{task} panicked, and begins again: {panic}")]
    Panicked {
        /// The task, in words.
        task: String,
        /// The message of the panic.
        panic: String,
    },
    /// The watchdog found that the processor makes no progress. It ends the process now.
    #[error("the watchdog ends this process: {0}")]
    Stalled(Stall),
    /// The thread of the watchdog could not be started. The processor works without a watchdog.
    #[error("the watchdog could not be started: {0}")]
    NoWatchdog(#[source] std::io::Error),
    /// A handler has blocked its thread: it calls something that blocks, or computes for long,
    /// without an `await`. All tasks of that thread wait; its timeout cannot end it. Reported after
    /// [`ProcessorBuilder::blocked_after`](crate::ProcessorBuilder::blocked_after), and once a
    /// minute while it lasts.
    #[error(
        "the handler of job {job} of queue {queue:?} has blocked its thread for {lasted:.1?}: use tokio::task::spawn_blocking for work that blocks, or the handler cannot be stopped and other tasks wait"
    )]
    HandlerBlocks {
        /// The queue.
        queue: String,
        /// The job.
        job: i64,
        /// How long it has lasted.
        lasted: Duration,
    },
    /// An operation took longer than its limit and its connection was closed.
    #[error("{activity} did not end within {limit:?}, its connection was closed")]
    TooSlow {
        /// The operation.
        activity: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// One of several servers was away or read-only when the processor started
    /// ([`Processor::over`](crate::Processor::over)). It is waited for, and the others are used.
    #[error("the server is waited for: {0}")]
    Away(#[source] StartError),
    /// The error of one server, in a processor of several
    /// ([`Processor::over`](crate::Processor::over)).
    #[error("shard {shard}: {error}")]
    OnShard {
        /// The number of the server.
        shard: ShardId,
        /// The error there.
        #[source]
        error: Box<BackgroundError>,
    },
}

impl BackgroundError {
    /// Returns the word by which metrics tell where the error comes from.
    pub(crate) fn source_word(&self) -> &'static str {
        match self {
            Self::Connection { .. } => "connection",
            Self::PoolExhausted { .. } => "pool_exhausted",
            Self::Claim { .. } => "claim",
            Self::NotMigrated { .. } => "not_migrated",
            Self::OldSchema { .. } => "old_schema",
            Self::UnusableSchema(_) => "unusable_schema",
            Self::Hold { .. } => "hold",
            Self::HoldLost { .. } => "hold_lost",
            Self::Settle { .. } => "settle",
            Self::SessionMonitor(_) => "session_monitor",
            Self::Presence(_) => "presence",
            Self::NoMonitor(_) => "no_monitor",
            Self::Listener(_) => "listener",
            Self::TransactionPooler => "transaction_pooler",
            Self::StatementPooler(_) => "statement_pooler",
            Self::ReadOnly => "read_only",
            Self::Maintenance(_) => "maintenance",
            Self::Schedule { .. } => "schedule",
            Self::Batch { .. } => "batch",
            Self::Store(_) => "store",
            Self::Stranded { .. } => "stranded",
            Self::Unserved { .. } => "unserved",
            Self::Panicked { .. } => "panicked",
            Self::Stalled(_) => "stalled",
            Self::NoWatchdog(_) => "no_watchdog",
            Self::HandlerBlocks { .. } => "handler_blocks",
            Self::TooSlow { .. } => "too_slow",
            Self::Away(_) => "away",
            Self::OnShard { error, .. } => error.source_word(),
        }
    }

    /// Returns the words by which errors of one kind are told apart in the log: the queue, and the
    /// code of the cause.
    pub(crate) fn cause(&self) -> String {
        let queue = match self {
            Self::HandlerBlocks { queue, job, .. } => return format!("{queue} {job}"),
            Self::Panicked { task, .. } => return task.clone(),
            Self::Connection { queue, .. }
            | Self::PoolExhausted { queue, .. }
            | Self::Claim { queue, .. }
            | Self::NotMigrated { queue, .. }
            | Self::Hold { queue, .. }
            | Self::HoldLost { queue, .. }
            | Self::Settle { queue, .. }
            | Self::Stranded { queue, .. }
            | Self::Unserved { queue, .. } => queue,
            _ => "",
        };
        let source = std::error::Error::source(self);
        format!("{queue} {}", source.map(code_of).unwrap_or_default())
    }

    /// Returns the words by which the error hook tells a state that lasts, and that each further
    /// try reports again. `None` for the error of a job, and for what is reported once. A server
    /// that cannot be reached is one state for all queues.
    pub(crate) fn state(&self) -> Option<String> {
        match self {
            Self::Connection { .. } => Some(String::new()),
            Self::Claim { source: sqlx::Error::Database(_), .. }
            | Self::NotMigrated { .. }
            | Self::Schedule { .. } => Some(self.cause()),
            Self::Claim { .. }
            | Self::SessionMonitor(_)
            | Self::Presence(_)
            | Self::Listener(_)
            | Self::Maintenance(_)
            | Self::Store(_) => {
                Some(std::error::Error::source(self).map(code_of).unwrap_or_default())
            }
            Self::TooSlow { activity, .. } => Some((*activity).to_owned()),
            Self::OnShard { error, .. } => error.state(),
            _ => None,
        }
    }
}

/// Returns the words by which the causes of errors of one kind are told apart.
fn code_of(source: &(dyn std::error::Error + 'static)) -> String {
    match source.downcast_ref::<sqlx::Error>() {
        Some(sqlx::Error::Database(error)) => error.code().unwrap_or_default().into_owned(),
        Some(sqlx::Error::Io(error)) => error.kind().to_string(),
        Some(error) => format!("{:?}", std::mem::discriminant(error)),
        None => String::new(),
    }
}
