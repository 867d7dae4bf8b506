"""What Alembic runs for each command: `migrations.upgrade` brings the connection, there is no alembic.ini."""

from alembic import context

from models.tables import metadata

# The whole upgrade is one transaction on both databases: a failed revision leaves the schema as it was.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_type=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
