//! Queues: made, listed, described, tagged, emptied and removed.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::{Map, Value, json};
use sqlx::PgTransaction;

use crate::caller::QueueName;
use crate::database::Depth;
use crate::error::{Code, SqsError};
use crate::input::{
    self, CreateQueue, GetQueueAttributes, GetQueueUrl, ListQueues, OfQueue, SetQueueAttributes,
    TagQueue, Texts, UntagQueue, in_range,
};
use crate::queue::{self, Queue};
use crate::redrive::RedrivePolicy;
use crate::servers::Server;
use crate::service::Request;
use crate::service::changes::Change;

const PAGE: i64 = 1000;
const TAGS_LIMIT: usize = 50;

impl Request {
    /// Makes a queue. One of the same name with the same settings is returned; others are refused.
    pub(super) async fn create_queue(&self, input: CreateQueue) -> Result<Value, SqsError> {
        let name = input.queue_name.ok_or_else(|| SqsError::missing("QueueName"))?;
        let name = self.caller.queue(name)?;
        let given = queue::normal(input.attributes);
        if !queue::is_fifo(&name) && given.get("FifoQueue").is_some_and(|fifo| fifo != "true") {
            let message = "Unknown Attribute FifoQueue.";
            return Err(SqsError::new(Code::InvalidAttributeName, message));
        }
        queue::check_name(&name, &given)?;
        queue::check_settings(&name, &given)?;
        check_tags(&name, &input.tags)?;
        self.check_target(&name, &given).await?;
        let attributes: Texts = given.clone().into_iter().filter(|(_, v)| !v.is_empty()).collect();
        self.servers().check_all_there()?;
        let first = self.servers().deciding();
        self.check_not_elsewhere(first, &name, &attributes).await?;
        let once = || self.make_queue(first, &name, &given, &attributes, &input.tags);
        first.ask(self.until_free(first, &name, once)).await?;
        if self.servers().only().is_none() {
            self.change_queue(&name, |_| Ok(Change::Following)).await?;
        }
        Ok(json!({"QueueUrl": self.url_of(&name)}))
    }

    /// Refuses a queue that the first server lacks and another one has with other settings, which
    /// would be lost. The first one may be new, or an older state of itself.
    async fn check_not_elsewhere(
        &self,
        first: &Server,
        name: &QueueName,
        attributes: &Texts,
    ) -> Result<(), SqsError> {
        for server in self.servers().others() {
            let pool = self.pool(server);
            let found = server.ask(server.database.queue(&pool, name)).await;
            let found = match found {
                Err(error) if error.code == Code::QueueDoesNotExist => continue,
                found => found?,
            };
            let Some(attribute) = queue::differing(attributes, &found.attributes).next() else {
                continue;
            };
            return match first.ask(first.database.queue(&self.pool(first), name)).await {
                Err(error) if error.code == Code::QueueDoesNotExist => {
                    let shard = server.number().unwrap_or_default();
                    let message = format!(
                        "Shard {shard} has this queue with a different value for attribute \
                         {attribute}, and the first server does not have it: create it with the \
                         attributes that it has there"
                    );
                    Err(SqsError::new(Code::QueueNameExists, message))
                }
                found => found.map(drop),
            };
        }
        Ok(())
    }

    /// Makes a queue on the first server, which decides whether it may have these settings.
    async fn make_queue(
        &self,
        server: &Server,
        name: &QueueName,
        given: &Texts,
        attributes: &Texts,
        tags: &Texts,
    ) -> Result<(), SqsError> {
        let (mut tx, database) = (self.begin(server).await?, &server.database);
        if database.insert_queue(&mut tx, name, attributes, tags).await? {
            let settings = queue::job_settings(name, attributes, true);
            self.configure(server, &mut tx, settings, "CreateQueue").await?;
        } else {
            let found = database.find_queue(&mut tx, name).await?.ok_or_else(SqsError::busy)?;
            let differs = |(name, value): &(&String, &String)| {
                found.setting(name).unwrap_or_default() != **value
            };
            if let Some((attribute, _)) = given.iter().find(differs) {
                let message = format!(
                    "A queue already exists with the same name and a different value for \
                     attribute {attribute}"
                );
                return Err(SqsError::new(Code::QueueNameExists, message));
            }
        }
        Ok(tx.commit().await?)
    }

