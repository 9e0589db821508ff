//! Deletes and changes of visibility: what is said of a receipt handle.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use serde_json::{Value, json};
use seriatim::receive::{Receipt, ReceiveError};

use crate::coalesce::Settling;
use crate::database::refusal;
use crate::error::{Code, SqsError};
use crate::input::{Batch, ChangeMessageVisibility, DeleteMessage, Number};
use crate::queue::Queue;
use crate::servers::Server;
use crate::service::{Request, batch};

/// The receipt of a handle, the handle and a value for the call.
type Known<T> = (Receipt, String, T);
/// A question to a server; or the error of the handle.
type Asked<'a, T> = Result<(&'a Server, Known<T>), SqsError>;
/// The outcome of one receipt.
type Done = Result<(), ReceiveError>;

impl Request {
    pub(super) async fn delete_message(&self, input: DeleteMessage) -> Result<Value, SqsError> {
        let queue = self.recent_queue(input.queue_url).await?;
        let asked = self.receipt(&queue, input.receipt_handle, ());
        let mut answers = self.delete(&queue, vec![asked]).await?;
        answers.pop().unwrap_or(Ok(())).map(|()| Value::Null)
    }

    pub(super) async fn delete_message_batch(
        &self,
        input: Batch<DeleteMessage>,
    ) -> Result<Value, SqsError> {
        let queue = self.recent_queue(input.queue_url).await?;
        batch::check(&input.entries, "DeleteMessageBatchRequestEntry")?;
        let (ids, asked): (Vec<_>, Vec<_>) = input
            .entries
            .into_iter()
            .map(|entry| (entry.id, self.receipt(&queue, entry.of.receipt_handle, ())))
            .unzip();
        Ok(answer(ids, self.delete(&queue, asked).await?))
    }

    pub(super) async fn change_visibility(
        &self,
        input: ChangeMessageVisibility,
    ) -> Result<Value, SqsError> {
        let queue = self.recent_queue(input.queue_url).await?;
        let asked = self.visibility(&queue, input.receipt_handle, input.visibility_timeout);
        let mut answers = self.change(&queue, vec![asked]).await?;
        answers.pop().unwrap_or(Ok(())).map(|()| Value::Null)
    }

    pub(super) async fn change_visibility_batch(
        &self,
        input: Batch<ChangeMessageVisibility>,
    ) -> Result<Value, SqsError> {
        let queue = self.recent_queue(input.queue_url).await?;
        batch::check(&input.entries, "ChangeMessageVisibilityBatchRequestEntry")?;
        let (ids, asked): (Vec<_>, Vec<_>) = input
            .entries
            .into_iter()
            .map(|entry| {
                let (handle, timeout) = (entry.of.receipt_handle, entry.of.visibility_timeout);
                (entry.id, self.visibility(&queue, handle, timeout))
            })
            .unzip();
        Ok(answer(ids, self.change(&queue, asked).await?))
    }

