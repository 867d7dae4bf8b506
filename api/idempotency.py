"""`Idempotency-Key`: the header, the fingerprint of a request, and the replay of its answer."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from api.http import Principal, Reply, Request
from models import idempotency
from models.database import Database, Transaction
from models.errors import Fault, IdempotencyInProgress, IdempotencyMismatch, InvalidRequest
from models.idempotency import Name, Stored

HEADER = "idempotency-key"
REPLAYED = "Idempotent-Replayed"
_KEY = re.compile(r"[\x20-\x7e]{1,255}\Z")


@dataclass(frozen=True, slots=True)
class Veil:
    """How an answer is kept without the secret in it, and gets it back from where it is kept anyway."""

    hide: Callable[[bytes], bytes]
    show: Callable[[Transaction, bytes], bytes]


def name_of(request: Request, principal: Principal) -> Name | None:
    """The key that the request carries, if any. Raises InvalidRequest."""
    text = request.headers.get(HEADER)
    if text is None:
        return None
    key = text.strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':  # the draft quotes it, everybody else does not
        key = key[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if _KEY.match(key) is None:
        detail = "must be 1 to 255 printable ASCII characters, quoted or bare"
        fault = Fault("Idempotency-Key", "format", detail)
        raise InvalidRequest(f"Idempotency-Key {detail}", faults=(fault,))
    return Name(principal.tenant, request.path, key)


def fingerprint_of(request: Request, body: bytes | None = None) -> str:
    """What makes two requests the same: method, path, media type and body."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    head = f"{request.method}\n{request.path}\n{kind}\n".encode()
    return hashlib.sha256(head + (request.body if body is None else body)).hexdigest()


def replay(stored: Stored, fingerprint: str) -> Reply:
    """The answer that was given before. Raises IdempotencyMismatch for another request under the same key."""
    if stored.fingerprint != fingerprint:
        raise IdempotencyMismatch(f"the Idempotency-Key {stored.name.key!r} was used with another request "
                                  "in the last 24 hours: send a new key")
    return Reply(stored.status, stored.body, {**stored.headers, REPLAYED: "true"})


def look_up(database: Database, name: Name, fingerprint: str, veil: Veil | None = None) -> Reply:
    """The answer that another request under this key got. Raises IdempotencyInProgress without one."""
    with database.read() as tx:
        stored = idempotency.get(tx, name)
        if stored is None or not stored.status:
            raise IdempotencyInProgress
        reply = replay(stored, fingerprint)
        if veil is not None:
            reply.body = veil.show(tx, stored.body)
    return reply


def find(database: Database, name: Name, fingerprint: str) -> Reply | None:
    """The answer that was given under this key, if there is one. Raises IdempotencyMismatch."""
    with database.read() as tx:
        stored = idempotency.get(tx, name)
    return None if stored is None or not stored.status else replay(stored, fingerprint)


def once(database: Database, request: Request, principal: Principal,
         create: Callable[[Transaction], Reply], *, fingerprint: str | None = None,
         veil: Veil | None = None) -> Reply:
    """Run `create` in one durable transaction, together with the request's Idempotency-Key if it has one.

    For every POST that creates, other than jobs, whose group commit does the same. `fingerprint`: where the
    body was streamed, so that it can't be taken of it here. `create` must be repeatable. `veil`: where the
    answer holds a secret.
    """
    name = name_of(request, principal)
    if name is None:
        return database.write(create)
    print_ = fingerprint or fingerprint_of(request)

    def work(tx: Transaction) -> Reply | None:
        if not idempotency.enter(tx, [Stored(name, print_, 0, b"", {})]):
            return None
        reply = create(tx)
        if not isinstance(reply.body, bytes):
            raise TypeError("an answer that is to be replayed must have its body at hand")
        kept = reply.body if veil is None else veil.hide(reply.body)
        idempotency.fill(tx, name, status=reply.status, body=kept, headers=reply.headers)
        return replace(reply, headers=dict(reply.headers))

    reply = database.write(work)
    return look_up(database, name, print_, veil) if reply is None else reply