    /// Changes the settings of jobs. The change is recorded with the caller's key.
    pub(super) async fn configure(
        &self,
        server: &Server,
        conn: &mut sqlx::PgConnection,
        settings: seriatim::admin::QueueSettings,
        action: &str,
    ) -> Result<(), SqsError> {
        let operator = server.database.client.operator(self.caller.actor(), action);
        let configured = operator.configure_queue(conn, settings).await;
        configured.map_err(|error| match error {
            // A setting that does not go with others.
            seriatim::ConfigureError::Database(sqlx::Error::Database(error))
                if error.code().as_deref() == Some("22023") =>
            {
                SqsError::new(Code::InvalidAttributeValue, error.message())
            }
            seriatim::ConfigureError::Database(error) => error.into(),
            other => SqsError::new(Code::InvalidAttributeValue, other.to_string()),
        })
    }

    /// Refuses a policy whose target is no queue, one of the other kind, or one that does not take
    /// the dead letters of this source.
    async fn check_target(&self, source: &str, given: &Texts) -> Result<(), SqsError> {
        let Some(text) = given.get("RedrivePolicy").filter(|text| !text.is_empty()) else {
            return Ok(());
        };
        let policy = RedrivePolicy::read(text)?;
        let refused = |reason: &str| Err(SqsError::invalid(text, "RedrivePolicy", reason));
        let account = &self.service.account;
        if policy.account != *account {
            return refused("Dead-letter target owner should be same as the source.");
        }
        let target = self.caller.queue(policy.target)?;
        match self.queue_named(&target).await {
            Ok(target) if target.is_fifo() != queue::is_fifo(source) => {
                refused("Dead-letter queue must be same type of queue as the source.")
            }
            Ok(target) if !target.takes_dead_letters_of(account, source) => refused(
                "The RedriveAllowPolicy of the dead-letter queue does not allow this source queue. \
                 Name the source queue there, or allow all.",
            ),
            Ok(_) => Ok(()),
            Err(error) if error.code == Code::QueueDoesNotExist => {
                refused("Dead letter target does not exist.")
            }
            Err(error) => Err(error),
        }
    }

    /// Removes a queue and cancels its messages, also those in flight. The first server is the last
    /// one, and has the queue's row locked meanwhile, as a change has.
    pub(super) async fn delete_queue(&self, input: OfQueue) -> Result<Value, SqsError> {
        let name = self.name_of(input.queue_url)?;
        let queue = self.queue_named(&name).await?;
        self.servers().check_all_there()?;
        let first = self.servers().deciding();
        let once = async || {
            let mut tx = self.begin(first).await?;
            first.database.lock_queue(&mut tx, &name).await?;
            for server in self.servers().others() {
                server.ask(self.delete_queue_on(server, &queue)).await?;
            }
            self.remove_queue(first, tx, &queue).await
        };
        first.ask(Box::pin(self.until_free(first, &name, once))).await?;
        first.ask(self.empty(first, &queue, "DeleteQueue")).await?;
        Ok(Value::Null)
    }

    async fn delete_queue_on(&self, server: &Server, queue: &Queue) -> Result<(), SqsError> {
        let once = async || self.remove_queue(server, self.begin(server).await?, queue).await;
        self.until_free(server, &queue.name, once).await?;
        self.empty(server, queue, "DeleteQueue").await
    }

    async fn remove_queue(
        &self,
        server: &Server,
        mut tx: PgTransaction<'static>,
        queue: &Queue,
    ) -> Result<(), SqsError> {
        server.database.delete_queue(&mut tx, &queue.name).await?;
        let settings = queue::reset_settings(&queue.name);
        self.configure(server, &mut tx, settings, "DeleteQueue").await?;
        Ok(tx.commit().await?)
    }

    /// Cancels the messages of a queue, and forgets their deduplication ids. The operation is
    /// recorded with the caller's key, and the name of the action as the reason.
    async fn empty(&self, server: &Server, queue: &Queue, action: &str) -> Result<(), SqsError> {
        let operator = server.database.client.operator(self.caller.actor(), action);
        let purged = operator.purge_everything(&self.pool(server), &queue.name).await;
        purged.map(drop).map_err(|error| match error {
            seriatim::ControlError::Database(error) => error.into(),
            other => SqsError::new(Code::InvalidParameterValue, other.to_string()),
        })
    }

