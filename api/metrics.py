"""What one API process counts of its own requests. Figures of queues and workers are in `exposition`."""

import prometheus_client
from prometheus_client import CollectorRegistry, Histogram

from api.http import Route

# Seconds. Accepting a job takes about a millisecond; a long poll lasts up to 30 s.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """A registry of its own, so that several services in one process (tests) don't share figures."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "headrace_http_request_duration_seconds", "Time to answer a request, by route and status.",
            ("method", "route", "status"), registry=self.registry, buckets=BUCKETS)
        self._children: dict[tuple[str, str, int], Histogram] = {}
        prometheus_client.ProcessCollector(registry=self.registry)
        prometheus_client.PlatformCollector(registry=self.registry)

    def observe(self, route: Route, status: int, seconds: float) -> None:
        """Count one request. On the way of every request: about 1.5 microseconds."""
        key = (route.method, route.path, status)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._requests.labels(route.method, route.path, str(status))
        child.observe(seconds)
