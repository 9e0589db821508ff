//! One address over several servers of PostgreSQL.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use futures::future::{join, join_all};
use http_body_util::Full;
use serde_json::{Value, json};
use seriatim::Client;
use seriatim::shards::{ShardId, Shards};
use seriatim::testing::{Server, TestDatabase};
use seriatim_sqs::{Access, Config, MessageId, ServeError, serve_over};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::size::size;
use crate::support::{PATIENCE, Sqs, bodies};

/// A server over shards from 0 on.
struct Several {
    sqs: Sqs,
    shards: Shards,
}

impl Several {
    async fn start() -> Self {
        let databases = join_all((0..3).map(|_| TestDatabase::create())).await;
        Self::start_on(databases.into_iter().map(Result::unwrap).collect()).await
    }

    async fn start_on(databases: Vec<TestDatabase>) -> Self {
        let config = Config::new().access(Access::Anonymous);
        let (sqs, shards) = Sqs::start_over(databases, config).await;
        Self { sqs, shards }
    }

    /// A group of this shard.
    fn group_on(&self, shard: u16) -> String {
        let mut groups = (0..).map(|n| format!("g{n}"));
        groups.find(|group| self.shards.of_group(group).0.number() == shard).unwrap()
    }

    /// A number of each database.
    async fn numbers(&self, sql: &str) -> Vec<i64> {
        let mut numbers = Vec::new();
        for database in [&self.sqs.database].into_iter().chain(&self.sqs.others) {
            numbers.push(number(database.pool(), sql).await);
        }
        numbers
    }

    /// Sends to a group of a FIFO queue. Returns the status and the name of the error.
    async fn send(&self, url: &str, group: &str, body: &str) -> (u16, Value) {
        let input = json!({"QueueUrl": url, "MessageBody": body, "MessageGroupId": group,
            "MessageDeduplicationId": body});
        let answer = self.sqs.ask("SendMessage", input).await;
        (answer.status, answer.json())
    }

