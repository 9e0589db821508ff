//! Requests that become statements together: that they do, and that none suffers by another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};
use sqlx::{Postgres, Transaction};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::support::{Answer, PATIENCE, Sqs};

const MANY: usize = 200;

fn message(url: &str, number: usize) -> Value {
    json!({"QueueUrl": url, "MessageBody": format!("body-{number}"),
        "MessageGroupId": format!("group-{number}"),
        "MessageDeduplicationId": format!("id-{number}")})
}

/// Begins requests that are answered side by side.
fn ask_all(
    sqs: &Arc<Sqs>,
    operation: &'static str,
    inputs: impl IntoIterator<Item = Value>,
) -> Vec<JoinHandle<Answer>> {
    let ask = |input| {
        let sqs = Arc::clone(sqs);
        tokio::spawn(async move { sqs.ask(operation, input).await })
    };
    inputs.into_iter().map(ask).collect()
}

async fn answers(asked: Vec<JoinHandle<Answer>>) -> Vec<Answer> {
    let answers = timeout(PATIENCE, join_all(asked)).await.unwrap();
    answers.into_iter().map(Result::unwrap).collect()
}

async fn end(sqs: Arc<Sqs>) {
    Arc::into_inner(sqs).unwrap().end().await;
}

/// Counts the sessions that wait for a lock.
const BLOCKED: &str = "select count(*) from pg_stat_activity
                       where datname = current_database() and wait_event_type = 'Lock'";

/// Waits until a statement of the server waits for a lock.
async fn until_blocked(sqs: &Sqs, sessions: i64) {
    while sqs.number(BLOCKED).await < sessions {}
}

