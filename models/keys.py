"""API keys: `hr_`, 30 random base62 characters (178 bits), and a checksum.

The checksum tells a typo or a cut-off paste from a wrong key without a look at the database, and lets
scanners find leaked keys. Only the SHA-256 is stored: with so much entropy in a key, no slow hash is due.
"""

import hashlib
import re
import secrets
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from models import ids
from models.database import Row, Statement, Transaction
from models.tenant import api_keys

PREFIX = "hr_"
RANDOM_CHARS = 30
CHECKSUM_CHARS = 6  # 62**6 > 2**32
DAY_MS = 86_400_000

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SHAPE = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{RANDOM_CHARS + CHECKSUM_CHARS}}}\Z")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key once it has been shown. Times in ms since the epoch, database clock."""

    id: str
    tenant: str
    name: str
    hint: str  # its last 4 characters
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None


def mint() -> str:
    """A new key. It is shown once; store `digest(key)`."""
    body = "".join(secrets.choice(_ALPHABET) for _ in range(RANDOM_CHARS))
    return PREFIX + body + _checksum(body)


def digest(key: str) -> str:
    """What is stored of a key: hex SHA-256."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def well_formed(key: str) -> bool:
    """Whether this could be a key of ours: its shape and its checksum. It says nothing of who holds it."""
    if _SHAPE.match(key) is None:
        return False
    body = key[len(PREFIX):-CHECKSUM_CHARS]
    return key.endswith(_checksum(body))


def _checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    out = ""
    for _ in range(CHECKSUM_CHARS):
        number, digit = divmod(number, len(_ALPHABET))
        out = _ALPHABET[digit] + out
    return out


_CLOCK = Statement("SELECT {now}")
_FIELDS = "id, tenant, name, hint, scopes, created_at, expires_at, revoked_at, last_used_at"
_LISTING = Statement(f"SELECT {_FIELDS} FROM api_keys ORDER BY tenant, id")
_REVOKE = Statement("UPDATE api_keys SET revoked_at = {now} WHERE id = :id AND revoked_at IS NULL")
_EXISTS = Statement("SELECT 1 FROM api_keys WHERE id = :id")


def create(tx: Transaction, *, tenant: str, name: str, scopes: Sequence[str], key: str,
           expires_days: float | None = None) -> ApiKey:
    """Store a minted key for a tenant; `expires_days` from now, or for good."""
    now = int(tx.all(_CLOCK)[0][0])
    expires_at = None if expires_days is None else now + int(expires_days * DAY_MS)
    made = ApiKey(ids.new(ids.KEY), tenant, name, key[-4:], tuple(scopes), now, expires_at, None, None)
    tx.insert(api_keys, [{
        "id": made.id, "tenant": tenant, "name": name, "hash": digest(key), "hint": made.hint,
        "scopes": " ".join(scopes), "created_at": now, "expires_at": made.expires_at}])
    return made


def listing(tx: Transaction) -> list[ApiKey]:
    """Every key, the revoked ones too, by tenant and age."""
    return [_from_row(row) for row in tx.all(_LISTING)]


def _from_row(row: Row) -> ApiKey:
    key_id, tenant, name, hint, scopes, created_at, expires_at, revoked_at, last_used_at = row
    return ApiKey(key_id, tenant, name, hint, tuple(scopes.split()), created_at, expires_at, revoked_at,
                  last_used_at)


def revoke(tx: Transaction, key_id: str) -> bool | None:
    """End a key. False: it was revoked before; None: there is no such key."""
    if tx.run(_REVOKE, id=key_id) == 1:
        return True
    return None if tx.one(_EXISTS, id=key_id) is None else False


_FIND = Statement(f"SELECT {_FIELDS}, {{now}} FROM api_keys WHERE hash = :hash AND revoked_at IS NULL "
                  "AND (expires_at IS NULL OR expires_at > {now})")
_TOUCH = Statement("UPDATE api_keys SET last_used_at = {now} WHERE id = :id")


def find(tx: Transaction, key: str) -> tuple[ApiKey, int] | None:
    """The valid key that was sent, and the database's clock; None if it is unknown, revoked or expired."""
    row = tx.one(_FIND, hash=digest(key))
    return None if row is None else (_from_row(row[:9]), row[9])


def touch(tx: Transaction, key_id: str) -> None:
    """Note that a key was used just now."""
    tx.run(_TOUCH, id=key_id)
