"""`Statement`: one SQL text for both databases, compiled once for each."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

SQLITE = "sqlite"
POSTGRES = "postgres"

_NOW = {
    SQLITE: "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)",
    POSTGRES: "(extract(epoch from clock_timestamp()) * 1000)::bigint",
}
_MACRO = re.compile(r"\{(now|in|for_update|skip_locked|for_share)(?: (\w+))?\}")
_NAME = re.compile(r"(?<![:\w]):(\w+)")


class Statement:
    """SQL with a few marks that differ between the databases.

    `:name` binds a value. `{now}` is the database's clock in ms since the epoch. `x {in ids}` tests
    membership in a bound list of strings. `{for_update}`, `{for_share}` and `{skip_locked}` vanish on SQLite,
    whose writers are alone. Where the two need different text, pass `sqlite=` for SQLite's.
    """

    __slots__ = ("_lists", "_lite", "_names", "_post", "sqlite", "text")

    def __init__(self, text: str, *, sqlite: str | None = None) -> None:
        self.text = text
        self.sqlite = sqlite or text
        self._lists = frozenset(m[2] for m in _MACRO.finditer(text + self.sqlite) if m[1] == "in")
        self._lite: str | None = None
        self._post: str | None = None
        self._names: tuple[str, ...] = ()

    def for_sqlite(self, values: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """The text with `:name` places, and what to bind."""
        if self._lite is None:
            self._lite = _MACRO.sub(_sqlite_macro, self.sqlite)
        if self._lists:
            values = {k: json.dumps(list(v)) if k in self._lists else v for k, v in values.items()}
        return self._lite, values

    def for_postgres(self, values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
        """The text with `$1` places, and what to bind, in their order."""
        if self._post is None:
            names: dict[str, int] = {}
            self._post = _NAME.sub(lambda m: f"${names.setdefault(m[1], len(names) + 1)}",
                                   _MACRO.sub(_postgres_macro, self.text))
            self._names = tuple(names)
        return self._post, [values[name] for name in self._names]


def _sqlite_macro(match: re.Match[str]) -> str:
    if match[1] == "now":
        return _NOW[SQLITE]
    return f"IN (SELECT value FROM json_each(:{match[2]}))" if match[1] == "in" else ""


def _postgres_macro(match: re.Match[str]) -> str:
    if match[1] == "now":
        return _NOW[POSTGRES]
    return f"= ANY(:{match[2]}::text[])" if match[1] == "in" else match[1].replace("_", " ").upper()
