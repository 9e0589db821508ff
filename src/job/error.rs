//! Mistakes in a value: in names, jobs, settings. The first line of a message has the reason. The
//! source lets code distinguish errors.

use std::sync::Arc;

use crate::job::reason::failed_call;
use crate::job::redact::redact_detail;

/// A name that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("the {} is empty: give it at least one character", called(field))]
    Empty {
        /// The field: `queue`, `group`, `schema`, `job`, `schedule`, `batch`, `reference`,
        /// `deduplication id` or `content type`.
        field: &'static str,
    },
    /// The name has too many characters; a schema's, too many bytes.
    #[error("the {} has {length} {}, at most {limit} are allowed", called(field), unit(field))]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// The name has a control character (they make logs and terminals unreadable, and `PostgreSQL`
    /// refuses NUL).
    #[error(
        "the {} has the control character {character:?} at byte {position}: remove or escape it",
        called(field)
    )]
    Control {
        /// The field.
        field: &'static str,
        /// The character.
        character: char,
        /// Its byte position.
        position: usize,
    },
    /// The schema name starts with `pg_`, or is `information_schema` or `$user`: `PostgreSQL` keeps
    /// them for itself.
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

/// Returns the unit of a length: PostgreSQL cuts identifiers by bytes.
fn unit(field: &str) -> &'static str {
    if field == "schema" { "bytes" } else { "characters" }
}

/// Returns the field as the message calls it: some fields are names, others have one.
fn called(field: &str) -> String {
    match field {
        "queue" | "group" | "schema" | "job" | "schedule" | "batch" => format!("{field} name"),
        field => field.to_owned(),
    }
}

/// Returns the job as a message calls it: a call for one job has no other.
fn the_job(index: Option<usize>) -> String {
    index.map_or_else(|| String::from("the job"), |index| format!("job {index} of the call"))
}

/// Why an enqueue failed. No job was written by this call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The queue, group, or another of the job's names and ids cannot be used.
    #[error("{} cannot be enqueued: {source}", the_job(*index))]
    Name {
        /// Position in the call, from 0; `None` if the call was for one job.
        index: Option<usize>,
        /// The mistake in the name.
        #[source]
        source: NameError,
    },
    /// The data could not be serialized.
    #[error("the data of {} cannot be serialized to JSON: {source}", the_job(*index))]
    Serialize {
        /// Position in the call, from 0; `None` if the call was for one job.
        index: Option<usize>,
        /// The error of serde.
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// The serialized data is too large.
    #[error(
        "the data of {} has {size} bytes, at most {limit} are allowed: store it elsewhere and enqueue a reference, or raise the limit with Client::data_limit", the_job(*index)
    )]
    DataTooLarge {
        /// Position in the call, from 0; `None` if the call was for one job.
        index: Option<usize>,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The jobs of a call have too much data for one statement.
    #[error(
        "the jobs of the call have {size} bytes, at most {limit} are allowed: split the call, in one transaction if all or none must be written"
    )]
    CallTooLarge {
        /// The size of all jobs in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The data has a NUL character in a string, which `PostgreSQL`'s `jsonb` cannot hold.
    #[error(
        "the data of {} has a NUL character (\\u0000) in a string, which jsonb cannot hold: remove or encode it", the_job(*index)
    )]
    DataHasNul {
        /// Position in the call, from 0; `None` if the call was for one job.
        index: Option<usize>,
    },
    /// The data is nested deeper than a handler could read.
    #[error(
        "the data of {} is nested {depth} levels deep, at most {limit} can be read: flatten it, or enqueue it as a string or as bytes", the_job(*index)
    )]
    DataTooDeep {
        /// Position in the call, from 0; `None` if the call was for one job.
        index: Option<usize>,
        /// The depth of the data.
        depth: usize,
        /// The limit.
        limit: usize,
    },
    /// A number is out of its range.
    #[error("{field} of {} is {value}, it must be {range}", the_job(*index))]
    OutOfRange {
        /// Position in the call, from 0; `None` if the call was for one job.
        index: Option<usize>,
        /// The setting.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// The range that is allowed.
        range: &'static str,
    },
    /// The batch of a job is sealed.
    #[error(
        "batch {batch} is sealed, so no job can join it: enqueue its jobs before it is sealed, or open another batch"
    )]
    BatchSealed {
        /// The batch.
        batch: i64,
    },
    /// There is no batch of this id, as far as this transaction sees.
    #[error(
        "there is no batch {batch}: open it by open_batch, in this transaction or in one that has committed"
    )]
    NoSuchBatch {
        /// The batch.
        batch: i64,
    },
    /// The database refused.
    #[error("{}", failed_call("enqueue", .0))]
    Database(#[source] sqlx::Error),
}

