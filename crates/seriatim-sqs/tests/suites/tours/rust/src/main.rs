//! A tour of aws-sdk-sqs, which speaks JSON, with the server at the given address.

use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::error::ProvideErrorMetadata;
use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    DeleteMessageBatchRequestEntry, Message, MessageAttributeValue, MessageSystemAttributeName,
    QueueAttributeName, SendMessageBatchRequestEntry,
};
use aws_sdk_sqs::{Client, Config};

type Error = Box<dyn std::error::Error>;

async fn receive(sqs: &Client, url: &str, most: i32) -> Result<Vec<Message>, Error> {
    let asked = sqs.receive_message().queue_url(url).max_number_of_messages(most);
    let asked = asked.wait_time_seconds(10).message_attribute_names("All");
    let asked = asked.message_system_attribute_names(MessageSystemAttributeName::All);
    Ok(asked.send().await?.messages.unwrap_or_default())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let address = std::env::args().nth(1).ok_or("an address is needed")?;
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("x", "y", None, None, "tour"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(address);
    let sqs = Client::from_conf(config.build());

    let name = "tour-rust.fifo";
    let unknown = sqs.get_queue_url().queue_name(name).send().await.unwrap_err();
    assert!(unknown.as_service_error().is_some_and(|error| error.is_queue_does_not_exist()));
    let made =
        sqs.create_queue().queue_name(name).attributes(QueueAttributeName::FifoQueue, "true");
    let url = made.send().await?.queue_url.ok_or("no address")?;

    let text = MessageAttributeValue::builder().data_type("String").string_value("é <&>");
    let bytes = MessageAttributeValue::builder().data_type("Binary");
    let bytes = bytes.binary_value(Blob::new([0, 255]));
    let send = |body: &str| {
        let message = sqs.send_message().queue_url(&url).message_body(body);
        message.message_group_id("g").message_deduplication_id(body)
    };
    let first = send("0").message_attributes("text", text.build()?);
    first.message_attributes("bytes", bytes.build()?).send().await?;
    let mut batch = sqs.send_message_batch().queue_url(&url);
    for n in ["1", "2", "3"] {
        let entry = SendMessageBatchRequestEntry::builder().id(n).message_body(n);
        let entry = entry.message_group_id("g").message_deduplication_id(n);
        batch = batch.entries(entry.build()?);
    }
    assert_eq!(batch.send().await?.successful.len(), 3);

    let first = receive(&sqs, &url, 1).await?;
    let attributes = first[0].message_attributes().ok_or("no attributes")?;
    assert_eq!(attributes["text"].string_value(), Some("é <&>"));
    assert_eq!(attributes["bytes"].binary_value(), Some(&Blob::new([0, 255])));
    let handle = first[0].receipt_handle().ok_or("no handle")?;
    let back = sqs.change_message_visibility().queue_url(&url).receipt_handle(handle);
    back.visibility_timeout(0).send().await?;

    let mut bodies = Vec::new();
    while bodies.len() < 4 {
        let got = receive(&sqs, &url, 10).await?;
        let mut batch = sqs.delete_message_batch().queue_url(&url);
        for message in &got {
            let id = format!("{}", bodies.len());
            bodies.extend(message.body().map(str::to_owned));
            let entry = DeleteMessageBatchRequestEntry::builder().id(id);
            let entry = entry.receipt_handle(message.receipt_handle().ok_or("no handle")?);
            batch = batch.entries(entry.build()?);
        }
        assert_eq!(batch.send().await?.successful.len(), got.len());
    }
    assert_eq!(bodies, ["0", "1", "2", "3"]);

    // A message that is sent while a receive waits ends the wait.
    let (received, _) = tokio::join!(receive(&sqs, &url, 1), send("4").send());
    assert_eq!(received?[0].body(), Some("4"));
    let forged = sqs.delete_message().queue_url(&url).receipt_handle("forged").send().await;
    assert_eq!(forged.unwrap_err().code(), Some("ReceiptHandleIsInvalid"));
    sqs.delete_queue().queue_url(&url).send().await?;
    println!("all well");
    Ok(())
}
