"""Every route of the service: one module a resource, each with a `table`."""

import functools
import importlib
import pkgutil

from api.http import Route, Table


@functools.cache
def tables() -> tuple[Table, ...]:
    """The tables of all modules here, in the order of their names."""
    modules = [importlib.import_module(f"{__name__}.{item.name}") for item in pkgutil.iter_modules(__path__)]
    return tuple(module.table for module in modules if hasattr(module, "table"))


def routes() -> list[Route]:
    return [route for table in tables() for route in table.routes]
