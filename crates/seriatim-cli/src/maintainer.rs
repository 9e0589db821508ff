//! Maintenance of all queues of a schema, next to a service or alone.

use std::convert::Infallible;
use std::time::Duration;

use serde_json::json;
use seriatim::Client;
use seriatim::admin::Maintained;
use seriatim::shards::ShardId;
use sqlx::PgPool;
use tokio::time::sleep;

use crate::failure::Failure;
use crate::output::text::count;
use crate::output::{Form, json_line, line, remark};

/// Time between two calls, and after one that failed.
const EVERY: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(5);

/// A schema on a server.
pub(crate) struct Maintainer {
    client: Client,
    pool: PgPool,
    shard: Option<ShardId>,
    form: Form,
}

impl Maintainer {
    pub(crate) fn new(client: Client, pool: PgPool, shard: Option<ShardId>, form: Form) -> Self {
        Self { client, pool, shard, form }
    }

    /// Maintains until it is dropped. A failure is reported when it differs from the last one.
    pub(crate) async fn run(&self) -> Infallible {
        let mut last = String::new();
        loop {
            match self.once().await {
                Ok(()) => {
                    last.clear();
                    sleep(EVERY).await;
                }
                Err(failure) => {
                    let failure = failure.to_string();
                    if failure != last {
                        remark(self.form, &format!("{}{failure}; trying again", self.of()));
                    }
                    last = failure;
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// Maintains once, and prints what it did.
    pub(crate) async fn once(&self) -> Result<(), Failure> {
        let done = self.client.maintain(&self.pool).await?;
        if done == Maintained::default() {
            return Ok(());
        }
        if self.form == Form::Json {
            let schema = self.client.schema();
            return json_line(&json!({"schema": schema, "shard": self.shard, "maintained": done}));
        }
        line(&format!("{}{}", self.of(), sentence(done)))
    }

    /// The schema and the server, before what was done there.
    fn of(&self) -> String {
        let schema = self.client.schema();
        self.shard.map_or_else(
            || format!("schema {schema:?}: "),
            |shard| format!("schema {schema:?} on shard {shard}: "),
        )
    }
}

fn sentence(done: Maintained) -> String {
    let parts = [
        (done.deleted, "job", "deleted after their retention"),
        (done.cancelled, "job", "cancelled"),
        (done.moved, "job", "moved"),
        (done.scheduled, "job", "made by schedules"),
        (done.halts_ended, "halt", "ended"),
        (done.batches_ended, "follow-up", "started by batches"),
        (done.repaired, "group", "woken that nothing would have woken"),
    ];
    let parts = parts.into_iter().filter(|(number, ..)| *number > 0);
    parts
        .map(|(number, noun, what)| format!("{} {what}", count(number, noun)))
        .collect::<Vec<_>>()
        .join(", ")
}
