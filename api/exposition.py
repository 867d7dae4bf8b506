"""`/metrics`: figures derived from the database when they are asked for, so that any API process can answer.

Nothing here counts finished jobs: every query reads a small table or an index over live rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.routes import operations
from models import incarnation, network
from models.database import Statement, Transaction
from models.errors import Unavailable
from models.incarnation import Incarnation

if TYPE_CHECKING:
    from api.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTED = 10_000  # pending events and deliveries are counted up to here

_LANES = Statement(
    "SELECT hardware, lane, open, depth, in_flight, wait_s, oldest_at, updated_at, {now} FROM lanes "
    "ORDER BY hardware, lane")
_RATES = Statement("SELECT network, hardware, overhead_s, per_work_s, batch_work, batch_items FROM rates "
                   "ORDER BY network, hardware")
_NETWORKS = Statement("SELECT state, count(*) FROM networks GROUP BY state")
_PENDING = {
    "events": Statement(
        "SELECT count(*) FROM (SELECT 1 FROM events WHERE fanned_at IS NULL LIMIT :limit) AS counted"),
    "deliveries": Statement(
        "SELECT count(*) FROM (SELECT 1 FROM deliveries WHERE state = 'pending' AND due_at IS NOT NULL "
        "LIMIT :limit) AS counted"),
}


def text(service: "Service") -> bytes:
    """All figures in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Derived(service))
    return generate_latest(registry) + generate_latest(service.metrics.registry)


class _Derived(Collector):
    def __init__(self, service: "Service") -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        return ()  # else registering would ask the database

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("headrace_long_polls", "Clients that wait for a job in this process.",
                                float(self._service.waiters.count))
        up = GaugeMetricFamily("headrace_database_up", "1: the database answered this scrape.")
        try:
            with self._service.database.read() as tx:
                families = list(_derived(tx))
        except Unavailable:
            families = []
        up.add_metric((), 1.0 if families else 0.0)
        yield up
        yield from families


def _derived(tx: Transaction) -> Iterator[Metric]:
    live = incarnation.live(tx)
    yield from _lanes(tx, live)
    yield from _workers(live)
    yield from _networks(tx)
    pending = _Gauge("headrace_pending", f"Events and deliveries to be sent, counted to {COUNTED}.", "kind")
    for kind, statement in _PENDING.items():
        pending.add(tx.all(statement, limit=COUNTED)[0][0], kind)
    yield pending.family


class _Gauge:
    def __init__(self, name: str, help_text: str, *labels: str) -> None:
        self.family = GaugeMetricFamily(name, help_text, labels=labels)

    def add(self, value: float | None, *labels: str) -> None:
        if value is not None:
            self.family.add_metric(labels, float(value))


def _lanes(tx: Transaction, live: Sequence[Incarnation]) -> Iterator[Metric]:
    by = ("hardware", "lane")
    depth = _Gauge("headrace_lane_depth", "Jobs that wait, as of the last roll-up.", *by)
    in_flight = _Gauge("headrace_lane_in_flight", "Jobs that a worker holds, as of the last roll-up.", *by)
    oldest = _Gauge("headrace_lane_oldest_seconds", "Age of the job that has waited longest.", *by)
    wait = _Gauge("headrace_lane_estimated_wait_seconds", "Estimated wait of a job that arrives now.", *by)
    is_open = _Gauge("headrace_lane_open", "1: the API sends tickets itself; 0: the feeder does.", *by)
    age = _Gauge("headrace_lane_rollup_age_seconds", "Time since the figures of a lane were rolled up.", *by)
    rows = operations.lanes_now(tx.all(_LANES), live)
    for hardware, lane, opened, count, held, wait_s, oldest_at, updated_at, now in rows.values():
        depth.add(count, hardware, lane)
        in_flight.add(held, hardware, lane)
        oldest.add(None if oldest_at is None else max(0, now - oldest_at) / 1000, hardware, lane)
        wait.add(wait_s, hardware, lane)
        is_open.add(bool(opened), hardware, lane)
        age.add(max(0, now - updated_at) / 1000, hardware, lane)
    for gauge in (depth, in_flight, oldest, wait, is_open, age):
        yield gauge.family


def _workers(live: Sequence[Incarnation]) -> Iterator[Metric]:
    count = _Gauge("headrace_workers", "Live workers by class and lane.", "hardware", "lane", "ready")
    figures = _Gauge("headrace_worker_figure", "What each worker last reported of itself.",
                     "incarnation", "hardware", "host", "figure")
    totals: dict[tuple[str, str, str], int] = {}
    for each in operations.live_workers(live):
        hardware = str(each.hardware)
        for lane in operations.lanes_of(each):
            key = (hardware, lane, str(each.ready).lower())
            totals[key] = totals.get(key, 0) + 1
        for figure, value in _numbers(each.holding):
            figures.add(value, each.id, hardware, each.host, figure)
    for labels, total in totals.items():
        count.add(total, *labels)
    yield count.family
    yield figures.family


def _numbers(holding: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a heartbeat; of a list (engines, refused networks) how many there are."""
    for name, value in holding.items():
        if isinstance(value, int | float):
            yield name, float(value)
        elif isinstance(value, list | tuple):
            yield name, float(len(value))


def _networks(tx: Transaction) -> Iterator[Metric]:
    states = _Gauge("headrace_networks", "Network versions by state.", "state")
    totals = {str(row[0]): int(row[1]) for row in tx.all(_NETWORKS)}
    for state in (network.CHECKING, network.READY, network.REJECTED, network.RETIRED):
        states.add(totals.get(state, 0), state)
    yield states.family
    by = ("network", "hardware")
    overhead = _Gauge("headrace_network_overhead_seconds", "Learned: the cost of a batch without items.", *by)
    per_work = _Gauge("headrace_network_seconds_per_work", "Learned: what one unit of work costs.", *by)
    limit = _Gauge("headrace_network_batch_items", "Learned: how many items a batch takes.", *by)
    for name, hardware, overhead_s, per_work_s, _work, items in tx.all(_RATES):
        overhead.add(overhead_s, name, hardware)
        per_work.add(per_work_s, name, hardware)
        limit.add(items, name, hardware)
    for gauge in (overhead, per_work, limit):
        yield gauge.family
