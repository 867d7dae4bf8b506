"""Logging of every process: structlog and the standard library's in one shape, readable or JSON."""

import logging
import logging.config
import os
import sys
from typing import Any

import structlog

PROCESS = "HEADRACE_PROCESS"  # the part's name under `up`, which writes it before each line by itself
# Libraries that say much at INFO that isn't ours to pass on.
QUIET = ("kombu", "amqp", "celery.redirected", "alembic", "urllib3", "asyncio", "PIL")


def configure(log_format: str, process: str, *, level: int = logging.INFO, stream: Any = None) -> None:
    """Send all logging of this process to stderr, as `console` lines or as one `json` object a line."""
    stream = sys.stderr if stream is None else stream
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        shared += [_name(process), _act]
        last: list[Any] = [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
    else:
        if PROCESS not in os.environ:
            shared.append(_name(process))
        last = [structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), pad_event_to=0, pad_level=False,
            exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(True)


def _name(process: str) -> Any:
    def add(_logger: Any, _method: str, entry: dict[str, Any]) -> dict[str, Any]:
        entry.setdefault("process", process)
        return entry

    return add


def _act(_logger: Any, _method: str, entry: dict[str, Any]) -> dict[str, Any]:
    """An event that is one word already is its own `action`."""
    event = entry.get("event")
    if isinstance(event, str) and event.isidentifier():
        entry.setdefault("action", event)
    return entry


def granian_config() -> dict[str, Any]:
    """The set-up of its loggers that granian would make, turned into "leave it to the root logger"."""
    quiet: dict[str, Any] = {"handlers": [], "propagate": True}
    return {"version": 1, "disable_existing_loggers": False, "formatters": {}, "handlers": {},
            "loggers": {"_granian": dict(quiet), "granian.access": dict(quiet)}}
