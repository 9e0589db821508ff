//! The errors that refuse a request: their names in both protocols, and their HTTP status.

use sqlx::postgres::PgDatabaseError;

/// The kinds of errors that clients are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    AccessDenied,
    BatchEntryIdsNotDistinct,
    BatchRequestTooLong,
    /// Another transaction has what the request needs.
    Busy,
    EmptyBatchRequest,
    IncompleteSignature,
    InternalFailure,
    InvalidAction,
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidBatchEntryId,
    InvalidMessageContents,
    InvalidParameterValue,
    MalformedRequest,
    MissingAuthentication,
    MissingParameter,
    OverLimit,
    PurgeQueueInProgress,
    QueueDoesNotExist,
    QueueNameExists,
    ReceiptHandleIsInvalid,
    RequestTooLarge,
    ResourceNotFound,
    ServiceUnavailable,
    SignatureDoesNotMatch,
    TooManyEntries,
    UnknownKey,
    UnknownOperation,
    UnsupportedOperation,
}

impl Code {
    /// Returns its name in the JSON protocol, its name in the Query protocol, and the status.
    pub(crate) fn names(self) -> (&'static str, &'static str, u16) {
        match self {
            Self::AccessDenied => ("AccessDeniedException", "AccessDenied", 403),
            Self::BatchEntryIdsNotDistinct => {
                ("BatchEntryIdsNotDistinct", "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", 400)
            }
            Self::BatchRequestTooLong => {
                ("BatchRequestTooLong", "AWS.SimpleQueueService.BatchRequestTooLong", 400)
            }
            Self::EmptyBatchRequest => {
                ("EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400)
            }
            Self::IncompleteSignature => {
                ("IncompleteSignatureException", "IncompleteSignature", 400)
            }
            Self::InternalFailure => ("InternalFailure", "InternalFailure", 500),
            Self::InvalidAction => ("UnknownOperationException", "InvalidAction", 400),
            Self::InvalidAttributeName => ("InvalidAttributeName", "InvalidAttributeName", 400),
            Self::InvalidAttributeValue => ("InvalidAttributeValue", "InvalidAttributeValue", 400),
            Self::InvalidBatchEntryId => {
                ("InvalidBatchEntryId", "AWS.SimpleQueueService.InvalidBatchEntryId", 400)
            }
            Self::InvalidMessageContents => {
                ("InvalidMessageContents", "InvalidMessageContents", 400)
            }
            Self::InvalidParameterValue => {
                ("InvalidParameterValueException", "InvalidParameterValue", 400)
            }
            Self::MalformedRequest => ("SerializationException", "MalformedInput", 400),
            Self::MissingAuthentication => {
                ("MissingAuthenticationTokenException", "MissingAuthenticationToken", 403)
            }
            Self::MissingParameter => {
                ("MissingRequiredParameterException", "MissingParameter", 400)
            }
            Self::OverLimit => ("OverLimit", "OverLimit", 403),
            Self::PurgeQueueInProgress => {
                ("PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403)
            }
            Self::QueueDoesNotExist => {
                ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400)
            }
            Self::QueueNameExists => ("QueueNameExists", "QueueAlreadyExists", 400),
            Self::ReceiptHandleIsInvalid => {
                ("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 400)
            }
            Self::RequestTooLarge => ("RequestEntityTooLarge", "RequestEntityTooLarge", 413),
            Self::ResourceNotFound => {
                ("ResourceNotFoundException", "ResourceNotFoundException", 404)
            }
            Self::Busy | Self::ServiceUnavailable => {
                ("ServiceUnavailableException", "ServiceUnavailable", 503)
            }
            Self::SignatureDoesNotMatch => {
                ("InvalidSignatureException", "SignatureDoesNotMatch", 403)
            }
            Self::TooManyEntries => (
                "TooManyEntriesInBatchRequest",
                "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
                400,
            ),
            Self::UnknownOperation => {
                ("UnknownOperationException", "UnknownOperationException", 404)
            }
            Self::UnsupportedOperation => {
                ("UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation", 400)
            }
            Self::UnknownKey => ("UnrecognizedClientException", "InvalidClientTokenId", 403),
        }
    }

    /// Returns whether the request is at fault, and not the server.
    pub(crate) fn is_the_senders(self) -> bool {
        self.names().2 < 500
    }
}

/// A refusal, as a client is told it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub(crate) struct SqsError {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// A text for the log alone.
    pub(crate) detail: Option<String>,
}

impl SqsError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), detail: None }
    }

    pub(crate) fn missing(parameter: &str) -> Self {
        let message = format!("The request must contain the parameter {parameter}.");
        Self::new(Code::MissingParameter, message)
    }

    pub(crate) fn invalid(value: impl std::fmt::Display, parameter: &str, reason: &str) -> Self {
        let message =
            format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}");
        Self::new(Code::InvalidParameterValue, message)
    }

    pub(crate) fn unavailable() -> Self {
        Self::new(Code::ServiceUnavailable, "The database cannot be asked now. Try again.")
    }

    pub(crate) fn no_queue() -> Self {
        Self::new(Code::QueueDoesNotExist, "The specified queue does not exist.")
    }

    pub(crate) fn busy() -> Self {
        let message = "Another transaction has the message or the queue for a moment. Try again.";
        Self::new(Code::Busy, message)
    }
}

/// Returns whether the same statement may succeed later: the server is away, or has too little of
/// something, or another transaction was in the way.
pub(crate) fn is_passing(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else { return true };
    // 40: another transaction; 53, 57: the server has too little of something, or ends.
    error.code().is_none_or(|code| ["40", "53", "57"].iter().any(|class| code.starts_with(class)))
}

/// The database's message is only logged: it may reveal other clients' data.
impl From<sqlx::Error> for SqsError {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::Database(e) = &error
            && let Some(e) = e.try_downcast_ref::<PgDatabaseError>()
        {
            if e.code() == "42501" {
                let message = "The role of this access key lacks a right (docs/roles.sql).";
                let refused = Self::new(Code::AccessDenied, message);
                return Self { detail: Some(e.message().to_owned()), ..refused };
            }
            // A lock timeout.
            if e.code() == "55P03" {
                return Self::busy();
            }
            // A NUL, which PostgreSQL's text and JSON do not have.
            if ["22021", "22P05"].contains(&e.code()) {
                let message = "A parameter has a character that is not allowed.";
                return Self::new(Code::InvalidParameterValue, message);
            }
        }
        if !is_passing(&error) {
            tracing::error!(error = %error, "a statement failed");
            return Self::new(Code::InternalFailure, "The request failed. The log says why.");
        }
        tracing::warn!(error = %error, "the database cannot be asked");
        Self::unavailable()
    }
}
