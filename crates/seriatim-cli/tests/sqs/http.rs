//! A client of SQS: the JSON protocol over several servers.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::timeout;

/// How long a client waits for an answer.
const ANSWER: Duration = Duration::from_secs(4);

/// With connections of its own.
pub struct Sqs {
    servers: Arc<[String]>,
    http: Client<HttpConnector, Full<Bytes>>,
}

#[derive(Debug)]
pub enum Answer {
    Done(Value),
    /// With the text of the refusal.
    Refused(String),
    /// There was none, or one that says that the server failed.
    Lost,
}

impl Sqs {
    pub fn new(servers: &Arc<[String]>) -> Self {
        let http = Client::builder(TokioExecutor::new()).build_http();
        Self { servers: Arc::clone(servers), http }
    }

    /// Asks any of the servers, once.
    pub async fn ask(&self, operation: &str, input: &Value) -> Answer {
        let server = &self.servers[fastrand::usize(..self.servers.len())];
        let request = Request::builder()
            .method("POST")
            .uri(format!("http://{server}/"))
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", format!("AmazonSQS.{operation}"))
            .body(Full::from(input.to_string()))
            .unwrap();
        let ask = async {
            let response = self.http.request(request).await.ok()?;
            let status = response.status();
            let body = response.into_body().collect().await.ok()?.to_bytes();
            Some((status, body))
        };
        match timeout(ANSWER, ask).await {
            Ok(Some((status, body))) if status.is_success() => {
                Answer::Done(serde_json::from_slice(&body).unwrap())
            }
            Ok(Some((status, body))) if status.is_client_error() => {
                Answer::Refused(String::from_utf8(body.to_vec()).unwrap())
            }
            _ => Answer::Lost,
        }
    }
}
