"""A rolling upgrade from the release before to this one under load: every pair of parts works on one database."""

import subprocess
from pathlib import Path

import pytest

from migrations import upgrade
from models import job
from tests import databases, loads
from tests.upgrade import releases

# (API, housekeeping, worker), one part replaced a step, so that every mixture runs: 0 the old release, 1 this one.
EVERY = ((0, 0, 0), (0, 1, 0), (0, 1, 1), (0, 0, 1), (1, 0, 1), (1, 0, 0), (1, 1, 0), (1, 1, 1))
SHORT = ((0, 0, 0), (0, 0, 1), (1, 0, 1), (1, 0, 0), (1, 1, 0))
PARTS = ("api", "housekeep", "worker")
JOBS = 60  # in each mixture, of each kind of request


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The commands of the release before and of this one."""
    folder = tmp_path_factory.mktemp("releases")
    source = releases.source_of_previous(folder / "old")
    (folder / "new").mkdir()
    return releases.install(source, folder / "old"), releases.install(releases.ROOT, folder / "new")


def roll(service: releases.Service, installed: tuple[Path, Path], mixtures: tuple[tuple[int, int, int], ...],
         folder: Path) -> None:
    old, new = installed
    done = service.command(old, "db", "upgrade")
    assert done.returncode == 0, done.stderr
    for part in PARTS:
        service.replace(part, old)
    network = loads.network(folder / "deep")
    added = service.command(old, "models", "add", str(network))
    assert added.returncode == 0, added.stderr
    refused = service.command(new, "worker", "--hardware", "cpu")
    assert refused.returncode == 2, refused.stderr
    assert "headrace db upgrade" in refused.stderr
    with loads.Load(service.url, rate_s=60.0, seed=1) as singles, \
            loads.Load(service.url, rate_s=120.0, size=10, seed=2, clients=2) as batches:
        running = mixtures[0]
        upgraded = service.command(new, "db", "upgrade")
        assert upgraded.returncode == 0, upgraded.stderr
        for mixture in mixtures:
            for part, before, after in zip(PARTS, running, mixture, strict=True):
                if before != after:
                    service.replace(part, installed[after])
            running = mixture
            for load in (singles, batches):
                load.url = service.url
                load.reached(len(load.accepted) + JOBS)
            releases.odd_tickets(service.broker, list(singles.accepted)[-5:])
    account(service, network, singles, batches)


def account(service: releases.Service, network: Path, *done: loads.Load) -> None:
    """Every accepted job succeeded once, with the output of a direct run."""
    accepted = done[0].accepted | done[1].accepted

    def ended() -> bool:
        with service.database.read() as tx:
            tx.cursor.execute("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')")
            return tx.cursor.fetchall()[0][0] == 0

    releases.waiting.until(ended, 90, what="the end of all jobs")
    with service.database.read() as tx:
        tx.cursor.execute("SELECT id, state, crashes FROM jobs")
        states = {row[0]: (row[1], row[2]) for row in tx.cursor.fetchall()}
        tx.cursor.execute("SELECT job_id, body FROM results")
        outputs = {row[0]: bytes(row[1]) for row in tx.cursor.fetchall()}
    assert set(states) == set(accepted), "a job was lost, or stored twice"
    assert set(states.values()) == {(job.SUCCEEDED, 0)}
    assert loads.differences(network, accepted, outputs) == []


@pytest.mark.slow
def test_the_old_and_the_new_release_share_a_database_under_load(
        installed: tuple[Path, Path], tmp_path: Path, own_broker) -> None:
    with releases.service(tmp_path, f"sqlite:///{tmp_path}/headrace.db", own_broker) as service:
        roll(service, installed, SHORT, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_mixture_of_releases_works_under_load(
        kind: str, installed: tuple[Path, Path], tmp_path: Path, own_broker, request: pytest.FixtureRequest) -> None:
    url = (f"sqlite:///{tmp_path}/headrace.db" if kind == "sqlite"
           else databases.create(request.getfixturevalue("postgres_server"), "rolling"))
    with releases.service(tmp_path, url, own_broker) as service:
        roll(service, installed, EVERY, tmp_path)


@pytest.mark.slow
def test_this_release_says_what_to_run_when_there_is_no_schema_yet(
        installed: tuple[Path, Path], tmp_path: Path, own_broker) -> None:
    _, new = installed
    with releases.service(tmp_path, f"sqlite:///{tmp_path}/headrace.db", own_broker) as service:
        for part in (("api", "--port", "0"), ("housekeep",), ("worker", "--hardware", "cpu")):
            refused = service.command(new, *part)
            assert (refused.returncode, "headrace db upgrade" in refused.stderr) == (2, True), refused.stderr
        upgrade.upgrade(service.database_url)
        checked = service.command(new, "db", "check")
        assert checked.returncode == 0, checked.stderr


def test_a_release_that_the_schema_no_longer_serves_says_so(database_url: str) -> None:
    from models import release
    connected = releases.database.connect(database_url)
    newest = f"{int(release.REVISION) + 1:04d}"
    set_revision = releases.database.Statement("UPDATE alembic_version SET version_num = :value")
    set_oldest = releases.database.Statement("INSERT INTO schema_support (id, oldest_release) VALUES (1, :value) "
                                             "ON CONFLICT (id) DO UPDATE SET oldest_release = excluded.oldest_release")
    try:
        connected.write(lambda tx: tx.run(set_revision, value=newest))
        connected.write(lambda tx: tx.run(set_oldest, value="0.1"))
        release.require_fit(connected)
        upgrade.upgrade(database_url)  # nothing to do
        assert upgrade.check(database_url) == []
        connected.write(lambda tx: tx.run(set_oldest, value="9.0"))
        for ask in (lambda: release.require_fit(connected), lambda: upgrade.upgrade(database_url),
                    lambda: upgrade.check(database_url)):
            with pytest.raises(releases.SchemaUnfit, match=r"serves release 9\.0 and later"):
                ask()
    finally:
        connected.write(lambda tx: tx.run(set_revision, value=release.REVISION))
        connected.write(lambda tx: tx.run(set_oldest, value="0.1"))
        connected.close()


def test_the_code_names_the_newest_revision() -> None:
    from models import release
    names = [path.name for path in (releases.ROOT / "migrations" / "versions").glob("[0-9]*.py")]
    assert max(names).startswith(f"{release.REVISION}_")


@pytest.mark.slow
def test_this_tree_has_a_version_after_the_release_before(installed: tuple[Path, Path]) -> None:
    said = [subprocess.run([each, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
            for each in installed]
    assert said[0] < said[1]
