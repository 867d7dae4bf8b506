"""Tenants, API keys, and the idempotency keys of their requests."""

import sqlalchemy as sa

from models import signing
from models.database import Statement, Transaction
from models.schema import Bytes, Text, Time, metadata

DEFAULT = "default"
SCOPES = ("jobs:read", "jobs:write", "bulks:read", "bulks:write", "models:read", "models:write",
          "webhooks:manage", "admin")

tenants = sa.Table(
    "tenants", metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("webhook_secret", Text, nullable=False),
    sa.Column("created_at", Time, nullable=False),
    # Quotas, see models/quota.py. NULL: as the settings say; 0: none.
    sa.Column("max_in_flight", sa.Integer),
    sa.Column("rate", sa.Float),  # requests a second
    sa.Column("burst", sa.Integer),
    sa.Column("max_body_bytes", sa.BigInteger),
    sa.Column("weight", sa.Float),  # its part of the compute where several tenants wait; NULL: 1
)

api_keys = sa.Table(
    "api_keys", metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("tenant", Text, nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("hash", Text, nullable=False, unique=True),  # hex SHA-256: the key itself is high-entropy
    sa.Column("hint", Text, nullable=False),  # its last 4 characters
    sa.Column("scopes", Text, nullable=False),  # space-separated
    sa.Column("created_at", Time, nullable=False),
    sa.Column("expires_at", Time),
    sa.Column("revoked_at", Time),
    sa.Column("last_used_at", Time),
)

idempotency_keys = sa.Table(
    "idempotency_keys", metadata,
    sa.Column("tenant", Text, primary_key=True),
    sa.Column("path", Text, primary_key=True),
    sa.Column("key", Text, primary_key=True),
    sa.Column("fingerprint", Text, nullable=False),  # hex SHA-256 of method, path, content type and body
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("body", Bytes, nullable=False),
    sa.Column("headers", Text, nullable=False),  # JSON
    sa.Column("created_at", Time, nullable=False),
    sa.Index("ix_idempotency_keys_created", "created_at"),
)

_SECRET = Statement("SELECT webhook_secret FROM tenants WHERE id = :id")
_ENSURE = Statement("INSERT INTO tenants (id, webhook_secret, created_at) VALUES (:id, :secret, {now}) "
                    "ON CONFLICT (id) DO NOTHING")


def webhook_secret(tx: Transaction, tenant: str) -> str | None:
    """The secret that signs the webhooks of this tenant's own jobs, if it has one yet."""
    row = tx.one(_SECRET, id=tenant)
    return None if row is None else str(row[0])


def ensure(tx: Transaction, tenant: str) -> str:
    """The same, made with the tenant's row if need be."""
    found = webhook_secret(tx, tenant)
    if found is None:
        tx.run(_ENSURE, id=tenant, secret=signing.new_secret())
        found = str(tx.all(_SECRET, id=tenant)[0][0])
    return found
