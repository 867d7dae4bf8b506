"""What the WSGI server runs: a short lane for the two hottest routes, Flask for everything else.

Through Flask a GET costs about 0.3 ms of CPU, past it 0.1; both end in `dispatch.answer`.
"""

import multiprocessing.util
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from api import dispatch
from api.http import Reply
from api.routes import jobs
from api.service import Service
from api.shell import create_app
from models import heap, ids, settings

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

# A long poll holds a thread, so does a body that comes slowly, and so does each request of a group commit:
# waiting.MAX_WAITERS, stalls.MAX_READS, and 128 more.
# The pool grows as it is needed, so an idle server has few. Connections above BACKPRESSURE wait in the
# kernel; kept-alive ones count, so it lies well above the threads.
BLOCKING_THREADS = 896
BACKPRESSURE = 2048

Application = Callable[[dict[str, Any], "StartResponse"], Iterable[bytes]]

_JOBS = "/v1/jobs"
_JOB = _JOBS + "/"
_STATUS = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}
_NO_PARAMS: Mapping[str, str] = {}


def build() -> Application:
    """The application over the environment's settings, its threads started; they end with the process."""
    app = create_app(settings.load())
    service: Service = app.extensions["headrace"]
    service.start()
    heap.settle()
    # The server's process is a child of multiprocessing, which ends without atexit.
    multiprocessing.util.Finalize(None, service.stop, exitpriority=1)
    _end_waits_on_signal(service)
    return application(service, app)


def application(service: Service, flask_app: Application) -> Application:
    """Both ways in, in front of one service."""
    routes = {(route.method, route.path): route for route in jobs.table.routes}
    submit, get = routes["POST", _JOBS], routes["GET", _JOB + "{id}"]

    def serve(environ: dict[str, Any], start: "StartResponse") -> Iterable[bytes]:
        path: str = environ["PATH_INFO"]
        if path == _JOBS and environ["REQUEST_METHOD"] == "POST":
            return _send(dispatch.answer(service, submit, environ, _NO_PARAMS), start)
        if path.startswith(_JOB) and environ["REQUEST_METHOD"] == "GET":
            job_id = path[len(_JOB):]
            if ids.is_id(job_id, ids.JOB):
                return _send(dispatch.answer(service, get, environ, {"id": job_id}), start)
        return flask_app(environ, start)

    return serve


def _end_waits_on_signal(service: Service) -> None:
    """Answer all long polls when the process is told to end, which else waits for them.

    The signals are the server's; their numbers arrive here besides, whoever handles them.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    told, tells = socket.socketpair()
    tells.setblocking(False)
    signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        while not {signal.SIGTERM, signal.SIGINT} & set(told.recv(64)):
            pass
        service.waiters.stop()
        tells.close()

    threading.Thread(target=listen, name="signals", daemon=True).start()


def _send(reply: Reply, start: "StartResponse") -> Iterable[bytes]:
    headers = list(reply.headers.items())
    body = reply.body
    if reply.status == 304:
        start(_STATUS[304], headers)
        return ()
    headers.append(("Content-Type", reply.content_type))
    if isinstance(body, bytes):
        headers.append(("Content-Length", str(len(body))))
        body = (body,)
    start(_STATUS[reply.status], headers)
    return body
