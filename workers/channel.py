"""kombu's channel, but what lies in the queue can't end the worker: a message that can't be read is dropped.

Stock kombu and Celery raise out of their event loop at JSON that isn't a message, or a task without an id.
And one client serves all commands: stock kombu makes one for each.
"""

from collections.abc import Callable
from queue import Empty
from typing import Any

import redis
import structlog

_LOST = (OSError, redis.RedisError)  # the broker's trouble, which the event loop handles by connecting again

_log = structlog.get_logger("headrace.worker")


def guarded(channel_class: type) -> type:
    """The same class of Redis channels, but with messages that can't be delivered logged and dropped."""

    class Channel(channel_class):  # type: ignore[misc]
        _unread = True  # nothing of what is being popped has been understood yet
        _kept: Any = None

        def _create_client(self, asynchronous: bool = False) -> Any:
            # Each new client copies a table of 169 callbacks, a sixth of what it costs to consume. (The ones
            # for `BRPOP` and subscriptions have connections of their own.)
            if asynchronous:
                return super()._create_client(asynchronous=True)
            if self.connection is None or self.connection.client is None:
                # Closing a lost connection, kombu restores what is unacknowledged: without this
                # it trips over the connection that is gone, which ends the whole worker.
                raise redis.ConnectionError("the connection is closed")
            # There is a new pool after a reconnect.
            if self._kept is None or self._kept.connection_pool is not self.pool:
                self._kept = super()._create_client()
            return self._kept

        def basic_consume(self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str,
                          **options: Any) -> Any:
            def deliver(raw: Any) -> Any:
                self._unread = False
                message = self._read(raw)
                if message is None:
                    return None
                if not no_ack:
                    self.qos.append(message, message.delivery_tag)
                try:
                    return callback(message)
                except _LOST:
                    raise
                except Exception:  # noqa: BLE001 - an unknown task's id, missing headers: whatever Celery trips over
                    _log.exception("message_dropped", queue=queue)
                    if not no_ack:
                        message.ack()
                    return None

            out = super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
            self.connection._callbacks[queue] = deliver  # noqa: SLF001 - where kombu has put its own
            return out

        def _read(self, raw: Any) -> Any:
            """The message, or None if it isn't one."""
            try:
                message = self.Message(raw, channel=self)
                # What kombu needs to put it on record as unacknowledged.
                str.encode(message.delivery_tag)
                message.delivery_info["exchange"], message.delivery_info["routing_key"]
            except Exception as error:  # noqa: BLE001 - strangers' data may raise anything
                _log.warning("message_dropped", error=repr(error))
                return None
            return message

        def _brpop_read(self, **options: Any) -> Any:
            self._unread = True
            try:
                return super()._brpop_read(**options)
            except (Empty, *_LOST):
                raise
            except Exception as error:
                if not self._unread:
                    raise
                _log.warning("message_dropped", error=repr(error))
                return True

    return Channel
