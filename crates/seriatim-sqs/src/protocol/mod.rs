//! Both protocols of SQS, around one core: an operation's name and its input, as JSON has it.

mod call;
mod json;
mod query;
mod xml;

use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode, header};
use serde_json::Value;

pub(crate) use call::Call;

use crate::error::{Code, SqsError};

/// The most characters of an error's text.
const MESSAGE_LIMIT: usize = 2000;

/// How a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// AWS JSON 1.0: SDKs since November 2023.
    Json,
    /// Form fields in, XML out: the SDKs before.
    Query,
}

impl Protocol {
    /// Returns the protocol of a request, by its content type or its target. Some clients of the
    /// Query protocol send a target of another service, or an empty one.
    pub(crate) fn of(parts: &Parts) -> Self {
        let begins = |header: &str, with: &str| {
            parts.headers.get(header).is_some_and(|of| of.as_bytes().starts_with(with.as_bytes()))
        };
        let is_json = begins("x-amz-target", json::SERVICE)
            || begins("content-type", "application/x-amz-json-1.");
        if is_json { Self::Json } else { Self::Query }
    }

    /// Reads a request.
    pub(crate) fn read(self, parts: &Parts, body: &[u8]) -> Result<Call, SqsError> {
        match (self, &parts.method) {
            (Self::Json, &Method::POST) => json::read(parts, body),
            (Self::Query, &Method::POST | &Method::GET) => query::read(parts, body),
            (_, method) => {
                let message = format!("A request of this protocol is not made by {method}.");
                Err(SqsError::new(Code::InvalidAction, message))
            }
        }
    }

    /// Returns the answer of an operation; `null` if it has no result.
    pub(crate) fn answer(self, operation: &str, result: &Value, id: &str) -> Response<String> {
        let body = match self {
            Self::Json if result.is_null() => String::from("{}"),
            Self::Json => result.to_string(),
            Self::Query => xml::result(operation, result, id),
        };
        self.response(StatusCode::OK, body, id)
    }

    /// Returns the answer to a request that was refused.
    pub(crate) fn refusal(self, error: &SqsError, id: &str) -> Response<String> {
        let (json_name, query_name, status) = error.code.names();
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let fault = if error.code.is_the_senders() { "Sender" } else { "Receiver" };
        // It may have what a client made up in it.
        let message: String = error.message.chars().take(MESSAGE_LIMIT).collect();
        let body = match self {
            Self::Json => json::error(json_name, &message),
            Self::Query if error.code == Code::UnknownOperation => xml::NO_OPERATION.to_owned(),
            Self::Query if error.code == Code::QueueDoesNotExist => {
                let message = "The specified queue does not exist for this wsdl version.";
                xml::error(query_name, fault, message, id)
            }
            Self::Query => xml::error(query_name, fault, &message, id),
        };
        let mut response = self.response(status, body, id);
        // Programs match on the names that they had before JSON.
        if self == Self::Json
            && let Ok(value) = format!("{query_name};{fault}").parse()
        {
            response.headers_mut().insert("x-amzn-query-error", value);
        }
        response
    }

    fn response(self, status: StatusCode, body: String, id: &str) -> Response<String> {
        let content_type = match self {
            Self::Json => "application/x-amz-json-1.0",
            Self::Query => "text/xml",
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
        if let Ok(id) = id.parse() {
            headers.insert("x-amzn-requestid", id);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;
    use proptest::prelude::*;

    use super::*;
    use crate::input::{
        self, Batch, ChangeMessageVisibility, CreateQueue, Outgoing, ReceiveMessage,
    };

    /// Reads a request, and its input as each kind of operation has it.
    fn read(protocol: Protocol, parts: &Parts, body: &[u8]) {
        let Ok(Call { input, .. }) = protocol.read(parts, body) else { return };
        _ = input::read::<CreateQueue>(input.clone());
        _ = input::read::<ReceiveMessage>(input.clone());
        _ = input::read::<Batch<ChangeMessageVisibility>>(input.clone());
        if let Ok(batch) = input::read::<Batch<Outgoing>>(input) {
            for entry in batch.entries {
                _ = entry.of.size();
                _ = crate::message::check_attributes(entry.of.message_attributes);
                _ = crate::message::check_body(entry.of.message_body);
            }
        }
    }

    fn parts(target: Option<&str>) -> Parts {
        let request = Request::builder().method("POST").uri("/0/q");
        let request = match target {
            Some(target) => request.header("x-amz-target", target),
            None => request,
        };
        request.body(()).unwrap().into_parts().0
    }

    proptest! {
        #[test]
        fn no_body_makes_it_panic(body in prop::collection::vec(any::<u8>(), 0..300)) {
            read(Protocol::Json, &parts(Some("AmazonSQS.SendMessageBatch")), &body);
            read(Protocol::Query, &parts(None), &body);
        }

        #[test]
        fn no_fields_make_it_panic(
            names in prop::collection::vec("(Action|Attribute|Tag|SendMessageBatchRequestEntry|MessageAttribute|Entries)(\\.(1|2|x|Name|Key|Value|MessageAttribute|BinaryValue|DataType)){0,6}", 0..20),
            values in prop::collection::vec("[ -~]{0,8}", 20),
        ) {
            let body: Vec<String> = names.iter().zip(&values).map(|(name, value)| format!("{name}={value}")).collect();
            read(Protocol::Query, &parts(None), format!("Action=A&{}", body.join("&")).as_bytes());
        }

        #[test]
        fn any_text_is_xml(text in any::<String>()) {
            let xml = xml::result("ListQueues", &serde_json::json!({"Tags": {(&*text): text}}), "id");
            prop_assert!(!xml.contains('\0'));
            prop_assert_eq!(xml.matches('<').count(), 15);
        }
    }
}
