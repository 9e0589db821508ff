//! The Query protocol's answers: XML, written from the result as JSON has it.

use std::fmt::Write as _;

use serde_json::{Map, Value};

const NAMESPACE: &str = "http://queue.amazonaws.com/doc/2012-11-05/";

pub(crate) fn result(operation: &str, result: &Value, id: &str) -> String {
    let mut xml = format!("<?xml version=\"1.0\"?><{operation}Response xmlns=\"{NAMESPACE}\">");
    if let Value::Object(result) = result {
        let name = format!("{operation}Result");
        if result.is_empty() {
            _ = write!(xml, "<{name}/>");
        } else {
            open(&mut xml, &name);
            members(&mut xml, operation, result);
            close(&mut xml, &name);
        }
    }
    open(&mut xml, "ResponseMetadata");
    element(&mut xml, "RequestId", id);
    close(&mut xml, "ResponseMetadata");
    close(&mut xml, &format!("{operation}Response"));
    xml
}

/// The answer of AWS to a request that names no operation.
pub(crate) const NO_OPERATION: &str = "<UnknownOperationException/>";

pub(crate) fn error(code: &str, fault: &str, message: &str, id: &str) -> String {
    let mut xml = format!("<?xml version=\"1.0\"?><ErrorResponse xmlns=\"{NAMESPACE}\"><Error>");
    element(&mut xml, "Type", fault);
    element(&mut xml, "Code", code);
    element(&mut xml, "Message", message);
    xml.push_str("<Detail/></Error>");
    element(&mut xml, "RequestId", id);
    xml.push_str("</ErrorResponse>");
    xml
}

fn members(xml: &mut String, operation: &str, of: &Map<String, Value>) {
    for (name, value) in of {
        match value {
            Value::Array(elements) => {
                let name = match name.as_str() {
                    "Messages" => String::from("Message"),
                    "QueueUrls" | "queueUrls" => String::from("QueueUrl"),
                    "Results" | "Successful" => format!("{operation}ResultEntry"),
                    "Failed" => String::from("BatchResultErrorEntry"),
                    other => other.to_owned(),
                };
                for element in elements {
                    any(xml, operation, &name, element);
                }
            }
            Value::Object(entries) => {
                let (name, key) = match name.as_str() {
                    "MessageAttributes" => ("MessageAttribute", "Name"),
                    "Tags" => ("Tag", "Key"),
                    _ => ("Attribute", "Name"),
                };
                for (entry, value) in entries {
                    open(xml, name);
                    element(xml, key, entry);
                    any(xml, operation, "Value", value);
                    close(xml, name);
                }
            }
            other => any(xml, operation, name, other),
        }
    }
}

fn any(xml: &mut String, operation: &str, name: &str, value: &Value) {
    match value {
        Value::Object(of) => {
            open(xml, name);
            members(xml, operation, of);
            close(xml, name);
        }
        Value::String(text) => element(xml, name, text),
        Value::Null => {}
        other => element(xml, name, &other.to_string()),
    }
}

fn open(xml: &mut String, name: &str) {
    xml.push('<');
    xml.push_str(name);
    xml.push('>');
}

fn close(xml: &mut String, name: &str) {
    xml.push_str("</");
    xml.push_str(name);
    xml.push('>');
}

fn element(xml: &mut String, name: &str, text: &str) {
    open(xml, name);
    for character in text.chars() {
        match character {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            // A reader makes a line feed of it otherwise.
            '\r' => xml.push_str("&#xD;"),
            '\t' | '\n' => xml.push(character),
            // XML cannot hold these. No body and no attribute of a message has them.
            '\0'..'\u{20}' | '\u{fffe}' | '\u{ffff}' => xml.push('\u{fffd}'),
            _ => xml.push(character),
        }
    }
    close(xml, name);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_maps_are_flattened() {
        let messages = json!({"Messages": [{"Body": "a<b>&\"\r\n\u{1}", "Attributes": {"SenderId": "0"},
            "MessageAttributes": {"n": {"DataType": "String", "StringValue": "v"}}}]});
        let xml = result("ReceiveMessage", &messages, "id");
        let expected = "<?xml version=\"1.0\"?>\
            <ReceiveMessageResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\">\
            <ReceiveMessageResult><Message>\
            <Attribute><Name>SenderId</Name><Value>0</Value></Attribute>\
            <Body>a&lt;b&gt;&amp;&quot;&#xD;\n\u{fffd}</Body>\
            <MessageAttribute><Name>n</Name><Value><DataType>String</DataType>\
            <StringValue>v</StringValue></Value></MessageAttribute>\
            </Message></ReceiveMessageResult>\
            <ResponseMetadata><RequestId>id</RequestId></ResponseMetadata></ReceiveMessageResponse>";
        assert_eq!(xml, expected);
    }

    #[test]
    fn batches_name_their_entries() {
        let batch =
            json!({"Successful": [{"Id": "a"}], "Failed": [{"Id": "b", "SenderFault": true}]});
        let xml = result("DeleteMessageBatch", &batch, "id");
        assert!(xml.contains(
            "<BatchResultErrorEntry><Id>b</Id><SenderFault>true</SenderFault></BatchResultErrorEntry>\
             <DeleteMessageBatchResultEntry><Id>a</Id></DeleteMessageBatchResultEntry>"
        ));
    }

    #[test]
    fn without_a_result_there_is_no_element_for_it() {
        let xml = result("DeleteMessage", &Value::Null, "id");
        assert!(!xml.contains("Result"), "{xml}");
        assert!(xml.contains("<RequestId>id</RequestId>"));
    }
}
