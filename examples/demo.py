"""The main job from end to end, on this machine: what `make demo` runs.

Starts the embedded stack, adds real networks, submits real inputs, polls the results, receives signed
webhooks, and checks all of them. The last line counts; the exit code is 0 only if everything was right.
"""

import base64
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cli.client import Client, CommandFailed
from examples import samples
from examples import stack as stacks
from examples.webhook_receiver import Receiver

NETWORKS = Path(__file__).parent / "networks"
DIGITS, ROWS = 400, 200
BATCH = 100  # rows in one POST
THREADS = 16
WEBHOOKS_S = 60.0
SENTENCES = ("A cat sits on the mat.", "A kitten rests on a rug.", "Interest rates rose by a quarter point.")


@dataclass(frozen=True, slots=True)
class Asked:
    """One job to submit, and what its output must hold. `check` gets the output."""

    network: str
    input: Any
    check: Callable[[Any], bool]

    @property
    def body(self) -> dict[str, Any]:
        return {"model": self.network, "input": self.input, "metadata": {"from": "demo"}}


def labelled(network: str, found: Sequence[samples.Sample]) -> list[Asked]:
    return [Asked(network, s.input, lambda output, s=s: output["label"] == s.expected) for s in found]


def available(name: str) -> bool:
    """Whether a network's files are here: the large ones are only there once they have been made."""
    return (NETWORKS / name / "model.onnx").is_file()


def asked() -> tuple[list[Asked], list[Asked]]:
    """Jobs to submit one by one, and jobs to submit in batches."""
    singles = labelled("digits", samples.digits(DIGITS))
    if available("minilm"):
        singles += [Asked("minilm", text, lambda output: abs(math.hypot(*output["embedding"]) - 1) < 1e-3)
                    for text in SENTENCES]
    if available("magika"):
        source = base64.b64encode(Path(__file__).read_bytes()).decode()
        singles.append(Asked("magika", {"base64": source}, lambda output: output["label"] == "python"))
    return singles, labelled("tumor", samples.tumor(ROWS))


def submit(client: Client, singles: Sequence[Asked], batched: Sequence[Asked]) -> dict[str, Asked]:
    """Submit everything; job id to what was asked."""
    jobs: dict[str, Asked] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        answers = pool.map(lambda one: client.post("/v1/jobs", one.body).body, singles)
        jobs.update((job["id"], one) for job, one in zip(answers, singles, strict=True))
    for at in range(0, len(batched), BATCH):
        part = batched[at:at + BATCH]
        answer = client.post("/v1/jobs/batch", {"jobs": [one.body for one in part]}).body
        jobs.update((entry["job"]["id"], one) for entry, one in zip(answer["data"], part, strict=True))
    return jobs


def poll(client: Client, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Each job once it has ended."""
    def until_ended(job_id: str) -> dict[str, Any]:
        while True:
            job: dict[str, Any] = client.get(f"/v1/jobs/{job_id}", {"wait": 30}).body
            if job["finished_at"] is not None:
                return job

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(until_ended, ids))


def wrong(jobs: Sequence[dict[str, Any]], by_id: dict[str, Asked]) -> Iterator[str]:
    """A line for each job that did not do what it had to."""
    for job in jobs:
        if job["state"] != "succeeded":
            yield f"{job['id']} {job['state']}: {job['error']}"
        elif not by_id[job["id"]].check(job["output"]):
            yield f"{job['id']} ({job['model']}): unexpected output {str(job['output'])[:200]}"


def report(jobs: Sequence[dict[str, Any]], submitted_s: float, total_s: float) -> None:
    heads = ("jobs", "batch min / mean / max", "p50 ms", "p99 ms", "run ms")
    print("{:<12} {:>5} {:>24} {:>8} {:>8} {:>8}".format("network", *heads))
    for network in sorted({job["model"] for job in jobs}):
        mine = [job for job in jobs if job["model"] == network and job["state"] == "succeeded"]
        if not mine:
            continue
        sizes = [job["timings"]["batch_size"] for job in mine]
        # Each job knows the size of its batch: a batch of n is counted n times, a share of 1/n each.
        mean = len(sizes) / sum(1 / size for size in sizes)
        waited = sorted(_milliseconds(job) for job in mine)
        spread = f"{min(sizes)} / {mean:.1f} / {max(sizes)}"
        run = statistics.median(job["timings"]["run_ms"] for job in mine)
        print(f"{network:<12} {len(mine):>5} {spread:>24} {waited[len(waited) // 2]:>8.0f} "
              f"{waited[int(len(waited) * 0.99)]:>8.0f} {run:>8.2f}")
    print(f"submitted in {submitted_s:.2f} s, all results read after {total_s:.2f} s")


def _milliseconds(job: dict[str, Any]) -> float:
    created, finished = (datetime.fromisoformat(job[name]) for name in ("created_at", "finished_at"))
    return (finished - created).total_seconds() * 1000


def run(stack: stacks.Stack, receiver: Receiver) -> tuple[bool, str]:
    """The whole demo on a running stack; whether everything was right, and the line that counts it."""
    for name in filter(available, ("digits", "tumor", "minilm", "magika")):
        print(stack.run("models", "add", str(NETWORKS / name)))
    client = Client(stack.url)
    endpoint = client.post("/v1/webhook_endpoints", {
        "name": "demo", "url": receiver.url, "event_types": ["job.succeeded", "job.failed"]}).body
    receiver.secrets.append(endpoint["signing_secret"])
    singles, batched = asked()
    start = time.perf_counter()
    by_id = submit(client, singles, batched)
    submitted_s = time.perf_counter() - start
    jobs = poll(client, list(by_id))
    report(jobs, submitted_s, time.perf_counter() - start)
    told = receiver.wait_for(len(jobs), WEBHOOKS_S)
    subjects = {event["data"]["id"] for event in receiver.events.values()}
    print(f"webhooks: {len(receiver.events)} verified, {receiver.repeats} repeated, "
          f"{receiver.refused} refused; the last after {time.perf_counter() - start:.2f} s")
    faults = list(wrong(jobs, by_id))
    for line in faults[:10]:
        print(line, file=sys.stderr)
    succeeded = sum(job["state"] == "succeeded" for job in jobs)
    counts = f"demo: jobs={len(jobs)} succeeded={succeeded} webhooks_verified={len(subjects & set(by_id))}"
    return not faults and told and subjects == set(by_id), counts


def main() -> int:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder, Receiver() as receiver:
        print("starting the embedded stack: broker, SQLite, API, worker, housekeeping")
        try:
            with stacks.running(Path(folder)) as stack:
                print(f"{stack.url} is ready after {time.perf_counter() - start:.1f} s")
                right, counts = run(stack, receiver)
        except (stacks.StackFailed, CommandFailed) as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
    print(f"stopped after {time.perf_counter() - start:.1f} s")
    print(counts)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
