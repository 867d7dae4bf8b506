"""Networks: versioned model artifacts with their manifests. `checking → ready | rejected → retired`.

A withdrawn version takes no new jobs; it is retired once its live ones are done.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from models.database import Row, Statement, Transaction
from models.schema import Flag, Text, Time, metadata

CHECKING, READY, REJECTED, RETIRED = "checking", "ready", "rejected", "retired"

networks = sa.Table(
    "networks", metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("version", Text, primary_key=True),
    sa.Column("task", Text, nullable=False),
    sa.Column("state", Text, nullable=False),
    sa.Column("reason", Text),
    sa.Column("is_default", Flag, nullable=False),
    sa.Column("digest", Text, nullable=False),  # of manifest and files: the same content again is no conflict
    sa.Column("manifest", Text, nullable=False),  # JSON
    sa.Column("files", Text, nullable=False),  # JSON: relative path to {blob, size}
    sa.Column("signature", Text),  # JSON, written by the worker that checked it
    sa.Column("created_at", Time, nullable=False),
    sa.Column("ready_at", Time),
    sa.Column("withdrawn_at", Time),  # takes no new jobs from then on
    sa.Column("updated_at", Time, nullable=False),
    sa.CheckConstraint("state IN ('checking','ready','rejected','retired')", name="state"),
)


@dataclass(frozen=True, slots=True)
class Network:
    name: str
    version: str
    task: str
    state: str
    reason: str | None
    is_default: bool
    digest: str
    manifest: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    signature: Mapping[str, Any] | None
    created_at: int
    ready_at: int | None
    withdrawn_at: int | None = None

    @property
    def serving(self) -> bool:
        """Whether new jobs are accepted for it."""
        return self.state == READY and self.withdrawn_at is None

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def hardware(self) -> Sequence[str]:
        return tuple(self.manifest["hardware"])


_FIELDS = ("name, version, task, state, reason, is_default, digest, manifest, files, signature, created_at, "
           "ready_at, withdrawn_at")
_ALL = Statement(f"SELECT {_FIELDS} FROM networks ORDER BY name, created_at, version")
_VERSION = Statement(
    "SELECT count(*), max(updated_at), sum(updated_at), count(CASE WHEN state = 'ready' THEN 1 END) "
    "FROM networks")
_GET = Statement(f"SELECT {_FIELDS} FROM networks WHERE name = :name AND version = :version")
_CHECKING = Statement(
    f"SELECT {_FIELDS} FROM networks WHERE state = 'checking' ORDER BY created_at LIMIT :limit")
_ADD = Statement(
    "INSERT INTO networks (name, version, task, state, is_default, digest, manifest, files, created_at, "
    "updated_at) VALUES (:name, :version, :task, 'checking', NOT EXISTS (SELECT 1 FROM networks n "
    "WHERE n.name = :name AND n.is_default), :digest, :manifest, :files, {now}, {now}) "
    "ON CONFLICT DO NOTHING")
_ACCEPT = Statement(
    "UPDATE networks SET state = 'ready', signature = :signature, ready_at = {now}, updated_at = {now} "
    "WHERE name = :name AND version = :version AND digest = :digest AND state = 'checking'")
_REJECT = Statement(
    "UPDATE networks SET state = 'rejected', reason = :reason, updated_at = {now}, is_default = FALSE "
    "WHERE name = :name AND version = :version AND digest = :digest AND state = 'checking'")
# Two who change the default of one name at once would each miss what the other has not committed.
_LOCK = Statement("SELECT version FROM networks WHERE name = :name ORDER BY version {for_update}")
# Where no row is to be locked yet: two first versions of a name would both find no default. (SQLite's writer
# is alone anyway.)
_LOCK_NAME = Statement("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))", sqlite="SELECT :name")
_UNSET = Statement(
    "UPDATE networks SET is_default = FALSE, updated_at = {now} WHERE name = :name AND is_default")
_PROMOTE = Statement("UPDATE networks SET is_default = TRUE, updated_at = {now} "
                     "WHERE name = :name AND version = :version")
# The first live version of a name is its default, until another is promoted.
_INHERIT = Statement(
    "UPDATE networks SET is_default = TRUE, updated_at = {now} WHERE name = :name AND NOT EXISTS "
    "(SELECT 1 FROM networks d WHERE d.name = :name AND d.is_default) AND version = "
    "(SELECT version FROM networks f WHERE f.name = :name AND f.state IN ('checking', 'ready') "
    "AND f.withdrawn_at IS NULL ORDER BY f.created_at, f.version LIMIT 1)")
_WITHDRAW = Statement("UPDATE networks SET withdrawn_at = COALESCE(withdrawn_at, {now}), is_default = FALSE, "
                      "updated_at = {now} WHERE name = :name AND version = :version")
_REINSTATE = Statement("UPDATE networks SET withdrawn_at = NULL, updated_at = {now} "
                       "WHERE name = :name AND version = :version AND state <> 'retired'")
_WITHDRAWN = Statement("SELECT name, version FROM networks WHERE withdrawn_at IS NOT NULL "
                       "AND state <> 'retired' ORDER BY name, version")
_RETIRE = Statement("UPDATE networks SET state = 'retired', is_default = FALSE, updated_at = {now} "
                    "WHERE name = :name AND version = :version")
_REVIVE = Statement(
    "UPDATE networks SET state = 'checking', reason = NULL, signature = NULL, ready_at = NULL, "
    "withdrawn_at = NULL, digest = :digest, manifest = :manifest, files = :files, task = :task, "
    "updated_at = {now} WHERE name = :name AND version = :version AND state IN ('rejected', 'retired')")
# Each part reads one of the partial indexes over live jobs, never the finished ones.
_LIVE_JOBS = Statement(
    "SELECT (SELECT count(*) FROM jobs WHERE network = :network AND waiting AND deadline_at IS NULL) + "
    "(SELECT count(*) FROM jobs WHERE network = :network AND waiting AND deadline_at IS NOT NULL) + "
    "(SELECT count(*) FROM jobs WHERE network = :network AND state = 'running' AND NOT waiting)")


def _from_row(row: Row) -> Network:
    name, version, task, state, reason, default, digest, manifest, files, signature, *times = row
    return Network(name, version, task, state, reason, bool(default), digest, json.loads(manifest),
                   json.loads(files), None if signature is None else json.loads(signature), *times)


def every(tx: Transaction) -> list[Network]:
    return [_from_row(row) for row in tx.all(_ALL)]


def version(tx: Transaction) -> Row | None:
    """A value that changes with any network: cheaper to ask for than all of them."""
    return tx.one(_VERSION)


def get(tx: Transaction, name: str, version: str) -> Network | None:
    row = tx.one(_GET, name=name, version=version)
    return None if row is None else _from_row(row)


def unchecked(tx: Transaction, limit: int = 8) -> list[Network]:
    return [_from_row(row) for row in tx.all(_CHECKING, limit=limit)]


def add(tx: Transaction, *, name: str, version: str, task: str, digest: str, manifest: Mapping[str, Any],
        files: Mapping[str, Any]) -> bool:
    """Store a version as `checking`; False if it exists. A rejected or retired version may be replaced."""
    values = {"name": name, "version": version, "task": task, "digest": digest,
              "manifest": json.dumps(manifest), "files": json.dumps(files)}
    tx.all(_LOCK_NAME, name=name)
    if tx.run(_ADD, **values) == 1:
        return True
    revived = tx.run(_REVIVE, **values) == 1
    if revived:
        tx.run(_INHERIT, name=name)
    return revived


def accept(tx: Transaction, network: Network, signature: Mapping[str, Any]) -> bool:
    return tx.run(_ACCEPT, name=network.name, version=network.version, digest=network.digest,
                  signature=json.dumps(signature)) == 1


def reject(tx: Transaction, network: Network, reason: str) -> bool:
    tx.all(_LOCK_NAME, name=network.name)
    rejected = tx.run(_REJECT, name=network.name, version=network.version, digest=network.digest,
                      reason=reason) == 1
    if rejected:
        tx.run(_INHERIT, name=network.name)
    return rejected


def promote(tx: Transaction, name: str, version: str) -> None:
    tx.all(_LOCK_NAME, name=name)
    tx.all(_LOCK, name=name)
    tx.run(_UNSET, name=name)
    tx.run(_PROMOTE, name=name, version=version)


def withdraw(tx: Transaction, name: str, version: str) -> None:
    """Take no new jobs for a version; it is retired at once if none is live, else by `retire_withdrawn`."""
    tx.all(_LOCK_NAME, name=name)
    tx.all(_LOCK, name=name)
    tx.run(_WITHDRAW, name=name, version=version)
    tx.run(_INHERIT, name=name)
    if live_jobs(tx, f"{name}@{version}") == 0:
        tx.run(_RETIRE, name=name, version=version)


def reinstate(tx: Transaction, name: str, version: str) -> None:
    """Take new jobs again for a version that is withdrawn but not yet retired."""
    tx.all(_LOCK_NAME, name=name)
    tx.run(_REINSTATE, name=name, version=version)
    tx.run(_INHERIT, name=name)


def any_withdrawn(tx: Transaction) -> bool:
    """Whether a withdrawn version is still to be retired."""
    return bool(tx.all(_WITHDRAWN))


def retire_withdrawn(tx: Transaction) -> list[str]:
    """Retire the withdrawn versions whose live jobs are done; which they were, as `name@version`."""
    done = [row for row in tx.all(_WITHDRAWN) if live_jobs(tx, f"{row[0]}@{row[1]}") == 0]
    for name, version in done:
        tx.run(_RETIRE, name=name, version=version)
    return [f"{name}@{version}" for name, version in done]


def live_jobs(tx: Transaction, reference: str) -> int:
    """How many jobs of `name@version` are queued or running."""
    row = tx.one(_LIVE_JOBS, network=reference)
    return int(row[0]) if row else 0
