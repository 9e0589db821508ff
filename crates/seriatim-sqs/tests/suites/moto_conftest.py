"""What moto's tests of SQS need to run against a server that lasts longer than one of them."""

import inspect
import os
import re

import boto3
import pytest


@pytest.fixture
def account_id():
    # moto's own fixture asks another service, STS.
    return os.environ["SQS_ACCOUNT"]


def queues_of(item):
    return re.findall('QueueName="(.+?)"', inspect.getsource(item.function))


@pytest.fixture(autouse=True)
def leave_no_shared_queue(request):
    # Tests share names of queues: a message that one left would be visible again for another.
    yield
    sqs = boto3.client("sqs", endpoint_url=os.environ["TEST_SERVER_MODE_ENDPOINT"])
    for name in queues_of(request.node):
        try:
            sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"])
        except sqs.exceptions.QueueDoesNotExist:
            pass
