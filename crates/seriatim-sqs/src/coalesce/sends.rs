//! Sends: the messages of several requests become jobs in one statement.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use seriatim::{Client, EnqueueError, Enqueued, NewJob};
use sha2::{Digest, Sha256};
use sqlx::PgPool;

use crate::coalesce::Statement;
use crate::database::Database;
use crate::digest::hex;
use crate::error::{Code, SqsError};
use crate::message::SIZE_LIMIT;
use crate::patience::TRY;

/// The content type that bodies are stored with.
const CONTENT_TYPE: &str = "text/plain; charset=utf-8";
/// How long requests wait together for a transaction that has one of their deduplication ids. Then
/// each waits alone.
const TOGETHER: &str = "50ms";

/// A message to enqueue.
#[derive(Debug)]
pub(crate) struct NewMessage {
    pub(crate) body: String,
    pub(crate) group: Option<String>,
    pub(crate) dedup_id: Option<String>,
    pub(crate) delay: Option<Duration>,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) attributes: Map<String, Value>,
}

/// The messages of a request.
pub(crate) struct Sending {
    pub(crate) queue: String,
    pub(crate) retention: Duration,
    /// Whether a deduplication id counts in its group alone.
    pub(crate) ids_of_groups: bool,
    pub(crate) messages: Vec<NewMessage>,
}

impl Sending {
    /// Returns the deduplication ids of the messages that have an order, each with what it counts
    /// in. Without an id a message may have that of its content.
    fn ids(&self) -> BTreeSet<String> {
        let ordered =
            self.messages.iter().filter_map(|message| Some((message, message.group.as_ref()?)));
        let ids = ordered.map(|(message, group)| {
            let group = if self.ids_of_groups { group.as_str() } else { "" };
            let of_content = || hex(&Sha256::digest(&message.body));
            let id = message.dedup_id.clone().unwrap_or_else(of_content);
            format!("{} {group} {id}", self.queue)
        });
        ids.collect()
    }

    fn jobs(&self) -> impl Iterator<Item = NewJob> {
        self.messages.iter().map(|message| {
            let body = message.body.clone().into_bytes();
            let mut job = NewJob::bytes(&*self.queue, CONTENT_TYPE, body)
                .attributes(message.attributes.clone())
                .time_to_live(self.retention);
            for (name, value) in &message.headers {
                job = job.header(*name, value);
            }
            if let Some(group) = &message.group {
                job = job.group(group);
            }
            if let Some(id) = &message.dedup_id {
                job = job.dedup_id(id);
            }
            match message.delay {
                Some(delay) => job.delay(delay),
                None => job,
            }
        })
    }
}

/// A message that was enqueued, or the earlier one that it repeats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) id: i64,
    pub(crate) created_us: i64,
}

/// Enqueues messages, in a role.
pub(crate) struct Sends {
    database: Arc<Database>,
    client: Client,
    pool: PgPool,
}

impl Sends {
    pub(crate) fn new(database: &Arc<Database>, pool: &PgPool) -> Self {
        // A queue has its own limit.
        let client = database.client.clone().data_limit(SIZE_LIMIT);
        Self { database: Arc::clone(database), client, pool: pool.clone() }
    }
}

impl Statement for Sends {
    type Asked = Sending;
    /// The outcome per message.
    type Answer = Vec<Result<Sent, SqsError>>;
    type Error = sqlx::Error;

    const PATIENT: bool = true;

    async fn run(
        &self,
        asked: &[Sending],
        patient: bool,
    ) -> Result<Vec<Self::Answer>, sqlx::Error> {
        let mut tx = self.pool.begin().await?;
        // Jobs are created at the begin of their transaction.
        let begun = sqlx::query_scalar(
            "select (extract(epoch from now()) * 1000000)::int8
             from set_config('lock_timeout', $1, true)",
        );
        let begun = begun.bind(if patient { TRY } else { TOGETHER });
        let created_us: i64 = begun.fetch_one(&mut *tx).await?;
        let jobs = asked.iter().flat_map(Sending::jobs);
        let enqueued = self.client.enqueue_batch(&mut *tx, jobs).await.map_err(|e| match e {
            EnqueueError::Database(error) => error,
            other => sqlx::Error::Protocol(other.to_string()),
        })?;
        let repeated: Vec<i64> = enqueued
            .iter()
            .filter_map(|job| match job {
                Ok(Enqueued::Duplicate { id }) => Some(*id),
                _ => None,
            })
            .collect();
        let earlier = if repeated.is_empty() {
            HashMap::default()
        } else {
            self.database.created(&mut tx, &repeated).await?
        };
        tx.commit().await?;
        let mut sent = enqueued.into_iter().map(|job| {
            let id = job.map_err(refusal)?.id();
            Ok(Sent { id, created_us: earlier.get(&id).copied().unwrap_or(created_us) })
        });
        let of_request = |request: &Sending| sent.by_ref().take(request.messages.len()).collect();
        Ok(asked.iter().map(of_request).collect())
    }

    fn is_undone(error: &sqlx::Error) -> bool {
        error.as_database_error().is_some()
    }

    fn refusal(error: sqlx::Error) -> SqsError {
        error.into()
    }

    fn waits_for(asked: &Sending) -> BTreeSet<String> {
        asked.ids()
    }

    fn size(asked: &Sending) -> usize {
        asked.messages.iter().map(|message| message.body.len()).sum()
    }
}

fn refusal(error: EnqueueError) -> SqsError {
    match error {
        EnqueueError::Database(error) => error.into(),
        other => SqsError::new(Code::InvalidParameterValue, other.to_string()),
    }
}
