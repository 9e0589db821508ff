//! Many connections at once, at mixed work.
//!
//! `SERIATIM_SQS_CONNECTIONS=5000 cargo test --release -p seriatim-sqs load -- --ignored
//! --nocapture` tries a load that needs as many open files twice, and prints what it took.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use seriatim_sqs::{Access, Config};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tokio::time::timeout;

use crate::support::{PATIENCE, Sqs};

/// A client with one connection, and how long its requests took.
struct Connection {
    sqs: Arc<Sqs>,
    http: SendRequest<Full<Bytes>>,
    took: HashMap<&'static str, Vec<Duration>>,
}

impl Connection {
    async fn open(sqs: &Arc<Sqs>) -> Self {
        let stream = TcpStream::connect(&sqs.address).await.unwrap();
        let (http, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sqs: Arc::clone(sqs), http, took: HashMap::new() }
    }

    async fn call(&mut self, operation: &'static str, input: Value) -> Value {
        let begun = Instant::now();
        let request = self.sqs.request(operation, &input);
        let answer = timeout(2 * PATIENCE, self.http.send_request(request));
        let answer = answer.await.expect("nobody starves").unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, 200, "{operation}: {}", String::from_utf8_lossy(&body));
        self.took.entry(operation).or_default().push(begun.elapsed());
        serde_json::from_slice(&body).unwrap()
    }

    /// Sends, or receives and deletes, or asks. Returns the bodies that it deleted.
    async fn works(&mut self, client: usize, rounds: usize, url: &str) -> Vec<String> {
        let mut deleted = Vec::new();
        for round in 0..rounds {
            match client % 4 {
                0 => {
                    let body = format!("{client}-{round}");
                    let message = json!({"QueueUrl": url, "MessageBody": body,
                        "MessageGroupId": format!("g{}", client % 100),
                        "MessageDeduplicationId": body});
                    self.call("SendMessage", message).await;
                }
                1 | 2 => {
                    let receive = json!({"QueueUrl": url, "WaitTimeSeconds": 1,
                        "MaxNumberOfMessages": 10});
                    let received = self.call("ReceiveMessage", receive).await;
                    for message in received["Messages"].as_array().into_iter().flatten() {
                        let handle = &message["ReceiptHandle"];
                        let delete = json!({"QueueUrl": url, "ReceiptHandle": handle});
                        self.call("DeleteMessage", delete).await;
                        deleted.push(message["Body"].as_str().unwrap().to_owned());
                    }
                }
                _ => {
                    let ask = json!({"QueueUrl": url, "AttributeNames": ["VisibilityTimeout"]});
                    self.call("GetQueueAttributes", ask).await;
                }
            }
        }
        deleted
    }
}

/// All clients are connected before the first one asks. Each has an answer to all that it asks, and
/// each message is deleted once.
async fn load(clients: usize, rounds: usize) {
    let config = Config::new().access(Access::Anonymous);
    let sqs = Arc::new(Sqs::start_with(config, 20).await);
    let url = sqs.queue_with("q.fifo", json!({"VisibilityTimeout": "600"})).await;
    let (begun, all) = (Instant::now(), Arc::new(Barrier::new(clients)));
    let work = (0..clients).map(|client| {
        let (sqs, url, all) = (Arc::clone(&sqs), url.clone(), Arc::clone(&all));
        tokio::spawn(async move {
            let mut connection = Connection::open(&sqs).await;
            all.wait().await;
            let deleted = connection.works(client, rounds, &url).await;
            (connection.took, deleted)
        })
    });
    let (mut took, mut deleted) = (HashMap::<_, Vec<Duration>>::new(), Vec::new());
    for done in join_all(work).await {
        let (its, bodies) = done.unwrap();
        for (operation, its) in its {
            took.entry(operation).or_default().extend(its);
        }
        deleted.extend(bodies);
    }
    println!("{clients} connections, {:.1?}, {} kB resident", begun.elapsed(), resident());
    for (operation, mut its) in took {
        its.sort();
        let at = |part: usize| its[(its.len() - 1) * part / 100];
        println!(
            "{operation}: {} p50 {:.1?} p99 {:.1?} max {:.1?}",
            its.len(),
            at(50),
            at(99),
            at(100)
        );
    }
    // Messages that were sent after the last receive.
    loop {
        let left = sqs.receive(&url).await;
        if left.is_empty() {
            break;
        }
        for message in &left {
            assert_eq!(sqs.delete(&url, message).await.status, 200);
            deleted.push(message["Body"].as_str().unwrap().to_owned());
        }
    }
    deleted.sort();
    let mut sent: Vec<String> = (0..clients)
        .step_by(4)
        .flat_map(|client| (0..rounds).map(move |round| format!("{client}-{round}")))
        .collect();
    sent.sort();
    assert_eq!(deleted, sent);
    Arc::into_inner(sqs).unwrap().end().await;
}

/// The memory of this process, which has the clients too. 0 if the system does not tell.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_connections_are_all_served() {
    load(400, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs 10,000 open files"]
async fn thousands_of_connections_are_all_served() {
    let clients = std::env::var("SERIATIM_SQS_CONNECTIONS").ok();
    load(clients.map_or(5000, |clients| clients.parse().unwrap()), 3).await;
}

/// One that is idle makes room for another; one whose request is carried out does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_beyond_the_limit_has_the_place_of_an_idle_one() {
    let config = Config::new().access(Access::Anonymous).connections(3);
    // Its own client keeps its connection, which is idle.
    let sqs = Sqs::start_with(config, 10).await;
    sqs.queue("q").await;
    let sqs = Arc::new(sqs);
    let mut lock = sqs.database.pool().begin().await.unwrap();
    let exclusively = "lock table seriatim.sqs_queue in access exclusive mode";
    sqlx::query(exclusively).execute(&mut *lock).await.unwrap();
    let mut at_work = Vec::new();
    for _ in 0..3 {
        let sqs = Arc::clone(&sqs);
        at_work.push(tokio::spawn(async move {
            // One that was idle for a second may have lost its place.
            loop {
                let mut connection = Connection::open(&sqs).await;
                let request = sqs.request("ListQueues", &json!({}));
                if connection.http.send_request(request).await.is_ok() {
                    break;
                }
            }
        }));
    }
    let waiting = "select count(*) from pg_locks where not granted
        and database = (select oid from pg_database where datname = current_database())";
    timeout(PATIENCE, async { while sqs.number(waiting).await < 3 {} }).await.unwrap();
    let (mut fourth, waits) = (Connection::open(&sqs).await, Duration::from_secs(3));
    // It asks nothing of the database.
    let request = sqs.request("NoSuchAction", &json!({}));
    let mut refused = Box::pin(fourth.http.send_request(request));
    assert!(timeout(waits, &mut refused).await.is_err(), "all others are at work");
    at_work.pop().unwrap().abort();
    assert_eq!(timeout(PATIENCE, refused).await.unwrap().unwrap().status(), 400);
    drop(fourth);
    lock.rollback().await.unwrap();
    for connection in at_work {
        timeout(PATIENCE, connection).await.unwrap().unwrap();
    }
    if let Some(sqs) = Arc::into_inner(sqs) {
        sqs.end().await;
    }
}
