"""Networks that are checked: one whose check breaks holds up no other."""

from pathlib import Path

from models import manifest, network
from models.blobs import Blobs
from models.database import Database
from models.network import Network
from models.settings import DEFAULT_CLASSES
from tests import waiting
from workers.artifacts import Artifacts
from workers.catalogue import Catalogue


def test_a_check_that_breaks_is_tried_again_and_holds_up_no_other(database: Database, tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    for name in ("first", "second"):
        parsed = manifest.parse(f"name: {name}\nversion: '1'\ntask: tensor\nartifact: model.onnx\n".encode())
        parsed["hardware"] = ["cpu"]
        files = {"model.onnx": {"blob": blobs.put(b"not read"), "size": 8}}
        database.write(lambda tx, name=name, parsed=parsed, files=files: network.add(
            tx, name=name, version="1", task="tensor", digest=name, manifest=parsed, files=files))
    tried: list[str] = []

    def inspect(found: Network, _folder: Path) -> dict[str, object]:
        tried.append(found.name)
        if tried == ["first"]:
            raise BlockingIOError(11, "Resource temporarily unavailable")  # as when no process can be started
        return {}

    def state(name: str) -> str | None:
        with database.read() as tx:
            found = network.get(tx, name, "1")
        return None if found is None else found.state

    catalogue = Catalogue(database, Artifacts(tmp_path / "cache", blobs), DEFAULT_CLASSES["cpu"], inspect=inspect)
    catalogue.start()
    try:
        waiting.until(lambda: state("second") == network.READY, what="the second network")
        assert tried == ["first", "second"]
        waiting.until(lambda: state("first") == network.READY, what="the first network")
    finally:
        catalogue.stop()
