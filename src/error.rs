//! One small error per operation. Messages do not repeat their source: print the chain.

use std::time::Duration;

use crate::stall::Stall;
use crate::withheld::quiet;

/// A name that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("the {} is empty: give it at least one character", called(field))]
    Empty {
        /// What was named: `queue`, `group`, `schema`, `job`, `reference`, `deduplication id` or `content type`.
        field: &'static str,
    },
    /// The name has too many characters; a schema's, too many bytes.
    #[error("the {} has {length} {}, at most {limit} are allowed", called(field), unit(field))]
    TooLong {
        /// What was named.
        field: &'static str,
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// The name has a control character (they make logs and terminals unreadable, and `PostgreSQL` refuses NUL).
    #[error(
        "the {} has the control character {character:?} at byte {position}: remove or escape it",
        called(field)
    )]
    Control {
        /// What was named.
        field: &'static str,
        /// The character.
        character: char,
        /// Its byte position.
        position: usize,
    },
    /// The schema name starts with `pg_`, or is `information_schema` or `$user`: `PostgreSQL` keeps them for itself.
    #[error("the schema name {name:?} is one that PostgreSQL keeps for itself: choose another")]
    Reserved {
        /// The name.
        name: String,
    },
    /// The schema name has characters that would end a piece of the library's own SQL.
    #[error("the schema name {name:?} has {part:?}, which cannot be in it: choose another")]
    Unusable {
        /// The name.
        name: String,
        /// The characters.
        part: &'static str,
    },
}

/// PostgreSQL cuts identifiers by bytes.
fn unit(field: &str) -> &'static str {
    if field == "schema" { "bytes" } else { "characters" }
}

/// Some fields are names, others have one of their own.
fn called(field: &str) -> String {
    match field {
        "queue" | "group" | "schema" | "job" => format!("{field} name"),
        field => field.to_owned(),
    }
}

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
        /// What differs, and why that may be.
        what: String,
        /// What to do.
        advice: String,
    },
    /// Citus distributes a table of the schema. Ids of several nodes have no order, so no promise could be kept.
    #[error(
        "Citus distributes table {table:?} of schema {schema:?}, and ids of several nodes have no order: keep the jobs in a schema whose tables are local to one node"
    )]
    Distributed {
        /// The schema.
        schema: String,
        /// The first of its tables that is distributed.
        table: String,
    },
    /// Citus would pass the schema on to other nodes. It must be local to the node that it is used on.
    #[error(
        "Citus would not keep schema {schema:?} on this node: call migrate() through connections with {option} = off, by `PgConnectOptions::options([({option:?}, \"off\")])` or `ALTER ROLE ... SET {option} = off`"
    )]
    CitusOption {
        /// The schema.
        schema: String,
        /// The option that must be off while the schema is made.
        option: &'static str,
    },
    /// A migration failed.
    #[error("could not migrate schema {schema:?}")]
    Database {
        /// The schema.
        schema: String,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
}

