<?php
// What AsyncAws for PHP does with the server at the address given. Version 1.7 speaks Query.
require_once 'AsyncAws/Sqs/autoload.php';

use AsyncAws\Core\Exception\Http\ClientException;
use AsyncAws\Sqs\SqsClient;

$sqs = new SqsClient([
    'endpoint' => $argv[1],
    'region' => 'us-east-1',
    'accessKeyId' => 'x',
    'accessKeySecret' => 'y',
]);

function same($found, $expected): void
{
    if ($found !== $expected) {
        throw new Exception(json_encode($found) . ', not ' . json_encode($expected));
    }
}

function refused(string $code, callable $call): void
{
    try {
        $call()->resolve();
    } catch (ClientException $error) {
        same($error->getAwsCode(), $code);
        return;
    }
    throw new Exception("$code was expected");
}

function receive(SqsClient $sqs, string $url, array $more = []): array
{
    $got = $sqs->receiveMessage($more + [
        'QueueUrl' => $url,
        'MaxNumberOfMessages' => 10,
        'WaitTimeSeconds' => 10,
        'AttributeNames' => ['All'],
        'MessageAttributeNames' => ['All'],
    ]);
    return $got->getMessages();
}

$name = 'tour-php.fifo';
refused('AWS.SimpleQueueService.NonExistentQueue', fn () => $sqs->getQueueUrl(['QueueName' => $name]));
$url = $sqs->createQueue(['QueueName' => $name, 'Attributes' => ['FifoQueue' => 'true']])->getQueueUrl();
same($sqs->getQueueUrl(['QueueName' => $name])->getQueueUrl(), $url);

$of = fn (int $n) => [
    'MessageBody' => "$n é <&>\r\n",
    'MessageGroupId' => 'g',
    'MessageDeduplicationId' => "$n",
];
$sqs->sendMessage($of(0) + ['QueueUrl' => $url, 'MessageAttributes' => [
    'text' => ['DataType' => 'String', 'StringValue' => 'é <&>'],
    'bytes' => ['DataType' => 'Binary', 'BinaryValue' => "\0\xff"],
]])->resolve();
$entries = array_map(fn ($n) => $of($n) + ['Id' => "$n"], [1, 2, 3]);
same(count($sqs->sendMessageBatch(['QueueUrl' => $url, 'Entries' => $entries])->getSuccessful()), 3);

$first = receive($sqs, $url, ['MaxNumberOfMessages' => 1]);
same(count($first), 1);
same($first[0]->getAttributes()['MessageGroupId'], 'g');
same($first[0]->getMessageAttributes()['text']->getStringValue(), 'é <&>');
same($first[0]->getMessageAttributes()['bytes']->getBinaryValue(), "\0\xff");
$sqs->changeMessageVisibility([
    'QueueUrl' => $url,
    'ReceiptHandle' => $first[0]->getReceiptHandle(),
    'VisibilityTimeout' => 0,
])->resolve();

$bodies = [];
while (count($bodies) < 4) {
    $got = receive($sqs, $url);
    $entries = [];
    foreach ($got as $place => $message) {
        $bodies[] = $message->getBody();
        $entries[] = ['Id' => "$place", 'ReceiptHandle' => $message->getReceiptHandle()];
    }
    $deleted = $sqs->deleteMessageBatch(['QueueUrl' => $url, 'Entries' => $entries]);
    same(count($deleted->getSuccessful()), count($got));
}
same($bodies, array_map(fn ($n) => "$n é <&>\r\n", [0, 1, 2, 3]));

refused('ReceiptHandleIsInvalid', fn () => $sqs->deleteMessage(['QueueUrl' => $url, 'ReceiptHandle' => 'forged']));
$sqs->deleteQueue(['QueueUrl' => $url])->resolve();
echo "all well\n";