/// Returns a transaction that has the deduplication id of the message 0, and is not ended.
async fn enqueued_in_open(sqs: &Sqs) -> Transaction<'static, Postgres> {
    let mut open = sqs.database.pool().begin().await.unwrap();
    sqlx::query("select seriatim.enqueue('q.fifo', '1', 'g', dedup_id => 'id-0')")
        .execute(&mut *open)
        .await
        .unwrap();
    open
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_share_commits() {
    let sqs = Arc::new(Sqs::start().await);
    let url = sqs.queue("q.fifo").await;
    let sends = ask_all(&sqs, "SendMessage", (0..MANY).map(|number| message(&url, number)));
    assert!(answers(sends).await.iter().all(|answer| answer.status == 200));
    let jobs = "select count(*) from seriatim.job";
    assert_eq!(sqs.number(jobs).await, 200);
    let commits = "select count(distinct xmin::text) from seriatim.job";
    let of_sends = sqs.number(commits).await;
    assert!(of_sends < 100, "200 sends were {of_sends} commits");

    let mut received = Vec::new();
    while received.len() < MANY {
        received.extend(sqs.receive(&url).await);
    }
    let keep = |message: &Value| {
        json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"],
        "VisibilityTimeout": 600})
    };
    let changes = ask_all(&sqs, "ChangeMessageVisibility", received.iter().map(keep));
    assert!(answers(changes).await.iter().all(|answer| answer.status == 200));
    let kept =
        "select count(*) from seriatim.queue_group where ready_at > now() + interval '9 min'";
    assert_eq!(sqs.number(kept).await, 200);
    let of_changes =
        sqs.number("select count(distinct xmin::text) from seriatim.queue_group").await;
    assert!(of_changes < 100, "200 changes were {of_changes} commits");
    let delete =
        |message: &Value| json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]});
    let deletes = ask_all(&sqs, "DeleteMessage", received.iter().map(delete));
    for answer in answers(deletes).await {
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let ended = "select count(*) from seriatim.job where status = 'succeeded'";
    assert_eq!(sqs.number(ended).await, 200);
    let of_deletes = sqs.number(commits).await;
    assert!(of_deletes < 100, "200 deletes were {of_deletes} commits");
    end(sqs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receives_share_commits_and_no_group_is_in_two_answers() {
    const GROUPS: usize = 40;
    let sqs = Arc::new(Sqs::start().await);
    let url = sqs.queue("q.fifo").await;
    let mut sends = (0..MANY).map(|number| {
        let mut message = message(&url, number);
        message["MessageGroupId"] = format!("group-{}", number % GROUPS).into();
        message
    });
    // In order: side by side, a group's could overtake each other.
    while let Some(first) = sends.next() {
        let round: Vec<Value> =
            [first].into_iter().chain(sends.by_ref().take(GROUPS - 1)).collect();
        answers(ask_all(&sqs, "SendMessage", round)).await;
    }
    let mut bodies: Vec<Vec<String>> = vec![vec![]; GROUPS];
    let receive = json!({"QueueUrl": url, "MaxNumberOfMessages": 7, "AttributeNames": ["All"]});
    while bodies.iter().map(Vec::len).sum::<usize>() < MANY {
        let asked = ask_all(&sqs, "ReceiveMessage", vec![receive.clone(); 30]);
        let mut deletes = Vec::new();
        let mut has = vec![None; GROUPS];
        for (request, answer) in answers(asked).await.iter().enumerate() {
            let answer = answer.json();
            let messages = answer["Messages"].as_array().cloned().unwrap_or_default();
            assert!(messages.len() <= 7);
            for message in messages {
                assert_eq!(message["Attributes"]["ApproximateReceiveCount"], "1", "{message}");
                let group = message["Attributes"]["MessageGroupId"].as_str().unwrap();
                let group: usize = group.strip_prefix("group-").unwrap().parse().unwrap();
                assert_eq!(
                    *has[group].get_or_insert(request),
                    request,
                    "{group} is in two answers"
                );
                bodies[group].push(message["Body"].as_str().unwrap().to_owned());
                deletes.push(json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}));
            }
        }
        assert!(!deletes.is_empty(), "{bodies:?}");
        let deletes = answers(ask_all(&sqs, "DeleteMessage", deletes)).await;
        assert!(deletes.iter().all(|answer| answer.status == 200));
    }
    for (group, bodies) in bodies.iter().enumerate() {
        let sent = (group..MANY).step_by(GROUPS).map(|number| format!("body-{number}"));
        assert_eq!(*bodies, sent.collect::<Vec<_>>());
    }
    end(sqs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_waits_for_a_transaction_waits_alone() {
    let sqs = Arc::new(Sqs::start().await);
    let url = sqs.queue("q.fifo").await;
    let open = enqueued_in_open(&sqs).await;
    let mut waits = ask_all(&sqs, "SendMessage", [message(&url, 0)]);
    until_blocked(&sqs, 1).await;
    // One of these also has the deduplication id of the open transaction.
    let sends = (0..MANY).map(|number| message(&url, number));
    let mut sends = ask_all(&sqs, "SendMessage", sends);
    waits.push(sends.remove(0));
    assert!(answers(sends).await.iter().all(|answer| answer.status == 200));
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    open.commit().await.unwrap();
    let answers = answers(waits).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    // Both repeat the message of the transaction.
    assert_eq!(answers[0].json()["MessageId"], answers[1].json()["MessageId"]);
    assert_eq!(sqs.number("select count(*) from seriatim.job").await, 200);
    end(sqs).await;
}

/// Lists, receives and sends while these wait, each of which is refused in the end.
async fn others_go_on(sqs: &Arc<Sqs>, waits: Vec<JoinHandle<Answer>>) {
    let (url, mut round) = (sqs.queue("other.fifo").await, 0);
    while !waits.iter().all(JoinHandle::is_finished) {
        sqs.call("ListQueues", json!({})).await;
        sqs.send_to(&url, "g", &[&round.to_string()]).await;
        let received = sqs.receive(&url).await;
        assert_eq!(sqs.delete(&url, &received[0]).await.status, 200);
        round += 1;
        // These wait for seconds, in which other tests want the processors too.
        sleep(Duration::from_millis(50)).await;
    }
    assert!(round > 1, "nothing waited");
    for answer in answers(waits).await {
        assert_eq!(answer.status, 503, "{}", answer.body);
        assert_eq!(answer.query_error.as_deref(), Some("ServiceUnavailable;Receiver"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_that_wait_for_transactions_leave_connections_to_others() {
    let sqs = Arc::new(Sqs::start().await);
    let url = sqs.queue("q.fifo").await;
    let mut open = sqs.database.pool().begin().await.unwrap();
    let held = "select seriatim.enqueue('q.fifo', '1', 'g', dedup_id => 'id-' || n)
                from generate_series(0, 29) n";
    sqlx::query(held).execute(&mut *open).await.unwrap();
    let sends = ask_all(&sqs, "SendMessage", (0..30).map(|number| message(&url, number)));
    until_blocked(&sqs, 1).await;
    others_go_on(&sqs, sends).await;
    open.rollback().await.unwrap();
    sqs.call("SendMessage", message(&url, 0)).await;
    end(sqs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_locked_queue_leave_connections_to_others() {
    let sqs = Arc::new(Sqs::start().await);
    let url = sqs.queue("q.fifo").await;
    let lock = "select from seriatim.sqs_queue where name = 'q.fifo' for update";
    let mut open = sqs.database.pool().begin().await.unwrap();
    sqlx::query(lock).execute(&mut *open).await.unwrap();
    let set = |n: usize| json!({"QueueUrl": url, "Attributes": {"DelaySeconds": n.to_string()}});
    let changes = ask_all(&sqs, "SetQueueAttributes", (0..12).map(set));
    until_blocked(&sqs, 1).await;
    others_go_on(&sqs, changes).await;
    let tag = ask_all(&sqs, "TagQueue", [json!({"QueueUrl": url, "Tags": {"a": "b"}})]);
    until_blocked(&sqs, 1).await;
    open.rollback().await.unwrap();
    assert_eq!(answers(tag).await[0].status, 200);
    end(sqs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_whose_client_hung_up_waits_no_more() {
    let sqs = Arc::new(Sqs::start().await);
    let url = sqs.queue("q.fifo").await;
    let open = enqueued_in_open(&sqs).await;
    let body = message(&url, 0).to_string();
    let mut client = TcpStream::connect(&sqs.address).await.unwrap();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\
         x-amz-target: AmazonSQS.SendMessage\r\n\r\n",
        sqs.address,
        body.len()
    );
    client.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    until_blocked(&sqs, 1).await;
    drop(client);
    // A request that waits pauses for 0.4 s at most between two tries, and ends after 5 s.
    let (hung_up, mut blocked_at) = (Instant::now(), Instant::now());
    while blocked_at.elapsed() < Duration::from_secs(1) {
        let asked = hung_up.elapsed();
        if sqs.number(BLOCKED).await > 0 {
            blocked_at = Instant::now();
            assert!(asked < Duration::from_secs(4), "it waits for its client still");
        }
    }
    open.rollback().await.unwrap();
    sqs.call("SendMessage", message(&url, 0)).await;
    let sent = "select count(*) from seriatim.job where dedup_id = 'id-0'";
    assert_eq!(sqs.number(sent).await, 1);
    end(sqs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_fails_alone() {
    let sqs = Arc::new(Sqs::start().await);
    let url = sqs.queue("q.fifo").await;
    sqs.sql(
        "create function refuse() returns trigger language plpgsql as $$
           begin raise 'poison'; end $$;
         create trigger refuse before insert or update on seriatim.job for each row
           when (convert_from(new.payload, 'UTF8') = 'body-7'
             and new.status in ('queued', 'succeeded')) execute function refuse();
         alter table seriatim.job disable trigger refuse",
    )
    .await;
    let switch =
        async |on: &str| sqs.sql(&format!("alter table seriatim.job {on} trigger refuse")).await;
    switch("enable").await;
    let sends = ask_all(&sqs, "SendMessage", (0..MANY).map(|number| message(&url, number)));
    for (number, answer) in answers(sends).await.iter().enumerate() {
        let expected = if number == 7 { 500 } else { 200 };
        assert_eq!(answer.status, expected, "{number}: {}", answer.body);
    }
    switch("disable").await;
    sqs.call("SendMessage", message(&url, 7)).await;
    let mut received = Vec::new();
    while received.len() < MANY {
        received.extend(sqs.receive(&url).await);
    }
    switch("enable").await;
    let handles = received
        .iter()
        .map(|message| json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}));
    // No handle of this queue, and one for the second time.
    let stranger = json!({"QueueUrl": url, "ReceiptHandle": "stranger"});
    let deletes = ask_all(&sqs, "DeleteMessage", handles.chain([stranger]));
    let answers = answers(deletes).await;
    for (message, answer) in received.iter().zip(&answers) {
        let expected = if message["Body"] == "body-7" { 500 } else { 200 };
        assert_eq!(answer.status, expected, "{message}: {}", answer.body);
    }
    assert_eq!(answers[MANY].status, 400, "{}", answers[MANY].body);
    let ended = "select count(*) from seriatim.job where status = 'succeeded'";
    assert_eq!(sqs.number(ended).await, 199);
    end(sqs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_batches_have_their_own_answers() {
    let sqs = Arc::new(Sqs::start().await);
    let url = sqs.queue("q.fifo").await;
    let batch = |number: usize| {
        let entries = (0..10).map(|entry| {
            // The last two of a batch are the same message.
            let id = number * 10 + usize::min(entry, 8);
            json!({"Id": entry.to_string(), "MessageBody": format!("{id}"),
                "MessageGroupId": "g", "MessageDeduplicationId": id.to_string()})
        });
        json!({"QueueUrl": url, "Entries": entries.collect::<Vec<_>>()})
    };
    let sends = ask_all(&sqs, "SendMessageBatch", (0..40).map(batch));
    let mut ids = std::collections::HashSet::new();
    for answer in answers(sends).await {
        let answer = answer.json();
        let sent = answer["Successful"].as_array().unwrap();
        let id = |entry: usize| sent[entry]["MessageId"].as_str().unwrap().to_owned();
        assert_eq!(id(8), id(9));
        ids.extend((0..10).map(id));
    }
    assert_eq!(ids.len(), 360);
    // Received messages have the ids that their senders were given.
    let mut received = 0;
    while received < 360 {
        let messages = sqs.receive(&url).await;
        received += messages.len();
        for message in &messages {
            assert!(ids.contains(message["MessageId"].as_str().unwrap()));
            sqs.delete(&url, message).await;
        }
    }
    end(sqs).await;
}
