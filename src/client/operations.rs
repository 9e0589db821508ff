//! What operators did.

use sqlx::PgExecutor;

use crate::client::client::Client;
use crate::job::operation::Operation;

impl Client {
    /// Returns up to `limit` changes that operators made, the last first; before the operation
    /// `before`, for the next page. Changes are there that were made by a client that
    /// [acts as](Self::acting_as) an operator, or by a SQL function.
    pub async fn operations(
        &self,
        executor: impl PgExecutor<'_>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Operation>, sqlx::Error> {
        self.store.operations(executor, before, limit.into()).await
    }
}
