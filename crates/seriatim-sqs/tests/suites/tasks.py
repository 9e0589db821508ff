"""Tasks of Celery that note each run in a file. Called as a program, it sends so many to each of two
queues: `celery`, and `lanes.fifo`, whose message groups must run in order."""

import os
import sys
import time

from celery import Celery

GROUPS = 5

app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "visibility_timeout": 8,
        "wait_time_seconds": 2,
        "polling_interval": 0.05,
    },
)


@app.task
def note(lane, n):
    with open(os.environ["RUNS"], "a", buffering=1) as runs:
        runs.write(f"{lane} {n} {time.time()}\n")


def send(call):
    """Sends until the broker has taken it: a repeated send may be a second message."""
    while True:
        try:
            return call()
        except Exception as error:
            print("a send failed:", type(error).__name__, flush=True)
            time.sleep(0.2)


if __name__ == "__main__":
    for n in range(int(sys.argv[1])):
        lane = n % GROUPS
        send(lambda: note.apply_async(("any", n), task_id=f"any-{n}"))
        fifo = {"MessageGroupId": f"lane-{lane}", "MessageDeduplicationId": str(n)}
        send(lambda: note.apply_async((f"lane-{lane}", n), task_id=f"lane-{n}", queue="lanes.fifo", **fifo))
