"""What a view may use: settings, database, the moving parts of this process. Construction starts nothing."""

from dataclasses import dataclass
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from api import (
    admission,
    directory,
    intake,
    keyring,
    metrics,
    pacing,
    quotas,
    readiness,
    stalls,
    tickets,
    waiting,
)
from models import blobs, database
from models.settings import Settings, redis_url

# Nothing on a request's way talks to the broker, so these only say how soon a frozen one is noticed.
BROKER_TIMEOUT_S = 0.5
# 896 threads may serve requests, but reads are short and writes queue behind one leader: with a connection
# each they would only wait elsewhere.
CONNECTIONS = 40


@dataclass
class Service:
    """The parts of one API process. `start()` runs its threads, `stop()` ends them, tickets published."""

    settings: Settings
    database: database.Database
    redis: redis.Redis  # with short time-outs; it connects at its first command
    directory: directory.Directory
    admission: admission.Admission
    intake: intake.Intake
    publisher: tickets.Publisher
    waiters: waiting.Waiters
    blobs: blobs.Blobs
    keyring: keyring.Keyring
    metrics: metrics.Metrics
    readiness: readiness.Readiness
    stalls: stalls.Stalls
    quotas: quotas.Quotas
    pacing: pacing.Pacing

    @classmethod
    def build(cls, settings: Settings) -> Self:
        """The parts, put together; nothing runs and nothing is connected yet."""
        store = database.connect(settings.database, synchronous=settings.sqlite_synchronous,
                                 pool_size=CONNECTIONS)
        client = redis_client(settings)
        known = directory.Directory(store)
        publisher = tickets.Publisher(client, store)
        gate = admission.Admission(known, max_wait_s=settings.max_wait_s, max_depth=settings.max_depth)
        return cls(settings, store, client, known, gate, intake.Intake(store, known, publisher), publisher,
                   waiting.Waiters(redis_client(settings), store), blobs.Blobs(settings.blobs),
                   keyring.Keyring(store), metrics.Metrics(),
                   readiness.Readiness({"database": store.now, "broker": client.ping}),
                   stalls.Stalls(), quotas.Quotas(settings, store), pacing.Pacing(settings))

    def start(self) -> None:
        self.directory.start()
        self.publisher.start()
        self.waiters.start()
        self.stalls.start()
        self.quotas.start()

    def stop(self) -> None:
        """End every wait, publish what is pending, close what is open."""
        self.waiters.stop()
        self.stalls.stop()
        self.publisher.stop()
        self.directory.stop()
        self.quotas.stop()
        self.pacing.close()
        self.redis.close()
        self.database.close()


def redis_client(settings: Settings) -> redis.Redis:
    """The broker, with one immediate second try: an idle connection may have been cut meanwhile."""
    return redis.Redis.from_url(
        redis_url(settings.broker), socket_timeout=BROKER_TIMEOUT_S, socket_connect_timeout=BROKER_TIMEOUT_S,
        retry=Retry(NoBackoff(), 1))
