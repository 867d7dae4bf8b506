"""Standard Webhooks v1 signatures: HMAC-SHA256 over `id.timestamp.body`, several live secrets in one header.

Own code, since signing is three calls of the standard library; tests hold it against the stock package.
"""

import base64
import binascii
import hashlib
import hmac
import secrets as entropy
import time
from collections.abc import Mapping, Sequence

PREFIX = "whsec_"
SECRET_BYTES = 36  # divisible by 3: 48 characters without padding, which some receivers lose or refuse
TOLERANCE_S = 300  # what every receiver's library allows, both ways
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"


class SignatureInvalid(ValueError):
    """The message is not from who holds the secret, or too old or too new."""


def new_secret() -> str:
    """`whsec_` and standard base64: some receivers split on `_`, which the URL-safe one has."""
    return PREFIX + base64.b64encode(entropy.token_bytes(SECRET_BYTES)).decode()


def hint(secret: str) -> str:
    """What may be shown of a secret later: enough to tell two apart."""
    return f"{PREFIX}…{secret[-4:]}"


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"a webhook secret is {PREFIX} and standard base64") from error


def _signature(secret: str, message_id: str, timestamp_s: int, body: bytes) -> str:
    content = f"{message_id}.{timestamp_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(_key(secret), content, hashlib.sha256)).decode()


def sign(secrets: Sequence[str], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The `webhook-signature` header: one signature a live secret, separated by spaces.

    `timestamp_s` is the time of this attempt, not of the event; `message_id` holds no dot.
    """
    return " ".join(_signature(secret, message_id, timestamp_s, body) for secret in secrets)


def headers(secrets: Sequence[str], message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The three headers of one attempt."""
    signature = sign(secrets, message_id, timestamp_s, body)
    return {ID: message_id, TIMESTAMP: str(timestamp_s), SIGNATURE: signature}


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now_s: float | None = None) -> str:
    """Check a received message against one secret; its `webhook-id`, by which receivers drop duplicates.

    Header names in any case. Raises SignatureInvalid with the reason.
    """
    found = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, signatures = found[ID], found[TIMESTAMP], found[SIGNATURE]
    except KeyError as error:
        raise SignatureInvalid(f"the header {error.args[0]} is missing") from error
    if not (timestamp.isascii() and timestamp.isdigit()):
        raise SignatureInvalid(f"{TIMESTAMP} {timestamp!r} is not a number of seconds")
    now_s = time.time() if now_s is None else now_s
    if abs(now_s - int(timestamp)) > TOLERANCE_S:
        raise SignatureInvalid(f"{TIMESTAMP} is more than {TOLERANCE_S} s away from this clock")
    wanted = _signature(secret, message_id, int(timestamp), body).encode()
    if not any(hmac.compare_digest(wanted, given.encode()) for given in signatures.split()):
        raise SignatureInvalid("no signature fits the secret and the body")
    return message_id
