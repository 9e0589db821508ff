//! How a command fails, and its exit code.

use std::error::Error;
use std::io;

use seriatim::receive::ReceiveError;
use seriatim::{BatchError, ConfigureError, ControlError, EnqueueError, MigrateError, NameError};

use sqlx::postgres::PgDatabaseError;

use crate::output::text::{in_commands, program};

/// The exit code of arguments that cannot be used.
pub(crate) const USAGE: u8 = 2;

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The database or the machine failed.
    #[error("{0}")]
    Error(String),
    /// The arguments cannot be used.
    #[error("{0}")]
    Usage(String),
    /// There is nothing that the arguments name.
    #[error("{0}")]
    NothingMatched(String),
    /// It must not be done, or not now.
    #[error("{0}")]
    Refused(String),
    /// It was told already, item by item; the failure decides the exit code.
    #[error("{0}")]
    Told(Box<Failure>),
    /// Nobody reads the output.
    #[error("the output was closed")]
    Closed,
}

impl Failure {
    /// Returns the exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Error(_) => 1,
            Self::Usage(_) => USAGE,
            Self::NothingMatched(_) => 3,
            Self::Refused(_) => 4,
            Self::Told(failure) => failure.code(),
            Self::Closed => 0,
        }
    }

    /// Returns a function that says what could not be done.
    pub(crate) fn could_not<E: Error>(what: &str) -> impl FnOnce(E) -> Self {
        move |error| Self::Error(format!("could not {what}: {}", chain(&error)))
    }
}

/// Returns the messages of an error and its sources, in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        source = cause.source();
    }
    text
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        let sqlx::Error::Database(database) = &error else {
            return Self::Error(format!("the database did not answer: {}", chain(&error)));
        };
        let code = database.code().unwrap_or_default();
        let hint = database.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::hint);
        let hint = hint.map(|hint| format!(". {hint}")).unwrap_or_default();
        let message = format!("{} (SQLSTATE {code}){hint}", database.message());
        match &*code {
            "42P01" | "42703" | "42883" | "3F000" => Self::Error(format!(
                "{message}; `{} migrate` makes the tables, and --schema names another schema",
                program()
            )),
            "42501" => Self::Refused(format!(
                "{message}; docs/roles.sql has roles for observers, workers and operators"
            )),
            // The library's functions say so of their arguments.
            "22023" => Self::Usage(format!("{}{hint}", database.message())),
            // JSON with half a surrogate pair, or a number beyond `numeric`.
            "22P02" | "22P05" | "22003" => {
                Self::Usage(format!("PostgreSQL cannot hold an argument: {message}"))
            }
            "25006" => Self::Refused(format!("{message}; this is a read-only server or session")),
            _ => Self::Error(message),
        }
    }
}

/// Returns the message of an error. Its advice names commands.
fn advised(error: &ControlError) -> String {
    let (queue, group) = match error {
        ControlError::NothingWaits { queue, group }
        | ControlError::NotHalted { queue, group }
        | ControlError::GroupBusy { queue, group }
        | ControlError::NotParked { queue, group, .. }
        | ControlError::GroupRuns { queue, group, .. } => (Some(queue), Some(group)),
        ControlError::NotPaused { queue, group } => (Some(queue), group.as_ref()),
        ControlError::MoveTaskRuns { queue } => (Some(queue), None),
        _ => (None, None),
    };
    in_commands(&chain(error), queue.map(|name| &**name), group.map(|name| &**name))
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let message = advised(&error);
        match error {
            ControlError::NoSuchJob { .. }
            | ControlError::NothingWaits { .. }
            | ControlError::NotHalted { .. }
            | ControlError::NotPaused { .. }
            | ControlError::NoSuchSchedule { .. }
            | ControlError::ScheduleNotPaused { .. }
            | ControlError::NoSuchMoveTask { .. }
            | ControlError::MoveTaskEnded { .. }
            | ControlError::NoSuchBatch { .. }
            | ControlError::NotParked { .. } => Self::NothingMatched(message),
            ControlError::WrongStatus { .. }
            | ControlError::Busy { .. }
            | ControlError::GroupBusy { .. }
            | ControlError::GroupRuns { .. }
            | ControlError::MayNotAbort { .. }
            | ControlError::HaltedBy { .. }
            | ControlError::DeadLetter { .. }
            | ControlError::Moved { .. }
            | ControlError::MoveTaskRuns { .. }
            | ControlError::BatchEnded { .. }
            | ControlError::Parked { .. } => Self::Refused(message),
            ControlError::OutOfRange { .. } | ControlError::Name(_) | ControlError::Schedule(_) => {
                Self::Usage(message)
            }
            ControlError::Database(source) => source.into(),
            _ => Self::Error(message),
        }
    }
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Self {
        let message = chain(&error);
        match error {
            ReceiveError::Stale { .. } | ReceiveError::Busy { .. } => Self::Refused(message),
            ReceiveError::Refused { .. } | ReceiveError::Serialize { .. } => Self::Usage(message),
            ReceiveError::Database(source) => source.into(),
            _ => Self::Error(message),
        }
    }
}

impl From<NameError> for Failure {
    fn from(error: NameError) -> Self {
        Self::Usage(chain(&error))
    }
}

impl From<ConfigureError> for Failure {
    fn from(error: ConfigureError) -> Self {
        match error {
            ConfigureError::Database(source) => source.into(),
            other => Self::Usage(chain(&other)),
        }
    }
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::Database(source) => source.into(),
            BatchError::NoSuchBatch { .. } => Self::NothingMatched(chain(&error)),
            other => Self::Usage(chain(&other)),
        }
    }
}

impl From<EnqueueError> for Failure {
    fn from(error: EnqueueError) -> Self {
        match error {
            EnqueueError::Database(source) => source.into(),
            EnqueueError::NoSuchBatch { .. } => Self::NothingMatched(chain(&error)),
            EnqueueError::BatchSealed { .. } => Self::Refused(chain(&error)),
            other => Self::Usage(in_commands(&chain(&other), None, None)),
        }
    }
}

impl From<MigrateError> for Failure {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Database { source, .. } => source.into(),
            MigrateError::OtherShard { schema, found, wanted } => Self::Refused(format!(
                "schema {schema:?} of this database is shard {found}, not {wanted}: check which \
                 server each URL leads to. A schema keeps its number, and one that was given none \
                 is shard 0"
            )),
            other => Self::Refused(chain(&other)),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Error(format!("the answer could not be written as JSON: {error}"))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Error(format!("the output could not be written: {error}")),
        }
    }
}
