"""Group commit: what is stored together, who gets a ticket, and that nobody suffers for another."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import psycopg
import pytest

from api.intake import Submission
from models import contract, feed, ids, job
from models.database import Statement
from models.settings import Settings
from tests import apis, brokers, waiting


@pytest.fixture
def api(settings: Settings) -> Iterator[apis.Api]:
    with apis.running(settings) as running:
        yield running


def new_job(**more: object) -> job.NewJob:
    return replace(job.NewJob(ids.new(ids.JOB), "default", "t@1", "cpu", 2.0, b"1"), **more)  # type: ignore[arg-type]


def submit_together(api: apis.Api, submissions: Sequence[Submission]) -> list[BaseException | None]:
    """All at once, each from its own thread, held back until all are there; what each raised."""
    gate = threading.Barrier(len(submissions))
    raised: list[BaseException | None] = [None] * len(submissions)

    def run(index: int) -> None:
        gate.wait()
        try:
            api.service.intake.submit(submissions[index])
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            raised[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(submissions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return raised


def marked(api: apis.Api) -> set[str]:
    with api.service.database.read() as tx:
        return {row[0] for row in tx.all(Statement("SELECT id FROM jobs WHERE ticketed_until IS NOT NULL"))}


def stored(api: apis.Api) -> set[str]:
    with api.service.database.read() as tx:
        return {row[0] for row in tx.all(Statement("SELECT id FROM jobs"))}


def is_open(api: apis.Api) -> bool:
    return api.service.database.write(lambda tx: feed.is_open(tx, "cpu", contract.INTERACTIVE))


def ticketed(broker: brokers.Broker) -> list[str]:
    with broker.client() as client:
        raw = client.lrange("infer.cpu.interactive", 0, -1)
    return [entry.id for message in raw for entry in apis.ticket_of(message).entries]


def test_submits_from_many_threads_are_all_stored_once(api: apis.Api) -> None:
    submissions = [Submission((new_job(), new_job())) for _ in range(24)]
    assert submit_together(api, submissions) == [None] * 24
    assert stored(api) == {new.id for entry in submissions for new in entry.jobs}
    assert all(entry.accepted_at for entry in submissions)


def test_one_that_the_database_refuses_does_not_hurt_its_neighbours(api: apis.Api) -> None:
    submissions = [Submission((new_job(priority=99 if index == 5 else 5),)) for index in range(12)]
    raised = submit_together(api, submissions)
    assert [index for index, error in enumerate(raised) if error is not None] == [5]
    assert stored(api) == {entry.jobs[0].id for index, entry in enumerate(submissions) if index != 5}


def test_an_open_lane_with_room_gets_a_ticket(api: apis.Api, broker: brokers.Broker) -> None:
    apis.add_worker(api.service.database)
    api.service.directory.refresh()
    entry = api.service.intake.submit(Submission((new_job(), new_job())))
    waiting.until(lambda: set(ticketed(broker)) == {new.id for new in entry.jobs}, what="the ticket")
    assert marked(api) == {new.id for new in entry.jobs}
    assert is_open(api)


def test_what_does_not_fit_the_window_is_left_behind_and_closes_the_lane(
        api: apis.Api, broker: brokers.Broker) -> None:
    apis.add_worker(api.service.database)
    api.service.directory.refresh()
    with broker.client() as client:
        pubsub = client.pubsub()
        pubsub.subscribe(contract.FEED_CHANNEL)
        entry = api.service.intake.submit(Submission([new_job() for _ in range(100)]))
        first = {new.id for new in entry.jobs[:64]}  # one batch of the network, for one worker
        assert marked(api) == first
        assert not is_open(api)
        told = waiting.until(lambda: next((m for m in iter(lambda: pubsub.get_message(timeout=1), None)
                                           if m["type"] == "message"), None), what="the feeder's wake-up")
        assert told["data"] == b"cpu"
        pubsub.close()
    waiting.until(lambda: set(ticketed(broker)) == first, what="the ticket")


def test_nothing_slips_past_what_waits_in_a_closed_lane(api: apis.Api, broker: brokers.Broker) -> None:
    apis.add_worker(api.service.database)
    api.service.directory.refresh()
    api.service.database.write(lambda tx: (feed.is_open(tx, "cpu", contract.INTERACTIVE),
                                           feed.close(tx, "cpu", contract.INTERACTIVE)))
    api.service.intake.submit(Submission((new_job(),)))
    assert marked(api) == set()
    assert ticketed(broker) == []


def test_without_a_worker_the_broker_holds_one_ticket(api: apis.Api, broker: brokers.Broker) -> None:
    for _ in range(5):
        api.service.intake.submit(Submission((new_job(),)))
    waiting.until(lambda: ticketed(broker), what="the ticket")
    assert len(stored(api)) == 5
    assert len(ticketed(broker)) == len(marked(api)) == 1
    assert not is_open(api)


def test_a_database_that_is_away_refuses_and_stores_nothing(tmp_path, broker: brokers.Broker) -> None:
    settings = Settings(data_dir=tmp_path, broker_url=broker.url, database_url="postgresql://x@127.0.0.1:1/none")
    from api import create_app
    app = create_app(settings)
    api = apis.Api(app.extensions["headrace"], app)
    answer = api.submit()
    assert answer.status in (404, 503)
    entry = Submission((new_job(),))
    (raised,) = submit_together(api, [entry])
    assert getattr(raised, "code", None) == "unavailable"
    assert raised.may_have_been_accepted is False


def test_a_commit_whose_answer_is_lost_says_so(api: apis.Api, settings: Settings) -> None:
    if "postgres" not in settings.database_url:
        pytest.skip("only a server can go away between COMMIT and its answer")
    with psycopg.connect(settings.database_url, autocommit=True) as connection:
        connection.execute("CREATE FUNCTION hang_up() RETURNS trigger LANGUAGE plpgsql AS "
                           "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$")
        connection.execute("CREATE CONSTRAINT TRIGGER hang_up AFTER INSERT ON inputs DEFERRABLE INITIALLY DEFERRED "
                           "FOR EACH ROW EXECUTE FUNCTION hang_up()")
        try:
            answer = api.submit()
        finally:
            connection.execute("DROP TRIGGER hang_up ON inputs")
            connection.execute("DROP FUNCTION hang_up")
    assert answer.status == 503
    assert answer.json["may_have_been_accepted"] is True
