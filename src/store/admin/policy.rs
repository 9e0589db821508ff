//! The policy of a group for a job that is out of attempts, if it differs from its queue's.

use sqlx::PgExecutor;
use sqlx::types::Json;

use crate::job::policy::StoredOutOfAttempts;
use crate::job::queue_options::OutOfAttempts;
use crate::store::admin::control::Acting;
use crate::store::statement::statements;
use crate::store::store::Store;

statements! {
    SET = |names| names.sql(
        "select {set_group_policy}($1, $2, $3->>'out_of_attempts', ($3->>'halt_for')::interval,
            $3->>'halt_then', $4, $5)",
    );
}

impl Store {
    pub(crate) async fn set_group_policy(
        &self,
        executor: impl PgExecutor<'_>,
        queue: &str,
        group: &str,
        policy: Option<OutOfAttempts>,
        acting: Acting<'_>,
    ) -> Result<(), sqlx::Error> {
        let set = self.query(&SET).bind(queue).bind(group);
        let set = set.bind(Json(StoredOutOfAttempts::from(policy)));
        set.bind(acting.reason).bind(acting.actor).execute(executor).await.map(drop)
    }
}