    /// Waits until a queue's attribute is `expected`. A server that is slow to answer a receive
    /// gives back later what it has claimed: another one has answered.
    async fn until(&self, url: &str, name: &str, expected: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let input = json!({"QueueUrl": url, "AttributeNames": [name]});
            let answer = self.sqs.call("GetQueueAttributes", input).await;
            let found = answer["Attributes"][name].as_str().unwrap();
            if found == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{name} is {found}, not {expected}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn number(pool: &PgPool, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(pool).await.unwrap()
}

/// The shard that a message is on.
fn shard_of(message: &Value) -> u16 {
    let id: MessageId = message["MessageId"].as_str().unwrap().parse().unwrap();
    ShardId::of_job(id.job()).unwrap().number()
}

/// A batch of what is asked of each of these messages.
fn entries(messages: &[Value], visibility: Option<u32>) -> Vec<Value> {
    let entries = messages.iter().enumerate().map(|(n, message)| {
        let mut entry = json!({"Id": n.to_string(), "ReceiptHandle": message["ReceiptHandle"]});
        if let Some(visibility) = visibility {
            entry["VisibilityTimeout"] = visibility.into();
        }
        entry
    });
    entries.collect()
}

fn ids(answers: &Value) -> Vec<&str> {
    let answers = answers.as_array().map(Vec::as_slice).unwrap_or_default();
    answers.iter().map(|answer| answer["Id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_made_changed_and_removed_on_all_servers() {
    let three = Several::start().await;
    let sqs = &three.sqs;
    let url = sqs.queue_with("q.fifo", json!({"VisibilityTimeout": "7"})).await;
    // A repetition is no error.
    assert_eq!(sqs.queue_with("q.fifo", json!({"VisibilityTimeout": "7"})).await, url);
    sqs.call("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": {"DelaySeconds": "3"}}))
        .await;
    sqs.call("TagQueue", json!({"QueueUrl": url, "Tags": {"a": "1", "b": "2"}})).await;
    sqs.call("UntagQueue", json!({"QueueUrl": url, "TagKeys": ["a"]})).await;
    let permission = json!({"QueueUrl": url, "Label": "l", "AWSAccountIds": ["111111111111"],
        "Actions": ["SendMessage"]});
    sqs.call("AddPermission", permission.clone()).await;
    let (name, _) = sqs.refusal("AddPermission", permission).await;
    assert_eq!(name, "InvalidParameterValueException");
    let changed = "select count(*) from seriatim.sqs_queue where name = 'q.fifo'
        and attributes ->> 'VisibilityTimeout' = '7' and attributes ->> 'DelaySeconds' = '3'
        and attributes ? 'Policy' and tags = '{\"b\": \"2\"}'";
    assert_eq!(three.numbers(changed).await, [1, 1, 1]);
    sqs.call("RemovePermission", json!({"QueueUrl": url, "Label": "l"})).await;
    let policies = "select count(*) from seriatim.sqs_queue where attributes ? 'Policy'";
    assert_eq!(three.numbers(policies).await, [0, 0, 0]);
    // The settings of jobs, too.
    let settings = "select count(*) from seriatim.queue where name = 'q.fifo'";
    assert_eq!(three.numbers(settings).await, [1, 1, 1]);

    for shard in 0..3 {
        sqs.send_to(&url, &three.group_on(shard), &[&format!("body-{shard}")]).await;
    }
    let queued = "select count(*) from seriatim.job where status = 'queued'";
    assert_eq!(three.numbers(queued).await, [1, 1, 1]);
    sqs.call("PurgeQueue", json!({"QueueUrl": url})).await;
    assert_eq!(three.numbers(queued).await, [0, 0, 0]);
    sqs.send_to(&url, &three.group_on(1), &["later"]).await;
    let (name, _) = sqs.refusal("PurgeQueue", json!({"QueueUrl": url})).await;
    assert_eq!((&*name, three.numbers(queued).await), ("PurgeQueueInProgress", vec![0, 1, 0]));
    sqs.call("DeleteQueue", json!({"QueueUrl": url})).await;
    assert_eq!(three.numbers("select count(*) from seriatim.sqs_queue").await, [0, 0, 0]);
    assert_eq!(three.numbers(queued).await, [0, 0, 0]);
    three.sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_broke_off_is_repeated_on_all() {
    let three = Several::start().await;
    let sqs = &three.sqs;
    let url = sqs.queue("q").await;
    sqs.queue("z").await;
    // As after the first servers of a change.
    for (database, sql) in [
        (&sqs.others[1], "delete from seriatim.sqs_queue where name = 'q'"),
        (&sqs.others[0], "insert into seriatim.sqs_queue (name) values ('half')"),
    ] {
        sqlx::query(sql).execute(database.pool()).await.unwrap();
    }
    let listed = sqs.call("ListQueues", json!({})).await;
    let names: Vec<_> = listed["QueueUrls"].as_array().unwrap().iter().collect();
    let names: Vec<_> =
        names.iter().map(|url| url.as_str().unwrap().rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["half", "q", "z"]);
    let first = sqs.call("ListQueues", json!({"MaxResults": 2})).await;
    let next = json!({"MaxResults": 2, "NextToken": first["NextToken"]});
    let next = sqs.call("ListQueues", next).await;
    assert_eq!(next["QueueUrls"].as_array().unwrap().len(), 1, "{next}");
    assert_eq!(sqs.queue("half").await.rsplit('/').next(), Some("half"));
    let half = "select count(*) from seriatim.sqs_queue where name = 'half'";
    assert_eq!(three.numbers(half).await, [1, 1, 1]);
    // The settings of its jobs are not on the server, so no message goes there.
    let mut refused = 0;
    for _ in 0..3 {
        let answer = sqs.ask("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})).await;
        if answer.status != 200 {
            refused += 1;
            assert!(answer.body.contains("not on shard 2 yet: create it again"), "{}", answer.body);
        }
    }
    assert_eq!(refused, 1);
    sqs.queue("q").await;
    for _ in 0..3 {
        sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "1"})).await;
    }
    sqs.call("DeleteQueue", json!({"QueueUrl": url})).await;
    let left = "select count(*) from seriatim.sqs_queue where name = 'q'";
    assert_eq!(three.numbers(left).await, [0, 0, 0]);
    three.sqs.end().await;
}

/// A server that came later, or that missed a change, gets a queue as the first one has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_create_gives_all_servers_what_the_first_one_has() {
    let three = Several::start().await;
    let sqs = &three.sqs;
    let url = sqs.queue_with("q.fifo", json!({"VisibilityTimeout": "7"})).await;
    sqs.queue("dead.fifo").await;
    let policy = json!({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead.fifo",
        "maxReceiveCount": 2});
    let set = json!({"DelaySeconds": "3", "RedrivePolicy": policy.to_string()});
    sqs.call("SetQueueAttributes", json!({"QueueUrl": url, "Attributes": set})).await;
    sqs.call("TagQueue", json!({"QueueUrl": url, "Tags": {"a": "1"}})).await;
    // One server is new, and the other one has a change that broke off.
    let forget = "delete from seriatim.sqs_queue where name = 'q.fifo'";
    let forget_settings = "delete from seriatim.queue where name = 'q.fifo'";
    for sql in [forget, forget_settings] {
        sqlx::query(sql).execute(sqs.others[1].pool()).await.unwrap();
    }
    let half = "update seriatim.sqs_queue set attributes = '{\"FifoQueue\": \"true\",
        \"VisibilityTimeout\": \"8\", \"ReceiveMessageWaitTimeSeconds\": \"5\"}'";
    sqlx::query(half).execute(sqs.others[0].pool()).await.unwrap();
    // The name alone, and what the first server has.
    sqs.queue_with("q.fifo", json!({})).await;
    sqs.queue_with("q.fifo", json!({"VisibilityTimeout": "7"})).await;
    let whole = "select count(*) from seriatim.sqs_queue q join seriatim.queue using (name)
        where name = 'q.fifo' and q.attributes - 'RedrivePolicy' = '{\"FifoQueue\": \"true\",
          \"VisibilityTimeout\": \"7\", \"DelaySeconds\": \"3\"}'
          and q.attributes ? 'RedrivePolicy' and q.tags = '{\"a\": \"1\"}'
          and dead_letter_queue = 'dead.fifo' and max_attempts = 2
          and delay_ms = 3000";
    assert_eq!(three.numbers(whole).await, [1, 1, 1]);
    let (name, _) = sqs
        .refusal(
            "CreateQueue",
            json!({"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true",
                "VisibilityTimeout": "8"}}),
        )
        .await;
    assert_eq!(name, "QueueNameExists");
    // The others keep what they have if the first one is new.
    sqlx::query(forget).execute(sqs.database.pool()).await.unwrap();
    let alone = json!({"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}});
    let (name, told) = sqs.refusal("CreateQueue", alone).await;
    assert_eq!(name, "QueueNameExists");
    assert!(told.starts_with("Shard 1 has this queue with a different value"), "{told}");
    assert_eq!(three.numbers(whole).await, [0, 1, 1]);
    let all = json!({"VisibilityTimeout": "7", "DelaySeconds": "3",
        "RedrivePolicy": policy.to_string()});
    sqs.queue_with("q.fifo", all).await;
    let settings = "select count(*) from seriatim.sqs_queue where name = 'q.fifo'
        and attributes ->> 'DelaySeconds' = '3' and attributes ->> 'VisibilityTimeout' = '7'";
    assert_eq!(three.numbers(settings).await, [1, 1, 1]);
    three.sqs.end().await;
}

/// Changes that come to two processes reach all servers in one order.
#[tokio::test(flavor = "multi_thread")]
async fn changes_at_the_same_time_leave_all_servers_alike() {
    let three = Several::start().await;
    let sqs = &three.sqs;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = listener.local_addr().unwrap().to_string();
    let (end, ended) = oneshot::channel::<()>();
    let (shards, config) = (three.shards.clone(), Config::new().access(Access::Anonymous));
    let serving = tokio::spawn(async move {
        serve_over(listener, &shards, config, async { _ = ended.await }).await
    });
    let url = sqs.queue("q").await;
    let seconds = "select (attributes ->> 'VisibilityTimeout')::int8 from seriatim.sqs_queue";
    for round in 0..size(6, 20) {
        let changes = [&sqs.address, &other, &sqs.address, &other].into_iter().zip(0..);
        let changes = changes.map(|(address, n)| {
            let attributes = json!({"VisibilityTimeout": (10 * round + n).to_string()});
            let change = json!({"QueueUrl": url, "Attributes": attributes});
            let mut change = sqs.request("SetQueueAttributes", &change);
            *change.uri_mut() = format!("http://{address}/").parse().unwrap();
            sqs.send(change)
        });
        for changed in join_all(changes).await {
            assert_eq!(changed.status, 200, "{}", changed.body);
        }
        let numbers = three.numbers(seconds).await;
        assert!(numbers.iter().all(|of| *of == numbers[0]), "{round}: {numbers:?}");
    }
    end.send(()).unwrap();
    serving.await.unwrap().unwrap();
    three.sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_of_all_servers_are_received_once_and_in_order() {
    const GROUPS: usize = 18;
    const MESSAGES: usize = 12;
    let three = Several::start().await;
    let sqs = &three.sqs;
    let url = sqs.queue("q.fifo").await;
    let received: Mutex<BTreeMap<String, Vec<usize>>> = Mutex::default();
    let produce = (0..GROUPS).map(|group| {
        let (sqs, url) = (sqs, &url);
        async move {
            // In batches of groups of several servers, and alone.
            for n in 0..MESSAGES {
                sqs.send_to(url, &format!("g{group}"), &[&format!("{group}.{n}")]).await;
            }
        }
    });
    let total = || received.lock().unwrap().values().map(Vec::len).sum::<usize>();
    let consume = (0..4).map(|_| async {
        while total() < GROUPS * MESSAGES {
            let all = json!({"MaxNumberOfMessages": 10, "WaitTimeSeconds": 1});
            let messages = sqs.receive_with(&url, all).await;
            assert!(messages.len() <= 10);
            if messages.is_empty() {
                continue;
            }
            for body in bodies(&messages) {
                let (group, n) = body.split_once('.').unwrap();
                let mut received = received.lock().unwrap();
                received.entry(group.to_owned()).or_default().push(n.parse().unwrap());
            }
            let batch = json!({"QueueUrl": url, "Entries": entries(&messages, None)});
            let deleted = sqs.call("DeleteMessageBatch", batch).await;
            assert_eq!(ids(&deleted["Successful"]).len(), messages.len(), "{deleted}");
        }
    });
    timeout(2 * PATIENCE, join(join_all(produce), join_all(consume))).await.unwrap();
    let received = received.into_inner().unwrap();
    assert_eq!(received.len(), GROUPS);
    for (group, numbers) in &received {
        assert!(numbers.iter().copied().eq(0..MESSAGES), "{group}: {numbers:?}");
    }
    let mut groups = BTreeSet::new();
    for (shard, pool) in three.shards.iter() {
        let own = "select distinct group_id from seriatim.job";
        let own: Vec<String> = sqlx::query_scalar(own).fetch_all(pool).await.unwrap();
        assert!(!own.is_empty(), "shard {shard}");
        for group in own {
            assert_eq!(three.shards.of_group(&group).0, shard, "{group}");
            assert!(groups.insert(group));
        }
    }
    three.until(&url, "ApproximateNumberOfMessages", "0").await;
    three.sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_several_groups_is_answered_in_its_order() {
    let three = Several::start().await;
    let url = three.sqs.queue("q.fifo").await;
    let groups = [2, 0, 1, 0, 2].map(|shard| (shard, three.group_on(shard)));
    let entry = |(n, (_, group)): (usize, &(u16, String))| {
        json!({"Id": n.to_string(), "MessageBody": n.to_string(), "MessageGroupId": group,
            "MessageDeduplicationId": n.to_string()})
    };
    let mut batch: Vec<_> = groups.iter().enumerate().map(entry).collect();
    batch.insert(
        2,
        json!({"Id": "odd", "MessageBody": "", "MessageGroupId": "g",
        "MessageDeduplicationId": "odd"}),
    );
    let sent = json!({"QueueUrl": url, "Entries": batch});
    let sent = three.sqs.call("SendMessageBatch", sent).await;
    assert_eq!(ids(&sent["Successful"]), ["0", "1", "2", "3", "4"], "{sent}");
    assert_eq!(ids(&sent["Failed"]), ["odd"], "{sent}");
    for (answer, (shard, _)) in sent["Successful"].as_array().unwrap().iter().zip(&groups) {
        assert_eq!(shard_of(answer), *shard, "{answer}");
    }
    three.sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_without_a_group_are_on_all_servers_in_turn() {
    let three = Several::start().await;
    let sqs = &three.sqs;
    let url = sqs.queue("q").await;
    for n in 0..12 {
        sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": n.to_string()})).await;
    }
    assert_eq!(three.numbers("select count(*) from seriatim.job").await, [4, 4, 4]);
    three.until(&url, "ApproximateNumberOfMessages", "12").await;
    // Receives are fair. One asks the next server if the first is slow.
    let mut received = Vec::new();
    for _ in 0..9 {
        received.extend(sqs.receive_with(&url, json!({"VisibilityTimeout": 600})).await);
    }
    let on = |shard| received.iter().filter(|message| shard_of(message) == shard).count();
    assert!([0, 1, 2].map(on).into_iter().all(|messages| messages >= 2), "{received:?}");
    three.until(&url, "ApproximateNumberOfMessagesNotVisible", "9").await;

    // Handles of all servers, and one that is none, in one batch.
    let mut batch = entries(&received, None);
    batch.insert(4, json!({"Id": "odd", "ReceiptHandle": "odd"}));
    let delete = json!({"QueueUrl": url, "Entries": batch});
    let deleted = sqs.call("DeleteMessageBatch", delete).await;
    assert_eq!(ids(&deleted["Successful"]), ["0", "1", "2", "3", "4", "5", "6", "7", "8"]);
    assert_eq!(ids(&deleted["Failed"]), ["odd"]);
    three.until(&url, "ApproximateNumberOfMessagesNotVisible", "0").await;

    // So are visibilities.
    let mut rest = Vec::new();
    while rest.len() < 3 {
        rest.extend(sqs.receive_with(&url, json!({"VisibilityTimeout": 600})).await);
    }
    let change = json!({"QueueUrl": url, "Entries": entries(&rest, Some(0))});
    let changed = sqs.call("ChangeMessageVisibilityBatch", change).await;
    assert_eq!(ids(&changed["Successful"]), ["0", "1", "2"]);
    three.until(&url, "ApproximateNumberOfMessages", "3").await;
    let of_other = sqs.queue("other").await;
    assert_eq!(sqs.delete(&of_other, &rest[0]).await.status, 400);
    for message in &rest {
        assert_eq!(sqs.delete(&url, message).await.status, 200);
    }
    three.until(&url, "ApproximateNumberOfMessages", "0").await;
    let move_task = json!({"SourceArn": "arn:aws:sqs:us-east-1:000000000000:q"});
    for operation in ["StartMessageMoveTask", "ListMessageMoveTasks"] {
        let (name, told) = sqs.refusal(operation, move_task.clone()).await;
        assert_eq!(name, "UnsupportedOperation");
        assert!(told.contains("move-task start --shard"), "{told}");
    }
    three.sqs.end().await;
}

/// A program that does two things in turn does not meet the same server each time.
#[tokio::test(flavor = "multi_thread")]
async fn each_queue_has_a_turn_of_its_own() {
    let databases = join_all((0..2).map(|_| TestDatabase::create())).await;
    let two = Several::start_on(databases.into_iter().map(Result::unwrap).collect()).await;
    let sqs = &two.sqs;
    let urls = [sqs.queue("a").await, sqs.queue("b").await];
    let empty = sqs.queue("empty").await;
    for n in 0..4 {
        for url in &urls {
            sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": n.to_string()})).await;
        }
    }
    for n in 0..4 {
        let body = json!({"QueueUrl": urls[0], "MessageBody": n.to_string()});
        sqs.call("SendMessage", body).await;
        assert!(sqs.receive(&empty).await.is_empty());
    }
    let of = |queue| format!("select count(*) from seriatim.job where queue = '{queue}'");
    assert_eq!(two.numbers(&of("a")).await, [4, 4]);
    assert_eq!(two.numbers(&of("b")).await, [2, 2]);
    two.sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_waits_on_all_servers_at_once() {
    let three = Several::start().await;
    let sqs = &three.sqs;
    let url = sqs.queue("q.fifo").await;
    for shard in 0..3 {
        let group = three.group_on(shard);
        let mut fastest = PATIENCE;
        for n in 0..50 {
            // Less than the time between two looks at the queues.
            if fastest < Duration::from_millis(200) {
                break;
            }
            let body = format!("{shard}.{n}");
            let wait = json!({"WaitTimeSeconds": 20, "MaxNumberOfMessages": 10});
            let send = async {
                // The poll has found nothing by then.
                sleep(Duration::from_millis(100)).await;
                let begun = Instant::now();
                sqs.send_to(&url, &group, &[&body]).await;
                begun
            };
            let (received, begun) = join(sqs.receive_with(&url, wait), send).await;
            fastest = fastest.min(begun.elapsed());
            assert_eq!(bodies(&received), [&*body]);
            assert_eq!((received.len(), shard_of(&received[0])), (1, shard));
            assert_eq!(sqs.delete(&url, &received[0]).await.status, 200);
        }
        assert!(fastest < Duration::from_millis(200), "shard {shard}: {fastest:?}");
    }
    three.sqs.end().await;
}

/// A repetition with the same id begins at the same server.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_receive_has_the_same_answer() {
    let three = Several::start().await;
    let sqs = &three.sqs;
    let url = sqs.queue("q.fifo").await;
    for shard in 0..3 {
        sqs.send_to(&url, &three.group_on(shard), &[&format!("body-{shard}")]).await;
    }
    // A server that is late for one of them is not waited for.
    for tries in 1.. {
        let ask =
            json!({"ReceiveRequestAttemptId": format!("try-{tries}"), "MaxNumberOfMessages": 10});
        let first = sqs.receive_with(&url, ask.clone()).await;
        let mut same = first.len() == 1;
        for _ in 0..4 {
            same &= bodies(&sqs.receive_with(&url, ask.clone()).await) == bodies(&first);
        }
        if same {
            break;
        }
        assert!(tries < 3, "{first:?}");
    }
    three.sqs.end().await;
}

/// Waits until an operation has this status.
async fn until_status(sqs: &Sqs, status: u16, operation: &str, input: &Value) -> Value {
    let begun = Instant::now();
    loop {
        let answer = sqs.ask(operation, input.clone()).await;
        if answer.status == status {
            return answer.json();
        }
        assert!(begun.elapsed() < PATIENCE, "{operation}: {} {}", answer.status, answer.body);
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_stops_its_own_groups_and_no_others() {
    let servers = join_all((0..3).map(|_| Server::start())).await;
    let servers: Vec<_> = servers.into_iter().map(Result::unwrap).collect();
    let databases = join_all(servers.iter().map(TestDatabase::create_on)).await;
    let three = Several::start_on(databases.into_iter().map(Result::unwrap).collect()).await;
    let sqs = &three.sqs;
    let (url, standard) = (sqs.queue("q.fifo").await, sqs.queue("q").await);
    let groups = [0, 1, 2].map(|shard| three.group_on(shard));
    let visible = json!({"VisibilityTimeout": 600, "MaxNumberOfMessages": 10});
    for group in &groups {
        sqs.send_to(&url, group, &[&format!("{group}.first")]).await;
    }
    let mut in_flight = Vec::new();
    while in_flight.len() < 3 {
        in_flight.extend(sqs.receive_with(&url, visible.clone()).await);
    }
    in_flight.sort_by_key(shard_of);
    sqs.send_to(&url, &groups[1], &["before"]).await;

    servers[1].stop_immediately().await.unwrap();
    let to_killed = json!({"QueueUrl": url, "MessageBody": "away", "MessageGroupId": groups[1],
        "MessageDeduplicationId": "away"});
    let refused = until_status(sqs, 503, "SendMessage", &to_killed).await;
    assert!(refused["__type"].as_str().unwrap().contains("ServiceUnavailable"), "{refused}");
    let create = json!({"QueueName": "new"});
    let refused = until_status(sqs, 503, "CreateQueue", &create).await;
    assert!(refused["message"].as_str().unwrap().contains("Shard 1 is away"), "{refused}");

    // The others go on, and nobody waits for the one that is away.
    let begun = Instant::now();
    for n in 0..4 {
        for shard in [0, 2] {
            let (status, answer) = three.send(&url, &groups[shard], &format!("{shard}.{n}")).await;
            assert_eq!(status, 200, "{answer}");
        }
        let body = json!({"QueueUrl": standard, "MessageBody": n.to_string()});
        let sent = sqs.call("SendMessage", body).await;
        assert_ne!(shard_of(&sent), 1);
        assert_eq!(three.send(&url, &groups[1], "away").await.0, 503);
    }
    let of_all = json!({"QueueUrl": url, "Entries": entries(&in_flight, None)});
    let deleted = sqs.call("DeleteMessageBatch", of_all).await;
    assert_eq!(ids(&deleted["Successful"]), ["0", "2"], "{deleted}");
    let failed = &deleted["Failed"][0];
    assert_eq!((&failed["Id"], &failed["Code"]), (&json!("1"), &json!("ServiceUnavailable")));
    assert_eq!(failed["SenderFault"], false);
    assert_eq!(sqs.delete(&url, &in_flight[1]).await.status, 503);
    three.until(&url, "ApproximateNumberOfMessages", "8").await;
    let mut others = Vec::new();
    while others.len() < 8 {
        // Empty if a server was late, and what it had claimed is not given back yet.
        others.extend(sqs.receive_with(&url, visible.clone()).await);
        assert!(begun.elapsed() < PATIENCE, "{others:?}");
    }
    assert!(others.iter().all(|message| shard_of(message) != 1));
    assert!(sqs.receive(&url).await.is_empty());
    for messages in others.chunks(10) {
        let batch = json!({"QueueUrl": url, "Entries": entries(messages, None)});
        sqs.call("DeleteMessageBatch", batch).await;
    }
    let wait = json!({"WaitTimeSeconds": 20, "MaxNumberOfMessages": 10});
    let (polled, ()) =
        join(sqs.receive_with(&url, wait), sqs.send_to(&url, &groups[2], &["polled"])).await;
    assert_eq!(bodies(&polled), ["polled"]);
    sqs.delete(&url, &polled[0]).await;
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    let health = hyper::Request::get(format!("http://{}/health", sqs.address));
    let health = sqs.send(health.body(Full::default()).unwrap()).await;
    assert_eq!((health.status, &*health.body), (200, "ok\nshard 1 does not answer\n"));
    let none = "select count(*) from seriatim.sqs_queue where name = 'new'";
    for database in [&sqs.database, &sqs.others[1]] {
        assert_eq!(number(database.pool(), none).await, 0);
    }

    servers[1].start_again().await.unwrap();
    until_status(sqs, 200, "SendMessage", &to_killed).await;
    let handle = json!({"QueueUrl": url, "ReceiptHandle": in_flight[1]["ReceiptHandle"]});
    until_status(sqs, 200, "DeleteMessage", &handle).await;
    let mut after = Vec::new();
    while after.len() < 2 {
        let wait = json!({"WaitTimeSeconds": 20, "MaxNumberOfMessages": 10});
        after.extend(sqs.receive_with(&url, wait).await);
    }
    assert_eq!(bodies(&after), ["before", "away"]);
    until_status(sqs, 200, "CreateQueue", &create).await;
    assert_eq!(three.numbers(none).await, [1, 1, 1]);
    three.sqs.end().await;
}

/// Sends a signal to a private server and its sessions.
fn signal(server: &Server, signal: &str) {
    let pid = server.data_directory().unwrap().join("postmaster.pid");
    let pid = std::fs::read_to_string(pid).unwrap();
    let pid = pid.lines().next().unwrap();
    for (program, arguments) in [("kill", &[signal, pid][..]), ("pkill", &[signal, "-P", pid])] {
        assert!(Command::new(program).args(arguments).status().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_holds_the_others_up_for_a_moment_only() {
    let (one, other) = join(Server::start(), Server::start()).await;
    let servers = [one.unwrap(), other.unwrap()];
    let databases = join_all(servers.iter().map(TestDatabase::create_on)).await;
    let two = Several::start_on(databases.into_iter().map(Result::unwrap).collect()).await;
    let sqs = &two.sqs;
    let url = sqs.queue("q.fifo").await;
    let (there, hangs) = (two.group_on(0), two.group_on(1));
    let polled = async {
        let wait = json!({"WaitTimeSeconds": 20, "MaxNumberOfMessages": 10});
        sqs.receive_with(&url, wait).await
    };
    let (polled, ()) = join(polled, async {
        // The poll has found nothing by then.
        sleep(Duration::from_millis(100)).await;
        signal(&servers[1], "-STOP");
        let begun = Instant::now();
        // Requests to the one that hangs do not wait for its connections to time out.
        let (status, answer) = two.send(&url, &hangs, "late").await;
        assert_eq!(status, 503, "{answer}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        sqs.send_to(&url, &there, &["1"]).await;
    })
    .await;
    assert_eq!(bodies(&polled), ["1"]);
    assert_eq!(sqs.delete(&url, &polled[0]).await.status, 200);
    let mut took = Vec::new();
    for n in 0..size(7, 10) {
        let begun = Instant::now();
        sqs.send_to(&url, &there, &[&format!("more-{n}")]).await;
        let more = sqs.receive(&url).await;
        assert_eq!(bodies(&more), [format!("more-{n}")]);
        assert_eq!(sqs.delete(&url, &more[0]).await.status, 200);
        assert!(sqs.receive(&url).await.is_empty());
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    assert!(took[took.len() / 2] < Duration::from_millis(400), "{took:?}");
    signal(&servers[1], "-CONT");
    let begun = Instant::now();
    while two.send(&url, &hangs, "late").await.0 != 200 {
        assert!(begun.elapsed() < PATIENCE, "the server does not come back");
        sleep(Duration::from_millis(20)).await;
    }
    let wait = json!({"WaitTimeSeconds": 20, "MaxNumberOfMessages": 10});
    assert_eq!(bodies(&sqs.receive_with(&url, wait).await), ["late"]);
    two.sqs.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_refuses_servers_that_do_not_fit_and_waits_for_those_that_are_away() {
    let (one, two) = (TestDatabase::create().await.unwrap(), TestDatabase::create().await.unwrap());
    let shard = |number| ShardId::new(number).unwrap();
    let pool = async |database: &TestDatabase| {
        database.pool_with(PgPoolOptions::new().max_connections(5)).await.unwrap()
    };
    let start = async |servers: Vec<(u16, PgPool)>, time: Duration| {
        let servers = servers.into_iter().map(|(number, pool)| (shard(number), pool));
        let shards = Shards::new(servers).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = Config::new().access(Access::Anonymous);
        serve_over(listener, &shards, config, sleep(time)).await
    };
    let soon = Duration::from_millis(10);
    Client::default().migrate_shard(one.pool(), shard(1)).await.unwrap();
    let refused = start(vec![(1, pool(&one).await), (2, pool(&two).await)], soon).await;
    let told = refused.unwrap_err().to_string();
    assert!(told.starts_with("shard 2: the schema has no number yet"), "{told}");
    Client::default().migrate_shard(two.pool(), shard(2)).await.unwrap();
    let refused = start(vec![(2, pool(&one).await), (1, pool(&two).await)], soon).await;
    let told = refused.unwrap_err().to_string();
    assert!(told.starts_with("shard 1: ") && told.contains("is shard 2, not 1"), "{told}");

    let away = || PgPoolOptions::new().connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap();
    start(vec![(0, away()), (2, pool(&two).await)], soon).await.unwrap();
    let refused = start(vec![(0, away()), (3, away())], soon).await.unwrap_err();
    assert!(matches!(refused, ServeError::OnShard { .. }), "{refused}");
    one.remove().await.unwrap();
    two.remove().await.unwrap();
}
