//! Consumers: they receive, handle and delete by SQS.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Value, json};
use seriatim_history::event::{Ended, Said};
use tokio::time::sleep;

use crate::http::{Answer, Sqs};
use crate::producer::QUEUE;
use crate::program::Sabotage;
use crate::recorder::{Recorder, now};

/// For so long a message is a consumer's alone, and some more for a machine that is busy.
const VISIBILITY: u64 = 4;
/// A message that has not begun this long after the request is left alone, so that its handler ends
/// in time.
const BEGIN_WITHIN: Duration = Duration::from_secs(2);
/// How often a request without an answer is repeated.
const TRIES: u32 = 10;
const AGAIN: Duration = Duration::from_millis(50);

pub struct Consumer {
    pub sqs: Sqs,
    pub recorder: Recorder,
    pub random: Rng,
    pub sabotage: Option<Sabotage>,
}

/// A message, as far as it is needed here.
struct Message {
    name: String,
    attempt: u32,
    group: String,
    handle: String,
}

impl Message {
    fn new(message: &Value) -> Self {
        let text = |of: &Value| of.as_str().unwrap().to_owned();
        let body: Value = serde_json::from_str(message["Body"].as_str().unwrap()).unwrap();
        Self {
            name: text(&body["name"]),
            attempt: text(&message["Attributes"]["ApproximateReceiveCount"]).parse().unwrap(),
            group: text(&message["Attributes"]["MessageGroupId"]),
            handle: text(&message["ReceiptHandle"]),
        }
    }
}

impl Consumer {
    pub async fn run(mut self) -> Infallible {
        loop {
            let (asked, begun) = (now(), Instant::now());
            if let Some(mut messages) = self.receive().await {
                match self.sabotage {
                    Some(Sabotage::Reversed) => messages.reverse(),
                    Some(Sabotage::WrongHandle) if messages.len() > 1 => {
                        messages[0].handle = messages.pop().unwrap().handle;
                        messages.truncate(1);
                    }
                    _ => {}
                }
                self.work(messages, begun).await;
            } else {
                self.recorder.fault("a receive had no answer", asked);
                sleep(AGAIN).await;
            }
        }
    }

    /// A receive without an answer is repeated with its attempt id, and then has the same answer.
    async fn receive(&mut self) -> Option<Vec<Message>> {
        let most = if self.sabotage.is_some() { 10 } else { self.random.u32(1..=10) };
        let visibility = if self.sabotage.is_some() { 1 } else { VISIBILITY };
        let input = json!({
            "QueueUrl": QUEUE, "MaxNumberOfMessages": most,
            "VisibilityTimeout": visibility, "WaitTimeSeconds": self.random.u32(0..=1),
            "ReceiveRequestAttemptId": format!("{:x}", self.random.u128(..)),
            "MessageSystemAttributeNames": ["All"],
        });
        for _ in 0..self.random.u32(1..4) {
            match self.sqs.ask("ReceiveMessage", &input).await {
                Answer::Done(answer) => {
                    let messages = answer["Messages"].as_array().map_or(&[][..], Vec::as_slice);
                    return Some(messages.iter().map(Message::new).collect());
                }
                Answer::Lost => {}
                Answer::Refused(why) => panic!("{why}"),
            }
        }
        None
    }

    /// One after the other, as they came. Behind one that fails those of its group are left alone.
    async fn work(&mut self, messages: Vec<Message>, begun: Instant) {
        let mut failed = HashSet::new();
        let together = self.random.u8(..3) == 0;
        let mut handled: Vec<Message> = Vec::new();
        for message in messages {
            if failed.contains(&message.group) || begun.elapsed() > BEGIN_WITHIN {
                self.recorder.fault(format!("{} was received and not begun", message.name), now());
                failed.insert(message.group);
            } else if !self.handle(&message).await {
                // Messages handled before it are deleted first, or they would go back with it.
                failed.extend(self.delete(std::mem::take(&mut handled)).await);
                if self.random.bool() {
                    self.give_back(&message).await;
                }
                failed.insert(message.group);
            } else {
                handled.push(message);
                if !together {
                    failed.extend(self.delete(std::mem::take(&mut handled)).await);
                }
            }
        }
        self.delete(handled).await;
    }

