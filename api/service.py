"""What a view may use: settings, database, and the moving parts of this process. Construction starts nothing."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from api.http import Route
from api.readiness import Readiness
from models.database import Database
from models.settings import Settings

if TYPE_CHECKING:
    from models.blobs import Blobs


class Metrics(Protocol):
    def observe(self, route: Route, status: int, seconds: float) -> None: ...


class NullMetrics:
    """Counts nothing."""

    def observe(self, route: Route, status: int, seconds: float) -> None:
        pass


@dataclass
class Service:
    """The parts of one API process. `start()` runs its threads, `stop()` ends them and flushes the tickets."""

    settings: Settings
    database: Database
    redis: Any  # redis.Redis with short time-outs; connects at its first command
    directory: Any
    intake: Any
    publisher: Any
    waiters: Any
    blobs: "Blobs"
    keyring: Any
    metrics: Metrics
    readiness: Readiness = field(init=False)

    def __post_init__(self) -> None:
        self.readiness = Readiness({"database": self.database.now, "broker": lambda: self.redis.ping()})

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass
