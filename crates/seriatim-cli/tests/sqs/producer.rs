//! Producers: by SQS, which repeat what was not answered, and by SQL.

use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use seriatim_history::event::{Enqueued, Event, Name, Time};
use sqlx::PgPool;
use tokio::time::sleep;

use crate::http::{Answer, Sqs};
use crate::program::Sabotage;
use crate::recorder::{Recorder, now};

pub const QUEUE: &str = "history.fifo";
const AGAIN: Duration = Duration::from_millis(50);

pub struct Producer {
    pub sqs: Sqs,
    pub recorder: Recorder,
    pub random: Rng,
    pub groups: u8,
    pub sabotage: Option<Sabotage>,
}

/// A message that is to be sent.
struct Message {
    name: String,
    group: String,
}

impl Message {
    fn body(&self) -> String {
        json!({ "name": self.name }).to_string()
    }
}

impl Producer {
    /// Sends so many messages, one or a batch at a time.
    pub async fn run(mut self, messages: usize) {
        let mut sent = 0;
        while sent < messages {
            let batch = if self.random.bool() { 1 } else { self.random.usize(2..=10) };
            let batch: Vec<Message> = (sent..messages.min(sent + batch))
                .map(|n| Message {
                    name: format!("{}-{n}", self.recorder.process()),
                    group: format!("g{}", self.random.u8(..self.groups)),
                })
                .collect();
            sent += batch.len();
            self.send(&batch).await;
            sleep(Duration::from_millis(self.random.u64(..20))).await;
        }
    }

    /// Repeats the same request until each message has an answer: its deduplication id makes one
    /// job of it.
    async fn send(&mut self, messages: &[Message]) {
        let begin = now();
        for message in messages {
            enqueued(&self.recorder, message, begin, Enqueued::Unknown, None);
        }
        let numbers = self.until_answered(messages, "").await;
        for (message, number) in messages.iter().zip(&numbers) {
            enqueued(&self.recorder, message, begin, Enqueued::Committed, Some(*number));
        }
        if self.sabotage == Some(Sabotage::FreshIds) {
            self.until_answered(messages, "again").await;
        } else if self.random.u8(..10) == 0 {
            assert_eq!(self.until_answered(messages, "").await, numbers, "it is the same message");
        }
    }

    /// Returns the sequence numbers.
    async fn until_answered(&self, messages: &[Message], fresh: &str) -> Vec<i64> {
        loop {
            if let Some(numbers) = self.try_once(messages, fresh).await {
                return numbers;
            }
            sleep(AGAIN).await;
        }
    }

    async fn try_once(&self, messages: &[Message], fresh: &str) -> Option<Vec<i64>> {
        let number = |answer: &Value| answer["SequenceNumber"].as_str().unwrap().parse().unwrap();
        let of = |message: &Message| {
            json!({"QueueUrl": QUEUE, "Id": message.name, "MessageBody": message.body(),
                "MessageGroupId": message.group,
                "MessageDeduplicationId": format!("{}{fresh}", message.name)})
        };
        if let [message] = messages {
            return match self.sqs.ask("SendMessage", &of(message)).await {
                Answer::Done(answer) => Some(vec![number(&answer)]),
                Answer::Lost => None,
                Answer::Refused(why) => panic!("{why}"),
            };
        }
        let entries: Vec<Value> = messages.iter().map(of).collect();
        match self
            .sqs
            .ask("SendMessageBatch", &json!({"QueueUrl": QUEUE, "Entries": entries}))
            .await
        {
            Answer::Done(answer) => {
                let successful = answer["Successful"].as_array().map_or(&[][..], Vec::as_slice);
                (successful.len() == messages.len())
                    .then(|| successful.iter().map(number).collect())
            }
            Answer::Lost => None,
            Answer::Refused(why) => panic!("{why}"),
        }
    }
}

/// Enqueues so many jobs by SQL, some in transactions that are rolled back. As raw bytes, which a
/// processor's handler can take beside messages; or as JSON.
pub async fn by_sql(
    pool: PgPool,
    recorder: Recorder,
    mut random: Rng,
    groups: u8,
    count: usize,
    as_bytes: bool,
) {
    for n in 0..count {
        let name = format!("{}-{n}", recorder.process());
        let message = Message { name, group: format!("g{}", random.u8(..groups)) };
        let roll_back = random.u8(..5) == 0;
        let begin = now();
        enqueued(&recorder, &message, begin, Enqueued::Unknown, None);
        loop {
            match enqueue(&pool, &message, as_bytes, roll_back).await {
                Ok(_) if roll_back => {
                    enqueued(&recorder, &message, begin, Enqueued::RolledBack, None);
                    break;
                }
                Ok(id) => {
                    enqueued(&recorder, &message, begin, Enqueued::Committed, Some(id));
                    break;
                }
                Err(_) => sleep(AGAIN).await,
            }
        }
        sleep(Duration::from_millis(random.u64(..20))).await;
    }
}

async fn enqueue(
    pool: &PgPool,
    message: &Message,
    as_bytes: bool,
    roll_back: bool,
) -> Result<i64, sqlx::Error> {
    let mut tx = pool.begin().await?;
    let sql = if as_bytes {
        "select id from seriatim.enqueue($1, null, $2, dedup_id => $3,
           payload => convert_to($4, 'UTF8'), content_type => 'text/plain')"
    } else {
        "select id from seriatim.enqueue($1, $4::jsonb, $2, dedup_id => $3)"
    };
    let enqueue = sqlx::query_scalar(sql).bind(QUEUE).bind(&message.group).bind(&message.name);
    let id = enqueue.bind(message.body()).fetch_one(&mut *tx).await?;
    if roll_back {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    Ok(id)
}

fn enqueued(
    recorder: &Recorder,
    message: &Message,
    begin: Time,
    outcome: Enqueued,
    place: Option<i64>,
) {
    recorder.note(Event::Enqueue {
        job: message.name.as_str().into(),
        queue: QUEUE.to_owned(),
        group: Some(Name(message.group.clone())),
        process: Some(recorder.process()),
        begin,
        end: (outcome != Enqueued::Unknown).then(now),
        outcome,
        with: None,
        place,
        max_attempts: None,
        run_at: None,
        limit_key: None,
        batch: None,
    });
}
