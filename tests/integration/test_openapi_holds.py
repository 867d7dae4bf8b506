"""The running API keeps to its OpenAPI document, under schemathesis's inputs: no 5xx, nothing undocumented."""

import subprocess
import sys
from pathlib import Path

import pytest

from models import network
from models.database import Database, Transaction
from models.settings import Settings
from tests import servers

SIGNATURE = {
    "task": "tensor", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}], "item_axis": True,
}
EXAMPLES = 10


def add_ready_network(database: Database) -> None:
    def work(tx: Transaction) -> None:
        network.add(tx, name="0", version="0", task="tensor", digest="d", files={}, manifest={
            "name": "0", "version": "0", "task": "tensor", "artifact": "m", "hardware": ["cpu"], "batching": {}})
        found = network.get(tx, "0", "0")
        assert found is not None
        network.accept(tx, found, SIGNATURE)

    database.write(work)


@pytest.mark.parametrize("seed", [1])
def test_no_answer_is_undocumented_or_a_server_error(settings: Settings, database: Database, seed: int) -> None:
    add_ready_network(database)
    with servers.api(settings) as url:
        # Nearly every input that its schema allows is refused for lack of a network or a job: that is right.
        done = subprocess.run(
            [str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json", "--seed", str(seed),
             "--max-examples", str(EXAMPLES), "--exclude-checks", "positive_data_acceptance",
             "--continue-on-failure", "--no-color", "--request-timeout", "40", "--warnings", "off"],
            cwd=settings.data_dir, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
