"""`headrace models add | list | show | promote | remove`: the networks of a running service."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from cli import client, codes, tables
from cli.upload import Multipart, Part
from models import manifest as manifests
from models.errors import HeadraceError

MANIFEST = "network.yaml"
POLL_S = 0.2
SAY_S = 2.0  # how long a network may be checking before a missing worker is mentioned

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


@click.group()
def models() -> None:
    """Add networks to the running service, list and promote them."""


@models.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), default=60.0, show_default=True,
              help="Seconds to wait until a worker has checked it; 0 does not wait.")
@json_option
def add(path: Path, timeout_s: float, as_json: bool) -> None:
    """Upload a network's folder and wait until it is ready.

    PATH holds network.yaml and the files that it names.
    """
    folder = path.parent if path.is_file() else path
    text = _read(path if path.is_file() else folder / MANIFEST)
    parts = [Part("manifest", text, "application/yaml"), *_files(folder, text)]
    service = client.from_environment()
    body = Multipart(parts)
    network = service.call("POST", "/v1/models", body=body, headers=body.headers, read_s=client.UPLOAD_S).body
    if timeout_s > 0:
        network = _wait_until_checked(service, network, timeout_s)
    if as_json:
        client.print_json(network)
    reference = _reference(network)
    if network["state"] == "rejected":
        raise client.CommandFailed(f"{reference} was rejected: {network.get('reason')}")
    if timeout_s > 0 and network["state"] != "ready":
        raise client.CommandFailed(f"{reference} is still {network['state']} after {timeout_s:g} s: "
                                   f"{_who_could_check(service, network)}")
    if not as_json:
        click.echo(f"{reference} is {network['state']}")


@models.command("list")
@json_option
def list_networks(as_json: bool) -> None:
    """List every network and version."""
    found = client.from_environment().get("/v1/models").body
    if as_json:
        client.print_json(found)
        return
    rows = [(_reference(n), n.get("task"), n.get("state"), "yes" if n.get("is_default") else "",
             ", ".join(n.get("hardware") or ())) for n in found["data"]]
    tables.show(("network", "task", "state", "default", "hardware"), rows,
                empty="no networks yet: headrace models add PATH")


@models.command()
@click.argument("model")
@json_option
def show(model: str, as_json: bool) -> None:
    """Show one network.

    Its signature, hardware, batching, state and learned latency.
    """
    found = client.from_environment().get(f"/v1/models/{client.segment(model)}").body
    client.print_json(found) if as_json else tables.show_object(found)


@models.command()
@click.argument("model")
@json_option
def promote(model: str, as_json: bool) -> None:
    """Make NAME@VERSION the default version of its name."""
    found = client.from_environment().post(f"/v1/models/{_versioned(model)}/promote").body
    client.print_json(found) if as_json else click.echo(f"{_reference(found)} is now the default of its name")


@models.command()
@click.argument("model")
@json_option
def remove(model: str, as_json: bool) -> None:
    """Retire NAME@VERSION.

    It takes no new jobs; those already accepted still run.
    """
    found = client.from_environment().call("DELETE", f"/v1/models/{_versioned(model)}").body
    done = f"{model}: no new jobs; retired once its live jobs are done"
    client.print_json(found) if as_json else click.echo(done)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise client.CommandFailed(f"{path}: {error.strerror}; a network is a folder with {MANIFEST} in it",
                                   codes.WRONG_USE) from error


def _files(folder: Path, text: bytes) -> list[Part]:
    """The files that the manifest names. Faults of the manifest are told here, before anything is sent."""
    try:
        names = manifests.files(manifests.parse(text))
    except HeadraceError as error:
        faults = "; ".join(f"{fault.pointer}: {fault.detail}" for fault in error.faults)
        raise client.CommandFailed(f"{MANIFEST}: {faults or error.detail}", codes.WRONG_USE) from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise client.CommandFailed(f"{MANIFEST} names {', '.join(missing)}, not found in {folder}",
                                   codes.WRONG_USE)
    return [Part(name, folder / name) for name in names]


def _wait_until_checked(service: client.Client, network: Mapping[str, Any],
                        timeout_s: float) -> Mapping[str, Any]:
    start, told = time.monotonic(), False
    path = f"/v1/models/{client.segment(_reference(network))}"
    while network["state"] == "checking" and time.monotonic() - start < timeout_s:
        if not told and time.monotonic() - start > SAY_S:
            told = True
            click.echo(f"waiting: {_who_could_check(service, network)}", err=True)
        time.sleep(POLL_S)
        network = service.get(path).body
    return network


def _who_could_check(service: client.Client, network: Mapping[str, Any]) -> str:
    """Why a network may still be unchecked: nobody alive to open it, or a worker that is busy with it."""
    wanted: Sequence[str] = network.get("hardware") or ()
    try:
        live = {worker.get("hardware") for worker in service.get("/v1/workers").body["data"]}
    except client.Refused:  # the key may lack the scope
        return "no worker has checked it yet"
    if not live:
        return ("no worker is alive to check it: start one with "
                f"`headrace worker --hardware {wanted[0] if wanted else 'cpu'}`")
    if wanted and not live & set(wanted):
        return (f"no worker of class {' or '.join(wanted)} is alive to check it "
                f"(alive: {', '.join(sorted(map(str, live)))})")
    return "a worker is alive but has not checked it yet; its log says why"


def _reference(network: Mapping[str, Any]) -> str:
    name, version = network.get("name"), network.get("version")
    return f"{name}@{version}" if name and version else str(network.get("id"))


def _versioned(model: str) -> str:
    if "@" not in model:
        raise client.CommandFailed(f"name the version too: {model}@VERSION, see `headrace models list`",
                                   codes.WRONG_USE)
    return client.segment(model)
