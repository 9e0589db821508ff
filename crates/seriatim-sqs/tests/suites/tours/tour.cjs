// What @aws-sdk/client-sqs does with the server at the address given. It speaks JSON.
const assert = require("node:assert");
const { SQS } = require("@aws-sdk/client-sqs");

const sqs = new SQS({
  endpoint: process.argv[2],
  region: "us-east-1",
  credentials: { accessKeyId: "x", secretAccessKey: "y" },
});

async function refused(name, call) {
  await assert.rejects(call, (error) => error.name === name || assert.fail(error));
}

async function receive(QueueUrl, more = {}) {
  const got = await sqs.receiveMessage({
    QueueUrl,
    MaxNumberOfMessages: 10,
    WaitTimeSeconds: 10,
    MessageAttributeNames: ["All"],
    MessageSystemAttributeNames: ["All"],
    ...more,
  });
  return got.Messages ?? [];
}

async function tour() {
  const name = "tour-js.fifo";
  await refused("QueueDoesNotExist", sqs.getQueueUrl({ QueueName: name }));
  const { QueueUrl } = await sqs.createQueue({ QueueName: name, Attributes: { FifoQueue: "true" } });
  assert.equal((await sqs.getQueueUrl({ QueueName: name })).QueueUrl, QueueUrl);

  const attributes = {
    text: { DataType: "String", StringValue: "é <&>" },
    bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) },
  };
  const of = (n) => ({ MessageBody: `${n} é`, MessageGroupId: "g", MessageDeduplicationId: `${n}` });
  await sqs.sendMessage({ QueueUrl, ...of(0), MessageAttributes: attributes });
  const Entries = [1, 2, 3].map((n) => ({ Id: `${n}`, ...of(n) }));
  const sent = await sqs.sendMessageBatch({ QueueUrl, Entries });
  assert.equal(sent.Successful.length, 3);

  const first = await receive(QueueUrl, { MaxNumberOfMessages: 1 });
  assert.equal(first.length, 1);
  assert.equal(first[0].Attributes.MessageGroupId, "g");
  assert.equal(first[0].MessageAttributes.text.StringValue, "é <&>");
  assert.deepEqual([...first[0].MessageAttributes.bytes.BinaryValue], [0, 255]);
  const ReceiptHandle = first[0].ReceiptHandle;
  await sqs.changeMessageVisibility({ QueueUrl, ReceiptHandle, VisibilityTimeout: 0 });

  const bodies = [];
  while (bodies.length < 4) {
    const got = await receive(QueueUrl);
    assert.notEqual(got.length, 0);
    bodies.push(...got.map((message) => message.Body));
    const Entries = got.map(({ ReceiptHandle }, place) => ({ Id: `${place}`, ReceiptHandle }));
    assert.equal((await sqs.deleteMessageBatch({ QueueUrl, Entries })).Successful.length, got.length);
  }
  assert.deepEqual(bodies, ["0 é", "1 é", "2 é", "3 é"]);

  // A message that is sent while a receive waits ends the wait.
  const waiting = receive(QueueUrl);
  await sqs.sendMessage({ QueueUrl, ...of(4) });
  assert.deepEqual((await waiting).map((message) => message.Body), ["4 é"]);
  await refused("ReceiptHandleIsInvalid", sqs.deleteMessage({ QueueUrl, ReceiptHandle: "forged" }));
  await sqs.deleteQueue({ QueueUrl });
}

// A message that is received too often goes to the dead-letter queue.
async function deadLetter() {
  const dead = (await sqs.createQueue({ QueueName: "dead-js" })).QueueUrl;
  const AttributeNames = ["QueueArn"];
  const { Attributes } = await sqs.getQueueAttributes({ QueueUrl: dead, AttributeNames });
  const policy = { deadLetterTargetArn: Attributes.QueueArn, maxReceiveCount: 2 };
  const RedrivePolicy = JSON.stringify(policy);
  const made = await sqs.createQueue({ QueueName: "living-js", Attributes: { RedrivePolicy } });
  const { QueueUrl } = made;
  const sent = await sqs.sendMessage({ QueueUrl, MessageBody: "too hard" });
  for (const _ of [1, 2]) {
    const [{ ReceiptHandle }] = await receive(QueueUrl);
    await sqs.changeMessageVisibility({ QueueUrl, ReceiptHandle, VisibilityTimeout: 0 });
  }
  assert.deepEqual(await receive(QueueUrl, { WaitTimeSeconds: 0 }), []);
  const [letter] = await receive(dead);
  assert.equal(letter.MessageId, sent.MessageId);
  assert.equal(letter.Body, "too hard");
  assert.equal(letter.Attributes.ApproximateReceiveCount, "3");
}

tour().then(deadLetter).then(() => console.log("all well"));
