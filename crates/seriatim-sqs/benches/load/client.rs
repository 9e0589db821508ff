//! A client of SQS in as little work as there can be, since it shares the machine with the server.

use std::sync::Arc;
use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::Result;

/// A protocol of SQS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Json,
    Query,
}

/// How a server is asked.
#[derive(Clone)]
pub(crate) struct Client {
    authority: Arc<str>,
    pub(crate) dialect: Dialect,
    key: Option<Credentials>,
}

/// A connection, which is kept unless the server ends it.
pub(crate) struct Connection {
    client: Client,
    sender: SendRequest<Full<Bytes>>,
}

impl Client {
    pub(crate) fn new(endpoint: &str, dialect: Dialect, key: Option<&str>) -> Result<Self> {
        let authority = endpoint.strip_prefix("http://").ok_or("the endpoint is not http://")?;
        let key = key.map(|key| key.split_once(':').ok_or("--signed takes ACCESS_KEY:SECRET"));
        let key = key
            .transpose()?
            .map(|(access_key, secret)| Credentials::new(access_key, secret, None, None, "load"));
        Ok(Self { authority: authority.trim_end_matches('/').into(), dialect, key })
    }

    pub(crate) async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(&*self.authority).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // Its end is seen by the sender.
        tokio::spawn(async move { _ = connection.await });
        Ok(Connection { client: self.clone(), sender })
    }
}

impl Connection {
    /// Asks, and returns the body of the answer.
    pub(crate) async fn call(&mut self, operation: &str, input: &Value) -> Result<String> {
        let request = self.request(operation, input)?;
        if self.sender.ready().await.is_err() {
            self.sender = self.client.connect().await?.sender;
        }
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        let body = String::from_utf8(body.into())?;
        if status.is_success() { Ok(body) } else { Err(format!("{operation}: {body}").into()) }
    }

    fn request(&self, operation: &str, input: &Value) -> Result<Request<Full<Bytes>>> {
        let client = &self.client;
        let request = Request::post("/").header("host", &*client.authority);
        let (request, body) = match client.dialect {
            Dialect::Json => (
                request
                    .header("content-type", "application/x-amz-json-1.0")
                    .header("x-amz-target", format!("AmazonSQS.{operation}")),
                input.to_string(),
            ),
            Dialect::Query => {
                (request.header("content-type", "application/x-www-form-urlencoded"), {
                    let mut form = form_urlencoded::Serializer::new(String::new());
                    form.append_pair("Action", operation).append_pair("Version", "2012-11-05");
                    flatten(&mut form, operation, "", input);
                    form.finish()
                })
            }
        };
        let mut request = request.body(())?;
        // Servers of old find the queue by the path alone.
        if client.dialect == Dialect::Query
            && let Some(url) = input["QueueUrl"].as_str()
            && let Some(path) = url.splitn(4, '/').nth(3)
        {
            *request.uri_mut() = format!("/{path}").parse()?;
        }
        if let Some(key) = &client.key {
            self.sign(key, &mut request, body.as_bytes())?;
        }
        Ok(request.map(|()| Full::from(body)))
    }

    fn sign(&self, key: &Credentials, request: &mut Request<()>, body: &[u8]) -> Result<()> {
        let identity = key.clone().into();
        let params = SigningParams::builder()
            .identity(&identity)
            .region("us-east-1")
            .name("sqs")
            .time(SystemTime::now())
            .settings(SigningSettings::default())
            .build()?
            .into();
        let address = format!("http://{}{}", self.client.authority, request.uri());
        let headers = request.headers().iter();
        let headers = headers.map(|(name, value)| (name.as_str(), value.to_str().unwrap_or("")));
        let body = SignableBody::Bytes(body);
        let signable = SignableRequest::new("POST", &address, headers, body)?;
        sign(signable, &params)?.into_parts().0.apply_to_request_http1x(request);
        Ok(())
    }
}

impl Dialect {
    /// Returns the texts of this name in an answer, in order.
    pub(crate) fn texts(self, answer: &str, name: &str) -> Vec<String> {
        match self {
            Self::Json => {
                let answer: Value = serde_json::from_str(answer).unwrap_or_default();
                let messages = answer["Messages"].as_array().into_iter().flatten();
                let values = [&answer[name]].into_iter().chain(messages.map(|of| &of[name]));
                values.filter_map(|value| value.as_str().map(str::to_owned)).collect()
            }
            Self::Query => {
                let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
                let parts = answer.split(&begin).skip(1).filter_map(|part| part.split_once(&end));
                parts.map(|(text, _)| text.trim().to_owned()).collect()
            }
        }
    }
}

/// Writes an input as the fields of a form.
fn flatten(
    form: &mut form_urlencoded::Serializer<'_, String>,
    operation: &str,
    prefix: &str,
    input: &Value,
) {
    for (name, value) in input.as_object().into_iter().flatten() {
        match value {
            Value::Array(entries) => {
                for (place, entry) in (1..).zip(entries) {
                    let prefix = format!("{operation}RequestEntry.{place}.");
                    flatten(form, operation, &prefix, entry);
                }
            }
            Value::Object(map) => {
                let name = name.trim_end_matches('s');
                for (place, (key, value)) in (1..).zip(map) {
                    form.append_pair(&format!("{prefix}{name}.{place}.Name"), key);
                    let value = value.as_str().unwrap_or_default();
                    form.append_pair(&format!("{prefix}{name}.{place}.Value"), value);
                }
            }
            Value::String(text) => {
                form.append_pair(&format!("{prefix}{name}"), text);
            }
            other => {
                form.append_pair(&format!("{prefix}{name}"), &other.to_string());
            }
        }
    }
}
