"""Telling others what was committed: pub/sub messages that nobody's truth depends on."""

import time
from collections.abc import Sequence
from typing import Any

import redis
import structlog

from models import contract
from models.settings import redis_url

TIMEOUT_S = 0.25
QUIET_S = 1.0  # how long a broker that failed is left alone: settling must not wait for it again and again

_log = structlog.get_logger("headrace.worker")


class Teller:
    """A connection that only sends: after CLIENT REPLY OFF a publish costs no round trip. For one thread."""

    def __init__(self, broker: str) -> None:
        self._pool = redis.ConnectionPool.from_url(
            redis_url(broker), socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        self._connection: Any = None  # redis-py leaves its connections untyped
        self._quiet_until_s = 0.0

    def settled(self, ids: Sequence[str], *, events: int) -> None:
        """These jobs became terminal, and so many events were written."""
        messages = [("PUBLISH", contract.DONE_CHANNEL, contract.encode_done(ids))]
        if events:
            messages.append(("PUBLISH", contract.DELIVER_CHANNEL, b""))
        self._send(messages)

    def waiting(self, hardware: str, ids: Sequence[str]) -> None:
        """These jobs of a class wait again, without a ticket: wake the feeder."""
        self._send([("PUBLISH", contract.RETURN_CHANNEL, contract.encode_return(hardware, ids))])

    def _send(self, messages: Sequence[tuple[str, str, bytes]]) -> None:
        if time.monotonic() < self._quiet_until_s:
            return
        try:
            connection = self._connected()
            connection.send_packed_command(connection.pack_commands(messages), check_health=False)
        except (redis.RedisError, OSError) as error:
            _log.warning("broker_unreachable", error=str(error))
            self.close()
            self._quiet_until_s = time.monotonic() + QUIET_S

    def _connected(self) -> Any:
        if self._connection is None:
            connection: Any = self._pool.make_connection()
            connection.connect()
            connection.send_command("CLIENT", "REPLY", "OFF")
            self._connection = connection
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None
