//! The Query protocol's requests: form fields with numbered names, such as
//! `Attribute.1.Name=DelaySeconds`. They are read into the shape of the JSON protocol.

use std::collections::BTreeMap;

use hyper::Method;
use hyper::http::request::Parts;
use percent_encoding::percent_decode;
use serde_json::{Map, Value, json};

use crate::error::{Code, SqsError};
use crate::protocol::call::Call;

/// The deepest name: `SendMessageBatchRequestEntry.1.MessageAttribute.2.Value.StringValue`.
const DEPTH: usize = 6;

/// The most fields. A batch of ten messages with ten attributes each has 400.
const FIELDS: usize = 1000;

/// Lists of text, by the name of their fields and by that in JSON.
const LISTS: [(&str, &str); 6] = [
    ("AttributeName", "AttributeNames"),
    ("MessageSystemAttributeName", "MessageSystemAttributeNames"),
    ("MessageAttributeName", "MessageAttributeNames"),
    ("TagKey", "TagKeys"),
    ("AWSAccountId", "AWSAccountIds"),
    ("ActionName", "Actions"),
];

/// Maps: the name of their fields, the part with the key, and the name in JSON.
const MAPS: [(&str, &str, &str); 4] = [
    ("Attribute", "Name", "Attributes"),
    ("MessageAttribute", "Name", "MessageAttributes"),
    ("MessageSystemAttribute", "Name", "MessageSystemAttributes"),
    ("Tag", "Key", "Tags"),
];

/// A field's value, or what the names with the same beginning have.
#[derive(Debug, PartialEq)]
enum Node {
    Text(String),
    Parts(BTreeMap<String, Node>),
}

pub(crate) fn read(parts: &Parts, body: &[u8]) -> Result<Call, SqsError> {
    let address = parts.uri.query().unwrap_or("").as_bytes();
    let body = if parts.method == Method::POST { body } else { &[] };
    if [address, body].iter().any(|text| percent_decode(text).decode_utf8().is_err()) {
        let message = "The fields of the request are not UTF-8.";
        return Err(SqsError::new(Code::MalformedRequest, message));
    }
    let fields = form_urlencoded::parse(address).chain(form_urlencoded::parse(body));
    let mut root = BTreeMap::new();
    for (place, (name, value)) in fields.enumerate() {
        if place == FIELDS {
            let message = format!("The request has more than {FIELDS} fields.");
            return Err(SqsError::new(Code::MalformedRequest, message));
        }
        insert(&mut root, &name, value.into_owned())?;
    }
    let at_queue = is_of_queue(parts.uri.path());
    let Some(Node::Text(operation)) = root.remove("Action") else {
        if at_queue && parts.method == Method::GET {
            return Err(SqsError::new(Code::UnknownOperation, "The request names no action."));
        }
        let message = "The request must contain the parameter Action.";
        return Err(SqsError::new(Code::MissingParameter, message));
    };
    if at_queue && ["CreateQueue", "ListQueues"].contains(&&*operation) {
        let message = format!("The action {operation} is not valid for this endpoint.");
        return Err(SqsError::new(Code::InvalidAction, message));
    }
    let mut input = members(root);
    // The one member whose name in JSON is spelled differently.
    if operation == "CreateQueue"
        && let Some(tags) = input.remove("Tags")
    {
        input.insert(String::from("tags"), tags);
    }
    // The queue's own address may be asked, and then need not be named.
    if !input.contains_key("QueueUrl") && parts.uri.path().len() > 1 {
        input.insert(String::from("QueueUrl"), parts.uri.path().into());
    }
    Ok(Call { operation, input: Value::Object(input) })
}

/// Returns whether a path is the address of a queue: an account and a name end it.
fn is_of_queue(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let (name, account) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    !name.is_empty() && account.len() == 12 && account.bytes().all(|digit| digit.is_ascii_digit())
}

/// Puts a field where its name says.
fn insert(root: &mut BTreeMap<String, Node>, name: &str, value: String) -> Result<(), SqsError> {
    let path: Vec<&str> = name.split('.').collect();
    let Some((last, above)) = path.split_last().filter(|_| path.len() <= DEPTH) else {
        let message = "The name of a field has too many parts.";
        return Err(SqsError::new(Code::MalformedRequest, message));
    };
    let mut at = root;
    for part in above {
        let node = at.entry((*part).to_owned()).or_insert_with(|| Node::Parts(BTreeMap::new()));
        if let Node::Text(_) = node {
            *node = Node::Parts(BTreeMap::new());
        }
        let Node::Parts(parts) = node else { return Ok(()) };
        at = parts;
    }
    at.insert((*last).to_owned(), Node::Text(value));
    Ok(())
}

/// The members of a structure.
fn members(parts: BTreeMap<String, Node>) -> Map<String, Value> {
    let mut found = Map::new();
    for (name, node) in parts {
        // An empty list is sent under its name in JSON.
        let is = |fields: &str, json: &str| name == fields || name == json;
        let (name, value) = if let Some((_, json)) = LISTS.iter().find(|(of, json)| is(of, json)) {
            (*json, Value::Array(numbered(node).into_iter().filter_map(text).collect()))
        } else if let Some((_, key, json)) = MAPS.iter().find(|(of, _, json)| is(of, json)) {
            (
                *json,
                Value::Object(numbered(node).into_iter().filter_map(|n| pair(n, key)).collect()),
            )
        } else if name == "Entries" || name.ends_with("BatchRequestEntry") {
            let entries = numbered(node).into_iter().filter_map(|node| match node {
                Node::Parts(parts) => Some(Value::Object(members(parts))),
                Node::Text(_) => None,
            });
            ("Entries", Value::Array(entries.collect()))
        } else if let Some(value) = text(node) {
            (name.as_str(), value)
        } else {
            continue;
        };
        found.insert(name.to_owned(), value);
    }
    found
}

