"""Object ids: a prefix and the 32 hex digits of a UUIDv7, so that ids sort by time."""

import re

import uuid_utils

JOB = "job_"
INCARNATION = "inc_"
EVENT = "evt_"
ENDPOINT = "whe_"
DELIVERY = "dlv_"
KEY = "key_"
BULK = "bulk_"

_SHAPE = re.compile(r"(?:job|inc|evt|whe|dlv|key|bulk)_[0-9a-f]{32}\Z")


def new(prefix: str) -> str:
    return prefix + uuid_utils.uuid7().hex


def is_id(text: str, prefix: str) -> bool:
    return text.startswith(prefix) and _SHAPE.match(text) is not None


def lowest(prefix: str, at_ms: int) -> str:
    """The id below which none lies that was made at `at_ms` or later."""
    return f"{prefix}{max(0, at_ms):012x}{0:020x}"
