"""`/livez`, `/readyz` and `/metrics`: what an orchestrator and a scraper ask."""

from typing import TYPE_CHECKING

import structlog

from api import exposition, shapes
from api.http import Principal, Reply, Request, Table
from models.errors import Fault, Unavailable

if TYPE_CHECKING:
    from api.service import Service

log = structlog.get_logger("headrace.api")
table = Table("health")

READY_S = 2.0  # orchestrators' probes wait a few seconds at most


@table.route("GET", "/livez", scope=None, summary="Whether this process answers", replies={200: shapes.Live})
def livez(_service: "Service", _request: Request, _principal: Principal) -> Reply:
    """Says nothing of the database or the broker, so that their trouble doesn't restart this process."""
    return shapes.reply(shapes.Live("live"))


@table.route("GET", "/readyz", scope=None, summary="Whether the database and the broker are in reach",
             replies={200: shapes.Ready, 503: None})
def readyz(service: "Service", _request: Request, _principal: Principal) -> Reply:
    """503 names what is out of reach; the details, which may name hosts, go to the log."""
    passed: dict[str, shapes.Check] = {}
    faults = []
    for name, outcome in service.readiness.ask(READY_S).items():
        if isinstance(outcome, Exception):
            log.warning("readiness_failed", part=name, detail=str(outcome))
            how = str(outcome) if isinstance(outcome, TimeoutError) else type(outcome).__name__
            faults.append(Fault(f"/{name}", "reachable", f"{how}: the log of this process says more"))
        else:
            passed[name] = shapes.Check(ok=True, latency_ms=round(outcome, 3))
    if faults:
        problem = Unavailable("out of reach: " + ", ".join(fault.pointer[1:] for fault in faults))
        problem.faults = tuple(faults)
        raise problem
    return shapes.reply(shapes.Ready("ready", passed))


@table.route("GET", "/metrics", scope="models:read",
             summary="Figures of queues, workers and this API process",
             replies={200: exposition.CONTENT_TYPE})
def scrape(service: "Service", _request: Request, _principal: Principal) -> Reply:
    """Prometheus's text format. Without the database, the figures of this process alone."""
    return Reply(200, exposition.text(service), content_type=exposition.CONTENT_TYPE)
