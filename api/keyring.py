"""API keys as requests carry them: verified against the database, remembered for half a minute."""

import contextlib
import threading
import time

from api.http import Principal
from models import keys
from models.database import Database
from models.errors import Unauthenticated, Unavailable

CACHE_S = 25.0  # how long a revoked key may go on working in this process; 30 s are promised
UNKNOWN_S = 1.0  # short, so that a key made a moment ago works
MAX_CACHED = 10_000


class Keyring:
    """Thread-safe. Raw keys are not kept, only their digests."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, tuple[Principal | None, float]] = {}
        self._lock = threading.Lock()

    def verify(self, key: str) -> Principal:
        """Who holds this key. Raises Unauthenticated, or Unavailable when the database is out of reach."""
        if not keys.well_formed(key):
            raise Unauthenticated("not an API key: one is `hr_` and 36 characters, the last 6 a checksum")
        digest = keys.digest(key)
        principal, until = self._known.get(digest, (None, 0.0))
        if until < time.monotonic():
            principal = self._look_up(key, digest)
        if principal is None:
            raise Unauthenticated("this API key is unknown, revoked or expired")
        return principal

    def _look_up(self, key: str, digest: str) -> Principal | None:
        with self._database.read() as tx:
            found = keys.find(tx, key)
        principal, keep_s = None, UNKNOWN_S
        if found is not None:
            known, now = found
            principal = Principal(known.tenant, frozenset(known.scopes), known.id)
            keep_s = CACHE_S if known.expires_at is None else min(CACHE_S, (known.expires_at - now) / 1000)
            # Sampled: at most once for each time that the cache is filled, and never a reason to refuse.
            with contextlib.suppress(Unavailable):
                self._database.write(lambda tx: keys.touch(tx, known.id), durable=False)
        with self._lock:
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            self._known[digest] = (principal, time.monotonic() + keep_s)
        return principal
