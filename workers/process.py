"""One worker process: the real Celery worker, run in-process for one hardware class."""

import dataclasses
import socket
import sys
import warnings
from collections.abc import Sequence

from celery.concurrency.thread import TaskPool

from models import contract, heap, ids
from models.errors import EngineUnavailable, HardwareMissing, SettingsInvalid
from models.settings import Settings
from workers.app import create_celery

EXIT_OK, EXIT_USAGE, EXIT_MISSING = 0, 2, 4


def run_worker(settings: Settings, hardware: str, lanes: Sequence[str]) -> int:
    """Serve the lanes of a hardware class until SIGTERM; the exit code.

    0: ended in good order. 1: failed, or its incarnation was ended by others: to be started again. 2: no such
    class. 4: this machine can't run the class.
    """
    incarnation = settings.incarnation or ids.new(ids.INCARNATION)
    app = create_celery(dataclasses.replace(settings, incarnation=incarnation))
    # Containers run as root; only JSON is accepted, so Celery's warning about pickled code doesn't apply.
    warnings.filterwarnings("ignore", message=r"(?s).*superuser privileges", category=Warning)
    try:
        worker = app.Worker(
            hostname=f"headrace-{hardware}-{incarnation}@{socket.gethostname()}",
            pool=TaskPool, concurrency=1,
            queues=[contract.queue_name(hardware, lane) for lane in lanes], loglevel="WARNING", quiet=True,
            redirect_stdouts=False, without_gossip=True, without_mingle=True, without_heartbeat=True)
    except (HardwareMissing, EngineUnavailable, SettingsInvalid) as error:
        sys.stderr.write(f"headrace worker: {error}\n")
        return EXIT_USAGE if isinstance(error, SettingsInvalid) else EXIT_MISSING
    # Said at each reconnect, about a setting that the contract sets on purpose. Here, since Celery's logging
    # puts filters of its own first.
    warnings.filterwarnings("ignore", message=r"(?s).*cancels all currently executed tasks", category=Warning)
    heap.settle()
    worker.start()
    return EXIT_OK if worker.exitcode is None else int(worker.exitcode)