    /// Returns whether it succeeded.
    async fn handle(&mut self, message: &Message) -> bool {
        let mut handling = self.recorder.start(&message.name, message.attempt);
        let pause = match self.sabotage {
            Some(Sabotage::Overstay) => 1500,
            _ => self.random.u64(..20),
        };
        sleep(Duration::from_millis(pause)).await;
        let succeeds = self.sabotage.is_some() || self.random.u8(..8) > 0;
        handling.ends(if succeeds { Ended::Succeeded } else { Ended::Retry });
        succeeds
    }

    async fn give_back(&self, message: &Message) {
        let input = json!({"QueueUrl": QUEUE, "ReceiptHandle": message.handle,
            "VisibilityTimeout": 0});
        let begin = now();
        let answer = self.settle("ChangeMessageVisibility", &input).await;
        self.recorder.settled(&message.name, message.attempt, begin, answer);
    }

    /// Returns the groups of messages of which it is not known that they are deleted.
    async fn delete(&self, messages: Vec<Message>) -> Vec<String> {
        if let [message] = &messages[..] {
            let begin = now();
            let input = json!({"QueueUrl": QUEUE, "ReceiptHandle": message.handle});
            let answer = self.settle("DeleteMessage", &input).await;
            self.recorder.settled(&message.name, message.attempt, begin, answer);
            return if answer == Said::Done { vec![] } else { vec![message.group.clone()] };
        }
        self.delete_batch(messages).await
    }

    async fn delete_batch(&self, messages: Vec<Message>) -> Vec<String> {
        let mut unsure = Vec::new();
        if messages.is_empty() {
            return unsure;
        }
        let entries = messages.iter().enumerate();
        let entries: Vec<Value> = entries
            .map(|(place, of)| json!({"Id": place.to_string(), "ReceiptHandle": of.handle}))
            .collect();
        let input = json!({"QueueUrl": QUEUE, "Entries": entries});
        let begin = now();
        let mut answered = Value::Null;
        for _ in 0..TRIES {
            match self.sqs.ask("DeleteMessageBatch", &input).await {
                Answer::Done(answer) => {
                    answered = answer;
                    break;
                }
                Answer::Lost => sleep(AGAIN).await,
                Answer::Refused(why) => panic!("{why}"),
            }
        }
        for (place, message) in messages.into_iter().enumerate() {
            let id = place.to_string();
            let is_in = |list: &str, fault: bool| {
                let is_it = |of: &Value| of["Id"] == id;
                let counts = |of: &Value| !fault || of["SenderFault"] == true;
                let entries = answered[list].as_array();
                entries.is_some_and(|entries| entries.iter().any(|of| is_it(of) && counts(of)))
            };
            let answer = match (is_in("Successful", false), is_in("Failed", true)) {
                (true, _) => Said::Done,
                (_, true) => Said::Stale,
                _ => Said::Unknown,
            };
            self.recorder.settled(&message.name, message.attempt, begin, answer);
            if answer != Said::Done {
                unsure.push(message.group);
            }
        }
        unsure
    }

    /// Says it until there is an answer.
    async fn settle(&self, operation: &str, input: &Value) -> Said {
        for _ in 0..TRIES {
            match self.sqs.ask(operation, input).await {
                Answer::Done(_) => return Said::Done,
                Answer::Lost => sleep(AGAIN).await,
                Answer::Refused(why) => {
                    let known = ["has expired", "does not exist or is not available"];
                    assert!(known.iter().any(|known| why.contains(known)), "{operation}: {why}");
                    return Said::Stale;
                }
            }
        }
        Said::Unknown
    }
}
