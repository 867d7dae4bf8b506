"""What a tenant may have: jobs in flight, requests a second, size of a body; and its weight in fair shares.

A tenant's own figures go before the settings' defaults, which the embedded tenant `default` is spared. In the
table NULL means as the settings say, and 0 without a limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from models import tenant as tenants
from models.database import Row, Statement, Transaction
from models.settings import Settings


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits in force for one tenant; None: no limit.

    `burst`: requests that may come at once, before `rate` (a second) holds them back.
    """

    max_in_flight: int | None = None
    rate: float | None = None
    burst: int | None = None
    max_body_bytes: int | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Own:
    """What the operator has set for one tenant; None: as the settings say, 0: no limit."""

    tenant: str
    max_in_flight: int | None = None
    rate: float | None = None
    burst: int | None = None
    max_body_bytes: int | None = None
    weight: float | None = None


LIMITS = tuple(item.name for item in fields(Own) if item.name != "tenant")
UNLIMITED = Quota()
EMBEDDED = tenants.DEFAULT  # which no default limits


def default(settings: Settings) -> Quota:
    """What a tenant has for which nothing was set."""
    return _in_force(Own(""), Own("", settings.tenant_max_in_flight, settings.tenant_rate,
                                  settings.tenant_burst, settings.tenant_max_body_bytes))


def in_force(own: Own, settings: Settings) -> Quota:
    """What holds for this tenant."""
    if own.tenant == EMBEDDED:
        return _in_force(own, Own(""))
    return _in_force(own, Own("", settings.tenant_max_in_flight, settings.tenant_rate, settings.tenant_burst,
                              settings.tenant_max_body_bytes))


def _in_force(own: Own, otherwise: Own) -> Quota:
    def value(name: str) -> Any:
        set_to = getattr(own, name)
        return (getattr(otherwise, name) if set_to is None else set_to) or None

    return Quota(value("max_in_flight"), value("rate"), value("burst"), value("max_body_bytes"),
                 own.weight or 1.0)


_FIELDS = ", ".join(("id", *LIMITS))
_ANY = " OR ".join(f"{name} IS NOT NULL" for name in LIMITS)
_LISTING = Statement(f"SELECT {_FIELDS} FROM tenants ORDER BY id")
_LIMITED = Statement(f"SELECT {_FIELDS} FROM tenants WHERE {_ANY}")
_ONE = Statement(f"SELECT {_FIELDS} FROM tenants WHERE id = :id")
_SET = {name: Statement(f"UPDATE tenants SET {name} = :value WHERE id = :id") for name in LIMITS}
_WEIGHTS = Statement("SELECT id, weight FROM tenants WHERE weight > 0")


def _own(row: Row) -> Own:
    return Own(*row)


def every(tx: Transaction) -> list[Own]:
    """All tenants that are known, by name."""
    return [_own(row) for row in tx.all(_LISTING)]


def limited(tx: Transaction) -> list[Own]:
    """Those for which anything was set."""
    return [_own(row) for row in tx.all(_LIMITED)]


def get(tx: Transaction, tenant: str) -> Own | None:
    row = tx.one(_ONE, id=tenant)
    return None if row is None else _own(row)


def create(tx: Transaction, tenant: str) -> bool:
    """Add a tenant; False if it was there."""
    if get(tx, tenant) is not None:
        return False
    tenants.ensure(tx, tenant)
    return True


def change(tx: Transaction, tenant: str, **limits: float | None) -> None:
    """Set these limits, of LIMITS, of a tenant that exists."""
    for name, value in limits.items():
        tx.run(_SET[name], id=tenant, value=value)


def weights(tx: Transaction) -> dict[str, float]:
    """The tenants whose weight was set."""
    return {row[0]: float(row[1]) for row in tx.all(_WEIGHTS)}


# By tenant, class and priority, each a walk of what waits there: the index by tenant alone holds all that
# ended too.
# (A range of one tenant, so that PostgreSQL doesn't take that index for as good.)
_COUNT = ("(SELECT count(*) FROM jobs j WHERE j.hardware = l.hardware AND j.priority = p.priority "
          "AND j.tenant >= t.id AND j.tenant <= t.id AND j.waiting AND j.deadline_at IS {null})")
_PRIORITIES = " UNION ALL ".join(f"SELECT {priority} AS priority" for priority in range(10))
_IN_FLIGHT = Statement(
    "SELECT tenant, sum(jobs) FROM ("
    f"SELECT t.id AS tenant, {_COUNT.format(null='NULL')} + {_COUNT.format(null='NOT NULL')} AS jobs "
    f"FROM tenants t, lanes l, ({_PRIORITIES}) AS p WHERE t.id {{in tenants}} AND l.lane = 'interactive' "
    "UNION ALL SELECT tenant, count(*) FROM (SELECT tenant || '' AS tenant FROM jobs "
    "WHERE state = 'running' AND NOT waiting) AS r WHERE tenant {in tenants} GROUP BY tenant"
    ") AS counted GROUP BY tenant")


def in_flight(tx: Transaction, wanted: Sequence[str]) -> dict[str, int]:
    """Of these tenants, how many jobs wait or run."""
    counted = dict.fromkeys(wanted, 0)
    return counted | {row[0]: int(row[1]) for row in tx.all(_IN_FLIGHT, tenants=wanted)}