/// The elements of a list in the order of their numbers. An empty list is sent as empty text. A
/// single element may have no number.
fn numbered(node: Node) -> Vec<Node> {
    let parts = match node {
        Node::Text(text) if text.is_empty() => return Vec::new(),
        Node::Text(_) => return vec![node],
        Node::Parts(parts) => parts,
    };
    if ["Name", "Key", "Id"].iter().any(|part| matches!(parts.get(*part), Some(Node::Text(_)))) {
        return vec![Node::Parts(parts)];
    }
    let mut elements: Vec<(u32, Node)> =
        parts.into_iter().filter_map(|(number, node)| Some((number.parse().ok()?, node))).collect();
    elements.sort_by_key(|(number, _)| *number);
    elements.into_iter().map(|(_, node)| node).collect()
}

fn text(node: Node) -> Option<Value> {
    match node {
        Node::Text(text) => Some(json!(text)),
        Node::Parts(_) => None,
    }
}

/// An entry of a map: its key, and its value, which is text or a structure.
fn pair(node: Node, key: &str) -> Option<(String, Value)> {
    let Node::Parts(mut parts) = node else { return None };
    let Some(Node::Text(name)) = parts.remove(key) else { return None };
    let value = match parts.remove("Value") {
        Some(Node::Parts(parts)) => Value::Object(members(parts)),
        Some(Node::Text(text)) => json!(text),
        None => json!(""),
    };
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn call(method: Method, address: &str, body: &str) -> Result<Call, SqsError> {
        let request = Request::builder().method(method).uri(address).body(()).unwrap();
        read(&request.into_parts().0, body.as_bytes())
    }

    fn posted(body: &str) -> Call {
        call(Method::POST, "/", body).unwrap()
    }

    #[test]
    fn numbered_fields_become_the_shapes_of_json() {
        let call = posted(
            "Action=CreateQueue&QueueName=q&Attribute.2.Name=DelaySeconds&Attribute.2.Value=5\
             &Attribute.10.Name=Policy&Attribute.10.Value=%7B%7D&Tag.1.Key=a&Tag.1.Value=b+c",
        );
        assert_eq!(call.operation, "CreateQueue");
        let expected = json!({"QueueName": "q", "tags": {"a": "b c"},
            "Attributes": {"DelaySeconds": "5", "Policy": "{}"}});
        assert_eq!(call.input, expected);
    }

    #[test]
    fn a_batch_has_its_entries_in_order() {
        let entry = "SendMessageBatchRequestEntry";
        let attribute = format!("{entry}.2.MessageAttribute.1");
        let call = posted(&format!(
            "Action=SendMessageBatch&QueueUrl=u&{entry}.10.Id=c&{entry}.2.Id=b&{entry}.1.Id=a\
             &{attribute}.Name=n&{attribute}.Value.DataType=Binary&{attribute}.Value.BinaryValue=AA%3D%3D"
        ));
        let expected = json!([{"Id": "a"}, {"Id": "b", "MessageAttributes":
            {"n": {"DataType": "Binary", "BinaryValue": "AA=="}}}, {"Id": "c"}]);
        assert_eq!(call.input["Entries"], expected);
    }

    #[test]
    fn lists_and_empty_lists() {
        let call = posted(
            "Action=ReceiveMessage&AttributeName.1=All&MessageAttributeName.1=b&MessageAttributeName.2=a\
             &MessageSystemAttributeName.1=SentTimestamp&WaitTimeSeconds=3&Entries=",
        );
        let expected = json!({"AttributeNames": ["All"], "MessageAttributeNames": ["b", "a"],
            "MessageSystemAttributeNames": ["SentTimestamp"], "WaitTimeSeconds": "3", "Entries": []});
        assert_eq!(call.input, expected);
        // As boto3 sends empty ones.
        let call = posted("Action=A&AttributeNames=&MessageAttributes=");
        assert_eq!(call.input, json!({"AttributeNames": [], "MessageAttributes": {}}));
    }

    #[test]
    fn a_single_element_needs_no_number() {
        let call = posted("Action=A&Attribute.Name=n&Attribute.Value=v&AttributeName=All");
        assert_eq!(call.input, json!({"Attributes": {"n": "v"}, "AttributeNames": ["All"]}));
    }

    #[test]
    fn the_queues_address_may_be_asked() {
        let call =
            call(Method::GET, "/0/q.fifo?Action=SendMessage&MessageBody=a%26b", "x=1").unwrap();
        assert_eq!(call.input, json!({"QueueUrl": "/0/q.fifo", "MessageBody": "a&b"}));
    }

    #[test]
    fn odd_names_are_refused_or_ignored() {
        assert!(call(Method::POST, "/", "A=1").is_err(), "no action");
        for odd in ["%ff", "%e2%82", "%ed%a0%80"] {
            assert!(call(Method::POST, "/", &format!("Action=A&a={odd}")).is_err(), "{odd}");
            assert!(call(Method::GET, &format!("/?Action=A&a={odd}"), "").is_err(), "{odd}");
        }
        assert!(call(Method::POST, "/", "Action=A&a.b.c.d.e.f.g=1").is_err(), "too deep");
        assert!(call(Method::POST, "/", &format!("Action=A{}", "&a=1".repeat(1000))).is_err());
        let call =
            posted("Action=A&X=1&X.y=2&Attribute=&Attribute.x.Name=n&Tag.1.Value=v&.=&TagKey.-1=a");
        assert_eq!(call.input, json!({"Attributes": {}, "Tags": {}, "TagKeys": []}));
    }
}
