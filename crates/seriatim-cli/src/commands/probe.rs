//! `seriatim probe`: the health check of a container that has no other program.

use std::time::Duration;

use http_body_util::Empty;
use hyper::Uri;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;

use crate::failure::Failure;
use crate::output::{json_line, line};

/// Asks the address once. It is healthy if its answer is a success, within the time.
pub(crate) async fn run(url: Uri, within: Duration, json: bool) -> Result<(), Failure> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let answer = tokio::time::timeout(within, client.get(url.clone())).await;
    let answer = answer.map_err(|_| {
        Failure::Error(format!("{url} gave no answer within {} s", within.as_secs_f64()))
    })?;
    let status = answer.map_err(Failure::could_not(&format!("reach {url}")))?.status();
    if !status.is_success() {
        return Err(Failure::Error(format!("{url} answers {status}")));
    }
    if json { json_line(&json!({"status": status.as_u16()})) } else { line(status.as_str()) }
}
