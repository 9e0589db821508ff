//! A server on a database of its own, and a client.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use seriatim::Client;
use seriatim::shards::{ShardId, Shards};
use seriatim::testing::TestDatabase;
use seriatim_sqs::{Access, Config, ServeError, serve, serve_over};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long an event may take to come: far more than it should.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Sqs {
    pub database: TestDatabase,
    /// The databases of the other servers, if there are several.
    pub others: Vec<TestDatabase>,
    /// Host and port.
    pub address: String,
    http: HttpClient<HttpConnector, Full<Bytes>>,
    end: Option<oneshot::Sender<()>>,
    serving: JoinHandle<Result<(), ServeError>>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
    /// The header with the error's name in the Query protocol.
    pub query_error: Option<String>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Sqs {
    /// Starts a server that asks for no signatures, with a pool of 10 connections.
    pub async fn start() -> Self {
        Self::start_with(Config::new().access(Access::Anonymous), 10).await
    }

    pub async fn start_with(config: Config, connections: u32) -> Self {
        let database = TestDatabase::create().await.unwrap();
        let pool = PgPoolOptions::new().max_connections(connections);
        let pool = database.pool_with(pool).await.unwrap();
        Self::serving(vec![database], async |listener, ended| {
            serve(listener, pool, config, async { _ = ended.await }).await
        })
        .await
    }

    /// Starts a server over several databases, whose shards have numbers from 0 on.
    pub async fn start_over(databases: Vec<TestDatabase>, config: Config) -> (Self, Shards) {
        let mut pools = Vec::new();
        for (database, number) in databases.iter().zip(0..) {
            let shard = ShardId::new(number).unwrap();
            let pool = PgPoolOptions::new().max_connections(10);
            let pool = pool.acquire_timeout(Duration::from_secs(5));
            let pool = database.pool_with(pool).await.unwrap();
            Client::default().migrate_shard(&pool, shard).await.unwrap();
            pools.push((shard, pool));
        }
        let shards = Shards::new(pools).unwrap();
        let over = shards.clone();
        let sqs = Self::serving(databases, async move |listener, ended| {
            serve_over(listener, &over, config, async { _ = ended.await }).await
        });
        (sqs.await, shards)
    }

    async fn serving<Serving>(
        mut databases: Vec<TestDatabase>,
        serve: impl FnOnce(TcpListener, oneshot::Receiver<()>) -> Serving,
    ) -> Self
    where
        Serving: Future<Output = Result<(), ServeError>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (end, ended) = oneshot::channel();
        let serving = tokio::spawn(serve(listener, ended));
        let http = HttpClient::builder(TokioExecutor::new()).build_http();
        let database = databases.remove(0);
        Self { database, others: databases, address, http, end: Some(end), serving }
    }

    /// Ends the server, and returns when it has ended.
    pub async fn end(mut self) {
        _ = self.end.take().map(|end| end.send(()));
        timeout(PATIENCE, self.serving).await.unwrap().unwrap().unwrap();
        for database in self.others {
            database.remove().await.unwrap();
        }
        self.database.remove().await.unwrap();
    }

    /// Tells the server to end.
    pub fn tell_to_end(&mut self) {
        _ = self.end.take().map(|end| end.send(()));
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let response: Response<_> =
            timeout(PATIENCE, self.http.request(request)).await.unwrap().unwrap();
        let status = response.status().as_u16();
        let query_error = response.headers().get("x-amzn-query-error");
        let query_error = query_error.map(|name| name.to_str().unwrap().to_owned());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer { status, body: String::from_utf8(body.to_vec()).unwrap(), query_error }
    }

    /// A request of the JSON protocol.
    pub fn request(&self, operation: &str, input: &Value) -> Request<Full<Bytes>> {
        Request::builder()
            .method("POST")
            .uri(format!("http://{}/", self.address))
            .header("host", &self.address)
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", format!("AmazonSQS.{operation}"))
            .body(Full::from(input.to_string()))
            .unwrap()
    }

    pub async fn ask(&self, operation: &str, input: Value) -> Answer {
        self.send(self.request(operation, &input)).await
    }

    /// The result of an operation that is not refused.
    pub async fn call(&self, operation: &str, input: Value) -> Value {
        let answer = self.ask(operation, input).await;
        assert_eq!(answer.status, 200, "{operation}: {}", answer.body);
        answer.json()
    }

    /// Returns the name and the text of the error with which an operation is refused.
    pub async fn refusal(&self, operation: &str, input: Value) -> (String, String) {
        let answer = self.ask(operation, input).await;
        assert_ne!(answer.status, 200, "{operation}: {}", answer.body);
        let error = answer.json();
        let name = error["__type"].as_str().unwrap().rsplit('#').next().unwrap().to_owned();
        (name, error["message"].as_str().unwrap().to_owned())
    }

    /// A request of the Query protocol.
    pub async fn query(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let body = fields.iter().map(|(name, value)| {
            let value =
                percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC);
            format!("{name}={value}")
        });
        let request = Request::builder()
            .method("POST")
            .uri(format!("http://{}{path}", self.address))
            .header("host", &self.address)
            .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
            .body(Full::from(body.collect::<Vec<_>>().join("&")))
            .unwrap();
        self.send(request).await
    }

    /// Makes a queue, FIFO or standard by its name. Returns its address.
    pub async fn queue(&self, name: &str) -> String {
        self.queue_with(name, json!({})).await
    }

    pub async fn queue_with(&self, name: &str, mut attributes: Value) -> String {
        if name.strip_suffix(".fifo").is_some() {
            attributes["FifoQueue"] = "true".into();
        }
        let input = json!({"QueueName": name, "Attributes": attributes});
        let made = self.call("CreateQueue", input).await;
        made["QueueUrl"].as_str().unwrap().to_owned()
    }

    /// Sends to a group of a FIFO queue, each body once.
    pub async fn send_to(&self, url: &str, group: &str, bodies: &[&str]) {
        for body in bodies {
            let input = json!({"QueueUrl": url, "MessageBody": body, "MessageGroupId": group,
                "MessageDeduplicationId": body});
            self.call("SendMessage", input).await;
        }
    }

    pub async fn receive_with(&self, url: &str, mut input: Value) -> Vec<Value> {
        input["QueueUrl"] = url.into();
        let received = self.call("ReceiveMessage", input).await;
        received["Messages"].as_array().cloned().unwrap_or_default()
    }

    pub async fn receive(&self, url: &str) -> Vec<Value> {
        self.receive_with(url, json!({"MaxNumberOfMessages": 10})).await
    }

    pub async fn delete(&self, url: &str, message: &Value) -> Answer {
        let handle = &message["ReceiptHandle"];
        self.ask("DeleteMessage", json!({"QueueUrl": url, "ReceiptHandle": handle})).await
    }

    pub async fn sql(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::raw_sql(sql).execute(self.database.pool()).await.unwrap();
    }

    /// A number of the database.
    pub async fn number(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::query_scalar(sql).fetch_one(self.database.pool()).await.unwrap()
    }

    /// Ends the visibility of whatever is in flight.
    pub async fn lapse(&self) {
        let past = "clock_timestamp() - interval '1 min'";
        self.sql(&format!(
            "update seriatim.queue_group set ready_at = {past} where ready_at < 'infinity'"
        ))
        .await;
        self.sql(&format!(
            "update seriatim.job set lease_until = {past} where lease_until is not null"
        ))
        .await;
    }
}

pub fn bodies(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|message| message["Body"].as_str().unwrap()).collect()
}
