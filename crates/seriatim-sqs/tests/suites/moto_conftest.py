"""What moto's tests of SQS need to run beside each other against a server that others started."""

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


def pytest_collection_modifyitems(items):
    # Tests that share a queue's name cannot run at the same time.
    for item in items:
        if queues_of(item):
            item.add_marker(pytest.mark.xdist_group("shared"))


@pytest.fixture(autouse=True)
def leave_no_shared_queue(request):
    # Messages that one of them left would be visible again for a later one.
    yield
    sqs = boto3.client("sqs", endpoint_url=os.environ["TEST_SERVER_MODE_ENDPOINT"])
    for name in queues_of(request.node):
        try:
            sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"])
        except sqs.exceptions.QueueDoesNotExist:
            pass
