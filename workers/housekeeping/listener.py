"""One pub/sub connection that turns messages into calls. Messages may be lost: who listens has a tick too."""

import threading
from collections.abc import Callable, Mapping

import redis
import structlog

log = structlog.get_logger("headrace.housekeeping")

POLL_S = 1.0
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.25, 2.0


def listen(client: redis.Redis, calls: Mapping[str, Callable[[bytes], None]], stop: threading.Event) -> None:
    """Call `calls[channel](message)` for each message until `stop`; reconnects for as long as it takes.

    The client's `socket_timeout` must exceed POLL_S, or every quiet second looks like a broken connection.
    """
    backoff_s = MIN_BACKOFF_S
    while not stop.is_set():
        subscription: redis.client.PubSub = client.pubsub(  # type: ignore[no-untyped-call]
            ignore_subscribe_messages=True)
        try:
            subscription.subscribe(*calls)
            while not stop.is_set():
                message = subscription.get_message(timeout=POLL_S)
                backoff_s = MIN_BACKOFF_S
                if message is not None:
                    calls[message["channel"].decode()](message["data"])
        except (redis.RedisError, OSError) as error:
            log.warning("listener_lost", detail=str(error), again_in_s=backoff_s)
            stop.wait(backoff_s)
            backoff_s = min(MAX_BACKOFF_S, 2 * backoff_s)
        finally:
            subscription.close()