    pub(super) async fn purge_queue(&self, input: OfQueue) -> Result<Value, SqsError> {
        let queue = self.queue(input.queue_url).await?;
        self.servers().check_all_there()?;
        let server = self.servers().deciding();
        let once = async || {
            let mut tx = self.begin(server).await?;
            let begun = server.database.begin_purge(&mut tx, &queue.name).await?;
            tx.commit().await?;
            Ok(begun)
        };
        if !server.ask(self.until_free(server, &queue.name, once)).await? {
            let message = format!(
                "Only one PurgeQueue operation on {} is allowed every 60 seconds.",
                queue.name
            );
            return Err(SqsError::new(Code::PurgeQueueInProgress, message));
        }
        for server in self.servers().iter() {
            server.ask(self.empty(server, &queue, "PurgeQueue")).await?;
        }
        Ok(Value::Null)
    }

    pub(super) async fn get_queue_url(&self, input: GetQueueUrl) -> Result<Value, SqsError> {
        let name = input.queue_name.ok_or_else(|| SqsError::missing("QueueName"))?;
        let owner = input.queue_owner_aws_account_id.filter(|owner| !owner.is_empty());
        if owner.is_some_and(|owner| owner != self.service.account) {
            return Err(SqsError::no_queue());
        }
        let name = self.caller.queue(name)?;
        let queue = self.queue_named(&name).await?;
        Ok(json!({"QueueUrl": self.url_of(&queue.name)}))
    }

    pub(super) async fn list_queues(&self, input: ListQueues) -> Result<Value, SqsError> {
        let (after, limit) = page(&input)?;
        let prefix = input.queue_name_prefix.unwrap_or_default();
        let names = |server| {
            let (prefix, after, shown) = (&prefix, &after, self.caller.shown());
            async move {
                let pool = self.pool(server);
                server.database.queue_names(&pool, prefix, after, limit + 1, shown).await
            }
        };
        let names = union(self.servers().all_there(names).await?);
        Ok(self.page_of(names, limit, "QueueUrls"))
    }

    pub(super) async fn list_sources(&self, input: Value) -> Result<Value, SqsError> {
        let queue: OfQueue = input::read(input.clone())?;
        let (queue, input) = (self.queue(queue.queue_url).await?, input::read(input)?);
        let (after, limit) = page(&input)?;
        let names = |server| {
            let (queue, after, shown) = (&queue, &after, self.caller.shown());
            async move {
                let pool = self.pool(server);
                server.database.sources_of(&pool, &queue.name, after, limit + 1, shown).await
            }
        };
        let names = union(self.servers().all_there(names).await?);
        let mut found = self.page_of(names, limit, "queueUrls");
        if found.get("queueUrls").is_none() {
            found["queueUrls"] = json!([]);
        }
        Ok(found)
    }

    /// Returns the first `limit` queues, and where to go on if there are more.
    fn page_of(&self, mut names: Vec<String>, limit: i64, list: &str) -> Value {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut page = json!({});
        if names.len() > limit {
            names.truncate(limit);
            page["NextToken"] = names.last().map(|name| BASE64.encode(name)).into();
        }
        let urls: Vec<String> = names.iter().map(|name| self.url_of(name)).collect();
        if !urls.is_empty() {
            page[list] = urls.into();
        }
        page
    }

    pub(super) async fn get_queue_attributes(
        &self,
        input: GetQueueAttributes,
    ) -> Result<Value, SqsError> {
        let queue = self.queue(input.queue_url).await?;
        let names = input.attribute_names;
        let unknown = names.iter().find(|name| *name != "All" && !queue::is_known(name));
        if let Some(unknown) = unknown {
            let message = format!("Unknown Attribute {unknown}.");
            return Err(SqsError::new(Code::InvalidAttributeName, message));
        }
        let is_asked = |name: &str| names.iter().any(|asked| asked == name || asked == "All");
        let mut known = queue.settings();
        if names.iter().any(|name| name == "All" || queue::is_read_only(name)) {
            known.extend(self.noted(&queue).await?);
        }
        known.retain(|name, _| is_asked(name));
        Ok(if known.is_empty() { json!({}) } else { json!({ "Attributes": known }) })
    }

