"""Loaded by each Python process of a test's stack: the broker redelivers what is unacknowledged for 2 s."""

from typing import Any

from models import contract

_settings = contract.celery_settings


def _impatient(broker_url: str, visibility_timeout_s: int = 2) -> dict[str, Any]:
    out = _settings(broker_url, visibility_timeout_s)
    out["broker_transport_options"]["unacked_restore_interval"] = 1
    return out


contract.celery_settings = _impatient
