"""Results: written once, with the transition that ends the job."""

import sqlalchemy as sa

from models.schema import Bytes, Flag, Text, Time, metadata

results = sa.Table(
    "results", metadata,
    sa.Column("job_id", Text, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),  # the attempt that held the lease
    sa.Column("body", Bytes),  # JSON
    sa.Column("blob", Text),
    sa.Column("removed", Flag, nullable=False),  # past its retention: the job remembers that it had one
    sa.Column("created_at", Time, nullable=False),
    sa.Index("ix_results_blob", "blob", sqlite_where=sa.text("blob IS NOT NULL"),
             postgresql_where=sa.text("blob IS NOT NULL")),
)
