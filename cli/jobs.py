"""`headrace submit` and `headrace jobs show | list | cancel | retry`: jobs of a running service."""

import time
import uuid
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from cli import client, codes, job_input, tables

TERMINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
LONG_POLL_S = 30
PATIENCE_S = 60.0  # how long `--wait` outlasts a service that is away: a restart must not end it
RETRY_S = 0.5

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


@click.command()
@click.argument("model")
@click.argument("input", metavar="INPUT")
@click.option("--wait", is_flag=True, help="Wait for the end and print the output.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True),
              help="With --wait: seconds after which to give up; the job goes on.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 (first) to 9; default 5.")
@click.option("--deadline", "deadline_s", type=click.FloatRange(min=0, min_open=True),
              help="Seconds after which the result is worthless.")
@click.option("--hardware", multiple=True, help="Restrict to this class; repeatable.")
@click.option("--webhook", "webhook_url", help="URL that is told when the job ends.")
@click.option("--metadata", multiple=True, metavar="NAME=VALUE", help="Kept with the job; repeatable.")
@click.option("--idempotency-key", help="Makes a repeated command safe; default: a new one each time.")
@json_option
def submit(*, model: str, input: str, wait: bool, timeout_s: float | None, priority: int | None,  # noqa: A002
           deadline_s: float | None, hardware: tuple[str, ...], webhook_url: str | None,
           metadata: tuple[str, ...], idempotency_key: str | None, as_json: bool) -> None:
    """Submit one job: INPUT for MODEL (a name, or name@version).

    INPUT is JSON text, @file.json, - (standard input) or, where the network takes it, plain text or any file.
    """
    service = client.from_environment()
    body: dict[str, Any] = {"model": model, "input": job_input.read(input, _task(service, model))}
    optional = {"priority": priority, "deadline_s": deadline_s, "hardware": list(hardware) or None,
                "webhook": {"url": webhook_url} if webhook_url else None,
                "metadata": _pairs(metadata) or None}
    body |= {name: value for name, value in optional.items() if value is not None}
    job = service.post("/v1/jobs", body, idempotency_key=idempotency_key or str(uuid.uuid4())).body
    if wait:
        job = _wait(service, job, timeout_s)
    if as_json:
        client.print_json(job)
    elif not wait:
        click.echo(f"{job['id']} {job['state']}")
    elif job["state"] == "succeeded":
        tables.show_object(job["output"])
    if wait:
        _exit_unless_succeeded(job, timeout_s)


@click.group()
def jobs() -> None:
    """Show, list, cancel and retry jobs."""


@jobs.command("show")
@click.argument("job_id")
@json_option
def show(job_id: str, as_json: bool) -> None:
    """Show one job with its output."""
    job = client.from_environment().get(f"/v1/jobs/{client.segment(job_id)}").body
    client.print_json(job) if as_json else tables.show_object(job)


@jobs.command("list")
@click.option("--state", type=click.Choice(["queued", "running", *sorted(TERMINAL)]))
@click.option("--model", help="Only jobs of this network.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True)
@json_option
def list_jobs(state: str | None, model: str | None, limit: int, as_json: bool) -> None:
    """List jobs, newest first."""
    found = list(client.from_environment().pages("/v1/jobs", {"state": state, "model": model}, limit))
    if as_json:
        client.print_json(found)
        return
    rows = [(job["id"], job["model"], job["state"], job["created_at"], _timing(job, "queued_ms"),
             _timing(job, "run_ms"), _timing(job, "batch_size"), (job.get("error") or {}).get("code"))
            for job in found]
    columns = ("job", "model", "state", "created", "queued ms", "run ms", "batch", "error")
    tables.show(columns, rows, empty="no jobs")


@jobs.command("cancel")
@click.argument("job_id")
@json_option
def cancel(job_id: str, as_json: bool) -> None:
    """Cancel a job that has not ended."""
    _act(job_id, "cancel", as_json)


@jobs.command("retry")
@click.argument("job_id")
@json_option
def retry(job_id: str, as_json: bool) -> None:
    """Run a failed job once more."""
    _act(job_id, "retry", as_json)


def _act(job_id: str, verb: str, as_json: bool) -> None:
    job = client.from_environment().post(f"/v1/jobs/{client.segment(job_id)}/{verb}").body
    client.print_json(job) if as_json else click.echo(f"{job['id']} {job['state']}")


def _task(service: client.Client, model: str) -> str | None:
    """The network's task, which says how to read INPUT; None where the key may not look."""
    try:
        return str(service.get(f"/v1/models/{client.segment(model)}").body.get("task"))
    except client.Refused as error:
        if error.status == 403:
            return None
        raise


def _wait(service: client.Client, job: Mapping[str, Any], timeout_s: float | None) -> Mapping[str, Any]:
    """Long-poll until the job has ended or `timeout_s` is over; a service that restarts is waited for."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    away_since: float | None = None
    with Console(stderr=True).status(f"waiting for {job['id']}"):
        while job["state"] not in TERMINAL:
            left_s = LONG_POLL_S if end is None else end - time.monotonic()
            if left_s <= 0:
                break
            asked_s, asked_at = max(1, min(LONG_POLL_S, round(left_s))), time.monotonic()
            try:
                answer = service.get(f"/v1/jobs/{job['id']}", {"wait": asked_s})
            except client.Unreachable:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > PATIENCE_S:
                    raise
                time.sleep(RETRY_S)
                continue
            away_since = None
            job = answer.body
            if job["state"] not in TERMINAL and time.monotonic() - asked_at < asked_s / 2:
                # Answered early: it has too many waiters, and says when to come again.
                time.sleep(min(max(answer.retry_after_s, RETRY_S), left_s))
    return job


def _exit_unless_succeeded(job: Mapping[str, Any], timeout_s: float | None) -> None:
    if job["state"] == "succeeded":
        return
    if job["state"] not in TERMINAL:
        raise client.CommandFailed(f"{job['id']} is still {job['state']} after {timeout_s:g} s; it goes on: "
                                   f"`headrace jobs show {job['id']}`")
    error = job.get("error") or {}
    reason = f": {error.get('message')} [{error.get('code')}]" if error else ""
    raise client.CommandFailed(f"{job['id']} {job['state']}{reason}")


def _timing(job: Mapping[str, Any], name: str) -> str | None:
    value = (job.get("timings") or {}).get(name)
    return None if value is None else f"{value:.4g}"


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise client.CommandFailed(f"--metadata {text!r}: write NAME=VALUE", codes.WRONG_USE)
        pairs[name] = value
    return pairs