impl EnqueueError {
    /// Returns the word for the error in spans.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Name { .. } => "name",
            Self::Serialize { .. } => "serialize",
            Self::DataTooLarge { .. } => "data_too_large",
            Self::DataHasNul { .. } => "data_has_nul",
            Self::DataTooDeep { .. } => "data_too_deep",
            Self::OutOfRange { .. } => "out_of_range",
            Self::BatchSealed { .. } => "batch_sealed",
            Self::NoSuchBatch { .. } => "no_such_batch",
            Self::CallTooLarge { .. } => "call_too_large",
            Self::Database(_) => "database",
        }
    }
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
        /// The setting.
        setting: &'static str,
        /// The value that was given.
        value: String,
        /// The range that is allowed.
        range: &'static str,
    },
    /// The database refused.
    #[error("{}", failed_call("change of settings", .0))]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for ConfigureError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(redact_detail(error))
    }
}

/// Why a batch could not be opened, sealed or read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The name of the batch cannot be used.
    #[error("a batch cannot be opened: {0}")]
    Name(#[from] NameError),
    /// Its follow-up could not be enqueued.
    #[error("batch {batch:?} cannot be opened: {mistake}")]
    FollowUp {
        /// The name of the batch.
        batch: String,
        /// The mistake in the follow-up.
        mistake: String,
    },
    /// There is no batch of this id, or it was deleted after its follow-up.
    #[error("there is no batch {batch} (it may have been deleted with its follow-up)")]
    NoSuchBatch {
        /// The batch.
        batch: i64,
    },
    /// The database refused.
    #[error("{}", failed_call("call", .0))]
    Database(#[source] sqlx::Error),
}

impl From<sqlx::Error> for BatchError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(redact_detail(error))
    }
}

