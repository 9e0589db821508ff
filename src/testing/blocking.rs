//! Work that waits for files and programs.

use super::ServerError;

/// Runs `work`, which waits for files and programs, on a thread where it blocks no task.
pub(super) async fn blocking<T, F>(work: F) -> Result<T, ServerError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, ServerError> + Send + 'static,
{
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ServerError::io("prepare the server")(error.into())))
}