/// Why an enqueue failed. No job was written by this call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The queue, group, or another of the job's names and ids cannot be used.
    #[error("job {index} of the call cannot be enqueued")]
    Name {
        /// Position in the call, from 0.
        index: usize,
        /// What is wrong with the name.
        #[source]
        source: NameError,
    },
    /// The data could not be serialized.
    #[error("the data of job {index} of the call cannot be serialized to JSON")]
    Serialize {
        /// Position in the call, from 0.
        index: usize,
        /// What serde said.
        #[source]
        source: serde_json::Error,
    },
    /// The serialized data is too large.
    #[error(
        "the data of job {index} of the call has {size} bytes, at most {limit} are allowed: store it elsewhere and enqueue a reference, or raise the limit with Client::data_limit"
    )]
    DataTooLarge {
        /// Position in the call, from 0.
        index: usize,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The data has a NUL character in a string, which `PostgreSQL`'s `jsonb` cannot hold.
    #[error(
        "the data of job {index} of the call has a NUL character (\\u0000) in a string, which jsonb cannot hold: remove or encode it"
    )]
    DataHasNul {
        /// Position in the call, from 0.
        index: usize,
    },
    /// The data is nested deeper than a handler could read.
    #[error(
        "the data of job {index} of the call is nested {depth} levels deep, at most {limit} can be read: flatten it, or enqueue it as a string or as bytes"
    )]
    DataTooDeep {
        /// Position in the call, from 0.
        index: usize,
        /// How deep it is.
        depth: usize,
        /// The limit.
        limit: usize,
    },
    /// A number is out of its range.
    #[error("{field} of job {index} of the call is {value}, it must be {range}")]
    OutOfRange {
        /// Position in the call, from 0.
        index: usize,
        /// Which setting.
        field: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// The database refused.
    #[error("could not write the jobs")]
    Database(#[source] sqlx::Error),
}

/// Why a queue could not be configured. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigureError {
    /// The queue has a name that cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A setting is out of its range.
    #[error("{setting} of queue {queue:?} is {value}, it must be {range}")]
    OutOfRange {
        /// The queue.
        queue: String,
        /// Which setting.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// The database refused.
    #[error("the settings did not reach the database")]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for ConfigureError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(quiet(error))
    }
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
    /// The group is not halted. Where it is paused, [`Client::resume_group`](crate::Client::resume_group) is meant.
    #[error("group {group:?} of queue {queue:?} is not halted (resume_group ends a pause)")]
    NotHalted {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
    },
    /// The queue, or the group, is not paused. Where the group is halted, [`Client::resume`](crate::Client::resume) is meant.
    #[error("{}queue {queue:?} is not paused", .group.as_ref().map(|group| format!("group {group:?} of ")).unwrap_or_default())]
    NotPaused {
        /// The queue.
        queue: String,
        /// The group; none: the queue itself.
        group: Option<String>,
    },
    /// The job is in a state that does not allow the request.
    #[error("job {id} is {status}, so it cannot be {request}: {advice}")]
    WrongStatus {
        /// The id.
        id: i64,
        /// Its status.
        status: crate::JobStatus,
        /// What was asked for.
        request: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// Another transaction or a worker has the job's row at the moment.
    #[error("job {id} is locked by a worker or another transaction: try again")]
    Busy {
        /// The id.
        id: i64,
    },
    /// Nothing is parked there.
    #[error("no job of group {group:?} of queue {queue:?} is parked{}", .job.map(|id| format!(" with job {id}")).unwrap_or_default())]
    NotParked {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
        /// The failed job that was named.
        job: Option<i64>,
    },
    /// Some of the parked jobs are locked by another transaction, or are still being parked. Nothing was changed.
    #[error("parked jobs of group {group:?} of queue {queue:?} are being changed: try again")]
    GroupBusy {
        /// The queue.
        queue: String,
        /// The group.
        group: String,
    },
    /// A setting is out of its range.
    #[error("{setting} is {value}, it must be {range}")]
    OutOfRange {
        /// Which setting.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// Later jobs of its group were parked with the job, or are being parked: they go on together.
    #[error("other jobs are parked with job {id}: use redrive_parked or discard_parked")]
    Parked {
        /// The id.
        id: i64,
    },
    /// The queue or group has a name that cannot be used.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The database refused.
    #[error("the request did not reach the database")]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for ControlError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(quiet(error))
    }
}

/// Every mistake in a processor's settings, at once.
#[derive(Debug, thiserror::Error)]
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

/// One mistake in a processor's settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildMistake {
    /// No queue was registered.
    #[error("no queue is registered: call queue(options, handler) at least once")]
    NoQueue,
    /// A queue was registered twice.
    #[error("queue {queue:?} is registered twice")]
    Twice {
        /// The queue.
        queue: String,
    },
    /// A name cannot be used.
    #[error("{0}")]
    Name(#[from] NameError),
    /// A setting is out of its range.
    #[error("{setting} of queue {queue:?} is {value}, it must be {range}")]
    OutOfRange {
        /// The queue.
        queue: String,
        /// Which setting.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// The pool has fewer connections than the queues have slots; each running job holds one.
    #[error(
        "the pool has {connections} connections for {slots} slots ({detail}): each running job holds one, so raise max_connections to {slots} or more, or lower the concurrency"
    )]
    PoolTooSmall {
        /// `max_connections` of the pool.
        connections: u32,
        /// How many they need at once: the sum of the queues' concurrencies, or the slots that they share.
        slots: usize,
        /// The concurrency of each queue.
        detail: String,
    },
}

