"""Celery's consumer, but back at the broker soon after the broker is back, and deaf to junk."""

import functools
from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer

from workers import channel

FIRST_S, STEP_S, LAST_S = 0.2, 0.3, 2.0  # Celery's own waits grow by 2 s up to 30


class Consumer(CeleryConsumer):  # type: ignore[misc]
    """Tries a lost broker again after 0.2 s, then ever later, but each 2 s at least."""

    def ensure_connected(self, conn: Any) -> Any:
        conn.ensure_connection = functools.partial(
            conn.ensure_connection, interval_start=FIRST_S, interval_step=STEP_S, interval_max=LAST_S)
        conn.transport.Channel = channel.guarded(conn.transport.Channel)
        return super().ensure_connected(conn)