    /// Returns what is counted and noted of a queue: its messages on all servers that answer.
    async fn noted(&self, queue: &Queue) -> Result<Texts, SqsError> {
        let depths = self.servers().all_there(|server| self.depth_on(server, queue));
        let depth: Depth = depths.await?.into_iter().sum();
        let noted = [
            ("QueueArn", self.arn_of(&queue.name)),
            ("ApproximateNumberOfMessages", depth.visible.to_string()),
            ("ApproximateNumberOfMessagesNotVisible", depth.in_flight.to_string()),
            ("ApproximateNumberOfMessagesDelayed", depth.delayed.to_string()),
            ("CreatedTimestamp", queue.created_at.timestamp().to_string()),
            ("LastModifiedTimestamp", queue.modified_at.timestamp().to_string()),
        ];
        Ok(noted.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    async fn depth_on(&self, server: &Server, queue: &Queue) -> Result<Depth, SqsError> {
        server.database.depth(&self.pool(server), &queue.name).await
    }

    pub(super) async fn set_queue_attributes(
        &self,
        input: SetQueueAttributes,
    ) -> Result<Value, SqsError> {
        let name = self.name_of(input.queue_url)?;
        let queue = self.queue_named(&name).await?;
        let given = input.attributes.ok_or_else(|| SqsError::missing("Attributes"))?;
        let given = queue::normal(given);
        if queue.is_fifo() && given.get("FifoQueue").is_some_and(|fifo| fifo != "true") {
            let message = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type \
                           is not supported.";
            return Err(SqsError::new(Code::InvalidAttributeValue, message));
        }
        queue::check_settings(&queue.name, &given)?;
        self.check_target(&queue.name, &given).await?;
        self.change_queue(&name, |queue| Ok(Change::Settings(queue.implied(given.clone()))))
            .await?;
        Ok(Value::Null)
    }

    pub(super) async fn tag_queue(&self, input: TagQueue) -> Result<Value, SqsError> {
        let name = self.name_of(input.queue_url)?;
        let tags = input.tags.filter(|tags| !tags.is_empty());
        let tags = tags.ok_or_else(|| SqsError::missing("Tags"))?;
        let change = |queue: &Queue| {
            let mut all = queue.tags.clone();
            all.extend(tags.clone());
            check_tags(&queue.name, &all)?;
            Ok(Change::Tags { given: tags.clone(), removed: Vec::new() })
        };
        self.change_queue(&name, change).await?;
        Ok(Value::Null)
    }

    pub(super) async fn untag_queue(&self, input: UntagQueue) -> Result<Value, SqsError> {
        let name = self.name_of(input.queue_url)?;
        let keys = input.tag_keys.filter(|keys| !keys.is_empty());
        let keys = keys.ok_or_else(|| {
            SqsError::new(
                Code::InvalidParameterValue,
                "Tag keys must be between 1 and 128 characters in length.",
            )
        })?;
        let change = |_: &Queue| Ok(Change::Tags { given: Texts::new(), removed: keys.clone() });
        self.change_queue(&name, change).await?;
        Ok(Value::Null)
    }

    pub(super) async fn list_queue_tags(&self, input: OfQueue) -> Result<Value, SqsError> {
        let queue = self.queue(input.queue_url).await?;
        let tags = queue.tags;
        Ok(if tags.is_empty() { Value::Object(Map::new()) } else { json!({ "Tags": tags }) })
    }
}

/// Returns the names of all lists, each once and in order.
fn union(lists: Vec<Vec<String>>) -> Vec<String> {
    lists.into_iter().flatten().collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns behind which queue a page begins, and how many it has.
fn page(input: &ListQueues) -> Result<(String, i64), SqsError> {
    let limit = in_range(input.max_results, "MaxResults", 1..=PAGE)?.unwrap_or(PAGE);
    let Some(token) = &input.next_token else { return Ok((String::new(), limit)) };
    let after = BASE64.decode(token).ok().and_then(|name| String::from_utf8(name).ok());
    let after = after
        .ok_or_else(|| SqsError::invalid(token, "NextToken", "It is not what a list returned."))?;
    Ok((after, limit))
}

/// Refuses tags that a queue cannot have.
fn check_tags(queue: &str, tags: &Texts) -> Result<(), SqsError> {
    let refused = |message: &str| Err(SqsError::new(Code::InvalidParameterValue, message));
    if tags.keys().any(|key| !(1..=128).contains(&key.chars().count()) || key.contains('\0')) {
        return refused("Tag keys must be between 1 and 128 characters in length.");
    } else if tags.values().any(|value| value.chars().count() > 256 || value.contains('\0')) {
        return refused("Tag values must be at most 256 characters in length.");
    } else if tags.len() > TAGS_LIMIT {
        return refused(&format!("Too many tags added for queue {queue}."));
    }
    Ok(())
}
