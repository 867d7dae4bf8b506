"""Requests a second of tenants that have such a limit, counted in the broker for all API processes together.

A sliding window counter of the `limits` library: one round trip, on the broker's own clock. The window is the
whole number of seconds in which the rate allows the burst. Where the broker is away or slow, each process
counts for itself until it is back: a request waits for it once in a while, and then shortly.
"""

import math
import threading
import time
from dataclasses import dataclass
from typing import Self

import redis
import structlog
from limits import RateLimitItemPerSecond
from limits.storage import RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from redis.backoff import NoBackoff
from redis.retry import Retry

from models.errors import RateLimited
from models.quota import Quota
from models.settings import Settings, redis_url

log = structlog.get_logger("headrace.api")

PREFIX = "headrace.rate.v1"
TIMEOUT_S = 0.1
CONNECTIONS = 64
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.5, 5.0
LOOK_S = 1.0  # what is left is asked for that often, and counted down in between
MAX_KNOWN = 10_000  # tenants


@dataclass(frozen=True, slots=True)
class Policy:
    """`amount` requests in any `window_s` seconds."""

    amount: int
    window_s: int

    @classmethod
    def of(cls, rate: float, burst: int | None) -> Self:
        """At most `rate` a second in the long run, at least `burst` at once (None: a second's worth)."""
        wanted = max(1, math.ceil(rate) if burst is None else burst)
        window_s = max(1, math.ceil(wanted / rate - 1e-9))
        return cls(max(1, math.floor(rate * window_s + 1e-9)), window_s)


@dataclass(frozen=True, slots=True)
class Pace:
    """What one request met. `reset_s`: seconds until there is more, or again some."""

    policy: Policy
    allowed: bool
    remaining: int
    reset_s: float

    def check(self) -> None:
        """Raise RateLimited if the request wasn't allowed."""
        if not self.allowed:
            error = RateLimited(f"the tenant has made {self.policy.amount} requests within "
                                f"{self.policy.window_s} s, as many as it may: send them more slowly")
            error.retry_after_s = self.reset_s
            raise error

    @property
    def headers(self) -> dict[str, str]:
        """`RateLimit-Policy` and `RateLimit` as in draft-ietf-httpapi-ratelimit-headers-11."""
        return {"RateLimit-Policy": f'"requests";q={self.policy.amount};w={self.policy.window_s}',
                "RateLimit": f'"requests";r={self.remaining};t={max(0, math.ceil(self.reset_s))}'}


@dataclass(slots=True)
class _Known:
    """What this process knows of one tenant, on its monotonic clock."""

    remaining: int = 0
    reset_at: float = 0.0
    looked_at: float = -math.inf
    empty_until: float = 0.0  # only time brings more, so until then nobody needs to be asked


@dataclass(slots=True)
class _Bucket:
    """A token bucket of this process alone."""

    tokens: float
    at: float

    def take(self, policy: Policy, now: float) -> Pace:
        rate = policy.amount / policy.window_s
        self.tokens = min(policy.amount, self.tokens + (now - self.at) * rate)
        self.at = now
        allowed = self.tokens >= 1.0
        if allowed:
            self.tokens -= 1.0
        wait_s = (policy.amount - self.tokens if allowed else 1.0 - self.tokens) / rate
        return Pace(policy, allowed, int(self.tokens), wait_s)


class Pacing:
    """Thread-safe; it connects at its first use. Tenants without a rate never get here."""

    def __init__(self, settings: Settings) -> None:
        self._pool = redis.BlockingConnectionPool.from_url(
            redis_url(settings.broker), max_connections=CONNECTIONS, timeout=TIMEOUT_S,
            socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0))
        self._limiter = SlidingWindowCounterRateLimiter(
            RedisStorage("redis://", connection_pool=self._pool, key_prefix=PREFIX))
        self._known: dict[tuple[str, Policy], _Known] = {}
        self._buckets: dict[tuple[str, Policy], _Bucket] = {}
        self._lock = threading.Lock()
        self._away_until = 0.0  # breaker: the broker isn't asked before
        self._backoff_s = MIN_BACKOFF_S
        self._away = False

    def take(self, tenant: str, quota: Quota) -> Pace:
        """Count one request of a tenant whose quota has a rate."""
        policy = Policy.of(quota.rate or math.inf, quota.burst)
        now = time.monotonic()
        if self._away and not self._may_try(now):
            return self._alone(tenant, policy, now)
        try:
            pace = self._together(tenant, policy, now)
        except (redis.RedisError, OSError) as error:
            self._break(error)
            return self._alone(tenant, policy, now)
        if self._away:
            self._mend()
        return pace

    def close(self) -> None:
        self._pool.disconnect()

    def _together(self, tenant: str, policy: Policy, now: float) -> Pace:
        known = self._known_of(tenant, policy)
        if now < known.empty_until:
            return Pace(policy, allowed=False, remaining=0, reset_s=known.empty_until - now)
        item = RateLimitItemPerSecond(policy.amount, policy.window_s, PREFIX)
        allowed = self._limiter.hit(item, tenant)
        if not allowed or now - known.looked_at > LOOK_S:
            stats = self._limiter.get_window_stats(item, tenant)
            known.remaining, known.looked_at = stats.remaining, now
            known.reset_at = now + max(0.0, stats.reset_time - time.time())
        elif known.remaining:
            known.remaining -= 1
        if not allowed:
            known.empty_until = known.reset_at
        return Pace(policy, allowed, known.remaining if allowed else 0, max(0.0, known.reset_at - now))

    def _known_of(self, tenant: str, policy: Policy) -> _Known:
        known = self._known.get((tenant, policy))
        if known is None:
            with self._lock:
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                known = self._known.setdefault((tenant, policy), _Known())
        return known

    def _alone(self, tenant: str, policy: Policy, now: float) -> Pace:
        with self._lock:
            if len(self._buckets) >= MAX_KNOWN:
                self._buckets.clear()
            return self._buckets.setdefault((tenant, policy), _Bucket(policy.amount, now)).take(policy, now)

    def _may_try(self, now: float) -> bool:
        """Whether this request is the one that tries whether the broker is back."""
        with self._lock:
            if now < self._away_until:
                return False
            self._away_until = now + self._backoff_s
            return True

    def _break(self, error: Exception) -> None:
        with self._lock:
            first, self._away = not self._away, True
            self._away_until = time.monotonic() + self._backoff_s
            self._backoff_s = MIN_BACKOFF_S if first else min(MAX_BACKOFF_S, 2 * self._backoff_s)
        if first:
            log.warning("rates_counted_alone", detail=str(error))

    def _mend(self) -> None:
        with self._lock:
            self._away = False
            self._backoff_s = MIN_BACKOFF_S
            self._buckets.clear()
        log.info("rates_counted_together")