/// An error that no caller gets: it goes to `tracing` and to the hook of
/// [`ProcessorBuilder::on_error`](crate::ProcessorBuilder::on_error). The processor goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackgroundError {
    /// No connection could be had from the pool.
    #[error("queue {queue:?} got no connection from the pool")]
    Connection {
        /// The queue.
        queue: String,
        /// What the pool said.
        #[source]
        source: sqlx::Error,
    },
    /// A claim failed. It is tried again.
    #[error("queue {queue:?} could not claim jobs")]
    Claim {
        /// The queue.
        queue: String,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
    /// The tables are not there, or not those of this version. The claim is tried again, so that a processor may start
    /// before its migration.
    #[error(
        "queue {queue:?} has no tables in schema {schema:?}: call migrate() on this database first"
    )]
    NotMigrated {
        /// The queue.
        queue: String,
        /// The schema.
        schema: String,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
    /// The schema is of a version before this program's. No job is claimed until it is migrated: it is looked at each second.
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
    /// This program cannot run on the schema: [`MigrateError::Newer`] or [`MigrateError::Distributed`]. No job is claimed until
    /// that has changed: it is looked at each second.
    #[error("this program does not fit its schema, and claims no job")]
    UnusableSchema(#[source] MigrateError),
    /// A claimed job could not be held: its claim was taken over, or the connection failed. It runs again.
    #[error("job {job} of queue {queue:?} could not be held for its run")]
    Hold {
        /// The queue.
        queue: String,
        /// The job.
        job: i64,
        /// What the database said; none if the claim was lost to another worker.
        #[source]
        source: Option<sqlx::Error>,
    },
    /// The session that held a running job was lost; its handler was dropped.
    #[error("the hold of job {job} of queue {queue:?} was lost while its handler ran")]
    HoldLost {
        /// The queue.
        queue: String,
        /// The job.
        job: i64,
    },
    /// The outcome of a job was not recorded by this worker: its claim was taken over, or the database was not to be
    /// had for too long. Unless the last commit got through, another worker runs the job again.
    #[error("the outcome of job {job} of queue {queue:?} was not recorded by this worker")]
    Settle {
        /// The queue.
        queue: String,
        /// The job.
        job: i64,
        /// What the database said; none if the claim was lost to another worker.
        #[source]
        source: Option<sqlx::Error>,
    },
    /// The session that watches the holds failed. It is opened again.
    #[error("the monitor session failed")]
    Monitor(#[source] sqlx::Error),
    /// The session that shows that this process lives, and extends its leases, failed. It is opened again; handlers
    /// that leases keep are stopped if that takes too long.
    #[error("the presence of this processor could not be shown")]
    Presence(#[source] sqlx::Error),
    /// The thread of the monitor could not be started. The processor claims nothing.
    #[error("the monitor could not be started, so no job is claimed")]
    NoMonitor(#[source] std::io::Error),
    /// The wake-up session failed. Polling goes on.
    #[error("the wake-up session failed, polling goes on")]
    Listener(#[source] sqlx::Error),
    /// A pooler that hands out sessions for a transaction at a time is between this processor and the server. The processor
    /// goes on without what needs a session of its own, as with `listen(false)` and `presence(false)`; said once, unless both
    /// were said already.
    #[error(
        "a transaction pooler is in between: the processor goes on without wake-ups (jobs are found by polling) and without presence (a dead worker's leases end by themselves). Connect directly or through a session pooler to have both, or say listen(false) and presence(false)"
    )]
    TransactionPooler,
    /// A pooler that hands out sessions for a statement at a time is between this processor and the server: no transaction
    /// can be had. The processor claims nothing.
    #[error(
        "a pooler of statements is in between, behind which there are no transactions, so no job is claimed: set its mode to `transaction` or `session`, or connect directly"
    )]
    StatementPooler(#[source] sqlx::Error),
    /// Housekeeping failed. It is tried again.
    #[error("housekeeping failed")]
    Janitor(#[source] sqlx::Error),
    /// The sweep found jobs that nothing would have woken, and repaired them. Hand-made SQL can cause this.
    #[error(
        "{repaired} groups of queue {queue:?} had jobs that nothing would have woken; they were put in line"
    )]
    Stranded {
        /// The queue.
        queue: String,
        /// How many groups were put in line.
        repaired: u64,
    },
    /// The watchdog found that the processor makes no progress. It ends the process now.
    #[error("the watchdog ends this process: {0}")]
    Stalled(Stall),
    /// The thread of the watchdog could not be started. The processor works without one.
    #[error("the watchdog could not be started")]
    NoWatchdog(#[source] std::io::Error),
    /// An operation took longer than its limit and its connection was closed.
    #[error("{activity} did not end within {limit:?}, its connection was closed")]
    TooSlow {
        /// What was tried.
        activity: &'static str,
        /// The limit.
        limit: Duration,
    },
}