    /// Reads a handle.
    fn receipt<T>(&self, queue: &Queue, handle: Option<String>, with: T) -> Asked<'_, T> {
        let handle = handle.ok_or_else(|| SqsError::missing("ReceiptHandle"))?;
        let receipt = self.servers().receipt(&queue.name, &handle)?;
        let (server, receipt) = receipt.ok_or_else(|| {
            let message =
                format!("The input receipt handle \"{handle}\" is not a valid receipt handle.");
            SqsError::new(Code::ReceiptHandleIsInvalid, message)
        })?;
        Ok((server, (receipt, handle, with)))
    }

    fn visibility(
        &self,
        queue: &Queue,
        handle: Option<String>,
        timeout: Option<Number>,
    ) -> Asked<'_, i64> {
        let Number(timeout) = timeout.ok_or_else(|| SqsError::missing("VisibilityTimeout"))?;
        if !(0..=43_200).contains(&timeout) {
            let reason = "VisibilityTimeout must be an integer between 0 and 43200";
            return Err(SqsError::invalid(timeout, "VisibilityTimeout", reason));
        }
        self.receipt(queue, handle, timeout)
    }

    /// Ends the messages of these handles, each on its server.
    async fn delete(
        &self,
        queue: &Queue,
        asked: Vec<Asked<'_, ()>>,
    ) -> Result<Vec<Result<(), SqsError>>, SqsError> {
        self.settle(asked, |server, known| self.delete_on(server, queue, known)).await
    }

    /// Changes the visibility of these handles, each on its server.
    async fn change(
        &self,
        queue: &Queue,
        asked: Vec<Asked<'_, i64>>,
    ) -> Result<Vec<Result<(), SqsError>>, SqsError> {
        self.settle(asked, |server, known| self.change_on(server, queue, known)).await
    }

    /// Asks each server for its handles. Returns the answer to each handle, in their order.
    async fn settle<'a, T, Asking>(
        &'a self,
        asked: Vec<Asked<'a, T>>,
        ask: impl Fn(&'a Server, Vec<Known<T>>) -> Asking,
    ) -> Result<Vec<Result<(), SqsError>>, SqsError>
    where
        Asking: Future<Output = Result<Vec<Result<(), SqsError>>, SqsError>>,
    {
        let (mut known, mut errors) = (Vec::new(), Vec::new());
        for asked in asked {
            errors.push(asked.map(|of| known.push(of)));
        }
        let mut answers = self.servers().each(known, ask).await?.into_iter();
        let answers = errors.into_iter().map(|read| {
            read?;
            answers.next().unwrap_or_else(|| Err(SqsError::busy()))
        });
        Ok(answers.collect())
    }

    /// Ends the messages of handles of a server. The messages of a group that waits are woken.
    async fn delete_on(
        &self,
        server: &Server,
        queue: &Queue,
        known: Vec<Known<()>>,
    ) -> Result<Vec<Result<(), SqsError>>, SqsError> {
        let receipts: Vec<Receipt> = known.iter().map(|(receipt, ..)| *receipt).collect();
        let deletes = self.coalescers(server).receipts(Settling::Delete);
        let mut done = deletes.ask(receipts).await?;
        let renewed = self.renewed(server, queue, &done).await?;
        if !renewed.is_empty() {
            let (places, receipts): (Vec<usize>, Vec<Receipt>) = renewed.into_iter().unzip();
            for (place, answer) in places.into_iter().zip(deletes.ask(receipts).await?) {
                done[place] = answer;
            }
        }
        self.cancel_waiting(server, queue, &done).await?;
        self.service.waiting.wake(&queue.name);
        self.answers(server, queue, known, done, |fifo, is_there, handle| match (fifo, is_there) {
            (true, true) => {
                Err(SqsError::invalid(handle, "ReceiptHandle", "The receipt handle has expired."))
            }
            _ => Ok(()),
        })
        .await
    }

    /// Changes the visibility of handles of a server; 0 gives the message back at once.
    async fn change_on(
        &self,
        server: &Server,
        queue: &Queue,
        known: Vec<Known<i64>>,
    ) -> Result<Vec<Result<(), SqsError>>, SqsError> {
        let (receipts, timeouts): (Vec<Receipt>, Vec<i64>) =
            known.iter().map(|(receipt, _, timeout)| (*receipt, *timeout)).unzip();
        let first = receipts.into_iter().enumerate().collect();
        let first = self.change_receipts(server, first, &timeouts).await?;
        let mut done: Vec<Done> = first.into_iter().map(|(_, of)| of).collect();
        let renewed = self.renewed(server, queue, &done).await?;
        for (place, answer) in self.change_receipts(server, renewed, &timeouts).await? {
            done[place] = answer;
        }
        self.service.waiting.wake(&queue.name);
        // A standard queue answers OK to a handle whose message is in flight no more, and does
        // nothing, as AWS does.
        self.answers(server, queue, known, done, |fifo, is_there, handle| {
            let reason = if !is_there {
                "Message does not exist or is not available for visibility timeout change."
            } else if fifo {
                "The receipt handle has expired."
            } else {
                return Ok(());
            };
            Err(SqsError::invalid(handle, "ReceiptHandle", reason))
        })
        .await
    }

    /// Changes the visibility of receipts, each with its place in the request and among the
    /// timeouts. Returns what each came to, by place.
    async fn change_receipts(
        &self,
        server: &Server,
        receipts: Vec<(usize, Receipt)>,
        timeouts: &[i64],
    ) -> Result<Vec<(usize, Done)>, SqsError> {
        let mut by_timeout: BTreeMap<i64, Vec<(usize, Receipt)>> = BTreeMap::new();
        for (place, receipt) in receipts {
            by_timeout.entry(timeouts[place]).or_default().push((place, receipt));
        }
        let mut done: Vec<(usize, Done)> = Vec::new();
        // The longest first: a message that is given back takes those behind it along.
        for (timeout, of) in by_timeout.into_iter().rev() {
            let (places, receipts): (Vec<usize>, Vec<Receipt>) = of.into_iter().unzip();
            let time = Duration::from_secs(timeout.unsigned_abs());
            let settling = if time.is_zero() { Settling::Return } else { Settling::Extend(time) };
            let answers = self.coalescers(server).receipts(settling).ask(receipts).await?;
            done.extend(places.into_iter().zip(answers));
        }
        done.sort_by_key(|(place, _)| *place);
        Ok(done)
    }

    /// Returns the receipts that the messages of stale ones have now, with the places of those. A
    /// standard queue takes an old handle, as AWS does; a FIFO queue does not.
    async fn renewed(
        &self,
        server: &Server,
        queue: &Queue,
        done: &[Done],
    ) -> Result<Vec<(usize, Receipt)>, SqsError> {
        let stale = stale(done);
        if queue.is_fifo() || stale.is_empty() {
            return Ok(vec![]);
        }
        let jobs: Vec<i64> = stale.iter().map(|(_, job)| *job).collect();
        let now = server.database.receipts(&self.pool(server), &queue.name, &jobs).await?;
        let receipts = stale.into_iter().filter_map(|(place, job)| Some((place, *now.get(&job)?)));
        Ok(receipts.collect())
    }

    /// Cancels the messages of a standard queue that were given back: their handles still delete
    /// them.
    async fn cancel_waiting(
        &self,
        server: &Server,
        queue: &Queue,
        done: &[Done],
    ) -> Result<(), SqsError> {
        let stale = stale(done);
        if queue.is_fifo() || stale.is_empty() {
            return Ok(());
        }
        let (pool, client) = (self.pool(server), &server.database.client);
        let jobs: Vec<i64> = stale.iter().map(|(_, job)| *job).collect();
        for job in server.database.waiting(&pool, &queue.name, &jobs).await? {
            // Another error: it has ended since, and the handle is old.
            if let Err(seriatim::ControlError::Database(error)) = client.cancel(&pool, job).await {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Returns the answer to each handle. For a stale handle `stale` decides: it gets whether the
    /// queue is FIFO, whether the message has not ended, and the handle.
    async fn answers<T>(
        &self,
        server: &Server,
        queue: &Queue,
        known: Vec<Known<T>>,
        done: Vec<Done>,
        stale: impl Fn(bool, bool, &str) -> Result<(), SqsError>,
    ) -> Result<Vec<Result<(), SqsError>>, SqsError> {
        let jobs: Vec<i64> = self::stale(&done).into_iter().map(|(_, job)| job).collect();
        let there = if jobs.is_empty() {
            vec![]
        } else {
            server.database.unfinished(&self.pool(server), &jobs).await?
        };
        let mut done = done.into_iter();
        let answers = known.into_iter().map(|(_, handle, _)| match done.next() {
            Some(Ok(())) => Ok(()),
            Some(Err(ReceiveError::Stale { job })) => {
                stale(queue.is_fifo(), there.contains(&job), &handle)
            }
            Some(Err(error)) => Err(refusal(error)),
            None => Err(SqsError::busy()),
        });
        Ok(answers.collect())
    }
}

/// Returns the jobs of stale receipts, each with its place.
fn stale(done: &[Done]) -> Vec<(usize, i64)> {
    let stale = done.iter().enumerate().filter_map(|(place, done)| match done {
        Err(ReceiveError::Stale { job }) => Some((place, *job)),
        _ => None,
    });
    stale.collect()
}

fn answer(ids: Vec<String>, answers: Vec<Result<(), SqsError>>) -> Value {
    let answers = answers.into_iter().map(|answer| answer.map(|()| json!({})));
    batch::answer(ids.into_iter().zip(answers).collect())
}
