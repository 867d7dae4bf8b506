"""Starts parts as child processes, starts them again when they die, and stops them in stages.

One thread decides (the one that calls `wait`); a child's own threads only report. It must be the main thread:
the kernel ends children with the thread that started them.
"""

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from cli import codes, console, logs, watchdog
from models import ids

PROBE_S = 0.05
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
TICK_S = 1.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Part:
    """What to run. `stage`: the lowest is stopped first. `final`: exit codes that end it for good.

    `noise`: phrases of lines that aren't passed on, since they would only alarm. `worked`: asked about a life
    that ended before it was seen ready: whether it did its work all the same, so that it may start at once.
    """

    name: str
    command: tuple[str, ...]
    stage: int
    ready: "Callable[[Life], bool]"
    environ: Mapping[str, str] = field(default_factory=dict)
    incarnated: bool = False
    stop_signal: int = signal.SIGTERM
    final: frozenset[int] = codes.FINAL
    noise: tuple[str, ...] = ()
    worked: "Callable[[Life], bool]" = lambda _: False


@dataclass(slots=True, eq=False)
class Life:
    """One start of a part."""

    part: Part
    process: "subprocess.Popen[bytes]"
    listener: console.Listener
    incarnation: str
    ready: bool = False
    condemned: bool = False  # we killed it ourselves: no job is to blame


@dataclass(slots=True, eq=False)
class _Post:
    part: Part
    life: Life | None = None
    failures: int = 0  # deaths in a row before it was ready
    due: float | None = None  # when to start it again, by time.monotonic
    given_up: int | None = None  # the exit code after which it isn't started again


class Stopped(Exception):
    """Somebody asked us to stop."""


