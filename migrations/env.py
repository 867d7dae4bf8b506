"""What Alembic runs for each command: `migrations.upgrade` brings the connection, there is no alembic.ini."""

from alembic import context

from models.tables import metadata

# A revision is one transaction on both databases: a failed one leaves the schema as it was.
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    compare_type=True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
