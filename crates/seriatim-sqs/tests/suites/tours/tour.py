"""What boto3 does with a server, in whichever protocol it speaks: a tour of the operations, then
two consumers that fail now and then, and the order that must hold all the same."""

import json
import random
import sys
import threading
import uuid

import boto3
from botocore.exceptions import ClientError

ENDPOINT = sys.argv[1]
GROUPS, MESSAGES = 5, 30


def client():
    session = boto3.session.Session()
    return session.client(
        "sqs",
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="y",
    )


def refused(code, call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        assert error.response["Error"]["Code"] == code, error.response
    else:
        raise AssertionError(f"{code} was expected")


def tour(sqs):
    name = "tour-" + uuid.uuid4().hex[:8]
    refused("AWS.SimpleQueueService.NonExistentQueue", sqs.get_queue_url, QueueName=name)
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "60"}, tags={"a": "b"})["QueueUrl"]
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    assert sqs.list_queues(QueueNamePrefix=name)["QueueUrls"] == [url]
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "b"}
    refused("QueueAlreadyExists", sqs.create_queue, QueueName=name, Attributes={"VisibilityTimeout": "61"})

    # boto3 compares the sums of bodies itself.
    attributes = {
        "text": {"DataType": "String", "StringValue": "é <&>"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    body = "é \U0001f600 <a>&amp;\t\r\n\""
    sent = sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)
    got = sqs.receive_message(
        QueueUrl=url, AttributeNames=["All"], MessageAttributeNames=["All"], WaitTimeSeconds=20
    )["Messages"][0]
    assert got["Body"] == body and got["MessageId"] == sent["MessageId"], got
    assert got["MessageAttributes"] == attributes, got
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"], got
    assert got["Attributes"]["ApproximateReceiveCount"] == "1", got
    known = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert known["ApproximateNumberOfMessagesNotVisible"] == "1", known
    assert known["VisibilityTimeout"] == "60", known
    handle = got["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    again = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"][0]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    refused("ReceiptHandleIsInvalid", sqs.delete_message, QueueUrl=url, ReceiptHandle="forged")
    assert "Messages" not in sqs.receive_message(QueueUrl=url, AttributeNames=[], MessageAttributeNames=[])
    number = {"n": {"DataType": "Number", "StringValue": "nan"}}
    refused("InvalidParameterValue", sqs.send_message, QueueUrl=url, MessageBody="b", MessageAttributes=number)
    # More than the server reads. The client sends all of it before it reads the answer.
    refused("RequestEntityTooLarge", sqs.send_message, QueueUrl=url, MessageBody="x" * (9 << 20))
    theirs = url.replace(url.split("/")[-2], "111111111111")
    refused("AWS.SimpleQueueService.NonExistentQueue", sqs.receive_message, QueueUrl=theirs)

    entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(3)]
    entries[1]["DelaySeconds"] = 901
    batch = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [of["Id"] for of in batch["Successful"]] == ["0", "2"], batch
    assert [of["Code"] for of in batch["Failed"]] == ["InvalidParameterValue"], batch
    refused("AWS.SimpleQueueService.EmptyBatchRequest", sqs.delete_message_batch, QueueUrl=url, Entries=[])
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "1"})
    sqs.tag_queue(QueueUrl=url, Tags={"c": "d"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["a"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"c": "d"}
    sqs.purge_queue(QueueUrl=url)
    refused("AWS.SimpleQueueService.PurgeQueueInProgress", sqs.purge_queue, QueueUrl=url)
    sqs.delete_queue(QueueUrl=url)


def dead_letter(sqs):
    """A message that is received too often goes to the dead-letter queue."""
    name = "dead-" + uuid.uuid4().hex[:8]
    dead = sqs.create_queue(QueueName=name)["QueueUrl"]
    known = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]
    policy = json.dumps({"deadLetterTargetArn": known["QueueArn"], "maxReceiveCount": 2})
    deny = json.dumps({"redrivePermission": "denyAll"})
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": deny})
    create = {"QueueName": "from-" + name, "Attributes": {"RedrivePolicy": policy}}
    refused("InvalidParameterValue", sqs.create_queue, **create)
    sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": ""})
    url = sqs.create_queue(**create)["QueueUrl"]
    sent = sqs.send_message(QueueUrl=url, MessageBody="too hard")
    for _ in range(2):
        got = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"][0]
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    letter = sqs.receive_message(QueueUrl=dead, WaitTimeSeconds=20, AttributeNames=["All"])["Messages"][0]
    assert (letter["MessageId"], letter["Body"]) == (sent["MessageId"], "too hard"), letter
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]


def order(sqs):
    name = "order-" + uuid.uuid4().hex[:8] + ".fifo"
    url = sqs.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    for n in range(MESSAGES):
        entries = [
            {"Id": str(g), "MessageBody": str(n), "MessageGroupId": f"g{g}", "MessageDeduplicationId": f"{g}-{n}"}
            for g in range(GROUPS)
        ]
        assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == GROUPS

    lock, done, failures = threading.Lock(), [], []
    total = GROUPS * MESSAGES

    def consume(seed):
        own, chance = client(), random.Random(seed)
        try:
            while len(done) < total:
                got = own.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, AttributeNames=["MessageGroupId"]
                )
                failed = set()
                for message in got.get("Messages", []):
                    group, handle = message["Attributes"]["MessageGroupId"], message["ReceiptHandle"]
                    if group in failed:
                        continue
                    if chance.random() < 0.1:
                        # It comes again, and those behind it with it.
                        failed.add(group)
                        own.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
                        continue
                    with lock:
                        done.append((group, int(message["Body"])))
                    own.delete_message(QueueUrl=url, ReceiptHandle=handle)
        except Exception as error:  # told by the main thread
            failures.append(error)

    consumers = [threading.Thread(target=consume, args=(seed,)) for seed in range(2)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(120)
    assert not failures, failures
    for g in range(GROUPS):
        of_group = [n for group, n in done if group == f"g{g}"]
        assert of_group == list(range(MESSAGES)), (g, of_group)


tour(client())
dead_letter(client())
order(client())
print(boto3.__version__, "all well")
