"""What moto's tests of SQS need to run beside each other against a server that others started."""

import inspect
import os

import pytest


@pytest.fixture
def account_id():
    # moto's own fixture asks another service, STS.
    return os.environ["SQS_ACCOUNT"]


def pytest_collection_modifyitems(items):
    # Tests that share a queue's name cannot run at the same time.
    for item in items:
        if 'QueueName="' in inspect.getsource(item.function):
            item.add_marker(pytest.mark.xdist_group("shared"))
