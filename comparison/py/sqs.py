"""SQS FIFO by boto3, whatever server answers: the command line, the workload and the lines of a history,
as in kit/src/lib.rs. The first argument is `long` or `short`, as it polls. `left URL` prints how many
messages are there."""

import json
import os
import random
import sys
import threading
import time

import boto3
import botocore.config
from botocore.exceptions import BotoCoreError, ClientError

TIMEOUT = 5
PRODUCERS = 4
QUEUE = "fifo.fifo"
# How long a receive waits for a message, and how long a worker waits after an empty one, in seconds.
WAIT, PAUSE = (2, 0) if sys.argv[1] != "short" else (0, 0.3)
# The longest wait before a retry, in seconds.
LONGEST = 60


def now():
    """The clock that all processes of the machine share, in microseconds."""
    return time.monotonic_ns() // 1000


class Recorder:
    def __init__(self, file):
        self.file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, **event):
        """With one write, so that a process that is killed leaves whole lines."""
        os.write(self.file, (json.dumps(event) + "\n").encode())


def client(url):
    config = botocore.config.Config(retries={"max_attempts": 3}, read_timeout=10, connect_timeout=5)
    return boto3.client("sqs", endpoint_url=url, region_name="us-east-1", aws_access_key_id="comparison",
                        aws_secret_access_key="comparison", config=config)


def setup(url):
    attributes = {"FifoQueue": "true", "VisibilityTimeout": str(TIMEOUT)}
    client(url).create_queue(QueueName=QUEUE, Attributes=attributes)


def left(url):
    names = [f"ApproximateNumberOfMessages{what}" for what in ("", "NotVisible", "Delayed")]
    one = client(url)
    answer = one.get_queue_attributes(QueueUrl=one.get_queue_url(QueueName=QUEUE)["QueueUrl"], AttributeNames=names)
    print(sum(int(answer["Attributes"].get(name, 0)) for name in names))


class Numbers:
    """Counts up, for all threads."""

    def __init__(self):
        self.last, self.lock = 0, threading.Lock()

    def next(self):
        with self.lock:
            self.last += 1
            return self.last


def produce(url, file, seconds, rate, groups, seed):
    recorder, count, until = Recorder(file), Numbers(), time.monotonic() + int(seconds)

    def one(n):
        sqs, any_of, due = client(url), random.Random(int(seed) * PRODUCERS + n), time.monotonic()
        queue = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
        while time.monotonic() < until:
            group, burst = f"g{any_of.randrange(int(groups))}", any_of.randint(1, 5)
            for _ in range(burst):
                job = f"j{count.next()}"
                event = {"event": "enqueue", "job": job, "group": group, "process": f"p{n}", "begin": now()}
                recorder.note(**event, outcome="unknown")
                try:
                    sqs.send_message(QueueUrl=queue, MessageBody=job, MessageGroupId=group,
                                     MessageDeduplicationId=job)
                except (BotoCoreError, ClientError) as error:
                    print(f"send: {error}", file=sys.stderr, flush=True)
                    time.sleep(0.2)
                else:
                    recorder.note(**event, end=now(), outcome="committed")
            due = max(due + burst * PRODUCERS / int(rate), time.monotonic())
            time.sleep(max(0, due - time.monotonic()))

    threads = [threading.Thread(target=one, args=(n,)) for n in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work(url, file, name, slots, failing, _groups, seed):
    recorder, runs, any_of = Recorder(file), Numbers(), random.Random(int(seed))

    def handle(job):
        """Whether it succeeds."""
        its = {"job": job, "attempt": runs.next(), "process": name}
        recorder.note(event="start", **its, at=now())
        time.sleep(any_of.uniform(0.01, 0.2))
        fails = any_of.random() < float(failing)
        recorder.note(event="end", **its, at=now(), outcome="retry" if fails else "succeeded")
        return not fails

    def one():
        sqs = client(url)
        queue = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
        while True:
            try:
                answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=1, WaitTimeSeconds=WAIT,
                                             AttributeNames=["ApproximateReceiveCount"])
                messages = answer.get("Messages", [])
                if not messages:
                    time.sleep(PAUSE)
                for message in messages:
                    receipt = {"QueueUrl": queue, "ReceiptHandle": message["ReceiptHandle"]}
                    if handle(message["Body"]):
                        sqs.delete_message(**receipt)
                    else:
                        count = int(message["Attributes"]["ApproximateReceiveCount"])
                        wait = min(LONGEST, 2 ** (count - 1))
                        sqs.change_message_visibility(**receipt, VisibilityTimeout=wait)
            except (BotoCoreError, ClientError) as error:
                print(f"work: {error}", file=sys.stderr, flush=True)
                time.sleep(0.2)

    for _ in range(int(slots)):
        threading.Thread(target=one, daemon=True).start()
    print("READY", flush=True)
    # Its parent may be gone.
    sys.stdin.read()
    os._exit(0)


verbs = {"setup": setup, "left": left, "produce": produce, "work": work}
verbs[sys.argv[2]](*sys.argv[3:])
