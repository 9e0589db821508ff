//! Changes of a queue: on all servers of PostgreSQL, one change at a time.

use crate::caller::QueueName;
use crate::error::SqsError;
use crate::input::Texts;
use crate::queue::{self, Queue};
use crate::servers::Server;
use crate::service::Request;

/// A change of a queue.
pub(super) enum Change {
    /// The first server has changed already: the others follow.
    Following,
    /// Settings to merge into its own. Empty ones are removed.
    Settings(Texts),
    /// The text of its policy. An empty one is removed.
    Policy(String),
    /// Tags to set and to remove.
    Tags { given: Texts, removed: Vec<String> },
}

impl Change {
    fn settings(&self) -> Texts {
        match self {
            Self::Settings(given) => given.clone(),
            Self::Policy(text) => Texts::from([(String::from("Policy"), text.clone())]),
            Self::Following | Self::Tags { .. } => Texts::new(),
        }
    }

    /// Returns the operation that a change of jobs' settings is recorded with. Where a server
    /// lacks something, it is made anew.
    fn action(&self) -> &'static str {
        if matches!(self, Self::Settings(_)) { "SetQueueAttributes" } else { "CreateQueue" }
    }

    /// Returns the queue with the change.
    fn of(&self, queue: &Queue) -> Queue {
        let mut queue = queue.clone();
        queue.attributes.extend(self.settings());
        queue.attributes.retain(|_, value| !value.is_empty());
        if let Self::Tags { given, removed } = self {
            queue.tags.extend(given.clone());
            queue.tags.retain(|key, _| !removed.contains(key));
        }
        queue
    }
}

impl Request {
    /// Changes a queue on all servers, or on none if one is away. The first one has its row locked
    /// until the others have the change: so two changes come to all of them in one order. It is
    /// the last one to be changed: a change that breaks off is not seen there, and is repeated.
    pub(super) async fn change_queue(
        &self,
        name: &QueueName,
        change: impl Fn(&Queue) -> Result<Change, SqsError> + Sync,
    ) -> Result<(), SqsError> {
        self.servers().check_all_there()?;
        let first = self.servers().deciding();
        let once = async || {
            let mut tx = self.begin(first).await?;
            let queue = first.database.lock_queue(&mut tx, name).await?;
            let change = change(&queue)?;
            let changed = change.of(&queue);
            for server in self.servers().others() {
                server.ask(self.follow(server, name, &changed, &change)).await?;
            }
            match &change {
                Change::Following => {}
                Change::Settings(given) => {
                    first.database.set_attributes(&mut tx, name, given).await?;
                    let settings = queue::job_settings(name, given, false);
                    self.configure(first, &mut tx, settings, change.action()).await?;
                }
                Change::Policy(_) => {
                    first.database.set_attributes(&mut tx, name, &change.settings()).await?;
                }
                Change::Tags { given, removed } => {
                    first.database.set_tags(&mut tx, name, given, removed).await?;
                }
            }
            Ok(tx.commit().await?)
        };
        // Boxed: it has a statement for each kind of change.
        first.ask(Box::pin(self.until_free(first, name, once))).await
    }

    /// Gives another server than the first one the queue as it is with the change, also what it
    /// lacks of earlier ones.
    async fn follow(
        &self,
        server: &Server,
        name: &QueueName,
        changed: &Queue,
        change: &Change,
    ) -> Result<(), SqsError> {
        let once = async || {
            let (mut tx, database) = (self.begin(server).await?, &server.database);
            let mut given = change.settings();
            let (attributes, tags) = (&changed.attributes, &changed.tags);
            let is_new = database.insert_queue(&mut tx, name, attributes, tags).await?;
            if is_new {
                given.extend(attributes.clone());
            } else {
                let found = database.find_queue(&mut tx, name).await?;
                let found = found.ok_or_else(SqsError::busy)?;
                given.extend(changed.unlike(&found));
                if found.attributes != *attributes || found.tags != *tags {
                    database.replace_queue(&mut tx, changed).await?;
                }
            }
            if is_new || !given.is_empty() {
                let settings = queue::job_settings(name, &given, is_new);
                self.configure(server, &mut tx, settings, change.action()).await?;
            }
            Ok(tx.commit().await?)
        };
        self.until_free(server, name, once).await
    }
}