/// A mistake in a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The name of the schedule cannot be used.
    #[error("a schedule cannot be used: {0}")]
    Name(#[from] NameError),
    /// The cron expression cannot be read, or names no time that ever comes.
    #[error(
        "schedule {schedule:?} cannot be used, {spec:?} is no cron expression ({reason}): it takes five fields, minute, hour, day of the month, month and day of the week, as in \"0 3 * * *\""
    )]
    Spec {
        /// The schedule.
        schedule: String,
        /// The expression.
        spec: String,
        /// The mistake in it.
        reason: String,
    },
    /// There is no such time zone.
    #[error(
        "schedule {schedule:?} cannot be used, there is no time zone {zone:?}: it takes a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\""
    )]
    Zone {
        /// The schedule.
        schedule: String,
        /// The name.
        zone: String,
    },
    /// A setting is out of its range.
    #[error("{setting} of schedule {schedule:?} is {value}, it must be {range}")]
    OutOfRange {
        /// The schedule.
        schedule: String,
        /// The setting.
        setting: &'static str,
        /// The value that was given.
        value: String,
        /// The range that is allowed.
        range: &'static str,
    },
    /// A text names no policy of missed times.
    #[error("{given:?} is no policy of missed times: those are \"last\", \"skip\" and \"all:10\"")]
    Missed {
        /// The text.
        given: String,
    },
    /// It has no job.
    #[error("schedule {schedule:?} has no job: call job(NewJob::new(queue, &data))")]
    NoJob {
        /// The schedule.
        schedule: String,
    },
    /// Its job could not be enqueued.
    #[error("schedule {schedule:?} cannot be used: {mistake}")]
    Job {
        /// The schedule.
        schedule: String,
        /// The mistake in the job.
        mistake: String,
    },
    /// Its times cannot be computed by this program.
    #[error(
        "the times of schedule {schedule:?} cannot be computed: build this program with seriatim's feature `cron`"
    )]
    NoCron {
        /// The schedule.
        schedule: String,
    },
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
    /// The handlers of a queue are an empty [`Kinds`](crate::Kinds).
    #[error("queue {queue:?} has no handler: add one by Kinds::on(handler)")]
    NoKind {
        /// The queue.
        queue: String,
    },
    /// A kind of job has two handlers in a queue.
    #[error(
        "the kind {kind:?} has two handlers in queue {queue:?}: keep one, or give one of the kinds another name"
    )]
    KindTwice {
        /// The queue.
        queue: String,
        /// The name of the kind, or an earlier one.
        kind: &'static str,
    },
    /// A kind of job has a handler in a queue that its jobs do not go to.
    #[error(
        "the kind {kind:?} has a handler in queue {queue:?}, and its jobs go to queue {of:?}: register the handler there"
    )]
    KindOfOtherQueue {
        /// The queue.
        queue: String,
        /// The name of the kind, or an earlier one.
        kind: &'static str,
        /// The queue of the kind.
        of: &'static str,
    },
    /// A schedule was added twice.
    #[error("schedule {schedule:?} is added twice")]
    ScheduleTwice {
        /// The schedule.
        schedule: String,
    },
    /// A processor of several servers has a schedule: each would fire it.
    #[error(
        "schedule {schedule:?} would be fired by each server: store it on the server of its group, by Client::operator(..).set_schedule(pool, ..)"
    )]
    ScheduleOnShards {
        /// The schedule.
        schedule: String,
    },
    /// A schedule cannot be used.
    #[error("{0}")]
    Schedule(#[from] ScheduleError),
    /// A name cannot be used.
    #[error("{0}")]
    Name(#[from] NameError),
    /// A setting is out of its range.
    #[error("{setting} of queue {queue:?} is {value}, it must be {range}")]
    OutOfRange {
        /// The queue.
        queue: String,
        /// The setting.
        setting: &'static str,
        /// The value that was given.
        value: String,
        /// The range that is allowed.
        range: &'static str,
    },
    /// The pool has fewer connections than the queues of its processors have slots; each running
    /// job holds one.
    #[error(
        "the pool has {connections} connections for {slots} slots ({detail}): each running job holds one, so raise max_connections to {slots} or more, or lower the concurrency"
    )]
    PoolTooSmall {
        /// `max_connections` of the pool.
        connections: u32,
        /// How many they need at once: the sum of the queues' concurrencies, or the slots that they
        /// share, and what other processors on the pool need.
        slots: usize,
        /// The concurrency of each queue, and the need of the others.
        detail: String,
    },
}

/// Why a handler's progress or checkpoint was refused, or could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgressError {
    /// The progress is more than 100 %.
    #[error(
        "the progress is {percent} %, it must be from 0 to 100: pass how much of the work is done"
    )]
    OutOfRange {
        /// The percentage.
        percent: u8,
    },
    /// The checkpoint cannot be stored: serde failed, or `jsonb` cannot hold it. It is not kept.
    #[error("the checkpoint cannot be stored as JSON: {reason}")]
    Serialize {
        /// The mistake in it.
        reason: String,
    },
    /// The checkpoint is too large. It is not kept.
    #[error(
        "the checkpoint has {size} bytes, at most {limit} are allowed: store the work elsewhere, and keep its place here"
    )]
    TooLarge {
        /// Its bytes of JSON.
        size: usize,
        /// The most.
        limit: usize,
    },
    /// The last checkpoint does not decode into the handler's type: an older version of the program
    /// may have written it.
    #[error("the last checkpoint does not decode into the handler's type: {reason}")]
    Decode {
        /// The error of serde, without the values.
        reason: String,
    },
    /// The claim of the job is suspected, or another worker has taken it over. The checkpoint is
    /// written if the claim turns out to stand.
    #[error("the claim of job {job} is suspected or taken over, so nothing was written for it")]
    NotHeld {
        /// The job.
        job: i64,
    },
    /// The database could not be reached in time, or refused. A checkpoint is kept in memory, and
    /// tried again.
    #[error("{}", failed_call("checkpoint", .0))]
    Database(#[source] sqlx::Error),
}