class Supervisor:
    """`start` parts, `wait` for what must come true, `drain` stage by stage.

    `born(incarnation)` is called before such a part starts, `dead(incarnation, code, condemned)` right after
    it died; code as Popen gives it: negative for a signal.
    """

    def __init__(self, out: console.Console, *, environ: Mapping[str, str], kept_fds: Iterable[int] = (),
                 born: Callable[[str], None], dead: Callable[[str, int, bool], None]) -> None:
        self._out = out
        self._environ = dict(environ)
        self._born = born
        self._dead = dead
        self._posts: dict[str, _Post] = {}
        self._events: queue.SimpleQueue[tuple[str, Life | None, int]] = queue.SimpleQueue()
        self._watch_fd, self._held_fd = os.pipe()  # the second end is ours alone and closes with us
        self._fds = (self._watch_fd, *kept_fds)
        self._draining = False
        self._stops = 0

    def take_signals(self) -> None:
        """Treat SIGINT, SIGTERM and SIGHUP as "stop"."""
        def stop(number: int, _frame: object) -> None:
            self._events.put(("stop", None, number))

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)

    def start(self, part: Part) -> None:
        """Start a part and look after it from now on."""
        post = self._posts[part.name] = _Post(part)
        self._spawn(post)

    def ready(self, *names: str) -> bool:
        """Whether these parts are ready now."""
        return all((life := self._posts[name].life) is not None and life.ready for name in names)

    def given_up(self) -> dict[str, int]:
        """Parts that won't be started again, and the exit code that said so."""
        return {name: post.given_up for name, post in self._posts.items() if post.given_up is not None}

    def pending(self) -> list[str]:
        """Parts that are neither ready nor given up."""
        return [name for name, post in self._posts.items() if post.given_up is None and not self.ready(name)]

    def wait(self, until: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Look after the parts until something is true; False after the time-out. Raises Stopped."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not until():
            if self._stops:
                raise Stopped
            if end is not None and time.monotonic() >= end:
                return False
            self._step(end)
        return True

    def drain(self, stage: int, grace_s: float) -> None:
        """Stop the parts of one stage and wait; kill them after the grace, or when asked to stop again."""
        self._draining = True
        lives = [post.life for post in self._posts.values() if post.life and post.part.stage == stage]
        for life in lives:
            with contextlib.suppress(ProcessLookupError):
                life.process.send_signal(life.part.stop_signal)
        asked = self._stops
        end = time.monotonic() + grace_s
        while any(self._posts[life.part.name].life is life for life in lives):
            overdue = time.monotonic() >= end or self._stops > max(asked, 1)
            for life in lives:
                if overdue and not life.condemned and self._posts[life.part.name].life is life:
                    life.condemned = True
                    _log.warning("part did not stop in time", action="part_killed", part=life.part.name)
                    _kill_group(life)
            self._step(None if overdue else end)
        for life in lives:
            life.listener.join(TICK_S)

    def _step(self, end: float | None) -> None:
        """Handle one event, or a start that has come due."""
        now = time.monotonic()
        moments = [post.due for post in self._posts.values() if post.due is not None and not self._draining]
        moments += [now + TICK_S] + ([] if end is None else [end])
        try:
            kind, life, number = self._events.get(timeout=max(0.0, min(moments) - now))
        except queue.Empty:
            pass
        else:
            if kind == "stop":
                self._stops += 1
                _log.info("asked to stop", action="stop_asked", signal=signal.Signals(number).name)
            elif kind == "died" and life is not None:
                self._bury(life, number)
        for post in self._posts.values():
            if post.due is not None and post.due <= time.monotonic() and not self._draining:
                self._spawn(post)

    def _spawn(self, post: _Post) -> None:
        part = post.part
        post.due = None
        identity = ids.new(ids.INCARNATION)
        environ = self._environ | dict(part.environ)
        environ |= {watchdog.FD: str(self._watch_fd), logs.PROCESS: part.name}
        if part.incarnated:
            environ["HEADRACE_INCARNATION"] = identity
            self._born(identity)
        # A session of its own: Ctrl-C on the terminal must reach us alone, since the parts stop in an order.
        try:
            process = subprocess.Popen(part.command, env=environ, pass_fds=self._fds, start_new_session=True,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT)
        except OSError as error:  # no memory, no free process: that may pass
            _log.error("part did not start", action="part_not_started", part=part.name, error=str(error))
            if part.incarnated:
                self._dead(identity, 0, False)
            self._put_off(post)
            return
        listener = console.Listener(self._out, part.name, process, noise=part.noise)
        post.life = Life(part, process, listener, identity)
        threading.Thread(target=self._watch, args=(post.life,), name=f"watch-{part.name}",
                         daemon=True).start()

    def _watch(self, life: Life) -> None:
        """Report when a life is ready, and when it is over."""
        while not life.ready:
            try:
                life.process.wait(PROBE_S)
            except subprocess.TimeoutExpired:
                if life.part.ready(life):
                    life.ready = True
                    self._events.put(("ready", life, 0))
            else:
                # What a job kills right after its start must not look like a part that can't start.
                life.ready = life.part.worked(life)
                break
        self._events.put(("died", life, life.process.wait()))

    def _bury(self, life: Life, code: int) -> None:
        _kill_group(life)  # what it started and left behind
        post = self._posts[life.part.name]
        post.life = None
        if life.part.incarnated:
            self._dead(life.incarnation, code, life.condemned)
        if self._draining:
            _log.info("part stopped", action="part_stopped", part=life.part.name, how=describe(code))
            return
        if code in life.part.final:
            post.given_up = code
            _log.error("part can't run here and is not started again", action="part_given_up",
                       part=life.part.name, how=describe(code))
            return
        if life.ready:
            post.failures = 0
            post.due = time.monotonic()
        else:
            self._put_off(post)
        _log.warning("part died and is started again", action="part_died", part=life.part.name,
                     how=describe(code), was_ready=life.ready, delay_s=backoff_s(post.failures))

    def _put_off(self, post: _Post) -> None:
        post.failures += 1
        post.due = time.monotonic() + backoff_s(post.failures)


def backoff_s(failures: int) -> float:
    """The wait before the next start, after so many deaths in a row before it was ready: at first none."""
    if failures <= 1:
        return 0.0
    return float(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 2, 16)))


def describe(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _kill_group(life: Life) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(life.process.pid, signal.SIGKILL)
