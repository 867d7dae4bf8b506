"""Every table, for migrations and `db check`: importing this fills `schema.metadata`."""

from models import event, feed, incarnation, job, network, release, result, tenant
from models.schema import metadata

__all__ = ["event", "feed", "incarnation", "job", "metadata", "network", "release", "result",
           "tenant"]
