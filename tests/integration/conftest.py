"""What tests of webhooks share: a receiver that misbehaves on order, and the part that sends."""

import pytest

from tests import receivers
from tests.deliverers import Deliverers


@pytest.fixture
def receiver():
    with receivers.Receiver() as running:
        yield running


@pytest.fixture
def deliverers(settings, database):
    with Deliverers(settings, database) as running:
        yield running
